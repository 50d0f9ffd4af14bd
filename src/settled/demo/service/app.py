"""The routes of the ticket service.

Owns the order of things for a write: the payload, the fault, the key, the commit, the reply. A fault is applied here
and nowhere else.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from settled.demo.service import store
from settled.demo.service.claims import claimed, in_the_way, invalid, problem
from settled.demo.service.faults import Fault, Kind, Switches, switches
from settled.demo.service.replies import Dropped, Frozen, Truncated
from settled.state.canonical import fingerprint
from settled.state.errors import InvalidArguments
from settled.state.postgres import Database

INVOICES: Mapping[str, Mapping[str, object]] = {
    "INV-101": {"invoice_id": "INV-101", "amount": 64.0, "limit": 80.0, "over_limit": 0.0},
    "INV-102": {"invoice_id": "INV-102", "amount": 118.5, "limit": 80.0, "over_limit": 38.5},
    "INV-103": {"invoice_id": "INV-103", "amount": 79.9, "limit": 80.0, "over_limit": 0.0},
}
RECORDS = {"refunds": "RF-", "coupons": "C-", "shipments": "S-", "notifications": "N-"}
MAX_AMOUNT = Decimal(10) ** 12
MAX_LOG = 10_000
"""Requests that are remembered; a demo makes ten."""

Commit: TypeAlias = Callable[[], Awaitable[JSONResponse]]


@dataclass
class Service:
    """One process: its database, its switches, and the requests it has seen (GET /log)."""

    database: Database
    switches: Switches
    log: list[dict[str, Any]] = field(default_factory=list)

    def note(self, request: Request, outcome: str) -> None:
        """Remember what became of a request."""
        del self.log[:-MAX_LOG]
        entry = {"at": time.time(), "method": request.method, "path": request.url.path, "outcome": outcome}
        self.log.append(
            entry | {"key": request.headers.get("idempotency-key") or request.query_params.get("idempotency_key")}
        )

    async def create_ticket(self, request: Request) -> Response:
        """POST /tickets"""
        body = await _object(request)
        sent, wrong = _ticket_body(body)
        if wrong is not None:
            return wrong
        key = request.headers.get("idempotency-key", "")

        async def commit() -> JSONResponse:
            dedupes = not self.switches.forget_keys
            made = await self.database.arun(store.create_ticket(key, sent, dedupes=dedupes))
            if (answer := await self._made(key, made)) is not None:
                return answer
            earlier = await self.database.arun(store.open_ticket(sent["employee_id"], sent["invoice_id"]))
            said = in_the_way(earlier or sent | {"receipt": None})
            await self.database.arun(store.store_answer(key, 409, said))
            return JSONResponse(said, 409)

        return await self._write(request, body, commit)

    async def cancel_ticket(self, request: Request) -> Response:
        """POST /tickets/{receipt}/cancel"""
        key, receipt = request.headers.get("idempotency-key", ""), request.path_params["receipt"]

        async def commit() -> JSONResponse:
            done = await self.database.arun(store.cancel_ticket(key, receipt))
            return (
                JSONResponse(done)
                if done is not None
                else problem(404, "no_such_ticket", f"there is no ticket {receipt}")
            )

        return await self._write(request, {"cancel": receipt}, commit)

    async def create_record(self, request: Request) -> Response:
        """POST /refunds, /coupons, /shipments, /notifications"""
        kind = request.url.path.strip("/")
        body, key = await _object(request), request.headers.get("idempotency-key", "")

        async def commit() -> JSONResponse:
            dedupes = not self.switches.forget_keys
            made = await self.database.arun(store.create_record(kind, RECORDS[kind], key, body, dedupes=dedupes))
            answer = await self._made(key, made)
            return answer or problem(409, "already_there", "there is one under this key")

        return await self._write(request, body, commit)

    async def _made(self, key: str, made: store.Json | None) -> JSONResponse | None:
        """Return the answer for what a statement made; also when it had made it before its connection was lost."""
        if made is not None:
            return JSONResponse(made, 201)
        known = await self.database.arun(store.load_key(key))
        return None if known is None or known.status is None else JSONResponse(known.answer, known.status)

    async def _write(self, request: Request, body: Mapping[str, object], commit: Commit) -> Response:
        fault = self.switches.take()
        match fault.kind:
            case Kind.FREEZE:
                self.note(request, "frozen")
                return Frozen()
            case Kind.REFUSE_503 | Kind.REFUSE_429:
                return self._refused(request, fault)
        key = request.headers.get("idempotency-key")
        if not key:
            return problem(400, "idempotency_key_missing", "send an Idempotency-Key")
        if not self.switches.forget_keys:
            try:
                payload = fingerprint({"path": request.url.path, "body": body}, {})
            except InvalidArguments as error:
                return invalid(error.field, error.rule)
            if (answer := await claimed(self.database, key, payload)) is not None:
                self.note(
                    request, f"{answer.status_code}, replayed" if answer.status_code < 300 else str(answer.status_code)
                )
                return answer
        if fault.kind is Kind.DELAY_BEFORE_COMMIT:
            await asyncio.sleep(fault.seconds)
        return await self._reply(request, fault, await commit())

    def _refused(self, request: Request, fault: Fault) -> Response:
        status = 503 if fault.kind is Kind.REFUSE_503 else 429
        after = None if fault.retry_after is None else f"{fault.retry_after:g}"
        self.note(request, f"{status}" + (f", Retry-After: {after}" if after else ""))
        said = problem(status, "busy", "the service is busy")
        if after:
            said.headers["retry-after"] = after
        return said

    async def _reply(self, request: Request, fault: Fault, answer: JSONResponse) -> Response:
        """Let the answer go out, or not."""
        match fault.kind:
            case Kind.COMMIT_AND_DROP:
                self.note(request, "committed, and the reply was lost")
                return Dropped()
            case Kind.COMMIT_AND_500:
                self.note(request, "committed, and answered 500")
                return problem(500, "internal", "something went wrong")
            case Kind.TRUNCATE:
                self.note(request, "committed, and half of the reply was sent")
                return Truncated(_parsed(answer), answer.status_code)
            case Kind.COMMIT_AND_DELAY:
                self.note(request, f"committed, and answered {fault.seconds:g} s later")
                await asyncio.sleep(fault.seconds)
            case _:
                self.note(request, str(answer.status_code))
        return answer

    async def tickets(self, request: Request) -> Response:
        """GET /tickets?idempotency_key=, or ?employee_id=&invoice_id="""
        asked = request.query_params
        fields = {"employee_id": asked.get("employee_id"), "invoice_id": asked.get("invoice_id")}
        query = store.find_tickets(key=asked.get("idempotency_key"), **fields, lag_s=self.switches.lag_s)
        return await self._query(request, lambda: self.database.arun(query))

    async def records(self, request: Request) -> Response:
        """GET /refunds?idempotency_key=, or ?order_id="""
        asked, kind = request.query_params, request.url.path.strip("/")
        wanted = {"key": asked.get("idempotency_key"), "order_id": asked.get("order_id")}
        query = store.find_records(kind, **wanted, lag_s=self.switches.lag_s)
        return await self._query(request, lambda: self.database.arun(query))

    async def _query(self, request: Request, find: Callable[[], Awaitable[list[store.Json]]]) -> Response:
        if self.switches.no_query is not None:
            self.note(request, str(self.switches.no_query))
            return problem(self.switches.no_query, "no_query", "this service cannot be asked")
        found = await find()
        self.note(request, f"{len(found)} found")
        return JSONResponse(found)

    async def invoice(self, request: Request) -> Response:
        """GET /invoices/{invoice_id}"""
        invoice_id = request.path_params["invoice_id"]
        self.note(request, "200" if invoice_id in INVOICES else "404")
        if invoice_id not in INVOICES:
            return problem(404, "no_such_invoice", f"there is no invoice {invoice_id}")
        return JSONResponse(INVOICES[invoice_id])

    async def put_faults(self, request: Request) -> Response:
        """PUT /faults: every switch that is not named is off."""
        try:
            self.switches = switches(await request.json())
        except (ValueError, TypeError) as error:
            return problem(422, "no_such_fault", str(error))
        return JSONResponse(self.switches.shown())

    async def get_faults(self, _: Request) -> Response:
        """GET /faults"""
        return JSONResponse(self.switches.shown())

    async def get_log(self, _: Request) -> Response:
        """GET /log: what this process has seen."""
        return JSONResponse(self.log)


def application(database: Database, given: Switches) -> Starlette:
    """Return the service as an ASGI application; the tables must be there."""
    service = Service(database, given)
    routes = [
        Route("/tickets", service.create_ticket, methods=["POST"]),
        Route("/tickets", service.tickets, methods=["GET"]),
        Route("/tickets/{receipt}/cancel", service.cancel_ticket, methods=["POST"]),
        Route("/invoices/{invoice_id}", service.invoice, methods=["GET"]),
        Route("/faults", service.put_faults, methods=["PUT"]),
        Route("/faults", service.get_faults, methods=["GET"]),
        Route("/log", service.get_log, methods=["GET"]),
    ]
    routes += [Route(f"/{kind}", service.create_record, methods=["POST"]) for kind in RECORDS]
    routes += [Route(f"/{kind}", service.records, methods=["GET"]) for kind in RECORDS]
    return Starlette(routes=routes)


async def _object(request: Request) -> dict[str, Any]:
    """Read the payload; anything but an object is read as an empty one, which then lacks its fields."""
    try:
        body = await request.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _ticket_body(body: Mapping[str, Any]) -> tuple[dict[str, Any], JSONResponse | None]:
    sent: dict[str, Any] = {}
    for name in ("employee_id", "invoice_id"):
        sent[name] = body.get(name)
        if not isinstance(sent[name], str) or not sent[name] or not sent[name].isprintable():
            return sent, invalid(name, "must be a printable text that is not empty")
    for name in ("amount", "over_limit"):
        sent[name] = _amount(body.get(name))
        if sent[name] is None:
            return sent, invalid(name, "must be an amount of at least 0")
    return sent, None


def _amount(value: object) -> Decimal | None:
    if isinstance(value, bool):
        return None
    try:
        amount = Decimal(str(value))
        return amount if 0 <= amount < MAX_AMOUNT else None
    except InvalidOperation:  # no number, or none that can be compared
        return None


def _parsed(answer: JSONResponse) -> Any:
    return json.loads(bytes(answer.body))
