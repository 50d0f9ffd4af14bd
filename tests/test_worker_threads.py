"""Threads that a session has left: a worker goes on with them, and tells in them what came late."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from acts import opened, rows
from processes import start
from scripted import Remote, ScriptedModel, call, once, tools_that_ask
from settled import (
    Approve,
    ContractError,
    Desk,
    Ledger,
    Reject,
    Session,
    always,
    build_agent,
    open_checkpointer,
)
from settled.runtime.pace import Round
from settled.runtime.resuming import MAX_TRIES
from settled.runtime.worker import Worker
from settled.state import threads
from talks import CALLS, OURS, agent_of

PAY = call("pay", payee="ann", amount=5.0)


class Later:
    """A clock that is ahead of the session's by so many seconds."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.ahead_s)


class Shop:
    """A ledger whose time a test moves, an agent, and a worker that has it."""

    def __init__(self, ledger: Ledger, saver: Any, later: Later) -> None:
        self.ledger, self.saver, self.later = ledger, saver, later
        self.far = Remote(ledger.url)
        self.agent: Any = None

    def serve(self, script: Any = None, approval: Any = always) -> None:
        """Build an agent that pays, and asks a person before."""
        self.tools = tools_that_ask(self.far, approval)
        model = ScriptedModel(script=script or once(PAY))
        self.agent = build_agent(model, self.tools, ledger=self.ledger, checkpointer=self.saver)

    def session(self, **options: Any) -> Session:
        return Session(self.agent, ledger=self.ledger, **{"thread_id": "t", "agent_name": "desk", **options})

    def round(self, after_s: float = 0.0, **options: Any) -> Round:
        self.later.ahead_s += after_s
        given = {"tools": getattr(self, "tools", ()), "agents": {"desk": self.agent}, **options}
        return Worker(self.ledger, **given).run_once()

    def messages(self) -> list[BaseMessage]:
        session = self.session()
        messages: list[BaseMessage] = self.agent.get_state(session.config).values["messages"]
        return messages

    def known(self) -> list[dict[str, Any]]:
        return rows(self.ledger.url, "SELECT open_since, due_at, tries, reason FROM settled.threads")


@contextmanager
def shopping(url: str) -> Iterator[Shop]:
    later = Later()
    with opened(url, clock=later) as ledger, open_checkpointer(ledger) as saver:
        yield Shop(ledger, saver, later)


@pytest.fixture
def shop(database_url: str) -> Iterator[Shop]:
    with shopping(database_url) as found:
        yield found


def said(messages: Sequence[BaseMessage]) -> list[str]:
    """What the user has read."""
    return [str(one.content) for one in messages if isinstance(one, AIMessage) and one.content]


@pytest.mark.parametrize("die_in", ["body", pytest.param("put_writes", marks=pytest.mark.deep), "put"])
def test_a_turn_whose_process_was_killed_is_gone_on_with(database_url: str, die_in: str) -> None:
    """Each call has its answer, each effect is there once, and the user's answer stands in the thread."""
    child = start("working.leave", database_url=database_url, die_in=die_in)
    assert child.status() == -signal.SIGKILL, child.failed
    with shopping(database_url) as shop:
        shop.agent = agent_of(OURS, shop.ledger, shop.saver)
        shop.tools = []
        assert shop.round().resumed == 0
        assert shop.round(20).resumed == 1
        messages = shop.messages()
        told = [one for one in messages if isinstance(one, ToolMessage)]
        assert len(told) == CALLS
        assert said(messages) == ["; ".join(str(one.content).split("\n")[0] for one in told)]
        assert shop.far.count() == CALLS
        assert rows(database_url, "SELECT key FROM effects GROUP BY key HAVING count(*) > 1") == []
        for _ in range(4):  # what settled meanwhile wakes it once more
            shop.round(3)
        assert shop.known() == [{"open_since": None, "due_at": None, "tries": 0, "reason": None}]


def test_what_a_person_approved_is_done_and_told_without_the_user(shop: Shop) -> None:
    """Nobody sends another message: the worker carries it on, and the thread has the answer."""
    shop.serve()
    asked = shop.session().send("pay ann").approvals[0]
    assert shop.known()[0]["open_since"] is None
    Desk(shop.ledger).decide(asked["action_id"], Approve(), by="sue", fingerprint=asked["fingerprint"])
    done = shop.round(6) + shop.round(1)
    assert (done.settled, done.resumed, shop.far.count()) == (1, 1, 1)
    assert "R-1" in said(shop.messages())[-1]


def test_what_a_person_denied_is_told_too(shop: Shop) -> None:
    """Nothing ran, and the thread does not wait for ever."""
    shop.serve()
    asked = shop.session().send("pay ann").approvals[0]
    Desk(shop.ledger).decide(asked["action_id"], Reject("not now"), by="sue", fingerprint=asked["fingerprint"])
    done = shop.round(6) + shop.round(1)
    assert (done.resumed, shop.far.count()) == (1, 0)
    answers = [one for one in shop.messages() if isinstance(one, ToolMessage)]
    assert [one.artifact["code"] for one in answers] == ["denied"]


def test_a_request_that_expires_is_told_in_its_thread(shop: Shop) -> None:
    """The worker ends it, and the thread says that nothing was done."""
    shop.serve(approval=always(ttl=timedelta(minutes=1)))
    shop.session().send("pay ann")
    shop.round(2)
    done = shop.round(61) + shop.round(1)
    assert (done.expired, done.resumed, shop.far.count()) == (1, 1, 0)
    answers = [one for one in shop.messages() if isinstance(one, ToolMessage)]
    assert [one.artifact["code"] for one in answers] == ["expired"]


def test_a_thread_that_somebody_runs_is_left_to_him(shop: Shop) -> None:
    """Its lock is taken: a worker goes away, counts no failure, and comes back."""
    shop.serve()
    session = shop.session()
    chunks = session.stream("pay ann")
    next(chunks)
    assert shop.round(20) == Round()
    assert [one["tries"] for one in shop.known()] == [0]
    for _ in chunks:
        pass
    assert shop.round(20).resumed == 0
    assert shop.known()[0]["due_at"] is None


def test_a_thread_that_fails_each_time_is_left_and_shown(shop: Shop) -> None:
    """With growing waits, so often and no more; a message that gets through makes it a thread like any other."""
    is_away = True

    def model(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        if is_away:
            raise ConnectionError("the model is away")
        return AIMessage(content="hello")

    shop.serve(model)
    with pytest.raises(ConnectionError):
        shop.session().send("hello?", message_id="m1")
    waits = 0
    while shop.known()[0]["due_at"] is not None:
        waits += 1
        assert shop.round(301).resumed == 0
        assert waits <= MAX_TRIES
    assert waits == MAX_TRIES
    stuck = threads.on(shop.ledger).run(threads.stuck())
    assert [(one.thread_id, one.agent, one.tries) for one in stuck] == [("t", "desk", MAX_TRIES)]
    assert stuck[0].reason == "ConnectionError: the model is away"
    is_away = False
    assert shop.session().send("hello?", message_id="m2").text == "hello"
    assert threads.on(shop.ledger).run(threads.stuck()) == []


def test_a_turn_that_failed_is_finished_when_the_model_is_back(shop: Shop) -> None:
    """The user's message was kept, and is answered without him."""
    tries: list[int] = []

    def model(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("the model is away")
        return AIMessage(content="hello")

    shop.serve(model)
    with pytest.raises(ConnectionError):
        shop.session().send("hello?")
    assert (shop.round(20).resumed, shop.round(20).resumed) == (0, 1)
    assert said(shop.messages()) == ["hello"]


def test_what_moves_in_the_middle_of_a_turn_is_told_after_it(shop: Shop) -> None:
    """The end of the turn leaves the thread due, since the turn may not have told it."""
    shop.serve()
    session = shop.session()
    chunks = session.stream("pay ann")
    next(chunks)
    known = threads.on(shop.ledger)
    known.run(threads.wake([("default", "t"), ("default", "nobody")]))
    for _ in chunks:
        pass
    assert shop.known()[0]["due_at"] is not None
    assert shop.round(1).resumed == 1
    assert shop.known()[0]["due_at"] is None


def test_a_worker_without_the_agent_leaves_the_thread_alone(shop: Shop) -> None:
    """Another worker has it."""
    shop.serve()
    asked = shop.session(agent_name="other").send("pay ann").approvals[0]
    Desk(shop.ledger).decide(asked["action_id"], Approve(), by="sue", fingerprint=asked["fingerprint"])
    done = shop.round(6) + shop.round(6)
    assert (done.settled, done.resumed) == (1, 0)
    assert shop.known()[0]["due_at"] is not None


def test_a_session_without_a_name_is_unknown_to_workers(shop: Shop) -> None:
    """It costs nothing, and a name that cannot be one is refused."""
    shop.serve()
    shop.session(agent_name=None).send("pay ann")
    assert shop.known() == []
    for wrong in ("", "a\nb", "x" * 513):
        with pytest.raises(ContractError, match="agent_name"):
            shop.session(agent_name=wrong)
