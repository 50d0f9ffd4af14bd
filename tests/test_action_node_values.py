"""What a tool is given by its graph, and what it may give back to it: through every door, as a tool node has it."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from cryptography.fernet import Fernet
from langchain.agents import AgentState, create_agent
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolArg, InjectedToolCallId, tool
from langgraph.graph import MessagesState
from langgraph.prebuilt import InjectedState, InjectedStore, ToolNode, ToolRuntime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

import processes
from acts import opened, rows
from scripted import Bank, Remote, ScriptedModel, bank, call, once
from settled import (
    ActionMiddleware,
    ActionNode,
    ContractError,
    Incidental,
    Secret,
    action,
    aperform,
    as_action,
    build_agent,
    current_action,
    perform,
)
from settled.state.secrets import HIDDEN
from tool_doors import QUICK, around, told

NOTE = call("note", "n", text="hi")


class State(MessagesState):
    customer: str
    noted: str


class Talk(AgentState[Any]):
    customer: str
    noted: str


@pytest.fixture(params=["sync", "async"])
async def shop(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Bank]:
    async with bank(request.param, database_url) as opened:
        yield opened


def taking(far: Remote, **contract: Any) -> Any:
    """A tool that takes everything there is from its graph, and tells what it got."""

    @action(**{"risk": "non_idempotent_write", "identity": "all", **contract})
    def note(
        text: str,
        whole: Annotated[Any, InjectedState],
        messages: Annotated[list[Any], InjectedState("messages")],
        store: Annotated[BaseStore, InjectedStore()],
        name_of_call: Annotated[str, InjectedToolCallId],
        runtime: ToolRuntime,
        missing: Annotated[str, InjectedState("nowhere")] = "nothing",
    ) -> dict[str, Any]:
        """Note it."""
        far.act(current_action().idempotency_key)
        store.put(("notes",), "last", {"text": text})
        return {
            "messages": len(messages),
            "whole": "messages" in whole,
            "call": [name_of_call, runtime.tool_call_id],
            "missing": missing,
            "thread": runtime.config["configurable"]["thread_id"],
        }

    return note


DOORS = ("create_agent", "tools node", "two calls", "build_agent")


def agent_of(kind: str, shop: Bank, tools: Any, store: Any, *calls: Any) -> Any:
    model = ScriptedModel(script=once(*(calls or (NOTE,))))
    match kind:
        case "create_agent":
            ours: Any = ActionMiddleware(ledger=shop.ledger)
            return create_agent(
                model, tools, middleware=[ours], checkpointer=shop.saver, store=store, state_schema=Talk
            )
        case "build_agent":
            agent = build_agent(model, tools, ledger=shop.ledger, checkpointer=shop.saver)
            agent.store = store
            return agent
        case "tool node":
            agent = around(ToolNode(tools), model, shop.saver, schema=State)
        case _:
            agent = around(ActionNode(tools, ledger=shop.ledger), model, shop.saver, schema=State)
    agent.store = store
    return agent


@pytest.mark.parametrize("kind", DOORS)
async def test_a_tool_gets_what_a_tool_node_gives(shop: Bank, kind: str) -> None:
    store = InMemoryStore()
    calls = (NOTE, call("note", "m", text="ho")) if kind == "two calls" else (NOTE,)
    shop.agent = agent_of(kind, shop, [taking(shop.remote)], store, *calls)
    messages = (await shop.run("please"))["messages"]
    (row,) = rows(shop.ledger.url, "SELECT result, arguments FROM settled.actions WHERE arguments->>'text' = 'hi'")
    assert row["arguments"] == {"text": "hi"}, "nothing of the graph is stored, hashed or shown"
    assert row["result"] == {"messages": 2, "whole": True, "call": ["n", "n"], "missing": "nothing", "thread": "t"}
    assert [message.artifact["code"] for message in told(messages)] == ["succeeded"] * len(calls)
    noted = store.get(("notes",), "last")
    assert noted is not None
    assert shop.remote.count() == len(calls)


def test_the_model_is_not_told_of_it(database_url: str) -> None:
    schema: Any = taking(Remote(database_url)).tool_call_schema
    assert set(schema.model_json_schema()["properties"]) == {"text", "repeat_of"}


async def test_a_model_that_gives_it_is_refused(shop: Bank) -> None:
    forged = call("note", "n", text="hi", name_of_call="mine")
    shop.agent = agent_of("tools node", shop, [taking(shop.remote)], InMemoryStore(), forged)
    assert [m.artifact["code"] for m in told((await shop.run("please"))["messages"])] == ["invalid"]


async def test_what_the_graph_does_not_have_is_said_before_anything_is_sent(shop: Bank) -> None:
    for kind in ("create_agent", "tools node"):
        shop.agent = agent_of(kind, shop, [taking(shop.remote)], None)
        with pytest.raises(ContractError, match="no store"):
            await shop.run("please", thread_id=kind)
    assert rows(shop.ledger.url, "SELECT id FROM settled.actions") == []


async def test_without_a_graph_there_is_nothing_to_give(shop: Bank) -> None:
    tool = taking(shop.remote)
    given: Any = {"ledger": shop.ledger, "thread_id": "t"}
    if shop.door == "async":
        calling = aperform(tool, ["hi"], **given)
    else:
        calling = asyncio.to_thread(perform, tool, ["hi"], **given)
    with pytest.raises(ContractError, match="from a graph"):
        await calling
    assert rows(shop.ledger.url, "SELECT id FROM settled.actions") == []


def test_what_nobody_gives_is_refused_at_decoration() -> None:
    with pytest.raises(ContractError, match="nobody gives user"):

        @action(risk="read")
        def look(user: Annotated[str, InjectedToolArg]) -> str:
            """Look."""
            return user


async def test_a_read_in_a_plain_tool_node_gets_it_too(shop: Bank) -> None:
    @action(risk="read")
    def look(
        order: str, state: Annotated[Any, InjectedState], mine: Annotated[str, InjectedToolCallId], runtime: ToolRuntime
    ) -> str:
        """Look."""
        return f"{order} {len(state['messages'])} {mine} {runtime.tool_call_id}"

    look_up = call("look", "l", order="A1")
    for kind in ("tool node", "tools node", "create_agent"):
        shop.agent = agent_of(kind, shop, [look], None, look_up)
        messages = (await shop.run("please", thread_id=kind))["messages"]
        assert "A1 2 l l" in told(messages)[0].content


async def test_a_wrapped_tool_gets_it_too(shop: Bank) -> None:
    @tool
    def note(text: str, state: Annotated[Any, InjectedState], mine: Annotated[str, InjectedToolCallId]) -> str:
        """Note it."""
        shop.remote.act("")
        return f"{text} {len(state['messages'])} {mine}"

    carried = as_action(note, risk="non_idempotent_write", identity="all")
    model = ScriptedModel(script=once(NOTE))
    ours: Any = ActionMiddleware(ledger=shop.ledger, contracts={"note": carried})
    shop.agent = create_agent(model, [note], middleware=[ours], checkpointer=shop.saver)
    for _ in range(2):
        messages = (await shop.run("please"))["messages"]
    assert [message.artifact["code"] for message in told(messages)] == ["succeeded", "duplicate"]
    assert "hi 2 n" in str(told(messages)[0].content)
    assert shop.remote.count() == 1


async def test_those_who_listen_are_shown_no_secret(shop: Bank) -> None:
    seen: list[str] = []

    @action(risk="non_idempotent_write", identity=("order",))
    def unlock(order: str, pin: Annotated[str, Secret()]) -> str:
        """Unlock."""
        seen.append(pin)
        return "open"

    given: Any = {"messages": [HumanMessage("hi")]}
    options: Any = {"stream_mode": "tools", "durability": "sync"}
    with opened(shop.ledger.url, secret_key=Fernet.generate_key().decode()) as shop.ledger:
        shop.agent = agent_of("tools node", shop, [unlock], None, call("unlock", "u", order="A1", pin="1234"))
        if shop.door == "async":
            heard = [one async for one in shop.agent.astream(given, shop.config(), **options)]
        else:
            heard = await asyncio.to_thread(lambda: list(shop.agent.stream(given, shop.config(), **options)))
        await shop.ledger.aclose()
    assert heard[0]["input"] == {"order": "A1", "pin": HIDDEN}
    assert seen == ["1234"]


# Commands


def commanding(far: Remote, then: Any = lambda: None) -> Any:
    def find(inquiry: Any) -> Any:
        raise AssertionError("its outcome is known")

    @action(risk="non_idempotent_write", identity=("text",), remote="queryable", query=find, **QUICK)
    def note(
        text: str, mine: Annotated[str, InjectedToolCallId], memo: Annotated[str, Incidental()] = ""
    ) -> Command[Any]:
        """Note it."""
        far.act(current_action().idempotency_key)
        then()
        answer = ToolMessage(f"noted {text}", tool_call_id=mine)
        return Command(update={"noted": text, "messages": [answer]})

    return note


@pytest.mark.parametrize("kind", ["tools node", "two calls", "create_agent"])
async def test_a_command_updates_the_state_and_is_answered_by_us(shop: Bank, kind: str) -> None:
    calls = (NOTE, call("look", "l")) if kind == "two calls" else (NOTE,)

    @action(risk="read")
    def look() -> str:
        """Look."""
        return "seen"

    shop.agent = agent_of(kind, shop, [commanding(shop.remote), look], None, *calls)
    await shop.run("please")
    values = (await shop.state()).values
    assert values["noted"] == "hi"
    assert [message.tool_call_id for message in told(values["messages"])] == ["n", "l"][: len(calls)]
    first = told(values["messages"])[0]
    assert "noted hi" in str(first.content)
    assert "settled" not in str(first.content)
    assert first.artifact["code"] == "succeeded"


async def test_a_duplicate_updates_no_state(shop: Bank) -> None:
    shop.agent = agent_of("tools node", shop, [commanding(shop.remote)], None)
    await shop.run("please")
    await shop.run({"messages": [HumanMessage("again")], "noted": "changed since"})
    values = (await shop.state()).values
    assert values["noted"] == "changed since"
    assert [message.artifact["code"] for message in told(values["messages"])] == ["succeeded", "duplicate"]
    assert shop.remote.count() == 1


@pytest.mark.parametrize("kind", ["tools node", "create_agent"])
async def test_the_update_of_a_call_that_was_settled_before_a_kill_is_not_lost(database_url: str, kind: str) -> None:
    """The process dies when the outcome is recorded, and before LangGraph has stored the update."""
    died = processes.start("test_action_node_values.die", url=database_url, kind=kind)
    assert await asyncio.to_thread(died.status, 60) == -signal.SIGKILL
    async with bank("sync", database_url) as shop:
        shop.agent = agent_of(kind, shop, [commanding(shop.remote)], None)
        await shop.run(None)
        values = (await shop.state()).values
        assert values["noted"] == "hi"
        assert told(values["messages"])[0].artifact["code"] == "succeeded"
        assert shop.remote.count() == 1


async def run_and_die(url: str, kind: str) -> None:
    async with bank("sync", url) as shop:
        shop.agent = agent_of(kind, shop, [commanding(shop.remote)], None)
        import settled.graph.door as door

        def die(*args: Any, **kwargs: Any) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

        door.answer_to = die
        await shop.run("please")


async def test_a_tool_message_is_its_content(shop: Bank) -> None:
    @action(risk="non_idempotent_write", identity="all")
    def send(order: str, mine: Annotated[str, InjectedToolCallId]) -> ToolMessage:
        """Send."""
        status: Any = "error" if order == "bad" else "success"
        return ToolMessage(f"sent {order}", tool_call_id=mine, status=status)

    calls = (call("send", "a", order="A1"), call("send", "b", order="bad"))
    shop.agent = agent_of("tools node", shop, [send], None, *calls)
    good, bad = told((await shop.run("please"))["messages"])
    assert "sent A1" in str(good.content)
    assert (good.artifact["code"], bad.artifact["code"]) == ("succeeded", "manual_review")


def die(*, url: str, kind: str) -> None:
    asyncio.run(run_and_die(url, kind))
