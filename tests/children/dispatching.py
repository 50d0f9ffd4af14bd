"""What a child process of the tests of the outbox can be asked to do."""

import asyncio
import os
import signal
from dataclasses import asdict
from typing import Any

from consumers import SECRET, emitting
from processes import freeze_here
from settled import Ledger, World, perform
from settled.tools import dispatching as rules
from settled.tools.delivery import Delivery
from settled.tools.dispatcher import Dispatcher
from settled.tools.effects import Effect
from settled.tools.sinks.webhook import Webhook


def dispatch(
    *,
    database_url: str,
    consumer_url: str,
    topics: list[str],
    mode: str = "sync",
    die_at: int | None = None,
    freeze_at: tuple[str, str] | None = None,
    deadly: bool = False,
    rounds: int = 1,
) -> dict[str, Any]:
    """Deliver a batch to a webhook. Dies by SIGKILL at instant number `die_at`, or freezes at the first that is
    `freeze_at`; where it is `deadly` its sink dies with each message.
    """
    instants: list[list[str]] = []
    rules.POLL_S = 30.0  # a look in between would be an instant that comes or not as the machine is busy

    def watch(effect: object, when: str) -> None:
        query = getattr(effect, "query", None)
        instants.append([query.name if query is not None else type(effect).__name__, when])
        if len(instants) - 1 == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if freeze_at is not None and instants[-1] == list(freeze_at) and instants.count(instants[-1]) == 1:
            freeze_here()

    def die(delivery: Delivery) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    async def all_rounds() -> list[dict[str, Any]]:
        async with Ledger.connect(database_url) as opened:
            dispatcher = Dispatcher(opened, **options)
            return [asdict(await dispatcher.arun_once()) for _ in range(rounds)]

    sink = die if deadly else Webhook(consumer_url, secret=SECRET)
    options: dict[str, Any] = {"sinks": dict.fromkeys(topics, sink), "max_attempts": 3, "watch": watch}
    if mode == "async":
        return {"did": asyncio.run(all_rounds()), "instants": instants}
    with Ledger.connect(database_url) as ledger:
        dispatcher = Dispatcher(ledger, **options)
        return {"did": [asdict(dispatcher.run_once()) for _ in range(rounds)], "instants": instants}


def act(
    *, database_url: str, remote_url: str, thread_id: str, order_id: str, die_at: int | None = None
) -> dict[str, Any]:
    """Pay an order at the remote side, with two messages."""
    instants: list[str] = []

    def watch(effect: Effect, when: str) -> None:
        instants.append(f"{when} {type(effect).__name__}")
        if len(instants) - 1 == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    with Ledger.connect(database_url) as ledger:
        end = perform(
            emitting(remote_url),
            {"order_id": order_id, "amount": 5},
            ledger=ledger,
            thread_id=thread_id,
            world=World(watch=watch),
        )
    return {"code": str(end.code), "instants": instants}
