"""A thread that fails each time it is resumed is got going again; nothing that the ledger knows is lost or repeated.

(LANGGRAPH 2.9: LangGraph keeps an answer once a node has seen it, and fails with it for ever.)
"""

from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.types import Command, interrupt

from scripted import Remote, ScriptedModel, call, calling
from settled import (
    Approve,
    Ledger,
    Session,
    action,
    always,
    aopen_checkpointer,
    build_agent,
    current_action,
    open_checkpointer,
)


class Shop:
    """Two refunds, one of whose bodies is broken; and a model that may be."""

    def __init__(self, ledger: Ledger, saver: Any) -> None:
        self.ledger = ledger
        self.remote = Remote(ledger.url)
        self.model_is_down = False
        self.asks = False

        declared: dict[str, Any] = {"risk": "non_idempotent_write", "identity": ("order",), "remote": "opaque"}

        @action(**declared)
        def refund(order: str) -> dict[str, Any]:
            """Refund an order."""
            return self.remote.act(current_action().idempotency_key, order=order)

        @action(**declared, approval=always)
        def cancel(order: str) -> dict[str, Any]:
            """Cancel an order."""
            return self.remote.act(current_action().idempotency_key, order=order)

        @action(risk="read")
        def look(order: str) -> str:
            """Look an order up; asks in its body what only a number answers."""
            return str(int(interrupt("how many?")) + 1)

        self.model = ScriptedModel(script=self._script)
        self.calls = [call("refund", "r", order="A1"), call("look", "l", order="A1")]
        self.agent = build_agent(self.model, [refund, cancel, look], ledger=ledger, checkpointer=saver)

    def _script(self, messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        if self.model_is_down:
            raise ConnectionError("down")
        if isinstance(messages[-1], HumanMessage) and len(messages) == 1:
            return calling(*self.calls)
        return AIMessage("understood")

    def session(self) -> Session:
        return Session(self.agent, ledger=self.ledger, thread_id="t")

    def history(self) -> str:
        messages = self.agent.get_state(self.session().config).values["messages"]
        return "".join(type(message).__name__[0] for message in messages)


@pytest.fixture
def shop(database_url: str) -> Any:
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        yield Shop(ledger, saver)


def test_a_stored_answer_that_cannot_be_read_is_forgotten_and_asked_for_again(shop: Shop) -> None:
    """A body that asks by itself and chokes on the answer: LangGraph gives it the same answer for ever."""
    session = shop.session()
    assert not session.send("please").is_finished
    config = session.config
    shop.agent.invoke(Command(resume="many"), config, durability="sync")
    state = shop.agent.get_state(config)
    codes = {m.tool_call_id: m.artifact["code"] for m in state.values["messages"] if isinstance(m, ToolMessage)}
    assert codes["r"] == "succeeded"
    assert session.unstick().is_finished
    assert shop.remote.count() == 1
    assert shop.history() == "HATTA"


def test_a_thread_that_waits_for_a_person_still_waits(shop: Shop) -> None:
    shop.calls = [call("cancel", "c", order="A1")]
    session = shop.session()
    (one,) = session.send("please").approvals
    before = shop.agent.get_state(session.config).config
    (again,) = session.unstick().approvals
    assert again == one
    assert shop.agent.get_state(session.config).config == before
    assert session.decide(one["action_id"], Approve(), by="sue").is_finished
    assert shop.remote.count() == 1


def test_it_is_harmless_on_a_thread_that_is_well(shop: Shop) -> None:
    session = shop.session()
    assert session.unstick().messages == []
    shop.calls = [call("refund", "r", order="A1")]
    reply = session.send("please")
    assert session.unstick().text == reply.text
    assert shop.history() == "HATA"
    assert shop.remote.count() == 1


def test_a_model_that_is_down_is_said_and_goes_on_when_it_is_back(shop: Shop) -> None:
    """After the call: its outcome stands, and is what the model is told later."""
    shop.calls = [call("refund", "r", order="A1")]
    session = shop.session()

    def downs(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        if isinstance(messages[-1], ToolMessage):
            raise ConnectionError("down")
        return shop._script(messages, has_tools)

    shop.model.script = downs
    with pytest.raises(ConnectionError):
        session.send("please", message_id="m1")
    with pytest.raises(ConnectionError):
        session.unstick()
    shop.model.script = shop._script
    assert session.unstick().text == "understood"
    assert shop.history() == "HATA"
    assert shop.remote.count() == 1


async def test_an_event_loop_unsticks_too(ledger: Ledger) -> None:
    async with aopen_checkpointer(ledger) as saver:
        shop = Shop(ledger, saver)
        session = shop.session()
        assert not (await session.asend("please")).is_finished
        reply = await session.aunstick()
        assert not reply.is_finished
        (asked,) = (await shop.agent.aget_state(session.config)).interrupts
        assert asked.value == "how many?"
        await shop.agent.ainvoke(Command(resume=2), session.config, durability="sync")
        assert (await session.aunstick()).is_finished
        assert shop.remote.count() == 1
