"""What a worker does with actions that nobody carries on any more: one look at each kind, on a real ledger."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from acts import Clock, Remote, action_of, opened, rows, triggers_of
from settled import (
    Approve,
    ContractError,
    Desk,
    Ledger,
    Outcome,
    State,
    action,
    always,
    perform,
)
from settled.runtime.pace import Round
from settled.runtime.worker import Worker
from settled.state import ledger as operations
from settled.state.model import Action
from settled.tools.contract import ActionTool
from settled.tools.perform import Options, prepare
from settled.tools.standing import claim_of


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def late(database_url: str, clock: Clock) -> Any:
    """A ledger whose time passes when a test says so."""
    with opened(database_url, clock=clock) as ledger:
        yield ledger


def paying(far: Remote, **contract: Any) -> ActionTool:
    """A tool whose effects `far` counts, and can be asked for."""
    declared: dict[str, Any] = {"remote": "dedupes", "query": far.find, "identity": ("order",)}

    @action(risk="non_idempotent_write", name="pay", **{**declared, **contract})
    def pay(order: int) -> object:
        return far.do(order=order)

    return pay


def orphan(ledger: Ledger, far: Remote, order: int, *, acts: bool = True) -> Action:
    """An action that says running, and whose owner is gone; its lease is over when the test's clock has passed it."""
    tool = paying(far)
    call = prepare(tool.contract, [order], Options("thread-1"), ledger)
    met = ledger.run(operations.plan(call.plan))
    assert met is not None
    if acts:
        far.effects.append({"key": met.action.idempotency_key, "order": order})
    return met.action


def triggers(ledger: Ledger, action_id: str) -> list[str]:
    return [event.trigger for event in ledger.timeline(action_id)]


def passed(worker: Worker, clock: Clock, seconds: float, step_s: float = 3.0) -> Round:
    """Let time pass in steps, with a round of the worker after each."""
    done = Round()
    for _ in range(int(seconds / step_s)):
        clock.sleep(step_s)
        done += worker.run_once()
    return done


def test_an_orphan_is_found_by_key_and_not_sent_again(late: Ledger, clock: Clock) -> None:
    """Its owner died after the remote side did it: the worker asks by key, and it has succeeded by the query."""
    far = Remote()
    lost = orphan(late, far, 1)
    worker = Worker(late, tools=[paying(far)])
    assert worker.run_once() == Round()
    clock.sleep(61)
    assert worker.run_once() == Round(noted=1, looked=1, settled=1)
    found = late.action(lost.id)
    assert (found.state, found.receipt, found.evidence, found.attempt) == (State.SUCCEEDED, "RF-1", "query", 1)
    assert triggers(late, lost.id) == ["plan", "approve", "claim", "lose", "find"]
    assert (len(far.effects), worker.run_once()) == (1, Round())
    assert rows(late.url, "SELECT * FROM settled.watched") == []


def test_an_orphan_that_did_nothing_is_sent_again_under_its_key(late: Ledger, clock: Clock) -> None:
    """Absent, twice and after its settle window: released, and sent once more."""
    far = Remote()
    lost = orphan(late, far, 1, acts=False)
    worker = Worker(late, tools=[paying(far)])
    clock.sleep(61)
    done = worker.run_once() + passed(worker, clock, 12)
    again = late.action(lost.id)
    assert (again.state, again.attempt, far.keys) == (State.SUCCEEDED, 2, [lost.idempotency_key])
    assert triggers(late, lost.id) == ["plan", "approve", "claim", "lose", "ask", "ask", "release", "succeed"]
    assert (done.lost, done.settled, far.asked) == (1, 1, 2)


def test_what_cannot_be_asked_about_goes_to_a_person(late: Ledger, clock: Clock) -> None:
    """No query, no promise of the remote side: lost, and into the manual queue; nothing is sent."""
    far = Remote()
    lost = orphan(late, far, 1)
    worker = Worker(late, tools=[paying(far, remote="opaque", query=None)])
    clock.sleep(61)
    assert worker.run_once().escalated == 1
    assert [case.action.id for case in Desk(late).queue()] == [lost.id]
    assert passed(worker, clock, 130, 65) == Round(looked=2)
    assert (len(far.effects), late.action(lost.id).attempt) == (1, 1)


def test_a_worker_without_the_tool_leaves_it_to_one_that_has_it(
    late: Ledger, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """It says that the owner is gone, and says so once; it never asks or sends. The other one finds it at once."""
    far = Remote()
    lost = orphan(late, far, 1)
    stranger, owner = Worker(late), Worker(late, tools=[paying(far)])
    clock.sleep(61)
    assert stranger.run_once() == Round(noted=1, looked=1, lost=1)
    assert passed(stranger, clock, 130, 65) == Round()
    assert (late.action(lost.id).state, far.asked) == (State.UNKNOWN, 0)
    assert caplog.text.count("pay is not among the tools") == 1
    assert owner.run_once() == Round(looked=1, settled=1)
    assert len(far.effects) == 1


def test_a_request_that_nobody_answers_expires(late: Ledger, clock: Clock) -> None:
    """At its end, by the ledger's clock; a worker needs no tool for that."""
    far = Remote()
    asked = perform(paying(far, approval=always(ttl=timedelta(minutes=10))), [1], ledger=late, thread_id="t")
    worker = Worker(late)
    assert passed(worker, clock, 9 * 60, 60).expired == 0
    assert passed(worker, clock, 120, 60).expired == 1
    ended = action_of(late, asked)
    assert (ended.state, ended.code, far.effects) == (State.CANCELLED, "expired", [])
    assert triggers_of(late, asked) == ["plan", "expire"]


def approved(ledger: Ledger, tool: ActionTool, order: int = 1) -> Outcome:
    """An action that a person has approved, whose caller is gone."""
    asked = perform(tool, [order], ledger=ledger, thread_id="t")
    ticket = Desk(ledger).approval(str(asked.action_id))
    Desk(ledger).decide(ticket.action_id, Approve(), by="sue", fingerprint=ticket.fingerprint)
    return asked


def test_what_was_approved_and_left_alone_is_carried_on(late: Ledger, clock: Clock) -> None:
    """Its own conversation gets five seconds; then a worker claims it, and spends the ticket."""
    far = Remote()
    tool = paying(far, approval=always())
    asked = approved(late, tool)
    worker = Worker(late, tools=[tool])
    clock.sleep(4)
    assert (worker.run_once().looked, far.effects) == (0, [])
    clock.sleep(2)
    assert worker.run_once().settled == 1
    assert (action_of(late, asked).state, len(far.effects)) == (State.SUCCEEDED, 1)
    assert triggers_of(late, asked) == ["plan", "approve", "claim", "succeed"]


def test_a_permission_that_ended_is_asked_for_again(late: Ledger, clock: Clock) -> None:
    """Nobody had the tool in time: a new ticket, and nothing is sent."""
    far = Remote()
    tool = paying(far, approval=always(ttl=timedelta(minutes=10)))
    asked = approved(late, tool)
    clock.sleep(11 * 60)
    assert Worker(late, tools=[tool]).run_once().lapsed == 1
    assert (action_of(late, asked).state, far.effects) == (State.PLANNED, [])
    assert [ticket.round for ticket in Desk(late).history(str(asked.action_id))] == [1, 2]


def test_what_somebody_runs_or_asks_about_is_left_to_him(late: Ledger, clock: Clock) -> None:
    """A live lease, and a query that is due in a moment: a worker only notes when to come back."""
    far = Remote()
    held = orphan(late, far, 1)
    asking = orphan(late, far, 2)
    query = operations.lose(claim_of(asking, str(asking.owner)), reason="no answer", settle_window_s=15)
    late.run(query)
    worker = Worker(late, tools=[paying(far)])
    clock.sleep(1)
    assert worker.run_once() == Round(noted=2)
    assert (late.action(held.id).state, late.action(asking.id).state) == (State.RUNNING, State.UNKNOWN)
    clock.sleep(2)
    assert worker.run_once() == Round(looked=1, settled=1)


def test_an_action_that_was_run_when_the_frontier_passed_is_still_seen(late: Ledger, clock: Clock) -> None:
    """A long lease: noted a minute later, although every sweep before that had left it alone."""
    far = Remote()
    held = orphan(late, far, 1)
    worker = Worker(late, tools=[paying(far)])
    for _ in range(20):
        clock.sleep(10)
        late.run(operations.renew([(claim_of(held, ""), 100.0)]))
        worker.run_once()
    assert late.action(held.id).state is State.RUNNING
    assert passed(worker, clock, 180, 30).settled == 1


def test_a_clock_that_goes_back_hides_nothing(late: Ledger, clock: Clock) -> None:
    """Another server has taken over, and its clock is two hours behind."""
    far = Remote()
    worker = Worker(late, tools=[paying(far)])
    worker.run_once()
    clock.sleep(-7200)
    worker.run_once()
    lost = orphan(late, far, 1)
    clock.sleep(61)
    assert worker.run_once().settled == 1
    assert late.action(lost.id).state is State.SUCCEEDED


def test_two_tenants_and_a_purged_row(late: Ledger, clock: Clock) -> None:
    """Every tenant is looked after; what is gone from the ledger is forgotten."""
    far = Remote()
    tool = paying(far, approval=always(ttl=timedelta(minutes=1)))
    for tenant in ("a", "b"):
        perform(tool, [1], ledger=late, thread_id="t", tenant=tenant)
    rows(late.url, "INSERT INTO settled.watched VALUES ('-infinity', 'a', 'act-gone') RETURNING 1")
    clock.sleep(61)
    assert Worker(late).run_once() == Round(noted=2, looked=3, expired=2)
    assert rows(late.url, "SELECT * FROM settled.watched") == []


def test_stored_arguments_that_cannot_be_read_go_to_a_person(late: Ledger, clock: Clock) -> None:
    """The tool has changed since: nothing is sent, and the unknown outcome is a person's to find out."""
    far = Remote()
    lost = orphan(late, far, 1)

    @action(risk="non_idempotent_write", remote="dedupes", query=far.find, identity=("bill",), name="pay")
    def pay(bill: str) -> object:
        return far.do(bill=bill)

    worker = Worker(late, tools=[pay])
    clock.sleep(61)
    done = worker.run_once() + passed(worker, clock, 9)
    assert (done.lost, done.escalated, len(far.effects)) == (1, 1, 1)
    assert "cannot be read" in str(late.action(lost.id).reason)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"scan_every_s": 0}, "scan_every_s"),
        ({"scan_every_s": 61}, "scan_every_s"),
    ],
)
def test_a_worker_that_cannot_be_right_is_refused(ledger: Ledger, wrong: dict[str, Any], said: str) -> None:
    """By the name of what is wrong."""
    with pytest.raises(ContractError, match=said):
        Worker(ledger, **wrong)


async def test_embedded_it_runs_as_long_as_its_block(ledger: Ledger) -> None:
    """A thread of this process; what comes up while it runs is looked after, and it ends with the block."""
    far = Remote()
    tool = paying(far, approval=always(ttl=timedelta(seconds=0.3)))
    with Worker(ledger, scan_every_s=0.1).embedded() as worker:
        asked = await asyncio.to_thread(perform, tool, [1], ledger=ledger, thread_id="t")
        for _ in range(100):
            if action_of(ledger, asked).state is State.CANCELLED:
                break
            await asyncio.sleep(0.05)
    assert triggers_of(ledger, asked) == ["plan", "expire"]
    assert (worker.is_draining, worker.in_flight) == (True, 0)
