"""The routes of the ticket service, and how it recognises a repeat.

A write checks its payload, waits where a fault says so, and takes effect. That there is one effect per key is the
`IdempotencyMiddleware`'s; what became of a request whose process died is found by its key (`Service.reconcile`).
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Scope

from settled.demo.service import store
from settled.demo.service.answers import in_the_way, invalid, problem, read_object, read_ticket
from settled.demo.service.faults import Switches, switches
from settled.demo.service.hooks import NOTIFICATIONS, Hooks
from settled.demo.service.visits import Faulty, Visit, Visits
from settled.runtime.idempotency import IdempotencyMiddleware
from settled.state.errors import InvalidArguments
from settled.state.input_limits import check_arguments
from settled.state.postgres import Database
from settled.state.store import Ledger
from settled.tools.endpoint import Finding, IdempotencyStore, StoredAnswer
from settled.tools.endpoint_http import EndpointRequest
from settled.tools.resolutions import DidNotHappen

INVOICES: Mapping[str, Mapping[str, object]] = {
    "INV-101": {"invoice_id": "INV-101", "amount": 64.0, "limit": 80.0, "over_limit": 0.0},
    "INV-102": {"invoice_id": "INV-102", "amount": 118.5, "limit": 80.0, "over_limit": 38.5},
    "INV-103": {"invoice_id": "INV-103", "amount": 79.9, "limit": 80.0, "over_limit": 0.0},
}
COUPONS: Mapping[str, Mapping[str, object]] = {"SPRING-20": {"coupon": "SPRING-20", "worth": 20.0}}
OUT_OF_STOCK = frozenset({"TEAPOT"})
RECORDS = {"refunds": "RF-", "coupons": "C-", "returns": "CR-", "shipments": "S-", NOTIFICATIONS: "N-"}

LEASE_S = 3.0
"""A write takes milliseconds, and a person is watching: soon after a process died, its keys are reconciled."""


@dataclass
class Service:
    """One process: its database, its switches, and the requests it has seen."""

    database: Database
    visits: Visits

    async def create_ticket(self, request: Request) -> Response:
        """POST /tickets"""
        sent, wrong = read_ticket(await read_object(request))
        if wrong is not None:
            return invalid(request, *wrong)
        key, dedupes = _key(request), not self.visits.switches.forget_keys
        await _visit(request).act()
        made = await self.database.arun(store.create_ticket(key, sent, dedupes=dedupes))
        if made is None:  # or the connection was lost after it was made, and the statement sent again
            made = await self.database.arun(store.ticket_of(key))
        if made is not None:
            return JSONResponse(made, 201)
        earlier = await self.database.arun(store.open_ticket(sent["employee_id"], sent["invoice_id"]))
        return in_the_way(earlier or sent | {"receipt": None})

    async def cancel_ticket(self, request: Request) -> Response:
        """POST /tickets/{receipt}/cancel"""
        receipt = request.path_params["receipt"]
        await _visit(request).act()
        done = await self.database.arun(store.cancel_ticket(receipt))
        return problem(404, "no_such_ticket", f"there is no ticket {receipt}") if done is None else JSONResponse(done)

    async def create_record(self, request: Request) -> Response:
        """POST /refunds, /coupons (deducts one), /returns (gives one back), /shipments, /notifications"""
        kind, body = request.url.path.strip("/"), await read_object(request)
        try:
            check_arguments(body)
        except InvalidArguments as error:
            return invalid(request, error.field, error.rule)
        if kind == "shipments" and body.get("item") in OUT_OF_STOCK:
            return problem(409, "out_of_stock", f"{body['item']} is out of stock")
        key, dedupes = _key(request), not self.visits.switches.forget_keys
        await _visit(request).act()
        made = await self.database.arun(store.create_record(kind, RECORDS[kind], key, body, dedupes=dedupes))
        if made is None:
            made = await self.database.arun(store.record_of(kind, key))
        return JSONResponse(made, 201)

    async def reconcile(self, key: str, request: EndpointRequest) -> Finding:
        """Say what became of a request whose process died: its effect bears its key, and there is one of it at most,
        so a late one of the former process could not come to a second.
        """
        match request.path.strip("/").split("/"):
            case ["tickets"]:
                found, status = await self.database.arun(store.ticket_of(key)), 201
            case ["tickets", receipt, "cancel"]:
                ticket = await self.database.arun(store.load_ticket(receipt))
                found, status = ticket if ticket and ticket["status"] == "cancelled" else None, 200
            case [kind, *_]:
                found, status = await self.database.arun(store.record_of(kind, key)), 201
        if found is None:
            return DidNotHappen()
        answer = JSONResponse(found, status)
        return StoredAnswer(status, bytes(answer.body), (("content-type", answer.media_type),))

    async def tickets(self, request: Request) -> Response:
        """GET /tickets?idempotency_key=, or ?employee_id=&invoice_id="""
        asked = request.query_params
        fields = {"employee_id": asked.get("employee_id"), "invoice_id": asked.get("invoice_id")}
        query = store.find_tickets(key=asked.get("idempotency_key"), **fields, lag_s=self.visits.switches.lag_s)
        return await self._query(request, lambda: self.database.arun(query))

    async def records(self, request: Request) -> Response:
        """GET /refunds?idempotency_key=, or ?order_id=; the other kinds alike"""
        asked, kind = request.query_params, request.url.path.strip("/")
        wanted = {"key": asked.get("idempotency_key"), "order_id": asked.get("order_id")}
        query = store.find_records(kind, **wanted, lag_s=self.visits.switches.lag_s)
        return await self._query(request, lambda: self.database.arun(query))

    async def _query(self, request: Request, find: Callable[[], Awaitable[list[store.Json]]]) -> Response:
        no_query = self.visits.switches.no_query
        if no_query is not None:
            self.visits.note(request, str(no_query))
            return problem(no_query, "no_query", "this service cannot be asked")
        found = await find()
        self.visits.note(request, f"{len(found)} found")
        return JSONResponse(found)

    async def invoice(self, request: Request) -> Response:
        """GET /invoices/{invoice_id}"""
        invoice_id = request.path_params["invoice_id"]
        self.visits.note(request, "200" if invoice_id in INVOICES else "404")
        if invoice_id not in INVOICES:
            return problem(404, "no_such_invoice", f"there is no invoice {invoice_id}")
        return JSONResponse(INVOICES[invoice_id])

    async def coupon(self, request: Request) -> Response:
        """GET /coupons/{coupon}"""
        coupon = request.path_params["coupon"]
        self.visits.note(request, "200" if coupon in COUPONS else "404")
        if coupon not in COUPONS:
            return problem(404, "no_such_coupon", f"there is no coupon {coupon}")
        return JSONResponse(COUPONS[coupon])

    async def put_faults(self, request: Request) -> Response:
        """PUT /faults: every switch that is not named is off."""
        try:
            self.visits.switches = switches(await request.json())
        except (ValueError, TypeError) as error:
            return problem(422, "no_such_fault", str(error))
        return JSONResponse(self.visits.switches.shown())

    async def get_faults(self, _: Request) -> Response:
        """GET /faults"""
        return JSONResponse(self.visits.switches.shown())

    async def get_log(self, _: Request) -> Response:
        """GET /log: what this process has seen."""
        return JSONResponse(self.visits.log)


def application(database: Database, ledger: Ledger, given: Switches, *, secret: str | None = None) -> ASGIApp:
    """Return the service as an ASGI application; its tables, and those of its keys, must be there. Whoever has the
    `secret` may send it webhooks.
    """
    service, hooks = Service(database, Visits(given)), Hooks(database, secret)
    routes = [
        Route("/tickets", service.create_ticket, methods=["POST"]),
        Route("/tickets", service.tickets, methods=["GET"]),
        Route("/tickets/{receipt}/cancel", service.cancel_ticket, methods=["POST"]),
        Route("/invoices/{invoice_id}", service.invoice, methods=["GET"]),
        Route("/coupons/{coupon}", service.coupon, methods=["GET"]),
        Route("/hooks", hooks.take, methods=["POST"]),
        Route("/faults", service.put_faults, methods=["PUT"]),
        Route("/faults", service.get_faults, methods=["GET"]),
        Route("/log", service.get_log, methods=["GET"]),
    ]
    routes += [Route(f"/{kind}", service.create_record, methods=["POST"]) for kind in RECORDS]
    routes += [Route(f"/{kind}", service.records, methods=["GET"]) for kind in RECORDS]
    forgetful = Starlette(routes=routes)
    keys = IdempotencyStore(ledger, scope="tickets", reconcile=service.reconcile, lease_s=LEASE_S)
    keyed = IdempotencyMiddleware(forgetful, store=keys, tenant=lambda _: "everybody", required=_wants_a_key)
    return Faulty(service.visits, keyed, forgetful)


def _wants_a_key(scope: Scope) -> bool:
    """A webhook has the id of its message instead."""
    return bool(scope["path"] != "/hooks")


def _key(request: Request) -> str:
    return request.headers.get("idempotency-key", "")


def _visit(request: Request) -> Visit:
    visit: Visit = request.scope["demo.visit"]
    return visit
