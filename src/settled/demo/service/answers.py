"""What the service says, and which requests it says it to. Decides nothing."""

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from settled.runtime.idempotency import claimed_request

MAX_AMOUNT = Decimal(10) ** 12


def problem(status: int, code: str, message: str, **more: Any) -> JSONResponse:
    """Return an answer that says no."""
    return JSONResponse({"code": code, "message": message, **more}, status)


def invalid(request: Request, field: str, message: str) -> Response:
    """Return the answer to a payload that breaks a rule; its key may be used again for a corrected one."""
    running = claimed_request(request.scope)
    if running is not None:
        running.nothing_happened()
    return JSONResponse({"detail": [{"loc": ["body", field], "msg": message}]}, 422)


def in_the_way(earlier: Mapping[str, Any]) -> JSONResponse:
    """Return what is said when there is an open ticket for the same employee and invoice."""
    message = f"invoice {earlier['invoice_id']} was already reimbursed"
    return problem(409, "already_reimbursed", message, receipt=earlier["receipt"])


async def read_object(request: Request) -> dict[str, Any]:
    """Read the payload; anything but an object is read as an empty one, which then lacks its fields."""
    try:
        body = await request.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def read_ticket(body: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, str] | None]:
    """Return the fields of a ticket, and the first one that breaks a rule with that rule."""
    sent: dict[str, Any] = {}
    for name in ("employee_id", "invoice_id"):
        sent[name] = body.get(name)
        if not isinstance(sent[name], str) or not sent[name] or not sent[name].isprintable():
            return sent, (name, "must be a printable text that is not empty")
    for name in ("amount", "over_limit"):
        sent[name] = _amount(body.get(name))
        if sent[name] is None:
            return sent, (name, "must be an amount of at least 0")
    return sent, None


def _amount(value: object) -> Decimal | None:
    if isinstance(value, bool):
        return None
    try:
        amount = Decimal(str(value))
        return amount if 0 <= amount < MAX_AMOUNT else None
    except InvalidOperation:  # no number, or none that can be compared
        return None
