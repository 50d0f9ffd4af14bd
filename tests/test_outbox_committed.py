"""Messages are committed with the success: whoever sees the one sees the others, however the action came to its end."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest

import processes
from acts import both_doors, rows
from consumers import emitting, pay, paying
from remote import DROP, Fault, Remote, actions, late
from settled import Desk, Done, Happened, Ledger, Message, State, perform
from settled.state import ledger as operations
from settled.state.errors import LedgerUnavailable
from settled.state.model import Claim
from settled.tools.contract import contract_of
from settled.tools.delivery import Delivery
from settled.tools.dispatcher import Dispatcher
from settled.tools.dispatching import Dispatched
from settled.tools.outbox import Outbox
from settled.tools.perform import Options, prepare

PATHS: dict[str, tuple[tuple[Fault, ...], tuple[str, ...]]] = {
    "all is well": ((), ("Ask", "Invoke", "Emit", "Ask")),
    "reply lost": ((DROP,), ("Ask", "Invoke", "Ask", "Probe", "Emit", "Ask")),
}


def messages(ledger: Ledger, action_id: str | None = None) -> list[tuple[str | None, str | None]]:
    return [(one.topic, one.payload) for one in Outbox(ledger).messages(action_id=action_id)]


@pytest.mark.parametrize("way", ["all is well", pytest.param("reply lost", marks=pytest.mark.deep)])
def test_a_kill_at_any_effect_leaves_a_success_with_its_messages_or_neither(ledger: Ledger, way: str) -> None:
    """Made again or not, they are there once when the action has succeeded."""
    faults, effects = PATHS[way]
    instants = [f"{when} {name}" for name in effects for when in ("before", "after")]

    def at(instant: int) -> tuple[bool, bool]:
        with Remote(ledger.url) as remote:
            remote.next(*faults)
            args: dict[str, Any] = {"thread_id": f"t-{instant}", "order_id": f"O-{instant}"}
            child = processes.start(
                "dispatching.act", database_url=ledger.url, remote_url=remote.url, die_at=instant, **args
            )
            assert child.status() == -9, child.failed
            left = actions(ledger, args["thread_id"])
            has = bool(left) and len(messages(ledger, left[0].id)) == 2
            call = {"order_id": args["order_id"], "amount": 5}
            end = perform(emitting(remote.url), call, ledger=ledger, thread_id=args["thread_id"], wait_s=20)
            effects = [one for one in remote.effects() if one.body == call]
            assert (end.state, len(effects)) == (State.SUCCEEDED, 1)
            assert [topic for topic, _ in messages(ledger, end.action_id)] == ["paid", "shipping"]
            return bool(left) and left[0].state is State.SUCCEEDED, has

    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(at, range(len(instants))))
    assert seen == [(instant == len(instants) - 1,) * 2 for instant in range(len(instants))]


def test_the_effects_are_those_that_are_named(ledger: Ledger) -> None:
    with Remote(ledger.url) as remote:
        for number, (faults, effects) in enumerate(PATHS.values()):
            remote.next(*faults)
            args: dict[str, Any] = {"thread_id": "t", "order_id": f"O-{number}"}
            said = processes.start("dispatching.act", database_url=ledger.url, remote_url=remote.url, **args).result()
            assert said["instants"] == [f"{when} {name}" for name in effects for when in ("before", "after")]


@both_doors
async def test_an_emitting_success_is_two_statements_and_two_commits(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, door: Any
) -> None:
    """As many as without messages: they stand in the statement that settles."""
    tool = paying()
    await door(tool, ["A"], ledger=ledger)
    sent: list[bytes] = []
    for cursor in (psycopg.RawCursor, psycopg.AsyncRawCursor):
        monkeypatch.setattr(cursor, "execute", _noting(cursor.execute, sent))
    end = await door(tool, ["B"], ledger=ledger)
    monkeypatch.undo()
    assert len(sent) == 2
    assert b"INSERT INTO settled.outbox" in sent[1]
    assert messages(ledger, end.action_id) == [("paid", '"B"'), ("shipping", '"R-B"')]
    written = "SELECT DISTINCT xmin::text FROM settled.{} WHERE {} = %s"
    of_message = rows(ledger.url, written.format("outbox", "action_id"), end.action_id)
    assert of_message == rows(ledger.url, written.format("actions", "id"), end.action_id)


def _noting(plain: Any, sent: list[bytes]) -> Any:
    def execute(cursor: Any, query: Any, *args: Any, **kw: Any) -> Any:
        sent.append(query)
        return plain(cursor, query, *args, **kw)

    return execute


def test_settled_by_query_it_has_its_messages(ledger: Ledger) -> None:
    with Remote(ledger.url) as remote:
        remote.next(DROP)
        end = perform(emitting(remote.url), {"order_id": "O-1", "amount": 5}, ledger=ledger, thread_id="t")
        assert ledger.action(end.action_id or "").evidence == "query"
    assert messages(ledger) == [("paid", '"O-1"'), ("shipping", '"R-1"')]


async def test_settled_by_a_late_reply_it_has_its_messages(ledger: Ledger) -> None:
    with Remote(ledger.url, dedupes=False) as remote:
        remote.next(late(0.8))
        short: dict[str, Any] = {"timeout": 0.3, "lease": 0.8, "settle_window": 2.0, "remote": "opaque", "query": None}
        tool = emitting(remote.url, **short)
        call = {"order_id": "O-1", "amount": 5}
        end = await asyncio.to_thread(perform, tool, call, ledger=ledger, thread_id="t")
        assert (end.state, messages(ledger)) == (State.UNKNOWN, [])
        await asyncio.to_thread(_until_settled, ledger, end.action_id or "")
    assert messages(ledger) == [("paid", '"O-1"'), ("shipping", '"R-1"')]


def _until_settled(ledger: Ledger, action_id: str) -> None:
    end = time.monotonic() + 10
    while ledger.action(action_id).state is not State.SUCCEEDED:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_resolved_by_a_person_they_are_made_by_a_dispatcher_that_has_the_tool(ledger: Ledger) -> None:
    """Whoever resolves needs no tool. Until somebody makes them, that is what the outbox says."""
    with Remote(ledger.url, dedupes=False) as remote:
        remote.next(DROP)
        tool = emitting(remote.url, remote="opaque", query=None)
        end = perform(tool, {"order_id": "O-1", "amount": 5}, ledger=ledger, thread_id="t")
        action = ledger.action(end.action_id or "")
        Desk(ledger).resolve(action.id, Happened("R-9"), by="mia", fingerprint=action.fingerprint)
        (note,) = Outbox(ledger).messages()
        assert (note.topic, note.tool, note.state) == (None, "payment", "due")
        had: list[Delivery] = []
        assert Dispatcher(ledger, sinks={"*": had.append}, tools=[paying()]).run_once() == Dispatched()
        did = Dispatcher(ledger, sinks={"*": had.append}, tools=[tool]).run_once()
    assert did == Dispatched(taken=3, made=1, delivered=2)
    assert [(one.topic, one.payload) for one in had] == [("paid", "O-1"), ("shipping", "R-9")]
    assert [one.state for one in Outbox(ledger).messages()] == ["delivered", "delivered"]
    assert (note.created_at, len({one.id for one in had})) == (had[0].created_at, 2)


def fails(done: Done) -> Message:
    raise OSError("no catalogue")


ODD: dict[str, Any] = {
    "raises": fails,
    "nonsense": lambda done: 7,
    "a list of nonsense": lambda done: [Message("m"), "m"],
    "NaN": lambda done: Message("m", float("nan")),
    "no JSON": lambda done: Message("m", object()),
    "a lone surrogate": lambda done: Message("m", "\ud800"),
    "too large": lambda done: Message("m", "x" * 1024 * 1024),
    "too many": lambda done: [Message("m")] * 101,
    "no topic": lambda done: Message("\n"),
}


@pytest.mark.parametrize("how", ODD)
def test_emits_that_makes_no_messages_costs_no_success(ledger: Ledger, how: str) -> None:
    """The effect has happened. They are tried again later, and are a dead letter in the end, which says why."""
    had: list[Delivery] = []
    action_id = pay(ledger, "A", paying(emits=ODD[how]))
    assert ledger.action(action_id).state is State.SUCCEEDED
    dispatcher = Dispatcher(ledger, sinks={"*": had.append}, tools=[paying(emits=ODD[how])], max_attempts=1)
    assert dispatcher.run_once() == Dispatched(taken=1, dead=1)
    (dead,) = Outbox(ledger).messages(state="dead")
    assert (dead.topic, bool(dead.reason)) == (None, True)
    Outbox(ledger).redrive([dead.id], by="mia")
    mended = Dispatcher(ledger, sinks={"*": had.append}, tools=[paying()])
    assert mended.run_once() == Dispatched(taken=3, made=1, delivered=2)
    assert [one.payload for one in had] == ["A", "R-A"]


def test_emits_that_hangs_holds_up_no_more_than_its_time(ledger: Ledger) -> None:
    hanging = threading.Event()
    tool = paying(emits=lambda done: hanging.wait(20) and None, timeout=0.3, lease=1.0)
    try:
        begun = time.monotonic()
        pay(ledger, "A", tool)
        assert time.monotonic() - begun < 5
        dispatcher = Dispatcher(ledger, sinks={}, tools=[tool], delivery_timeout_s=0.3)
        assert dispatcher.run_once() == Dispatched(taken=1, deferred=1)
    finally:
        hanging.set()


def test_a_tool_that_has_no_messages_any_more_says_so(ledger: Ledger) -> None:
    pay(ledger, "A", paying(emits=fails))

    with Ledger.connect(ledger.url) as other:
        assert Dispatcher(other, sinks={}, tools=[_plain()], max_attempts=1).run_once().dead == 1
    (dead,) = Outbox(ledger).messages(state="dead")
    assert "declare it with emits=" in (dead.reason or "")


def _plain() -> Any:
    from settled import action

    @action(risk="non_idempotent_write", identity=("order_id",), name="pay")
    def plain(order_id: str) -> str:
        """Pay an order."""
        return order_id

    return plain


@pytest.mark.parametrize("planned_with", [True, False], ids=["emits removed", "emits added"])
def test_a_deploy_between_planning_and_settling_loses_no_message(ledger: Ledger, planned_with: bool) -> None:
    """One side of it knows of messages: they are noted, to be made by whoever has the tool."""
    call = prepare(contract_of(paying()), ["A"], Options("t"), ledger)
    plan = replace(call.plan, emits=planned_with)
    met = ledger.run(operations.plan(plan))
    assert met is not None
    held = Claim(plan.tenant, plan.id, 1, plan.owner)
    said: dict[str, Any] = {} if planned_with else {"messages": None, "posts": True}
    ledger.run(operations.succeed(held, met.action, receipt="R-A", result='{"receipt": "R-A"}', **said))
    assert rows(ledger.url, "SELECT position FROM settled.outbox") == [{"position": 0}]
    assert Dispatcher(ledger, sinks={}, tools=[paying()]).run_once().made == 1
    assert [topic for topic, _ in messages(ledger, plan.id)] == ["paid", "shipping"]


def test_text_that_postgres_minds_and_a_megabyte_are_delivered(ledger: Ledger) -> None:
    def emits(done: Done) -> list[Message]:
        return [
            Message("m", {"a\x00": "\x00\\\x00", "b": "\\u0000"}),
            Message("m", "x" * (1024 * 1024 - 2)),
            Message("ü \U0001f600", 2**70),
        ]

    had: list[Delivery] = []
    pay(ledger, "A", paying(emits=emits))
    assert Dispatcher(ledger, sinks={"*": had.append}).run_once().delivered == 3
    assert [had[0].payload, len(had[1].payload), had[2].topic, had[2].payload] == [
        {"a\ufffd": "\ufffd\\\ufffd", "b": "\\u0000"},
        1024 * 1024 - 2,
        "ü \U0001f600",
        2**70,
    ]


@pytest.mark.parametrize("none", [None, []])
def test_a_success_that_says_nothing_has_no_messages(ledger: Ledger, none: Any) -> None:
    pay(ledger, "A", paying(emits=lambda done: none))
    assert rows(ledger.url, "SELECT * FROM settled.outbox") == []


def test_a_ledger_that_is_gone_is_said(ledger: Ledger, server_url: str) -> None:
    """Nothing was marked, so nothing is lost."""
    gone = Ledger.connect(ledger.url, patience_s=0.2)
    gone.close()
    with pytest.raises(LedgerUnavailable):
        Dispatcher(gone, sinks={"*": print}).run_once()
