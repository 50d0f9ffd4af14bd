"""Connections are closed when they are of no more use: a loop that has ended, a ledger that was closed or forgotten."""

import asyncio
import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable

import psycopg
import pytest

from acts import Remote, opened, states, through_async, through_sync
from settled import Code, Ledger, Outcome, State, action, aperform, perform
from settled.state import pools
from settled.tools import leases
from settled.tools.contract import ActionTool

AT_ONCE_S = 3.0
"""Far below the 10 s that a statement waits for a Postgres that is away, and the time that a pool takes to end."""


def pay(remote: Remote, *, before: Callable[[], object] = lambda: None, timeout: float = 5.0) -> ActionTool:
    @action(
        risk="non_idempotent_write", remote="dedupes", identity="all", query=remote.find,
        timeout=timeout, settle_window=10, lease=timeout + 0.2,
    )  # fmt: skip
    def pay(order: int) -> object:
        before()
        return remote.do(order=order)

    return pay


def backends(url: str) -> int:
    """How many connections this database has, apart from the one that asks."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        ).fetchone()
    assert row is not None
    return int(row[0])


def kept(url: str) -> int:
    """How many server processes something still holds: a connection that was just being opened goes as garbage."""
    gc.collect()
    return backends(url)


def until(true: Callable[[], bool], within_s: float = 10.0) -> bool:
    """Wait until something is true; whether it became so."""
    end = time.monotonic() + within_s
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def in_a_loop_of_its_own(tool: ActionTool, order: int, ledger: Ledger) -> Outcome:
    """Call it as a script does, in a thread that the test can leave: it must end, also while a connection is opened."""
    ended: list[Outcome] = []
    loop = threading.Thread(
        target=lambda: ended.append(asyncio.run(aperform(tool, [order], ledger=ledger, thread_id="t"))), daemon=True
    )
    loop.start()
    loop.join(20)
    assert ended, "asyncio.run did not come back"
    return ended[0]


def test_twenty_event_loops_leave_the_connections_of_one(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """`asyncio.run` for each call, as scripts and tests do it: what a loop that has ended left open is closed."""
    # A record of "error connecting" would keep the exception, its frames, and the half-open connection in them.
    caplog.set_level(logging.CRITICAL, "psycopg.pool")
    remote, size = Remote(), 2
    with opened(database_url, max_connections=size) as ledger:
        tool = pay(remote)
        for order in range(20):
            assert in_a_loop_of_its_own(tool, order, ledger).code == Code.SUCCEEDED
        assert until(lambda: kept(database_url) <= size), backends(database_url)
    assert until(lambda: kept(database_url) == 0), "close() closes what ended loops have left open"
    assert len(remote.effects) == 20


def test_an_event_loop_may_end_while_its_pool_opens_a_connection(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool opens one more when several ask at once; `asyncio.run` comes back all the same."""
    monkeypatch.setattr(pools, "_KEEP_PLANS", b"SELECT pg_advisory_lock(7)")  # the first has it, the second waits
    codes: list[str] = []

    async def main(ledger: Ledger) -> None:
        calls = [aperform(pay(Remote()), [n], ledger=ledger, thread_id="t") for n in range(4)]
        codes.extend(outcome.code for outcome in await asyncio.gather(*calls))

    with opened(database_url) as ledger:
        loop = threading.Thread(target=lambda: asyncio.run(main(ledger)), daemon=True)
        loop.start()
        loop.join(10)
        assert codes == [Code.SUCCEEDED] * 4
        assert not loop.is_alive(), "asyncio.run did not come back"


async def test_a_call_on_a_closed_ledger_is_answered_at_once(database_url: str) -> None:
    """Unavailable: nothing was begun, nothing is waited for, and nothing is opened again."""
    remote = Remote()
    with opened(database_url) as ledger:
        for door in (through_sync, through_async):
            assert (await door(pay(remote), [0], ledger=ledger)).state is State.SUCCEEDED
        await ledger.aclose()
    begun = time.monotonic()
    for door in (through_sync, through_async):
        outcome = await door(pay(remote), [1], ledger=ledger)
        assert (outcome.code, outcome.state, outcome.action_id) == (Code.UNAVAILABLE, None, None)
    assert time.monotonic() - begun < AT_ONCE_S
    assert len(remote.effects) == 1
    assert await asyncio.to_thread(until, lambda: backends(database_url) == 0)


def test_closing_while_calls_run_keeps_nobody_waiting(database_url: str) -> None:
    """The calls in flight end at once and tell that nobody knows; each is found by its key later: one effect each."""
    remote, closed, inside = Remote(), threading.Event(), threading.Semaphore(0)
    ended: list[Outcome] = []

    def before() -> None:
        inside.release()
        closed.wait(10)

    with opened(database_url) as ledger:
        tool = pay(remote, before=before)
        calls = [
            threading.Thread(target=lambda n=n: ended.append(perform(tool, [n], ledger=ledger, thread_id="t")))  # type: ignore[misc]
            for n in range(8)
        ]
        for call in calls:
            call.start()
        for _ in calls:
            assert inside.acquire(timeout=10)
        begun = time.monotonic()
    closed.set()
    for call in calls:
        call.join(20)
    assert time.monotonic() - begun < AT_ONCE_S
    assert [(o.code, o.state) for o in ended] == [(Code.UNKNOWN, State.UNKNOWN)] * 8
    assert len(remote.effects) == 8
    assert until(lambda: backends(database_url) == 0)


def test_closing_while_callers_come_keeps_nobody_waiting(database_url: str) -> None:
    """Whoever calls while the ledger is being closed hears of it; nobody waits out the patience of a statement."""
    remote, stop = Remote(), threading.Event()
    longest: list[float] = []
    codes: set[str] = set()

    def work(number: int) -> None:
        slowest, order = 0.0, 0
        while not stop.is_set():
            order, begun = order + 1, time.monotonic()
            codes.add(perform(tool, [number * 100_000 + order], ledger=ledger, thread_id="t").code)
            slowest = max(slowest, time.monotonic() - begun)
        longest.append(slowest)

    with opened(database_url) as ledger:
        tool = pay(remote)
        callers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for caller in callers:
            caller.start()
        assert until(lambda: len(remote.effects) > 8)
        begun = time.monotonic()
    assert time.monotonic() - begun < AT_ONCE_S
    assert until(lambda: Code.UNAVAILABLE in codes)
    stop.set()
    for caller in callers:
        caller.join(20)
    assert len(longest) == 4
    assert max(longest) < AT_ONCE_S
    assert codes <= {Code.SUCCEEDED, Code.UNKNOWN, Code.UNAVAILABLE}
    assert until(lambda: backends(database_url) == 0)


def test_a_reply_that_comes_after_close_opens_nothing(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """It cannot be recorded, and says so in the log; the action is found by its key by whoever asks next."""
    remote, go_on = Remote(), threading.Event()
    with opened(database_url) as ledger:
        tool = pay(remote, before=lambda: go_on.wait(10), timeout=0.3)
        stopping: list[Outcome] = []
        caller = threading.Thread(target=lambda: stopping.append(perform(tool, [1], ledger=ledger, thread_id="t")))
        caller.start()
        assert until(lambda: states(database_url) == ["unknown"])
    caller.join(20)
    with caplog.at_level(logging.ERROR, "settled"):
        begun = time.monotonic()
        go_on.set()
        assert until(lambda: "could not be recorded" in caplog.text)
        assert time.monotonic() - begun < AT_ONCE_S
    assert until(lambda: backends(database_url) == 0)
    assert stopping[0].code in (Code.UNKNOWN, Code.UNAVAILABLE)
    with opened(database_url) as later:
        found = perform(pay(remote), [1], ledger=later, thread_id="t")
    assert (found.state, found.receipt, len(remote.effects)) == (State.SUCCEEDED, "RF-1", 1)


def test_a_closed_ledger_is_forgotten(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing keeps it, once its lease thread has found nothing to do: an application may open one for each request."""
    monkeypatch.setattr(leases, "TICK_S", 0.05)
    monkeypatch.setattr(leases, "IDLE_S", 0.1)
    remote = Remote()

    def use() -> "weakref.ref[Ledger]":
        with opened(database_url) as ledger:
            perform(pay(remote), [1], ledger=ledger, thread_id="t")
            in_a_loop_of_its_own(pay(remote), 2, ledger)
            return weakref.ref(ledger)

    used = [use() for _ in range(3)]

    def forgotten() -> bool:
        gc.collect()
        return all(ledger() is None for ledger in used)

    assert until(forgotten, within_s=30.0)  # an idle body thread may keep its last call for ten
    assert until(lambda: not [thread for thread in threading.enumerate() if thread.name == "settled-leases"])
