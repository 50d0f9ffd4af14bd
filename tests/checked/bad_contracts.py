"""Declarations with a fault each, marked at its line (`# <- id`). Read by tests/test_check.py; never run."""

from datetime import datetime
from typing import Annotated, Any
from uuid import uuid4

from pydantic import BaseModel, Field

from settled import Found, Inquiry, Secret, action, http

shop = http.client(base_url="https://shop.example", timeout=5)


def find(asked: Inquiry) -> Found:
    answer = shop.get("/orders", params={"idempotency_key": asked.idempotency_key}).raise_for_status()
    return Found(answer.json()["receipt"], answer.json())


def ordered(**values: object) -> dict[str, object]:
    return dict(shop.post("/orders", json=values).json())


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id", "timestamp"), query=find)
def by_timestamp(
    order_id: str,
    timestamp: datetime,  # <- volatile-key
) -> dict[str, object]:
    """Order."""
    return ordered(order_id=order_id)


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), unique=("request_id",), query=find)
def by_request_id(
    order_id: str,
    request_id: str,  # <- volatile-key
) -> dict[str, object]:
    """Order."""
    return ordered(order_id=order_id)


@action(risk="idempotent_write", remote="dedupes", query=find)
def by_nonce(
    order_id: str,
    nonce: int,  # <- volatile-key
) -> dict[str, object]:
    """Order."""
    return ordered(order_id=order_id)


@action(risk="non_idempotent_write", remote="dedupes", identity="all", query=find)
def by_a_fresh_default(
    order_id: str,
    reference: Annotated[str, Field(default_factory=lambda: str(uuid4()))],  # <- volatile-key
) -> dict[str, object]:
    """Order."""
    return ordered(order_id=order_id)


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def with_an_instant(
    order_id: str,
    requested_at: datetime,  # <- volatile-argument
) -> dict[str, object]:
    """Order."""
    return ordered(order_id=order_id)


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id", "reason"), query=find)
def by_reason(
    order_id: str,
    reason: Annotated[str, Field(max_length=200)],  # <- free-text-key
) -> dict[str, object]:
    """Refund."""
    return ordered(order_id=order_id, reason=reason)


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def with_a_note(
    order_id: str,
    note: str,  # <- free-text-argument
    customer_comment: Annotated[str | None, Field(max_length=200)] = None,  # <- free-text-argument
) -> dict[str, object]:
    """Refund."""
    return ordered(order_id=order_id, note=note)


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id", "amount"), query=find)
def by_float(
    order_id: str,
    amount: float,  # <- float-key
) -> dict[str, object]:
    """Refund."""
    return ordered(order_id=order_id, amount=amount)


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def priced_in_floats(
    order_id: str,
    unit_price: float | None,  # <- float-money
) -> dict[str, object]:
    """Order."""
    return ordered(order_id=order_id, unit_price=unit_price)


class Line(BaseModel):
    sku: str
    serials: list[str]


class Offer(BaseModel):
    sku: str
    price: float


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def with_prices(
    order_id: str,
    fees: tuple[float, float],  # <- float-money
    offer: Offer,  # <- float-money
) -> dict[str, object]:
    """Order."""
    return ordered(order_id=order_id)


@action(risk="non_idempotent_write", remote="dedupes", identity=("title",), query=find)
def by_title(
    title: str,  # <- free-text-key
) -> dict[str, object]:
    """Open a ticket."""
    return ordered(title=title)


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def loosely_typed(
    order_id: str,
    options: dict[str, Any],  # <- untyped-argument
    tags: list,  # type: ignore[type-arg]  # <- untyped-argument, unsaid-order
    whatever=None,  # type: ignore[no-untyped-def]  # <- untyped-argument
    mapping: dict | None = None,  # type: ignore[type-arg]  # <- untyped-argument
) -> dict[str, object]:
    """Order."""
    return ordered(order_id=order_id)


@action(risk="idempotent_write", remote="dedupes", query=find)
def with_lists(
    order_id: str,
    skus: list[str],  # <- unsaid-order
    lines: tuple[Line, ...],  # <- unsaid-order
) -> dict[str, object]:
    """Order."""
    return ordered(order_id=order_id, skus=skus)


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",))
def never_asked(order_id: str) -> dict[str, object]:  # <- no-query
    """Order."""
    return ordered(order_id=order_id)


@action(risk="non_idempotent_write", identity=("order_id",))
def nothing_said(order_id: str) -> dict[str, object]:  # <- no-query
    """Order."""
    return ordered(order_id=order_id)


@action(
    risk="non_idempotent_write",
    remote="opaque",  # <- opaque-remote
    identity=("order_id",),
)
def opaque(order_id: str) -> dict[str, object]:
    """Order."""
    return ordered(order_id=order_id)


@action(
    risk="non_idempotent_write",
    remote="dedupes",
    identity=("order_id",),
    query=find,
    timeout=10,
    lease=10.1,  # <- thin-lease
)
def barely_leased(order_id: str) -> dict[str, object]:
    """Order."""
    return ordered(order_id=order_id)


@action(
    risk="non_idempotent_write",
    remote="dedupes",
    identity=("order_id",),
    query=find,
    lease=3600,  # <- long-lease
)
def long_leased(order_id: str) -> dict[str, object]:
    """Order."""
    return ordered(order_id=order_id)


@action(
    risk="non_idempotent_write",
    remote="dedupes",
    identity=("order_id",),
    query=find,
    timeout=30,
    deadline=30,  # <- no-room-to-retry
)
def one_attempt_only(order_id: str) -> dict[str, object]:
    """Order."""
    return ordered(order_id=order_id)


@action(
    risk="non_idempotent_write",
    remote="dedupes",
    identity=("order_id",),
    query=find,
    settle_window=10,  # <- thin-settle-window
)
def absent_at_once(order_id: str) -> dict[str, object]:
    """Order."""
    return ordered(order_id=order_id)


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def with_a_secret(order_id: str, token: Annotated[str, Secret()]) -> dict[str, object]:
    """Order; the secret has no fault."""
    return ordered(order_id=order_id, token=token)
