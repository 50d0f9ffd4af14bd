"""Tools without a fault, many of which look like one that has. Read by tests/test_check.py; never run."""

import logging
import queue
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import uuid4

import httpx
import requests
from langchain_core.tools import tool
from langgraph.errors import GraphBubbleUp
from langgraph.graph import START, StateGraph
from pydantic import BaseModel, Field

from settled import (
    Absent,
    Ended,
    Found,
    Incidental,
    Inconclusive,
    Inquiry,
    Ledger,
    Ordered,
    Precision,
    Refused,
    Rejected,
    Secret,
    Session,
    action,
    as_action,
    build_agent,
    current_action,
    http,
    open_checkpointer,
)

shop = http.client(base_url="https://shop.example", timeout=5)
own = httpx.AsyncClient(base_url="https://shop.example", timeout=5)
http.guard(own)
jobs: "queue.Queue[str]" = queue.Queue()
log = logging.getLogger(__name__)
PATTERN = re.compile("[A-Z]")

Result = dict[str, object]
Money = Annotated[Decimal, Precision(2)]


def find(asked: Inquiry) -> Found | Absent | Inconclusive:
    try:
        answer = shop.get("/refunds", params={"idempotency_key": asked.idempotency_key})
    except httpx.HTTPError:
        return Inconclusive("the shop did not answer")
    if answer.status_code == 404:
        return Absent()
    answer.raise_for_status()
    return Found(answer.json()["receipt"], answer.json())


class Speed(StrEnum):
    FAST = "fast"
    SLOW = "slow"


class Line(BaseModel):
    sku: str
    count: int
    steps: Annotated[list[str], Ordered()] = []


@action(
    risk="non_idempotent_write",
    remote="dedupes",
    identity=("order_id",),
    unique=("order_id",),
    query=find,
    messages={
        "unknown": "Your refund was received. Whether it was done will be reported here; do not submit it again.",
        "rejected": "The shop said no: {reason}. Do not try again.",
        "invalid": "The order id is wrong; correct it and call again.",
    },
)
def refund(
    order_id: str,
    amount: Money,
    fee: Annotated[float, Precision(2)],
    currency: Literal["EUR", "USD"],
    speed: Speed,
    due: date,
    meeting_at: datetime,
    codes: Annotated[list[str], Ordered()],
    tags: frozenset[str],
    lines: set[str],
    labels: dict[str, str],
    first: Line,
    reference: Annotated[str, Field(pattern=r"^R-\d+$")],
    memo: Annotated[str, Incidental(), Field(description="Free text. Never retry because of it.")],
    card: Annotated[str, Secret()],
    confirmed: bool = False,
) -> Result:
    """Refund an order. Do not call it again for the same order; retries are handled."""
    return _refunded(order_id, str(amount))


def _refunded(order_id: str, amount: str) -> Result:
    answer = shop.post("/refunds", json={"order_id": order_id, "amount": amount})
    try:
        return dict(answer.json())
    except ValueError:
        return {"receipt": order_id}


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
async def arefund(order_id: str) -> Result:
    """Refund an order."""
    if order_id.startswith("X"):
        answer = await own.post("/refunds/express", json={"order_id": order_id})
    else:
        answer = await own.post("/refunds", json={"order_id": order_id})
    return dict(answer.json())


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def one_of_three(order_id: str) -> Result:
    """Cancel an order."""
    match order_id[0]:
        case "A":
            return dict(shop.post("/a", json={}).json())
        case "B":
            return dict(shop.put("/b", json={}, headers={"X-Request-Id": str(uuid4())}).json())
    if order_id == "C":
        return dict(shop.patch("/c", json={}).json())
    return dict(shop.delete("/d").json())


@action(risk="idempotent_write", remote="dedupes", query=find)
def by_hand(charge: str) -> Result:
    """Refund with an SDK that takes a key."""
    import stripe

    stripe.max_network_retries = 0
    return dict(stripe.Refund.create(charge=charge, idempotency_key=current_action().idempotency_key))


@action(risk="non_idempotent_write", remote="queryable", identity=("order_id",), query=find)
def with_boto(order_id: int) -> Result:
    """Queue an order."""
    import boto3
    from botocore.config import Config

    config = Config(retries={"total_max_attempts": 1})
    queue_client = boto3.client("sqs", config=config)
    queue_client.get_queue_attributes(QueueUrl="q")
    return dict(queue_client.send_message(QueueUrl="q", MessageBody=str(order_id)))


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def by_requests_with_the_key(order_id: str) -> Result:
    """Order with a client of the author's own, which sends the key by hand."""
    headers = {"Idempotency-Key": current_action().idempotency_key}
    try:
        answer = requests.post("https://shop.example", headers=headers, json={"order_id": order_id}, timeout=5)
    except requests.ConnectTimeout as error:
        raise Ended(Refused("the shop could not be reached")) from error
    if answer.status_code == 409:
        raise Ended(Rejected("the order was shipped already"))
    answer.raise_for_status()
    return dict(answer.json())


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def pausing(order_id: str) -> Result:
    """Order, and look at it first."""
    try:
        look.invoke({"order_id": order_id})
    except GraphBubbleUp:
        raise
    except Exception:
        log.info("cannot look")
    for name in ("a", "b"):  # a loop that only reads
        shop.get(f"/{name}")
    jobs.put(order_id)
    PATTERN.match(order_id)
    started = datetime.now(UTC)
    result = dict(shop.post("/orders", json={"order_id": order_id}).json())
    log.info("took %s", datetime.now(UTC) - started)
    return result


@action(risk="read")
def look(order_id: str) -> Result:
    """Look at an order; may be called again."""
    try:
        return dict(shop.get(f"/orders/{order_id}").raise_for_status().json())
    except httpx.HTTPError as error:
        return {"error": str(error)}


@dataclass
class Desk:
    """A client behind a class."""

    client: httpx.Client

    def order(self, order_id: str) -> Result:
        return dict(self.client.post("/orders", json={"order_id": order_id}).json())


desk = Desk(http.client(base_url="https://shop.example"))


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def behind_a_class(order_id: str) -> Result:
    """Order."""
    return desk.order(order_id)


def factory(client: httpx.Client) -> Any:
    @action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
    def from_a_factory(order_id: str) -> Result:
        """Order."""

        def body() -> Result:
            return {"order_id": order_id}

        return dict(client.post("/orders", json=body()).json())

    return from_a_factory


from_a_factory = factory(desk.client)


@tool
def send_mail(to: str, key: str) -> str:
    """Send a mail."""
    return requests.post("https://mail.example", json={"to": to, "key": key}, timeout=5).text


mail = as_action(
    send_mail, risk="non_idempotent_write", remote="queryable", identity=("to",), query=find, key_argument="key"
)


@tool
def weather(city: str) -> str:
    """Look up the weather; call it again for another city."""
    return requests.get("https://weather.example", params={"city": city}, timeout=5).text


@action(
    risk="non_idempotent_write",
    # settled: allow opaque-remote - the bank cannot be asked; its own desk works the manual queue
    remote="opaque",
    identity=("iban",),
)
def transfer(iban: str) -> Result:
    """Transfer."""
    return dict(shop.post("/transfers", json={"iban": iban}).json())


# settled: allow volatile-key, free-text-key - this request_id is the shop's own id of an open request
# and its title is chosen from a list
@action(risk="non_idempotent_write", remote="dedupes", identity=("request_id", "subject"), query=find)
def close_request(request_id: str, subject: str) -> Result:
    """Close a request."""
    return dict(shop.post("/requests/close", json={"request_id": request_id}).json())


def node(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "seen": subgraph.invoke(state)}


subgraph = StateGraph(dict).add_node("look", lambda state: state).add_edge(START, "look").compile()
graph = StateGraph(dict).add_node("node", node).add_edge(START, "node")


def serve(model: Any, tools: Sequence[Any], message: str, message_id: str) -> str:
    """The entrance."""
    with Ledger.connect() as ledger, open_checkpointer(ledger) as checkpointer:
        agent = build_agent(model, [refund, *tools], ledger=ledger, checkpointer=checkpointer)
        session = Session(agent, ledger=ledger, thread_id="t")
        for _ in range(3):
            try:
                return session.send(message, message_id=message_id).text
            except TimeoutError:
                continue
        return session.resume().text
