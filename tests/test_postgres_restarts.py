"""Postgres goes away and comes back: while idle, before the intent, while the body runs, before the settle."""

import asyncio
import threading
from typing import Any

import psycopg
import pytest

from own_server import Server
from remote import DROP, Fault, Remote, actions, busy, late, payment, row, triggers
from settled import Ledger, Outcome, State, aperform, perform

CALL = {"order_id": "O-1", "amount": 118}
LONG = {"timeout": 6.0, "deadline": 15.0, "lease": 7.0, "settle_window": 6.0}


async def called(mode: str, tool: object, ledger: Ledger, thread_id: str = "t") -> Outcome:
    """Make the call without holding up the event loop of the test."""
    if mode == "async":
        return await aperform(tool, CALL, ledger=ledger, thread_id=thread_id)
    return await asyncio.to_thread(perform, tool, CALL, ledger=ledger, thread_id=thread_id)


@pytest.mark.parametrize(
    ("mode", "how"),
    [
        ("sync", "crash"),
        ("async", "restart"),
        pytest.param("sync", "restart", marks=pytest.mark.deep),
        pytest.param("async", "crash", marks=pytest.mark.deep),
    ],
)
async def test_a_restart_while_the_body_runs_loses_nothing(
    server: Server, own_url: str, database_url: str, mode: str, how: str
) -> None:
    """The settle waits for Postgres to come back: succeeded, one effect, and every event is there."""
    async with Ledger.connect(own_url) as ledger:
        with Remote(database_url) as remote:
            remote.next(late(1.0))
            call = asyncio.create_task(called(mode, payment(remote.url, asynchronous=mode == "async", **LONG), ledger))
            await asyncio.to_thread(remote.arrived.wait, 10)
            await asyncio.to_thread(getattr(server, how))
            end = await call
            assert (end.code, end.receipt, end.attempts) == ("succeeded", "R-1", 1)
            assert (remote.count(), remote.posts()) == (1, 1)
            assert triggers(ledger, end.action_id) == ["plan", "approve", "claim", "succeed"]


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_a_restart_while_idle_is_not_noticed(server: Server, own_url: str, database_url: str, mode: str) -> None:
    """Every pooled connection is dead: the next call and a replay go through as if nothing had been."""
    async with Ledger.connect(own_url) as ledger:
        with Remote(database_url) as remote:
            tool = payment(remote.url, asynchronous=mode == "async", **LONG)
            first = await called(mode, tool, ledger, "t-1")
            await asyncio.to_thread(server.restart)
            second = await called(mode, tool, ledger, "t-2")
            await asyncio.to_thread(server.restart)
            again = await called(mode, tool, ledger, "t-1")
            assert (first.code, second.code, again.code) == ("succeeded", "succeeded", "duplicate")
            assert (again.receipt, remote.count(), remote.posts()) == (first.receipt, 2, 2)


@pytest.mark.parametrize("mode", [pytest.param("sync", marks=pytest.mark.deep), "async"])
async def test_an_intent_waits_until_postgres_is_back(
    server: Server, own_url: str, database_url: str, mode: str
) -> None:
    """Postgres is away when the call comes and back within the patience: one action, one effect."""
    async with Ledger.connect(own_url) as ledger:
        with Remote(database_url) as remote:
            await asyncio.to_thread(server.stop)
            call = asyncio.create_task(called(mode, payment(remote.url, asynchronous=mode == "async", **LONG), ledger))
            await asyncio.sleep(0.5)
            assert (call.done(), remote.posts()) == (False, 0)
            await asyncio.to_thread(server.start)
            end = await call
            assert (end.code, remote.count(), remote.posts()) == ("succeeded", 1, 1)
            assert len(await asyncio.to_thread(actions, ledger)) == 1


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.deep)])
async def test_without_postgres_nothing_is_sent(server: Server, own_url: str, database_url: str, mode: str) -> None:
    """Postgres stays away: the answer is "unavailable", nothing was sent, and no row is there afterwards."""
    async with Ledger.connect(own_url, patience_s=0.8) as ledger:
        with Remote(database_url) as remote:
            await asyncio.to_thread(server.stop)
            end = await called(mode, payment(remote.url, asynchronous=mode == "async", **LONG), ledger)
            assert (end.code, end.state, end.action_id, remote.posts()) == ("unavailable", None, None, 0)
            await asyncio.to_thread(server.start)
            assert await asyncio.to_thread(actions, ledger) == []


@pytest.mark.parametrize("mode", [pytest.param("sync", marks=pytest.mark.deep), "async"])
async def test_it_is_back_as_soon_as_postgres_is(server: Server, own_url: str, database_url: str, mode: str) -> None:
    """Calls that failed during an outage do not make later ones wait: the first call after it goes through."""
    async with Ledger.connect(own_url, patience_s=0.6) as ledger:
        with Remote(database_url) as remote:
            tool = payment(remote.url, asynchronous=mode == "async", **LONG)
            await called(mode, tool, ledger, "t-1")
            await asyncio.to_thread(server.stop)
            for _ in range(3):
                assert (await called(mode, tool, ledger, "t-2")).code == "unavailable"
            await asyncio.to_thread(server.start)
            assert (await called(mode, tool, ledger, "t-2")).code == "succeeded"
            assert (remote.count(), remote.posts()) == (2, 2)


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.deep)])
async def test_a_settle_that_is_lost_is_unknown_and_found_later(
    server: Server, own_url: str, database_url: str, mode: str
) -> None:
    """Postgres is gone when the reply is there: the caller hears "unknown", and the next call finds the receipt."""
    async with Ledger.connect(own_url, patience_s=0.8) as ledger:
        with Remote(database_url) as remote:
            tool = payment(remote.url, asynchronous=mode == "async", before=server.stop)
            lost = await called(mode, tool, ledger)
            assert (lost.code, lost.state, remote.count()) == ("unknown", State.UNKNOWN, 1)
            assert "R-1" not in lost.message
            await asyncio.to_thread(server.start)
            assert (await asyncio.to_thread(row, ledger, lost.action_id)).state is State.RUNNING
            found = await called(mode, payment(remote.url, asynchronous=mode == "async"), ledger)
            assert (found.code, found.receipt, found.attempts) == ("succeeded", "R-1", 1)
            assert (found.action_id, found.idempotency_key) == (lost.action_id, lost.idempotency_key)
            assert (remote.count(), remote.posts()) == (1, 1)
            assert triggers(ledger, found.action_id) == ["plan", "approve", "claim", "lose", "find"]


async def test_a_settle_that_is_lost_on_a_remote_that_cannot_be_asked_goes_to_a_person(
    server: Server, own_url: str, database_url: str
) -> None:
    """Nobody can find out what became of it: the manual queue, and nothing is sent again."""
    opaque = {"remote": "opaque", "query": None}
    async with Ledger.connect(own_url, patience_s=0.8) as ledger:
        with Remote(database_url, dedupes=False) as remote:
            lost = await called("sync", payment(remote.url, before=server.stop, **opaque), ledger)
            assert (lost.code, remote.count()) == ("unknown", 1)
            await asyncio.to_thread(server.start)
            for _ in range(2):
                end = await called("sync", payment(remote.url, **opaque), ledger)
                assert (end.code, end.state, end.action_id) == ("manual_review", State.UNKNOWN, lost.action_id)
            assert (remote.count(), remote.posts()) == (1, 1)


@pytest.mark.parametrize("mode", [pytest.param("sync", marks=pytest.mark.deep), "async"])
async def test_an_outage_longer_than_the_lease_is_unknown_at_worst(
    server: Server, own_url: str, database_url: str, mode: str
) -> None:
    """The lease could not be prolonged; whoever takes over asks instead of sending, and the owner's reply settles."""
    contract = {"timeout": 1.9, "lease": 2.0, "settle_window": 1.9, "remote": "queryable"}
    async with Ledger.connect(own_url) as ledger:
        with Remote(database_url, dedupes=False) as remote:
            remote.next(late(1.5))
            tool = payment(remote.url, asynchronous=mode == "async", **contract)
            call = asyncio.create_task(called(mode, tool, ledger))
            await asyncio.to_thread(remote.arrived.wait, 10)
            await asyncio.to_thread(server.stop)
            await asyncio.sleep(2.2)
            await asyncio.to_thread(server.start)
            other, mine = await asyncio.gather(called(mode, tool, ledger), call)
            assert {str(mine.code), str(other.code)} <= {"succeeded", "duplicate"}
            assert (mine.receipt, other.receipt) == ("R-1", "R-1")
            assert (remote.count(), remote.posts()) == (1, 1)


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.deep)])
async def test_a_restart_while_it_waits_for_its_next_attempt_loses_nothing(
    server: Server, own_url: str, database_url: str, mode: str
) -> None:
    """Refused, then Postgres restarts during the wait: the next attempt goes out under the same key and settles."""
    async with Ledger.connect(own_url) as ledger:
        with Remote(database_url) as remote:
            remote.next(busy(503, retry_after=1))
            call = asyncio.create_task(called(mode, payment(remote.url, asynchronous=mode == "async", **LONG), ledger))
            await asyncio.to_thread(remote.arrived.wait, 10)
            await asyncio.sleep(0.2)
            await asyncio.to_thread(server.restart)
            end = await call
            assert (end.code, end.attempts, remote.count(), remote.posts()) == ("succeeded", 2, 1, 2)
            assert {request.key for request in remote.requests} == {end.idempotency_key}


# Connections that are ended one by one: what a firewall or an administrator does.


def end_connections(url: str) -> int:
    """End every connection to this database but our own; return how many there were."""
    with psycopg.connect(url, autocommit=True) as connection:
        ended = connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        ).fetchall()
    return len(ended)


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_connections_that_end_before_the_plan_and_before_the_settle_are_not_noticed(
    own_url: str, database_url: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full pool of dead connections is replaced without a wait, and no statement has a second effect."""
    waits: list[float] = []

    async with Ledger.connect(own_url, patience_s=30.0) as ledger:
        wait_or_raise = ledger._wait_or_raise

        def watched(*args: Any) -> float:
            waits.append(wait_or_raise(*args))
            return waits[-1]

        monkeypatch.setattr(ledger, "_wait_or_raise", watched)
        with Remote(database_url) as remote:
            tool = payment(remote.url, asynchronous=mode == "async", **LONG)
            await asyncio.gather(*(called(mode, tool, ledger, f"t-{n}") for n in range(12)))
            assert await asyncio.to_thread(end_connections, own_url) >= 2
            ending = payment(remote.url, asynchronous=mode == "async", before=lambda: end_connections(own_url), **LONG)
            waits.clear()
            end = await called(mode, ending, ledger, "t-last")
            assert len(waits) >= 2, "a dead connection before the plan, and one before the settle"
            assert set(waits) == {0.0}
            assert (end.code, end.attempts, remote.posts(end.idempotency_key)) == ("succeeded", 1, 1)
            assert triggers(ledger, end.action_id) == ["plan", "approve", "claim", "succeed"]


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_connections_that_keep_ending_never_cause_a_second_effect(
    own_url: str, database_url: str, mode: str
) -> None:
    """Calls under a storm of ended connections: one effect and one POST each, on a remote that does not dedupe."""
    over = threading.Event()

    def storm() -> None:
        while not over.wait(0.25):
            end_connections(own_url)

    async with Ledger.connect(own_url) as ledger:
        with Remote(database_url, dedupes=False) as remote:
            remote.next(*(Fault(before_s=n / 24, after_s=n / 24) for n in range(12)))
            tool = payment(remote.url, asynchronous=mode == "async", remote="queryable", **LONG)
            thread = threading.Thread(target=storm)
            thread.start()
            try:
                ends = await asyncio.gather(*(called(mode, tool, ledger, f"t-{n}") for n in range(12)))
            finally:
                over.set()
                thread.join()
            assert {str(end.code) for end in ends} == {"succeeded"}
            assert (remote.count(), remote.posts()) == (12, 12)
            for end in ends:
                assert triggers(ledger, end.action_id) == ["plan", "approve", "claim", "succeed"]


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_connections_that_end_while_it_reconciles_are_not_noticed(
    own_url: str, database_url: str, mode: str
) -> None:
    """The reply is lost and so is the connection: unknown, then found."""
    async with Ledger.connect(own_url) as ledger:
        with Remote(database_url) as remote:
            remote.next(DROP)
            tool = payment(remote.url, asynchronous=mode == "async", before=lambda: end_connections(own_url), **LONG)
            end = await called(mode, tool, ledger)
            assert (end.code, end.receipt, remote.posts()) == ("succeeded", "R-1", 1)
            assert triggers(ledger, end.action_id) == ["plan", "approve", "claim", "lose", "find"]
