"""SPEC section 5, to the number, under a clock that only moves when somebody waits; read back from the events."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from acts import Clock, Door, both_doors, events_of, opened
from settled import Backoff, Code, Ended, Refused, State, action, current_action
from settled.tools.contract import ActionTool
from settled.tools.outcome import from_status
from settled.tools.runner import World


@pytest.fixture
def clock() -> Clock:
    return Clock()


def world(clock: Clock) -> World:
    return World(sleep=clock.sleep, asleep=clock.asleep)


def chances(*values: float) -> Callable[[], float]:
    """Return a random source that gives these, and then no more."""
    return iter(values).__next__


def answering(clock: Clock, replies: Iterator[tuple[float, int, dict[str, str]]], **contract: Any) -> ActionTool:
    """A tool whose far side takes so long, and then says this."""

    @action(risk="non_idempotent_write", remote="dedupes", identity="all", **contract)
    def pay(order: int) -> object:
        took_s, status, headers = next(replies)
        begun.append((round(clock.elapsed_s, 3), current_action().attempt, current_action().idempotency_key))
        clock.sleep(took_s)
        if status >= 300:
            raise Ended(from_status(status, headers, b"", clock()))
        return {"receipt": "R-1"}

    begun: list[tuple[float, int, str]] = []
    pay.metadata = {"begun": begun}
    return pay


@both_doors
async def test_the_worked_example(door: Door, clock: Clock, database_url: str) -> None:
    """503 at 0.2, wait 1.3; 503 at 1.7, wait 2.1; 429 with Retry-After 5 at 4.0; success at 9.4."""
    replies = iter([(0.2, 503, {}), (0.2, 503, {}), (0.2, 429, {"Retry-After": "5"}), (0.4, 200, {})])
    pay = answering(clock, replies)
    with opened(database_url, clock=clock) as ledger:
        outcome = await door(pay, [1], ledger=ledger, world=world(clock), random=chances(0.6, 0.2))
        events = events_of(ledger, outcome)
        await ledger.aclose()
    assert (outcome.code, outcome.state, outcome.attempts, outcome.receipt) == (
        *(Code.SUCCEEDED, State.SUCCEEDED, 4, "R-1"),
    )
    seen = [
        (round((e.at - clock.start).total_seconds(), 3), e.trigger, e.attempt, (e.detail or {}).get("delay_s"))
        for e in events
    ]
    assert seen == [
        (0.0, "plan", 0, None),
        (0.0, "approve", 0, None),
        (0.0, "claim", 1, None),
        (0.2, "refuse", 2, 1.3),
        (1.7, "refuse", 3, 2.1),
        (4.0, "refuse", 4, 5.0),
        (9.4, "succeed", 4, None),
    ]
    assert pay.metadata is not None
    key = outcome.idempotency_key
    assert pay.metadata["begun"] == [(0.0, 1, key), (1.5, 2, key), (3.8, 3, key), (9.0, 4, key)]


@both_doors
async def test_without_jitter_the_waits_are_1_2_4_8_8(door: Door, clock: Clock, database_url: str) -> None:
    """Six attempts, 23 seconds of waiting, then `unavailable`: surely nothing happened."""
    pay = answering(clock, iter([(0.0, 503, {})] * 7), backoff=Backoff(jitter=0))
    with opened(database_url, clock=clock) as ledger:
        outcome = await door(pay, [1], ledger=ledger, world=world(clock))
        events = events_of(ledger, outcome)
        await ledger.aclose()
    assert (outcome.code, outcome.state, outcome.attempts) == (Code.UNAVAILABLE, State.FAILED, 6)
    assert [(e.detail or {})["delay_s"] for e in events if e.trigger == "refuse"] == [1, 2, 4, 8, 8]
    assert clock.elapsed_s == 23
    assert [e.trigger for e in events][-1] == "fail"


@both_doors
async def test_a_wait_that_would_pass_the_deadline_is_not_begun(door: Door, clock: Clock, database_url: str) -> None:
    """Retry-After 31 under a deadline of 30: given up at once, without a second attempt."""
    pay = answering(clock, iter([(0.2, 429, {"Retry-After": "31"})]))
    with opened(database_url, clock=clock) as ledger:
        outcome = await door(pay, [1], ledger=ledger, world=world(clock))
        await ledger.aclose()
    assert (outcome.code, outcome.state, outcome.attempts) == (Code.UNAVAILABLE, State.FAILED, 1)
    assert clock.elapsed_s == 0.2


@both_doors
async def test_the_deadline_comes_before_the_sixth_attempt(door: Door, clock: Clock, database_url: str) -> None:
    """Slow refusals use the 30 seconds up: whichever limit comes first."""
    pay = answering(clock, iter([(5.0, 503, {})] * 6), backoff=Backoff(jitter=0))
    with opened(database_url, clock=clock) as ledger:
        outcome = await door(pay, [1], ledger=ledger, world=world(clock))
        await ledger.aclose()
    # 5 + 1 + 5 + 2 + 5 + 4 + 5 = 27, and a wait of 8 would end at 35
    assert (outcome.code, outcome.attempts, clock.elapsed_s) == (Code.UNAVAILABLE, 4, 27.0)


@both_doors
async def test_retry_after_in_milliseconds_and_as_a_date(door: Door, clock: Clock, database_url: str) -> None:
    """Both forms win over the formula, and nothing is taken off them."""
    date = "Mon, 05 Jan 2026 12:00:04 GMT"
    pay = answering(
        clock, iter([(0.0, 503, {"retry-after-ms": "1500"}), (0.5, 503, {"Retry-After": date}), (0, 200, {})])
    )
    with opened(database_url, clock=clock) as ledger:
        outcome = await door(pay, [1], ledger=ledger, world=world(clock))
        events = events_of(ledger, outcome)
        await ledger.aclose()
    assert [(e.detail or {})["delay_s"] for e in events if e.trigger == "refuse"] == [1.5, 2.0]
    assert (outcome.code, clock.elapsed_s) == (Code.SUCCEEDED, 4.0)


@both_doors
async def test_an_author_may_return_refused(door: Door, clock: Clock, database_url: str) -> None:
    """A returned `Refused` is retried as a 503 is."""
    replies = iter([Refused("come back", 3.0), {"receipt": "R-9"}])

    @action(risk="idempotent_write", remote="opaque")
    def pay(order: int) -> object:
        return next(replies)

    with opened(database_url, clock=clock) as ledger:
        outcome = await door(pay, [1], ledger=ledger, world=world(clock))
        await ledger.aclose()
    assert (outcome.receipt, outcome.attempts, clock.elapsed_s) == ("R-9", 2, 3.0)
