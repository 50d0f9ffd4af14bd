"""Purging of threads: the checkpoints of a conversation that nobody used for so long go, and no others."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from acts import Clock, Remote, opened, rows
from scripted import ScriptedModel, call, once
from settled import Ledger, Message, Session, action, always, build_agent, open_checkpointer, perform
from settled.runtime.purging import Purge, Purged, Retention
from settled.runtime.worker import Worker
from settled.tools.delivery import Delivery
from settled.tools.dispatcher import Dispatcher

DAY_S = 86400.0
QUARTER = Retention(checkpoints=timedelta(days=90))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opening(database_url: str, clock: Clock) -> Iterator[tuple[Ledger, Any]]:
    with opened(database_url, clock=clock) as ledger, open_checkpointer(ledger) as saver:
        yield ledger, saver


def session(opening: tuple[Ledger, Any], thread_id: str, tenant: str = "default", **contract: Any) -> Session:
    ledger, saver = opening
    far = Remote()

    @action(risk="non_idempotent_write", remote="opaque", identity=("order",), **contract)
    def pay(order: int) -> object:
        """Pay an order."""
        return far.do(order=order)

    model = ScriptedModel(script=once(call("pay", order=1)))
    agent = build_agent(model, [pay], ledger=ledger, checkpointer=saver, tenant=tenant)
    return Session(agent, ledger=ledger, thread_id=thread_id, tenant=tenant, agent_name="desk")


def kept(ledger: Ledger) -> set[str]:
    """The threads that have checkpoints."""
    return {row["thread_id"] for row in rows(ledger.url, "SELECT DISTINCT thread_id FROM checkpoints")}


def test_what_nobody_used_goes_and_what_is_used_stays(opening: tuple[Ledger, Any], clock: Clock) -> None:
    """Of every tenant; a message is use."""
    ledger, _ = opening
    session(opening, "old").send("please")
    session(opening, "old", tenant="b").send("please")
    session(opening, "used").send("please")
    clock.sleep(80 * DAY_S)
    session(opening, "used").send("please, again")
    assert Purge(ledger, QUARTER).run_once() == Purged()
    clock.sleep(20 * DAY_S)
    assert Purge(ledger, QUARTER).run_once() == Purged(threads=2)
    assert kept(ledger) == {"used"}
    assert [row["thread_id"] for row in rows(ledger.url, "SELECT thread_id FROM settled.threads")] == ["used"]
    for table in ("checkpoint_writes", "checkpoint_blobs"):
        assert {row["thread_id"] for row in rows(ledger.url, f"SELECT DISTINCT thread_id FROM {table}")} <= {"used"}


def test_a_thread_in_which_something_is_open_stays(opening: tuple[Ledger, Any], clock: Clock) -> None:
    """A person may still decide."""
    ledger, _ = opening
    session(opening, "waits", approval=always(ttl=timedelta(days=300))).send("please")
    clock.sleep(100 * DAY_S)
    assert Purge(ledger, QUARTER).run_once() == Purged()
    assert kept(ledger) == {"waits"}


def test_a_thread_that_is_run_at_that_moment_stays(opening: tuple[Ledger, Any], clock: Clock) -> None:
    """Its lock is taken."""
    ledger, _ = opening
    session(opening, "t").send("please")
    clock.sleep(100 * DAY_S)
    lock = ledger.thread_lock("default", "t")
    assert lock.take()
    assert Purge(ledger, QUARTER).run_once() == Purged()
    lock.give_back()
    assert Purge(ledger, QUARTER).run_once() == Purged(threads=1)


def test_a_worker_purges_only_where_that_is_asked_for(opening: tuple[Ledger, Any], clock: Clock) -> None:
    """By default nothing is ever forgotten."""
    ledger, _ = opening
    session(opening, "t").send("please")
    clock.sleep(100 * DAY_S)
    assert Worker(ledger).run_once().purged == 0
    done = Worker(ledger, purge_after=timedelta(days=30), checkpoints_after=timedelta(days=90)).run_once()
    assert (done.purged, ledger.actions(), kept(ledger)) == (1, [], set())


def test_a_worker_delivers_the_outbox(opening: tuple[Ledger, Any]) -> None:
    """The messages of an action, in a round of a worker."""
    ledger, _ = opening
    had: list[Delivery] = []

    @action(
        risk="non_idempotent_write",
        remote="opaque",
        identity=("order",),
        emits=lambda done: Message("paid", {"order": done.arguments["order"]}),
    )
    def pay(order: int) -> dict[str, int]:
        return {"order": order}

    perform(pay, [7], ledger=ledger, thread_id="t")
    assert Worker(ledger, tools=[pay]).run_once().delivered == 0
    dispatcher = Dispatcher(ledger, sinks={"paid": had.append})
    assert Worker(ledger, tools=[pay], dispatcher=dispatcher).run_once().delivered == 1
    assert [(one.topic, one.payload) for one in had] == [("paid", {"order": 7})]
