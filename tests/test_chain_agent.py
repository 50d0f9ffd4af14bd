"""A chain as a tool of an agent: the model calls it, people decide on its steps, and it goes on where it stands."""

import asyncio
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command

from chain_shop import FORWARD, INPUT, Counter, order_chain, raising
from scripted import Bank, ScriptedModel, bank, call, calling, once
from settled import (
    ActionMiddleware,
    ActionNode,
    Approve,
    Desk,
    Edit,
    Ended,
    Happened,
    Ledger,
    Rejected,
    Session,
    always,
    build_agent,
    open_checkpointer,
)

ORDER = call("order", **INPUT)
ASKS: dict[str, Any] = {"pay": {"approval": always}}
both = pytest.mark.parametrize("door", ["sync", "async"])


def serve(at: Bank, far: Counter, script: Any = None, **options: Any) -> None:
    """Build the agent of a bank with the chain as its tool; anew, as another process would."""
    at.model = ScriptedModel(script=script or once(ORDER))
    order = order_chain(far, asynchronous=at.door == "async", **options)
    at.agent = build_agent(at.model, [order], ledger=at.ledger, checkpointer=at.saver)


async def told(at: Bank) -> ToolMessage:
    """Return the last answer that the model was given."""
    return [one for one in await at.messages() if isinstance(one, ToolMessage)][-1]


@both
async def test_the_model_calls_it_and_is_told_of_all_steps(database_url: str, door: str) -> None:
    """One answer for the whole chain, with each receipt, and a word against calling it again."""
    async with bank(door, database_url) as at:
        far = Counter()
        serve(at, far)
        reply = await at.send("please order")
        answer = await told(at)
        assert far.done == list(FORWARD)
        assert "deduct coupon (receipt R-1), pay (receipt R-2), ship (receipt R-3)" in reply.text
        assert (answer.status, answer.artifact["code"], answer.artifact["state"]) == (
            "success",
            "succeeded",
            "succeeded",
        )
        assert "do not call order again" in str(answer.content)
        assert [one["name"] for one in answer.artifact["steps"]] == ["verify_coupon", *FORWARD]


@both
async def test_the_model_calls_it_again_and_nothing_is_done(database_url: str, door: str) -> None:
    """With another tool-call id, in another turn: the same receipts."""
    async with bank(door, database_url) as at:
        far = Counter()
        serve(at, far)
        await at.send("please order", message_id="m1")
        await at.send("please order, really", message_id="m2")
        answer = await told(at)
        assert (answer.artifact["code"], far.done) == ("duplicate", list(FORWARD))
        assert "R-3" in str(answer.content)


@both
async def test_an_approval_in_the_middle_is_decided_elsewhere_and_the_chain_goes_on(
    database_url: str, door: str
) -> None:
    """The run ends with the step's approval; after the decision, in another session, only what was left is done."""
    async with bank(door, database_url) as at:
        far = Counter()
        serve(at, far, contracts=ASKS)
        reply = await at.send("please order")
        (asked,) = reply.approvals
        assert (asked["name"], asked["args"], far.done) == ("pay", {"order": "O-1"}, ["deduct_coupon"])
        Desk(at.ledger).decide(asked["action_id"], Approve(), by="mia", fingerprint=asked["fingerprint"])
        serve(at, far, contracts=ASKS)
        end = await at.resume()
        assert far.done == list(FORWARD)
        assert "ship (receipt R-3)" in end.text
        assert await at.codes() == ["succeeded"]


@both
async def test_an_interrupt_is_answered_and_carries_the_chain_on(database_url: str, door: str) -> None:
    """As any action's: `Command(resume={"decisions": [...]})`, with two steps that ask one after the other."""
    async with bank(door, database_url) as at:
        far = Counter()
        serve(at, far, contracts={**ASKS, "ship": {"approval": always}})
        await at.run("please order")
        for tool in ("pay", "ship"):
            (payload,) = await at.asked()
            assert [one["name"] for one in payload["action_requests"]] == [tool]
            await at.answer({"decisions": [{"type": "approve"}]}, approver="mia")
        assert (far.done, await at.codes()) == (list(FORWARD), ["succeeded"])


@both
async def test_a_person_edits_a_step_and_the_chain_goes_on_as_he_said(database_url: str, door: str) -> None:
    """The changed payment is the one that is made; the original never is, and the step is the changed one's."""
    async with bank(door, database_url) as at:
        far = Counter()
        serve(at, far, contracts=ASKS)
        await at.run("please order")
        edited = {"name": "pay", "args": {"order": "O-1b"}}
        await at.answer({"decisions": [{"type": "edit", "edited_action": edited}]}, approver="mia")
        (payload,) = await at.asked()  # its policy asks about the changed one too
        assert payload["action_requests"][0]["args"] == {"order": "O-1b"}
        await at.answer({"decisions": [{"type": "approve"}]}, approver="mia")
        paid = [effect["order"] for effect in far.effects if effect["what"] == "pay"]
        assert (far.done, paid, await at.codes()) == (list(FORWARD), ["O-1b"], ["succeeded"])


@both
async def test_a_step_that_a_person_denies_stops_or_turns_the_chain(database_url: str, door: str) -> None:
    """Denied is failed for good: here what was done before is undone, and the model is told so."""
    async with bank(door, database_url) as at:
        far = Counter()
        serve(at, far, contracts=ASKS, on_failure="compensate")
        await at.run("please order")
        await at.answer({"decisions": [{"type": "reject", "message": "not this month"}]}, approver="mia")
        answer = await told(at)
        assert far.done == ["deduct_coupon", "give_back"]
        assert (answer.artifact["state"], answer.artifact["code"]) == ("compensated", "denied")
        assert "has been undone: deduct coupon (receipt R-1)" in str(answer.content)


@both
async def test_what_was_unknown_is_told_when_it_is_known(database_url: str, door: str) -> None:
    """The turn ends with a step that a person has to look at; once he has, the rest is done and the user hears it."""
    async with bank(door, database_url) as at:
        far = Counter(faults={"pay, answered": raising(TimeoutError())})
        serve(at, far, contracts={"pay": {"query": None, "remote": "opaque"}})
        reply = await at.send("please order", message_id="m1")
        assert "a person has to check it" in reply.text
        assert (await told(at)).artifact["code"] == "manual_review"
        (pay,) = at.ledger.actions(states=["unknown"])
        Desk(at.ledger).resolve(pay.id, Happened("R-77"), by="mia", fingerprint=pay.fingerprint)
        await at.resume()
        assert (far.done, await at.codes()) == (list(FORWARD), ["succeeded"])
        late = [one for one in await at.messages() if isinstance(one, AIMessage)][-1]
        assert "pay (receipt R-77)" in str(late.content)


@both
async def test_what_a_person_did_by_hand_is_told_when_the_conversation_goes_on(database_url: str, door: str) -> None:
    """The chain had stopped; a person's word lets it go on with the next visit, and the user hears of it."""
    from settled.tools.chain_desk import ChainDesk

    async with bank(door, database_url) as at:
        far = Counter(faults={"pay": raising(Ended(Rejected("card declined")))})
        serve(at, far)
        await at.send("please order", message_id="m1")
        answer = await told(at)
        assert (answer.artifact["code"], answer.artifact["state"]) == ("manual_review", "stopped")
        await at.resume()
        assert (await told(at)).content == answer.content
        ChainDesk(at.ledger).finish(answer.artifact["chain_id"], "pay", by="mia", receipt="CASH-7")
        await at.resume()
        late = [one for one in await at.messages() if isinstance(one, AIMessage)][-1]
        assert "pay (receipt CASH-7), ship (receipt R-2)" in str(late.content)
        assert (far.done, await at.codes()) == (["deduct_coupon", "ship"], ["succeeded"])


@both
async def test_a_message_that_comes_while_it_waits_keeps_the_approval(database_url: str, door: str) -> None:
    """The answer that the waiting call gets says of the chain what is done and what waits; later it goes on."""
    async with bank(door, database_url) as at:
        far = Counter()

        def script(messages: Any, has_tools: bool) -> AIMessage:
            said = [one for one in messages if isinstance(one, HumanMessage)][-1].text
            return calling(ORDER) if said == "please order" and messages[-1].type == "human" else AIMessage("well")

        serve(at, far, script, contracts=ASKS)
        asked = (await at.send("please order", message_id="m1")).approvals[0]
        await at.send("how are you?", message_id="m2")
        answer = await told(at)
        assert (answer.artifact["code"], "deduct coupon (receipt R-1)" in str(answer.content)) == (
            "waiting_for_approval",
            True,
        )
        assert (answer.artifact["chain_id"][:4], far.done) == ("chn-", ["deduct_coupon"])
        Desk(at.ledger).decide(asked["action_id"], Approve(), by="mia", fingerprint=asked["fingerprint"])
        await at.resume()
        assert (far.done, (await told(at)).artifact["code"]) == (list(FORWARD), "succeeded")


def test_bad_arguments_of_the_model_are_answered_with_field_and_rule(ledger: Ledger) -> None:
    """Nothing begins; a corrected call is invited, and works."""
    calls = iter([calling(call("order", "c1", coupon="C-1")), calling(call("order", "c2", **INPUT)), AIMessage("done")])
    far = Counter()
    agent = build_agent(ScriptedModel(script=lambda *_: next(calls)), [order_chain(far)], ledger=ledger)
    end = agent.invoke({"messages": [HumanMessage("order")]}, {"configurable": {"thread_id": "t"}})
    first, second = (one for one in end["messages"] if isinstance(one, ToolMessage))
    assert (first.artifact["code"], first.artifact["may_retry"]) == ("invalid", True)
    assert (second.artifact["code"], far.done) == ("succeeded", list(FORWARD))


def test_the_steps_are_no_tools_of_the_model(ledger: Ledger) -> None:
    """A model that calls a step by itself is told that there is no such tool: nothing is paid."""
    far = Counter()
    agent = build_agent(ScriptedModel(script=once(call("pay", order="O-1"))), [order_chain(far)], ledger=ledger)
    end = agent.invoke({"messages": [HumanMessage("pay")]}, {"configurable": {"thread_id": "t"}})
    (answer,) = (one for one in end["messages"] if isinstance(one, ToolMessage))
    assert (answer.artifact["code"], far.done) == ("invalid", [])
    assert "the tools are: order" in str(answer.content)


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def node_graph(model: Any, tool: Any, ledger: Ledger, saver: Any) -> Any:
    """A graph of somebody else's with an ActionNode."""
    graph = StateGraph(Chat)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ActionNode([tool], ledger=ledger))
    graph.add_edge(START, "model")
    graph.add_conditional_edges(
        "model", lambda state: "tools" if state["messages"][-1].tool_calls else END, ["tools", END]
    )
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=saver)


@pytest.mark.parametrize("kind", ["create_agent", "ActionNode"])
def test_through_the_other_doors(ledger: Ledger, kind: str) -> None:
    """Its tool in `create_agent` and in an `ActionNode`: a step asks by the call's own interrupt, and goes on."""
    from langchain.agents import create_agent

    far, model = Counter(), ScriptedModel(script=once(ORDER))
    order = order_chain(far, contracts=ASKS)
    with open_checkpointer(ledger) as saver:
        if kind == "ActionNode":
            agent: Any = node_graph(model, order.tool, ledger, saver)
        else:
            agent = create_agent(model, [order.tool], middleware=[ActionMiddleware(ledger=ledger)], checkpointer=saver)
        session = Session(agent, ledger=ledger, thread_id="t")
        (asked,) = session.send("please order").approvals
        assert (asked["name"], far.done) == ("pay", ["deduct_coupon"])
        reply = session.decide(asked["action_id"], Approve(), by="mia", fingerprint=asked["fingerprint"])
        assert (far.done, "ship (receipt R-3)" in reply.text) == (list(FORWARD), True)


async def test_two_calls_in_one_message_are_one_run(database_url: str) -> None:
    """A model that calls the chain twice at once: each step once, and both calls are answered."""
    async with bank("async", database_url) as at:
        far = Counter()
        both_calls = once(call("order", "c1", **INPUT), call("order", "c2", **INPUT))
        serve(at, far, both_calls)
        await at.send("please order")
        assert far.done == list(FORWARD)
        answers = [one for one in await at.messages() if isinstance(one, ToolMessage)]
        assert {str(one.artifact["chain_id"]) for one in answers} == {answers[0].artifact["chain_id"]}


async def test_a_chain_graph_by_itself_interrupts_and_is_resumed_by_another_process(database_url: str) -> None:
    """With a checkpointer the chain's own graph asks; malformed answers ask again; a decision carries it on."""
    far = Counter()
    config: Any = {"configurable": {"thread_id": "t", "approver": "mia"}}
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        graph = order_chain(far, contracts=ASKS).graph(ledger, checkpointer=saver)
        stands = await asyncio.to_thread(graph.invoke, {"input": INPUT}, config)
        (interrupt,) = stands["__interrupt__"]
        assert interrupt.value["action_requests"][0]["name"] == "pay"
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        graph = order_chain(far, contracts=ASKS).graph(ledger, checkpointer=saver)
        again = await asyncio.to_thread(graph.invoke, Command(resume="yes please"), config)
        (interrupt,) = again["__interrupt__"]
        assert "an answer is" in interrupt.value["problem"]
        end = await asyncio.to_thread(graph.invoke, Command(resume={"decisions": [{"type": "approve"}]}), config)
        assert (end["outcome"]["state"], far.done) == ("succeeded", list(FORWARD))
        assert graph.get_state(config).next == ()


def test_an_edit_at_the_desk_needs_the_tool_of_the_step(ledger: Ledger) -> None:
    """The desk edits a step's action as any other; the next run follows to the changed one."""
    from chain_shop import shop_tools

    far = Counter()
    order = order_chain(far, contracts=ASKS)
    waits = order.run(INPUT, ledger=ledger, thread_id="t")
    desk = Desk(ledger, tools=list(shop_tools(far, contracts=ASKS).values()))
    action_id, fingerprint = waits.artifact["action_id"], str(waits.fingerprint)
    changed = desk.decide(action_id, Edit({"order": "O-1b"}), by="mia", fingerprint=fingerprint)
    asked_again = order.run(INPUT, ledger=ledger, thread_id="t")
    assert (asked_again.state, asked_again.artifact["action_id"]) == ("waiting", changed.id)
    desk.decide(changed.id, Approve(), by="mia", fingerprint=changed.fingerprint)
    end = order.run(INPUT, ledger=ledger, thread_id="t")
    assert (end.state, end["pay"].action_id, far.done) == ("succeeded", changed.id, list(FORWARD))


def test_a_failed_chain_is_no_invitation(ledger: Ledger) -> None:
    """Stopped after effects: no error status, no retry, and what is in effect is named."""
    far = Counter(faults={"ship": raising(Ended(Rejected("no stock")))})
    agent = build_agent(ScriptedModel(script=once(ORDER)), [order_chain(far)], ledger=ledger)
    end = agent.invoke({"messages": [HumanMessage("order")]}, {"configurable": {"thread_id": "t"}})
    (answer,) = (one for one in end["messages"] if isinstance(one, ToolMessage))
    assert (answer.status, answer.artifact["may_retry"], answer.artifact["code"]) == ("success", False, "manual_review")
    for word in ("R-1", "R-2", "no stock", "do not call order again"):
        assert word in str(answer.content)
    for word in ("error", "failed", "try again"):
        assert word not in str(answer.content).lower()
