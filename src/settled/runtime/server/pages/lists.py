"""What waits for people: open approvals, and the manual queue."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from settled.runtime.server.pages.routes import SHOWN, TheSite, Viewer, flash_of, pulse_of
from settled.runtime.server.people import Person
from settled.runtime.server.rendering import page
from settled.runtime.server.site import Site
from settled.state import ledger as operations
from settled.state.errors import NotPermitted
from settled.state.model import Action, Approval
from settled.tools.decisions import Decider, check_permitted

router = APIRouter()


@router.get("/approvals")
def approvals(request: Request, person: Viewer, site: TheSite) -> Response:
    """Show what a person may still decide, what ends first before the rest."""
    pulse = pulse_of(site, person)  # before the list: what comes in between is shown by the next pulse
    found = site.desk(person.tenant).approvals(most=SHOWN)
    actions = {one.id: one for one in _actions(site, person, [ticket.action_id for ticket in found])}
    tickets = [(ticket, is_refused(actions.get(ticket.action_id), person)) for ticket in found]
    return page(request, "approvals.html", person, {"tickets": tickets, **flash_of(request)}, pulse=pulse)


@router.get("/queue")
def queue(request: Request, person: Viewer, site: TheSite) -> Response:
    """Show what only a person can find out, oldest first."""
    pulse = pulse_of(site, person)
    cases = site.desk(person.tenant).queue(most=SHOWN)
    return page(request, "queue.html", person, {"cases": cases, **flash_of(request)}, pulse=pulse)


def is_refused(action: Action | None, person: Person) -> bool:
    """Whether this person may surely not decide it. (The desk asks again when it is decided.)"""
    if action is None:
        return True
    try:
        check_permitted(action.asking, action.requester, Decider(by=person.name, roles=person.roles))
    except NotPermitted:
        return True
    return False


def waiting(action: Action, tickets: list[Approval]) -> Approval | None:
    """Return the request that a person may still decide."""
    if not tickets or tickets[-1].decision is not None or action.asking_is_over:
        return None
    return tickets[-1]


def _actions(site: Site, person: Person, ids: list[str]) -> list[Action]:
    return site.ledger.run(operations.load_all(person.tenant, ids)) if ids else []
