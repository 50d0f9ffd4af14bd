"""What people do: approve, reject, resolve, withdraw, carry on, undo. Each goes through the desk, which has the rules.

Every form says which fingerprint it showed; a decision on anything else is refused there, and answered with the change.
"""

from urllib.parse import urlencode

from fastapi import APIRouter
from fastapi.responses import RedirectResponse, Response

from settled.runtime.server.forms import Form, needed, note_of
from settled.runtime.server.pages.routes import ActionId, Approver, Operator, Posted, TheSite
from settled.runtime.server.people import Person
from settled.runtime.server.site import Site
from settled.state.errors import InvalidArguments, ShownOtherwise
from settled.tools.decisions import Approve, Reject
from settled.tools.resolutions import AskAgain, DidNotHappen, Happened, Resolution

BACK = {"approvals": "/approvals", "queue": "/queue"}
"""The lists that a decision may lead back to; else it leads to the action."""

router = APIRouter()


@router.post("/actions/{action_id}/approve")
def approve(action_id: ActionId, person: Approver, form: Posted, site: TheSite) -> Response:
    """Permit what was shown."""
    return _decide(site, person, action_id, Approve(note_of(form), _round(form)), form, "approved")


@router.post("/actions/{action_id}/reject")
def reject(action_id: ActionId, person: Approver, form: Posted, site: TheSite) -> Response:
    """Refuse what was shown."""
    return _decide(site, person, action_id, Reject(note_of(form)), form, "rejected")


@router.post("/actions/{action_id}/resolve")
def resolve(action_id: ActionId, person: Operator, form: Posted, site: TheSite) -> Response:
    """Record what a person has found out."""
    resolution, fingerprint = _resolution(form), needed(form, "fingerprint")
    desk = site.desk(person.tenant)
    desk.resolve(action_id, resolution, by=person.name, fingerprint=fingerprint, note=note_of(form))
    return done(action_id, form, "asked_again" if isinstance(resolution, AskAgain) else "resolved")


@router.post("/actions/{action_id}/withdraw")
def withdraw(action_id: ActionId, person: Operator, form: Posted, site: TheSite) -> Response:
    """Take back what has not run."""
    _check_shown(site, person, action_id, form)
    site.desk(person.tenant).withdraw(action_id, by=person.name, note=note_of(form))
    return done(action_id, form, "withdrawn")


@router.post("/actions/{action_id}/retry")
def retry(action_id: ActionId, person: Operator, form: Posted, site: TheSite) -> Response:
    """Carry an action on, here."""
    _check_shown(site, person, action_id, form)
    outcome = site.desk(person.tenant).retry(action_id, by=person.name, note=note_of(form))
    return done(outcome.action_id or action_id, form, "retried")


@router.post("/actions/{action_id}/compensate")
def compensate(action_id: ActionId, person: Operator, form: Posted, site: TheSite) -> Response:
    """Undo what succeeded, by an action of its own; or carry its undoing on."""
    _check_shown(site, person, action_id, form)
    site.desk(person.tenant).compensate(action_id, by=person.name, note=note_of(form))
    return done(action_id, form, "undoing")


def done(action_id: str, form: Form, said: str) -> Response:
    """Lead to where the form came from, with a word on what was done."""
    back = BACK.get(form.get("back", ""))
    if back is None:
        return RedirectResponse(f"/actions/{action_id}?{urlencode({'said': said})}", 303)
    return RedirectResponse(f"{back}?{urlencode({'said': said, 'of': action_id})}", 303)


def _decide(site: Site, person: Person, action_id: str, decision: Approve | Reject, form: Form, said: str) -> Response:
    fingerprint = needed(form, "fingerprint")
    desk = site.desk(person.tenant)
    desk.decide(action_id, decision, by=person.name, roles=person.roles, fingerprint=fingerprint)
    return done(action_id, form, said)


def _round(form: Form) -> int | None:
    text = form.get("round", "")
    if text and not (text.isdecimal() and len(text) < 9):
        raise InvalidArguments("round", "must be the number of the request that was shown")
    return int(text) if text else None


def _resolution(form: Form) -> Resolution:
    match form.get("what"):
        case "happened":
            needed(form, "receipt")
            return Happened(note_of(form, "receipt"))
        case "did_not_happen":
            return DidNotHappen()
        case "ask_again":
            return AskAgain()
        case _:
            raise InvalidArguments("what", "must be happened, did_not_happen or ask_again")


def _check_shown(site: Site, person: Person, action_id: str, form: Form) -> None:
    """For what the desk takes without a fingerprint: refuse to go on with another action than was shown."""
    if site.ledger.action(action_id, tenant=person.tenant).fingerprint != needed(form, "fingerprint"):
        raise ShownOtherwise(f"{action_id} is not what was shown")
