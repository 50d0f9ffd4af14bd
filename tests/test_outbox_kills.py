"""A dispatcher dies by SIGKILL, freezes, or races another one: each message has its effect at the consumer once, none
is lost, and those of one action come in their order.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

import processes
from acts import opened, rows
from consumers import LOST, SECRET, Answer, Consumer, pay, paying
from settled import Ledger, Message
from settled.tools.dispatcher import Dispatcher
from settled.tools.sinks.webhook import Webhook

EFFECTS = ("claim", "Begin", "Gather", "deliver", "claim", "Begin", "Gather", "deliver", "claim")
"""What a dispatcher does with the two messages of an action."""


@dataclass(frozen=True)
class Left:
    """What a kill before and after an effect leaves: effects at the consumer, marks, and the webhooks that it gets in
    all when somebody else goes on. None: a request is on its way, so nobody can tell.
    """

    done: int | None
    marked: int
    sent: int | None = 2


BEFORE = [Left(0, 0), Left(0, 0), Left(None, 0, None), Left(1, 0, 3)]
BEFORE += [Left(1, 1), Left(1, 1), Left(None, 1, None), Left(2, 1, 3), Left(2, 2)]
LEFT = [left for pair in zip(BEFORE, [*BEFORE[1:], Left(2, 2)], strict=True) for left in pair]
ONLY_AFTER = [0, *range(1, len(LEFT), 2)]
"""Before an effect is after the one ahead of it."""


def later() -> datetime:
    """The clock of who comes after a lease has ended."""
    return datetime.now(UTC) + timedelta(hours=1)


@dataclass(frozen=True)
class Crash:
    ledger: Ledger
    afterwards: Ledger
    consumer: Consumer
    mode: str

    def at(self, instant: int) -> Left:
        """Kill a dispatcher at an instant, and let another one go on."""
        topic = f"t-{instant}"
        tool = paying(emits=lambda done: [Message(topic, "first"), Message(topic, "second")], name=f"pay-{instant}")
        action_id = pay(self.ledger, str(instant), tool)
        child = processes.start(
            "dispatching.dispatch",
            database_url=self.ledger.url,
            consumer_url=self.consumer.url,
            topics=[topic],
            mode=self.mode,
            die_at=instant,
        )
        assert child.status() == -9, child.failed
        done, marked = len(self.of(topic)), self.marked(topic)
        Dispatcher(self.afterwards, sinks={topic: Webhook(self.consumer.url, secret=SECRET)}).run_once()
        sent = [one for one in self.consumer.seen if one.startswith(action_id.replace("act-", "msg-"))]
        return Left(done, marked, len(sent))

    def of(self, topic: str) -> list[str]:
        return [payload for of, payload in self.consumer.effects() if of == topic]

    def marked(self, topic: str) -> int:
        sql = "SELECT count(*) AS n FROM settled.outbox WHERE topic = %s AND delivered_at IS NOT NULL"
        return int(rows(self.ledger.url, sql, topic)[0]["n"])


@pytest.mark.parametrize(
    ("mode", "instants"),
    [
        ("sync", ONLY_AFTER),
        pytest.param("sync", range(len(LEFT)), marks=pytest.mark.deep),
        pytest.param("async", range(len(LEFT)), marks=pytest.mark.deep),
    ],
)
def test_a_kill_at_any_instant_loses_nothing_and_does_nothing_twice(
    database_url: str, mode: str, instants: Sequence[int]
) -> None:
    """Sent again only where it died between the acknowledgement and the mark; even then the effect is there once."""
    with (
        Consumer(database_url) as consumer,
        opened(database_url) as ledger,
        opened(database_url, clock=later) as afterwards,
    ):
        crash = Crash(ledger, afterwards, consumer, mode)
        with ThreadPoolExecutor(6) as pool:
            seen = dict(zip(instants, pool.map(crash.at, instants), strict=True))
        for instant, left in seen.items():
            wanted = LEFT[instant]
            assert (left.done if wanted.done is not None else None, left.marked) == (wanted.done, wanted.marked)
            assert wanted.sent is None or left.sent == wanted.sent, instant
            assert crash.of(f"t-{instant}") == ["first", "second"]
            assert crash.marked(f"t-{instant}") == 2


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_dispatcher_meets_the_instants_that_are_named(database_url: str, mode: str) -> None:
    """The test above kills at each of them: one that is new must be named there."""
    with Consumer(database_url) as consumer, opened(database_url) as ledger:
        pay(ledger, "A", paying(emits=lambda done: [Message("m", 1), Message("m", 2)]))
        args = {"database_url": database_url, "consumer_url": consumer.url, "topics": ["m"], "mode": mode}
        said = processes.start("dispatching.dispatch", **args).result()
    assert said["instants"] == [[name, when] for name in EFFECTS for when in ("before", "after")]
    assert [(one["taken"], one["delivered"]) for one in said["did"]] == [(2, 2)]


def test_a_kill_while_the_consumer_is_at_it_delivers_again(database_url: str) -> None:
    """The consumer goes on with what it was sent; the second delivery finds that it was done."""
    with Consumer(database_url) as consumer, opened(database_url) as ledger:
        pay(ledger, "A", paying(emits=lambda done: Message("paid", "A")))
        consumer.may_answer.clear()
        child = processes.start(
            "dispatching.dispatch", database_url=database_url, consumer_url=consumer.url, topics=["paid"]
        )
        assert consumer.arrived.wait(10)
        child.kill()
        assert child.status() == -9
        assert consumer.effects() == []
        consumer.may_answer.set()
        with opened(database_url, clock=later) as afterwards:
            hook = Webhook(consumer.url, secret=SECRET)
            assert Dispatcher(afterwards, sinks={"*": hook}).run_once().delivered == 1
        assert consumer.effects() == [("paid", "A")]


def test_a_dispatcher_that_wakes_after_its_lease_writes_nothing(database_url: str) -> None:
    """Frozen between the acknowledgement and the mark: another one delivers again, and the first one's mark is lost."""
    with Consumer(database_url) as consumer, opened(database_url) as ledger:
        pay(ledger, "A", paying(emits=lambda done: Message("paid", "A")))
        child = processes.start(
            "dispatching.dispatch",
            database_url=database_url,
            consumer_url=consumer.url,
            topics=["paid"],
            freeze_at=("deliver", "before"),
        )
        child.wait_until_frozen()
        with opened(database_url, clock=later) as afterwards:
            hook = Webhook(consumer.url, secret=SECRET)
            assert Dispatcher(afterwards, sinks={"*": hook}).run_once().delivered == 1
        before = rows(database_url, "SELECT * FROM settled.outbox")
        child.thaw()
        (did,) = child.result()["did"]
        assert (did["taken"], did["delivered"], did["lost"]) == (1, 0, 1)
        assert rows(database_url, "SELECT * FROM settled.outbox") == before
        assert (consumer.effects(), len(consumer.seen)) == ([("paid", "A")], 2)


def test_two_dispatchers_share_the_work(database_url: str) -> None:
    """Two processes, forty actions, two messages each: nothing is sent twice, and each action's come in order."""
    with Consumer(database_url) as consumer, opened(database_url) as ledger:
        tool = paying(emits=lambda done: [Message("m", [done.arguments["order_id"], n]) for n in (1, 2)])
        for number in range(40):
            pay(ledger, str(number), tool)
        args = {"database_url": database_url, "consumer_url": consumer.url, "topics": ["m"], "rounds": 3}
        both = [processes.start("dispatching.dispatch", **args) for _ in range(2)]
        did = [sum(one["delivered"] for one in child.result()["did"]) for child in both]
        assert sum(did) == len(consumer.seen) == len(set(consumer.seen)) == 80
        assert min(did) > 0
        done = [payload for _, payload in consumer.effects()]
        for number in range(40):
            assert [n for order, n in done if order == str(number)] == [1, 2]


def test_a_message_that_kills_its_dispatcher_is_given_up(database_url: str) -> None:
    """Each death is an attempt; after the last one it is a dead letter, and the messages of others go on."""
    with Consumer(database_url) as consumer:
        with opened(database_url) as ledger:
            action_id = pay(ledger, "A", paying(emits=lambda done: [Message("deadly"), Message("fine", "behind it")]))
        args = {"consumer_url": consumer.url, "topics": ["deadly"], "deadly": True, "database_url": database_url}
        for _ in range(3):
            assert processes.start("dispatching.dispatch", **args).status() == -9
            with opened(database_url) as ledger:  # as if its lease were over
                make_due(ledger)
        with opened(database_url) as ledger:
            pay(ledger, "B", paying(emits=lambda done: Message("fine", "B")))
        hook = Webhook(consumer.url, secret=SECRET)
        with opened(database_url, clock=later) as ledger:
            did = Dispatcher(ledger, sinks={"*": hook}, max_attempts=3).run_once()
        assert (did.dead, did.delivered) == (1, 1)
        assert consumer.effects() == [("fine", "B")]
        (dead,) = rows(database_url, "SELECT action_id, reason FROM settled.outbox WHERE dead_at IS NOT NULL")
        assert (dead["action_id"], "came to an end" in dead["reason"]) == (action_id, True)


def make_due(ledger: Ledger) -> None:
    rows(
        ledger.url,
        "UPDATE settled.outbox SET due_at = clock_timestamp(), lease_until = clock_timestamp(), owner = 'nobody'"
        " WHERE due_at > clock_timestamp() AND due_at < 'infinity' RETURNING id",
    )


@pytest.mark.parametrize("fault", [LOST, Answer(status=500), Answer(before_s=1.0)], ids=["dropped", "500", "slow"])
def test_an_acknowledgement_that_is_lost_delivers_again(database_url: str, fault: Answer) -> None:
    """The consumer has done it: it is deferred all the same, and the repeat finds that it was done."""
    with Consumer(database_url) as consumer, opened(database_url) as ledger:
        pay(ledger, "A", paying(emits=lambda done: Message("paid", "A")))
        consumer.next(fault)
        sinks = {"*": Webhook(consumer.url, secret=SECRET, timeout_s=0.5)}
        assert Dispatcher(ledger, sinks=sinks).run_once().deferred == 1
        with opened(database_url, clock=later) as afterwards:
            sinks = {"*": Webhook(consumer.url, secret=SECRET)}
            assert Dispatcher(afterwards, sinks=sinks).run_once().delivered == 1
        assert (consumer.effects(), len(set(consumer.seen))) == ([("paid", "A")], 1)
