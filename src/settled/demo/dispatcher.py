"""One process of a dispatcher: `python -m settled.demo.dispatcher`, with the ledger and the webhook's secret in the
environment. It says `ready`, is given orders, each a line of JSON, and answers each with what it delivered.

It may be killed between the acknowledgement of a message and its mark. The next one then delivers it again.
"""

import json
import os
import sys
import time
from dataclasses import asdict, dataclass

from settled.demo.killing import killing
from settled.demo.service import SECRET
from settled.demo.tools import TOPIC
from settled.state.store import Ledger
from settled.tools.dispatcher import Dispatcher
from settled.tools.dispatching import Dispatched
from settled.tools.sinks.webhook import Webhook

LEASE_S, DELIVERY_TIMEOUT_S = 2.0, 1.5
"""A consumer answers in milliseconds, and a person is watching: soon after a dispatcher died, another one delivers."""

PATIENCE_S = 30.0
LOOK_AGAIN_S = 0.1


@dataclass(frozen=True)
class Order:
    """Deliver to `url` until something was acknowledged, and die at `kill_at` if that is given."""

    url: str
    kill_at: str | None = None


def main() -> None:
    """Carry out one order after the other, until there are no more."""
    with Ledger.connect(os.environ["SETTLED_DATABASE_URL"]) as ledger:
        print("ready", flush=True)
        for line in sys.stdin:
            print(json.dumps(asdict(deliver(ledger, Order(**json.loads(line))))), flush=True)


def deliver(ledger: Ledger, order: Order) -> Dispatched:
    """Deliver batches until a message has arrived, or the time is over."""
    dispatcher = Dispatcher(
        ledger,
        sinks={TOPIC: Webhook(order.url, secret=os.environ[SECRET], timeout_s=DELIVERY_TIMEOUT_S)},
        lease_s=LEASE_S,
        delivery_timeout_s=DELIVERY_TIMEOUT_S,
        watch=killing(order.kill_at) if order.kill_at else None,
    )
    done, end = dispatcher.run_once(), time.monotonic() + PATIENCE_S
    while not done.delivered and time.monotonic() < end:
        time.sleep(LOOK_AGAIN_S)
        done += dispatcher.run_once()
    return done


if __name__ == "__main__":
    main()
