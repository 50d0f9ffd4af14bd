"""Undoing that its process has left: a worker carries the action that undoes on, and writes down what came of it."""

from collections.abc import Iterator
from typing import Any

import pytest

from acts import Clock, Remote, opened
from settled import Approve, Desk, Ledger, Outcome, Reject, State, action, always, perform
from settled.runtime.worker import Worker
from settled.tools import protocol
from settled.tools.compensation import Undoing, _begun
from settled.tools.contract import ActionTool
from settled.tools.perform import Options, taken_up
from settled.tools.runner import Runner


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(database_url: str, clock: Clock) -> Iterator[Ledger]:
    with opened(database_url, clock=clock) as one:
        yield one


def shop(far: Remote, **undo: Any) -> list[ActionTool]:
    """A payment, and the refund that undoes it."""

    @action(risk="non_idempotent_write", remote="dedupes", query=far.find, identity=("order",), **undo)
    def refund(order: int) -> object:
        return far.do(undo=order)

    @action(risk="non_idempotent_write", remote="opaque", identity=("order",), compensate=refund)
    def pay(order: int) -> object:
        return far.do(order=order)

    return [pay, refund]


def left(ledger: Ledger, tools: list[ActionTool]) -> Outcome:
    """A payment whose undoing has begun in a process that died then."""
    paid = perform(tools[0], [1], ledger=ledger, thread_id="t")
    done = ledger.action(str(paid.action_id))
    Runner(tools[1].contract, ledger).drive(_begun(Undoing(tools[0].contract, ledger, {}), done))
    return paid


def test_an_undoing_that_was_left_is_carried_on(ledger: Ledger, clock: Clock) -> None:
    """The refund is made once, and the payment is compensated with its receipt."""
    far = Remote()
    tools = shop(far)
    paid = left(ledger, tools)
    assert ledger.action(str(paid.action_id)).state is State.COMPENSATION_PENDING
    worker = Worker(ledger, tools=tools)
    clock.sleep(6)
    assert worker.run_once().settled == 1
    assert ledger.action(str(paid.action_id)).state is State.COMPENSATED
    clock.sleep(61)
    worker.run_once()
    assert [event.trigger for event in ledger.timeline(str(paid.action_id))][-2:] == ["compensate", "compensated"]
    assert [effect.get("undo") for effect in far.effects] == [None, 1]


def test_an_undoing_that_nobody_wrote_down_is_concluded(ledger: Ledger, clock: Clock) -> None:
    """The refund was made, and its process died before it said so of the payment; no tool is needed for that."""
    far = Remote()
    tools = shop(far)
    paid = left(ledger, tools)
    clock.sleep(2)
    worker = Worker(ledger)
    worker.run_once()
    undo = str(ledger.action(str(paid.action_id)).compensated_by)
    call = taken_up(tools[1].contract, ledger.action(undo), ledger, Options("t"))
    Runner(tools[1].contract, ledger).drive(protocol.perform(call))
    assert ledger.action(str(paid.action_id)).state is State.COMPENSATION_PENDING
    clock.sleep(61)
    assert worker.run_once().settled == 1
    assert ledger.action(str(paid.action_id)).state is State.COMPENSATED


def test_what_was_done_long_ago_is_concluded_too(ledger: Ledger, clock: Clock) -> None:
    """No sweep comes by it any more: it is found by the action that undoes it."""
    far = Remote()
    tools = shop(far, approval=always)
    perform(tools[0], [1], ledger=ledger, thread_id="t")
    clock.sleep(3600)
    worker = Worker(ledger, tools=tools)
    worker.run_once()
    paid = left(ledger, tools)
    ticket = Desk(ledger).approvals()[0]
    Desk(ledger).decide(ticket.action_id, Reject("no"), by="sue", fingerprint=ticket.fingerprint)
    clock.sleep(6)
    worker.run_once()
    assert [case.action.id for case in Desk(ledger).queue()] == [paid.action_id]


def test_an_undoing_that_a_person_denied_goes_to_the_manual_queue(ledger: Ledger, clock: Clock) -> None:
    """It is nobody's any more, and shown."""
    far = Remote()
    tools = shop(far, approval=always)
    paid = left(ledger, tools)
    worker = Worker(ledger, tools=tools)
    clock.sleep(2)
    worker.run_once()
    ticket = Desk(ledger).approvals()[0]
    Desk(ledger).decide(ticket.action_id, Reject("no"), by="sue", fingerprint=ticket.fingerprint)
    clock.sleep(61)
    worker.run_once()
    assert [case.action.id for case in Desk(ledger).queue()] == [paid.action_id]
    assert len(far.effects) == 1


def test_an_undoing_that_a_person_approved_is_carried_on(ledger: Ledger, clock: Clock) -> None:
    """His ticket is spent by the worker."""
    far = Remote()
    tools = shop(far, approval=always)
    paid = left(ledger, tools)
    ticket = Desk(ledger).approvals()[0]
    Desk(ledger).decide(ticket.action_id, Approve(), by="sue", fingerprint=ticket.fingerprint)
    clock.sleep(6)
    assert Worker(ledger, tools=tools).run_once().settled == 1
    assert ledger.action(str(paid.action_id)).state is State.COMPENSATED
