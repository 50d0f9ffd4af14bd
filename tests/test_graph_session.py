"""Sessions take turns on a thread, continue what is unfinished, and accept each message once."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from scripted import Remote, ScriptedModel, call, once
from settled import (
    Absent,
    ContractError,
    Found,
    InvalidArguments,
    Ledger,
    Session,
    ThreadBusy,
    action,
    aopen_checkpointer,
    build_agent,
    current_action,
    open_checkpointer,
)


class Shop:
    """An agent that refunds, and a hook into the body of its tool."""

    def __init__(self, ledger: Ledger, saver: Any, remote: Remote) -> None:
        self.ledger = ledger
        self.remote = remote
        self.during = lambda: None
        self.model_calls = 0

        def find(inquiry: Any) -> Any:
            receipt = remote.find(inquiry.idempotency_key)
            return Found(receipt) if receipt else Absent()

        @action(risk="non_idempotent_write", identity=("order",), remote="dedupes", query=find)
        def refund(order: str) -> dict[str, Any]:
            """Refund an order."""
            done = remote.act(current_action().idempotency_key)
            self.during()
            return done

        model = ScriptedModel(script=once(call("refund", order="A1")))
        self.agent = build_agent(model, [refund], ledger=ledger, checkpointer=saver)

    def session(self, **options: Any) -> Session:
        return Session(self.agent, ledger=self.ledger, **{"thread_id": "t", **options})

    def messages(self, **options: Any) -> list[Any]:
        messages: list[Any] = self.agent.get_state(self.session(**options).config).values["messages"]
        return messages


@pytest.fixture
def shop(database_url: str) -> Iterator[Shop]:
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        yield Shop(ledger, saver, Remote(database_url))


def kinds(messages: list[Any]) -> list[type]:
    return [type(message) for message in messages]


ONE_TURN = [HumanMessage, AIMessage, ToolMessage, AIMessage]


def test_a_turn_has_a_reply(shop: Shop) -> None:
    reply = shop.session().send("please")
    assert reply.is_finished
    assert "R-1" in reply.text
    assert [message.artifact["code"] for message in reply.tool_messages] == ["succeeded"]
    assert kinds(shop.messages()) == ONE_TURN


def test_a_message_is_accepted_once(shop: Shop) -> None:
    first = shop.session().send("please", message_id="m1")
    again = shop.session().send("please", message_id="m1")
    assert again.text == first.text
    assert kinds(shop.messages()) == ONE_TURN


def test_a_message_id_names_one_message(shop: Shop) -> None:
    shop.session().send("please", message_id="m1")
    with pytest.raises(InvalidArguments, match="message_id"):
        shop.session().send("something else", message_id="m1")


@pytest.mark.parametrize("text", ["half \ud800", "nul \x00"])
def test_a_message_that_cannot_be_stored_is_refused(shop: Shop, text: str) -> None:
    with pytest.raises(InvalidArguments):
        shop.session().send(text)


def test_a_double_click_has_one_effect_and_one_answer(shop: Shop) -> None:
    shop.during = lambda: time.sleep(0.3)
    with ThreadPoolExecutor() as pool:
        replies = list(pool.map(lambda _: shop.session().send("please", message_id="m1"), range(3)))
    assert len({reply.text for reply in replies}) == 1
    assert shop.remote.count() == 1
    assert kinds(shop.messages()) == ONE_TURN


def test_a_second_session_waits_and_then_gives_up(shop: Shop) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def during() -> None:
        inside.set()
        go_on.wait(10)

    shop.during = during
    with ThreadPoolExecutor() as pool:
        running = pool.submit(shop.session().send, "please")
        assert inside.wait(10)
        with pytest.raises(ThreadBusy):
            shop.session(wait_s=0.2).send("hurry")
        waiting = pool.submit(shop.session().send, "hurry")
        go_on.set()
        assert running.result(10).is_finished
        assert waiting.result(10).tool_messages[0].artifact["code"] == "duplicate"
    assert shop.remote.count() == 1
    assert kinds(shop.messages()) == ONE_TURN * 2


def test_sigterm_drains_and_a_later_session_continues(shop: Shop) -> None:
    shop.during = lambda: os.kill(os.getpid(), signal.SIGTERM)
    session = shop.session()
    with session.draining_on_sigterm():
        reply = session.send("please", message_id="m1")
    assert not reply.is_finished
    with pytest.raises(ThreadBusy):
        session.send("more")
    later = shop.session().send("please", message_id="m1")
    assert later.is_finished
    assert "R-1" in later.text
    assert shop.remote.count() == 1
    assert kinds(shop.messages()) == ONE_TURN


def test_new_input_comes_after_unfinished_work(shop: Shop) -> None:
    session = shop.session()
    shop.during = session.drain
    session.send("please")
    shop.during = lambda: None
    shop.session().send("and now?")
    assert kinds(shop.messages()) == ONE_TURN * 2


def test_resume_is_harmless(shop: Shop) -> None:
    assert shop.session().resume().messages == []
    reply = shop.session().send("please")
    assert shop.session().resume().text == reply.text
    assert shop.remote.count() == 1


def test_tenants_do_not_share_a_thread(shop: Shop) -> None:
    shop.session(tenant="acme").send("please")
    shop.session(tenant="other").send("please")
    shop.session(thread_id="@acme/t").send("please")
    assert shop.remote.count() == 3
    assert kinds(shop.messages(tenant="acme")) == ONE_TURN


def test_the_session_handle_is_not_stored(shop: Shop) -> None:
    session = shop.session(requester="ann")
    session.send("please")
    state = shop.agent.get_state(session.config)
    assert state.metadata is not None
    assert not [key for key in state.metadata if key.startswith("__")]


def test_a_session_needs_a_checkpointer_and_printable_names(shop: Shop) -> None:
    with pytest.raises(ContractError, match="checkpointer"):
        Session(build_agent(ScriptedModel(script=once()), [], ledger=shop.ledger), ledger=shop.ledger, thread_id="t")
    with pytest.raises(ContractError, match="thread_id"):
        shop.session(thread_id="a\nb")


async def test_a_cancelled_turn_is_continued_from_the_ledger(ledger: Ledger, database_url: str) -> None:
    async with aopen_checkpointer(ledger) as saver:
        shop = Shop(ledger, saver, Remote(database_url))
        inside = threading.Event()

        def during() -> None:
            inside.set()
            time.sleep(0.5)

        shop.during = during
        turn = asyncio.create_task(shop.session().asend("please", message_id="m1"))
        await asyncio.to_thread(inside.wait, 10)
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        reply = await shop.session().asend("please", message_id="m1")
        assert "R-1" in reply.text
        assert shop.remote.count() == 1


async def test_async_sessions_take_turns(ledger: Ledger, database_url: str) -> None:
    async with aopen_checkpointer(ledger) as saver:
        shop = Shop(ledger, saver, Remote(database_url))
        shop.during = lambda: time.sleep(0.2)
        replies = await asyncio.gather(*(shop.session().asend("please", message_id="m1") for _ in range(3)))
        assert len({reply.text for reply in replies}) == 1
        assert shop.remote.count() == 1


@pytest.mark.parametrize("odd", [None, 5, AIMessage("x")], ids=["None", "int", "AIMessage"])
def test_only_what_a_user_says_can_be_sent(shop: Shop, odd: Any) -> None:
    with pytest.raises(InvalidArguments, match="must be a text or a HumanMessage"):
        shop.session().send(odd)


@pytest.mark.parametrize(
    "odd",
    [
        {"name": "\ud800"},
        {"additional_kwargs": {"a": "\ud800", "b": object(), "c": (2**70, {2**70: {1}})}},
        {"response_metadata": {"n": 2**70}},
    ],
    ids=["name", "kwargs", "metadata"],
)
def test_what_comes_with_a_message_is_made_fit_to_be_stored(shop: Shop, odd: dict[str, Any]) -> None:
    assert shop.session().send(HumanMessage("please", **odd)).is_finished
    assert shop.session().send("more").is_finished


def test_a_session_serves_the_tenant_of_its_agent(shop: Shop) -> None:
    script = once(call("look", order="A1"))

    @action(risk="non_idempotent_write", identity=("order",))
    def look(order: str) -> dict[str, Any]:
        """Look."""
        return {"tenant": current_action().tenant}

    saver: Any = shop.agent.checkpointer
    agent = build_agent(ScriptedModel(script=script), [look], ledger=shop.ledger, checkpointer=saver, tenant="acme")
    reply = Session(agent, ledger=shop.ledger, thread_id="t").send("please")
    assert "acme" in str(reply.tool_messages[0].content)
    assert Session(agent, ledger=shop.ledger, thread_id="t", tenant="acme").resume().text == reply.text
    with pytest.raises(ContractError, match="'acme' only"):
        Session(agent, ledger=shop.ledger, thread_id="t", tenant="other")
