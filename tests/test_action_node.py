"""`ActionNode` in the place of a `ToolNode`: the same inputs and results, and one effect for each intent."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.runtime import Runtime
from langgraph.types import Command, RetryPolicy, Send, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from acts import states
from scripted import Bank, ScriptedModel, bank, call, calling, once, tools_that_ask
from settled import ActionNode, ContractError, always
from tool_doors import (
    OURS,
    PLAIN,
    agent_of,
    around,
    assert_all_answered,
    looking,
    plain_refund,
    quietly,
    refund_of,
    told,
)

KIND = "tools node"
PAY = call("pay", "p", payee="ann", amount=100)
ONE, TWO = call("refund", "a", order="A1"), call("refund", "b", order="A2")


@pytest.fixture(params=["sync", "async"])
async def shop(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Bank]:
    async with bank(request.param, database_url) as opened:
        yield opened


async def test_actions_are_carried_and_other_tools_run_as_they_do(shop: Bank) -> None:
    looked: list[str] = []
    tools = [refund_of(shop.remote), looking(looked)]
    shop.agent = agent_of(KIND, shop, once(call("look", "l", order="A1"), ONE, TWO), tools)
    messages = (await shop.run("please"))["messages"]
    assert_all_answered(messages)
    assert told(messages)[0].content == "A1 was delivered"
    assert [message.artifact["code"] for message in told(messages)[1:]] == ["succeeded"] * 2
    assert (looked, shop.remote.count()) == (["A1"], 2)


async def test_one_of_three_waits_and_no_sibling_is_repeated(shop: Bank) -> None:
    """In a plain tools node a sibling of a call that waits has its effect again when the answer comes."""

    @tool
    def pay(payee: str, amount: float) -> str:
        """Pay somebody."""
        return f"{interrupt('may I?')} to {payee}"

    shop.agent = agent_of(KIND, shop, once(ONE, PAY), [plain_refund(shop.remote), pay], whose=PLAIN)
    await shop.run("please", thread_id="plain")
    await shop.run(Command(resume="paid"), thread_id="plain")
    assert shop.remote.count() == 2
    looked: list[str] = []
    tools = [*tools_that_ask(shop.remote, always), refund_of(shop.remote), looking(looked)]
    shop.agent = agent_of(KIND, shop, once(ONE, PAY, call("look", "l", order="A1")), tools)
    (asked,) = (await shop.run("please"))["__interrupt__"]
    assert (asked.value["name"], shop.remote.count()) == ("pay", 3)
    messages = (await shop.answer({asked.id: {"type": "approve"}}))["messages"]
    assert_all_answered(messages)
    assert (looked, shop.remote.count()) == (["A1"], 4)


async def test_two_wait_and_are_answered_one_by_one(shop: Bank) -> None:
    script = once(PAY, call("mail", "m", to="ben"))
    shop.agent = agent_of(KIND, shop, script, tools_that_ask(shop.remote, always))
    asked = {one.value["name"]: one.id for one in (await shop.run("please"))["__interrupt__"]}
    (left,) = (await shop.answer({asked["mail"]: {"type": "approve"}}))["__interrupt__"]
    assert (left.id, shop.remote.count()) == (asked["pay"], 1)
    await shop.answer({left.id: {"type": "reject"}})
    assert await shop.codes() == ["denied", "succeeded"]
    assert shop.remote.count() == 1


async def test_subgraphs_are_seen(shop: Bank) -> None:
    script = once(PAY, call("mail", "m", to="ben"))
    shop.agent = agent_of(KIND, shop, script, tools_that_ask(shop.remote, always))
    await shop.run("please")
    if shop.door == "async":
        state = await shop.agent.aget_state(shop.config(), subgraphs=True)
    else:
        state = await asyncio.to_thread(shop.agent.get_state, shop.config(), subgraphs=True)
    (task,) = state.tasks
    assert [inside.name for inside in task.state.tasks] == ["call", "call"]
    assert len(state.interrupts) == 2


async def test_a_retry_policy_on_the_node_repeats_nothing(shop: Bank) -> None:
    policy = RetryPolicy(max_attempts=3, initial_interval=0.01, retry_on=Exception)

    def lost(order: str) -> None:
        raise TimeoutError("no reply")

    shop.agent = agent_of(KIND, shop, once(ONE), [plain_refund(shop.remote, lost)], whose=PLAIN, retry_policy=policy)
    with pytest.raises(TimeoutError):
        await shop.run("please", thread_id="plain")
    assert shop.remote.count() == 3
    shop.agent = agent_of(KIND, shop, once(ONE), [refund_of(shop.remote, lost)], retry_policy=policy)
    await shop.run("please")
    assert await shop.codes() == ["succeeded"]
    assert shop.remote.count() == 4


async def test_a_retry_of_the_node_because_of_another_tool_repeats_no_action(shop: Bank) -> None:
    policy = RetryPolicy(max_attempts=3, initial_interval=0.01, retry_on=Exception)
    tries: list[str] = []

    @tool
    def flaky(order: str) -> str:
        """Fail twice."""
        time.sleep(0.4)  # the refund is done meanwhile
        tries.append(order)
        if len(tries) % 3:
            raise ConnectionError
        return "well"

    script = once(ONE, call("flaky", "f", order="A1"))
    tools = [plain_refund(shop.remote), flaky]
    shop.agent = agent_of(KIND, shop, script, tools, whose=PLAIN, retry_policy=policy)
    await shop.run("please", thread_id="plain")
    assert shop.remote.count() == 3
    shop.agent = agent_of(KIND, shop, script, [refund_of(shop.remote), flaky], retry_policy=policy)
    messages = (await shop.run("please"))["messages"]
    assert told(messages)[0].artifact["receipt"] == "R-4"
    assert shop.remote.count() == 4


@pytest.mark.parametrize("whose", [PLAIN, OURS])
async def test_no_error_handler_invites_to_send_again_what_may_be_done(shop: Bank, whose: str) -> None:
    def lost(order: str) -> None:
        raise TimeoutError("no reply")

    ours = refund_of(shop.remote, lost, remote="opaque", query=None)
    refund = ours if whose == OURS else plain_refund(shop.remote, lost)
    shop.agent = agent_of(KIND, shop, once(ONE), [refund], whose=whose, handle_tool_errors=True)
    text = str(told((await shop.run("please"))["messages"])[0].content)
    assert ("Please fix" in text) == (whose == PLAIN)
    assert ("no reply" in text) == (whose == PLAIN)


async def test_a_second_tools_node_meets_the_same_ledger(shop: Bank) -> None:
    def build(whose: str) -> Any:
        graph = StateGraph(dict_state())
        graph.add_node("model", lambda state: {"messages": [calling(ONE)]} if len(state["messages"]) < 2 else {})
        for name in ("tools", "more"):
            tools = [refund_of(shop.remote)] if whose == OURS else [plain_refund(shop.remote)]
            graph.add_node(name, ActionNode(tools, ledger=shop.ledger, name=name) if whose == OURS else ToolNode(tools))
        graph.add_edge(START, "model")
        graph.add_edge("model", "tools")
        graph.add_edge("model", "more")
        graph.add_edge("tools", END)
        return graph.compile(checkpointer=shop.saver)

    shop.agent = build(PLAIN)
    await shop.run("please", thread_id="plain")
    assert shop.remote.count() == 2
    shop.agent = build(OURS)
    messages = (await shop.run("please"))["messages"]
    assert {message.artifact["receipt"] for message in told(messages)} == {"R-3"}
    assert shop.remote.count() == 3


def dict_state() -> Any:
    class State(TypedDict):
        messages: Annotated[list[AnyMessage], add_messages]

    return State


# What goes in


async def direct(shop: Bank, node: Any, given: Any, thread_id: str = "t") -> Any:
    config: Any = {"configurable": {"thread_id": thread_id}}
    if shop.door == "async":
        return await node.ainvoke(given, config, runtime=Runtime())
    return await asyncio.to_thread(node.invoke, given, config, runtime=Runtime())


async def test_a_list_of_messages(shop: Bank) -> None:
    plain = await direct(shop, ToolNode([looking([])]), [calling(call("look", "l", order="A1"))])
    ours = ActionNode([refund_of(shop.remote), looking([])], ledger=shop.ledger)
    assert [m.content for m in await direct(shop, ours, [calling(call("look", "l", order="A1"))])] == [
        m.content for m in plain
    ]
    messages = await direct(shop, ours, [calling(ONE, call("look", "l", order="A1"))])
    assert [type(message) for message in messages] == [ToolMessage, ToolMessage]
    assert messages[0].artifact["code"] == "succeeded"


async def test_tool_calls_by_themselves(shop: Bank) -> None:
    node = ActionNode([refund_of(shop.remote)], ledger=shop.ledger)
    for given in ([ONE], [ONE, TWO], {"__type": "tool_call_with_context", "tool_call": ONE, "state": {"messages": []}}):
        result = await direct(shop, node, given)
        assert [message.tool_call_id for message in result["messages"]] == ["a", "b"][: len(result["messages"])]
    assert shop.remote.count() == 2


async def test_an_object_as_state_and_another_key(shop: Bank) -> None:
    class Model(BaseModel):
        chat: list[Any]

    @dataclass
    class Record:
        chat: list[Any]

    node = ActionNode([refund_of(shop.remote)], ledger=shop.ledger, messages_key="chat")
    for number, state in enumerate((Model, Record, dict)):
        given = state(chat=[calling(call("refund", f"c{number}", order=f"A{number}"), TWO)])
        result = await direct(shop, node, given)
        assert [message.tool_call_id for message in result["chat"]] == [f"c{number}", "b"]
    assert shop.remote.count() == 3, "A2 is one intent"


async def test_one_send_for_each_call(shop: Bank) -> None:
    graph = StateGraph(dict_state())
    graph.add_node("model", lambda state: {"messages": [calling(ONE, PAY)]} if len(state["messages"]) < 2 else {})
    tools = [*tools_that_ask(shop.remote, always), refund_of(shop.remote)]
    graph.add_node("tools", ActionNode(tools, ledger=shop.ledger))
    graph.add_edge(START, "model")
    graph.add_conditional_edges(
        "model", lambda state: [Send("tools", [one]) for one in state["messages"][-1].tool_calls], ["tools"]
    )
    shop.agent = graph.compile(checkpointer=shop.saver)
    (asked,) = (await shop.run("please"))["__interrupt__"]
    await shop.answer({asked.id: {"type": "approve"}})
    assert await shop.codes() == ["succeeded", "succeeded"]
    assert shop.remote.count() == 2


async def test_nothing_to_call_is_an_error_as_in_a_tool_node(shop: Bank) -> None:
    for node in (ToolNode([]), ActionNode([refund_of(shop.remote)], ledger=shop.ledger)):
        with pytest.raises(ValueError, match="No AIMessage"):
            await direct(shop, node, [HumanMessage("hi")])


async def test_an_unknown_tool_is_answered_as_in_a_tool_node(shop: Bank) -> None:
    unknown = [calling(call("nothing", "n"), ONE)]
    node = ActionNode([refund_of(shop.remote)], ledger=shop.ledger)
    messages = await direct(shop, node, unknown)
    assert "not a valid tool" in messages[0].content
    assert messages[1].artifact["code"] == "succeeded"


async def test_without_a_thread(shop: Bank) -> None:
    node = ActionNode([refund_of(shop.remote)], ledger=shop.ledger)
    with pytest.raises(ContractError, match="needs a thread"):
        await direct(shop, node, [calling(ONE)], thread_id="")


async def test_bad_arguments_are_answered_and_nothing_is_sent(shop: Bank) -> None:
    node = ActionNode([refund_of(shop.remote)], ledger=shop.ledger)
    messages = await direct(shop, node, [calling(call("refund", "a", order=3), call("refund", "b", what="A1"))])
    assert [message.artifact["code"] for message in messages] == ["invalid", "invalid"]
    assert states(shop.ledger.url) == []


async def test_equal_ids_in_one_message_are_two_calls(shop: Bank) -> None:
    node = ActionNode([refund_of(shop.remote)], ledger=shop.ledger)
    said = AIMessage("", id="m", tool_calls=[call("refund", "x", order="A1"), call("refund", "x", order="A2")])
    messages = await direct(shop, node, {"messages": [said]})
    assert len({message.id for message in messages["messages"]}) == 2
    assert shop.remote.count() == 2


async def test_a_call_that_is_answered_is_not_carried_out_again(shop: Bank) -> None:
    node = ActionNode([refund_of(shop.remote)], ledger=shop.ledger)
    answered = [AIMessage("", id="m", tool_calls=[ONE]), ToolMessage("a person said no", tool_call_id="a", id="x")]
    result = await direct(shop, node, {"messages": answered})
    assert [message.content for message in result["messages"]] == ["a person said no"]
    assert shop.remote.count() == 0


async def test_inside_the_prebuilt_react_agent(shop: Bank) -> None:
    caught = quietly()
    from langgraph.prebuilt import create_react_agent

    node = ActionNode([*tools_that_ask(shop.remote, always), refund_of(shop.remote)], ledger=shop.ledger)
    for version in ("v1", "v2"):
        model: Any = ScriptedModel(script=once(ONE, PAY))
        shop.agent = create_react_agent(model, node, checkpointer=shop.saver, version=version)
        (asked,) = (await shop.run("please", thread_id=version))["__interrupt__"]
        result = await shop.run(Command(resume={asked.id: {"type": "approve"}}), thread_id=version)
        assert [m.artifact["code"] for m in told(result["messages"])] == ["succeeded", "succeeded"]
    caught.__exit__(None, None, None)
    assert shop.remote.count() == 4


async def test_a_replay_meets_the_recorded_outcome(shop: Bank) -> None:
    shop.agent = agent_of(KIND, shop, once(ONE, TWO), [refund_of(shop.remote)])
    await shop.run("please")
    config = shop.config()
    if shop.door == "async":
        history = [state async for state in shop.agent.aget_state_history(config)]
        past = next(state for state in history if state.next == ("tools",))
        again = await shop.agent.ainvoke(None, past.config, durability="sync")
    else:
        history = await asyncio.to_thread(lambda: list(shop.agent.get_state_history(config)))
        past = next(state for state in history if state.next == ("tools",))
        again = await asyncio.to_thread(shop.agent.invoke, None, past.config, durability="sync")
    assert [message.artifact["code"] for message in told(again["messages"])] == ["succeeded", "succeeded"]
    assert shop.remote.count() == 2


async def test_a_wrapper_of_the_node_stands_outside_the_ledger(shop: Bank) -> None:
    def twice(request: Any, handler: Any) -> Any:
        handler(request)
        return handler(request)

    async def atwice(request: Any, handler: Any) -> Any:
        await handler(request)
        return await handler(request)

    tools = [refund_of(shop.remote)]
    with pytest.raises(ContractError, match="both forms"):
        ActionNode(tools, ledger=shop.ledger, wrap_tool_call=twice)
    node = ActionNode(tools, ledger=shop.ledger, wrap_tool_call=twice, awrap_tool_call=atwice)
    shop.agent = around(node, ScriptedModel(script=once(ONE, TWO)), shop.saver)
    await shop.run("please")
    assert await shop.codes() == ["succeeded", "succeeded"]
    assert shop.remote.count() == 2


async def test_streams_have_the_tools_events_and_ours(shop: Bank) -> None:
    shop.agent = agent_of(KIND, shop, once(ONE, TWO), [refund_of(shop.remote)])
    given: Any = {"messages": [HumanMessage("hi")]}
    options: Any = {"stream_mode": ["custom", "tools"], "durability": "sync", "subgraphs": True}
    if shop.door == "async":
        heard = [one async for one in shop.agent.astream(given, shop.config(), **options)]
    else:
        heard = await asyncio.to_thread(lambda: list(shop.agent.stream(given, shop.config(), **options)))
    for name in ("a", "b"):
        tools = [data["event"] for _, mode, data in heard if mode == "tools" and data["tool_call_id"] == name]
        assert tools == ["tool-started", "tool-finished"]
    states = [data["settled"]["state"] for _, mode, data in heard if mode == "custom"]
    assert sorted(states) == ["running", "running", "succeeded", "succeeded"]


async def test_the_tools_name_and_policy_are_the_nodes(shop: Bank) -> None:
    node = ActionNode(
        [refund_of(shop.remote)], ledger=shop.ledger, policies={"non_idempotent_write": always}, language="zh"
    )
    message = (await direct(shop, node, [calling(ONE)]))[0]
    assert message.artifact["code"] == "waiting_for_approval"
    assert str(message.content).startswith("请求")
    assert (node.name, list(node.tools_by_name)) == ("tools", ["refund"])
    assert "tools" in repr(node)


def kinds(messages: list[BaseMessage]) -> str:
    return "".join(type(message).__name__[0] for message in messages)


async def test_around_is_the_usual_graph(shop: Bank) -> None:
    node = ActionNode([refund_of(shop.remote)], ledger=shop.ledger)
    shop.agent = around(node, ScriptedModel(script=once(ONE)), shop.saver)
    assert kinds((await shop.run("please"))["messages"]) == "HATA"
