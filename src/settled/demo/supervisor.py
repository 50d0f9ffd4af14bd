"""One process of a supervisor: `python -m settled.demo.supervisor`, with the ledger in SETTLED_DATABASE_URL.

It says `ready`, is given orders, each a line of JSON, and answers each with a line: what waits, as a person is shown
it; or what became of a click on "approve". It knows the desk, and neither the tools nor the agent.
"""

import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

from settled.demo.scenarios import TENANT
from settled.demo.tools import SUPERVISOR
from settled.runtime.records import approval_record
from settled.state.errors import AlreadyDecided, NotPermitted, ShownOtherwise
from settled.state.store import Ledger
from settled.tools.decisions import Approve
from settled.tools.desk import Desk


@dataclass(frozen=True)
class Order:
    """What the supervisor called `by` is to do: look at what waits in a thread, or approve what was shown."""

    by: str
    thread_id: str = ""
    action_id: str | None = None
    fingerprint: str = ""


def main() -> None:
    """Carry out one order after the other, until there are no more."""
    with Ledger.connect(os.environ["SETTLED_DATABASE_URL"]) as ledger:
        desk = Desk(ledger, tenant=TENANT)
        print("ready", flush=True)
        for line in sys.stdin:
            order = Order(**json.loads(line))
            print(json.dumps(looked(desk, order) if order.action_id is None else approved(desk, order)), flush=True)


def looked(desk: Desk, order: Order) -> dict[str, Any]:
    """Return what waits in the thread."""
    shown = [approval_record(approval) for approval in desk.approvals(thread_id=order.thread_id)]
    return {"at": time.time(), "shown": shown}


def approved(desk: Desk, order: Order) -> dict[str, Any]:
    """Approve an action, and return when that was tried, and the sentence that was heard if it was refused."""
    at = time.time()
    try:
        desk.decide(str(order.action_id), Approve(), by=order.by, roles=(SUPERVISOR,), fingerprint=order.fingerprint)
    except (AlreadyDecided, NotPermitted, ShownOtherwise) as refused:
        return {"at": at, "refused": str(refused)}
    return {"at": at, "refused": None}


if __name__ == "__main__":
    main()
