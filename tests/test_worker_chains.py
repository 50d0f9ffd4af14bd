"""A run of a chain that its program left open is carried on by a worker, and what is over is forgotten by retention."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest

from acts import rows
from chain_shop import FORWARD, INPUT, Counter, order_chain, raising
from settled import Approve, ChainDesk, ChainState, ContractError, Desk, Ledger, Purge, Retention, Worker, always
from settled.state.postgres import Database

MINUTE_S = 60.0


class Left(BaseException):
    """The program is gone, as by a signal: nothing of it runs any more."""


@contextmanager
def later(ledger: Ledger, span_s: float = 2 * MINUTE_S) -> Iterator[tuple[Ledger, "Passing"]]:
    """Open the ledger as it is seen this much later, with the clock, which can be moved on."""
    passing = Passing(rows(ledger.url, "SELECT settled.now() AS now")[0]["now"], span_s)
    with Ledger.connect(ledger.url, clock=passing) as opened:
        yield opened, passing


@dataclass
class Passing:
    """The ledger's clock."""

    start: datetime
    span_s: float

    def __call__(self) -> datetime:
        return self.start + timedelta(seconds=self.span_s)


async def rounds(worker: Worker, passing: Passing, count: int = 3) -> int:
    """Let a worker do rounds, a minute apart; returns how many runs it has carried on."""
    carried_on = 0
    for _ in range(count):
        carried_on += (await worker.arun_once()).carried_on
        passing.span_s += MINUTE_S
    await worker.ledger.aclose()
    return carried_on


def left_open(ledger: Ledger, far: Counter, at: str, **options: Any) -> Any:
    """Run a chain whose program goes away in the body of a step; return the chain."""
    order = order_chain(far, **options)
    far.faults[at] = raising(Left())
    with pytest.raises(Left):
        order.run(INPUT, ledger=ledger, thread_id="t")
    far.faults.clear()
    return order


@pytest.mark.parametrize("at", ["verify_coupon", "deduct_coupon, answered", "ship, answered"])
async def test_a_run_that_was_left_open_is_carried_on(ledger: Ledger, at: str) -> None:
    """Wherever its program went away: its step is found first, then the run goes on, and nothing happens twice."""
    far = Counter()
    order = await asyncio.to_thread(left_open, ledger, far, at)
    with later(ledger) as (opened, passing):
        assert await rounds(Worker(opened, chains=[order]), passing) == 1
        (run,) = await asyncio.to_thread(ChainDesk(opened).runs)
    assert run.state is ChainState.SUCCEEDED
    assert far.done == list(FORWARD)


async def test_two_workers_carry_on_one_run(ledger: Ledger) -> None:
    """Each step has one effect, whoever is quicker."""
    far = Counter()
    order = await asyncio.to_thread(left_open, ledger, far, "verify_coupon")
    with later(ledger) as (opened, _):
        workers = [Worker(opened, chains=[order]) for _ in range(2)]
        for _ in range(3):
            await asyncio.gather(*(worker.arun_once() for worker in workers))
        await opened.aclose()
    assert far.done == list(FORWARD)


async def test_what_waits_for_a_person_is_left_until_he_has_decided(ledger: Ledger) -> None:
    """A worker asks nobody and decides nothing; after the decision it goes on to the end."""
    far = Counter()
    order = order_chain(far, contracts={"pay": {"approval": always}})
    waiting = await asyncio.to_thread(order.run, INPUT, ledger=ledger, thread_id="t")
    assert waiting.state is ChainState.WAITING
    with later(ledger) as (opened, passing):
        assert await rounds(Worker(opened, chains=[order]), passing) == 0
        action_id, desk = str(waiting["pay"].action_id), Desk(opened)
        shown = desk.approval(action_id).fingerprint
        desk.decide(action_id, Approve(), by="maria", fingerprint=shown)
        assert await rounds(Worker(opened, chains=[order]), passing) == 1
    assert far.done == list(FORWARD)


async def test_a_run_that_the_code_does_not_know_any_more_is_said_once(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """A step was renamed: that is for whoever deployed it, and no reason to say so every five seconds."""
    far = Counter()
    await asyncio.to_thread(left_open, ledger, far, "pay, answered")
    renamed = order_chain(far, names={"deduct_coupon": "take_coupon"})
    with later(ledger) as (opened, passing):
        assert await rounds(Worker(opened, chains=[renamed]), passing, count=5) == 0
    assert len([one for one in caplog.records if "cannot be carried on" in one.message]) == 1
    assert far.done == ["deduct_coupon", "pay"]


def test_two_chains_of_one_name_are_refused(ledger: Ledger) -> None:
    """A run says its chain by name."""
    with pytest.raises(ContractError, match="two chains have the same name"):
        Worker(ledger, chains=[order_chain(Counter()), order_chain(Counter())])


def test_a_run_is_forgotten_with_its_steps_and_then_its_actions(ledger: Ledger) -> None:
    """Only where it is asked for: the same input is another run then. One that is open stays, with all of it."""
    far = Counter()
    order = order_chain(far)
    order.run(INPUT, ledger=ledger, thread_id="done")
    far.faults["ship"] = raising(Left())
    with pytest.raises(Left):
        order.run(INPUT, ledger=ledger, thread_id="open")
    far.faults.clear()
    month = timedelta(days=30)
    with later(ledger, timedelta(days=40).total_seconds()) as (opened, _):
        assert Purge(opened, Retention(month)).run_once().actions == 0
        assert Purge(opened, Retention(month, decisions=True)).run_once().actions == len(FORWARD)
        assert [one.chain.thread_id for one in ChainDesk(opened).runs()] == ["open"]
    assert _count(ledger, "chain_steps") == len(FORWARD) + 1
    assert rows(ledger.url, "SELECT DISTINCT thread_id FROM settled.actions") == [{"thread_id": "open"}]


def _count(ledger: Database, table: str) -> int:
    return int(rows(ledger.url, f"SELECT count(*) AS n FROM settled.{table}")[0]["n"])
