"""`approvals="per_call"`: one interrupt for each call that waits, each answered by its own id."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from acts import states
from scripted import Bank, Remote, ScriptedModel, bank, call, once
from settled import Approve, ContractError, Desk, Ledger, always, build_agent, over

PAY = call("pay", "p", payee="ann", amount=100)
MAIL = call("mail", "m", to="ben")


@pytest.fixture(params=["sync", "async"])
async def shop(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Bank]:
    async with bank(request.param, database_url) as opened:
        yield opened


def kinds(messages: Sequence[BaseMessage]) -> str:
    return "".join(type(message).__name__[0] for message in messages)


async def paused(shop: Bank, *calls: dict[str, Any], approval: Any = always) -> dict[str, Any]:
    """Run a turn up to its questions, and return them by the tool's name."""
    shop.serve(once(*calls), approval, approvals="per_call")
    result = await shop.run("please")
    return {interrupt.value["name"]: interrupt for interrupt in result["__interrupt__"]}


async def test_each_call_has_a_question_of_its_own(shop: Bank) -> None:
    asked = await paused(shop, PAY, MAIL)
    pay = asked["pay"].value
    assert (pay["type"], pay["tool_call_id"]) == ("tool_approval", "p")
    assert pay["args"] == {"payee": "ann", "amount": 100.0}
    assert {"action_id", "fingerprint", "expires_at", "description"} <= set(pay)
    assert asked["pay"].response_schema["oneOf"]


async def test_each_is_answered_by_its_id_in_any_order(shop: Bank) -> None:
    asked = await paused(shop, PAY, MAIL)
    await shop.answer({asked["mail"].id: {"type": "approve"}})
    assert shop.remote.count() == 1
    await shop.answer({asked["pay"].id: {"type": "reject", "message": "no"}})
    assert await shop.codes() == ["denied", "succeeded"]
    assert kinds(await shop.messages()) == "HATTA"
    assert shop.remote.count() == 1


async def test_all_at_once(shop: Bank) -> None:
    asked = await paused(shop, PAY, MAIL)
    await shop.answer({one.id: {"type": "approve"} for one in asked.values()})
    assert await shop.codes() == ["succeeded", "succeeded"]
    assert shop.remote.count() == 2


async def test_one_of_several_calls_takes_no_answer_without_an_id(shop: Bank) -> None:
    """It might be meant for a sibling whose question a crash has swallowed. It is asked again, alone."""
    await paused(shop, PAY, call("look", "l", payee="ann"))
    await shop.answer({"type": "approve"})
    assert shop.remote.count() == 0
    (again,) = await shop.asked()
    assert "interrupt" in again["problem"]
    await shop.answer({"type": "approve"})
    assert shop.remote.count() == 1


async def test_a_question_that_a_crash_swallowed_takes_no_siblings_answer(shop: Bank) -> None:
    """The first pass of the mail dies before it asks; the answer that was given to the payment is none to the mail."""
    shop.serve(once(PAY, MAIL), always, approvals="per_call")
    engine = shop.agent.builder.nodes["action"].runnable.engine
    call, acall = engine.call, engine.acall

    def dies(request: Any, *args: Any) -> Any:
        if request["name"] == "mail":
            raise RuntimeError("killed")
        return call(request, *args)

    async def adies(request: Any, *args: Any) -> Any:
        if request["name"] == "mail":
            raise RuntimeError("killed")
        return await acall(request, *args)

    engine.call, engine.acall = dies, adies
    with pytest.raises(RuntimeError):
        await shop.run("please")
    engine.call, engine.acall = call, acall
    await shop.answer({"type": "approve"})
    assert shop.remote.count() == 0
    assert set(states(shop.ledger.url)) == {"planned"}


async def test_one_call_takes_an_answer_without_an_id(shop: Bank) -> None:
    await paused(shop, PAY)
    await shop.answer({"type": "approve"})
    assert await shop.codes() == ["succeeded"]


@pytest.mark.parametrize(
    "junk",
    [
        "yes",
        7,
        [],
        {"decisions": []},
        {"type": "approved"},
        {"type": "approve", "fingerprint": "sha256:0"},
        {"type": "edit", "edited_action": {"name": "mail", "args": {}}},
    ],
    ids=str,
)
async def test_an_unusable_answer_is_asked_for_again_in_the_batched_form(shop: Bank, junk: Any) -> None:
    asked = await paused(shop, PAY, MAIL)
    await shop.answer({asked["pay"].id: junk, asked["mail"].id: {"type": "approve"}})
    assert shop.remote.count() == 1
    (again,) = await shop.asked()
    assert [one["name"] for one in again["action_requests"]] == ["pay"]
    assert again["problem"]
    await shop.answer({"type": "approve"})
    assert sorted(await shop.codes()) == ["succeeded", "succeeded"]
    assert shop.remote.count() == 2


async def test_an_edit_that_waits_itself_is_asked_for(shop: Bank) -> None:
    asked = await paused(shop, PAY)
    edit = {"type": "edit", "edited_action": {"name": "pay", "args": {"payee": "ann", "amount": 40}}}
    await shop.answer({asked["pay"].id: edit})
    assert shop.remote.count() == 0
    (again,) = await shop.asked()
    assert again["action_requests"][0]["args"]["amount"] == 40
    await shop.answer({"type": "approve"})
    assert await shop.codes() == ["changed_by_person"]
    assert shop.remote.count() == 1


async def test_an_edit_that_its_policy_allows_runs(shop: Bank) -> None:
    asked = await paused(shop, PAY, approval=over("amount", 50))
    edit = {"type": "edit", "edited_action": {"name": "pay", "args": {"payee": "ann", "amount": 40}}}
    await shop.answer({asked["pay"].id: edit})
    assert await shop.codes() == ["changed_by_person"]
    assert shop.remote.count() == 1


async def test_the_desk_decides_one_and_a_session_goes_on(shop: Bank) -> None:
    shop.serve(once(PAY, MAIL), always, approvals="per_call")
    reply = await shop.send("please")
    by_name = {one["name"]: one for one in reply.approvals}
    await Desk(shop.ledger).adecide(
        by_name["mail"]["action_id"], Approve(), by="sue", fingerprint=by_name["mail"]["fingerprint"]
    )
    await shop.ledger.aclose()
    reply = await shop.resume()
    assert [one["name"] for one in reply.approvals] == ["pay"]
    assert shop.remote.count() == 1
    done = await shop.decide(by_name["pay"]["action_id"], Approve())
    assert done.is_finished
    assert await shop.codes() == ["succeeded", "succeeded"]
    assert shop.remote.count() == 2


@pytest.mark.parametrize("policy", ["keep", "withdraw"])
async def test_a_new_message_answers_the_calls_first(shop: Bank, policy: str) -> None:
    shop.serve(once(PAY, MAIL), always, approvals="per_call")
    await shop.send("please")
    await shop.send("and now?", while_open=policy)
    messages = await shop.messages()
    assert kinds(messages)[:5] == "HATTH"
    told = [m.artifact["code"] for m in messages[:5] if isinstance(m, ToolMessage)]
    assert told == {"keep": ["waiting_for_approval"] * 2, "withdraw": ["denied"] * 2}[policy]
    assert shop.remote.count() == 0


async def test_a_late_decision_is_told(shop: Bank) -> None:
    asked = await paused(shop, PAY)
    shop.serve(lambda messages, has_tools: AIMessage("done"), always, approvals="per_call")
    await shop.send("never mind")
    assert states(shop.ledger.url) == ["planned"]
    done = await shop.decide(asked["pay"].value["action_id"], Approve())
    assert "R-1" in done.text
    assert await shop.codes() == ["succeeded"]


async def test_approvals_is_one_of_two(ledger: Ledger, database_url: str) -> None:
    Remote(database_url)
    with pytest.raises(ContractError, match="approvals"):
        build_agent(ScriptedModel(script=once()), [], ledger=ledger, approvals="each")  # type: ignore[arg-type]
