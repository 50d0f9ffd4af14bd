"""The tool of the refunds that two workers look after, as `settled worker --tools settled.demo.refunds:tools` takes it.

Its spans are as short as a person's patience, and its name is one that nobody's own tool has: a worker of the demo
runs on the user's own ledger, and carries on what has a tool of this name.
"""

import os
from typing import Any

from settled.demo.records import Records
from settled.demo.tools import Money, Name
from settled.tools import http
from settled.tools.backoff import Backoff
from settled.tools.contract import ActionTool, action

SERVICE_URL = "SETTLED_DEMO_SERVICE_URL"

TIMEOUT_S, LEASE_S, SETTLE_WINDOW_S = 1.5, 2.0, 2.0
BACKOFF = Backoff(first=0.25, cap=1.0, jitter=0.1)
SUMMARY = {"en": "refund of {amount} for order {order_id}", "zh": "为订单 {order_id} 退款 {amount}"}


def tools() -> list[ActionTool]:
    """Return the tool for the service that the environment names."""
    return [refund_tool(os.environ[SERVICE_URL])]


def refund_tool(url: str) -> ActionTool:
    """Return the tool for the service at `url`."""
    refunds = Records(http.client(base_url=url, timeout=TIMEOUT_S), "refunds")

    @action(
        risk="non_idempotent_write",
        remote="dedupes",
        identity=("order_id",),
        unique=("order_id",),
        query=refunds.find,
        timeout=TIMEOUT_S,
        lease=LEASE_S,
        settle_window=SETTLE_WINDOW_S,
        backoff=BACKOFF,
        summary=SUMMARY,
    )
    def demo_refund_order(customer_id: Name, order_id: Name, amount: Money) -> dict[str, Any]:
        """Refund an order of a customer."""
        return refunds.make(customer_id=customer_id, order_id=order_id, amount=str(amount))

    return demo_refund_order
