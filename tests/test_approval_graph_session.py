"""Sessions and approvals: a decision goes into the ledger first, and the thread goes on with it, now or later."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.types import StateSnapshot

from acts import states
from scripted import Bank, bank, call, calling, once, tools_that_ask
from settled import (
    AlreadyDecided,
    Approve,
    ContractError,
    Desk,
    Edit,
    Ended,
    Happened,
    InvalidArguments,
    NotFound,
    NotPermitted,
    Reject,
    Reply,
    Session,
    ShownOtherwise,
    ThreadBusy,
    Unknown,
    World,
    always,
    over,
    permitted,
)
from settled.graph import turn
from settled.graph.late import MAX_LATE
from settled.graph.moves import Thread, Within
from settled.tools.perform import recalled

PAY = call("pay", "p", payee="ann", amount=100)
MAIL = call("mail", "m", to="ben")


@pytest.fixture(params=["sync", "async"])
async def shop(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Bank]:
    async with bank(request.param, database_url) as opened:
        yield opened


def kinds(messages: Sequence[BaseMessage]) -> str:
    return "".join(type(message).__name__[0] for message in messages)


def first_turn(*calls: dict[str, Any]) -> Any:
    """A model that calls these in the first turn only; afterwards it talks."""

    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        if len(messages) == 1:
            return calling(*calls)
        if isinstance(messages[-1], HumanMessage):
            return AIMessage("understood")
        return AIMessage(str(messages[-1].content).split("\n")[0])

    return script


async def asked(shop: Bank, *calls: dict[str, Any], approval: Any = always, **options: Any) -> Reply:
    return await asked_as(shop, "batched", *calls, approval=approval, **options)


async def asked_as(shop: Bank, mode: str, *calls: dict[str, Any], approval: Any, **options: Any) -> Reply:
    """Ask in one of the two modes of `approvals=`."""
    shop.serve(first_turn(*calls), approval, approvals=mode)
    reply = await shop.send("please", **options)
    assert not reply.is_finished
    return reply


def watched(shop: Bank) -> list[str]:
    """Return the names of the ledger's queries from here on, as they come."""
    queries: list[str] = []
    run, arun = shop.ledger.run, shop.ledger.arun

    def seen(query: Any) -> Any:
        queries.append(query.name)
        return run(query)

    async def aseen(query: Any) -> Any:
        queries.append(query.name)
        return await arun(query)

    shop.ledger.run, shop.ledger.arun = seen, aseen  # type: ignore[method-assign]
    return queries


def answered_in_place(messages: Sequence[BaseMessage]) -> bool:
    """Whether each message with calls is followed by their answers, as providers demand."""
    for index, message in enumerate(messages):
        if isinstance(message, AIMessage) and message.tool_calls:
            ids = {one["id"] for one in message.tool_calls}
            after = messages[index + 1 : index + 1 + len(ids)]
            if {one.tool_call_id for one in after if isinstance(one, ToolMessage)} != ids:
                return False
    return True


async def test_a_reply_shows_what_waits(shop: Bank) -> None:
    reply = await asked(shop, PAY, MAIL)
    assert [one["name"] for one in reply.approvals] == ["pay", "mail"]
    assert reply.text == ""
    planned = {action.id: action.fingerprint for action in shop.ledger.actions()}
    assert {one["action_id"]: one["fingerprint"] for one in reply.approvals} == planned
    assert [one["name"] for one in (await shop.resume()).approvals] == ["pay", "mail"]


async def test_a_decision_carries_the_thread_on(shop: Bank) -> None:
    reply = await asked(shop, PAY)
    (one,) = reply.approvals
    done = await shop.decide(one["action_id"], Approve("fine"), by="sue", fingerprint=one["fingerprint"])
    assert done.is_finished
    assert "R-1" in done.text
    assert done.approvals == []
    assert kinds(await shop.messages()) == "HATA"
    (action,) = shop.ledger.actions()
    assert action.approver == "sue"


async def test_a_rejection_is_told_with_its_words(shop: Bank) -> None:
    (one,) = (await asked(shop, PAY)).approvals
    done = await shop.decide(one["action_id"], Reject("too much"))
    assert done.is_finished
    assert "too much" in done.text
    assert shop.remote.count() == 0


async def test_an_edit_is_decided_in_two_steps_where_its_policy_asks(shop: Bank) -> None:
    (one,) = (await asked(shop, PAY)).approvals
    second = await shop.decide(one["action_id"], Edit({"amount": 40}))
    (changed,) = second.approvals
    assert changed["args"] == {"payee": "ann", "amount": 40.0}
    assert shop.remote.count() == 0
    done = await shop.decide(changed["action_id"], Approve(), fingerprint=changed["fingerprint"])
    assert [m.artifact["code"] for m in done.tool_messages] == ["changed_by_person"]
    assert shop.remote.count() == 1


async def test_one_of_two_is_decided_and_the_other_still_waits(shop: Bank) -> None:
    pay, mail = (await asked(shop, PAY, MAIL)).approvals
    reply = await shop.decide(mail["action_id"], Approve())
    assert shop.remote.count() == 1
    assert [one["action_id"] for one in reply.approvals] == [pay["action_id"]]
    done = await shop.decide(pay["action_id"], Reject())
    assert done.is_finished
    assert sorted(await shop.codes()) == ["denied", "succeeded"]
    assert answered_in_place(await shop.messages())


async def test_the_first_decision_is_final(shop: Bank) -> None:
    """The same one again is none; another one is refused, and told what was decided first."""
    (one,) = (await asked(shop, PAY)).approvals
    await shop.decide(one["action_id"], Approve(), by="sue")
    await shop.decide(one["action_id"], Approve(), by="sue")
    with pytest.raises(AlreadyDecided, match="sue approved"):
        await shop.decide(one["action_id"], Reject(), by="sam")
    assert shop.remote.count() == 1


async def test_a_decision_is_about_this_thread_and_what_was_shown(shop: Bank) -> None:
    (one,) = (await asked(shop, PAY, approval=always(approvers=("sue",)))).approvals
    with pytest.raises(ShownOtherwise):
        await shop.decide(one["action_id"], Approve(), by="sue", fingerprint="sha256:" + "0" * 64)
    with pytest.raises(NotFound):
        await shop.decide("act-0000000000000000", Approve(), by="sue")
    with pytest.raises(NotPermitted):
        await shop.decide(one["action_id"], Approve(), by="eve")
    with pytest.raises(InvalidArguments):
        await shop.decide(one["action_id"], Edit({"amount": "much"}), by="sue")
    with pytest.raises(ContractError):
        await shop.decide(one["action_id"], {"type": "approve"}, by="sue")  # type: ignore[arg-type]
    other = shop.session(thread_id="other")
    with pytest.raises(NotFound):
        await asyncio.to_thread(other.decide, one["action_id"], Approve(), by="sue")
    assert states(shop.ledger.url) == ["planned"]
    assert (await shop.decide(one["action_id"], Approve(), by="sue")).is_finished


async def test_three_are_decided_at_once(shop: Bank) -> None:
    """From three threads, each with a session of its own: all three run, once each, and the thread comes to its end."""
    requests = (await asked(shop, PAY, MAIL, call("mail", "n", to="cas"))).approvals
    replies = await asyncio.gather(*(shop.decide(one["action_id"], Approve()) for one in requests))
    assert any(reply.is_finished for reply in replies)
    assert (await shop.resume()).is_finished
    assert sorted(await shop.codes()) == ["succeeded"] * 3
    assert answered_in_place(await shop.messages())
    assert kinds(await shop.messages()) == "HATTTA"
    assert shop.remote.count() == 3


async def test_a_double_click_decides_once(shop: Bank) -> None:
    (one,) = (await asked(shop, PAY)).approvals
    replies = await asyncio.gather(*(shop.decide(one["action_id"], Approve()) for _ in range(3)))
    assert {reply.text for reply in replies} == {replies[0].text}
    assert kinds(await shop.messages()) == "HATA"
    assert shop.remote.count() == 1


async def test_of_two_who_decide_at_once_one_is_told_about_the_other(shop: Bank) -> None:
    (one,) = (await asked(shop, PAY)).approvals
    ends = await asyncio.gather(
        shop.decide(one["action_id"], Approve(), by="sue"),
        shop.decide(one["action_id"], Reject(), by="sam"),
        return_exceptions=True,
    )
    assert sorted(type(end).__name__ for end in ends) == ["AlreadyDecided", "Reply"]
    assert shop.remote.count() == int(isinstance(ends[0], Reply))


async def test_another_process_decides_and_a_session_resumes(shop: Bank) -> None:
    pay, mail = (await asked(shop, PAY, MAIL)).approvals
    desk = Desk(shop.ledger)
    await desk.adecide(pay["action_id"], Approve(), by="sue", fingerprint=pay["fingerprint"])
    assert [one["name"] for one in (await shop.resume()).approvals] == ["mail"]
    assert shop.remote.count() == 1
    await desk.adecide(mail["action_id"], Approve(), by="sue", fingerprint=mail["fingerprint"])
    await shop.ledger.aclose()
    assert (await shop.resume()).is_finished
    assert shop.remote.count() == 2


async def test_resuming_a_thread_on_which_nothing_is_decided_changes_nothing(shop: Bank) -> None:
    await asked(shop, PAY)
    before = (await shop.state()).config
    for _ in range(3):
        assert len((await shop.resume()).approvals) == 1
    assert (await shop.state()).config == before


async def test_expiry_while_it_waits_is_told_at_the_next_resume(shop: Bank) -> None:
    (one,) = (await asked(shop, PAY, approval=always(ttl=timedelta(seconds=0.5)))).approvals
    await asyncio.sleep(0.7)
    with pytest.raises(AlreadyDecided):
        await shop.decide(one["action_id"], Approve())
    reply = await shop.resume()
    assert reply.is_finished
    assert await shop.codes() == ["expired"]
    assert shop.remote.count() == 0


async def test_a_permission_that_lapses_is_asked_for_again(shop: Bank) -> None:
    """Approved, and not run in its time: it waits again, with another ticket."""
    (one,) = (await asked(shop, PAY, approval=always(ttl=timedelta(seconds=0.5)))).approvals
    await Desk(shop.ledger).adecide(one["action_id"], Approve(), by="sue", fingerprint=one["fingerprint"])
    await asyncio.sleep(0.7)
    await shop.ledger.aclose()
    (again,) = (await shop.resume()).approvals
    assert again["action_id"] == one["action_id"]
    assert shop.remote.count() == 0
    assert (await shop.decide(one["action_id"], Approve())).is_finished
    assert shop.remote.count() == 1


async def test_a_new_message_keeps_the_approval_open(shop: Bank) -> None:
    (one,) = (await asked(shop, PAY)).approvals
    reply = await shop.send("and now?")
    assert reply.text == "understood"
    assert reply.is_finished
    messages = await shop.messages()
    assert kinds(messages) == "HATHA"
    assert await shop.codes() == ["waiting_for_approval"]
    assert states(shop.ledger.url) == ["planned"]
    assert (await shop.state()).values["waiting"] == []
    assert [a.action_id for a in Desk(shop.ledger).approvals(thread_id="t")] == [one["action_id"]]


async def test_what_is_decided_after_the_turn_is_told_late(shop: Bank) -> None:
    """By another session object: the tool message is replaced in its place, and the fact stands at the end."""
    (one,) = (await asked(shop, PAY)).approvals
    await shop.send("and now?")
    done = await shop.decide(one["action_id"], Approve())
    assert "R-1" in done.text
    assert done.is_finished
    messages = await shop.messages()
    assert kinds(messages) == "HATHAA"
    assert await shop.codes() == ["succeeded"]
    assert shop.remote.count() == 1
    assert (await shop.resume()).text == done.text
    assert kinds(await shop.messages()) == "HATHAA"


@pytest.mark.parametrize(("decision", "code"), [(Approve(), "succeeded"), (Reject("no"), "denied")])
async def test_a_decision_elsewhere_is_told_before_the_next_message(shop: Bank, decision: Any, code: str) -> None:
    """As another process has it: another agent, another session, the decision by the desk."""
    (one,) = (await asked(shop, PAY)).approvals
    await shop.send("and now?")
    await Desk(shop.ledger).adecide(one["action_id"], decision, by="sue", fingerprint=one["fingerprint"])
    await shop.ledger.aclose()
    shop.serve(first_turn(PAY), always)
    reply = await shop.send("and then?")
    assert kinds(await shop.messages()) == "HATHAAHA"
    assert kinds(reply.messages) == "AA"
    assert reply.text == "understood"
    assert await shop.codes() == [code]
    assert shop.remote.count() == (code == "succeeded")
    assert kinds((await shop.send("thanks")).messages) == "A"


async def test_an_edit_after_the_turn_is_told_late(shop: Bank) -> None:
    (one,) = (await asked(shop, PAY, approval=over("amount", 50))).approvals
    await shop.send("and now?")
    done = await shop.decide(one["action_id"], Edit({"amount": 40}))
    assert await shop.codes() == ["changed_by_person"]
    assert "R-1" in done.text
    assert shop.remote.count() == 1
    assert kinds(await shop.messages()) == "HATHAA"


async def test_an_edit_after_the_turn_that_waits_itself_is_told_when_it_is_decided(shop: Bank) -> None:
    (one,) = (await asked(shop, PAY)).approvals
    await shop.send("and now?")
    await shop.decide(one["action_id"], Edit({"amount": 40}))
    assert await shop.codes() == ["waiting_for_approval"]
    (changed,) = Desk(shop.ledger).approvals(thread_id="t")
    assert changed.action_id != one["action_id"]
    done = await shop.decide(changed.action_id, Approve())
    assert await shop.codes() == ["changed_by_person"]
    assert "R-1" in done.text
    assert shop.remote.count() == 1


@pytest.mark.parametrize("mode", ["batched", "per_call"])
@pytest.mark.parametrize(
    ("amounts", "outcome"), [([40], "in_progress"), ([90], "waiting_for_approval"), ([90, 80], "waiting_for_approval")]
)
async def test_an_edit_while_a_new_message_cuts_in_is_followed(
    shop: Bank, monkeypatch: pytest.MonkeyPatch, mode: str, amounts: list[int], outcome: str
) -> None:
    """After the turn has found nothing decided, and before it answers the call: the answer is about what the request
    has been changed into, and what becomes of that is told.
    """
    approval = over("amount", 50)
    (one,) = (await asked_as(shop, mode, PAY, approval=approval)).approvals
    desk = Desk(shop.ledger, tools=tools_that_ask(shop.remote, approval))

    def closed(thread: Thread, state: StateSnapshot) -> Within[None]:
        action_id, fingerprint = one["action_id"], one["fingerprint"]
        for amount in amounts:
            changed = desk.decide(action_id, Edit({"amount": amount}), by="sue", fingerprint=fingerprint)
            action_id, fingerprint = changed.id, changed.fingerprint
        yield from ()

    with monkeypatch.context() as patch:
        patch.setattr(turn, "_closed", closed)
        assert (await shop.send("and now?")).text == "understood"
    (told,) = (message.artifact for message in await shop.messages() if isinstance(message, ToolMessage))
    assert (told["code"], told["outcome"]) == ("changed_by_person", outcome)
    assert told["supersedes"] == one["action_id"]
    assert told["action_id"] == shop.ledger.actions()[0].id
    assert told["differing"] == {"amount": [100.0, float(amounts[-1])]}
    for open_ in desk.approvals(thread_id="t"):
        desk.decide(open_.action_id, Approve(), by="sam", fingerprint=open_.fingerprint)
    assert "R-1" in (await shop.resume()).text
    assert await shop.codes() == ["changed_by_person"]
    assert shop.remote.count() == 1
    assert kinds(await shop.messages()) == "HATHAA"


async def test_of_a_changed_action_no_more_is_known_than_that_another_goes_on(shop: Bank) -> None:
    (one,) = (await asked(shop, PAY, approval=over("amount", 50))).approvals
    new = await shop.decide(one["action_id"], Edit({"amount": 40}))
    assert new.is_finished
    old, changed = reversed(shop.ledger.actions())
    told = recalled(old, "en")
    assert (old.superseded_by, told.code, told.action_id) == (changed.id, "in_progress", changed.id)
    assert "not known yet" in told.message


async def test_the_oldest_of_many_open_requests_is_run_once_it_is_approved(shop: Bank) -> None:
    """However many newer ones wait; one query looks at them all."""

    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        said = str(messages[-1].content)
        return calling(call("mail", said, to=said)) if said.startswith("to-") else AIMessage("done")

    shop.serve(script, always)
    for number in range(MAX_LATE + 1):
        await shop.send(f"to-{number}")
    await shop.send("and now?")
    (first,) = (action for action in shop.ledger.actions() if action.arguments["to"] == "to-0")
    await Desk(shop.ledger).adecide(first.id, Approve(), by="sue", fingerprint=first.fingerprint)
    await shop.ledger.aclose()
    queries = watched(shop)
    assert "R-1" in (await shop.resume()).text
    assert queries[:2] == ["load_all"] * 2, "at once, and again after what was cut short"
    assert await shop.codes() == ["succeeded", *["waiting_for_approval"] * MAX_LATE]
    assert shop.remote.count() == 1


async def test_what_nobody_decides_after_the_turn_expires_late(shop: Bank) -> None:
    await asked(shop, PAY, approval=always(ttl=timedelta(seconds=1)))
    await shop.send("and now?")
    await asyncio.sleep(1.1)
    reply = await shop.resume()
    assert await shop.codes() == ["expired"]
    assert kinds(await shop.messages()) == "HATHAA"
    assert reply.text


async def test_an_approved_call_is_run_while_a_later_one_waits(shop: Bank) -> None:
    """An older request does not lose its permission because a newer one is undecided; it is told at the end."""

    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        if isinstance(messages[-1], HumanMessage):
            return calling(PAY if len(messages) == 1 else {**MAIL, "id": "m2"})
        return AIMessage("done")

    shop.serve(script, always)
    (pay,) = (await shop.send("please")).approvals
    (mail,) = (await shop.send("and write to ben")).approvals
    reply = await shop.decide(pay["action_id"], Approve())
    assert [one["action_id"] for one in reply.approvals] == [mail["action_id"]]
    assert shop.remote.count() == 1
    done = await shop.decide(mail["action_id"], Approve())
    assert done.is_finished
    assert shop.remote.count() == 2
    assert await shop.codes() == ["succeeded", "succeeded"]
    assert answered_in_place(await shop.messages())


async def test_a_call_that_meets_the_open_request_asks_for_the_same(shop: Bank) -> None:
    """The model calls again in the next turn: one action, one effect, told once."""
    shop.serve(once(PAY), always)
    (first,) = (await shop.send("please")).approvals
    (second,) = (await shop.send("please!")).approvals
    assert second["action_id"] == first["action_id"]
    done = await shop.decide(first["action_id"], Approve())
    assert "R-1" in done.text
    assert shop.remote.count() == 1
    assert kinds(await shop.messages()) == "HATHATA"
    await shop.resume()
    assert kinds(await shop.messages()) == "HATHATA"


async def test_a_new_message_is_refused_while_it_waits(shop: Bank) -> None:
    (one,) = (await asked(shop, PAY)).approvals
    with pytest.raises(ThreadBusy, match="decision"):
        await shop.send("and now?", while_open="reject")
    assert kinds(await shop.messages()) == "HA"
    assert (await shop.decide(one["action_id"], Approve())).is_finished
    assert (await shop.send("and now?", while_open="reject")).text == "understood"


async def test_a_refused_message_is_accepted_once_it_is_decided(shop: Bank) -> None:
    (one,) = (await asked(shop, PAY)).approvals
    await Desk(shop.ledger).adecide(one["action_id"], Approve(), by="sue", fingerprint=one["fingerprint"])
    await shop.ledger.aclose()
    assert (await shop.send("and now?", while_open="reject")).text == "understood"
    assert kinds(await shop.messages()) == "HATAHA"
    assert shop.remote.count() == 1


async def test_a_new_message_withdraws_what_waits(shop: Bank) -> None:
    (one, two) = (await asked(shop, PAY, MAIL)).approvals
    reply = await shop.send("never mind", while_open="withdraw", requester="ann")
    assert reply.text == "understood"
    assert kinds(await shop.messages()) == "HATTHA"
    assert await shop.codes() == ["denied", "denied"]
    assert states(shop.ledger.url) == ["cancelled", "cancelled"]
    for action_id in (one["action_id"], two["action_id"]):
        with pytest.raises(AlreadyDecided):
            await shop.decide(action_id, Approve())
    assert shop.remote.count() == 0


def test_while_open_is_one_of_three() -> None:
    with pytest.raises(ContractError, match="while_open"):
        Session(_Agent(), ledger=None, thread_id="t", while_open="drop")  # type: ignore[arg-type]


class _Agent:
    checkpointer = True


async def test_what_a_finished_turn_said_costs_no_look_into_the_ledger(shop: Bank) -> None:
    """A conversation without open answers asks the ledger nothing before a message."""
    shop.serve(first_turn(call("look", payee="ann")), always)
    await shop.send("please")
    queries = watched(shop)
    await shop.send("and now?")
    await shop.resume()
    assert queries == []


async def test_a_manual_case_that_is_resolved_is_told_late(shop: Bank) -> None:
    """Not only approvals: whatever was not known when the turn ended."""
    shop.serve(first_turn(PAY), None, contract={"remote": "opaque"})
    act = shop.remote.act

    def lost(key: str, **detail: Any) -> Any:
        act(key, **detail)
        raise Ended(Unknown("no answer came back"))

    shop.remote.act = lost  # type: ignore[method-assign]
    await shop.send("please")
    assert await shop.codes() == ["manual_review"]
    (action,) = shop.ledger.actions()
    await Desk(shop.ledger).aresolve(action.id, Happened("R-77"), by="sue", fingerprint=action.fingerprint)
    await shop.ledger.aclose()
    reply = await shop.resume()
    assert "R-77" in reply.text
    assert await shop.codes() == ["succeeded"]
    assert shop.remote.count() == 1


async def test_what_cannot_be_told_yet_keeps_no_message_waiting(shop: Bank) -> None:
    """A fault on the way to what came late is raised by `resume`; a new message is accepted, and it is told after."""
    (one,) = (await asked(shop, PAY)).approvals
    await shop.send("and now?")
    await Desk(shop.ledger).adecide(one["action_id"], Approve(), by="sue", fingerprint=one["fingerprint"])
    await shop.ledger.aclose()

    def watch(effect: object, when: str) -> None:
        if when == "before" and type(effect).__name__ == "Invoke":
            raise RuntimeError("a fault of our own")

    shop.serve(first_turn(PAY), always, world=World(watch=watch))
    with pytest.raises(RuntimeError):
        await shop.resume()
    assert (await shop.send("and then?")).text == "understood"
    assert answered_in_place(await shop.messages())
    assert kinds(await shop.messages()) == "HATHAAHA"
    assert shop.remote.count() == 0, "an attempt that nobody saw end is unknown, and this remote side cannot be asked"
    assert await shop.codes() == ["manual_review"]


async def test_policies_by_risk_and_roles_reach_the_call(shop: Bank) -> None:
    """A default per risk for tools that declare nothing; what a policy knows of the user comes from the session."""
    shop.serve(first_turn(PAY), None, policies={"non_idempotent_write": permitted("clerk")})
    await shop.send("please", requester="eve", roles=("guest",))
    assert await shop.codes() == ["forbidden"]
    assert shop.remote.count() == 0
    shop.serve(once(PAY), None, policies={"non_idempotent_write": permitted("clerk")})
    await shop.send("please", requester="ann", roles=("clerk",))
    assert (await shop.codes())[-1] == "succeeded"
    assert shop.remote.count() == 1
