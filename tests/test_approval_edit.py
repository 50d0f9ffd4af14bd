"""A person changes what is asked for: the old action ends, a new one has its own fingerprint and its own verdict."""

import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any

import pytest
from cryptography.fernet import Fernet

from acts import Clock, Door, Remote, action_of, both_doors, count, events_of, opened, rows, states, triggers_of
from asked import ASKING, BOB, HOUR_S, MARIA, ORDER, Office, office, refund
from settled import (
    Action,
    AlreadyDecided,
    Approve,
    Code,
    ContractError,
    Deny,
    Desk,
    DuplicateAction,
    Edit,
    InvalidArguments,
    NotPermitted,
    Outcome,
    PlannedAction,
    Reject,
    Secret,
    State,
    action,
    always,
    over,
    perform,
    permitted,
)
from settled.state.secrets import HIDDEN

WAITS = (Code.WAITING_FOR_APPROVAL, State.PLANNED)
CHANGED = (Code.CHANGED_BY_PERSON, State.SUCCEEDED)


def ended(outcome: Outcome) -> tuple[Code, State | None]:
    return outcome.code, outcome.state


async def ask(door: Door, at: Office, decision: str | None = "d1", **changes: Any) -> Outcome:
    """Call the refund of INV-102 over 200, as Joe."""
    options = {name: changes.pop(name) for name in ("language", "thread_id", "roles") if name in changes}
    arguments = {**ORDER, "amount": 200, **changes}
    return await door(at.tool, arguments, ledger=at.ledger, decision=decision, requester="joe", **options)


@both_doors
async def test_an_edit_that_its_policy_allows_runs_in_place_of_the_original(door: Door, database_url: str) -> None:
    """The old action is cancelled and its ticket closed; the new one is approved by policy, and runs when the call
    comes back. Called again by whatever decision, the original is answered with the changed one.
    """
    with office(database_url) as at:
        waiting = await ask(door, at)
        new = at.decide(waiting, Edit({"amount": 90}, "at most 90"))
        assert (new.state, new.approver, new.asking) == (State.APPROVED, "policy: amount 90.0 is not over 100", None)
        assert (new.supersedes, new.arguments["amount"]) == (waiting.action_id, 90.0)
        old = at.action(waiting)
        assert (old.state, old.code, old.reason, old.approver) == (
            *(State.CANCELLED, "changed_by_person"),
            *("changed by maria", "maria"),
        )
        assert (old.superseded_by, new.fingerprint == old.fingerprint) == (new.id, False)
        assert (new.idempotency_key == old.idempotency_key, at.amounts) == (False, [])
        ticket = at.desk.approval(old.id)
        assert (ticket.decision, ticket.decided_by, ticket.note, ticket.spent_at) == (
            *("supersede", "maria"),
            *("at most 90", None),
        )
        done = [await ask(door, at, d) for d in ("d1", "d1", "d2", None)]
        assert [(ended(o), o.action_id, o.receipt) for o in done] == [(CHANGED, new.id, "RF-1")] * 4
        assert at.amounts == [90.0]
        assert triggers_of(at.ledger, waiting) == ["plan", "supersede"]
        assert [(e.trigger, e.actor) for e in events_of(at.ledger, done[0])] == [
            *(("plan", None), ("approve", "policy: amount 90.0 is not over 100"), ("claim", None), ("succeed", None)),
        ]
        assert events_of(at.ledger, waiting)[1].detail == {
            "superseded_by": new.id,
            "reason": "changed by maria",
            "note": "at most 90",
        }
        await at.ledger.aclose()


@both_doors
@pytest.mark.parametrize("language", ["en", "zh"])
async def test_what_is_told_of_a_change(door: Door, language: str, database_url: str) -> None:
    """That a person changed it, what is different, and what became of it; the record names both actions."""
    with office(database_url) as at:
        waiting = await ask(door, at, language=language)
        new = at.decide(waiting, Edit({"amount": 90}))
        told = await ask(door, at, language=language)
        again = await ask(door, at, language=language)
        if language == "en":
            assert told.message == (
                "A person changed the request “refund (order_id INV-102)” (amount (200.0 before, 90.0 now)). The "
                "changed request is handled instead; the original was not carried out. The request “refund (order_id "
                "INV-102)” was carried out. Receipt: RF-1.\n"
                'Result: {"receipt": "RF-1"}\n'
                "Note for the assistant: a person decided this; the original must not be submitted; tell the user the "
                "sentence above."
            )
        else:
            assert told.message == (
                "请求“refund (order_id INV-102)”已由人工修改（amount（之前为 200.0，这次为 90.0）），"
                "将按修改后的内容处理；原来的请求没有执行。请求“refund (order_id INV-102)”已办理完毕。凭证号：RF-1。\n"
                '结果：{"receipt": "RF-1"}\n'
                "给助手的提示：这是人工的决定，不得再提交原来的请求，请把上面这句话告诉用户。"
            )
        record = {
            "code": "changed_by_person",
            "action_id": new.id,
            "state": "succeeded",
            "receipt": "RF-1",
            "may_retry": False,
            "next": "tell_user",
            "differing": {"amount": [200.0, 90.0]},
            "outcome": "succeeded",
            "supersedes": waiting.action_id,
        }
        assert told.artifact == record
        assert (again.message, again.artifact) == (told.message, {**record, "replayed": True})
        await at.ledger.aclose()


@both_doors
async def test_an_edit_that_is_over_the_limit_waits_again(door: Door, database_url: str) -> None:
    """By its own policy, with its own ticket: the yes of the edit is not a yes to what it changed to."""
    with office(database_url) as at:
        waiting = await ask(door, at)
        new = at.decide(waiting, Edit({"amount": 150}))
        assert (new.state, new.approver, new.asked_until) == (
            *(State.PLANNED, None),
            at.clock() + timedelta(hours=1),
        )
        assert (new.asking or {})["reason"] == "amount 150.0 is over 100"
        told = [await ask(door, at, d) for d in ("d1", "d2")]
        assert [(ended(o), o.action_id) for o in told] == [(WAITS, new.id)] * 2
        assert [(a.action_id, a.round, a.arguments["amount"]) for a in at.desk.approvals()] == [(new.id, 1, 150.0)]
        with pytest.raises(NotPermitted):
            at.decide(new, Approve(), by="joe", roles=("supervisor",))
        at.decide(new, Approve(), **BOB)
        assert [ended(await ask(door, at, d)) for d in ("d1", "d2", None)] == [CHANGED] * 3
        assert at.amounts == [150.0]
        await at.ledger.aclose()


@both_doors
@pytest.mark.parametrize(
    ("ending", "code", "words"),
    [
        ("reject", Code.DENIED, "was not approved by bob (no). Nothing was carried out."),
        ("expire", Code.EXPIRED, "no decision by supervisor came in time"),
        ("withdraw", Code.DENIED, "was taken back. Nothing was carried out."),
    ],
)
async def test_what_becomes_of_an_edit_that_is_not_permitted(
    door: Door, ending: str, code: Code, words: str, database_url: str
) -> None:
    """The original is not carried out either; the caller hears both."""
    with office(database_url) as at:
        waiting = await ask(door, at)
        new = at.decide(waiting, Edit({"amount": 150}))
        match ending:
            case "reject":
                at.decide(new, Reject("no"), **BOB)
            case "expire":
                at.clock.sleep(HOUR_S)
            case _:
                at.desk.withdraw(new.id, by="joe")
        told = await ask(door, at)
        assert (ended(told), told.artifact["outcome"]) == ((Code.CHANGED_BY_PERSON, State.CANCELLED), str(code))
        assert words in told.message.split("\n")[0]
        assert (told.artifact["action_id"], at.amounts) == (new.id, [])
        await at.ledger.aclose()


# What is refused, and loses nothing.


@both_doors
async def test_an_edit_that_its_policy_denies_is_refused(door: Door, database_url: str) -> None:
    """The action waits on as before, and can be approved."""

    def judge(planned: PlannedAction) -> Any:
        return Deny("never so little") if planned.arguments["amount"] < 10 else always(planned)

    with office(database_url) as at:
        at.tool = refund(at.remote, approval=judge)
        waiting = await ask(door, at)
        with pytest.raises(NotPermitted, match="the policy denies the edited action: never so little"):
            at.decide(waiting, Edit({"amount": 5}))
        assert (triggers_of(at.ledger, waiting), count(database_url)) == (["plan"], 1)
        at.approve(waiting)
        await ask(door, at)
        assert at.amounts == [200.0]
        await at.ledger.aclose()


@both_doors
async def test_a_policy_that_cannot_be_asked_about_the_edit_permits_nothing(door: Door, database_url: str) -> None:
    """Refused, and the action waits on."""

    def judge(planned: PlannedAction) -> Any:
        if planned.arguments["amount"] < 10:
            raise RuntimeError
        return always(planned)

    with office(database_url) as at:
        at.tool = refund(at.remote, approval=judge)
        waiting = await ask(door, at)
        with pytest.raises(NotPermitted, match="could not be asked"):
            at.decide(waiting, Edit({"amount": 5}))
        assert at.action(waiting).state is State.PLANNED
        await at.ledger.aclose()


@both_doors
async def test_an_edit_is_judged_by_the_roles_of_the_requester(door: Door, database_url: str) -> None:
    """Not by the editor's: what the requester was not permitted to, an edit does not permit."""

    def judge(planned: PlannedAction) -> Any:
        verdict = permitted("clerk")(planned)
        return always(planned) if not isinstance(verdict, Deny) else verdict

    with office(database_url) as at:
        at.tool = refund(at.remote, approval=judge)
        waiting = await ask(door, at, roles=("clerk",))
        assert at.decide(waiting, Edit({"amount": 5}), **MARIA).state is State.PLANNED
        await at.ledger.aclose()


WRONG: dict[str, tuple[Mapping[str, object], str]] = {
    "nothing": ({}, "are the same as before"),
    "the same": ({"amount": 200}, "are the same as before"),
    "the same, written otherwise": ({"amount": "200.00"}, "are the same as before"),
    "an incidental word": ({"memo": "another"}, "are the same as before"),
    "what is no number": ({"amount": "much"}, "amount"),
    "an argument that there is not": ({"amonut": 5}, "amonut: is not an argument of this tool"),
    "not a number": ({"amount": float("nan")}, "amount"),
    "nothing at all": ({"amount": None}, "amount"),
    "a repeat": ({"repeat_of": "act-0000000000000000"}, "are the same as before"),
}


@pytest.mark.parametrize(("arguments", "words"), WRONG.values(), ids=WRONG)
@both_doors
async def test_an_edit_that_changes_nothing_or_breaks_a_rule_is_refused(
    door: Door, arguments: Mapping[str, object], words: str, database_url: str
) -> None:
    """By field and rule; the action waits on."""
    with office(database_url) as at:
        waiting = await ask(door, at)
        found = at.action(waiting)
        with pytest.raises(InvalidArguments, match=words):
            at.decide(waiting, Edit(arguments))
        with pytest.raises(InvalidArguments, match=words):
            await at.desk.adecide(found.id, Edit(arguments), fingerprint=found.fingerprint, **MARIA)
        assert (at.action(waiting), triggers_of(at.ledger, waiting)) == (found, ["plan"])
        await at.ledger.aclose()


async def test_an_edit_needs_the_tool(database_url: str) -> None:
    """A desk without it can approve, reject and take back, and says what it would need."""
    with office(database_url) as at:
        waiting = await ask(_sync, at)
        found, bare = at.action(waiting), Desk(at.ledger)
        with pytest.raises(ContractError, match=r"needs the tool refund: give it to the desk"):
            bare.decide(found.id, Edit({"amount": 5}), fingerprint=found.fingerprint, **MARIA)
        with pytest.raises(ContractError, match="needs the tool refund"):
            await bare.adecide(found.id, Edit({"amount": 5}), fingerprint=found.fingerprint, **MARIA)
        assert bare.decide(found.id, Approve(), fingerprint=found.fingerprint, **MARIA).state is State.APPROVED
        await at.ledger.aclose()


async def test_an_edit_after_its_time_is_none(database_url: str) -> None:
    """It hears that nobody decided in time; no new action begins."""
    with office(database_url) as at:
        waiting = await ask(_sync, at)
        at.clock.sleep(HOUR_S)
        with pytest.raises(AlreadyDecided, match="in time: it expired"):
            at.decide(waiting, Edit({"amount": 5}))
        assert (states(database_url), at.amounts) == (["cancelled"], [])
        await at.ledger.aclose()


async def test_an_edit_is_decided_once(database_url: str) -> None:
    """The same edit again, by the same person, is a second decision: what it would begin has begun."""
    with office(database_url) as at:
        waiting = await ask(_sync, at)
        at.decide(waiting, Edit({"amount": 90}))
        for decision, who in ((Edit({"amount": 90}), MARIA), (Edit({"amount": 80}), BOB), (Approve(), MARIA)):
            with pytest.raises(AlreadyDecided, match="maria changed it"):
                at.decide(waiting, decision, **who)
        assert count(database_url) == 2
        await at.ledger.aclose()


async def test_a_note_of_any_kind_is_no_obstacle(database_url: str) -> None:
    """As for a yes and a no."""
    with office(database_url) as at:
        waiting = await ask(_sync, at)
        assert at.decide(waiting, Edit({"amount": 90}, "a\x00b\ud800" + "x" * 5000)).state is State.APPROVED
        note = at.desk.approval(str(waiting.action_id)).note
        assert (note or "").startswith("a\ufffdb?xxx")
        await at.ledger.aclose()


# The intent that it becomes.


@both_doors
async def test_an_edit_into_what_was_done_already_is_refused(door: Door, database_url: str) -> None:
    """Also when a later repeat of that was denied or failed: it is found behind it. Nothing is lost."""
    with office(database_url) as at:
        done = await ask(door, at, "d0", order_id="INV-1", amount=90)
        waiting = await ask(door, at)
        with pytest.raises(DuplicateAction, match=f"the one of {done.action_id} already, which is succeeded"):
            at.decide(waiting, Edit({"order_id": "INV-1", "amount": 90}))
        with pytest.raises(DuplicateAction):
            at.decide(waiting, Edit({"order_id": "INV-1", "amount": 95}))
        repeat = await ask(door, at, "d2", order_id="INV-1", amount=90, repeat_of=done.action_id)
        with pytest.raises(DuplicateAction):
            at.decide(waiting, Edit({"order_id": "INV-1", "amount": 90}))
        at.decide(repeat, Reject())
        with pytest.raises(DuplicateAction, match=str(done.action_id)):
            at.decide(waiting, Edit({"order_id": "INV-1", "amount": 90}))
        assert (triggers_of(at.ledger, waiting), at.amounts) == (["plan"], [90.0])
        at.clock.sleep(HOUR_S / 2)
        at.approve(waiting)
        await ask(door, at)
        assert at.amounts == [90.0, 200.0]
        await at.ledger.aclose()


@both_doors
async def test_an_edit_into_what_waits_already_is_refused(door: Door, database_url: str) -> None:
    """Two requests for one order do not become one by an edit of either."""
    with office(database_url) as at:
        other = await ask(door, at, "d0", order_id="INV-1")
        waiting = await ask(door, at)
        with pytest.raises(DuplicateAction, match=f"{other.action_id} already, which is planned"):
            at.decide(waiting, Edit({"order_id": "INV-1"}))
        assert states(database_url) == ["planned", "planned"]
        await at.ledger.aclose()


@both_doors
async def test_an_edit_into_what_was_refused_before_is_a_new_request(door: Door, database_url: str) -> None:
    """A person changes his mind by deciding: its policy is asked, and the next place of the intent is taken."""
    with office(database_url) as at:
        at.decide(await ask(door, at, "d0", order_id="INV-1"), Reject())
        waiting = await ask(door, at)
        new = at.decide(waiting, Edit({"order_id": "INV-1"}))
        assert (new.state, new.occurrence) == (State.PLANNED, 1)
        at.decide(new, Approve(), **BOB)
        told = await ask(door, at)
        assert (ended(told), at.remote.effects[0]["order_id"]) == (CHANGED, "INV-1")
        await at.ledger.aclose()


def test_who_edits_does_not_approve_his_own_edit(database_url: str) -> None:
    """Four eyes are on what will run, and not on what was asked for."""
    with office(database_url) as at:
        waiting = perform(at.tool, ORDER, ledger=at.ledger, thread_id="thread-1", requester="joe")
        new = at.decide(waiting, Edit({"amount": 9999}))
        with pytest.raises(NotPermitted, match="maria changed it, and somebody else must decide"):
            at.decide(new, Approve())
        assert at.decide(new, Approve(), **BOB).state is State.APPROVED


def test_an_edit_is_asked_about_again_where_the_policy_is_not_at_hand(database_url: str) -> None:
    """The agent's policies by risk stay with the agent: a desk without them asks as they did."""
    remote = Remote()
    tool = refund(remote, approval=None)
    with opened(database_url) as ledger:
        policies = {"non_idempotent_write": always(**ASKING)}
        waiting = perform(tool, ORDER, ledger=ledger, thread_id="t", requester="joe", policies=policies)
        found = action_of(ledger, waiting)
        desk = Desk(ledger, tools=[tool])
        new = desk.decide(found.id, Edit({"amount": 1_000_000}), fingerprint=found.fingerprint, **MARIA)
        assert (new.state, desk.approval(new.id).approvers) == (State.PLANNED, ("supervisor",))
        assert remote.effects == []


@both_doors
async def test_an_edit_of_the_identity_takes_the_call_along(door: Door, database_url: str) -> None:
    """The order was mistyped: the call for the wrong one is answered with the right one, which alone runs."""
    with office(database_url) as at:
        waiting = await ask(door, at, amount=90 + 110)
        new = at.decide(waiting, Edit({"order_id": "INV-201", "amount": 50}))
        told = [await ask(door, at, d) for d in ("d1", "d2", None)]
        assert [(ended(o), o.action_id) for o in told] == [(CHANGED, new.id)] * 3
        assert [(e["order_id"], e["amount"]) for e in at.remote.effects] == [("INV-201", 50.0)]
        assert "(amount (200.0 before, 50.0 now); order_id (INV-102 before, INV-201 now))" in told[0].message
        direct = await ask(door, at, "d3", order_id="INV-201", amount=50)
        assert (direct.code, direct.receipt) == (Code.DUPLICATE, "RF-1")
        await at.ledger.aclose()


@both_doors
async def test_the_changed_call_itself_is_no_conflict(door: Door, database_url: str) -> None:
    """Whoever calls with what a person changed it to meets that action; a third amount is a conflict with it."""
    with office(database_url) as at:
        new = at.decide(await ask(door, at), Edit({"amount": 90}))
        direct = await ask(door, at, "d2", amount=90)
        assert (direct.code, direct.action_id, direct.receipt) == (Code.SUCCEEDED, new.id, "RF-1")
        third = await ask(door, at, "d3", amount=70)
        assert (third.code, third.artifact["differing"]) == (Code.CONFLICT, {"amount": [90.0, 70.0]})
        assert at.amounts == [90.0]
        await at.ledger.aclose()


@both_doors
async def test_a_chain_of_edits_leads_to_its_end(door: Door, database_url: str) -> None:
    """200 → 150 → 130 → 90: the first call hears what became of the last, and is told of its own request."""
    with office(database_url) as at:
        first = await ask(door, at)
        one = at.decide(first, Edit({"amount": 150}), **MARIA)
        two = at.decide(one, Edit({"amount": 130}), **BOB)
        assert ended(await ask(door, at)) == WAITS
        last = at.decide(two, Edit({"amount": 90}), **MARIA)
        told = [await ask(door, at, d) for d in ("d1", "d2", None)]
        for outcome in told:
            assert (ended(outcome), outcome.action_id) == (CHANGED, last.id)
            assert outcome.artifact["supersedes"] == first.action_id
            assert outcome.artifact["differing"] == {"amount": [200.0, 90.0]}
        between = await ask(door, at, "d4", amount=130)
        assert (between.code, between.artifact["supersedes"], between.artifact["differing"]) == (
            *(Code.CHANGED_BY_PERSON, two.id),
            {"amount": [130.0, 90.0]},
        )
        assert (states(database_url), at.amounts) == (["cancelled"] * 3 + ["succeeded"], [90.0])
        assert at.desk.approvals() == []
        await at.ledger.aclose()


# What goes along.


@both_doors
@pytest.mark.parametrize("moved", [False, True], ids=["kept", "moved"])
async def test_the_business_key_goes_along(door: Door, moved: bool, database_url: str) -> None:
    """An edit keeps its key, or moves to another one and frees the first; one that is held is refused."""
    with office(database_url) as at:
        at.tool = refund(at.remote, unique=("order_id",), approval=over("amount", 100, **ASKING))
        held = await ask(door, at, "d0", thread_id="t-9", order_id="INV-9")
        waiting = await ask(door, at)
        with pytest.raises(DuplicateAction):
            at.decide(waiting, Edit({"order_id": "INV-9"}))
        assert at.action(waiting).state is State.PLANNED
        new = at.decide(waiting, Edit({"amount": 150, **({"order_id": "INV-5"} if moved else {})}))
        there = await ask(door, at, "d5", thread_id="t-5", order_id="INV-5")
        here = await ask(door, at, "d6", thread_id="t-6", order_id="INV-102")
        assert (there.action_id == new.id, here.action_id == new.id) == (moved, not moved)
        at.decide(new, Approve(), **BOB)
        assert ended(await ask(door, at)) == CHANGED
        assert (at.action(held).state, at.amounts) == (State.PLANNED, [150.0])
        await at.ledger.aclose()


@both_doors
async def test_a_secret_that_was_shown_hidden_stays(door: Door, database_url: str) -> None:
    """The desk's form sends the stars back: that is the secret as it was. Another value is a change, sealed as well."""
    got: list[tuple[str, str, float]] = []

    @action(
        risk="non_idempotent_write", remote="opaque", identity=("order",), approval=over("amount", 100, ttl=_DAY),
    )  # fmt: skip
    def pay(order: str, card: Annotated[str, Secret()], amount: float) -> object:
        got.append((order, card, amount))
        return {"receipt": "R-1"}

    with opened(database_url, secret_key=Fernet.generate_key().decode(), clock=Clock()) as ledger:
        desk = Desk(ledger, tools=[pay])

        async def call(order: str) -> Outcome:
            return await door(pay, [order, "4111-1234", 200], ledger=ledger, decision="d1")

        edits: list[tuple[str, Any]] = [
            *(("A-1", {"card": HIDDEN, "amount": 50}), ("A-2", {"amount": 50})),
            ("A-3", {"card": "5500-9876", "amount": 50}),
        ]
        told = []
        for order, arguments in edits:
            ticket = desk.approval(str((await call(order)).action_id))
            desk.decide(ticket.action_id, Edit(arguments), by="maria", fingerprint=ticket.fingerprint)
            told.append(await call(order))
        ticket = desk.approval(str((await call("A-4")).action_id))
        with pytest.raises(InvalidArguments, match="same as before"):
            desk.decide(ticket.action_id, Edit({"card": HIDDEN}), by="maria", fingerprint=ticket.fingerprint)
        await ledger.aclose()
    assert got == [("A-1", "4111-1234", 50.0), ("A-2", "4111-1234", 50.0), ("A-3", "5500-9876", 50.0)]
    said = str([(o.message, dict(o.artifact)) for o in told])
    for table in ("actions", "events", "approvals"):
        said += str(rows(database_url, f"SELECT t::text FROM settled.{table} t"))
    assert "4111" not in said
    assert "5500" not in said


@both_doors
async def test_an_edited_repeat_stays_a_repeat_and_asks(door: Door, database_url: str) -> None:
    """However small it becomes: a deliberate repeat is never silent."""
    with office(database_url) as at:
        first = await ask(door, at, "d0", amount=50)
        asked = await ask(door, at, "d1", amount=60, repeat_of=first.action_id)
        new = at.decide(asked, Edit({"amount": 20, "repeat_of": None}), by="anybody")
        assert (new.state, new.repeat_of) == (State.PLANNED, first.action_id)
        assert ended(await ask(door, at, "d1", amount=60, repeat_of=first.action_id)) == WAITS
        at.decide(new, Approve(), by="anybody")
        done = await ask(door, at, "d1", amount=60, repeat_of=first.action_id)
        assert (ended(done), at.amounts) == (CHANGED, [50.0, 20.0])
        await at.ledger.aclose()


@both_doors
async def test_the_summary_of_an_edit_speaks_the_language_of_the_first(door: Door, database_url: str) -> None:
    """The ledger keeps one summary, in the language of the conversation."""
    with office(database_url) as at:
        summary = {"en": "refund {amount} for {order_id}", "zh": "为订单 {order_id} 退款 {amount}"}
        at.tool = refund(at.remote, summary=summary)
        new = at.decide(await ask(door, at, language="zh"), Edit({"amount": 150}))
        assert new.summary == "为订单 INV-102 退款 150.0"
        other = at.decide(await ask(door, at, "d2", order_id="B-2"), Edit({"amount": 150}))
        assert other.summary == "refund 150.0 for B-2"
        await at.ledger.aclose()


@both_doors
async def test_whose_it_is_goes_along(door: Door, database_url: str) -> None:
    """Thread, tenant, requester and correlation id are the original's: four eyes still exclude who asked."""
    with office(database_url) as at:
        options: dict[str, Any] = {"tenant": "ours", "thread_id": "t-7", "requester": "joe", "correlation_id": "c-1"}
        waiting = await door(at.tool, ORDER, ledger=at.ledger, **options)
        desk = Desk(at.ledger, tools=[at.tool], tenant="ours")
        ticket = desk.approval(str(waiting.action_id))
        new = desk.decide(ticket.action_id, Edit({"amount": 150}), fingerprint=ticket.fingerprint, **MARIA)
        assert (new.tenant, new.thread_id, new.requester, new.correlation_id) == ("ours", "t-7", "joe", "c-1")
        with pytest.raises(NotPermitted, match="joe asked for it"):
            desk.decide(new.id, Approve(), by="joe", roles=("supervisor",), fingerprint=new.fingerprint)
        await at.ledger.aclose()


# At once.


def test_an_edit_and_a_yes_at_once(database_url: str) -> None:
    """One of them stands: either 200 runs or 90, never both, and the other hears which."""
    with office(database_url) as at, opened(database_url, clock=at.clock) as two:
        for n in range(8):
            order = {"order_id": f"A-{n}", "amount": 200}
            found = at.action(_perform(at, order))
            barrier, results = threading.Barrier(2), dict[str, Any]()

            def decide(name: str, desk: Desk, decision: Any, who: dict[str, Any], found: Action = found) -> None:
                barrier.wait()  # noqa: B023 - both threads end before the next round
                try:
                    results[name] = desk.decide(found.id, decision, fingerprint=found.fingerprint, **who)  # noqa: B023
                except AlreadyDecided as error:
                    results[name] = error  # noqa: B023

            other = Desk(two, tools=[refund(at.remote)])
            threads = [
                threading.Thread(target=decide, args=("edit", at.desk, Edit({"amount": 90}), MARIA)),
                threading.Thread(target=decide, args=("yes", other, Approve(), BOB)),
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            edited = isinstance(results["edit"], Action)
            assert isinstance(results["yes"], AlreadyDecided if edited else Action), results
            assert ("maria changed it" if edited else "bob approved it") in str(results["yes" if edited else "edit"])
            before = len(at.amounts)
            assert _perform(at, order).code == (Code.CHANGED_BY_PERSON if edited else Code.SUCCEEDED)
            assert at.amounts[before:] == [90.0 if edited else 200.0]


async def test_sixteen_calls_of_the_original_run_the_edit_once(database_url: str) -> None:
    """By sixteen decisions, at the same instant."""
    import asyncio

    with office(database_url) as at:
        waiting = await ask(_sync, at)
        at.decide(waiting, Edit({"amount": 90}))
        told = await asyncio.gather(*(ask(_sync, at, f"d{n}") for n in range(16)))
        assert {(o.code, o.receipt) for o in told} == {(Code.CHANGED_BY_PERSON, "RF-1")}
        assert at.amounts == [90.0]
        await at.ledger.aclose()


_DAY = timedelta(days=1)


async def _sync(*args: Any, **options: Any) -> Outcome:
    from acts import through_sync

    return await through_sync(*args, **options)


def _perform(at: Office, order: dict[str, object]) -> Outcome:
    from settled import perform

    return perform(at.tool, order, ledger=at.ledger, thread_id="t", decision=f"d-{order['order_id']}", requester="joe")
