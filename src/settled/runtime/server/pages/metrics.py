"""`/metrics`: what Prometheus reads, for whoever shows the token of an operator; of its tenant alone."""

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response

from settled.runtime.metrics import CONTENT_TYPE, page
from settled.runtime.server.people import Person, by_session
from settled.runtime.server.site import site_of
from settled.state import tokens

router = APIRouter()

HOW = {"www-authenticate": "Bearer"}


@router.get("/metrics")
async def scrape(request: Request) -> Response:
    """Answer a scrape: `authorization: {credentials: settled_…}` in the scraper's settings."""
    person = await _shown(request) or await by_session(request)
    if person is None:
        return PlainTextResponse("show a token: Authorization: Bearer settled_…\n", 401, HOW)
    if not person.may("operator"):
        return PlainTextResponse(f"this takes the role operator, and {person.name} does not have it\n", 403)
    text = await run_in_threadpool(page, site_of(request).ledger, person.tenant)
    return Response(text, media_type=CONTENT_TYPE)


async def _shown(request: Request) -> Person | None:
    """Return whose token came with the request, if it is good."""
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        return None
    token = await site_of(request).tokens.arun(tokens.bearer(secret.strip()))
    return None if token is None else Person(token)
