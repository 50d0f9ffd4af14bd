"""Scenarios for the tests of the fault kit: a good tool, and tools with one planted fault each.

A crash matrix runs them in processes of their own.
"""

import os
import signal
import ssl
import time
import uuid
from collections.abc import Callable
from typing import Annotated, Any

from langgraph.types import interrupt

from settled import (
    Absent,
    ActionTool,
    Found,
    Incidental,
    Inquiry,
    Ledger,
    Session,
    action,
    always,
    aperform,
    build_agent,
    http,
    open_checkpointer,
    perform,
)
from settled.testing import Scene, ScriptedModel, call_tool, crash_point, once

SHORT: dict[str, Any] = {"timeout": 0.6, "deadline": 6.0, "lease": 1.0, "settle_window": 0.8}
ORDER = {"order_id": "A-1", "amount": 25}


def client_of(url: str) -> Any:
    """A client that makes no TLS context of its own, which would take longer than the requests."""
    return http.client(base_url=url, timeout=0.4, verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))


def asking(url: str) -> Callable[[Inquiry], Found | Absent]:
    """The query of every tool here: by the key."""

    def query(asked: Inquiry) -> Found | Absent:
        with client_of(url) as client:
            found = client.get("/refunds", params={"idempotency_key": asked.idempotency_key}).raise_for_status().json()
        return Found(found[0]["receipt"], found[0]) if found else Absent()

    return query


def send(url: str, path: str = "/refunds", **body: object) -> dict[str, Any]:
    with client_of(url) as client:
        return dict(client.post(path, json=body).json())


def refund(url: str, **contract: Any) -> ActionTool:
    """A good tool."""
    declared = {"risk": "non_idempotent_write", "remote": "dedupes", "identity": ("order_id",), "query": asking(url)}

    @action(**{**declared, **SHORT, **contract}, name="refund")
    def body(order_id: str, amount: int) -> dict[str, Any]:
        """Refund an order."""
        return send(url, order_id=order_id, amount=amount)

    return body


def good(scene: Scene) -> str:
    with scene.ledger() as ledger:
        return str(perform(refund(scene.remote_url), ORDER, ledger=ledger, thread_id="t").receipt)


async def good_async(scene: Scene) -> str:
    async with scene.ledger() as ledger:
        return str((await aperform(refund(scene.remote_url), ORDER, ledger=ledger, thread_id="t")).receipt)


def default_spans(scene: Scene) -> str:
    """As an author declares it who names no time at all: a lease of 15 seconds."""
    spans = {"timeout": 10.0, "deadline": 30.0, "lease": None, "settle_window": None}
    with scene.ledger() as ledger:
        return str(perform(refund(scene.remote_url, **spans), ORDER, ledger=ledger, thread_id="t").receipt)


def by_itself(scene: Scene) -> str:
    """A program that knows nothing of the kit: it opens its ledger as it always does."""
    with Ledger.connect() as ledger:
        return str(perform(refund(scene.remote_url), ORDER, ledger=ledger, thread_id="t", wait_s=0).receipt)


def opaque(scene: Scene) -> str:
    """A remote side that can neither be asked nor recognise a repeat."""
    tool = refund(scene.remote_url, remote="opaque", query=None)
    with scene.ledger() as ledger:
        return str(perform(tool, ORDER, ledger=ledger, thread_id="t").code)


def resends_when_absent(scene: Scene) -> str:
    """A remote side that can be asked and does not dedupe; the author allows a resend after 15 seconds without it."""
    contract = {"remote": "queryable", "resend_when_absent": True, "unique": ("order_id",)}
    spans = {"timeout": 10.0, "deadline": 30.0, "lease": None, "settle_window": None}
    with scene.ledger() as ledger:
        tool = refund(scene.remote_url, **contract, **spans)
        return str(perform(tool, ORDER, ledger=ledger, thread_id="t").receipt)


def two_tools(scene: Scene) -> str:
    """Two actions, one after the other."""
    with scene.ledger() as ledger:
        for order in ("A-1", "A-2"):
            done = perform(refund(scene.remote_url), [order, 25], ledger=ledger, thread_id="t")
    return str(done.receipt)


def agent(scene: Scene) -> str:
    """An agent of LangGraph whose user sends his message again after the crash."""
    model = ScriptedModel(once(call_tool("refund", **ORDER)))
    with scene.ledger() as ledger, open_checkpointer(ledger) as checkpointer:
        built = build_agent(model, [refund(scene.remote_url)], ledger=ledger, checkpointer=checkpointer)
        return Session(built, ledger=ledger, thread_id="t").send("A-1, please", message_id="m1").text


def agent_that_dies_in_its_model(scene: Scene) -> str:
    """Also killed when the model has been given the answer, and has said nothing yet."""
    script = once(call_tool("refund", **ORDER))

    def dying(messages: Any) -> Any:
        crash_point(f"model call {len(messages)}")
        return script(messages)

    with scene.ledger() as ledger, open_checkpointer(ledger) as checkpointer:
        tools = [refund(scene.remote_url)]
        built = build_agent(ScriptedModel(dying), tools, ledger=ledger, checkpointer=checkpointer)
        return Session(built, ledger=ledger, thread_id="t").send("A-1, please", message_id="m1").text


def waits_for_approval(scene: Scene) -> str:
    with scene.ledger() as ledger:
        tool = refund(scene.remote_url, approval=always)
        return str(perform(tool, ORDER, ledger=ledger, thread_id="t").code)


def fails(scene: Scene) -> None:
    raise RuntimeError(f"no such shop at {scene.name}")


def does_nothing(scene: Scene) -> None:
    """Carry out no action at all."""


def hangs(scene: Scene) -> None:
    time.sleep(60)


def ends_itself(scene: Scene) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


def resends_blindly(scene: Scene) -> str:
    """Fault: declared as an idempotent write, so that it is sent again unasked; and the remote side does not dedupe."""
    tool = refund(scene.remote_url, risk="idempotent_write", remote="opaque", query=None)
    with scene.ledger() as ledger:
        return str(perform(tool, ORDER, ledger=ledger, thread_id="t").code)


def calls_again(scene: Scene) -> str:
    """Fault: the body catches the lost reply and sends once more."""
    url = scene.remote_url

    @action(risk="non_idempotent_write", remote="queryable", identity=("order_id",), query=asking(url), **SHORT)
    def stubborn_refund(order_id: str, amount: int) -> dict[str, Any]:
        """Refund an order."""
        for _ in range(3):
            try:
                return send(url, order_id=order_id, amount=amount)
            except Exception:
                continue
        return {}

    with scene.ledger() as ledger:
        return str(perform(stubborn_refund, ORDER, ledger=ledger, thread_id="t").code)


def own_key(scene: Scene) -> str:
    """Fault: the body makes a key of its own for each attempt, so that nothing is ever found or deduplicated."""
    url = scene.remote_url

    @action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=asking(url), **SHORT)
    def keyed_refund(order_id: str, amount: int) -> dict[str, Any]:
        """Refund an order."""
        with client_of(url) as client:
            key = {"Idempotency-Key": str(uuid.uuid4())}
            return dict(client.post("/refunds", json={"order_id": order_id}, headers=key).json())

    with scene.ledger() as ledger:
        return str(perform(keyed_refund, ORDER, ledger=ledger, thread_id="t").code)


def two_requests(scene: Scene) -> str:
    """Fault: the body makes two writes, and its query knows only the first."""
    url = scene.remote_url

    @action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=asking(url), **SHORT)
    def refund_and_tell(order_id: str, amount: int) -> dict[str, Any]:
        """Refund an order, and write to the customer."""
        done = send(url, order_id=order_id, amount=amount)
        send(url, "/mails", order_id=order_id)
        return done

    with scene.ledger() as ledger:
        return str(perform(refund_and_tell, ORDER, ledger=ledger, thread_id="t").code)


def memo_in_identity(scene: Scene, memo: Any = str) -> str:
    """Fault: a text that is worded anew each time is part of what makes two calls the same."""
    url = scene.remote_url

    @action(risk="non_idempotent_write", remote="dedupes", identity="all", query=asking(url), **SHORT)
    def noted_refund(order_id: str, memo: memo) -> dict[str, Any]:
        """Refund an order."""
        return send(url, order_id=order_id)

    with scene.ledger() as ledger:
        return str(perform(noted_refund, ["A-1", f"note {uuid.uuid4()}"], ledger=ledger, thread_id="t").code)


def memo_incidental(scene: Scene) -> str:
    """The same tool without the fault."""
    return memo_in_identity(scene, Annotated[str, Incidental()])


def swallows_interrupt(scene: Scene) -> str:
    """Fault: the body asks a person by LangGraph's interrupt, and a broad `except` takes that for a yes."""
    url = scene.remote_url

    @action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=asking(url), **SHORT)
    def asked_refund(order_id: str, amount: int) -> dict[str, Any]:
        """Refund an order."""
        try:
            interrupt("really?")
        except Exception:
            return send(url, order_id=order_id, amount=amount)
        return {}

    model = ScriptedModel(once(call_tool("asked_refund", **ORDER)))
    with scene.ledger() as ledger, open_checkpointer(ledger) as checkpointer:
        built = build_agent(model, [asked_refund], ledger=ledger, checkpointer=checkpointer)
        return Session(built, ledger=ledger, thread_id="t").send("A-1, please", message_id="m1").text
