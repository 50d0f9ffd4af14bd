"""What people do in the console: what was shown is what is decided, once, by whoever may, or nothing is."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from acts import Clock, count, rows
from browsing import (
    FERNET,
    REFUND,
    SUPERVISOR,
    TOOLS,
    Shown,
    Visitor,
    begun,
    charge,
    forms,
    mail,
    pay,
    refund,
    serving,
    token,
    visiting,
    words,
)
from settled import Action, Approve, Desk, Edit, Ledger, State, action, always, perform
from settled.state.tokens import Role

MARIA: dict[str, Any] = {"by": "maria", "roles": ("supervisor",)}


@pytest.fixture
def opened(database_url: str) -> Iterator[Ledger]:
    with Ledger.connect(database_url, secret_key=FERNET) as ledger:
        yield ledger


@pytest.fixture
def url(opened: Ledger) -> Iterator[str]:
    with serving(opened, tools=TOOLS) as address:
        yield address


@pytest.fixture
def maria(opened: Ledger, url: str) -> Iterator[Visitor]:
    """An operator who may also decide as a supervisor."""
    with visiting(url, token(opened, **SUPERVISOR)) as visitor:
        yield visitor


def now(ledger: Ledger, action: Action) -> Action:
    return ledger.action(action.id, tenant=action.tenant)


def test_approved_as_shown_and_run_once(opened: Ledger, maria: Visitor) -> None:
    """The list shows what is asked; the approval names who gave it, and lets it run once, with these arguments."""
    action = begun(opened, refund, REFUND)
    shown = words(maria.text("/approvals"))
    for part in ("refund of 118.5 for order A-1001", "118.5", action.fingerprint, "supervisor, but not jo", "chat-7"):
        assert part in shown
    answer = maria.send(maria.form("/approvals", f"{action.id}/approve"), note="looks right")
    assert answer.url.path == "/approvals"
    assert "Nothing waits for an approval" in answer.text
    approved = now(opened, action)
    assert (approved.state, approved.approver) == (State.APPROVED, "maria")
    assert [ticket.note for ticket in Desk(opened).history(action.id)] == ["looks right"]
    outcome = perform(refund, REFUND, ledger=opened, thread_id="chat-7", requester="jo")
    assert (outcome.receipt, outcome.action_id) == ("RF-A-1001", action.id)


def test_rejected_with_a_message(opened: Ledger, maria: Visitor) -> None:
    """Nothing runs, and the message is what the user is told."""
    action = begun(opened, refund, REFUND)
    maria.send(maria.form(f"/actions/{action.id}", "/reject"), note="no invoice\r\nwas attached")
    rejected = now(opened, action)
    assert (rejected.state, rejected.reason) == (State.CANCELLED, "no invoice was attached")
    outcome = perform(refund, REFUND, ledger=opened, thread_id="chat-7", requester="jo")
    assert "no invoice was attached" in outcome.message


def test_edited_it_asks_anew(opened: Ledger, maria: Visitor) -> None:
    """An edit takes the old one's place, keeps what was not touched, and waits for somebody else's approval."""
    action = begun(opened, refund, {**REFUND, "memo": "late\ndelivery "})
    form = maria.form(f"/actions/{action.id}/edit", "/edit")
    assert form.fields["arg.memo"] == "late\ndelivery "
    answer = maria.send(form, **{"arg.amount": "180.25", "note": "the invoice says so"})
    old = now(opened, action)
    assert old.superseded_by is not None
    assert answer.url.path == f"/actions/{old.superseded_by}"
    new = opened.action(old.superseded_by)
    assert new.arguments == {"order_id": "A-1001", "amount": 180.25, "memo": "late\ndelivery "}
    assert (old.state, new.state, new.supersedes) == (State.CANCELLED, State.PLANNED, action.id)
    assert "You may not decide this one" in answer.text, "whoever changed it does not approve it"


def test_an_edit_of_what_its_agent_asked_about_is_asked_about(opened: Ledger, maria: Visitor) -> None:
    """A tool without a policy of its own, whose agent had one: this server does not know it, so a person is asked."""

    @action(risk="non_idempotent_write", identity=("order_id",))
    def ship(order_id: str, boxes: int = 1) -> dict[str, str]:
        """Ship an order."""
        return {"receipt": "S-1"}

    waiting = begun(opened, ship, {"order_id": "A-1"}, policies={"non_idempotent_write": always})
    with serving(opened, tools=[ship]) as address, visiting(address, token(opened)) as bob:
        bob.send(bob.form(f"/actions/{waiting.id}/edit", "/edit"), **{"arg.boxes": "2"})
    new = opened.action(str(now(opened, waiting).superseded_by))
    assert (new.state, new.arguments["boxes"]) == (State.PLANNED, 2)
    assert "does not have the tool ship" in words(maria.text(f"/actions/{new.id}/edit"))


def test_an_edit_that_breaks_a_rule_comes_back(opened: Ledger, maria: Visitor) -> None:
    """It names field and rule, keeps what was typed, and nothing is written."""
    action = begun(opened, refund, REFUND)
    form = maria.form(f"/actions/{action.id}/edit", "/edit")
    expected: list[tuple[dict[str, str], str]] = [
        ({}, "are the same as before"),
        ({"arg.amount": "a lot"}, "amount: must be JSON"),
        ({"arg.amount": '"a lot"'}, "amount: "),
        ({"arg.amount": "NaN"}, "amount: must be JSON"),
        ({"arg.order_id": "A\x00"}, "order_id: "),
    ]
    for typed, told in expected:
        answer = maria.send(form, **typed)
        assert answer.status_code == 422, typed
        assert told in words(answer.text)
        assert "a lot" in answer.text or "a lot" not in str(typed)
    assert now(opened, action).state is State.PLANNED
    assert count(opened.url) == 1


def test_a_secret_is_never_shown_and_may_be_given_anew(opened: Ledger, maria: Visitor) -> None:
    """It is hidden on each page; an edit keeps it where nothing is typed."""
    action = begun(opened, charge, {"card": "4111-1111", "amount": 25})
    for path in ("/approvals", f"/actions/{action.id}", f"/actions/{action.id}/arguments?name=card"):
        assert "4111" not in maria.text(path)
        assert "$secret" not in maria.text(path)
    sealed = action.arguments["card"]
    maria.send(maria.form(f"/actions/{action.id}/edit", "/edit"), **{"arg.amount": "26"})
    kept = opened.action(str(now(opened, action).superseded_by))
    assert opened.vault.open(kept.arguments["card"]) == opened.vault.open(sealed)  # type: ignore[arg-type]
    maria.send(maria.form(f"/actions/{kept.id}/edit", "/edit"), **{"arg.card": "5500-0000"})
    given = opened.action(str(now(opened, kept).superseded_by))
    assert opened.vault.open(given.arguments["card"]) == '"5500-0000"'  # type: ignore[arg-type]
    assert "5500" not in maria.text(f"/actions/{given.id}")


def test_what_changed_underneath_is_refused_and_shown(opened: Ledger, maria: Visitor) -> None:
    """The form showed 118.5; meanwhile somebody made it 180: the approval does nothing, and shows both."""
    action = begun(opened, refund, REFUND)
    form = maria.form("/approvals", f"{action.id}/approve")
    desk = Desk(opened, tools=TOOLS)
    new = desk.decide(action.id, Edit({"amount": 180}), by="bob", roles=("supervisor",), fingerprint=action.fingerprint)
    answer = maria.send(form)
    assert answer.status_code == 409
    told = words(answer.text)
    assert "Nothing was done with your decision" in told
    assert "changed by bob" in told
    assert "amount 118.5 → 180" in told
    assert f"/actions/{new.id}" in answer.text
    assert (now(opened, action).state, now(opened, new).state) == (State.CANCELLED, State.PLANNED)


def test_a_fingerprint_that_was_not_shown_decides_nothing(opened: Ledger, maria: Visitor) -> None:
    """Whatever the form says that it showed must be what stands there."""
    action = begun(opened, refund, REFUND)
    for what in ("approve", "reject", "edit", "withdraw"):
        path = f"/actions/{action.id}/edit" if what == "edit" else f"/actions/{action.id}"
        answer = maria.send(maria.form(path, f"/{what}"), fingerprint=f"sha256:{'0' * 64}", **{"arg.amount": "1"})
        assert answer.status_code == 409, what
        assert "What you were shown had the fingerprint sha256:000000000000" in answer.text
    assert now(opened, action).state is State.PLANNED


def test_the_first_decision_stands(opened: Ledger, url: str, maria: Visitor) -> None:
    """Two tabs: the second decision is refused and told the first; the same one again is none."""
    action = begun(opened, refund, REFUND)
    approve, reject = (maria.form(f"/actions/{action.id}", f"/{what}") for what in ("approve", "reject"))
    assert maria.send(approve).status_code == 200
    assert maria.send(approve).status_code == 200, "a double click"
    with visiting(url, token(opened, "bob", **SUPERVISOR)) as bob:
        for form in (reject, approve):
            answer = bob.send(form, csrf=bob.form("/approvals", "/logout").fields["csrf"])
            assert answer.status_code == 409
            assert "approved by maria" in answer.text
    assert now(opened, action).approver == "maria"


def test_two_people_at_once(opened: Ledger, url: str, maria: Visitor) -> None:
    """One decision is written; whoever comes second hears it."""
    action = begun(opened, refund, REFUND)
    with visiting(url, token(opened, "bob", **SUPERVISOR)) as bob, ThreadPoolExecutor(2) as pool:
        sending = [(maria, maria.form("/approvals", "/approve")), (bob, bob.form("/approvals", "/reject"))]
        answers = list(pool.map(lambda one: one[0].send(one[1]).status_code, sending))
    assert sorted(answers) == [200, 409]
    assert [ticket.decided_by for ticket in Desk(opened).history(action.id)] == [["maria", "bob"][answers.index(200)]]


def test_four_eyes_and_named_approvers_hold(opened: Ledger, url: str) -> None:
    """A requester, and whoever lacks the role, is shown no form, and is refused where he sends one all the same."""
    action = begun(opened, refund, REFUND)
    for name, more in (("jo", SUPERVISOR), ("ann", {})):
        with visiting(url, token(opened, name, **more)) as visitor:
            page = visitor.text("/approvals")
            assert f"{action.id}/approve" not in page
            form = visitor.form("/approvals", "/logout")
            data = {"csrf": form.fields["csrf"], "fingerprint": action.fingerprint}
            assert visitor.client.post(f"/actions/{action.id}/approve", data=data).status_code == 403
    assert now(opened, action).state is State.PLANNED


DOING = ("approve", "reject", "edit", "resolve", "withdraw", "retry", "compensate")
ALLOWED = {Role.VIEWER: set(), Role.APPROVER: {"approve", "reject", "edit"}, Role.OPERATOR: set(DOING)}


@pytest.mark.parametrize("role", list(Role))
def test_each_role_does_what_it_may(opened: Ledger, url: str, role: Role) -> None:
    """A viewer reads, an approver decides approvals, an operator does the rest too; what is not for a role is 403."""
    waiting, stuck = begun(opened, refund, REFUND), begun(opened, mail, {"to": "a@example.com"})
    with visiting(url, token(opened, role=role, **SUPERVISOR)) as visitor:
        csrf = visitor.form("/approvals", "/logout").fields["csrf"]
        shown = visitor.text(f"/actions/{waiting.id}") + visitor.text(f"/actions/{stuck.id}")
        for what in DOING:
            assert (f"/{what}" in shown) == (what in ALLOWED[role] - {"compensate"}), what
            answer = visitor.client.post(f"/actions/{waiting.id}/{what}", data={"csrf": csrf})
            assert (answer.status_code == 403) == (what not in ALLOWED[role]), what
        assert (visitor.get(f"/actions/{waiting.id}/edit").status_code == 403) == (role is Role.VIEWER)
    assert now(opened, waiting).state is State.PLANNED


def test_a_form_of_another_site_does_nothing(opened: Ledger, url: str, maria: Visitor) -> None:
    """Without the token of this very session each form is refused, also with the token of somebody else's."""
    action = begun(opened, refund, REFUND)
    with visiting(url, token(opened, "bob")) as bob:
        theirs = bob.form("/approvals", "/logout").fields["csrf"]
    for given in ("", "0" * 64, theirs):
        data = {"csrf": given, "fingerprint": action.fingerprint, "receipt": "R", "what": "happened"}
        for what in (*(f"actions/{action.id}/{what}" for what in DOING), "logout"):
            answer = maria.client.post(f"/{what}", data=data)
            assert answer.status_code == 403, what
            assert "was not made here" in answer.text
    assert now(opened, action).state is State.PLANNED
    assert maria.get("/actions", follow_redirects=False).status_code == 200


def test_another_tenants_actions_do_not_exist(opened: Ledger, url: str, maria: Visitor) -> None:
    """Each address with the id of another tenant is 404, to read and to write; lists and counts leave it out."""
    theirs = begun(opened, refund, REFUND, tenant="acme")
    stuck = begun(opened, mail, {"to": "a@example.com"}, tenant="acme")
    csrf = maria.form("/approvals", "/logout").fields["csrf"]
    for one in (theirs, stuck):
        for path in ("", "/edit", "/arguments?name=amount", "/result"):
            assert maria.get(f"/actions/{one.id}{path}").status_code == 404, path
        for what in DOING:
            data = {"csrf": csrf, "fingerprint": one.fingerprint, "what": "did_not_happen", "arg.amount": "1"}
            assert maria.client.post(f"/actions/{one.id}/{what}", data=data).status_code == 404, what
    for path in ("/approvals", "/queue", "/actions", f"/actions?q={theirs.id}", "/actions?thread=chat-7"):
        page = maria.text(path)
        assert f"/actions/{theirs.id}" not in page
        assert stuck.id not in page
        assert page.count("hidden>0</span>") == 3
    with visiting(url, token(opened, tenant="acme", **SUPERVISOR)) as acme:
        assert theirs.id in acme.text("/approvals")


def test_resolved_as_it_happened(opened: Ledger, maria: Visitor) -> None:
    """The queue shows both versions; the receipt that a person gives settles it, in that person's name."""
    action = begun(opened, pay, {"order_id": "P-1", "amount": 118.5})
    shown = words(maria.text("/queue"))
    assert '"amount": 118.5' in shown
    assert '"amount": 180' in shown
    answer = maria.send(_resolving(maria, action, "happened"), receipt="R-77", note="rang them up")
    assert answer.url.path == "/queue"
    found = now(opened, action)
    assert (found.state, found.receipt, found.evidence) == (State.SUCCEEDED, "R-77", "person")
    told = words(maria.text(f"/actions/{action.id}"))
    assert "maria" in told
    assert "rang them up" in told


def test_resolved_as_it_did_not_happen(opened: Ledger, maria: Visitor) -> None:
    """Not while it may still take effect; after that it is settled as failed."""
    action = begun(opened, mail, {"to": "a@example.com"})
    data = {"what": "did_not_happen", "fingerprint": action.fingerprint}
    data["csrf"] = maria.form("/queue", "/logout").fields["csrf"]
    early = rows(opened.url, "UPDATE settled.actions SET in_flight_until = now() + interval '1 h' RETURNING id")
    assert len(early) == 1
    assert "It may still take effect until" in maria.text("/queue")
    assert maria.client.post(f"/actions/{action.id}/resolve", data=data).status_code == 422
    rows(opened.url, "UPDATE settled.actions SET in_flight_until = now() RETURNING id")
    assert maria.send(_resolving(maria, action, "did_not_happen")).status_code == 200
    assert now(opened, action).state is State.FAILED


def test_sent_back_to_be_asked_about(opened: Ledger, maria: Visitor) -> None:
    """It leaves the queue unsettled."""
    action = begun(opened, mail, {"to": "a@example.com"})
    answer = maria.send(_resolving(maria, action, "ask_again"))
    assert "Nothing here" in answer.text
    assert (now(opened, action).state, now(opened, action).escalated_at) == (State.UNKNOWN, None)


def test_a_resolution_must_be_one(opened: Ledger, maria: Visitor) -> None:
    """Nothing chosen, or no receipt with "it happened", is refused."""
    action = begun(opened, mail, {"to": "a@example.com"})
    form = _resolving(maria, action, "happened")
    for what in ("", "nonsense", "happened"):
        assert maria.send(form, what=what, receipt=" ").status_code == 422, what
    assert now(opened, action).state is State.UNKNOWN


def test_withdrawn_and_carried_on(opened: Ledger, maria: Visitor) -> None:
    """An operator takes back what has not run, and runs what was approved, here, once."""
    first, second = (begun(opened, refund, {**REFUND, "order_id": order}) for order in ("A-1", "A-2"))
    maria.send(maria.form(f"/actions/{first.id}", "/withdraw"), note="by mistake")
    assert now(opened, first).state is State.CANCELLED
    Desk(opened).decide(second.id, Approve(), fingerprint=second.fingerprint, **MARIA)
    form = maria.form(f"/actions/{second.id}", "/retry")
    answer = maria.send(form)
    assert "RF-A-2" in answer.text
    assert now(opened, second).state is State.SUCCEEDED
    assert maria.send(form).status_code == 409, "there is nothing to carry on any more"


def test_what_expired_cannot_be_decided(database_url: str) -> None:
    """A request whose time ended while its form was open is refused, by the database's clock, and says so."""
    clock = Clock()
    with Ledger.connect(database_url, clock=clock) as ledger, serving(ledger) as address:
        action = begun(ledger, refund, REFUND)
        with visiting(address, token(ledger, **SUPERVISOR)) as maria:
            clock.sleep(12 * 3600 - 1)
            form = maria.form("/approvals", "/approve")
            maria.send(maria.form("/approvals", "/logout"))
            clock.sleep(12 * 3600 + 2)
            maria.log_in(token(ledger, "maria", **SUPERVISOR))
            assert "Nothing waits for an approval" in maria.text("/approvals")
            answer = maria.send(form, csrf=maria.form("/approvals", "/logout").fields["csrf"])
            assert answer.status_code == 409
            assert "nobody decided in time" in answer.text
        assert now(ledger, action).state is State.CANCELLED


def _resolving(visitor: Visitor, action: Action, what: str) -> Shown:
    for form in forms(visitor.text("/queue")):
        if form.action == f"/actions/{action.id}/resolve" and form.fields["what"] == what:
            return form
    raise AssertionError(f"the queue has no form for {what}")
