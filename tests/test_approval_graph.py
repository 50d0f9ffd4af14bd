"""A person decides through LangGraph's own `Command(resume=...)`: one interrupt for all that waits, and what an answer
does not say is not done.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Annotated, Any

import pytest
from cryptography.fernet import Fernet
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.graph import START, StateGraph
from langgraph.types import Command

from acts import rows, states
from scripted import Bank, Remote, Script, ScriptedModel, bank, call, calling, once
from settled import (
    Approve,
    Desk,
    Ledger,
    Reject,
    Secret,
    action,
    always,
    build_agent,
    current_action,
    open_checkpointer,
    over,
)
from settled.graph.channel import Talk

PAY = call("pay", "p", payee="ann", amount=100)
MAIL = call("mail", "m", to="ben")
LOOK = call("look", "l", payee="ann")


@pytest.fixture(params=["sync", "async"])
async def shop(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Bank]:
    async with bank(request.param, database_url) as opened:
        yield opened


def kinds(messages: Sequence[BaseMessage]) -> str:
    return "".join(type(message).__name__[0] for message in messages)


async def paused(shop: Bank, *calls: dict[str, Any], approval: Any = always, **options: Any) -> dict[str, Any]:
    """Run a turn up to its question, and return the payload."""
    shop.serve(once(*calls), approval, **options)
    result = await shop.run("please")
    (interrupt,) = result["__interrupt__"]
    payload: dict[str, Any] = interrupt.value
    return payload


async def test_the_payload_is_langchains_with_our_names_beside(shop: Bank) -> None:
    payload = await paused(shop, PAY, MAIL, LOOK)
    pay, mail = payload["action_requests"]
    assert (pay["name"], pay["args"]) == ("pay", {"payee": "ann", "amount": 100.0})
    assert pay["description"].startswith("payment of 100.0 to ann")
    assert mail["name"] == "mail"
    assert payload["review_configs"] == [
        {"action_name": name, "allowed_decisions": ["approve", "edit", "reject"]} for name in ("pay", "mail")
    ]
    planned = {action.id: action for action in shop.ledger.actions()}
    assert [planned[one["action_id"]].fingerprint for one in (pay, mail)] == [pay["fingerprint"], mail["fingerprint"]]
    assert all(one["expires_at"] for one in (pay, mail))
    assert "action_request" not in payload
    assert await shop.codes() == ["succeeded"]
    assert shop.remote.count() == 0


async def test_one_call_has_the_older_keys_too(shop: Bank) -> None:
    payload = await paused(shop, PAY)
    assert payload["action_request"] == {"action": "pay", "args": {"payee": "ann", "amount": 100.0}}
    assert payload["config"]["allow_accept"]
    (interrupt,) = (await shop.state()).interrupts
    assert interrupt.response_schema["required"] == ["decisions"]


@pytest.mark.parametrize(
    "answer",
    [
        {"decisions": [{"type": "approve"}]},
        {"type": "approve"},
        [{"type": "accept", "args": None}],
        [{"type": "accept", "args": {"action": "pay", "args": {"payee": "ann", "amount": 100.0}}}],
        [{"type": "approve", "message": "fine"}],
    ],
)
async def test_every_form_of_a_yes_runs_it_once(shop: Bank, answer: Any) -> None:
    await paused(shop, PAY)
    await shop.answer(answer)
    assert await shop.codes() == ["succeeded"]
    assert kinds(await shop.messages()) == "HATA"
    assert shop.remote.count() == 1
    assert (await shop.state()).values["waiting"] == []


@pytest.mark.parametrize(
    "answer",
    [
        {"decisions": [{"type": "reject", "message": "too much"}]},
        {"type": "reject", "message": "too much"},
        {"decisions": [{"type": "respond", "message": "too much"}]},
        [{"type": "response", "args": "too much"}],
    ],
)
async def test_every_form_of_a_no_tells_the_model_why(shop: Bank, answer: Any) -> None:
    await paused(shop, PAY)
    await shop.answer(answer)
    assert await shop.codes() == ["denied"]
    assert "too much" in str((await shop.messages())[2].content)
    assert shop.remote.count() == 0


async def test_ignoring_is_a_no_without_words(shop: Bank) -> None:
    await paused(shop, PAY)
    await shop.answer([{"type": "ignore", "args": None}])
    assert await shop.codes() == ["denied"]


SMALLER = {"payee": "ann", "amount": 40}


@pytest.mark.parametrize(
    "answer",
    [
        {"decisions": [{"type": "edit", "edited_action": {"name": "pay", "args": SMALLER}}]},
        {"type": "edit", "edited_action": {"name": "pay", "args": SMALLER}},
        [{"type": "edit", "args": {"action": "pay", "args": SMALLER}}],
    ],
)
async def test_every_form_of_an_edit_makes_a_new_action(shop: Bank, answer: Any) -> None:
    payload = await paused(shop, PAY, approval=over("amount", 50))
    await shop.answer(answer)
    assert await shop.codes() == ["changed_by_person"]
    told = (await shop.messages())[2]
    assert isinstance(told, ToolMessage)
    assert told.artifact["outcome"] == "succeeded"
    assert told.artifact["supersedes"] == payload["action_requests"][0]["action_id"]
    assert shop.remote.count() == 1
    assert states(shop.ledger.url) == ["cancelled", "succeeded"]


async def test_an_edit_that_its_policy_asks_about_is_asked_for(shop: Bank) -> None:
    """The first yes was never given, and an edit is no yes to what it changes the action into."""
    first = await paused(shop, PAY)
    await shop.answer({"type": "edit", "edited_action": {"name": "pay", "args": SMALLER}})
    assert shop.remote.count() == 0
    (second,) = await shop.asked()
    (request,) = second["action_requests"]
    assert request["args"] == {"payee": "ann", "amount": 40.0}
    assert request["action_id"] != first["action_requests"][0]["action_id"]
    assert "problem" not in second
    await shop.answer({"type": "approve"})
    assert await shop.codes() == ["changed_by_person"]
    assert shop.remote.count() == 1


MALFORMED: list[Any] = [
    {"decisions": []},
    {"decisions": [{"type": "approve"}]},
    {"decisions": [{"type": "approve"}] * 3},
    {"decisions": "approve"},
    {"decisions": {"type": "approve"}},
    {"decisions": [{"type": "approve"}, {"type": "expired"}]},
    {"decisions": [{"type": "approve"}, {"type": ["approve"]}]},
    {"decisions": [{"type": "approve"}, "approve"]},
    {"decisions": [{"type": "approve"}, None]},
    {"decisions": [{"type": "approve"}, {"type": "approve", "edited_action": {"name": "mail", "args": {"to": "eve"}}}]},
    {"decisions": [{"type": "approve"}, {"type": "approve", "by": "eve"}]},
    {"decisions": [{"type": "approve"}, {"type": "approve"}], "by": "eve"},
    {"decisions": [{"type": "approve"}, {"type": "edit", "edited_action": {"name": "pay", "args": {"to": "eve"}}}]},
    {"decisions": [{"type": "approve"}, {"type": "edit", "edited_action": {"name": "mail"}}]},
    {"decisions": [{"type": "approve"}, {"type": "edit", "edited_action": {"name": "mail", "args": ["eve"]}}]},
    {"decisions": [{"type": "approve"}, {"type": "edit"}]},
    {"decisions": [{"type": "approve"}, {"type": "reject", "message": 7}]},
    {"decisions": [{"type": "approve"}, {"type": "approve", "fingerprint": "sha256:" + "0" * 64}]},
    {"decisions": [{"type": "approve"}, {"type": "approve", "action_id": "act-0000000000000000"}]},
    {"type": "approve"},
    [],
    [{"type": "accept"}],
    [{"type": "accept"}, {"type": "accept", "args": {"action": "mail", "args": {"to": "eve"}}}],
    "approve",
    "",
    0,
    7,
    False,
    True,
    {"junk": "x"},
    {"approve": True},
    [[{"type": "approve"}, {"type": "approve"}]],
]


@pytest.mark.parametrize("answer", MALFORMED, ids=str)
async def test_a_malformed_answer_does_nothing_and_is_asked_for_again(database_url: str, answer: Any) -> None:
    """Nothing of it is taken, whatever else it says; the next question says why, and takes a good answer."""
    async with bank("sync", database_url) as shop:
        await paused(shop, PAY, MAIL)
        await shop.answer(answer)
        assert states(database_url) == ["planned", "planned"]
        (asked,) = await shop.asked()
        assert len(asked["action_requests"]) == 2
        assert asked["problem"]
        await shop.answer({"decisions": [{"type": "approve"}, {"type": "reject"}]})
        assert await shop.codes() == ["succeeded", "denied"]
        assert shop.remote.count() == 1


async def test_a_malformed_answer_in_an_event_loop(shop: Bank) -> None:
    await paused(shop, PAY)
    for junk in ("yes", [], {"decisions": []}, {"decisions": [{"type": "approve"}] * 2}):
        await shop.answer(junk)
        assert shop.remote.count() == 0
    await shop.answer({"type": "approve"})
    assert await shop.codes() == ["succeeded"]


@pytest.mark.parametrize(
    "args", [{"payee": "ann", "amount": "much"}, {"payee": "ann", "amount": 1, "currency": "EUR"}, {"amount": None}]
)
async def test_an_edit_that_breaks_a_rule_is_asked_for_again(shop: Bank, args: dict[str, Any]) -> None:
    await paused(shop, PAY, MAIL)
    edit = {"type": "edit", "edited_action": {"name": "pay", "args": args}}
    await shop.answer({"decisions": [edit, {"type": "approve"}]})
    assert shop.remote.count() == 1
    (asked,) = await shop.asked()
    assert [one["name"] for one in asked["action_requests"]] == ["pay"]
    assert asked["problem"].startswith("pay: ")
    await shop.answer({"type": "approve"})
    assert sorted(await shop.codes()) == ["succeeded", "succeeded"]
    assert shop.remote.count() == 2


async def test_an_edit_that_changes_nothing_is_no_yes(shop: Bank) -> None:
    await paused(shop, PAY)
    await shop.answer({"type": "edit", "edited_action": {"name": "pay", "args": dict(PAY["args"])}})
    assert shop.remote.count() == 0
    (asked,) = await shop.asked()
    assert "problem" in asked


async def test_an_answer_by_the_interrupts_id_works_once(shop: Bank) -> None:
    """The same answer again finds no question."""
    await paused(shop, PAY)
    (interrupt,) = (await shop.state()).interrupts
    for _ in range(2):
        await shop.answer({interrupt.id: {"type": "approve"}})
    assert await shop.codes() == ["succeeded"]
    assert kinds(await shop.messages()) == "HATA"
    assert shop.remote.count() == 1


async def test_a_second_answer_to_a_finished_thread_does_nothing(shop: Bank) -> None:
    await paused(shop, PAY)
    for _ in range(3):
        await shop.answer({"decisions": [{"type": "approve"}]})
    assert kinds(await shop.messages()) == "HATA"
    assert shop.remote.count() == 1


async def test_an_answer_for_an_unknown_id_decides_nothing(shop: Bank) -> None:
    await paused(shop, PAY)
    await shop.answer({"f" * 32: {"type": "approve"}})
    assert states(shop.ledger.url) == ["planned"]
    assert len(await shop.asked()) == 1
    await shop.answer({"type": "approve"})
    assert shop.remote.count() == 1


async def test_an_old_answer_by_id_is_not_taken_for_the_next_question(shop: Bank) -> None:
    """A second question has an id of its own."""
    await paused(shop, PAY)
    (first,) = (await shop.state()).interrupts
    await shop.answer({first.id: {"type": "edit", "edited_action": {"name": "pay", "args": SMALLER}}})
    await shop.answer({first.id: {"type": "approve"}})
    assert shop.remote.count() == 0
    (second,) = (await shop.state()).interrupts
    assert second.id != first.id
    await shop.answer({second.id: {"type": "approve"}})
    assert shop.remote.count() == 1


async def test_one_yes_and_one_no_are_both_answered_in_order(shop: Bank) -> None:
    await paused(shop, PAY, MAIL)
    await shop.answer({"decisions": [{"type": "reject"}, {"type": "approve"}]})
    assert await shop.codes() == ["denied", "succeeded"]
    assert kinds(await shop.messages()) == "HATTA"
    assert shop.remote.count() == 1


async def test_answers_stand_in_the_order_of_the_calls(shop: Bank) -> None:
    """Also where one waits longer than those after it."""
    calls = [PAY, call("pay", "q", payee="ben", amount=5), MAIL, call("look", "l", payee="cas")]
    await paused(shop, *calls, approval=over("amount", 50))
    assert [m.tool_call_id for m in await shop.messages() if isinstance(m, ToolMessage)] == ["q", "l"]
    for one in reversed(Desk(shop.ledger).approvals()):
        await Desk(shop.ledger).adecide(one.action_id, Approve(), by="sam", fingerprint=one.fingerprint)
        await shop.run(None)
    await shop.ledger.aclose()
    assert [m.tool_call_id for m in await shop.messages() if isinstance(m, ToolMessage)] == ["p", "q", "m", "l"]
    assert kinds(await shop.messages()) == "HATTTTA"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
async def test_the_desk_decides_some_of_it_in_any_order(shop: Bank, order: Sequence[int]) -> None:
    """What is decided goes on; the rest is asked for again, by a question that shows no more than the rest."""
    payload = await paused(shop, PAY, MAIL, call("mail", "n", to="cas"))
    desk = Desk(shop.ledger)
    requests = payload["action_requests"]
    for done, number in enumerate(order, 1):
        one = requests[number]
        await desk.adecide(one["action_id"], Approve(), by="sam", fingerprint=one["fingerprint"])
        await shop.run(None)
        assert shop.remote.count() == done
        left = [one["action_id"] for n, one in enumerate(requests) if n not in order[:done]]
        shown = [one["action_id"] for asked in await shop.asked() for one in asked["action_requests"]]
        assert shown == left
    await shop.ledger.aclose()
    assert await shop.codes() == ["succeeded"] * 3


async def test_an_answer_that_comes_after_another_decision_keeps_the_first(shop: Bank) -> None:
    """It is read by what was shown, and what was decided meanwhile stands."""
    payload = await paused(shop, PAY, MAIL)
    pay = payload["action_requests"][0]
    await Desk(shop.ledger).adecide(pay["action_id"], Reject("no"), by="sam", fingerprint=pay["fingerprint"])
    await shop.answer({"decisions": [{"type": "approve"}, {"type": "approve"}]})
    await shop.ledger.aclose()
    assert await shop.codes() == ["denied", "succeeded"]
    assert shop.remote.count() == 1


async def test_two_equal_calls_are_one_request(shop: Bank) -> None:
    payload = await paused(shop, PAY, {**PAY, "id": "q"})
    assert len(payload["action_requests"]) == 1
    await shop.answer({"type": "approve"})
    assert shop.remote.count() == 1
    assert kinds(await shop.messages()) == "HATTA"
    told = [m for m in await shop.messages() if isinstance(m, ToolMessage)]
    assert {message.artifact["receipt"] for message in told} == {"R-1"}


async def test_three_of_three_from_threads(shop: Bank) -> None:
    """One answer for three calls, each in a task of its own."""
    await paused(shop, PAY, MAIL, call("mail", "n", to="cas"))
    await shop.answer({"decisions": [{"type": "approve"}] * 3})
    assert await shop.codes() == ["succeeded"] * 3
    assert shop.remote.count() == 3


def reworded() -> Script:
    """A model that says something else each time it is asked."""
    amounts = iter(range(100, 200))

    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        if isinstance(messages[-1], HumanMessage):
            return calling(call("pay", payee="ann", amount=next(amounts)))
        return AIMessage("done")

    return script


async def test_the_model_is_not_asked_again_while_it_waits(shop: Bank) -> None:
    """So one that would answer differently on a second pass changes nothing of what was approved."""
    shop.serve(reworded(), always)
    await shop.run("please")
    await shop.run(None)
    await shop.answer("junk")
    await shop.answer({"type": "approve"})
    assert len(shop.model._shown) == 2
    assert await shop.codes() == ["succeeded"]
    (action,) = shop.ledger.actions()
    assert action.arguments["amount"] == 100


async def test_a_fork_with_edited_arguments_asks_again(shop: Bank) -> None:
    """Approving 100 never approves 180, whatever is done to the conversation."""
    await paused(shop, PAY)
    at_the_pause = (await shop.state()).config
    await shop.answer({"type": "approve"})
    assert shop.remote.count() == 1
    said = (await shop.messages())[1]
    edited = AIMessage("", id=said.id, tool_calls=[{**PAY, "args": {"payee": "ann", "amount": 180}}])
    update = {"messages": [edited]}
    if shop.door == "async":
        fork = await shop.agent.aupdate_state(at_the_pause, update, as_node="model")
        result = await shop.agent.ainvoke(None, fork)
    else:
        fork = shop.agent.update_state(at_the_pause, update, as_node="model")
        result = shop.agent.invoke(None, fork)
    (interrupt,) = result["__interrupt__"]
    (request,) = interrupt.value["action_requests"]
    assert request["args"]["amount"] == 180
    assert shop.remote.count() == 1
    await shop.answer({"type": "reject"})
    assert shop.remote.count() == 1
    assert await shop.codes() == ["denied"]


async def test_a_replay_from_the_pause_pays_nothing_again(shop: Bank) -> None:
    await paused(shop, PAY)
    at_the_pause = (await shop.state()).config
    await shop.answer({"type": "approve"})
    if shop.door == "async":
        await shop.agent.ainvoke(None, at_the_pause)
    else:
        shop.agent.invoke(None, at_the_pause)
    assert shop.remote.count() == 1
    assert await shop.codes() == ["succeeded"]


async def test_four_eyes_keeps_the_requester_from_his_own_request(shop: Bank) -> None:
    """Who answers stands in the configuration of the run, and not in the answer; without it, it is the requester."""
    shop.serve(once(PAY), always(approvers=("supervisor",), four_eyes=True))
    await shop.send("please", requester="eve")
    refused: list[dict[str, Any]] = [
        {},
        {"approver": "eve", "approver_roles": ["supervisor"]},
        {"approver": " Eve ", "approver_roles": ["supervisor"]},
        {"approver": "sue", "approver_roles": ["clerk"]},
        {"approver": "policy", "approver_roles": ["supervisor"]},
        {"approver": 7},
    ]
    for who in refused:
        await shop.answer({"type": "approve"}, **who)
        (asked,) = await shop.asked()
        assert asked["problem"]
        assert states(shop.ledger.url) == ["planned"]
    await shop.answer({"type": "approve"}, approver="sue", approver_roles=["supervisor"])
    assert shop.remote.count() == 1
    (action,) = shop.ledger.actions()
    assert action.approver == "sue"


async def test_a_role_may_decide(shop: Bank) -> None:
    await paused(shop, PAY, approval=always(approvers=("supervisor",)))
    await shop.answer({"type": "approve"}, approver="sue", approver_roles=["supervisor"])
    assert shop.remote.count() == 1
    (action,) = shop.ledger.actions()
    assert action.approver == "sue"


async def test_an_approval_that_expires_while_it_waits_runs_nothing(shop: Bank) -> None:
    await paused(shop, PAY, approval=always(ttl=timedelta(seconds=0.5)))
    await asyncio.sleep(0.7)
    await shop.answer({"type": "approve"})
    assert await shop.codes() == ["expired"]
    assert kinds(await shop.messages()) == "HATA"
    assert shop.remote.count() == 0


async def test_without_a_checkpointer_the_model_is_told_that_it_waits(shop: Bank) -> None:
    shop.serve(once(PAY), always, checkpointer=None)
    message: Any = {"messages": [HumanMessage("please")]}
    if shop.door == "async":
        result = await shop.agent.ainvoke(message, shop.config())
    else:
        result = shop.agent.invoke(message, shop.config())
    assert "__interrupt__" not in result
    assert [m.artifact["code"] for m in result["messages"] if isinstance(m, ToolMessage)] == ["waiting_for_approval"]
    assert set(result) == {"messages"}
    assert shop.remote.count() == 0


async def test_a_new_message_without_a_session_finds_no_call_without_an_answer(shop: Bank) -> None:
    """The request stays open; the model hears that it waits, before the new message."""
    await paused(shop, PAY)
    await shop.run("and now?")
    messages = await shop.messages()
    assert kinds(messages)[:4] == "HATH"
    assert (await shop.codes())[0] == "waiting_for_approval"
    assert messages[3].text == "and now?"
    assert kinds(shop.model._shown[-1]) == "HATH"
    (asked,) = await shop.asked()
    await shop.answer({"type": "approve"})
    assert shop.remote.count() == 1
    assert asked["action_requests"]


async def test_secrets_are_not_shown(database_url: str) -> None:
    """Neither in the payload nor in the thread's state beyond what the model itself has said."""
    remote = Remote(database_url)

    @action(risk="non_idempotent_write", identity=("payee",), approval=always)
    def pay(payee: str, amount: int, pin: Annotated[str, Secret()]) -> dict[str, Any]:
        """Pay."""
        return remote.act(current_action().idempotency_key, pin=pin, amount=amount)

    key = Fernet.generate_key().decode()
    with Ledger.connect(database_url, secret_key=key) as ledger, open_checkpointer(ledger) as saver:
        model = ScriptedModel(script=once(call("pay", payee="ann", amount=5, pin="4711")))
        agent = build_agent(model, [pay], ledger=ledger, checkpointer=saver)
        config: Any = {"configurable": {"thread_id": "t"}}
        (interrupt,) = agent.invoke({"messages": [HumanMessage("go")]}, config)["__interrupt__"]
        assert "4711" not in str(interrupt.value)
        shown = dict(interrupt.value["action_requests"][0]["args"])
        edit = {"type": "edit", "edited_action": {"name": "pay", "args": {**shown, "amount": 4}}}
        agent.invoke(Command(resume=edit), config)
        agent.invoke(Command(resume={"type": "approve"}), config)
    assert remote.count() == 1
    assert '"pin": "4711"' in rows(database_url, "SELECT detail FROM effects")[0]["detail"]
    assert '"amount": 4' in rows(database_url, "SELECT detail FROM effects")[0]["detail"]


async def test_an_agent_inside_another_graph_asks_at_the_root(shop: Bank) -> None:
    """As a subgraph it inherits the checkpointer, and its question is answered from outside."""
    shop.serve(once(PAY), always, checkpointer=None)
    outer = StateGraph(Talk)
    outer.add_node("agent", shop.agent)
    outer.add_edge(START, "agent")
    shop.agent = outer.compile(checkpointer=shop.saver)
    result = await shop.run("please")
    (interrupt,) = result["__interrupt__"]
    assert interrupt.value["action_requests"][0]["name"] == "pay"
    await shop.answer("junk")
    await shop.answer({"type": "approve"})
    assert await shop.codes() == ["succeeded"]
    assert shop.remote.count() == 1
