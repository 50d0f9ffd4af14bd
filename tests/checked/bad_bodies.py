"""Bodies and queries with a fault each, marked at its line (`# <- id`). Read by tests/test_check.py; never run."""

import asyncio
import logging
import time
import urllib.request
from contextlib import suppress
from datetime import UTC, datetime
from uuid import uuid4

import httpx
import requests
import tenacity
from langgraph.errors import GraphBubbleUp
from langgraph.types import interrupt
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from settled import Absent, Found, Inconclusive, Inquiry, action, http

shop = http.client(base_url="https://shop.example", timeout=5)
slow = http.client(base_url="https://shop.example", timeout=60)  # <- client-outlasts-timeout
raw = httpx.Client(base_url="https://shop.example", timeout=5)
eager = http.guard(httpx.Client(transport=httpx.HTTPTransport(retries=3)))  # <- transport-retries
redirected = http.guard(httpx.Client(follow_redirects=True))  # <- follow-redirects
adapted = requests.Session()
adapted.mount("https://", HTTPAdapter(max_retries=Retry(total=3)))  # <- sdk-retries

Result = dict[str, object]
log = logging.getLogger(__name__)


def find(asked: Inquiry) -> Found:
    answer = shop.get("/orders", params={"idempotency_key": asked.idempotency_key}).raise_for_status()
    return Found(answer.json()["receipt"], answer.json())


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def by_requests(order_id: str) -> Result:
    """Order."""
    answer = requests.post("https://shop.example/orders", json={"order_id": order_id})  # <- raw-client
    return dict(answer.json())


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def by_a_raw_client(order_id: str) -> Result:
    """Order."""
    return dict(raw.post("/orders", json={"order_id": order_id}).json())  # <- raw-client


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
async def by_a_client_of_its_own(order_id: str) -> Result:
    """Order."""
    async with httpx.AsyncClient() as client:
        answer = await client.request("DELETE", f"https://shop.example/orders/{order_id}")  # <- raw-client
    return dict(answer.json())


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def by_urllib(order_id: str) -> Result:
    """Order."""
    with urllib.request.urlopen("https://shop.example", data=order_id.encode()) as answer:  # <- raw-client
        return {"receipt": answer.read().decode()}


def put(order_id: str) -> Result:
    return dict(adapted.put(f"https://shop.example/orders/{order_id}", timeout=5).json())  # <- raw-client


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def by_a_helper(order_id: str) -> Result:
    """Order."""
    return put(order_id)


class Api:
    def __init__(self) -> None:
        self.client = httpx.Client()

    def cancel(self, order_id: str) -> Result:
        return dict(self.client.delete(f"https://shop.example/orders/{order_id}").json())  # <- raw-client


api = Api()


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def by_a_method(order_id: str) -> Result:
    """Order."""
    return api.cancel(order_id)


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def by_a_slow_client(order_id: str) -> Result:
    """Order."""
    return dict(slow.post("/orders", json={"order_id": order_id}).json())


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def by_a_slow_request(order_id: str) -> Result:
    """Order."""
    answer = shop.post("/orders", json={}, timeout=httpx.Timeout(120))  # <- client-outlasts-timeout
    return dict(answer.json())


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def redirecting(order_id: str) -> Result:
    """Order."""
    return dict(redirected.post("https://shop.example/orders", json={"order_id": order_id}).json())


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def connecting_again(order_id: str) -> Result:
    """Order."""
    transport = httpx.HTTPTransport(retries=2)  # <- transport-retries
    with http.guard(httpx.Client(transport=transport)) as client:
        return dict(client.post("https://shop.example/orders", json={"order_id": order_id}).json())


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def by_an_eager_client(order_id: str) -> Result:
    """Order."""
    return dict(eager.post("https://shop.example/orders", json={"order_id": order_id}).json())


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
async def in_a_thread(order_id: str) -> Result:
    """Order."""
    answer = await asyncio.to_thread(requests.post, "https://shop.example", order_id)  # <- raw-client
    return dict(answer.json())


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def late_token(order_id: str) -> Result:
    """Order."""
    token = f"{order_id}-{time.time()}"
    return dict(shop.post("/orders", json={"order_id": order_id, "ClientToken": token}).json())  # <- key-made-late


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def late_key(order_id: str) -> Result:
    """Order."""
    headers = {"Idempotency-Key": str(uuid4())}  # <- key-made-late
    return dict(shop.post("/orders", json={"order_id": order_id}, headers=headers).json())


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def fresh_payload(order_id: str) -> Result:
    """Order."""
    return dict(
        shop.post(
            "/orders",
            json={"order_id": order_id, "at": datetime.now(UTC).isoformat()},  # <- volatile-payload
        ).json()
    )


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def two_writes(order_id: str) -> Result:
    """Order, and ship."""
    shop.post("/orders", json={"order_id": order_id})
    return dict(shop.post("/shipments", json={"order_id": order_id}).json())  # <- several-writes


def post_one(order_id: str) -> Result:
    return dict(shop.post("/orders", json={"order_id": order_id}).json())


@action(risk="non_idempotent_write", remote="dedupes", identity="all", query=find)
def many_writes(order_ids: set[str]) -> Result:
    """Order each."""
    for order_id in order_ids:
        post_one(order_id)  # <- several-writes
    return {"receipt": "all"}


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def hiding(order_id: str) -> Result | str:
    """Order."""
    try:
        return post_one(order_id)
    except Exception as error:  # <- error-as-result
        log.exception("order")
        return f"Error: {error}"  # <- raw-exception


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def hiding_a_timeout(order_id: str) -> Result:
    """Order."""
    result: Result = {"status": "failed"}
    try:
        result = post_one(order_id)
    except (httpx.TimeoutException, KeyError):  # <- error-as-result
        result["status"] = "timed out"
    return result


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def suppressing(order_id: str) -> Result:
    """Order."""
    with suppress(Exception):  # <- error-as-result
        post_one(order_id)
    return {"receipt": order_id}


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def unheard(order_id: str) -> Result:
    """Order."""
    with suppress(Exception):  # <- swallowed-interrupt
        interrupt({"order": order_id})
    return post_one(order_id)


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def by_a_retrying_call(order_id: str) -> Result:
    """Order."""
    again = tenacity.Retrying(stop=tenacity.stop_after_attempt(3))
    return again(post_one, order_id)  # <- retry-in-body


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def unpaused(order_id: str) -> Result:
    """Order."""
    try:
        interrupt({"order": order_id})
    except Exception:  # <- swallowed-interrupt
        log.info("nobody to ask")
    return post_one(order_id)


def hurried(request: object, handler: object) -> object:
    try:
        return handler(request)  # type: ignore[operator]
    except GraphBubbleUp:  # <- swallowed-interrupt
        return None


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
@tenacity.retry(stop=tenacity.stop_after_attempt(3))  # <- retry-in-body
def decorated(order_id: str) -> Result:
    """Order."""
    return post_one(order_id)


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def looping(order_id: str) -> Result:
    """Order."""
    for delay in (1, 2, 4):  # <- retry-in-body
        try:
            return post_one(order_id)
        except httpx.TransportError:
            time.sleep(delay)
    raise RuntimeError(order_id)


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def in_retrying(order_id: str) -> Result:
    """Order."""
    for attempt in tenacity.Retrying():  # <- retry-in-body
        with attempt:
            return post_one(order_id)
    raise RuntimeError(order_id)


@action(risk="read")
def look(order_id: str) -> Result:
    """Look at an order."""
    return dict(shop.post("/orders/seen", json={"order_id": order_id}).json())  # <- read-that-writes


def find_and_touch(asked: Inquiry) -> Found:
    answer = shop.put(f"/orders/{asked.idempotency_key}/asked")  # <- query-that-writes
    return Found(answer.json()["receipt"], answer.json())


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find_and_touch)
def asked_with_an_effect(order_id: str) -> Result:
    """Order."""
    return post_one(order_id)


def find_or_not(asked: Inquiry) -> Found | Absent | Inconclusive:
    try:
        answer = shop.get(f"/orders/{asked.idempotency_key}")
    except httpx.HTTPError:
        return Absent()  # <- absent-on-error
    if answer.status_code == 404:
        return Absent()
    if answer.status_code != 200:
        return Absent()  # <- absent-on-error
    return Found(answer.json()["receipt"], answer.json())


@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find_or_not)
def taken_for_absent(order_id: str) -> Result:
    """Order."""
    return post_one(order_id)


made: dict[str, object] = {"__name__": "nowhere"}
exec("def unseen(order_id: str) -> dict[str, object]:\n    'Order.'\n    return {}", made)
unseen = action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)(made["unseen"])  # type: ignore[arg-type]
