"""One process that begins many refunds at once: `python -m settled.demo.leaving`, with the ledger in
SETTLED_DATABASE_URL. It says `ready`, is told how many, and is killed in the middle of them.
"""

import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from settled.demo.refunds import refund_tool
from settled.demo.scenarios import TENANT
from settled.state.store import Ledger
from settled.tools.perform import perform


@dataclass(frozen=True)
class Order:
    """So many refunds of one customer, each with an order of its own."""

    service_url: str
    thread_id: str
    user: str
    count: int


def main() -> None:
    """Carry out one order; when the parent is gone, so is this process."""
    with Ledger.connect(os.environ["SETTLED_DATABASE_URL"]) as ledger:
        print("ready", flush=True)
        order = Order(**json.loads(sys.stdin.readline()))
        threading.Thread(target=_refund_all, args=(ledger, order), daemon=True).start()
        sys.stdin.read()
        os._exit(1)


def _refund_all(ledger: Ledger, order: Order) -> None:
    with ThreadPoolExecutor(order.count) as pool:
        list(pool.map(partial(_refund, ledger, order), range(1, order.count + 1)))


def _refund(ledger: Ledger, order: Order, number: int) -> None:
    arguments = {"customer_id": order.user, "order_id": f"{order.user}-{number:02d}", "amount": number}
    tool, thread_id = refund_tool(order.service_url), order.thread_id
    perform(tool, arguments, ledger=ledger, thread_id=thread_id, tenant=TENANT, requester=order.user)


if __name__ == "__main__":
    main()
