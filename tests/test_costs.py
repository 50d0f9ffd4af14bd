"""What the safety costs: counted in statements, round trips, commits and bytes of log, on the real server."""

import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Iterator
from typing import Annotated, Any

import psycopg
import pytest

from acts import Door, Remote, both_doors, opened, rows, through_sync
from settled import (
    Allow,
    Approve,
    Desk,
    Edit,
    Ended,
    Incidental,
    Inquiry,
    Ledger,
    Outcome,
    PlannedAction,
    action,
    always,
    over,
    permitted,
)
from settled.tools.contract import ActionTool
from settled.tools.effects import Absent, Found
from settled.tools.outcome import Refused, Unknown
from settled.tools.runner import World

WARM_UP = 5
"""Calls after which each statement is prepared and planned on the one connection."""


class Counted:
    """The statements that go through psycopg's cursors, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statements: list[bytes] = []
        plain, asynchronous = psycopg.RawCursor.execute, psycopg.AsyncRawCursor.execute

        def execute(cursor: Any, query: Any, *args: Any, **kw: Any) -> Any:
            self.statements.append(query)
            return plain(cursor, query, *args, **kw)

        async def aexecute(cursor: Any, query: Any, *args: Any, **kw: Any) -> Any:
            self.statements.append(query)
            return await asynchronous(cursor, query, *args, **kw)

        monkeypatch.setattr(psycopg.RawCursor, "execute", execute)
        monkeypatch.setattr(psycopg.AsyncRawCursor, "execute", aexecute)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


@pytest.fixture
def narrow(database_url: str) -> Iterator[Ledger]:
    """A ledger with one connection, so that every round trip is on it."""
    with opened(database_url, max_connections=1) as ledger:
        yield ledger


def pay(remote: Remote) -> ActionTool:
    @action(risk="non_idempotent_write", remote="opaque", identity=("order",))
    def pay(order: int) -> object:
        return remote.do(order=order)

    return pay


def next_xid(url: str) -> int:
    return int(rows(url, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text AS x")[0]["x"])


@both_doors
async def test_an_auto_approved_action_is_two_statements_and_two_commits(
    door: Door, narrow: Ledger, counted: Counted
) -> None:
    """Plan, approve and claim in the first, settle in the second; no SELECT of its own goes before them."""
    remote = Remote()
    tool = pay(remote)
    for n in range(WARM_UP):
        await door(tool, [n], ledger=narrow)
    before = next_xid(narrow.url)
    counted.statements.clear()
    outcome = await door(tool, [100], ledger=narrow)
    statements, commits = list(counted.statements), next_xid(narrow.url) - before
    await narrow.aclose()
    assert len(statements) == 2
    assert b"INSERT INTO settled.actions" in statements[0]
    assert b"UPDATE settled.actions" in statements[1]
    assert commits == 2
    written = rows(
        narrow.url, "SELECT xmin::text, trigger FROM settled.events WHERE action_id = %s ORDER BY id", outcome.action_id
    )
    assert [r["trigger"] for r in written] == ["plan", "approve", "claim", "succeed"]
    assert len({r["xmin"] for r in written[:3]}) == 1
    assert len({r["xmin"] for r in written}) == 2


@both_doors
@pytest.mark.parametrize("decision", [None, "click-1"])
async def test_a_replay_is_one_statement_and_no_commit(
    door: Door, decision: str | None, narrow: Ledger, counted: Counted
) -> None:
    """Answered from the ledger: nothing is written, no transaction id is used."""
    remote = Remote()
    tool = pay(remote)
    for _ in range(WARM_UP):
        await door(tool, [1], ledger=narrow, decision=decision)
    before = next_xid(narrow.url)
    counted.statements.clear()
    outcome = await door(tool, [1], ledger=narrow, decision=decision)
    statements, commits = list(counted.statements), next_xid(narrow.url) - before
    await narrow.aclose()
    assert outcome.replayed
    assert outcome.receipt == "RF-1"
    assert (len(statements), commits) == (1, 0)


def test_round_trips_on_the_wire(narrow: Ledger) -> None:
    """Two for a first call and one for a replay: the server says "ready for query" so many times."""
    from settled import perform

    remote = Remote()
    tool = pay(remote)
    for n in range(WARM_UP):
        perform(tool, [n], ledger=narrow, thread_id="t")
        perform(tool, [n], ledger=narrow, thread_id="t")
    with narrow.pools.threads().connection() as connection:
        pgconn = connection.pgconn
    with tempfile.NamedTemporaryFile("w+b") as trace:
        pgconn.trace(trace.fileno())
        perform(tool, [100], ledger=narrow, thread_id="t")
        pgconn.untrace()
        first = trips(trace.name)
        pgconn.trace(trace.fileno())
        perform(tool, [100], ledger=narrow, thread_id="t")
        pgconn.untrace()
        replay = trips(trace.name) - first
    assert (first, replay) == (2, 1)
    assert len(remote.effects) == WARM_UP + 1


def trips(path: str) -> int:
    with open(path, "rb") as trace:  # noqa: PTH123
        return trace.read().count(b"ReadyForQuery")


BEYOND_PAYLOAD_BYTES = 2048
ACTIONS = 100


def test_at_most_two_kilobytes_of_log_beyond_the_payload(narrow: Ledger) -> None:
    """The average over a hundred actions, once each page has been written since the checkpoint."""
    from settled import perform

    remote = Remote()

    @action(risk="non_idempotent_write", remote="opaque", identity=("order",))
    def pay(order: str, note: Annotated[str, Incidental()] = "x" * 200) -> object:
        return {**dict.fromkeys(["a", "b"], "y" * 100), "receipt": remote.do(order=order).receipt}

    with psycopg.connect(narrow.url, autocommit=True) as connection:

        def position() -> int:
            row = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
            assert row is not None
            return int(row[0])

        connection.execute("CHECKPOINT")
        for n in range(ACTIONS):
            perform(pay, [f"warm-{n}"], ledger=narrow, thread_id="t")
        before = position()
        outcomes = [perform(pay, [f"o-{n}"], ledger=narrow, thread_id="t") for n in range(ACTIONS)]
        each = (position() - before) / ACTIONS
    payload = len(json.dumps({"order": "o-10", "note": "x" * 200})) + len(json.dumps(outcomes[0].result))
    assert len(remote.effects) == 2 * ACTIONS
    assert each - payload <= BEYOND_PAYLOAD_BYTES, f"{each:.0f} bytes for each action, {payload} of them payload"


class Onlooker:
    """Looks at the server's sessions and keeps those that have a transaction open."""

    def __init__(self, url: str) -> None:
        self.looks: list[str] = []
        self._connection = psycopg.connect(url, autocommit=True)

    def look(self, where: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(_OPEN_TRANSACTIONS)
            assert cursor.fetchall() == [], f"a transaction is open during the {where}"
        self.looks.append(where)

    def close(self) -> None:
        self._connection.close()


_OPEN_TRANSACTIONS = """
SELECT pid, state, query FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
  AND (xact_start IS NOT NULL OR state LIKE 'idle in transaction%')"""


@pytest.fixture
def onlooker(database_url: str) -> Iterator[Onlooker]:
    looking = Onlooker(database_url)
    yield looking
    looking.close()


@both_doors
async def test_no_transaction_is_open_while_anybody_waits(door: Door, ledger: Ledger, onlooker: Onlooker) -> None:
    """Neither during the body, nor a query of the remote side, nor a sleep."""
    steps = iter(["refuse", "lose"])

    def query(inquiry: Inquiry) -> Found | Absent:
        onlooker.look("query")
        return Found("R-1") if onlooker.looks.count("query") == 2 else Absent()

    @action(
        risk="non_idempotent_write", remote="queryable", identity="all", query=query, timeout=2, settle_window=2,
    )  # fmt: skip
    def pay(order: int) -> object:
        onlooker.look("body")
        raise Ended(Refused("503") if next(steps) == "refuse" else Unknown("no answer"))

    def sleep(seconds: float) -> None:
        onlooker.look("sleep")
        time.sleep(min(seconds, 0.05))

    async def asleep(seconds: float) -> None:
        onlooker.look("sleep")
        await asyncio.sleep(min(seconds, 0.05))

    outcome = await door(pay, [1], ledger=ledger, world=World(sleep=sleep, asleep=asleep))
    assert (outcome.receipt, outcome.attempts) == ("R-1", 2)
    assert onlooker.looks == ["body", "sleep", "body", "query", "sleep", "query"]


async def test_a_wait_for_another_caller_holds_no_transaction(ledger: Ledger, onlooker: Onlooker) -> None:
    """Nor while one caller waits for another."""
    running = asyncio.Event()
    loop = asyncio.get_running_loop()

    @action(risk="non_idempotent_write", remote="opaque", identity="all")
    def pay(order: int) -> object:
        loop.call_soon_threadsafe(running.set)
        time.sleep(0.5)
        return {"receipt": "R-1"}

    def sleep(seconds: float) -> None:
        onlooker.look("wait")
        time.sleep(seconds)

    first = asyncio.create_task(through_sync(pay, [1], ledger=ledger))
    await running.wait()
    second = await through_sync(pay, [1], ledger=ledger, world=World(sleep=sleep))
    assert second.receipt == (await first).receipt == "R-1"
    assert onlooker.looks.count("wait") >= 2


Cost = tuple[int, int]
"""Statements, and commits among them."""


class Till:
    """Counts what one step costs."""

    def __init__(self, ledger: Ledger, counted: Counted) -> None:
        self._ledger, self._counted = ledger, counted

    async def of(self, step: Awaitable[object]) -> Cost:
        before = next_xid(self._ledger.url)
        self._counted.statements.clear()
        await step
        return len(self._counted.statements), next_xid(self._ledger.url) - before


def asking(remote: Remote, policy: Any) -> ActionTool:
    @action(risk="non_idempotent_write", remote="opaque", identity=("order",), approval=policy)
    def pay(order: int) -> object:
        return remote.do(order=order)

    return pay


@both_doors
@pytest.mark.parametrize("decision", [None, "click-1"])
async def test_what_an_approved_action_costs(
    door: Door, decision: str | None, narrow: Ledger, counted: Counted
) -> None:
    """Each step of a person's approval has one commit. To plan is one statement, with one read before it where a
    decision may have met its action already (its policy is not asked again then); to decide is a read and a write;
    to run it, it is found, claimed and settled.
    """
    remote, till = Remote(), Till(narrow, counted)
    tool, desk = asking(remote, always), Desk(narrow)
    read = int(decision is not None)
    for n in range(WARM_UP):

        def call(n: int = n) -> Awaitable[Outcome]:
            return door(tool, [n], ledger=narrow, decision=decision)

        async def approve(n: int = n) -> None:
            ticket = narrow.actions(states=["planned"])[0]
            await desk.adecide(ticket.id, Approve(), by="maria", fingerprint=ticket.fingerprint)

        costs = [await till.of(call())]
        costs.append(await till.of(call()))
        costs.append(await till.of(approve()))
        costs.append(await till.of(call()))
        costs.append(await till.of(call()))
    await narrow.aclose()
    assert len(remote.effects) == WARM_UP
    plan, met, decided, run, replay = costs
    assert plan == (1 + read, 1)
    assert met == (1, 0)
    assert decided == (1 + 2, 1)  # the first is the test's own look at what waits
    assert run == (3, 2)
    assert replay == (1, 0)


@both_doors
@pytest.mark.parametrize("decision", [None, "click-1"])
async def test_what_a_policy_costs_that_allows_or_denies(
    door: Door, decision: str | None, narrow: Ledger, counted: Counted
) -> None:
    """Allowed: as without a policy, and one read where the call has a decision. Denied: one commit. Neither is asked
    for again by the same decision.
    """
    remote, till = Remote(), Till(narrow, counted)
    tool = asking(remote, over("order", 100))
    denying = asking(remote, permitted("clerk"))
    read = int(decision is not None)
    for n in range(WARM_UP):
        allowed = await till.of(door(tool, [n], ledger=narrow, decision=decision))
        denied = await till.of(door(denying, [1000 + n], ledger=narrow, decision=decision))
        replay = await till.of(door(denying, [1000 + n], ledger=narrow, decision=decision))
    await narrow.aclose()
    assert (allowed, denied, replay) == ((2 + read, 2), (1 + read, 1), (1, 0))
    assert len(remote.effects) == WARM_UP


@both_doors
async def test_what_an_edit_costs(door: Door, narrow: Ledger, counted: Counted) -> None:
    """Three reads, and one commit that ends the one and begins the other; the call then finds it and runs it."""
    remote, till = Remote(), Till(narrow, counted)
    tool = asking(remote, over("order", 100))
    desk = Desk(narrow, tools=[tool])
    for n in range(WARM_UP):
        waiting = await door(tool, [200 + n], ledger=narrow, decision="d")
        ticket = desk.approval(str(waiting.action_id))
        edit = desk.adecide(ticket.action_id, Edit({"order": n}), by="maria", fingerprint=ticket.fingerprint)
        edited = await till.of(edit)
        run = await till.of(door(tool, [200 + n], ledger=narrow, decision="d"))
    await narrow.aclose()
    assert len(remote.effects) == WARM_UP
    assert edited == (4, 1)
    assert run == (5, 2)


@both_doors
async def test_no_transaction_is_open_while_a_policy_thinks(door: Door, ledger: Ledger, onlooker: Onlooker) -> None:
    """An author's policy may ask another service: the ledger does not wait for it."""
    remote = Remote()

    def judge(planned: PlannedAction) -> Allow:
        onlooker.look("policy")
        return Allow()

    await door(asking(remote, judge), [1], ledger=ledger, decision="d")
    assert (onlooker.looks, len(remote.effects)) == (["policy"], 1)
