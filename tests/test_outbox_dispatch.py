"""What is due goes to the sink of its topic, in the order of its action; what is not acknowledged waits, is given up in
the end, and holds back nobody else.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from acts import Clock, opened, rows
from consumers import pay, paying
from settled import Backoff, ContractError, Desk, InvalidArguments, Ledger, Message, NotFound
from settled.state import statements
from settled.tools.delivery import Delivery, Undelivered
from settled.tools.dispatcher import Dispatcher
from settled.tools.dispatching import Dispatched
from settled.tools.outbox import Outbox

STEADY = Backoff(first=2.0, cap=3600.0, jitter=0.0)
Door = Callable[[Dispatcher], Any]


async def through_sync(dispatcher: Dispatcher) -> Dispatched:
    return await asyncio.to_thread(dispatcher.run_once)


async def through_async(dispatcher: Dispatcher) -> Dispatched:
    return await dispatcher.arun_once()


both_doors = pytest.mark.parametrize("door", [through_sync, through_async], ids=["sync", "async"])


class Taker:
    """A sink that keeps what it is given, and refuses a topic as often as it is told to."""

    def __init__(self, **refuses: int) -> None:
        self.had: list[Delivery] = []
        self.refuses = refuses

    def __call__(self, delivery: Delivery) -> None:
        if self.refuses.get(delivery.topic, 0) > 0:
            self.refuses[delivery.topic] -= 1
            raise OSError("the till is closed")
        self.had.append(delivery)

    @property
    def payloads(self) -> list[Any]:
        return [one.payload for one in self.had]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timed(database_url: str, clock: Clock) -> Any:
    with opened(database_url, clock=clock) as ledger:
        yield ledger


@both_doors
async def test_each_message_goes_to_the_sink_of_its_topic(ledger: Ledger, door: Door) -> None:
    paid, rest = Taker(), Taker()
    action_id = pay(ledger, "A")
    dispatcher = Dispatcher(ledger, sinks={"paid": paid, "*": rest})
    assert await door(dispatcher) == Dispatched(taken=2, delivered=2)
    assert (paid.payloads, rest.payloads) == (["A"], ["R-A"])
    (one,) = paid.had
    assert (one.id, one.action_id, one.tenant) == (f"msg-{action_id.removeprefix('act-')}-1", action_id, "default")
    assert await door(dispatcher) == Dispatched()


@both_doors
async def test_an_async_sink_is_awaited(ledger: Ledger, door: Door) -> None:
    had: list[str] = []

    class Shop:
        async def __call__(self, delivery: Delivery) -> None:
            await asyncio.sleep(0)
            had.append(delivery.topic)

    async def function(delivery: Delivery) -> None:
        await Shop()(delivery)

    pay(ledger, "A")
    assert (await door(Dispatcher(ledger, sinks={"paid": Shop(), "shipping": function}))).delivered == 2
    assert had == ["paid", "shipping"]


async def test_a_topic_that_has_no_sink_here_is_left_alone(ledger: Ledger) -> None:
    """It waits for a dispatcher that has one, and it holds back what stands behind it."""
    shipping = Taker()
    pay(ledger, "A")
    assert Dispatcher(ledger, sinks={"shipping": shipping}).run_once() == Dispatched()
    assert [(one.topic, one.state, one.attempt) for one in Outbox(ledger).messages()] == [
        ("paid", "due", 0),
        ("shipping", "held", 0),
    ]
    assert Dispatcher(ledger, sinks={"paid": shipping}).run_once().delivered == 1
    assert Dispatcher(ledger, sinks={"shipping": shipping}).run_once().delivered == 1


def test_what_fails_waits_longer_each_time_and_is_given_up_in_the_end(timed: Ledger, clock: Clock) -> None:
    """By the database's clock: 2, 4, 8 seconds; then it is a dead letter, and says why."""
    action_id = pay(timed, "A")
    taker = Taker(paid=99)
    dispatcher = Dispatcher(timed, sinks={"*": taker}, backoff=STEADY, max_attempts=4)
    for wait_s in (2, 4, 8):
        assert dispatcher.run_once() == Dispatched(taken=1, deferred=1)
        (first, _) = Outbox(timed).messages()
        assert first.due_at is not None
        assert (first.due_at - first.now).total_seconds() == pytest.approx(wait_s, abs=0.01)
        assert first.reason == "OSError: the till is closed"
        clock.sleep(wait_s - 0.5)
        assert dispatcher.run_once() == Dispatched()
        clock.sleep(0.5)
    assert dispatcher.run_once() == Dispatched(taken=1, dead=1)
    (dead, held) = Outbox(timed).messages(action_id=action_id)
    assert (dead.state, dead.attempt, dead.due_at, held.state) == ("dead", 4, None, "held")
    clock.sleep(86_400)
    assert dispatcher.run_once() == Dispatched()


def test_a_dead_letter_holds_back_its_own_action_and_no_other(timed: Ledger, clock: Clock) -> None:
    """Redriven, it is delivered, and what stood behind it follows in its order."""
    taker = Taker(paid=1)
    first = pay(timed, "A")
    dispatcher = Dispatcher(timed, sinks={"*": taker}, max_attempts=1)
    assert dispatcher.run_once() == Dispatched(taken=1, dead=1)
    for order in "BC":
        pay(timed, order)
    assert dispatcher.run_once().delivered == 4
    assert sorted(taker.payloads) == ["B", "C", "R-B", "R-C"]
    (dead,) = Outbox(timed).messages(state="dead")
    assert [one.action_id for one in Outbox(timed).messages(state="held")] == [first]
    assert Outbox(timed).redrive([dead.id, "msg-none"], by="mia", note="the till is open") == [dead.id]
    assert Outbox(timed).message(dead.id).attempt == 0
    assert dispatcher.run_once().delivered == 2
    assert taker.payloads[-2:] == ["A", "R-A"]
    event = timed.timeline(first)[-1]
    assert (event.trigger, event.actor, event.from_state, event.to_state) == (
        "redrive",
        "mia",
        "succeeded",
        "succeeded",
    )
    assert event.detail == {"message": dead.id, "topic": "paid", "note": "the till is open"}
    assert Outbox(timed).redrive([dead.id], by="mia") == []


def test_all_dead_letters_of_a_tenant_and_a_topic_are_redriven(ledger: Ledger) -> None:
    for order in "ABC":
        pay(ledger, order, tenant="acme" if order == "C" else "default")
    Dispatcher(ledger, sinks={"*": Taker(paid=3)}, max_attempts=1).run_once()
    assert len(Outbox(ledger).messages(state="dead")) == 2
    assert Outbox(ledger).redrive_all(by="mia", topic="shipping") == []
    assert len(Outbox(ledger).redrive_all(by="mia", topic="paid", most=1)) == 1
    assert len(Outbox(ledger).redrive_all(by="mia")) == 1
    assert len(Outbox(ledger, tenant="acme").messages(state="dead")) == 1


def test_a_sink_may_say_when_to_come_again_or_that_it_never_will(ledger: Ledger) -> None:
    def busy(delivery: Delivery) -> None:
        raise Undelivered("closed", retry_after_s=77.0)

    def gone(delivery: Delivery) -> None:
        raise Undelivered("we have moved", is_final=True)

    pay(ledger, "A", paying(emits=lambda done: Message("busy")))
    pay(ledger, "B", paying(emits=lambda done: Message("gone")))
    assert Dispatcher(ledger, sinks={"busy": busy, "gone": gone}).run_once() == Dispatched(taken=2, deferred=1, dead=1)
    (due,) = Outbox(ledger).messages(state="due")
    assert due.due_at is not None
    assert (due.due_at - due.now).total_seconds() == pytest.approx(77, abs=5)
    (dead,) = Outbox(ledger).messages(state="dead")
    assert (dead.reason, dead.attempt) == ("we have moved", 1)


@both_doors
async def test_a_sink_that_hangs_holds_back_nobody_else_and_costs_a_few_threads(ledger: Ledger, door: Door) -> None:
    """While its calls are still running none is begun anew; the messages of other topics flow on."""
    hanging, begun = threading.Event(), []

    def hangs(delivery: Delivery) -> None:
        begun.append(delivery.id)
        hanging.wait(30)

    taker = Taker()
    for number in range(5):
        pay(ledger, str(number), paying(emits=lambda done: [Message("hangs")]))
        pay(ledger, f"fine-{number}", paying(emits=lambda done: [Message("fine"), Message("fine")]))
    dispatcher = Dispatcher(
        ledger,
        sinks={"hangs": hangs, "fine": taker},
        at_once=2,
        delivery_timeout_s=0.3,
        lease_s=20,
        backoff=Backoff(first=0.0, cap=0.0, jitter=0.0),
    )
    try:
        assert await door(dispatcher) == Dispatched(taken=12, delivered=10, deferred=2)
        assert await door(dispatcher) == Dispatched()
        assert len(begun) == 2
        waiting = Outbox(ledger).messages(state="due")
        assert sorted(one.attempt for one in waiting) == [0, 0, 0, 1, 1]
        assert "did not end within its time" in str({one.reason for one in waiting})
    finally:
        hanging.set()


async def test_an_async_sink_that_hangs_is_cancelled(ledger: Ledger) -> None:
    ended: list[str] = []

    async def hangs(delivery: Delivery) -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ended.append("cancelled")

    pay(ledger, "A", paying(emits=lambda done: Message("hangs")))
    dispatcher = Dispatcher(ledger, sinks={"hangs": hangs}, delivery_timeout_s=0.2, lease_s=20, backoff=STEADY)
    assert await dispatcher.arun_once() == Dispatched(taken=1, deferred=1)
    await asyncio.sleep(0)
    assert ended == ["cancelled"]


async def test_a_sink_that_is_slow_lets_others_go_on_in_the_same_batch(ledger: Ledger) -> None:
    """What becomes due while one delivery takes its time is delivered meanwhile."""
    order: list[str] = []

    def slow(delivery: Delivery) -> None:
        pay(ledger, "B", paying(emits=lambda done: Message("quick")))
        time.sleep(1.2)
        order.append("slow")

    pay(ledger, "A", paying(emits=lambda done: Message("slow")))
    sinks = {"slow": slow, "quick": lambda delivery: order.append("quick")}
    assert (await Dispatcher(ledger, sinks=sinks).arun_once()).delivered == 2
    assert order == ["quick", "slow"]


@both_doors
async def test_a_sink_that_cannot_be_called_stops_nobody_else(ledger: Ledger, door: Door) -> None:
    async def of_nothing() -> None:
        raise AssertionError("it is never reached")

    taker = Taker()
    pay(ledger, "A", paying(emits=lambda done: Message("wrong")))
    pay(ledger, "B", paying(emits=lambda done: Message("fine")))
    sinks: Any = {"wrong": of_nothing, "fine": taker}
    assert await door(Dispatcher(ledger, sinks=sinks)) == Dispatched(taken=2, delivered=1, deferred=1)
    (due,) = Outbox(ledger).messages(state="due")
    assert (due.reason or "").startswith("TypeError")


def test_a_batch_is_bounded_and_drained(ledger: Ledger) -> None:
    taker = Taker()
    for order in "ABCDE":
        pay(ledger, order, paying(emits=lambda done: Message("m")))
    dispatcher = Dispatcher(ledger, sinks={"*": taker}, batch=3, at_once=2)
    assert dispatcher.run_once().delivered == 3
    dispatcher.drain()
    assert dispatcher.run_once() == Dispatched()
    assert len(taker.had) == 3


async def test_a_dispatcher_that_is_cancelled_leaves_what_it_has_to_the_next(database_url: str, ledger: Ledger) -> None:
    begun = asyncio.Event()

    async def hangs(delivery: Delivery) -> None:
        begun.set()
        await asyncio.sleep(30)

    pay(ledger, "A", paying(emits=lambda done: Message("m", "A")))
    batch = asyncio.create_task(Dispatcher(ledger, sinks={"m": hangs}).arun_once())
    await begun.wait()
    batch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await batch
    taker, clock = Taker(), Clock()
    assert Dispatcher(ledger, sinks={"m": taker}).run_once() == Dispatched()
    clock.sleep(365 * 86_400)  # the lease is over
    with opened(database_url, clock=clock) as afterwards:
        assert Dispatcher(afterwards, sinks={"m": taker}).run_once().delivered == 1


def generating(delivery: Delivery) -> Any:
    yield delivery


def test_a_sink_that_returns_a_generator_has_delivered_nothing(ledger: Ledger) -> None:
    pay(ledger, "A")
    assert Dispatcher(ledger, sinks={"*": generating}).run_once() == Dispatched(taken=1, deferred=1)


def test_whatever_a_sink_raises_is_said_and_stored(ledger: Ledger) -> None:
    def raises(delivery: Delivery) -> None:
        raise ValueError("a\x00b\ud800" + "x" * 10_000)

    pay(ledger, "A")
    assert Dispatcher(ledger, sinks={"*": raises}).run_once().deferred == 1
    (due,) = Outbox(ledger).messages(state="due")
    assert due.reason is not None
    assert due.reason.startswith("ValueError: a b\ufffdx")
    assert len(due.reason) == 500


@pytest.mark.parametrize(
    "wrong",
    [
        {"lease_s": 15},
        {"lease_s": 5, "delivery_timeout_s": 5},
        {"delivery_timeout_s": 0},
        {"max_attempts": 0},
        {"batch": True},
        {"at_once": 1.5},
        {"sinks": {}},
        {"sinks": {"paid": "https://shop.example"}},
    ],
    ids=str,
)
def test_terms_that_cannot_be_right_are_refused(ledger: Ledger, wrong: dict[str, Any]) -> None:
    with pytest.raises(ContractError):
        Dispatcher(ledger, **{"sinks": {"*": Taker()}, **wrong})


@pytest.mark.parametrize("topic", ["", " ", "a\nb", "x" * 201, 7])
def test_a_topic_that_no_message_can_have_is_refused(ledger: Ledger, topic: Any) -> None:
    with pytest.raises(InvalidArguments, match="topic"):
        Dispatcher(ledger, sinks={topic: Taker()})


PLANNED = statements.load("settled.state", "sql/outbox.sql")


@pytest.mark.parametrize("name", PLANNED)
def test_a_plan_that_was_made_on_an_empty_table_compares_no_row_with_all_others(guarded_url: str, name: str) -> None:
    """Prepared statements keep such a plan until the table is analysed; it must not take a minute by then."""
    statement = PLANNED[name]
    nulls = ", ".join(["NULL"] * len(statement.names))
    with psycopg.connect(guarded_url) as connection:
        connection.execute("SET plan_cache_mode = force_generic_plan")
        connection.execute(b"PREPARE it AS " + statement.sql)
        plan = [row[0] for row in connection.execute(f"EXPLAIN EXECUTE it ({nulls})").fetchall()]
    assert [line for line in plan if "Seq Scan on actions" in line or "Seq Scan on outbox earlier" in line] == []


def test_another_tenants_messages_do_not_exist(ledger: Ledger) -> None:
    pay(ledger, "A", tenant="acme")
    assert Dispatcher(ledger, sinks={"*": Taker(paid=1)}, max_attempts=1).run_once().dead == 1
    (dead,) = Outbox(ledger, tenant="acme").messages(state="dead")
    assert Outbox(ledger).messages() == []
    assert Outbox(ledger).redrive([dead.id], by="mia") == []
    with pytest.raises(NotFound):
        Outbox(ledger).message(dead.id)


def test_what_was_not_said_by_anybody_is_refused(ledger: Ledger) -> None:
    with pytest.raises(InvalidArguments, match="by"):
        Outbox(ledger).redrive(["msg-1"], by=" ")
    with pytest.raises(ContractError, match="ids must be several"):
        Outbox(ledger).redrive("msg-1", by="mia")
    with pytest.raises(InvalidArguments, match="state"):
        Outbox(ledger).messages(state="lost")  # type: ignore[arg-type]


def test_undone_or_not_its_messages_are_delivered(ledger: Ledger) -> None:
    """What was done was done: undoing it takes no message back."""
    undo = paying(emits=lambda done: Message("unpaid"), name="refund")
    tool = paying(compensate=undo)
    action_id = pay(ledger, "A", tool)
    Desk(ledger, tools=[tool, undo]).compensate(action_id, by="mia")
    taker = Taker()
    assert Dispatcher(ledger, sinks={"*": taker}).run_once().delivered == 3
    assert sorted(one.topic for one in taker.had) == ["paid", "shipping", "unpaid"]


GUARDED = [
    "UPDATE settled.outbox SET payload = '1' WHERE position = 1",
    "UPDATE settled.outbox SET topic = 'x' WHERE position = 1",
    "UPDATE settled.outbox SET delivered_at = NULL, due_at = now() WHERE position = 1",
    "UPDATE settled.outbox SET reason = 'x' WHERE position = 1",
    "UPDATE settled.outbox SET delivered_at = now(), due_at = NULL WHERE position = 2",
    "UPDATE settled.outbox SET fencing_token = 5 WHERE position = 2",
    "UPDATE settled.outbox SET fencing_token = fencing_token + 1, owner = 'x', lease_until = now() WHERE position = 2",
    "UPDATE settled.outbox SET dead_at = NULL, due_at = now() WHERE position = 3",
    "UPDATE settled.outbox SET dead_at = NULL, delivered_at = now() WHERE position = 3",
    "DELETE FROM settled.outbox WHERE position = 2",
    "DELETE FROM settled.outbox WHERE position = 3",
    "TRUNCATE settled.outbox",
]


@pytest.fixture(scope="module")
def guarded_url(server_url: str, migrated_template: str) -> Any:
    """One message that was delivered, one that waits for its next attempt, one dead letter."""
    import servers

    with servers.database(server_url, like=migrated_template) as url, opened(url) as ledger:
        pay(ledger, "A", paying(emits=lambda done: [Message("m", n) for n in range(2)]))
        taker = Taker()
        Dispatcher(ledger, sinks={"m": taker}, batch=1).run_once()
        taker.refuses["m"] = 1
        Dispatcher(ledger, sinks={"m": taker}).run_once()
        rows(
            url,
            "INSERT INTO settled.outbox (created_at, position, tenant, action_id, id, topic, attempt, dead_at)"
            " SELECT created_at, 3, tenant, action_id, 'msg-dead', topic, 3, now() FROM settled.outbox"
            " WHERE position = 1 RETURNING id",
        )
        yield url


@pytest.mark.parametrize("statement", GUARDED)
def test_the_database_itself_refuses(guarded_url: str, statement: str) -> None:
    """Whoever bypasses Python changes no message, claims none that is not due, and loses none."""
    with psycopg.connect(guarded_url) as connection, pytest.raises(psycopg.Error) as refused:
        connection.execute(statement)
    assert refused.value.sqlstate == "ST001"


def test_a_delivered_message_can_go_once_its_action_is_over(guarded_url: str) -> None:
    with psycopg.connect(guarded_url) as connection:
        assert connection.execute("DELETE FROM settled.outbox WHERE position = 1").rowcount == 1
        connection.rollback()


@both_doors
async def test_an_error_that_cannot_even_say_what_it_is_holds_back_nobody(ledger: Ledger, door: Door) -> None:
    """It is an end like any other: the rest of its batch is marked, and it comes again."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def take(delivery: Delivery) -> None:
        if delivery.payload == "A":
            raise Mute

    pay(ledger, "A")
    pay(ledger, "B")
    did = await door(Dispatcher(ledger, sinks={"*": take}))
    assert did == Dispatched(taken=3, delivered=2, deferred=1)
    assert [one.reason for one in Outbox(ledger).messages(state="due")] == ["Mute: it does not say why"]
