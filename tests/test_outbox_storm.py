"""Dispatchers that are killed at random, a consumer that fails as it likes, a Postgres that restarts: all at once."""

import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

import processes
from acts import count, opened, rows
from consumers import BUSY, FINE, LOST, SECRET, Answer, Consumer, pay, paying
from own_server import Server
from settled import Backoff, Message
from settled.tools.dispatcher import Dispatcher
from settled.tools.outbox import Outbox
from settled.tools.sinks.webhook import Webhook

ACTIONS, EACH = 150, 3


@pytest.mark.deep
def test_every_message_has_its_effect_once_and_in_order(server: Server, own_url: str, database_url: str) -> None:
    """450 messages of 150 actions; what the consumer did is what was meant, and nothing waits in the end."""
    chance = random.Random(11)
    with Consumer(database_url) as consumer:
        consumer.next(*chance.choices([FINE, LOST, BUSY, Answer(before_s=0.05)], weights=[6, 1, 1, 1], k=600))
        with opened(own_url) as ledger:
            tool = paying(emits=lambda done: [Message("m", [done.arguments["order_id"], n]) for n in range(EACH)])
            for number in range(ACTIONS):
                pay(ledger, str(number), tool)
        for round_ in range(6):
            _kill_some(own_url, consumer.url, chance, meanwhile=server.crash if round_ in (1, 3) else None)
        later = datetime.now(UTC)
        with opened(own_url, clock=lambda: later) as ledger:
            hook = {"*": Webhook(consumer.url, secret=SECRET)}
            dispatcher = Dispatcher(
                ledger, sinks=hook, max_attempts=99, backoff=Backoff(first=0.0, cap=0.0, jitter=0.0)
            )
            for _ in range(60):
                later += timedelta(hours=1)
                Outbox(ledger).redrive_all(by="mia")  # those that were given up in the storm
                dispatcher.run_once()
        assert rows(own_url, "SELECT DISTINCT delivered_at IS NOT NULL AS done FROM settled.outbox") == [{"done": True}]
        assert count(own_url, "settled.outbox") == ACTIONS * EACH
        done = [payload for _, payload in consumer.effects()]
        assert len(done) == ACTIONS * EACH
        for number in range(ACTIONS):
            assert [n for order, n in done if order == str(number)] == list(range(EACH))


def _kill_some(
    database_url: str, consumer_url: str, chance: random.Random, meanwhile: Callable[[], None] | None
) -> None:
    """Start three dispatchers and kill each after a while, wherever it is."""
    args = {"database_url": database_url, "consumer_url": consumer_url, "topics": ["m"], "rounds": 1000}
    children = [processes.start("dispatching.dispatch", **args) for _ in range(3)]
    timers = [threading.Timer(chance.uniform(0.3, 1.5), child.kill) for child in children]
    for timer in timers:
        timer.start()
    time.sleep(0.2)
    if meanwhile is not None:
        meanwhile()
    for child in children:
        child.status()
    for timer in timers:
        timer.cancel()
