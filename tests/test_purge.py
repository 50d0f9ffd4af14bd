"""Purging by retention: what is over goes, with what belongs to it; what still binds anything stays."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from acts import Clock, Remote, count, opened, rows
from settled import (
    Approve,
    Budget,
    ContractError,
    Desk,
    IdempotencyStore,
    Ledger,
    NotFound,
    Refused,
    Rejected,
    StoredAnswer,
    action,
    always,
    perform,
)
from settled.runtime.purging import Purge, Purged, Retention
from settled.tools.contract import ActionTool
from settled.tools.endpoint import Claimed

DAY_S = 86400.0
MONTH = Retention(timedelta(days=30))
TABLES = ("actions", "events", "decisions", "approvals", "reservations", "outbox", "watched")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(database_url: str, clock: Clock) -> Iterator[Ledger]:
    with opened(database_url, clock=clock) as one:
        yield one


def paying(far: Remote, **contract: Any) -> ActionTool:
    declared: dict[str, Any] = {"remote": "opaque", "identity": ("order",)}

    @action(risk="non_idempotent_write", name="pay", **{**declared, **contract})
    def pay(order: int) -> object:
        return far.do(order=order)

    return pay


def counts(ledger: Ledger) -> dict[str, int]:
    found = {name: count(ledger.url, f"settled.{name}") for name in TABLES}
    return {name: n for name, n in found.items() if n}


def purged(ledger: Ledger, retention: Retention = MONTH) -> int:
    return Purge(ledger, retention).run_once().actions


def test_what_is_over_goes_with_what_belongs_to_it(ledger: Ledger, clock: Clock) -> None:
    """After its retention, and not before; a dry run counts the same and forgets nothing."""
    far = Remote()
    tool = paying(far, approval=always())
    asked = perform(tool, [1], ledger=ledger, thread_id="t")
    ticket = Desk(ledger).approval(str(asked.action_id))
    Desk(ledger).decide(ticket.action_id, Approve(), by="sue", fingerprint=ticket.fingerprint)
    perform(tool, [1], ledger=ledger, thread_id="t")
    clock.sleep(29 * DAY_S)
    assert (Purge(ledger, MONTH).count(), purged(ledger)) == (0, 0)
    clock.sleep(2 * DAY_S)
    assert Purge(ledger, MONTH).count() == 1
    assert counts(ledger) == {"actions": 1, "events": 4, "approvals": 1, "watched": 1}
    assert purged(ledger) == 1
    assert counts(ledger) == {}


def test_what_is_open_stays_with_its_conversation(ledger: Ledger, clock: Clock) -> None:
    """A request that waits since months, and what was done before it in the same thread."""
    far = Remote()
    for thread_id in ("quiet", "busy"):
        perform(paying(far), [1], ledger=ledger, thread_id=thread_id)
    perform(paying(far, approval=always(ttl=timedelta(days=300))), [2], ledger=ledger, thread_id="busy")
    clock.sleep(200 * DAY_S)
    assert purged(ledger) == 1
    left = rows(ledger.url, "SELECT thread_id, state FROM settled.actions ORDER BY id")
    assert [(one["thread_id"], one["state"]) for one in left] == [("busy", "succeeded"), ("busy", "planned")]


def unguarded(ledger: Ledger, statement: str, *params: object) -> None:
    """Write what no call writes today, or not so soon."""
    with psycopg.connect(ledger.url) as connection:
        connection.execute("SET LOCAL session_replication_role = replica")
        connection.execute(statement, params)


@pytest.mark.parametrize("link", ["repeat_of", "supersedes", "compensates"])
def test_what_an_open_action_is_linked_to_stays(ledger: Ledger, clock: Clock, link: str) -> None:
    """In whatever conversation that is."""
    far = Remote()
    first = perform(paying(far), [1], ledger=ledger, thread_id="a")
    perform(paying(far), [2], ledger=ledger, thread_id="b")
    waiting = perform(paying(far, approval=always(ttl=timedelta(days=90))), [3], ledger=ledger, thread_id="c")
    update = f"UPDATE settled.actions SET {link} = %s WHERE id = %s"
    unguarded(ledger, update, first.action_id, waiting.action_id)
    clock.sleep(40 * DAY_S)
    assert purged(ledger) == 1
    assert {one["id"] for one in rows(ledger.url, "SELECT id FROM settled.actions")} == {
        first.action_id,
        waiting.action_id,
    }


def test_a_success_under_a_business_key_is_kept_for_ever(ledger: Ledger, clock: Clock) -> None:
    """It is what "never twice" rests on: years later, in another conversation, the same is refused with its receipt."""
    far = Remote()
    tool = paying(far, unique=("order",))
    first = perform(tool, [1], ledger=ledger, thread_id="a")
    clock.sleep(1000 * DAY_S)
    assert purged(ledger) == 0
    again = perform(tool, [1], ledger=ledger, thread_id="b")
    assert (again.code, again.receipt, len(far.effects)) == ("rejected", first.receipt, 1)


def test_a_failure_under_a_business_key_goes(ledger: Ledger, clock: Clock) -> None:
    """It has given its key back, and binds nothing."""

    @action(risk="non_idempotent_write", remote="opaque", identity=("order",), unique=("order",))
    def pay(order: int) -> object:
        return Rejected("no such order")

    perform(pay, [1], ledger=ledger, thread_id="a")
    clock.sleep(31 * DAY_S)
    assert (purged(ledger), counts(ledger)) == (1, {})


def test_a_window_that_is_longer_than_the_retention_wins(ledger: Ledger, clock: Clock) -> None:
    """Within it the same call must meet the same action."""
    far = Remote()
    tool = paying(far, window=timedelta(days=60))
    perform(tool, [1], ledger=ledger, thread_id="t")
    clock.sleep(31 * DAY_S)
    assert purged(ledger) == 0
    assert perform(tool, [1], ledger=ledger, thread_id="t").code == "duplicate"
    clock.sleep(30 * DAY_S)
    assert (purged(ledger), len(far.effects)) == (1, 1)


def test_what_was_taken_of_a_budget_counts_after_the_purge(ledger: Ledger, clock: Clock) -> None:
    """A yearly budget is not filled up by a monthly purge."""
    far = Remote()
    tool = paying(far, budgets=[Budget(2, window=timedelta(days=365))])
    perform(tool, [1], ledger=ledger, thread_id="a")
    perform(tool, [2], ledger=ledger, thread_id="b")
    clock.sleep(40 * DAY_S)
    assert purged(ledger) == 2
    assert perform(tool, [3], ledger=ledger, thread_id="c").code == "budget_exceeded"
    clock.sleep(330 * DAY_S)
    assert perform(tool, [4], ledger=ledger, thread_id="d").code == "succeeded"


def test_a_decision_outlives_its_action(ledger: Ledger, clock: Clock) -> None:
    """A click that is repeated a year later learns that it was settled, and does nothing."""
    far = Remote()
    tool = paying(far)
    for click in ("click-1", "click-2"):
        perform(tool, [len(click)], ledger=ledger, thread_id=click, decision=click)
    clock.sleep(365 * DAY_S)
    assert (purged(ledger), counts(ledger)) == (2, {"decisions": 2})
    with pytest.raises(NotFound, match="purged"):
        perform(tool, [len("click-1")], ledger=ledger, thread_id="click-1", decision="click-1")
    assert len(far.effects) == 2


def test_decisions_go_where_that_is_asked_for(ledger: Ledger, clock: Clock) -> None:
    """Then nothing of the action is left."""
    perform(paying(Remote()), [1], ledger=ledger, thread_id="t", decision="click-1")
    clock.sleep(31 * DAY_S)
    assert purged(ledger, Retention(timedelta(days=30), decisions=True)) == 1
    assert counts(ledger) == {}


def test_a_message_that_is_not_delivered_keeps_its_action(ledger: Ledger, clock: Clock) -> None:
    """A dead letter too: a person may deliver it yet."""
    done = perform(paying(Remote()), [1], ledger=ledger, thread_id="t")
    message = (
        "INSERT INTO settled.outbox (created_at, position, tenant, action_id, id, topic, payload, due_at)"
        " VALUES (settled.now(), 1, 'default', %s, 'msg-1', 'paid', '{}', settled.now())"
    )
    unguarded(ledger, message, done.action_id)
    clock.sleep(31 * DAY_S)
    assert purged(ledger) == 0
    unguarded(ledger, "UPDATE settled.outbox SET due_at = NULL, dead_at = settled.now()")
    assert purged(ledger) == 0
    unguarded(ledger, "UPDATE settled.outbox SET dead_at = NULL, delivered_at = settled.now()")
    assert (purged(ledger), counts(ledger)) == (1, {})


def test_what_is_a_step_of_a_chain_stays_with_it(ledger: Ledger, clock: Clock) -> None:
    """The chain is told by what its steps have done."""
    step = perform(paying(Remote()), [1], ledger=ledger, thread_id="t")
    perform(paying(Remote()), [2], ledger=ledger, thread_id="t")
    chain_step = (
        "INSERT INTO settled.chain_steps (begun_at, position, tenant, chain_id, name, tool, is_reversible, action_id)"
        " VALUES (settled.now(), 0, 'default', 'chain-1', 'pay', 'pay', false, %s)"
    )
    unguarded(ledger, chain_step, step.action_id)
    clock.sleep(31 * DAY_S)
    assert purged(ledger) == 1
    assert [one["id"] for one in rows(ledger.url, "SELECT id FROM settled.actions")] == [step.action_id]


def test_what_has_undone_another_goes_after_it(ledger: Ledger, clock: Clock) -> None:
    """As long as what was undone is there, it can be seen by what."""
    done = perform(paying(Remote()), [1], ledger=ledger, thread_id="a")
    undo = perform(paying(Remote()), [2], ledger=ledger, thread_id="b")
    unguarded(ledger, "UPDATE settled.actions SET compensates = %s WHERE id = %s", done.action_id, undo.action_id)
    clock.sleep(31 * DAY_S)
    assert (purged(ledger), purged(ledger), counts(ledger)) == (1, 1, {})


@pytest.mark.parametrize("first_fails", [False, True])
def test_what_was_asked_for_again_is_still_met_after_the_purge(ledger: Ledger, clock: Clock, first_fails: bool) -> None:
    """The first time is older than its retention, the second one is new: a double click of that has one effect."""
    far = Remote()
    tool = paying(far)
    if first_fails:

        @action(risk="non_idempotent_write", remote="opaque", identity=("order",), name="pay", max_attempts=1)
        def away(order: int) -> object:
            return Refused("the bank is closed")

        assert perform(away, [1], ledger=ledger, thread_id="t").code == "unavailable"
    else:
        perform(tool, [1], ledger=ledger, thread_id="t")
    clock.sleep(40 * DAY_S)
    again = perform(tool, [1], ledger=ledger, thread_id="t")
    assert (purged(ledger), ledger.action(str(again.action_id)).occurrence) == (1, 1)
    effects = len(far.effects)
    assert perform(tool, [1], ledger=ledger, thread_id="t").action_id == again.action_id
    assert len(far.effects) == effects == (1 if first_fails else 2)
    clock.sleep(40 * DAY_S)
    assert (purged(ledger), counts(ledger).get("actions")) == (1, None)
    later = perform(tool, [1], ledger=ledger, thread_id="t")
    keys = {again.idempotency_key, later.idempotency_key, *far.keys}
    assert (later.replayed, len(keys), len(far.effects)) == (False, len(far.effects), effects + 1)


def test_more_than_a_batch_is_walked_through(ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept at the old end of the ledger stands in nobody's way, and equal instants are no end."""
    monkeypatch.setattr("settled.runtime.purging.BATCH", 3)
    far = Remote()
    for n in range(5):
        perform(paying(far, unique=("order",)), [n], ledger=ledger, thread_id="kept")
    for n in range(10):
        clock.sleep(float(n % 2))
        perform(paying(far), [n], ledger=ledger, thread_id=f"t-{n}")
    clock.sleep(31 * DAY_S)
    assert purged(ledger) == 10
    assert counts(ledger)["actions"] == 5


def test_two_purges_and_running_work_at_once(ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is forgotten twice, and what is settled meanwhile is as it should be, and met by whoever asks again."""
    monkeypatch.setattr("settled.runtime.purging.BATCH", 10)
    far = Remote()
    tool = paying(far)
    for n in range(60):
        perform(tool, [n], ledger=ledger, thread_id=f"t-{n}")
    clock.sleep(31 * DAY_S)
    done: list[int] = []
    workers = [threading.Thread(target=lambda: done.append(purged(ledger))) for _ in range(3)]
    for one in workers:
        one.start()
    for n in range(60):
        assert perform(tool, [n], ledger=ledger, thread_id=f"t-{n}").code == "succeeded"
    for one in workers:
        one.join()
    for n in range(60):
        assert perform(tool, [n], ledger=ledger, thread_id=f"t-{n}").code == "duplicate"
    assert (sum(done), counts(ledger)["actions"], len(far.effects)) == (60, 60, 120)
    assert len(set(far.keys)) == 120


def test_idempotency_keys_go_by_their_own_retention(ledger: Ledger, clock: Clock) -> None:
    """Those of every application; whatever the retention of actions is."""
    for scope in ("a", "b"):
        store = IdempotencyStore(ledger, scope=scope, keep=timedelta(days=1))
        met = store.claim("key", "sha256:" + "0" * 64)
        assert isinstance(met, Claimed)
        store.finish(met, StoredAnswer(200))
    assert Purge(ledger, MONTH).run_once() == Purged()
    clock.sleep(2 * DAY_S)
    assert Purge(ledger, MONTH).run_once() == Purged(endpoint_keys=2)


@pytest.mark.parametrize("wrong", [{"actions": timedelta(0)}, {"checkpoints": timedelta(days=-1)}])
def test_a_retention_that_cannot_be_right_is_refused(wrong: dict[str, timedelta]) -> None:
    """By its name."""
    with pytest.raises(ContractError, match=next(iter(wrong))):
        Retention(**wrong)
