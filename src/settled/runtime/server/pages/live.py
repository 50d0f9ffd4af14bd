"""What waits, live: server-sent events, one stream for each open page.

A stream asks the ledger every two seconds, says when something has changed, and asks each time whether its session is
still good; the page then fetches anew what it shows. It holds no connection of the database between two looks.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.exceptions import HTTPException

from settled.runtime.server.pages.routes import ID, TheSite, Viewer
from settled.runtime.server.people import Person
from settled.runtime.server.site import Site
from settled.state import console, tokens
from settled.state.errors import SettledError

PULSE_S = 2.0
"""Between two looks: a person does not wait for it, and a hundred pages are fifty small queries a second."""

MAX_STREAMS = 200
"""Pages that are followed at once in one process; one more is told to come back."""

PING_S = 20
SEND_WAIT_S = 30.0
"""A client that reads nothing for so long is gone."""

router = APIRouter()
_open: set[object] = set()


@router.get("/live")
async def live(person: Viewer, site: TheSite, one: Annotated[str, Query(pattern=f"^({ID})?$")] = "") -> Response:
    """Follow what waits, and one action or one run of a chain."""
    if len(_open) >= MAX_STREAMS:
        raise HTTPException(503)
    return EventSourceResponse(_counted(_pulses(site, person, one)), ping=PING_S, send_timeout=SEND_WAIT_S)


async def _counted(events: AsyncIterator[ServerSentEvent]) -> AsyncIterator[ServerSentEvent]:
    me = object()
    _open.add(me)
    try:
        async for event in events:
            yield event
    finally:
        _open.discard(me)


async def _pulses(site: Site, person: Person, one: str) -> AsyncIterator[ServerSentEvent]:
    """Say what waits whenever it has changed; end with the session. (A page whose stream ends begins a new one.)"""
    last: console.Pulse | None = None
    try:
        while await site.tokens.arun(tokens.session(person.session or "")) is not None:
            now = await site.console.arun(console.pulse(person.tenant, one or None))
            if now != last:
                yield ServerSentEvent(json.dumps(asdict(now)), event="pulse")
            last = now
            await asyncio.sleep(PULSE_S)
        yield ServerSentEvent("", event="ended")
    except SettledError:  # the database is away: the page says so, and tries again
        return
