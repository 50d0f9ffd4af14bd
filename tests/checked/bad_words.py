"""Words that a model reads, with a fault each, marked at its line (`# <- id`). Never run."""

from typing import Annotated

import httpx
from langchain_core.tools import ToolException
from pydantic import Field

from settled import Ended, Found, Inquiry, Rejected, action, http

shop = http.client(base_url="https://shop.example", timeout=5)


def find(asked: Inquiry) -> Found:
    answer = shop.get("/orders", params={"idempotency_key": asked.idempotency_key}).raise_for_status()
    return Found(answer.json()["receipt"], answer.json())


def ordered(order_id: str) -> dict[str, object]:
    return dict(shop.post("/orders", json={"order_id": order_id}).json())


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def described(order_id: str) -> dict[str, object]:  # <- invites-retry
    """Refund an order. If it does not work, call it again."""
    return ordered(order_id)


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def described_as_harmless(order_id: str) -> dict[str, object]:  # <- invites-retry
    """Refund an order. This tool may be called several times."""
    return ordered(order_id)


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def described_with_a_name(order_id: str) -> dict[str, object]:  # <- invites-retry
    """Refund an order. After an error, call this tool again."""
    return ordered(order_id)


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def argument_described(
    order_id: Annotated[str, Field(description="Retry with another one if it fails.")],  # <- invites-retry
) -> dict[str, object]:
    """Refund an order."""
    return ordered(order_id)


@action(
    risk="non_idempotent_write",
    remote="dedupes",
    identity=("order_id",),
    query=find,
    messages={
        "unavailable": "The shop is closed. Please try again later.",  # <- invites-retry
        "unknown": "The refund failed.",  # <- claims-outcome
        "expired": "Nobody decided. Retry.",  # <- invites-retry
        "in_progress": "退款已完成。",  # <- claims-outcome
        "manual_review": "A person looks at it; 请重新提交。",  # <- invites-retry
        "rejected": "The shop said no. Do not try again.",
        "invalid": "The order id is wrong: please correct it and try again.",
        "waiting_for_approval": "Whether it is completed will be reported here.",
    },
)
def worded(order_id: str) -> dict[str, object]:
    """Refund an order."""
    return ordered(order_id)


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def reasoned(order_id: str) -> dict[str, object]:
    """Refund an order."""
    if order_id.startswith("X"):
        raise Ended(Rejected("the shop is busy, try it again in a minute"))  # <- invites-retry
    return ordered(order_id)


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def answered(order_id: str) -> dict[str, object] | str:
    """Refund an order."""
    if order_id.startswith("X"):
        return f"{order_id} is locked. Please retry."  # <- invites-retry
    return ordered(order_id)


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def raw_reason(order_id: str) -> dict[str, object]:
    """Refund an order."""
    try:
        return ordered(order_id)
    except httpx.HTTPError as error:
        raise Ended(Rejected(str(error))) from error  # <- raw-exception


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def raw_tool_exception(order_id: str) -> dict[str, object]:
    """Refund an order."""
    try:
        return ordered(order_id)
    except httpx.HTTPError as error:
        raise ToolException(f"refund: {error}") from error  # <- raw-exception
