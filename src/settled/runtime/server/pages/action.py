"""One action: all that is known of it, and its large values whole."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import PlainTextResponse, Response

from settled.runtime.server.history import MAX_LINES, History, attempts_of, lines_of, trace_id_of
from settled.runtime.server.languages import Say, language_of, speaker
from settled.runtime.server.pages.lists import is_refused, waiting
from settled.runtime.server.pages.routes import ActionId, TheSite, Viewer, flash_of, pulse_of
from settled.runtime.server.people import Person
from settled.runtime.server.rendering import page
from settled.runtime.server.site import Site
from settled.runtime.server.wording import pretty
from settled.state.errors import NotFound
from settled.state.machine import State
from settled.state.model import Action
from settled.state.secrets import masked
from settled.tools.desk import ManualCase
from settled.tools.outbox import Outbox

MOST_MESSAGES = 50
"""Of one action: a tool that emits more has them on their own page."""

router = APIRouter()


@router.get("/actions/{action_id}")
def one_action(request: Request, action_id: ActionId, person: Viewer, site: TheSite) -> Response:
    """Show one action."""
    pulse = pulse_of(site, person, action_id)
    history = history_of(site, person, action_id, speaker(language_of(request)))
    refused = is_refused(history.action, person)
    values = {"history": history, "refused": refused, **flash_of(request)}
    return page(request, "action.html", person, values, pulse=pulse)


@router.get("/actions/{action_id}/arguments")
def one_argument(
    action_id: ActionId, name: Annotated[str, Query(max_length=1000)], person: Viewer, site: TheSite
) -> Response:
    """Show one argument whole, as JSON in plain text; a secret stays hidden."""
    arguments = masked(_action(site, person, action_id).arguments)
    if name not in arguments:
        raise NotFound(f"{action_id} has no argument {name!r}")
    return PlainTextResponse(pretty(arguments[name]))


@router.get("/actions/{action_id}/result")
def result(action_id: ActionId, person: Viewer, site: TheSite) -> Response:
    """Show the result whole, as JSON in plain text."""
    return PlainTextResponse(pretty(_action(site, person, action_id).result))


def history_of(site: Site, person: Person, action_id: str, say: Say) -> History:
    """Return all that is known of an action; NotFound where this person's tenant has none of that id."""
    action = _action(site, person, action_id)
    tickets = site.desk(person.tenant).history(action_id)
    events = site.ledger.timeline(action_id, tenant=person.tenant)
    trace_id = trace_id_of(action.trace_context)
    return History(
        action,
        tickets,
        waiting(action, tickets),
        _case(site, person, action),
        attempts_of(events),
        Outbox(site.ledger, tenant=person.tenant).messages(action_id=action_id, most=MOST_MESSAGES),
        lines_of(events, say),
        max(len(events) - MAX_LINES, 0),
        trace_id,
        site.trace_url.replace("{trace_id}", trace_id) if site.trace_url and trace_id else None,
    )


def _case(site: Site, person: Person, action: Action) -> ManualCase | None:
    """Return the case that a person may resolve: unknown, or running past its lease."""
    if action.state is State.UNKNOWN or (action.state is State.RUNNING and action.lease_is_over):
        return site.desk(person.tenant).case(action.id)
    return None


def _action(site: Site, person: Person, action_id: str) -> Action:
    return site.ledger.action(action_id, tenant=person.tenant)
