"""What cannot go on does not hold its thread: a new message is accepted, and never after a call without an answer."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.types import interrupt

from acts import triggers_of
from scripted import Remote, Script, ScriptedModel, call, once
from settled import (
    Absent,
    Ledger,
    Session,
    action,
    aopen_checkpointer,
    build_agent,
    current_action,
    open_checkpointer,
    perform,
)
from settled.tools.backoff import Backoff
from settled.tools.runner import World

SHORT: dict[str, Any] = {
    "risk": "non_idempotent_write",
    "identity": ("order",),
    "remote": "dedupes",
    "query": lambda inquiry: Absent(),
    "timeout": 0.4,
    "settle_window": 0.4,
    "deadline": 5,
    "backoff": Backoff(first=0.05, cap=0.1, jitter=0),
}


@pytest.fixture
def opened(database_url: str) -> Iterator[tuple[Ledger, Any]]:
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        yield ledger, saver


def session(opened: tuple[Ledger, Any], script: Script, tools: Sequence[Any] = (), **options: Any) -> Session:
    ledger, saver = opened
    agent = build_agent(ScriptedModel(script=script), tools, ledger=ledger, checkpointer=saver, **options)
    return Session(agent, ledger=ledger, thread_id="t")


def history(session: Session) -> list[BaseMessage]:
    messages: list[BaseMessage] = session._agent.get_state(session.config).values["messages"]
    return messages


def kinds(messages: Sequence[BaseMessage]) -> str:
    return "".join(type(message).__name__[0] for message in messages)


def codes(messages: Sequence[BaseMessage]) -> list[str]:
    return [message.artifact["code"] for message in messages if isinstance(message, ToolMessage)]


def assert_all_answered(messages: Sequence[BaseMessage]) -> None:
    """Each message with calls is followed by their answers, as providers demand."""
    for index, message in enumerate(messages):
        if isinstance(message, AIMessage):
            asked = [request["id"] for request in message.tool_calls]
            answers = messages[index + 1 : index + 1 + len(asked)]
            assert [answer.tool_call_id for answer in answers if isinstance(answer, ToolMessage)] == asked


class Filtered:
    """A model whose provider refuses what it is asked while `refuses` says so."""

    def __init__(self) -> None:
        self.refuses = lambda text: text == "bad"

    def __call__(self, messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        if self.refuses(messages[-1].text):
            raise ValueError("400 content filter")
        return AIMessage(content=f"about {messages[-1].text}")


def test_a_message_that_the_model_refuses_does_not_hold_the_thread(opened: tuple[Ledger, Any]) -> None:
    asked = session(opened, Filtered())
    with pytest.raises(ValueError, match="content filter"):
        asked.send("bad")
    assert asked.send("good").text == "about good"
    assert asked.send("more").text == "about more"
    assert kinds(history(asked)) == "HHAHA"


def test_the_same_message_again_tries_again(opened: tuple[Ledger, Any]) -> None:
    model = Filtered()
    asked = session(opened, model)
    for _ in range(2):
        with pytest.raises(ValueError, match="content filter"):
            asked.send("bad", message_id="m1")
    model.refuses = lambda text: False
    assert asked.send("bad", message_id="m1").text == "about bad"
    assert kinds(history(asked)) == "HA"


def test_a_model_that_is_back_answers_the_old_message_first(opened: tuple[Ledger, Any]) -> None:
    model = Filtered()
    asked = session(opened, model)
    with pytest.raises(ValueError, match="content filter"):
        asked.send("bad")
    model.refuses = lambda text: False
    assert asked.send("good").text == "about good"
    assert kinds(history(asked)) == "HAHA"


async def test_an_async_session_does_not_hold_the_thread_either(ledger: Ledger) -> None:
    async with aopen_checkpointer(ledger) as saver:
        agent = build_agent(ScriptedModel(script=Filtered()), [], ledger=ledger, checkpointer=saver)
        asked = Session(agent, ledger=ledger, thread_id="t")
        with pytest.raises(ValueError, match="content filter"):
            await asked.asend("bad")
        assert (await asked.asend("good")).text == "about good"


def asking_body(far: Remote, **contract: Any) -> list[Any]:
    """A write that asks a person in its body, which nobody answers; and one that does not."""

    @action(**{**SHORT, **contract})
    def refund(order: str) -> dict[str, Any]:
        """Refund."""
        interrupt("sure?")
        return {}

    @action(risk="non_idempotent_write", identity=("order",))
    def cancel(order: str) -> dict[str, Any]:
        """Cancel."""
        return far.act(current_action().idempotency_key)

    return [refund, cancel]


def once_each(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
    """Refund and cancel in the first turn; then only talk."""
    if len(messages) == 1:
        return AIMessage(content="", tool_calls=[call("refund", order="A1"), call("cancel", order="A1")])
    return AIMessage(content="understood")


def test_a_call_that_stays_interrupted_is_answered_from_the_ledger(
    opened: tuple[Ledger, Any], database_url: str
) -> None:
    remote = Remote(database_url)
    asked = session(opened, once_each, asking_body(remote))
    first = asked.send("please")
    assert (first.text, first.is_finished) == ("", False)
    assert asked.send("and now?").text == "understood"
    messages = history(asked)
    assert kinds(messages) == "HATTHA"
    assert_all_answered(messages)
    assert codes(messages) == ["unknown", "succeeded"]
    assert remote.count() == 1
    assert asked.send("really?").is_finished


def test_an_interrupted_call_is_continued_where_the_ledger_can_settle_it(
    opened: tuple[Ledger, Any], database_url: str
) -> None:
    asked = session(opened, once_each, asking_body(Remote(database_url), remote="opaque", query=None))
    assert not asked.send("please").is_finished
    assert asked.send("and now?").text == "understood"
    messages = history(asked)
    assert kinds(messages) == "HATTAHA"
    assert_all_answered(messages)
    assert codes(messages) == ["manual_review", "succeeded"]


async def test_an_async_interrupted_call_is_answered_from_the_ledger(ledger: Ledger, database_url: str) -> None:
    async with aopen_checkpointer(ledger) as saver:
        tools = asking_body(Remote(database_url))
        agent = build_agent(ScriptedModel(script=once_each), tools, ledger=ledger, checkpointer=saver)
        asked = Session(agent, ledger=ledger, thread_id="t")
        assert not (await asked.asend("please")).is_finished
        assert (await asked.asend("and now?")).text == "understood"
        messages = (await agent.aget_state(asked.config)).values["messages"]
        assert kinds(messages) == "HATTHA"
        assert codes(messages) == ["unknown", "succeeded"]


def test_an_interrupted_read_is_answered_too(opened: tuple[Ledger, Any]) -> None:
    @action(risk="read")
    def look(order: str) -> str:
        """Look."""
        return str(interrupt("which?"))

    asked = session(opened, once(call("look", order="A1")), [look])
    assert not asked.send("please").is_finished
    asked.send("never mind")
    messages = history(asked)
    assert kinds(messages)[:4] == "HATH"
    assert codes(messages) == ["unavailable"]


def test_a_call_that_fails_each_time_does_not_hold_the_thread(opened: tuple[Ledger, Any], database_url: str) -> None:
    def watch(effect: object, when: str) -> None:
        if when == "before" and type(effect).__name__ == "Invoke":
            raise RuntimeError("a fault of our own")

    remote = Remote(database_url)
    asked = session(opened, once_each, asking_body(remote), world=World(watch=watch))
    with pytest.raises(RuntimeError):
        asked.send("please")
    assert asked.send("and now?").text == "understood"
    messages = history(asked)
    assert kinds(messages) == "HATTHA"
    assert_all_answered(messages)
    assert remote.count() == 0


def test_a_live_call_outside_the_session_is_waited_for(opened: tuple[Ledger, Any], database_url: str) -> None:
    remote, inside, go_on = Remote(database_url), threading.Event(), threading.Event()

    @action(risk="non_idempotent_write", identity=("order",))
    def refund(order: str) -> dict[str, Any]:
        """Refund."""
        inside.set()
        go_on.wait(5)
        return remote.act(current_action().idempotency_key)

    asked = session(opened, once(call("refund", order="A1")), [refund])
    with ThreadPoolExecutor() as pool:
        outside = pool.submit(perform, refund, {"order": "A1"}, ledger=opened[0], thread_id="t")
        assert inside.wait(5)
        turn = pool.submit(asked.send, "please")
        threading.Timer(0.7, go_on.set).start()
        assert codes(turn.result(20).messages) == ["duplicate"]
        assert str(outside.result(5).code) == "succeeded"
    assert "lose" not in triggers_of(opened[0], outside.result())
    assert remote.count() == 1
