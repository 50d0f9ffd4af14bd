"""A thread's lock that ends while its session lives: the turn ends without a write, and nobody else's turn is lost."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from scripted import Remote, ScriptedModel, call, once
from settled import (
    Ledger,
    Session,
    ThreadBusy,
    action,
    aopen_checkpointer,
    build_agent,
    current_action,
    open_checkpointer,
)

ONE_TURN = [HumanMessage, AIMessage, ToolMessage, AIMessage]


def end_locks(url: str) -> int:
    """End the connections that hold locks, as an idle timeout or a failover would."""
    with psycopg.connect(url, autocommit=True) as connection:
        return len(connection.execute(f"SELECT pg_terminate_backend(pid) {HELD_LOCKS}".encode()).fetchall())


def held_locks(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        return len(connection.execute(f"SELECT pid {HELD_LOCKS}".encode()).fetchall())


HELD_LOCKS = (
    "FROM pg_locks WHERE locktype = 'advisory' AND granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


class Desk:
    """An agent that refunds; what is to happen during its tool's body, and during its model's second answer."""

    def __init__(self, ledger: Ledger, saver: Any) -> None:
        self.ledger = ledger
        self.remote = Remote(ledger.url)
        self.during_call: Callable[[], object] = lambda: None
        self.during_answer: Callable[[], object] = lambda: None

        @action(risk="non_idempotent_write", identity=("order",))
        def refund(order: str) -> dict[str, Any]:
            """Refund an order."""
            done = self.remote.act(current_action().idempotency_key)
            self.during_call()
            return done

        said = once(call("refund", order="A1"))

        def script(messages: list[BaseMessage], has_tools: bool) -> AIMessage:
            if isinstance(messages[-1], ToolMessage):
                self.during_answer()
            return said(messages, has_tools)

        self.agent = build_agent(ScriptedModel(script=script), [refund], ledger=ledger, checkpointer=saver)

    def session(self) -> Session:
        return Session(self.agent, ledger=self.ledger, thread_id="t")

    def history(self) -> list[type]:
        return [type(message) for message in self.agent.get_state(self.session().config).values["messages"]]


@pytest.fixture
def desk(database_url: str) -> Iterator[Desk]:
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        yield Desk(ledger, saver)


@pytest.mark.parametrize("moment", ["during_call", "during_answer"])
def test_a_turn_whose_lock_is_lost_hides_nobody_elses(desk: Desk, moment: str) -> None:
    seconds: list[Future[Any]] = []

    with ThreadPoolExecutor() as pool:

        def lose_it_to_another() -> None:
            setattr(desk, moment, lambda: None)
            assert end_locks(desk.ledger.url) == 1
            seconds.append(pool.submit(desk.session().send, "second"))
            if moment == "during_call":  # the second one meets the running call, and waits for it
                while not held_locks(desk.ledger.url):
                    time.sleep(0.01)
                time.sleep(0.2)
            else:
                seconds[0].result(20)

        setattr(desk, moment, lose_it_to_another)
        with pytest.raises(ThreadBusy, match="lost"):
            desk.session().send("first")
        assert "R-1" in seconds[0].result(20).text
    assert desk.history() == ONE_TURN * 2
    assert desk.remote.count() == 1


def test_a_turn_whose_lock_is_lost_is_continued(desk: Desk) -> None:
    desk.during_call = lambda: end_locks(desk.ledger.url)
    with pytest.raises(ThreadBusy, match="lost"):
        desk.session().send("please", message_id="m1")
    desk.during_call = lambda: None
    assert "R-1" in desk.session().send("please", message_id="m1").text
    assert desk.history() == ONE_TURN
    assert desk.remote.count() == 1


async def test_an_async_turn_whose_lock_is_lost_is_continued(ledger: Ledger) -> None:
    async with aopen_checkpointer(ledger) as saver:
        desk = Desk(ledger, saver)
        desk.during_call = lambda: end_locks(ledger.url)
        with pytest.raises(ThreadBusy, match="lost"):
            await desk.session().asend("please", message_id="m1")
        desk.during_call = lambda: None
        assert "R-1" in (await desk.session().asend("please", message_id="m1")).text
        assert desk.remote.count() == 1


def test_two_turns_of_one_session_have_a_lock_each(desk: Desk) -> None:
    session, others = desk.session(), ThreadPoolExecutor()

    def lose_it() -> None:
        desk.during_call = lambda: None
        end_locks(desk.ledger.url)
        waiting.append(others.submit(session.send, "second"))
        while not held_locks(desk.ledger.url):
            time.sleep(0.01)

    waiting: list[Future[Any]] = []
    desk.during_call = lose_it
    with others, pytest.raises(ThreadBusy, match="lost"):
        session.send("first")
    assert waiting[0].result().is_finished


def test_a_lock_knows_that_it_is_lost(desk: Desk) -> None:
    lock = desk.ledger.thread_lock("default", "t")
    assert lock.is_lost()
    assert lock.take()
    assert not lock.is_lost()
    end_locks(desk.ledger.url)
    assert eventually(lock.is_lost)
    assert not lock.is_held()
    lock.give_back()
    assert lock.take()
    assert not lock.is_lost()
    lock.give_back()
    assert lock.is_lost()


def test_a_server_that_ends_idle_sessions_spares_locks(database_url: str) -> None:
    options = quote("-c idle_session_timeout=100")
    with Ledger.connect(f"{database_url}{'&' if '?' in database_url else '?'}options={options}") as ledger:
        lock = ledger.thread_lock("default", "t")
        assert lock.take()
        time.sleep(0.5)
        assert not lock.is_lost()
        assert lock.is_held()
        lock.give_back()


def test_a_forked_child_leaves_its_parents_locks_alone(desk: Desk) -> None:
    lock = desk.ledger.thread_lock("default", "t")
    assert lock.take()
    lock.give_back()  # its connection is kept for the next one
    child = os.fork()
    if child == 0:
        other = desk.ledger.thread_lock("default", "child")
        os._exit(0 if other.take() and other.is_held() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with Ledger.connect(desk.ledger.url) as elsewhere:
        childs = elsewhere.thread_lock("default", "child")
        assert childs.take()
        childs.give_back()


def test_the_watch_on_a_lock_costs_no_round_trip(desk: Desk) -> None:
    lock = desk.ledger.thread_lock("default", "t")
    assert lock.take()
    begun = time.perf_counter()
    for _ in range(1000):
        assert not lock.is_lost()
    assert time.perf_counter() - begun < 0.1
    lock.give_back()


def eventually(holds: Callable[[], bool], within_s: float = 5.0) -> bool:
    end = time.monotonic() + within_s
    while not holds() and time.monotonic() < end:
        threading.Event().wait(0.01)
    return holds()
