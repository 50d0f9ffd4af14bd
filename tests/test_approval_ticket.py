"""An approval is a ticket: bound to what was shown, decided once, spent by the claim; many at once spend it once."""

import asyncio
import dataclasses
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from acts import Door, Remote, action_of, both_doors, count, opened, rows, through_sync, triggers_of
from asked import BOB, HOUR_S, MARIA, ORDER, Office, office, refund
from settled import (
    Action,
    AlreadyDecided,
    Approve,
    Code,
    ContractError,
    Desk,
    Edit,
    Ledger,
    NotFound,
    NotPermitted,
    Outcome,
    Reject,
    ShownOtherwise,
    State,
    Trigger,
    Unguarded,
    action,
    always,
    over,
)
from settled.state import ledger as ledger_queries
from settled.tools.contract import contract_of
from settled.tools.perform import Options, prepare

Result = Action | Exception
WAITS = (Code.WAITING_FOR_APPROVAL, State.PLANNED)
RUNS = (Code.SUCCEEDED, State.SUCCEEDED)


def ended(outcome: Outcome) -> tuple[Code, State | None]:
    return outcome.code, outcome.state


def at_once(*deciding: Callable[[], Action]) -> list[Result]:
    """Let several people decide at the same instant, each in a thread."""
    barrier, results = threading.Barrier(len(deciding)), [None] * len(deciding)

    def one(number: int, decide: Callable[[], Action]) -> None:
        barrier.wait()
        try:
            results[number] = decide()  # type: ignore[call-overload]
        except Exception as error:
            results[number] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=one, args=pair) for pair in enumerate(deciding)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results  # type: ignore[return-value]


# Two people at once.


def test_two_approvers_at_once(database_url: str) -> None:
    """One yes and one no, from two ledgers: one stands, the other hears it, and what stood is what is run."""
    remote = Remote()
    tool = refund(remote)
    with opened(database_url) as one, opened(database_url) as two:
        for n in range(8):
            waiting = _wait(one, tool, f"A-{n}")
            found = action_of(one, waiting)

            def maria(found: Action = found) -> Action:
                return Desk(one).decide(found.id, Approve(), fingerprint=found.fingerprint, **MARIA)

            def bob(found: Action = found) -> Action:
                return Desk(two).decide(found.id, Reject("no"), fingerprint=found.fingerprint, **BOB)

            results = at_once(maria, bob)
            refused = [r for r in results if isinstance(r, AlreadyDecided)]
            assert len(refused) == 1, results
            yes = isinstance(results[0], Action)
            assert ("maria approved it" if yes else "bob rejected it") in str(refused[0])
            assert str(refused[0]).endswith(f"the first decision on {found.id} stands")
            before = len(remote.effects)
            told = _again(two, tool, f"A-{n}")
            assert told.code == (Code.SUCCEEDED if yes else Code.DENIED)
            assert len(remote.effects) - before == yes
            ticket = Desk(one).approval(found.id)
            assert (ticket.decision, ticket.decided_by) == (("approve", "maria") if yes else ("deny", "bob"))
            decisions = [t for t in triggers_of(one, waiting) if t in ("approve", "deny")]
            assert decisions == ["approve" if yes else "deny"]


def test_two_approvers_who_agree(database_url: str) -> None:
    """It is approved once, by one of them; the other hears by whom."""
    tool = refund(Remote())
    with opened(database_url) as one, opened(database_url) as two:
        found = action_of(one, _wait(one, tool, "A-1"))
        results = at_once(
            lambda: Desk(one).decide(found.id, Approve(), fingerprint=found.fingerprint, **MARIA),
            lambda: Desk(two).decide(found.id, Approve(), fingerprint=found.fingerprint, **BOB),
        )
        assert [type(r) for r in results].count(AlreadyDecided) == 1
        assert rows(database_url, "SELECT 1 FROM settled.events WHERE trigger = 'approve'") == [{"?column?": 1}]


def test_a_webhook_that_is_delivered_twice(database_url: str) -> None:
    """At the same instant, later, and after it was run: one decision, one event, no error, one effect."""
    remote = Remote()
    tool = refund(remote)
    with opened(database_url) as one, opened(database_url) as two:
        found = action_of(one, _wait(one, tool, "A-1"))

        def deliver(ledger: Ledger = one) -> Action:
            return Desk(ledger).decide(found.id, Approve("ok"), fingerprint=found.fingerprint, **MARIA)

        results = at_once(*[deliver, lambda: deliver(two)] * 4)
        assert {r.state for r in results if isinstance(r, Action)} == {State.APPROVED}
        assert len([r for r in results if isinstance(r, Action)]) == 8
        assert _again(one, tool, "A-1").code == Code.SUCCEEDED
        assert deliver().state is State.SUCCEEDED
        assert triggers_of(one, _again(one, tool, "A-1")) == ["plan", "approve", "claim", "succeed"]
        assert len(remote.effects) == 1


@both_doors
async def test_a_yes_that_is_delivered_again_after_its_permission_ended(door: Door, database_url: str) -> None:
    """It names the round that it answers: the next one still waits, and the ticket of the first is spent by nobody."""
    with office(database_url) as at:
        waiting = await door(at.tool, ORDER, ledger=at.ledger, requester="joe")
        yes = Approve(round=at.desk.approval(str(waiting.action_id)).round)
        at.decide(waiting, yes, **MARIA)
        at.clock.sleep(HOUR_S)
        await door(at.tool, ORDER, ledger=at.ledger, requester="joe")
        assert at.decide(waiting, yes, **MARIA).state is State.PLANNED
        with pytest.raises(AlreadyDecided, match="maria approved it"):
            at.decide(waiting, yes, **BOB)
        assert [(t.round, t.decision) for t in at.desk.history(str(waiting.action_id))] == [(1, "approve"), (2, None)]
        assert at.decide(waiting, Approve(round=2), **BOB).state is State.APPROVED
        assert (await door(at.tool, ORDER, ledger=at.ledger, requester="joe")).code == Code.SUCCEEDED
        assert at.amounts == [118.5]
        await at.ledger.aclose()


@both_doors
async def test_a_second_decision_hears_the_first(door: Door, database_url: str) -> None:
    """Another person's, another decision of the same person, an edit; before it was run and after it."""
    with office(database_url) as at:
        waiting = await door(at.tool, ORDER, ledger=at.ledger, requester="joe")
        at.decide(waiting, Approve("seen it"), **MARIA)
        words = r"maria approved it at 2026-01-05 12:00:00\+00:00 \(seen it\): the first decision on act-\S+ stands"
        seconds: list[tuple[Any, dict[str, Any]]] = [
            *((Approve(), BOB), (Reject(), BOB), (Reject(), MARIA), (Edit({"amount": 5}), MARIA)),
        ]
        for decision, who in seconds:
            with pytest.raises(AlreadyDecided, match=words):
                at.decide(waiting, decision, **who)
        assert at.action(waiting).state is State.APPROVED
        await door(at.tool, ORDER, ledger=at.ledger, requester="joe")
        for decision, who in seconds:
            with pytest.raises(AlreadyDecided, match=words):
                await at.desk.adecide(
                    str(waiting.action_id), decision, fingerprint=at.action(waiting).fingerprint, **who
                )
        assert (at.amounts, at.action(waiting).state) == ([118.5], State.SUCCEEDED)
        await at.ledger.aclose()


def test_what_asked_nobody_is_decided_by_nobody(database_url: str) -> None:
    """An action that ran by policy, or was denied by one, has no ticket."""
    with office(database_url) as at:
        done = _wait(at.ledger, at.tool, "A-1", amount=5)
        with pytest.raises(AlreadyDecided, match="is succeeded: no person is asked about it"):
            at.decide(done, Approve())
        with pytest.raises(NotFound):
            at.desk.approval(str(done.action_id))
        assert count(database_url, "settled.approvals") == 0


# Many executors at once.


async def test_thirty_two_executors_at_once_spend_one_ticket(ledger: Ledger) -> None:
    """One effect, one claim; all of them get its receipt."""
    remote = Remote()
    tool = refund(remote)
    waiting = await through_sync(tool, ORDER, ledger=ledger, requester="joe")
    found = action_of(ledger, waiting)
    Desk(ledger).decide(found.id, Approve(), fingerprint=found.fingerprint, **MARIA)
    with opened(ledger.url) as other:
        calls = (
            through_sync(tool, ORDER, ledger=one, requester="joe", decision=None if n % 2 else f"d{n}")
            for n, one in enumerate([ledger, other] * 16)
        )
        outcomes = await asyncio.gather(*calls)
    assert {(o.receipt, o.action_id) for o in outcomes} == {("RF-1", waiting.action_id)}
    assert len(remote.effects) == 1
    assert triggers_of(ledger, waiting).count("claim") == 1


async def test_thirty_two_claims_at_once_are_one(ledger: Ledger) -> None:
    """Also where nobody plans or meets before: the statement alone lets one through."""
    waiting = await through_sync(refund(Remote()), ORDER, ledger=ledger, requester="joe")
    found = action_of(ledger, waiting)
    Desk(ledger).decide(found.id, Approve(), fingerprint=found.fingerprint, **MARIA)

    def claim(n: int) -> Action | None:
        return ledger.run(ledger_queries.claim("default", found.id, owner=f"o-{n}", lease_s=5, deadline_s=5))

    results = await asyncio.gather(*(asyncio.to_thread(claim, n) for n in range(32)))
    moved = [r for r in results if r is not None]
    assert [(r.state, r.fencing_token, r.attempt) for r in moved] == [(State.RUNNING, 1, 1)]
    assert Desk(ledger).approval(found.id).spent_at == moved[0].started_at


def test_a_decision_and_an_expiry_at_once(database_url: str) -> None:
    """At the end of its time: it is approved, or expired, never both."""
    with office(database_url) as at:
        for n in range(6):
            waiting = _wait(at.ledger, at.tool, f"A-{n}")
            found = at.action(waiting)
            at.clock.sleep(HOUR_S)

            def approve(found: Action = found) -> Action:
                return at.desk.decide(found.id, Approve(), fingerprint=found.fingerprint, **MARIA)

            def look(n: int = n) -> Action:
                return action_of(at.ledger, _again(at.ledger, at.tool, f"A-{n}"))

            results = at_once(approve, look)
            assert isinstance(results[0], AlreadyDecided)
            assert (at.action(waiting).state, at.amounts) == (State.CANCELLED, [])


# The clock of the statement, whatever was read before it.


def test_each_statement_judges_its_time_by_the_ledgers_clock(database_url: str) -> None:
    """A yes, a no or an edit after the end moves nothing, nor does an expiry before it; and no claim after a
    permission's.
    """
    q = ledger_queries
    with office(database_url) as at:
        found = at.action(_wait(at.ledger, at.tool, "A-1"))
        approve = q.approve("default", found.id, fingerprint=found.fingerprint, approver="maria", valid_for_s=HOUR_S)
        deny = q.cancel("default", found.id, trigger=Trigger.DENY, code="denied", reason="")
        expire = q.cancel("default", found.id, trigger=Trigger.EXPIRE, code="expired", reason="")
        changed = prepare(contract_of(at.tool), ["A-1", 5], Options("thread-1"), at.ledger).plan
        plan = dataclasses.replace(changed, is_claimed_later=True, supersedes=found.id, occurrence=1)
        edit = q.supersede(found, plan, editor="maria", code="changed_by_person", reason="", note=None)
        claim = q.claim("default", found.id, owner="o", lease_s=5, deadline_s=5)
        assert at.ledger.run(expire) is None
        assert at.ledger.run(claim) is None
        at.clock.sleep(HOUR_S)
        assert [at.ledger.run(late) for late in (approve, deny, edit)] == [None] * 3
        assert (at.action_now(found).state, count(database_url)) == (State.PLANNED, 1)

        at.clock.sleep(-1)
        approved = at.ledger.run(approve)
        assert approved is not None
        assert approved.approved_until == at.clock() + timedelta(hours=1)
        assert at.ledger.run(q.lapse("default", found.id)) is None
        at.clock.sleep(HOUR_S)
        assert at.ledger.run(claim) is None
        assert at.desk.approval(found.id).spent_at is None
        assert [at.ledger.run(late) for late in (approve, deny, expire, edit)] == [None] * 4
        lapsed = at.ledger.run(q.lapse("default", found.id))
        assert lapsed is not None
        assert (lapsed.state, lapsed.asked_until) == (State.PLANNED, at.clock() + timedelta(hours=1))
        assert at.ledger.run(claim) is None


def test_an_edit_of_another_fingerprint_moves_nothing(database_url: str) -> None:
    """The statement itself names what was shown."""
    with office(database_url) as at:
        found = at.action(_wait(at.ledger, at.tool, "A-1"))
        shown = dataclasses.replace(found, fingerprint="sha256:" + "0" * 64)
        changed = prepare(contract_of(at.tool), ["A-1", 5], Options("thread-1"), at.ledger).plan
        plan = dataclasses.replace(changed, is_claimed_later=True, supersedes=found.id, occurrence=1)
        names = {"editor": "maria", "code": "changed_by_person", "reason": ""}
        assert at.ledger.run(ledger_queries.supersede(shown, plan, **names, note=None)) is None
        assert (at.action_now(found).state, count(database_url)) == (State.PLANNED, 1)


# Who may.

ROLES: list[tuple[tuple[str, ...], str, tuple[str, ...], bool]] = [
    ((), "anybody", (), True),
    (("supervisor",), "ann", ("supervisor",), True),
    (("supervisor",), "ann", ("clerk", "supervisor"), True),
    (("supervisor",), "supervisor", (), True),
    (("supervisor",), "ann", (), False),
    (("supervisor",), "ann", ("Supervisors",), False),
    (("supervisor",), "ann", ("super",), False),
    (("ann", "bob"), "BOB ", (), True),
    (("ann", "bob"), "bobby", (), False),
    (("ann", "bob"), "eve", ("clerk",), False),
]


@pytest.mark.parametrize(("approvers", "by", "roles", "may"), ROLES, ids=range(len(ROLES)))
def test_approvers_are_names_or_roles(
    approvers: tuple[str, ...], by: str, roles: tuple[str, ...], may: bool, database_url: str
) -> None:
    """Whoever is neither may decide nothing: no yes, no no, no edit. The refusal writes nothing down."""
    with office(database_url) as at:
        at.tool = refund(at.remote, approval=over("amount", 100, approvers=approvers))
        waiting = _wait(at.ledger, at.tool, "A-1")
        if may:
            assert at.decide(waiting, Approve(), by=by, roles=roles).approver == by
            return
        for decision in (Approve(), Reject(), Edit({"amount": 5})):
            with pytest.raises(NotPermitted, match=f"{by} may not decide: it takes {' or '.join(approvers)}"):
                at.decide(waiting, decision, by=by, roles=roles)
        assert (at.action(waiting).state, triggers_of(at.ledger, waiting)) == (State.PLANNED, ["plan"])
        assert at.decide(waiting, Approve(), by=approvers[0]).state is State.APPROVED


@pytest.mark.parametrize(
    ("requester", "by"),
    [
        ("joe", "joe"),
        ("joe", "JOE"),
        ("Joe", "  joe "),
        ("joe@example.com", "Joe@Example.COM"),
        ("Straße", "STRASSE"),
        ("Jose\u0301", "Jos\u00e9"),
        ("ann lee", "Ann  Lee"),
        ("joe", "\uff4a\uff4f\uff45"),
        (None, "ann"),
        (" ", "ann"),
    ],
)
def test_four_eyes(requester: str | None, by: str, database_url: str) -> None:
    """The requester does not decide, however the name is written; where nobody knows who that is, nobody does."""
    with office(database_url) as at:
        waiting = _wait(at.ledger, at.tool, "A-1", requester=requester)
        known = bool((requester or "").strip())
        words = "and somebody else must decide" if known else "the action does not say who that is"
        for decision in (Approve(), Reject(), Edit({"amount": 5})):
            with pytest.raises(NotPermitted, match=words):
                at.decide(waiting, decision, by=by, roles=("supervisor",))
        assert (at.action(waiting).state, at.amounts) == (State.PLANNED, [])
        if known:
            assert at.decide(waiting, Approve(), **MARIA).state is State.APPROVED


def test_without_four_eyes_the_requester_may(database_url: str) -> None:
    """Where the author does not ask for a second person."""
    with office(database_url) as at:
        at.tool = refund(at.remote, approval=over("amount", 100))
        waiting = _wait(at.ledger, at.tool, "A-1")
        assert at.decide(waiting, Approve(), by="joe").approver == "joe"


# What was shown.


def test_a_decision_is_on_what_was_shown(database_url: str) -> None:
    """A fingerprint that is short, wrong, another action's, or not there decides nothing."""
    with office(database_url) as at:
        waiting, other = _wait(at.ledger, at.tool, "A-1"), _wait(at.ledger, at.tool, "A-2")
        found = at.action(waiting)
        digits = found.fingerprint.removeprefix("sha256:")
        wrong: list[Any] = [
            *("", "sha256:", digits[:11], f"sha256:{digits[:11]}", found.fingerprint + "0", f"{digits[:-1]}x"),
            *(at.action(other).fingerprint, "0" * 64, f" {digits}", digits.upper(), f"{digits}\n", None, b"x", 5),
        ]
        for shown in wrong:
            for decision in (Approve(), Reject(), Edit({"amount": 5})):
                with pytest.raises(ShownOtherwise):
                    at.desk.decide(found.id, decision, fingerprint=shown, **MARIA)
        assert triggers_of(at.ledger, waiting) == ["plan"]
        for shown in (digits[:12], f"sha256:{digits[:12]}", digits, found.fingerprint):
            assert at.desk.decide(found.id, Approve(), fingerprint=shown, **MARIA).state is State.APPROVED
        assert at.action(other).state is State.PLANNED


async def test_an_unknown_id_and_another_tenants_are_the_same(database_url: str) -> None:
    """There is no such action; nothing is told of the other tenant, and nothing is decided."""
    with office(database_url) as at:
        waiting = _wait(at.ledger, at.tool, "A-1")
        fingerprint = at.action(waiting).fingerprint
        theirs = Desk(at.ledger, tools=[at.tool], tenant="theirs")
        for desk, action_id in ((theirs, str(waiting.action_id)), (at.desk, "act-0000000000000000"), (at.desk, "")):
            for decision in (Approve(), Reject(), Edit({"amount": 5})):
                with pytest.raises(NotFound):
                    desk.decide(action_id, decision, fingerprint=fingerprint, **MARIA)
                with pytest.raises(NotFound):
                    await desk.adecide(action_id, decision, fingerprint=fingerprint, **MARIA)
            with pytest.raises(NotFound):
                desk.approval(action_id)
        assert (theirs.approvals(), at.action(waiting).state) == ([], State.PLANNED)
        await at.ledger.aclose()


@pytest.mark.parametrize("decision", [None, "approve", True, Approve, {"type": "approve"}])
def test_what_is_no_decision_decides_nothing(decision: Any, database_url: str) -> None:
    """A word that a host read from a form is not one."""
    with office(database_url) as at:
        waiting = _wait(at.ledger, at.tool, "A-1")
        with pytest.raises(ContractError, match=r"a decision is Approve\(\), Reject\(\) or Edit"):
            at.decide(waiting, decision)
        assert at.action(waiting).state is State.PLANNED


async def test_open_approvals_are_listed_by_their_end(database_url: str) -> None:
    """Of one tenant, of one thread if asked; what ends first comes first."""
    with office(database_url) as at:
        slow = refund(at.remote, approval=always(ttl=timedelta(hours=3)))
        first = _wait(at.ledger, slow, "A-1")
        second = _wait(at.ledger, at.tool, "A-2", thread_id="t-2")
        _wait(at.ledger, at.tool, "A-3", tenant="theirs")
        decided = _wait(at.ledger, at.tool, "A-4")
        at.decide(decided, Reject())
        assert [a.action_id for a in at.desk.approvals()] == [second.action_id, first.action_id]
        assert [a.action_id for a in at.desk.approvals(thread_id="t-2")] == [second.action_id]
        assert [a.action_id for a in at.desk.approvals(most=1)] == [second.action_id]
        shown = at.desk.approvals()[0]
        assert (shown.arguments, shown.thread_id) == ({"order_id": "A-2", "amount": 118.5, "memo": ""}, "t-2")


# A row that was changed behind the ledger's back, by a superuser who turned the guard off.

FORGED = {
    "arguments": "arguments = replace(arguments::text, '118.5', '180')::json",
    "arguments and fingerprint": (
        "arguments = replace(arguments::text, '118.5', '180')::json, fingerprint = decode('{other}', 'hex')"
    ),
    "fingerprint": "fingerprint = decode('{other}', 'hex')",
    "state": "state = 'approved', trigger = 'approve', approver = 'maria', asked_until = NULL",
    "state, and until when": (
        "state = 'approved', trigger = 'approve', approver = 'maria', asked_until = NULL,"
        " approved_until = settled.now() + interval '1 day'"
    ),
    "state of what was refused": (
        "state = 'approved', trigger = 'approve', approver = 'maria', code = NULL, reason = NULL, settled_at = NULL"
    ),
    "state back from what was done": (
        "state = 'approved', trigger = 'approve', settled_at = NULL, owner = NULL, result = NULL, evidence = NULL"
    ),
}


@both_doors
@pytest.mark.parametrize("forged", FORGED)
@pytest.mark.parametrize("decision", ["d1", None])
async def test_a_row_that_was_changed_by_hand_is_not_carried_out(
    door: Door, decision: str | None, forged: str, database_url: str
) -> None:
    """118.5 was asked about: 180 never runs, nor what nobody approved, nor what was spent already."""
    with office(database_url) as at:

        async def call() -> Outcome:
            return await door(at.tool, ORDER, ledger=at.ledger, decision=decision, requester="joe", wait_s=0)

        waiting = await call()
        if forged in ("arguments", "arguments and fingerprint", "fingerprint"):
            at.approve(waiting)
        if forged == "state of what was refused":
            at.decide(waiting, Reject())
        if forged == "state back from what was done":
            at.approve(waiting)
            assert ended(await call()) == RUNS
        before = list(at.amounts)
        forge(at, waiting, FORGED[forged])
        told = [await call() for _ in range(3)]
        assert at.amounts == before
        assert not [o for o in told if o.code in (Code.SUCCEEDED, Code.DUPLICATE, Code.IN_PROGRESS)]
        await at.ledger.aclose()


@both_doors
async def test_changed_arguments_are_an_end(door: Door, database_url: str) -> None:
    """They are not those that were approved: the body is not called, and the action has failed."""
    with office(database_url) as at:
        waiting = await door(at.tool, ORDER, ledger=at.ledger, decision="d1", requester="joe")
        at.approve(waiting)
        forge(at, waiting, FORGED["arguments"])
        told = await door(at.tool, ORDER, ledger=at.ledger, decision="d1", requester="joe")
        assert (told.code, told.state, at.amounts) == (Code.FORBIDDEN, State.FAILED, [])
        assert "its stored arguments are not those that were approved" in told.message
        await at.ledger.aclose()


@both_doors
async def test_a_fingerprint_that_the_ticket_does_not_have_is_asked_about(door: Door, database_url: str) -> None:
    """The old yes is for another fingerprint: a person is asked anew, by the arguments as they stand there now."""
    with office(database_url) as at:
        waiting = await door(at.tool, ORDER, ledger=at.ledger, decision="d1", requester="joe")
        old = at.approve(waiting)
        forge(at, waiting, FORGED["arguments and fingerprint"])
        told = await door(at.tool, ORDER, ledger=at.ledger, decision="d1", requester="joe")
        assert (ended(told), at.amounts) == (WAITS, [])
        ticket = at.desk.approval(str(waiting.action_id))
        assert (ticket.round, ticket.decision, ticket.arguments["amount"]) == (2, None, 180)
        with pytest.raises(ShownOtherwise):
            at.decide(old, Approve())
        await at.ledger.aclose()


@both_doors
async def test_a_forged_approval_asks_with_one_ticket(door: Door, database_url: str) -> None:
    """What nobody decided is asked about again; there is one open question, and one answer to it."""
    with office(database_url) as at:
        waiting = await door(at.tool, ORDER, ledger=at.ledger, decision="d1", requester="joe")
        forge(at, waiting, FORGED["state"])
        assert ended(await door(at.tool, ORDER, ledger=at.ledger, decision="d1", requester="joe")) == WAITS
        assert [a.action_id for a in at.desk.approvals()] == [waiting.action_id]
        at.approve(waiting)
        assert ended(await door(at.tool, ORDER, ledger=at.ledger, decision="d1", requester="joe")) == RUNS
        spent = rows(database_url, "SELECT 1 FROM settled.approvals WHERE spent_at IS NOT NULL")
        assert (len(spent), at.amounts) == (1, [118.5])
        await at.ledger.aclose()


def forge(at: Office, outcome: Outcome, change: str) -> None:
    """Change a row as a superuser may."""
    other = at.tool  # the fingerprint that 180 would have
    planned = _fingerprint_of(at.ledger, other, {**ORDER, "amount": 180})
    with psycopg.connect(at.ledger.url, autocommit=True) as connection:
        connection.execute("ALTER TABLE settled.actions DISABLE TRIGGER guard")
        done = connection.execute(
            f"UPDATE settled.actions SET {change.format(other=planned)} WHERE id = %s",
            [outcome.action_id],
        )
        connection.execute("ALTER TABLE settled.actions ENABLE TRIGGER guard")
    assert done.rowcount == 1


def _fingerprint_of(ledger: Ledger, tool: object, arguments: dict[str, object]) -> str:
    return prepare(contract_of(tool), arguments, Options("t"), ledger).plan.fingerprint.removeprefix("sha256:")


# Past the ledger.


async def test_a_body_runs_for_nobody_but_its_own_action(ledger: Ledger) -> None:
    """Called directly, or out of another action's body: refused, and nothing happens at the far side."""
    remote = Remote()
    guarded = refund(remote)

    async def alater(order_id: str) -> object:
        return remote.do(order_id=order_id)

    later = action(risk="non_idempotent_write", remote="opaque", identity="all", approval=always)(alater)
    with pytest.raises(Unguarded, match="the body of refund was called outside its action"):
        guarded.contract.function("A-1", 500)
    with pytest.raises(Unguarded, match="the body of alater"):
        await later.contract.function("A-1")
    refusals: list[str] = []

    @action(risk="non_idempotent_write", remote="opaque", identity="all")
    def smuggle(order_id: str) -> object:
        arguments = {"order_id": order_id, "amount": 500}
        inner: list[Callable[..., object]] = [guarded.contract.function, lambda **given: guarded.invoke(given)]
        for call in inner:
            try:
                call(**arguments)
            except Unguarded as error:
                refusals.append(str(error))
        try:
            asyncio.run(later.contract.function(order_id))
        except Unguarded as error:
            refusals.append(str(error))
        return {"receipt": "S-1"}

    outcome = await through_sync(smuggle, ["A-1"], ledger=ledger)
    assert (outcome.code, len(refusals), remote.effects) == (Code.SUCCEEDED, 3, [])
    assert count(ledger.url) == 1


@both_doors
async def test_an_inner_call_of_an_action_asks_as_any_other(door: Door, ledger: Ledger) -> None:
    """A body that performs another action gets its answer: it waits, and nothing runs."""
    from settled import perform

    remote, inner = Remote(), []
    guarded = refund(remote)

    @action(risk="non_idempotent_write", remote="opaque", identity="all")
    def batch(order_id: str) -> object:
        inner.append(perform(guarded, [order_id, 500], ledger=ledger, thread_id="inner"))
        return {"receipt": "B-1"}

    await door(batch, ["A-1"], ledger=ledger)
    assert ([ended(o) for o in inner], remote.effects) == ([WAITS], [])


def _wait(ledger: Ledger, tool: object, order: str, *, amount: float = 118.5, **options: Any) -> Outcome:
    from settled import perform

    options = {"thread_id": "thread-1", "requester": "joe", "decision": f"d-{order}", **options}
    return perform(tool, {"order_id": order, "amount": amount}, ledger=ledger, **options)


_again = _wait
