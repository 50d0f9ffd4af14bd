"""The outermost layer of the service: what goes wrong with a write, and what is remembered of it.

Owns the log, and the order of things: the fault, the application behind it (with its idempotency keys), the reply. A
fault is applied here and nowhere else, but for the delay before the effect, which the routes ask for. A repeat, which
has no effect, is answered as it is.
"""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from settled.demo.service.answers import problem
from settled.demo.service.faults import Fault, Kind, Switches
from settled.demo.service.replies import Dropped, Frozen, Truncated
from settled.tools.endpoint_http import REPLAYED

MAX_LOG = 10_000
"""Requests that are remembered; a demo makes ten."""


@dataclass
class Visit:
    """One write request: its fault, and whether it came as far as the effect."""

    fault: Fault
    has_acted: bool = False

    async def act(self) -> None:
        """Wait as the fault wants it; the effect follows at once."""
        if self.fault.kind is Kind.DELAY_BEFORE_COMMIT:
            await asyncio.sleep(self.fault.seconds)
        self.has_acted = True


@dataclass
class Visits:
    """What one process has seen, and its switches (GET /log, PUT /faults)."""

    switches: Switches
    log: list[dict[str, Any]] = field(default_factory=list)

    def note(self, request: Request, outcome: str) -> None:
        """Remember what became of a request."""
        del self.log[:-MAX_LOG]
        entry = {"at": time.time(), "method": request.method, "path": request.url.path, "outcome": outcome}
        named = [request.headers.get("idempotency-key"), request.headers.get("webhook-id")]
        self.log.append(entry | {"key": next(filter(None, named), request.query_params.get("idempotency_key"))})


class Faulty:
    """The service with its faults. `keyed` recognises a repeat by its key, `forgetful` does not."""

    def __init__(self, visits: Visits, keyed: ASGIApp, forgetful: ASGIApp) -> None:
        self._visits = visits
        self._keyed = keyed
        self._forgetful = forgetful

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self._forgetful(scope, receive, send)
        request = Request(scope)
        fault = self._visits.switches.take()
        answer = self._before(request, fault) or await self._after(request, fault, receive)
        return await answer(scope, receive, send)

    def _before(self, request: Request, fault: Fault) -> Response | None:
        """Return the answer of a fault by which nothing takes place."""
        match fault.kind:
            case Kind.FREEZE:
                self._visits.note(request, "frozen")
                return Frozen()
            case Kind.REFUSE_503 | Kind.REFUSE_429:
                return self._refused(request, fault)
            case _:
                return None

    def _refused(self, request: Request, fault: Fault) -> Response:
        status = 503 if fault.kind is Kind.REFUSE_503 else 429
        after = None if fault.retry_after is None else f"{fault.retry_after:g}"
        self._visits.note(request, f"{status}" + (f", Retry-After: {after}" if after else ""))
        said = problem(status, "busy", "the service is busy")
        if after:
            said.headers["retry-after"] = after
        return said

    async def _after(self, request: Request, fault: Fault, receive: Receive) -> Response:
        """Let the application act, and its answer go out, or not."""
        visit = Visit(fault)
        app = self._forgetful if self._visits.switches.forget_keys else self._keyed
        answer = await _answer(app, {**request.scope, "demo.visit": visit}, receive)
        if not visit.has_acted:
            self._visits.note(request, _shown(answer))
            return answer
        return await self._reply(request, fault, answer)

    async def _reply(self, request: Request, fault: Fault, answer: Response) -> Response:
        note = self._visits.note
        match fault.kind:
            case Kind.COMMIT_AND_DROP:
                note(request, "committed, and the reply was lost")
                return Dropped()
            case Kind.COMMIT_AND_500:
                note(request, "committed, and answered 500")
                return problem(500, "internal", "something went wrong")
            case Kind.TRUNCATE:
                note(request, "committed, and half of the reply was sent")
                return Truncated(json.loads(bytes(answer.body)), answer.status_code)
            case Kind.COMMIT_AND_DELAY:
                note(request, f"committed, and answered {fault.seconds:g} s later")
                await asyncio.sleep(fault.seconds)
            case _:
                note(request, _shown(answer))
        return answer


def _shown(answer: Response) -> str:
    replayed = answer.headers.get(REPLAYED) == "true" and answer.status_code < 300
    return f"{answer.status_code}, replayed" if replayed else str(answer.status_code)


async def _answer(app: ASGIApp, scope: Scope, receive: Receive) -> Response:
    """Let an application answer, and return the answer instead of sending it."""
    answer = Response()
    parts: list[bytes] = []

    async def keep(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status_code, answer.raw_headers = message["status"], list(message["headers"])
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, keep)
    answer.body = b"".join(parts)
    return answer
