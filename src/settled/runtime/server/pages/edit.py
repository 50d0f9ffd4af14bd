"""The edit of an action that waits: a form of its arguments, judged by its tool and its policy."""

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from settled.runtime.editing import strict
from settled.runtime.server.editing import changes, fields_of
from settled.runtime.server.forms import Form, needed, note_of
from settled.runtime.server.pages.lists import waiting
from settled.runtime.server.pages.routes import ActionId, Approver, Posted, TheSite, pulse_of
from settled.runtime.server.people import Person
from settled.runtime.server.rendering import page
from settled.runtime.server.site import Site
from settled.state.errors import AlreadyDecided, InvalidArguments
from settled.state.model import Approval
from settled.tools.decisions import Edit

router = APIRouter()


@router.get("/actions/{action_id}/edit")
def edit_page(request: Request, action_id: ActionId, person: Approver, site: TheSite) -> Response:
    """Show the arguments of an action that waits, to be changed."""
    return _form(request, site, person, _waiting(site, person, action_id))


@router.post("/actions/{action_id}/edit")
def edit(request: Request, action_id: ActionId, person: Approver, form: Posted, site: TheSite) -> Response:
    """Put the changed arguments in the place of those that wait; what breaks a rule comes back with it."""
    fingerprint = needed(form, "fingerprint")
    arguments = site.ledger.action(action_id, tenant=person.tenant).arguments
    try:
        decision = Edit(changes(arguments, form), note_of(form))
        desk = site.desk(person.tenant, strict())
        new = desk.decide(action_id, decision, by=person.name, roles=person.roles, fingerprint=fingerprint)
    except InvalidArguments as error:
        return _form(request, site, person, _waiting(site, person, action_id), typed=form, error=error)
    return RedirectResponse(f"/actions/{new.id}?said=edited", 303)


def _waiting(site: Site, person: Person, action_id: str) -> Approval:
    action = site.ledger.action(action_id, tenant=person.tenant)
    ticket = waiting(action, site.desk(person.tenant).history(action_id))
    if ticket is None:
        raise AlreadyDecided(f"{action_id} is {action.state}: no person is asked about it")
    return ticket


def _form(
    request: Request,
    site: Site,
    person: Person,
    ticket: Approval,
    *,
    typed: Form | None = None,
    error: InvalidArguments | None = None,
) -> Response:
    fields = fields_of(ticket.arguments, typed)
    status = 422 if error else 200
    values = {"ticket": ticket, "fields": fields, "error": error}
    return page(request, "edit.html", person, values, status=status, pulse=pulse_of(site, person))
