"""What a reader is told when something cannot be done: one page for each kind of error, and nothing of a traceback.

A decision on what has changed meanwhile is answered with the change.
"""

import logging
from collections.abc import Awaitable, Callable
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from settled.runtime.server.forms import Forged
from settled.runtime.server.people import NotSignedIn, Person
from settled.runtime.server.rendering import page
from settled.runtime.server.site import Site, site_of
from settled.state.errors import (
    AlreadyDecided,
    ContractError,
    DuplicateAction,
    InvalidArguments,
    LedgerUnavailable,
    NotFound,
    NotPermitted,
    SettledError,
    ShownOtherwise,
)
from settled.state.model import Action, Approval

_log = logging.getLogger("settled.server")

_OF_ERROR: dict[type[SettledError], tuple[int, str]] = {
    NotFound: (404, "problem_not_found"),
    NotPermitted: (403, "problem_forbidden"),
    InvalidArguments: (422, "problem_invalid"),
    DuplicateAction: (409, "problem_invalid"),
    ContractError: (409, "problem_invalid"),
    LedgerUnavailable: (503, "problem_unavailable"),
}
_OF_STATUS = {
    400: "problem_invalid",
    404: "problem_not_found",
    405: "problem_method",
    408: "problem_slow",
    413: "problem_large",
    503: "problem_busy",
}


def install(app: FastAPI) -> None:
    """Make the pages the answers to errors."""
    handlers: list[tuple[type[Exception], Callable[[Request, Exception], Response | Awaitable[Response]]]] = [
        (NotSignedIn, _to_login),
        (Forged, _forged),
        (HTTPException, _of_status),
        (RequestValidationError, _invalid),
        (AlreadyDecided, _changed),
        (ShownOtherwise, _changed),
        (SettledError, _of_error),
        (Exception, _fault),
    ]
    for kind, handler in handlers:
        app.add_exception_handler(kind, handler)


def problem(request: Request, status: int, key: str, detail: str = "") -> Response:
    """Return the page of a problem; for a program, the same as JSON."""
    if wants_json(request):
        return JSONResponse({"error": detail or key.removeprefix("problem_")}, status)
    return page(request, "problem.html", _person(request), {"key": key, "detail": detail}, status=status)


def wants_json(request: Request) -> bool:
    """Whether a program asks, and not a browser."""
    accepted = request.headers.get("accept", "*/*")
    return "authorization" in request.headers or ("json" in accepted and "html" not in accepted)


def _person(request: Request) -> Person | None:
    found: Person | None = getattr(request.state, "person", None)
    return found


def _to_login(request: Request, _: Exception) -> Response:
    if wants_json(request):
        return JSONResponse({"error": "log in, or show a token: Authorization: Bearer settled_…"}, 401)
    if request.headers.get("hx-request"):
        return Response(status_code=401, headers={"hx-redirect": "/login"})
    if request.headers.get("accept") == "text/event-stream":
        return Response(status_code=401)
    asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"/login?next={quote(asked if request.method == 'GET' else site_of(request).home)}", 303)


def _forged(request: Request, _: Exception) -> Response:
    return problem(request, 403, "problem_forged")


def _of_status(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    answer = problem(request, error.status_code, _OF_STATUS.get(error.status_code, "problem_fault"))
    answer.headers.update(error.headers or {})
    return answer


def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    if any(one["loc"][0] == "path" for one in error.errors()):
        return problem(request, 404, "problem_not_found")
    fields = ", ".join(str(one["loc"][-1]) for one in error.errors())
    return problem(request, 422, "problem_invalid", fields)


def _of_error(request: Request, error: Exception) -> Response:
    for kind, (status, key) in _OF_ERROR.items():
        if isinstance(error, kind):
            return problem(request, status, key, str(error) if status in (403, 409, 422) else "")
    return _fault(request, error)


def _fault(request: Request, error: Exception) -> Response:
    _log.error("%s %s", request.method, request.url.path, exc_info=error)
    return problem(request, 500, "problem_fault")


async def _changed(request: Request, error: Exception) -> Response:
    """Show what stands there instead of what was decided on."""
    person, action_id = _person(request), request.path_params.get("action_id")
    if person is None or action_id is None or wants_json(request):
        return problem(request, 409, "problem_invalid", str(error))
    action, ticket, successor = await run_in_threadpool(_standing, site_of(request), person.tenant, action_id)
    given = (await request.form()).get("fingerprint") if isinstance(error, ShownOtherwise) else None
    values = {"action": action, "ticket": ticket, "successor": successor, "given": given or None}
    return page(request, "changed.html", person, values, status=409)


def _standing(site: Site, tenant: str, action_id: str) -> tuple[Action, Approval | None, Action | None]:
    action = site.ledger.action(action_id, tenant=tenant)
    tickets = site.desk(tenant).history(action_id)
    successor = site.ledger.action(action.superseded_by, tenant=tenant) if action.superseded_by else None
    return action, tickets[-1] if tickets else None, successor
