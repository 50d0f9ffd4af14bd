"""`ActionMiddleware` in an agent of `create_agent`: one effect for each intent, and an answer for each call."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware, ToolRetryMiddleware, hook_config
from langchain.agents.middleware import wrap_tool_call as wrapper
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.types import Command

from acts import rows, states
from scripted import Bank, bank, call, calling, once, tools_that_ask
from settled import ActionMiddleware, Approve, ContractError, Desk, Reject, always, over
from tool_doors import OURS, PLAIN, agent_of, assert_all_answered, looking, plain_refund, refund_of, told

KIND = "create_agent"
PAY = call("pay", "p", payee="ann", amount=100)
THREE = (call("refund", "a", order="A1"), call("refund", "b", order="A2"), call("refund", "c", order="A3"))


@pytest.fixture(params=["sync", "async"])
async def shop(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Bank]:
    async with bank(request.param, database_url) as opened:
        yield opened


async def test_actions_are_carried_and_other_tools_pass(shop: Bank) -> None:
    looked: list[str] = []
    script = once(call("look", "l", order="A1"), *THREE)
    shop.agent = agent_of(KIND, shop, script, [refund_of(shop.remote), looking(looked)])
    messages = (await shop.run("please"))["messages"]
    assert_all_answered(messages)
    assert told(messages)[0].content == "A1 was delivered"
    assert [message.artifact["code"] for message in told(messages)[1:]] == ["succeeded"] * 3
    assert looked == ["A1"]
    assert shop.remote.count() == 3


async def test_a_model_that_calls_again_gets_the_record(shop: Bank) -> None:
    shop.agent = agent_of(KIND, shop, once(call("refund", "a", order="A1")), [refund_of(shop.remote)])
    await shop.run("please")
    await shop.run("please")
    assert await shop.codes() == ["succeeded", "duplicate"]
    assert shop.remote.count() == 1


async def test_a_plain_tool_is_carried_by_a_given_contract(shop: Bank) -> None:
    plain, carried = plain_refund(shop.remote), refund_of(shop.remote)
    shop.agent = agent_of(KIND, shop, once(THREE[0]), [plain], contracts={"refund": carried})
    await shop.run("please")
    await shop.run("please")
    assert await shop.codes() == ["succeeded", "duplicate"]
    assert shop.remote.count() == 1


async def test_a_contract_has_the_name_of_its_tool(shop: Bank) -> None:
    with pytest.raises(ContractError, match="same name"):
        ActionMiddleware(ledger=shop.ledger, contracts={"pay": refund_of(shop.remote)})
    with pytest.raises(ContractError, match="needs an action"):
        ActionMiddleware(ledger=shop.ledger, contracts={"refund": plain_refund(shop.remote)})  # type: ignore[dict-item]


async def test_a_run_without_a_thread_is_refused_before_the_model_is_asked(shop: Bank) -> None:
    shop.saver = None
    shop.agent = agent_of(KIND, shop, once(THREE[0]), [refund_of(shop.remote)])
    given: Any = {"messages": [HumanMessage("hi")]}
    with pytest.raises(ContractError, match="needs a thread"):
        await (shop.agent.ainvoke(given) if shop.door == "async" else asyncio.to_thread(shop.agent.invoke, given))


def test_without_langchain_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['langchain'] = None; import settled; settled.ActionMiddleware"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert "ContractError: ActionMiddleware is for agents of LangChain: pip install" in ended.stderr


# Approvals


async def test_one_of_three_waits_and_no_sibling_is_repeated(shop: Bank) -> None:
    """In plain LangGraph an approval is asked by the tool's own code, and what stands before it is done again."""
    looked: list[str] = []
    tools = [*tools_that_ask(shop.remote, always), refund_of(shop.remote), looking(looked)]
    script = once(call("refund", "a", order="A1"), PAY, call("look", "l", order="A1"))
    shop.agent = agent_of(KIND, shop, script, tools)
    asked = (await shop.run("please"))["__interrupt__"]
    assert [one.value["name"] for one in asked] == ["pay"]
    assert asked[0].value["type"] == "tool_approval"
    assert {"action_id", "fingerprint", "expires_at"} <= set(asked[0].value)
    assert shop.remote.count() == 1
    messages = (await shop.answer({asked[0].id: {"type": "approve"}}))["messages"]
    assert_all_answered(messages)
    assert shop.remote.count() == 2
    assert looked == ["A1"]


async def test_a_lone_call_takes_an_answer_without_an_id(shop: Bank) -> None:
    shop.agent = agent_of(KIND, shop, once(PAY), tools_that_ask(shop.remote, always))
    await shop.run("please")
    await shop.answer({"type": "approve"})
    assert await shop.codes() == ["succeeded"]


async def test_a_rejected_call_runs_never(shop: Bank) -> None:
    shop.agent = agent_of(KIND, shop, once(PAY), tools_that_ask(shop.remote, always))
    await shop.run("please")
    await shop.answer({"type": "reject", "message": "too much"})
    (message,) = told(await shop.messages())
    assert (message.artifact["code"], message.status) == ("denied", "error")
    assert "too much" in str(message.content)
    assert shop.remote.count() == 0


@pytest.mark.parametrize("junk", ["yes", 7, [], {"type": "approved"}, {"type": "approve", "fingerprint": "x"}], ids=str)
async def test_an_unusable_answer_is_asked_for_again(shop: Bank, junk: Any) -> None:
    shop.agent = agent_of(KIND, shop, once(PAY), tools_that_ask(shop.remote, always))
    first = (await shop.run("please"))["__interrupt__"][0]
    again = (await shop.answer({first.id: junk}))["__interrupt__"][0]
    assert again.value["problem"]
    assert again.id != first.id
    repeated = (await shop.answer({first.id: {"type": "approve"}}))["__interrupt__"][0]
    assert repeated.id == again.id, "a late answer to the first question is none to the second"
    assert shop.remote.count() == 0
    await shop.answer({again.id: {"type": "approve"}})
    assert await shop.codes() == ["succeeded"]
    assert shop.remote.count() == 1


async def test_an_edit_that_waits_itself_is_asked_for(shop: Bank) -> None:
    shop.agent = agent_of(KIND, shop, once(PAY), tools_that_ask(shop.remote, over("amount", 50)))
    first = (await shop.run("please"))["__interrupt__"][0]
    edit = {"type": "edit", "edited_action": {"name": "pay", "args": {"payee": "ann", "amount": 60}}}
    again = (await shop.answer({first.id: edit}))["__interrupt__"][0]
    assert again.value["args"]["amount"] == 60
    assert again.value["action_id"] != first.value["action_id"]
    repeated = (await shop.answer({first.id: edit}))["__interrupt__"][0]
    assert (repeated.id, states(shop.ledger.url)) == (again.id, ["cancelled", "planned"])
    await shop.answer({again.id: {"type": "approve"}})
    assert await shop.codes() == ["changed_by_person"]
    assert rows(shop.remote.url, "SELECT detail FROM effects")[0]["detail"] == '{"payee": "ann", "amount": 60.0}'


async def test_a_decision_at_the_desk_is_met_by_whoever_goes_on(shop: Bank) -> None:
    shop.agent = agent_of(KIND, shop, once(PAY), tools_that_ask(shop.remote, always))
    one = (await shop.run("please"))["__interrupt__"][0].value
    desk = Desk(shop.ledger)
    await asyncio.to_thread(desk.decide, one["action_id"], Approve(), by="sue", fingerprint=one["fingerprint"])
    await shop.run(None)
    assert await shop.codes() == ["succeeded"]
    assert shop.remote.count() == 1


async def test_an_answer_that_comes_after_the_decision_changes_nothing(shop: Bank) -> None:
    shop.agent = agent_of(KIND, shop, once(PAY), tools_that_ask(shop.remote, always))
    first = (await shop.run("please"))["__interrupt__"][0]
    one = first.value
    desk = Desk(shop.ledger)
    await asyncio.to_thread(desk.decide, one["action_id"], Reject(), by="sue", fingerprint=one["fingerprint"])
    await shop.answer({first.id: {"type": "approve"}})
    assert await shop.codes() == ["denied"]
    assert shop.remote.count() == 0


async def test_without_a_checkpointer_the_model_is_told_that_it_waits(shop: Bank) -> None:
    shop.saver = None
    shop.agent = agent_of(KIND, shop, once(PAY), tools_that_ask(shop.remote, always))
    given: Any = {"messages": [HumanMessage("hi")]}
    if shop.door == "async":
        messages = (await shop.agent.ainvoke(given, shop.config()))["messages"]
    else:
        messages = (await asyncio.to_thread(shop.agent.invoke, given, shop.config()))["messages"]
    assert told(messages)[0].artifact["code"] == "waiting_for_approval"


# Other middlewares


async def test_a_retry_around_ours_meets_the_record(shop: Bank) -> None:
    """The plain tool takes effect three times; ours once, and is asked about instead."""

    def lost(order: str) -> None:
        raise TimeoutError("no reply")

    retry = ToolRetryMiddleware(max_retries=2, initial_delay=0, jitter=False)
    shop.agent = agent_of(KIND, shop, once(THREE[0]), [plain_refund(shop.remote, lost)], whose=PLAIN, before=[retry])
    await shop.run("please", thread_id="plain")
    assert shop.remote.count() == 3
    shop.agent = agent_of(KIND, shop, once(THREE[0]), [refund_of(shop.remote, lost)], before=[retry])
    await shop.run("please")
    assert await shop.codes() == ["succeeded"], "found by the query"
    assert shop.remote.count() == 4


async def test_a_retry_that_insists_on_it_runs_nothing_twice(shop: Bank) -> None:
    @wrapper
    def twice(request: Any, handler: Any) -> Any:
        handler(request)
        return handler(request)

    @wrapper
    async def atwice(request: Any, handler: Any) -> Any:
        await handler(request)
        return await handler(request)

    before = [twice if shop.door == "sync" else atwice]
    shop.agent = agent_of(KIND, shop, once(THREE[0]), [refund_of(shop.remote)], before=before)
    await shop.run("please")
    assert await shop.codes() == ["succeeded"]
    assert shop.remote.count() == 1


def doubling(door: str) -> Any:
    """A wrapper that sends everything twice."""

    @wrapper
    def doubled(request: Any, handler: Any) -> Any:
        try:
            handler(request)
        finally:
            return handler(request)  # noqa: B012 - the worst that a wrapper can do

    @wrapper
    async def adoubled(request: Any, handler: Any) -> Any:
        try:
            await handler(request)
        finally:
            return await handler(request)  # noqa: B012 - as above

    return doubled if door == "sync" else adoubled


INNER = {
    "retry": lambda door: ToolRetryMiddleware(max_retries=2),
    "a person": lambda door: HumanInTheLoopMiddleware({"refund": True}, interrupt_mode="per_call"),
    "a decorated function": doubling,
}


@pytest.mark.parametrize("inner", INNER)
async def test_a_wrapper_between_ledger_and_tool_is_refused_before_anything_is_sent(shop: Bank, inner: str) -> None:
    shop.agent = agent_of(KIND, shop, once(THREE[0]), [refund_of(shop.remote)], after=[INNER[inner](shop.door)])
    with pytest.raises(ContractError, match="listed after ActionMiddleware"):
        await shop.run("please")
    assert shop.remote.count() == 0
    assert states(shop.ledger.url) == []


async def test_a_wrapper_that_is_allowed_inside_runs_no_body_twice_in_one_attempt(shop: Bank) -> None:
    tools, after = [plain_refund(shop.remote)], [doubling(shop.door)]
    shop.agent = agent_of(KIND, shop, once(*THREE), tools, whose=PLAIN, after=after)
    await shop.run("please", thread_id="plain")
    assert shop.remote.count() == 6
    tools = [refund_of(shop.remote)]
    shop.agent = agent_of(KIND, shop, once(*THREE), tools, after=after, allow_inner=True)
    messages = (await shop.run("please"))["messages"]
    assert [message.artifact["code"] for message in told(messages)] == ["succeeded"] * 3
    assert shop.remote.count() == 9


async def test_an_inner_wrapper_that_answers_by_itself_carries_nothing_out(shop: Bank) -> None:
    @wrapper
    def made_up(request: Any, handler: Any) -> Any:
        return ToolMessage("done!", tool_call_id=request.tool_call["id"])

    @wrapper
    async def amade_up(request: Any, handler: Any) -> Any:
        return ToolMessage("done!", tool_call_id=request.tool_call["id"])

    after = [made_up if shop.door == "sync" else amade_up]
    shop.agent = agent_of(KIND, shop, once(THREE[0]), [refund_of(shop.remote)], after=after, allow_inner=True)
    await shop.run("please")
    assert await shop.codes() == ["rejected"]
    assert "done!" not in str(told(await shop.messages())[0].content)
    assert shop.remote.count() == 0


class ToTheTools(AgentMiddleware[Any, Any, Any]):
    """Jumps to the tools node once, as LangChain documents it."""

    @hook_config(can_jump_to=["tools"])
    def after_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        called = getattr(state["messages"][-1], "tool_calls", None) or isinstance(state["messages"][-1], ToolMessage)
        return {"jump_to": "tools"} if called else None


@pytest.mark.parametrize("whose", [PLAIN, OURS])
async def test_a_call_that_another_gate_rejected_does_not_run_by_another_way(shop: Bank, whose: str) -> None:
    """langchain#40492: a jump past the filter runs the rejected call. Ours runs no call that has its answer."""
    gate = HumanInTheLoopMiddleware({"refund": True})
    tools = [refund_of(shop.remote) if whose == OURS else plain_refund(shop.remote)]
    # hooks after the model run from the last to the first: the gate, then the jump
    shop.agent = agent_of(KIND, shop, once(THREE[0]), tools, whose=whose, before=[ToTheTools(), gate])
    await shop.run("please")
    await shop.answer({"decisions": [{"type": "reject", "message": "no"}]})
    assert shop.remote.count() == (1 if whose == PLAIN else 0)
    if whose == OURS:
        (answer,) = told(await shop.messages())
        assert answer.status == "error"


async def test_two_calls_that_wait_in_one_task_are_both_asked(shop: Bank) -> None:
    """A jump to the tools runs all calls of a message in one task, in threads that come in any order. LangGraph may
    lose an answer when a sibling asks at the same instant (a coroutine is left behind); then it is asked again.
    """
    mail = call("mail", "m", to="ben")
    shop.agent = agent_of(KIND, shop, once(PAY, mail), tools_that_ask(shop.remote, always), before=[ToTheTools()])
    wanted = {"pay": {"type": "approve"}, "mail": {"type": "reject"}}
    result = await shop.run("please")
    for _ in range(10):
        if not result.get("__interrupt__"):
            break
        (asked,) = result["__interrupt__"]
        result = await shop.answer({asked.id: wanted[asked.value["name"]]})
    assert_all_answered(result["messages"])
    assert [one.artifact["state"] for one in told(result["messages"])] == ["succeeded", "cancelled"]
    assert shop.remote.count() == 1


async def test_a_call_that_our_gate_denied_does_not_run_by_another_way(shop: Bank) -> None:
    shop.agent = agent_of(KIND, shop, once(PAY), tools_that_ask(shop.remote, always), before=[ToTheTools()])
    await shop.run("please")
    await shop.answer({"type": "reject"})
    assert await shop.codes() == ["denied"]
    assert states(shop.ledger.url) == ["cancelled"]
    assert shop.remote.count() == 0


# Replay, fork and repair


async def test_a_replay_meets_the_recorded_outcome(shop: Bank) -> None:
    for whose, expected in ((PLAIN, 2), (OURS, 3)):
        tools = [refund_of(shop.remote) if whose == OURS else plain_refund(shop.remote)]
        shop.agent = agent_of(KIND, shop, once(THREE[0]), tools, whose=whose)
        await shop.run("please", thread_id=whose)
        past = await before_tools(shop, whose)
        await replayed(shop, None, past.config)
        assert shop.remote.count() == expected
    assert told(await shop_messages(shop, OURS))[0].artifact["code"] == "succeeded"


async def before_tools(shop: Bank, thread_id: str) -> Any:
    config: Any = shop.config(thread_id)
    if shop.door == "async":
        history = [state async for state in shop.agent.aget_state_history(config)]
    else:
        history = await asyncio.to_thread(lambda: list(shop.agent.get_state_history(config)))
    return next(state for state in history if state.next == ("tools",))


async def replayed(shop: Bank, given: Any, config: Any) -> Any:
    if shop.door == "async":
        return await shop.agent.ainvoke(given, config, durability="sync")
    return await asyncio.to_thread(shop.agent.invoke, given, config, durability="sync")


async def shop_messages(shop: Bank, thread_id: str) -> Any:
    return (await shop.state(thread_id=thread_id)).values["messages"]


async def test_a_fork_with_an_edited_call_is_another_action_and_asks_anew(shop: Bank) -> None:
    shop.agent = agent_of(KIND, shop, once(PAY), tools_that_ask(shop.remote, always))
    await shop.run("please")
    await shop.answer({"type": "approve"})
    assert shop.remote.count() == 1
    past = await before_tools(shop, "t")
    said = past.values["messages"][-1]
    edited = said.model_copy(update={"tool_calls": [{**PAY, "args": {"payee": "bob", "amount": 100}}]})
    update: Any = {"messages": [edited]}
    if shop.door == "async":
        config = await shop.agent.aupdate_state(past.config, update, as_node="model")
    else:
        config = await asyncio.to_thread(shop.agent.update_state, past.config, update, "model")
    stopped = await replayed(shop, None, config)
    assert [one.value["args"]["payee"] for one in stopped["__interrupt__"]] == ["bob"]
    assert shop.remote.count() == 1


async def test_calls_that_nobody_answered_are_answered_from_the_ledger_in_their_place(shop: Bank) -> None:
    """A person is asked, and a new message comes: the plain agent shows its model calls without answers."""
    looked: list[str] = []
    tools = [*tools_that_ask(shop.remote, always), refund_of(shop.remote), looking(looked)]
    shop.agent = agent_of(KIND, shop, once(call("refund", "a", order="A1"), PAY), tools)
    await shop.run("please")
    shop.agent = agent_of(KIND, shop, once(call("look", "l", order="A1")), tools)
    messages = (await shop.run("and now?"))["messages"]
    assert_all_answered(messages)
    assert [type(message).__name__[0] for message in messages] == list("HATTHATA")
    assert [message.artifact["code"] for message in told(messages)[:2]] == ["succeeded", "waiting_for_approval"]
    assert messages == await shop.messages()
    assert shop.remote.count() == 1


async def test_a_call_that_never_began_is_said_to_have_done_nothing(shop: Bank) -> None:
    said: Any = {"messages": [HumanMessage("hi"), calling(THREE[0], call("look", "l", order="A1"))]}
    tools = [refund_of(shop.remote), looking([])]
    shop.agent = agent_of(KIND, shop, lambda messages, has_tools: AIMessage("yes"), tools)
    if shop.door == "async":
        await shop.agent.aupdate_state(shop.config(), said)
    else:
        await asyncio.to_thread(shop.agent.update_state, shop.config(), said)
    messages = (await shop.run("still there?"))["messages"]
    assert_all_answered(messages)
    assert messages == await shop.messages()
    refund, look = told(messages)
    assert refund.artifact["code"] == "unavailable"
    assert "not known" in str(look.content)


async def test_streams_have_the_tools_events_and_ours(shop: Bank) -> None:
    shop.agent = agent_of(KIND, shop, once(THREE[0]), [refund_of(shop.remote)])
    modes: list[tuple[str, Any]] = []
    given: Any = {"messages": [HumanMessage("hi")]}
    options: Any = {"stream_mode": ["custom", "tools", "updates"], "durability": "sync"}
    if shop.door == "async":
        modes = [one async for one in shop.agent.astream(given, shop.config(), **options)]
    else:
        modes = await asyncio.to_thread(lambda: list(shop.agent.stream(given, shop.config(), **options)))
    tools = [(data["event"], data["tool_call_id"]) for mode, data in modes if mode == "tools"]
    assert tools == [("tool-started", "a"), ("tool-finished", "a")]
    assert [data["settled"]["state"] for mode, data in modes if mode == "custom"] == ["running", "succeeded"]


async def test_the_typed_stream_has_the_call(shop: Bank) -> None:
    if shop.door == "async":
        pytest.skip("the same events")
    shop.agent = agent_of(KIND, shop, once(THREE[0]), [refund_of(shop.remote)])
    given: Any = {"messages": [HumanMessage("hi")]}
    run = await asyncio.to_thread(shop.agent.stream_events, given, shop.config(), version="v3")
    calls = await asyncio.to_thread(lambda: list(run.tool_calls))
    assert [(one.tool_name, one.tool_call_id) for one in calls] == [("refund", "a")]


async def test_resumed_with_a_command_it_goes_on(shop: Bank) -> None:
    shop.agent = agent_of(KIND, shop, once(PAY), tools_that_ask(shop.remote, always))
    await shop.run("please")
    await shop.run(Command(resume={"type": "approve"}))
    assert await shop.codes() == ["succeeded"]


@pytest.mark.parametrize("kind", ["create_agent", "tools node"])
async def test_two_who_resume_at_once_have_one_effect(shop: Bank, kind: str) -> None:
    """LangGraph has no lock on a thread: an approval that is delivered twice runs the plain tool twice."""
    shop.agent = agent_of(kind, shop, once(PAY), tools_that_ask(shop.remote, always))
    (asked,) = (await shop.run("please"))["__interrupt__"]
    await asyncio.gather(*(shop.answer({asked.id: {"type": "approve"}}) for _ in range(3)))
    assert shop.remote.count() == 1
    assert_all_answered(await shop.messages())
