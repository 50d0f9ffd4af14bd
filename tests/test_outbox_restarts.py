"""Postgres goes away while messages are delivered, and comes back: none is lost, none is marked that was not sent."""

import asyncio
import threading
from typing import Any

import pytest

from acts import opened
from consumers import SECRET, Consumer, pay, paying
from own_server import Server
from settled import Ledger, LedgerUnavailable, Message
from settled.tools.dispatcher import Dispatcher
from settled.tools.dispatching import Dispatched
from settled.tools.outbox import Outbox
from settled.tools.sinks.webhook import Webhook


@pytest.mark.parametrize(
    ("door", "how"), [("sync", "crash"), ("async", "restart"), pytest.param("sync", "restart", marks=pytest.mark.deep)]
)
async def test_it_restarts_while_a_message_is_on_its_way(
    server: Server, own_url: str, database_url: str, door: str, how: str
) -> None:
    """The mark waits for it to come back, and the next message goes on."""
    with Consumer(database_url) as consumer, Ledger.connect(own_url) as ledger:
        pay(ledger, "A")
        dispatcher = Dispatcher(ledger, sinks={"*": Webhook(consumer.url, secret=SECRET)})
        consumer.may_answer.clear()
        batch: Any = asyncio.ensure_future(
            dispatcher.arun_once() if door == "async" else asyncio.to_thread(dispatcher.run_once)
        )
        assert await asyncio.to_thread(consumer.arrived.wait, 10)
        await asyncio.to_thread(getattr(server, how))
        consumer.may_answer.set()
        assert await batch == Dispatched(taken=2, delivered=2)
        assert [topic for topic, _ in consumer.effects()] == ["paid", "shipping"]
        assert len(consumer.seen) == 2
        await ledger.aclose()


def test_it_stays_away_and_the_message_comes_again(server: Server, own_url: str, database_url: str) -> None:
    """Delivered, and nobody could mark it: delivered again when its lease is over, and the inbox notices."""
    with Consumer(database_url) as consumer, opened(own_url, patience_s=0.3) as ledger:
        pay(ledger, "A", paying(emits=lambda done: Message("paid", "A")))
        hook = {"*": Webhook(consumer.url, secret=SECRET)}
        consumer.may_answer.clear()
        stopping = threading.Thread(
            target=lambda: (consumer.arrived.wait(10), server.stop(), consumer.may_answer.set())
        )
        stopping.start()
        try:
            with pytest.raises(LedgerUnavailable):
                Dispatcher(ledger, sinks=hook, lease_s=1.5, delivery_timeout_s=1.4).run_once()
        finally:
            stopping.join()
            server.start()
    with opened(own_url) as ledger, Consumer(database_url) as again:
        did = Dispatched()
        while did.taken == 0:
            did = Dispatcher(ledger, sinks={"*": Webhook(again.url, secret=SECRET)}).run_once()
        assert did.delivered == 1
        assert again.effects() == [("paid", "A")]
        assert [one.state for one in Outbox(ledger).messages()] == ["delivered"]
