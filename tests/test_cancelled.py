"""The caller stops: a cancelled task, Ctrl-C. What is known is recorded first, and the signal goes on afterwards."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable

import psycopg
import pytest

from remote import DROP, FINE, Remote, actions, busy, late, payment, row, slow, triggers
from settled import Ledger, State, aperform, perform
from settled.tools.effects import Ask, Effect
from settled.tools.runner import World
from settled.tools.standing import RECONCILER_GRACE_S

CALL = {"order_id": "O-1", "amount": 118}
LONG = {"timeout": 6.0, "deadline": 15.0, "lease": 7.0, "settle_window": 6.0}


async def test_cancelled_in_the_body_it_is_unknown_and_the_reply_settles_it(ledger: Ledger, database_url: str) -> None:
    """The request is on its way: unknown is recorded before CancelledError goes on; one effect, its receipt later."""
    with Remote(database_url) as remote:
        remote.next(late(0.5))
        tool = payment(remote.url, asynchronous=True, **LONG)
        call = asyncio.create_task(aperform(tool, CALL, ledger=ledger, thread_id="t"))
        await asyncio.to_thread(remote.arrived.wait, 10)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        (left,) = actions(ledger)
        assert (left.state, left.reason) == (State.UNKNOWN, "the caller stopped while it was in flight")
        end = await aperform(tool, CALL, ledger=ledger, thread_id="t")
        assert (end.receipt, end.action_id, remote.count(), remote.posts()) == ("R-1", left.id, 1, 1)
        assert row(ledger, left.id).state is State.SUCCEEDED


async def test_cancelled_in_a_sync_body_it_is_unknown_and_the_reply_settles_it(
    ledger: Ledger, database_url: str
) -> None:
    """A sync body under aperform runs in a thread that cannot be stopped: the same promise."""
    with Remote(database_url) as remote:
        remote.next(late(0.5))
        tool = payment(remote.url, **LONG)
        call = asyncio.create_task(aperform(tool, CALL, ledger=ledger, thread_id="t"))
        await asyncio.to_thread(remote.arrived.wait, 10)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        (left,) = actions(ledger)
        assert left.state is State.UNKNOWN
        end = await aperform(tool, CALL, ledger=ledger, thread_id="t")
        assert (end.receipt, end.action_id, remote.count(), remote.posts()) == ("R-1", left.id, 1, 1)


async def test_cancelled_in_the_wait_between_attempts_it_has_failed(ledger: Ledger, database_url: str) -> None:
    """Refused and waiting: surely nothing was done, so "failed" is recorded and the call may be made again later."""
    with Remote(database_url) as remote:
        remote.next(busy(503, retry_after=3))
        tool, waiting = payment(remote.url, asynchronous=True, deadline=4.0), asyncio.Event()

        async def asleep(seconds: float) -> None:
            waiting.set()
            await asyncio.sleep(seconds)

        world = World(asleep=asleep)
        call = asyncio.create_task(aperform(tool, CALL, ledger=ledger, thread_id="t", world=world))
        await asyncio.wait_for(waiting.wait(), 10)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        (left,) = actions(ledger)
        assert (left.state, left.code, left.may_change) == (State.FAILED, "unavailable", True)
        assert triggers(ledger, left.id) == ["plan", "approve", "claim", "refuse", "fail"]
        assert (remote.count(), remote.posts()) == (0, 1)


@pytest.mark.parametrize("nth", [0, 1], ids=["plan", "settle"])
async def test_cancelled_during_a_statement_it_is_carried_to_its_end(
    ledger: Ledger, database_url: str, nth: int
) -> None:
    """A statement is never cut short: a cancelled plan sends nothing, a cancelled settle has settled."""
    with Remote(database_url) as remote:
        statements = 0

        def watch(effect: Effect, when: str) -> None:
            nonlocal statements
            if isinstance(effect, Ask) and when == "before":
                statements += 1
                if statements == nth + 1:
                    asyncio.get_running_loop().call_soon(call.cancel)

        tool = payment(remote.url, asynchronous=True, **LONG)
        call = asyncio.create_task(aperform(tool, CALL, ledger=ledger, thread_id="t", world=World(watch=watch)))
        with pytest.raises(asyncio.CancelledError):
            await call
        (left,) = actions(ledger)
        if nth == 0:
            assert (left.state, left.code, remote.posts()) == (State.FAILED, "unavailable", 0)
        else:
            assert (left.state, left.receipt, remote.posts()) == (State.SUCCEEDED, "R-1", 1)
            again = await aperform(tool, CALL, ledger=ledger, thread_id="t")
            assert (again.code, again.receipt, remote.posts()) == ("duplicate", "R-1", 1)


async def test_cancelled_while_a_statement_waits_for_a_lock_it_is_carried_to_its_end(
    ledger: Ledger, database_url: str
) -> None:
    """The settle hangs in Postgres when the caller is cancelled, twice: it is settled, then CancelledError comes."""
    with Remote(database_url) as remote, psycopg.connect(database_url) as other:

        def lock() -> None:
            other.execute("SELECT id FROM settled.actions FOR UPDATE")

        tool = payment(remote.url, asynchronous=True, before=lock, **LONG)
        call = asyncio.create_task(aperform(tool, CALL, ledger=ledger, thread_id="t"))
        await until(lambda: waits_for_a_lock(database_url))
        for _ in range(2):
            call.cancel()
            await asyncio.sleep(0.1)
        assert not call.done()
        other.rollback()
        with pytest.raises(asyncio.CancelledError):
            await call
        (left,) = actions(ledger)
        assert (left.state, left.receipt, remote.posts()) == (State.SUCCEEDED, "R-1", 1)


async def test_a_caller_that_gives_up_waiting_is_answered_by_the_ledger_later(
    ledger: Ledger, database_url: str
) -> None:
    """`asyncio.timeout` around the call, as frameworks do it: one effect, and the next call has its receipt."""
    with Remote(database_url) as remote:
        remote.next(late(0.6))
        tool = payment(remote.url, asynchronous=True)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await aperform(tool, CALL, ledger=ledger, thread_id="t")
        end = await aperform(tool, CALL, ledger=ledger, thread_id="t")
        assert (end.receipt, remote.count(), remote.posts()) == ("R-1", 1, 1)


async def test_cancelled_while_it_waits_for_another_caller_it_changes_nothing(
    ledger: Ledger, database_url: str
) -> None:
    """The one who waits may go; the one who acts is not touched by that."""
    with Remote(database_url) as remote:
        remote.next(slow(0.6))
        tool = payment(remote.url, asynchronous=True, **LONG)
        first = asyncio.create_task(aperform(tool, CALL, ledger=ledger, thread_id="t"))
        await asyncio.to_thread(remote.arrived.wait, 10)
        second = asyncio.create_task(aperform(tool, CALL, ledger=ledger, thread_id="t"))
        await asyncio.sleep(0.2)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        end = await first
        assert (end.code, end.receipt, remote.posts()) == ("succeeded", "R-1", 1)
        assert triggers(ledger, end.action_id) == ["plan", "approve", "claim", "succeed"]


@pytest.mark.parametrize("kind", ["query", pytest.param("pause", marks=pytest.mark.deep)])
async def test_cancelled_while_it_reconciles_it_stays_unknown_and_is_found_later(
    ledger: Ledger, database_url: str, kind: str
) -> None:
    """The one who asks may go at any time: the action stays unknown and the next caller finds the receipt."""
    effects = 0

    def watch(effect: Effect, when: str) -> None:
        nonlocal effects
        effects += 1
        assert effects < 50, "it goes round and round after it was cancelled"

    with Remote(database_url, query_lag_s=0.5) as remote:
        remote.next(DROP)
        tool = payment(remote.url, asynchronous=True, **LONG)
        reconciling = World(watch=watch)
        for round_ in range(2):  # as the owner, and as one who took over
            effects = 0
            remote.next_query(late(0.5) if kind == "query" else FINE)
            call = asyncio.create_task(aperform(tool, CALL, ledger=ledger, thread_id="t", world=reconciling))
            await until(lambda round_=round_: remote.queries() == round_ + 1)  # type: ignore[misc]
            await asyncio.sleep(0.0 if kind == "query" else 0.1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            (left,) = actions(ledger)
            assert left.state is State.UNKNOWN
            if round_ == 0:
                await asyncio.sleep(RECONCILER_GRACE_S + 0.6)
                remote.query_lag_s = 0.5 if kind == "query" else 60.0
        remote.query_lag_s = 0.0
        end = await aperform(tool, CALL, ledger=ledger, thread_id="t")
        assert (end.code, end.receipt, remote.count(), remote.posts()) == ("succeeded", "R-1", 1, 1)


def waits_for_a_lock(url: str) -> bool:
    """Whether a statement on this database hangs, as the settle does that meets a locked row."""
    waiting = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with psycopg.connect(url, autocommit=True) as looking:
        return looking.execute(waiting).rowcount > 0


@pytest.mark.parametrize("statement", ["plan", "settle"])
@pytest.mark.parametrize("cancelled", [True, False], ids=["cancelled before", "only left"])
def test_an_event_loop_that_ends_in_the_middle_of_a_statement_loses_nothing(
    database_url: str, cancelled: bool, statement: str
) -> None:
    """`asyncio.run` returns while a statement hangs in Postgres: no error of ours, and a later call has the receipt."""
    complaints: list[BaseException | str] = []

    async def main(remote: Remote, other: psycopg.Connection) -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: complaints.append(context.get("exception") or context["message"])
        )
        store = Ledger.connect(database_url)
        if statement == "plan":
            other.execute("LOCK TABLE settled.actions IN EXCLUSIVE MODE")
        tool = payment(
            remote.url, asynchronous=True, before=lambda: other.execute("SELECT id FROM settled.actions FOR UPDATE")
        )
        call = asyncio.create_task(aperform(tool, CALL, ledger=store, thread_id="t"))
        await until(lambda: waits_for_a_lock(database_url))
        if cancelled:
            call.cancel()
            await asyncio.sleep(0.05)
        assert not call.done()

    with Remote(database_url) as remote, psycopg.connect(database_url) as other:
        asyncio.run(main(remote, other))
        other.rollback()
        assert complaints == []
        with Ledger.connect(database_url) as ledger:
            end = perform(payment(remote.url), CALL, ledger=ledger, thread_id="t")
            assert (end.state, end.receipt, len(actions(ledger))) == (State.SUCCEEDED, "R-1", 1)
            assert (remote.count(), remote.posts()) == (1, 1)


async def until(true: Callable[[], bool]) -> None:
    for _ in range(1000):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not become true in ten seconds")


def interrupted(call: Callable[[], object], when: Callable[[], bool]) -> None:
    """Make a call in this thread and press Ctrl-C as soon as `when` is true."""

    def press() -> None:
        end = time.monotonic() + 10
        while not when() and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    with pytest.raises(KeyboardInterrupt):
        call()


def test_interrupted_in_the_body_it_is_unknown_and_the_reply_settles_it(database_url: str) -> None:
    """Ctrl-C while the request is on its way: unknown is recorded before KeyboardInterrupt goes on; one effect."""
    with Ledger.connect(database_url) as ledger, Remote(database_url) as remote:
        remote.next(late(0.5))
        tool = payment(remote.url, **LONG)
        interrupted(lambda: perform(tool, CALL, ledger=ledger, thread_id="t"), remote.arrived.is_set)
        (left,) = actions(ledger)
        assert left.state is State.UNKNOWN
        end = perform(tool, CALL, ledger=ledger, thread_id="t")
        assert (end.receipt, end.action_id, remote.count(), remote.posts()) == ("R-1", left.id, 1, 1)


def test_interrupted_in_the_wait_between_attempts_it_has_failed(database_url: str) -> None:
    """Ctrl-C between two attempts: surely nothing was done."""
    with Ledger.connect(database_url) as ledger, Remote(database_url) as remote:
        remote.next(busy(503, retry_after=5))
        tool, waiting = payment(remote.url), threading.Event()

        def sleep(seconds: float) -> None:
            waiting.set()
            time.sleep(seconds)

        begun = time.monotonic()
        world = World(sleep=sleep)
        interrupted(lambda: perform(tool, CALL, ledger=ledger, thread_id="t", world=world), waiting.is_set)
        assert time.monotonic() - begun < 3
        (left,) = actions(ledger)
        assert (left.state, left.code, remote.count(), remote.posts()) == (State.FAILED, "unavailable", 0, 1)


def test_interrupted_during_a_statement_it_is_carried_to_its_end(database_url: str) -> None:
    """Ctrl-C while the settle hangs in Postgres: it is written nevertheless, and then the interrupt goes on."""
    with (
        Ledger.connect(database_url) as ledger,
        Remote(database_url) as remote,
        psycopg.connect(database_url) as other,
    ):
        tool = payment(remote.url, before=lambda: other.execute("SELECT id FROM settled.actions FOR UPDATE"), **LONG)
        release = threading.Timer(1.5, other.rollback)
        release.start()
        interrupted(lambda: perform(tool, CALL, ledger=ledger, thread_id="t"), lambda: waits_for_a_lock(database_url))
        release.join()
        (left,) = actions(ledger)
        assert (left.state, left.receipt, remote.count(), remote.posts()) == (State.SUCCEEDED, "R-1", 1, 1)
