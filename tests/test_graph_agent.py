"""The reference agent: every call of every message is answered, and one intent has one effect."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from scripted import Remote, Script, ScriptedModel, call, calling, once
from settled import (
    ContractError,
    Ledger,
    Session,
    action,
    aopen_checkpointer,
    build_agent,
    current_action,
    open_checkpointer,
)
from settled.graph.calls import tidy
from settled.graph.channel import merge

Saver = BaseCheckpointSaver[Any]


@pytest.fixture
def remote(database_url: str) -> Remote:
    return Remote(database_url)


@pytest.fixture
def opened(database_url: str) -> Iterator[tuple[Ledger, Saver]]:
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        yield ledger, saver


def tools_of(remote: Remote) -> list[Any]:
    @action(risk="non_idempotent_write", identity=("order",), summary="refund of {amount} for order {order}")
    def refund(order: str, amount: float) -> dict[str, Any]:
        """Refund an order."""
        return remote.act(current_action().idempotency_key, order=order)

    @action(risk="read")
    def look_up(order: str) -> dict[str, Any]:
        """Look an order up."""
        return {"order": order, "status": "delivered"}

    return [refund, look_up]


def turn(
    opened: tuple[Ledger, Saver], remote: Remote, script: Script, text: str = "please", **options: Any
) -> Sequence[BaseMessage]:
    ledger, saver = opened
    agent = build_agent(ScriptedModel(script=script), tools_of(remote), ledger=ledger, checkpointer=saver, **options)
    return Session(agent, ledger=ledger, thread_id="t").send(text).messages


def told(messages: Sequence[BaseMessage]) -> list[ToolMessage]:
    return [message for message in messages if isinstance(message, ToolMessage)]


def codes(messages: Sequence[BaseMessage]) -> list[str]:
    return [message.artifact["code"] for message in told(messages)]


def assert_all_answered(messages: Sequence[BaseMessage]) -> None:
    asked = [
        request["id"]
        for message in messages
        if isinstance(message, AIMessage)
        for request in (*message.tool_calls, *message.invalid_tool_calls)
    ]
    assert [message.tool_call_id for message in told(messages)] == asked


def test_reads_and_writes_in_one_message(opened: tuple[Ledger, Saver], remote: Remote) -> None:
    messages = turn(opened, remote, once(call("look_up", "a", order="A1"), call("refund", "b", order="A1", amount=25)))
    assert codes(messages) == ["succeeded", "succeeded"]
    assert_all_answered(messages)
    assert remote.count() == 1
    assert "delivered" in str(told(messages)[0].content)
    assert told(messages)[1].artifact["receipt"] == "R-1"
    assert told(messages)[1].status == "success"


def test_two_identical_calls_in_one_message_have_one_effect(opened: tuple[Ledger, Saver], remote: Remote) -> None:
    same = {"order": "A1", "amount": 25}
    messages = turn(opened, remote, once(call("refund", "a", **same), call("refund", "b", **same)))
    assert sorted(codes(messages)) == ["duplicate", "succeeded"]
    assert {message.artifact["receipt"] for message in told(messages)} == {"R-1"}
    assert_all_answered(messages)
    assert remote.count() == 1


def test_equal_and_missing_ids_are_all_answered(opened: tuple[Ledger, Saver], remote: Remote) -> None:
    three = [
        call("look_up", "x", order="A1"),
        call("refund", "x", order="A2", amount=1),
        call("refund", order="A3", amount=1),
    ]
    three[2]["id"] = None
    messages = turn(opened, remote, once(*three))
    assert codes(messages) == ["succeeded"] * 3
    assert_all_answered(messages)
    assert len({message.tool_call_id for message in told(messages)}) == 3
    assert remote.count() == 2


def test_same_id_in_a_later_turn_is_another_decision(opened: tuple[Ledger, Saver], remote: Remote) -> None:
    orders = iter(["A1", "A2"])

    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        if isinstance(messages[-1], HumanMessage):
            return calling(call("refund", "call_0", order=next(orders), amount=1))
        return AIMessage(content="done")

    turn(opened, remote, script)
    assert codes(turn(opened, remote, script)) == ["succeeded"]
    assert remote.count() == 2


def test_an_unknown_tool_is_invalid_and_names_the_known_ones(opened: tuple[Ledger, Saver], remote: Remote) -> None:
    messages = turn(opened, remote, once(call("delete_everything", order="A1")))
    assert codes(messages) == ["invalid"]
    assert "refund, look_up" in str(told(messages)[0].content)
    assert told(messages)[0].status == "error"


@pytest.mark.parametrize(
    "bad",
    [2**70, float("nan"), "nul \x00", "half \ud800", [[[]]] * 2, "x" * 2_000_000],
    ids=["2**70", "nan", "nul", "surrogate", "type", "2 MB"],
)
def test_bad_arguments_are_invalid_and_nothing_is_lost(
    opened: tuple[Ledger, Saver], remote: Remote, bad: object
) -> None:
    messages = turn(opened, remote, once(call("refund", order="A1", amount=bad), call("look_up", order="A1")))
    assert sorted(codes(messages)) == ["invalid", "succeeded"]
    assert_all_answered(messages)
    assert remote.count() == 0


def test_deep_arguments_are_invalid(opened: tuple[Ledger, Saver], remote: Remote) -> None:
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    assert codes(turn(opened, remote, once(call("refund", order="A1", amount=deep)))) == ["invalid"]


def test_what_the_providers_parser_could_not_read_is_answered(opened: tuple[Ledger, Saver], remote: Remote) -> None:
    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        if not isinstance(messages[-1], HumanMessage):
            return AIMessage(content="sorry")
        broken = {"name": "refund", "args": '{"order": "A1', "id": "a", "error": "EOF", "type": "invalid_tool_call"}
        return AIMessage(content="", invalid_tool_calls=[broken])

    messages = turn(opened, remote, script)
    assert codes(messages) == ["invalid"]
    assert_all_answered(messages)


def test_tidy_keeps_a_sound_message_as_it_is() -> None:
    sound = AIMessage(content=[{"type": "text", "text": "é"}], id="m", tool_calls=[call("look_up", "a", order="A1")])
    assert tidy(sound) == sound


def stubborn(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
    """Refund again, whatever was said, as long as there are tools."""
    if has_tools:
        return calling(call("refund", f"call_{len(messages)}", order="A1", amount=25))
    return AIMessage(content="It was refunded once.")


def test_a_model_that_repeats_itself_loses_its_tools(opened: tuple[Ledger, Saver], remote: Remote) -> None:
    messages = turn(opened, remote, stubborn)
    assert codes(messages) == ["succeeded", "duplicate", "duplicate", "duplicate"]
    assert {message.artifact["receipt"] for message in told(messages)} == {"R-1"}
    assert messages[-1].text == "It was refunded once."
    assert remote.count() == 1


def test_a_model_that_insists_is_not_listened_to(opened: tuple[Ledger, Saver], remote: Remote) -> None:
    messages = turn(opened, remote, lambda seen, _: stubborn(seen, True), repeat_limit=2)
    assert codes(messages) == ["succeeded", "duplicate", "duplicate"]
    assert messages[-1].text == "The request “refund of 25.0 for order A1” was carried out. Receipt: R-1."
    assert remote.count() == 1


def test_a_model_that_repeats_an_invalid_call_ends_too(opened: tuple[Ledger, Saver], remote: Remote) -> None:
    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        return calling(call("refund", f"call_{len(messages)}", order="A1")) if has_tools else AIMessage(content="sorry")

    assert codes(turn(opened, remote, script)) == ["invalid"] * 4


def test_the_users_language_is_spoken(opened: tuple[Ledger, Saver], remote: Remote) -> None:
    messages = turn(opened, remote, once(call("refund", order="A1", amount=25)), "请退款")
    assert str(told(messages)[0].content).startswith("请求")


def test_a_plain_tool_is_refused_at_build_time(opened: tuple[Ledger, Saver]) -> None:
    @tool
    def pay(order: str) -> str:
        """Pay."""
        return "paid"

    with pytest.raises(ContractError, match="pay has no contract"):
        build_agent(ScriptedModel(script=once()), [pay], ledger=opened[0])


def test_a_replay_meets_the_recorded_outcome(opened: tuple[Ledger, Saver], remote: Remote) -> None:
    ledger, saver = opened
    script = once(call("refund", order="A1", amount=25))
    agent = build_agent(ScriptedModel(script=script), tools_of(remote), ledger=ledger, checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "t"}}
    first = agent.invoke({"messages": [("user", "please")]}, config, durability="sync")
    before_tools = next(state for state in agent.get_state_history(config) if state.next == ("action",))
    again = agent.invoke(None, before_tools.config, durability="sync")
    assert codes(again["messages"]) == ["succeeded"]
    assert [message.content for message in again["messages"]] == [message.content for message in first["messages"]]
    assert remote.count() == 1


def test_transitions_are_streamed(opened: tuple[Ledger, Saver], remote: Remote) -> None:
    ledger, saver = opened
    agent = build_agent(
        ScriptedModel(script=once(call("refund", order="A1", amount=25))),
        tools_of(remote),
        ledger=ledger,
        checkpointer=saver,
    )
    config: Any = {"configurable": {"thread_id": "t"}}
    events = list(agent.stream({"messages": [("user", "please")]}, config, stream_mode="custom", durability="sync"))
    assert [(event["settled"]["state"], event["settled"].get("code")) for event in events] == [
        ("running", None),
        ("succeeded", "succeeded"),
    ]
    modes = {
        mode for mode, _ in agent.stream({"messages": "more"}, config, stream_mode=["updates", "messages", "values"])
    }
    assert modes == {"updates", "messages", "values"}


def test_a_turn_costs_the_same_as_the_thread_grows(opened: tuple[Ledger, Saver], remote: Remote) -> None:
    ledger, saver = opened

    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        if isinstance(messages[-1], HumanMessage):
            return calling(call("refund", order=f"A{len(messages):03}", amount=1))
        return AIMessage(content="x" * 1000)

    agent = build_agent(ScriptedModel(script=script), tools_of(remote), ledger=ledger, checkpointer=saver)
    sizes = []
    for _ in range(20):
        Session(agent, ledger=ledger, thread_id="t").send("y" * 1000)
        sizes.append(stored_bytes(ledger.url))
    assert sizes[19] - sizes[18] < 1.05 * (sizes[2] - sizes[1])


def stored_bytes(url: str) -> int:
    tables = ("checkpoints", "checkpoint_writes", "checkpoint_blobs")
    sizes = (f"coalesce((SELECT sum(pg_column_size(t)) FROM {table} t), 0)" for table in tables)
    with psycopg.connect(url) as connection:
        row = connection.execute(f"SELECT {' + '.join(sizes)}".encode()).fetchone()
    assert row
    return int(row[0])


def test_connections_that_the_server_ends_are_replaced(opened: tuple[Ledger, Saver], remote: Remote) -> None:
    script = once(call("refund", order="A1", amount=25))
    turn(opened, remote, script)
    with psycopg.connect(opened[0].url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    time.sleep(0.2)
    assert codes(turn(opened, remote, script)) == ["duplicate"]


def test_an_agent_without_a_checkpointer_works(opened: tuple[Ledger, Saver], remote: Remote) -> None:
    agent = build_agent(
        ScriptedModel(script=once(call("refund", order="A1", amount=1))), tools_of(remote), ledger=opened[0]
    )
    with pytest.raises(ContractError, match="needs a thread"):
        agent.invoke({"messages": "hi"})
    messages = agent.invoke({"messages": "hi"}, {"configurable": {"thread_id": "t"}})["messages"]
    assert codes(messages) == ["succeeded"]


async def test_async_agent_with_sync_and_async_tools(ledger: Ledger, database_url: str) -> None:
    remote = Remote(database_url)

    @action(risk="non_idempotent_write", identity=("order",))
    async def refund(order: str) -> dict[str, Any]:
        """Refund."""
        return await asyncio.to_thread(remote.act, current_action().idempotency_key)

    script = once(call("refund", order="A1"), call("look_up", order="A1"))
    async with aopen_checkpointer(ledger) as saver:
        agent = build_agent(
            ScriptedModel(script=script), [refund, tools_of(remote)[1]], ledger=ledger, checkpointer=saver
        )
        reply = await Session(agent, ledger=ledger, thread_id="t").asend("please")
    assert codes(reply.messages) == ["succeeded", "succeeded"]
    assert remote.count() == 1


async def test_a_sync_saver_under_ainvoke_says_what_to_open(ledger: Ledger) -> None:
    with open_checkpointer(ledger) as saver:
        agent = build_agent(ScriptedModel(script=once()), [], ledger=ledger, checkpointer=saver)
        with pytest.raises(ContractError, match="aopen_checkpointer"):
            await agent.ainvoke({"messages": "hi"}, {"configurable": {"thread_id": "t"}})


def test_messages_merge_the_same_however_the_writes_are_cut() -> None:
    human, ai = HumanMessage("a", id="1"), AIMessage("b", id="2")
    writes: list[Any] = [
        [human],
        ai,
        [RemoveMessage("1")],
        [HumanMessage("c", id="1")],
        [AIMessage("d", id="2")],
        [RemoveMessage("9")],
    ]
    whole = merge([], writes)
    assert [message.content for message in whole] == ["d", "c"]
    for cut in range(len(writes)):
        assert merge(merge([], writes[:cut]), writes[cut:]) == whole
    assert merge(whole, [[RemoveMessage(REMOVE_ALL_MESSAGES), human]]) == [human]


@pytest.mark.parametrize("ids", [["chatcmpl-0", "chatcmpl-1"], ["chatcmpl-0", "chatcmpl-0"]], ids=["turn", "message"])
def test_ids_that_a_provider_repeats_replace_nothing(
    opened: tuple[Ledger, Saver], remote: Remote, ids: list[str]
) -> None:
    orders = iter(["A1", "A2"])

    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        if isinstance(messages[-1], HumanMessage):
            return AIMessage(content="", id=ids[0], tool_calls=[call("refund", "call_0", order=next(orders), amount=1)])
        return AIMessage(content="done", id=ids[1])

    for number in (1, 2):
        messages = turn(opened, remote, script)
        assert [type(message) for message in messages] == [AIMessage, ToolMessage, AIMessage]
        assert codes(messages) == ["succeeded"]
        assert remote.count() == number


@pytest.mark.parametrize(
    "odd",
    [
        {"usage_metadata": {"input_tokens": 2**70, "output_tokens": 0, "total_tokens": 1}},
        {"name": "\ud800"},
        {"additional_kwargs": {"raw": object(), "more": ({2**70: object()}, [b"x", 1.5, None])}},
        {"response_metadata": {"n": -(2**70), "nan": float("nan"), (1, 2): 3, "message": HumanMessage("x")}},
    ],
    ids=["usage", "name", "kwargs", "metadata"],
)
def test_what_comes_with_an_answer_is_made_fit_to_be_stored(
    opened: tuple[Ledger, Saver], remote: Remote, odd: dict[str, Any]
) -> None:
    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        if isinstance(messages[-1], HumanMessage):
            return AIMessage(content="", tool_calls=[call("refund", order="A1", amount=1)], **odd)
        return AIMessage(content="done")

    assert codes(turn(opened, remote, script)) == ["succeeded"]
    assert codes(turn(opened, remote, script)) == ["duplicate"]


def test_a_model_that_always_calls_something_new_ends(opened: tuple[Ledger, Saver], remote: Remote) -> None:
    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        return calling(call("refund", f"call_{len(messages)}", order=f"A{len(messages)}", amount=1))

    messages = turn(opened, remote, script, max_calls=3)
    assert codes(messages) == ["succeeded"] * 3
    assert messages[-1].text.count("was carried out") == 3
    assert remote.count() == 3


def test_calls_beyond_the_bound_in_one_message_are_answered_and_not_made(
    opened: tuple[Ledger, Saver], remote: Remote
) -> None:
    many = [call("refund", f"call_{number}", order=f"A{number}", amount=1) for number in range(5)]
    messages = turn(opened, remote, once(*many), max_calls=3)
    assert codes(messages) == ["succeeded"] * 3 + ["invalid"] * 2
    assert_all_answered(messages)
    assert remote.count() == 3
