"""Workers among bad neighbours: tools that want to end the process, a ledger that is away, threads and purges that take
long when the worker is asked to end.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import typer
from langchain_core.messages import AIMessage, BaseMessage
from procrastinate.exceptions import ConnectorException

from acts import Clock, Remote, action_of, opened, rows, triggers_of
from scripted import ScriptedModel
from settled import (
    Absent,
    ContractError,
    Found,
    Inquiry,
    Ledger,
    LedgerUnavailable,
    Session,
    State,
    action,
    always,
    build_agent,
    open_checkpointer,
    perform,
)
from settled.runtime import purging
from settled.runtime.jobs import Listening, look_again
from settled.runtime.pace import Round
from settled.runtime.purging import Purge, Retention
from settled.runtime.worker import Worker
from settled.runtime.working import Setup, serve
from settled.state import threads
from test_worker import approved, clock, late, orphan, passed, paying, triggers  # noqa: F401 - fixtures among them

LOUD = "cannot reach the ledger"


def test_a_query_that_ends_the_process_does_not_end_the_worker(late: Ledger, clock: Clock) -> None:  # noqa: F811
    """What it was asked for goes to a person, and the worker looks after the rest."""
    far = Remote()

    def find(inquiry: Inquiry) -> Found | Absent:
        if inquiry.arguments["order"] == 1:
            raise SystemExit(3)  # as a command-line client does that was made to be a program
        return far.find(inquiry)

    poison, other = orphan(late, far, 1), orphan(late, far, 2)
    worker = Worker(late, tools=[paying(far, query=find)])
    clock.sleep(61)
    done = worker.run_once() + passed(worker, clock, 12)
    assert (done.settled, done.escalated, done.failed) == (1, 1, 0)
    assert "RuntimeError" in str(late.action(poison.id).reason)
    assert late.action(other.id).state is State.SUCCEEDED
    assert triggers(late, poison.id) == ["plan", "approve", "claim", "lose", "ask", "ask", "escalate"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_body_that_ends_the_process_is_unknown(late: Ledger, clock: Clock, asynchronous: bool) -> None:  # noqa: F811
    """It may have acted before: it is asked about, and not sent again."""
    far = Remote()

    def pay(order: int) -> object:
        far.do(order=order)
        raise SystemExit(3)

    async def apay(order: int) -> object:
        return pay(order)

    body = apay if asynchronous else pay
    body.__doc__ = "Pay an order."
    declared = action(risk="non_idempotent_write", remote="dedupes", query=far.find, identity=("order",), name="pay")
    asked = approved(late, paying(far, approval=always()))
    clock.sleep(6)
    assert Worker(late, tools=[declared(body)]).run_once() == Round(looked=1, settled=1)
    assert (action_of(late, asked).evidence, len(far.effects)) == ("query", 1)
    assert triggers_of(late, asked) == ["plan", "approve", "claim", "lose", "find"]


def test_a_ledger_that_is_away_is_spoken_of_once(
    ledger: Ledger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its beginning and at its end, however often the worker tries in between."""
    monkeypatch.setattr("settled.runtime.worker.RETRY_S", 0.02)
    worker = Worker(ledger, scan_every_s=0.1)
    arun, tries, has_come = worker._work.arun, [0], threading.Event()

    async def away(query: Any) -> Any:
        tries[0] += 1
        if tries[0] <= 3:
            raise LedgerUnavailable("gone")
        has_come.set()
        return await arun(query)

    worker._work.arun = away  # type: ignore[method-assign]
    with worker.embedded():
        assert has_come.wait(20)
        while worker.scanned_s_ago is None:
            time.sleep(0.02)
        time.sleep(0.3)
    assert (caplog.text.count(LOUD), caplog.text.count("reaches the ledger again")) == (1, 1)


async def test_a_queue_that_is_away_is_spoken_of_once(
    ledger: Ledger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not each time that it is tried."""
    tries, enough = [0], asyncio.Event()
    loop = asyncio.get_running_loop()

    def set_up(_: Ledger) -> bool:
        tries[0] += 1
        if tries[0] == 5:
            loop.call_soon_threadsafe(enough.set)
        raise OSError("no queue")

    monkeypatch.setattr("settled.runtime.jobs.set_up", set_up)
    monkeypatch.setattr("settled.runtime.jobs.RETRY_S", 0.01)
    hearing = asyncio.ensure_future(Listening(Worker(ledger)).run())
    await enough.wait()
    hearing.cancel()
    assert caplog.text.count("the queue is away") == 1


def test_an_approved_action_that_cannot_be_read_is_spoken_of_once(
    late: Ledger,  # noqa: F811
    clock: Clock,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is looked at once a minute, for days; it waits for a worker that can read it."""
    far = Remote()
    asked = approved(late, paying(far, approval=always(ttl=timedelta(days=3))))

    @action(risk="non_idempotent_write", remote="dedupes", query=far.find, identity=("bill",), name="pay")
    def pay(bill: str) -> object:
        return far.do(bill=bill)

    worker = Worker(late, tools=[pay])
    clock.sleep(6)
    done = worker.run_once() + passed(worker, clock, 300, 60)
    assert (done.looked, action_of(late, asked).state, far.effects) == (6, State.APPROVED, [])
    assert caplog.text.count("cannot be read") == 1


def test_a_thread_under_way_drains_with_the_worker(database_url: str) -> None:
    """Asked to end in the middle of a turn, it does not play it to its end; another worker soon goes on with it."""
    ahead, at_work, is_away = [0.0], threading.Event(), [True]

    @action(risk="non_idempotent_write", remote="opaque", identity=("order",))
    def slow(order: int) -> dict[str, int]:
        """Take a while."""
        at_work.set()
        time.sleep(0.5)
        return {"order": order}

    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        if is_away[0]:
            raise ValueError("the model is away")
        n = sum(isinstance(one, AIMessage) for one in messages)
        call = {"name": "slow", "args": {"order": n}, "id": f"c{n}", "type": "tool_call"}
        return AIMessage("", tool_calls=[call]) if n < 20 else AIMessage("done")

    def later() -> datetime:
        return datetime.now(UTC) + timedelta(seconds=ahead[0])

    with opened(database_url, clock=later) as ledger, open_checkpointer(ledger) as saver:
        agent = build_agent(ScriptedModel(script=script), [slow], ledger=ledger, checkpointer=saver)
        with pytest.raises(ValueError, match="away"):
            Session(agent, ledger=ledger, thread_id="t", agent_name="desk").send("go")
        ahead[0], is_away[0] = 20.0, False
        with Worker(ledger, agents={"desk": agent}, scan_every_s=0.1).embedded():
            assert at_work.wait(20)
        assert len(rows(database_url, "SELECT 1 FROM settled.actions")) <= 2
        assert rows(database_url, "SELECT 1 FROM settled.actions WHERE state <> 'succeeded'") == []
        left = rows(database_url, "SELECT open_since, due_at, tries FROM settled.threads")[0]
        assert (left["open_since"] is not None, left["tries"]) == (True, 0)
        assert left["due_at"] < later() + timedelta(seconds=6)


def test_a_purge_ends_with_its_batch(late: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """A worker that drains does not walk through the rest of the ledger; the next purge forgets what is left."""
    monkeypatch.setattr(purging, "BATCH", 2)
    far = Remote()
    for order in range(6):
        perform(paying(far), [order], ledger=late, thread_id="t")
        clock.sleep(1)
    clock.sleep(86400 * 40)
    purge = Purge(late, Retention(timedelta(days=30)))
    forget = purge._forget

    def forgetting(after: Any, older_than: timedelta) -> Any:
        purge.drain()
        return forget(after, older_than)

    purge._forget = forgetting  # type: ignore[method-assign]
    assert purge.run_once().actions == 2
    assert Purge(late, Retention(timedelta(days=30))).run_once().actions == 4


async def test_a_port_that_is_taken_is_a_wrong_use(ledger: Ledger) -> None:
    """In one sentence that names the address."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        given: dict[str, Any] = dict.fromkeys(("agents", "dispatcher", "purge_after", "checkpoints_after"))
        given |= {"tools": [], "chains": [], "concurrency": 1, "scan_every_s": 1.0, "lease_s": 10.0}
        setup = Setup(**given, has_queue=False, once=True, health=("127.0.0.1", port))
        with pytest.raises(typer.BadParameter, match=f"cannot listen at 127.0.0.1:{port}"):
            await serve(ledger, setup)


def test_a_thread_whose_agent_no_worker_has_is_told_of(database_url: str) -> None:
    """It was renamed in a deploy, say: the thread is in the list of those that are left, after some minutes."""
    ahead = [0.0]

    def later() -> datetime:
        return datetime.now(UTC) + timedelta(seconds=ahead[0])

    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        raise ValueError("the model is away")

    with opened(database_url, clock=later) as ledger, open_checkpointer(ledger) as saver:
        agent = build_agent(ScriptedModel(script=script), [paying(Remote())], ledger=ledger, checkpointer=saver)
        with pytest.raises(ValueError, match="away"):
            Session(agent, ledger=ledger, thread_id="t", agent_name="old").send("go")
        told = []
        for seconds in (20, 200, 200):
            ahead[0] += seconds
            assert Worker(ledger, agents={"new": agent}).run_once().resumed == 0
            told.append([(one.agent, one.reason) for one in threads.on(ledger).run(threads.stuck())])
        assert told == [[], [], [("old", "no worker has an agent of this name")]]


@pytest.mark.parametrize(
    ("tenant", "action_id", "in_s", "said"),
    [
        ("a\x00", "act-1", 0.0, "tenant"),
        ("default", "", 0.0, "action_id"),
        ("default", "\ud800", 0.0, "action_id"),
        ("default", "a" * 600, 0.0, "action_id"),
        ("default", "act-1", -1.0, "in_s"),
        ("default", "act-1", float("nan"), "in_s"),
        ("default", "act-1", float("inf"), "in_s"),
    ],
)
def test_a_look_that_cannot_be_meant_is_refused(
    ledger: Ledger, tenant: str, action_id: str, in_s: float, said: str
) -> None:
    """By the name of what is wrong, and nothing is put in."""
    with pytest.raises(ContractError, match=said):
        look_again(ledger, tenant, action_id, in_s=in_s)
    assert rows(ledger.url, "SELECT 1 FROM settled.watched") == []


@pytest.mark.parametrize("spans", [(timedelta(0), None), (timedelta.max, None), (None, timedelta(weeks=999_999))])
def test_a_retention_beyond_any_calendar_is_refused(spans: tuple[timedelta | None, timedelta | None]) -> None:
    """Before Postgres meets an instant that it does not have."""
    with pytest.raises(ContractError, match="at most 100 years"):
        Retention(*spans)


def test_a_worker_that_was_stopped_is_not_embedded_again(ledger: Ledger) -> None:
    """It would look after nothing, and nobody would notice."""
    worker = Worker(ledger, scan_every_s=0.1)
    with worker.embedded():
        pass
    with pytest.raises(ContractError, match="make another one"), worker.embedded():
        pass


async def test_a_farewell_that_fails_keeps_no_worker_alive(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked to end while the queue is away: it cannot be told, and that is no reason to listen to it again."""
    hearing, listens = Listening(Worker(ledger)), asyncio.Event()

    async def listen() -> None:
        listens.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            raise ConnectorException("away") from error

    monkeypatch.setattr(hearing, "_listen", listen)
    task = asyncio.ensure_future(hearing.run())
    await listens.wait()
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=5)
    assert (done, task.cancelled()) == ({task}, True)
