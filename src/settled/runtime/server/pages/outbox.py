"""The outbox: messages that wait, dead letters, and sending those once more."""

import json
from typing import cast

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, RedirectResponse, Response

from settled.runtime.server.pages.routes import MessageId, Operator, Posted, Text, TheSite, Viewer, flash_of, pulse_of
from settled.runtime.server.rendering import page
from settled.runtime.server.wording import pretty
from settled.state.errors import AlreadyDecided, InvalidArguments
from settled.state.outbox import STANDINGS, Standing
from settled.state.outbox import Posted as Message
from settled.tools.outbox import Outbox

MOST = 100
"""Rows of the page; what is due first, or newest, is what is looked for."""

router = APIRouter()


@router.get("/outbox")
def outbox(request: Request, person: Viewer, site: TheSite, state: Text = "", topic: Text = "") -> Response:
    """Show messages, of one state and topic if given."""
    if not topic.isprintable():
        raise InvalidArguments("topic", "must be printable characters")
    pulse = pulse_of(site, person)
    wanted = cast("Standing | None", state or None)  # anything else is refused by the outbox itself
    found = Outbox(site.ledger, tenant=person.tenant).messages(state=wanted, topic=topic.strip() or None, most=MOST)
    values = {"messages": found, "state": state, "topic": topic, "states": STANDINGS, "most": MOST}
    return page(request, "outbox.html", person, {**values, **flash_of(request)}, pulse=pulse)


@router.get("/outbox/{message_id}")
def one_message(request: Request, message_id: MessageId, person: Viewer, site: TheSite) -> Response:
    """Show one message."""
    message = Outbox(site.ledger, tenant=person.tenant).message(message_id)
    values = {"message": message, "payload": _payload(message)}
    return page(request, "message.html", person, values, pulse=pulse_of(site, person))


@router.get("/outbox/{message_id}/payload")
def payload(message_id: MessageId, person: Viewer, site: TheSite) -> Response:
    """Show a payload whole, as plain text."""
    return PlainTextResponse(pretty(_payload(Outbox(site.ledger, tenant=person.tenant).message(message_id))))


def _payload(message: Message) -> object:
    return None if message.payload is None else json.loads(message.payload)


@router.post("/outbox/redrive")
def redrive(person: Operator, form: Posted, site: TheSite) -> Response:
    """Make a dead letter due again, or (no id) the oldest of all; AlreadyDecided for one that is none any more."""
    messages = Outbox(site.ledger, tenant=person.tenant)
    wanted = form.get("ids", "")
    if not wanted:
        messages.redrive_all(by=person.name)
    elif not wanted.isprintable() or not messages.redrive([wanted], by=person.name):
        raise AlreadyDecided("this is no dead letter, or not any more")
    return RedirectResponse("/outbox?said=redriven", 303)
