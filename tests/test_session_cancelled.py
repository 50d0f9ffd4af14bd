"""A client that goes away: its turn stops cleanly or leaves unknown, what is known is recorded all the same, and the
thread goes on afterwards, from any instant.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph

from scripted import Remote, ScriptedModel, call, once
from settled import (
    Absent,
    Approve,
    Found,
    Ledger,
    Session,
    ThreadBusy,
    action,
    always,
    aopen_checkpointer,
    build_agent,
    current_action,
)
from settled.tools.effects import Effect
from settled.tools.runner import REAL, World

EFFECTS = 3
"""Plan, the body, settle."""


class Shop:
    """A refund in an event loop whose far side keeps it waiting."""

    def __init__(self, ledger: Ledger, saver: Any, remote: Remote) -> None:
        self.ledger, self.saver, self.remote = ledger, saver, remote
        self.inside, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()

    def find(self, inquiry: Any) -> Found | Absent:
        receipt = self.remote.find(inquiry.idempotency_key)
        return Found(receipt, {"receipt": receipt}) if receipt else Absent()

    def session(self, world: World = REAL, *, approval: Any = None, **options: Any) -> Session:
        @action(
            risk="non_idempotent_write",
            identity=("order",),
            remote="dedupes",
            query=self.find,
            approval=approval,
            timeout=0.5,
            settle_window=0.5,
        )
        async def refund(order: str) -> dict[str, Any]:
            """Refund an order."""
            self.inside.set()
            await self.go_on.wait()
            return await asyncio.to_thread(self.remote.act, current_action().idempotency_key, order=order)

        model = ScriptedModel(script=once(call("refund", "r", order="A1")))
        agent = build_agent(model, [refund], ledger=self.ledger, checkpointer=self.saver, world=world)
        return Session(agent, ledger=self.ledger, **{"thread_id": "t", **options})

    async def history(self, session: Session) -> list[type]:
        state = await session._agent.aget_state(session.config)
        return [type(message) for message in state.values["messages"]]


@pytest.fixture
async def shop(ledger: Ledger, database_url: str) -> AsyncIterator[Shop]:
    async with aopen_checkpointer(ledger) as saver:
        yield Shop(ledger, saver, await asyncio.to_thread(Remote, database_url))


ONE_TURN = [HumanMessage, AIMessage, ToolMessage, AIMessage]


@pytest.mark.parametrize("instant", range(2 * EFFECTS))
async def test_cancelled_at_any_instant_of_a_call_the_thread_goes_on(shop: Shop, instant: int) -> None:
    """Before and after each effect of the protocol. What was not sent is stopped, and begins anew when the message
    comes again; what was sent is found, or sent under the same key; either way there is one effect and a complete
    history.
    """
    seen = iter(range(100))

    def watch(effect: Effect, when: str) -> None:
        if next(seen) == instant:
            asking.cancel()

    session = shop.session(World(watch=watch))
    asking = asyncio.ensure_future(session.asend("please", message_id="m1"))
    with pytest.raises(asyncio.CancelledError):
        await asking
    reply = await shop.session().asend("please", message_id="m1")
    action, *stopped = shop.ledger.actions()
    assert (action.state, [one.state for one in stopped]) == ("succeeded", ["failed"] * (instant == 0))
    assert "R-1" in reply.text
    assert await shop.history(session) == ONE_TURN
    assert await asyncio.to_thread(shop.remote.count) == 1


async def test_cancelled_while_it_waits_for_the_thread_it_holds_nothing(shop: Shop) -> None:
    shop.go_on.clear()
    running = asyncio.ensure_future(shop.session().asend("please", message_id="m1"))
    await shop.inside.wait()
    waiting = asyncio.ensure_future(shop.session().asend("hurry", message_id="m2"))
    await asyncio.sleep(0.2)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    shop.go_on.set()
    assert (await running).is_finished
    again = await shop.session(wait_s=1).asend("please", message_id="m1")
    assert await shop.history(shop.session()) == ONE_TURN
    assert again.is_finished


async def test_a_client_with_a_deadline_leaves_a_call_that_its_late_reply_settles(shop: Shop) -> None:
    shop.go_on.clear()

    async def lose_patience() -> None:
        await shop.inside.wait()
        deadline.reschedule(asyncio.get_running_loop().time())

    waiting = asyncio.ensure_future(lose_patience())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as deadline:
            await shop.session().asend("please", message_id="m1")
    await waiting
    (action,) = shop.ledger.actions()
    assert action.state in ("unknown", "running")
    shop.go_on.set()
    reply = await shop.session().asend("please", message_id="m1")
    assert "R-1" in reply.text
    assert await asyncio.to_thread(shop.remote.count) == 1


async def test_cancelled_again_and_again_it_ends(shop: Shop) -> None:
    """An impatient client, with ever longer patience."""
    shop.go_on.clear()
    asyncio.get_running_loop().call_later(0.6, shop.go_on.set)
    patience_s = 0.05
    end = time.monotonic() + 20
    while time.monotonic() < end:
        with contextlib.suppress(TimeoutError, ThreadBusy):
            async with asyncio.timeout(patience_s):
                reply = await shop.session().asend("please", message_id="m1")
                break
        patience_s *= 1.5
    action, *stopped = shop.ledger.actions()
    assert action.state == "succeeded"
    assert [one.state for one in stopped] == ["failed"] * len(stopped)  # where a patience ended before it was sent
    assert "R-1" in reply.text
    assert await shop.history(shop.session()) == ONE_TURN
    assert await asyncio.to_thread(shop.remote.count) == 1


async def test_cancelled_while_a_decision_is_carried_out_it_is_decided_and_done_once(shop: Shop) -> None:
    session = shop.session(approval=always)
    (one,) = (await session.asend("please")).approvals
    shop.go_on.clear()
    deciding = asyncio.ensure_future(session.adecide(one["action_id"], Approve(), by="sue"))
    await shop.inside.wait()
    deciding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await deciding
    shop.go_on.set()
    reply = await shop.session(approval=always).aresume()
    assert reply.is_finished
    assert "R-1" in reply.text
    assert await asyncio.to_thread(shop.remote.count) == 1


async def test_plain_langgraph_repeats_a_sync_call_that_went_on(ledger: Ledger) -> None:
    """LANGGRAPH 10.4: `ainvoke` returns while the node's thread goes on, and a quick resume does it again. The same
    with ours is `test_graph_session.py::test_a_cancelled_turn_is_continued_from_the_ledger`."""
    remote = await asyncio.to_thread(Remote, ledger.url)
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    def act(state: MessagesState) -> Any:
        loop.call_soon_threadsafe(started.set)
        time.sleep(0.3)
        remote.act("plain")

    graph = StateGraph(MessagesState)
    graph.add_node("act", act)
    graph.add_edge(START, "act")
    async with aopen_checkpointer(ledger) as saver:
        agent: Any = graph.compile(checkpointer=saver)
        config: Any = {"configurable": {"thread_id": "t"}}
        running = asyncio.ensure_future(agent.ainvoke({"messages": "please"}, config, durability="sync"))
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await agent.ainvoke(None, config, durability="sync")
        await asyncio.sleep(0.3)
    assert await asyncio.to_thread(remote.count) == 2
