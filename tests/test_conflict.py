"""The same key with another amount is a conflict on every path: nothing is sent, the answer names the earlier one."""

import asyncio
import json
import threading
from datetime import datetime
from decimal import Decimal
from typing import Annotated

import pytest

from acts import Door, Remote, action_of, both_doors, count, opened, rows, through_sync
from settled import Code, Incidental, Ledger, Ordered, Outcome, State, action, perform
from settled.tools.contract import ActionTool
from settled.tools.effects import Effect, Invoke
from settled.tools.outcome import Forbidden, Invalid, Rejected, Unknown
from settled.tools.runner import World

FIRST = {"invoice": "INV-102", "amount": 118.5}
OTHER = {"invoice": "INV-102", "amount": 180}


def pay(remote: Remote, *, ends: object = None, until: threading.Event | None = None) -> ActionTool:
    @action(
        risk="non_idempotent_write", remote="opaque", identity=("invoice",), timeout=5, lease=6, deadline=5,
        settle_window=5,
    )  # fmt: skip
    def pay(invoice: str, amount: float) -> object:
        done = remote.do(invoice=invoice, amount=amount)
        if until is not None:
            assert until.wait(5)
        return ends or done

    return pay


def is_conflict_with(outcome: Outcome, action_id: str | None, state: State, remote: Remote) -> None:
    assert outcome.code == Code.CONFLICT
    assert outcome.action_id == action_id
    assert outcome.state == state
    assert outcome.artifact["earlier_action_id"] == action_id
    assert outcome.artifact["differing"] == {"amount": [118.5, 180.0]}
    assert outcome.artifact["may_retry"] is False
    assert str(action_id) in outcome.message
    assert "118.5" in outcome.message
    assert "180" in outcome.message
    assert [e["amount"] for e in remote.effects] == [118.5]


@both_doors
async def test_conflict_while_in_flight(door: Door, ledger: Ledger) -> None:
    """While the first call runs, the other amount is answered at once and not sent."""
    remote, until = Remote(), threading.Event()
    tool = pay(remote, until=until)
    first = asyncio.create_task(through_sync(tool, FIRST, ledger=ledger))
    await asyncio.to_thread(remote.begun.wait, 5)
    other = await door(tool, OTHER, ledger=ledger)
    until.set()
    done = await first
    is_conflict_with(other, done.action_id, State.RUNNING, remote)
    assert done.code == Code.SUCCEEDED


@both_doors
async def test_conflict_once_settled(door: Door, ledger: Ledger) -> None:
    """After a success the other amount gets a conflict, never the first result."""
    remote = Remote()
    tool = pay(remote)
    first = await door(tool, FIRST, ledger=ledger)
    other = await door(tool, OTHER, ledger=ledger)
    is_conflict_with(other, first.action_id, State.SUCCEEDED, remote)
    assert count(ledger.url) == 1


@both_doors
async def test_conflict_while_unknown(door: Door, ledger: Ledger) -> None:
    """An unknown first amount is no reason to send the second."""
    remote = Remote()
    tool = pay(remote, ends=Unknown("no answer"))
    first = await door(tool, FIRST, ledger=ledger)
    assert (first.code, first.state) == (Code.MANUAL_REVIEW, State.UNKNOWN)
    is_conflict_with(await door(tool, OTHER, ledger=ledger), first.action_id, State.UNKNOWN, remote)


class Died(BaseException):
    """Ends a driver where a process would have been killed."""


def dies_after_the_body(effect: Effect, when: str) -> None:
    if isinstance(effect, Invoke) and when == "after":
        raise Died


@both_doors
async def test_conflict_with_an_expired_lease(door: Door, ledger: Ledger) -> None:
    """A dead owner's lease has ended: the other amount is a conflict still, not a free run."""
    remote = Remote()

    @action(
        risk="non_idempotent_write", remote="opaque", identity=("invoice",), timeout=0.2, lease=0.3, deadline=1,
        settle_window=0.2,
    )  # fmt: skip
    def pay(invoice: str, amount: float) -> object:
        return remote.do(invoice=invoice, amount=amount)

    with pytest.raises(Died):
        perform(pay, FIRST, ledger=ledger, thread_id="thread-1", world=World(watch=dies_after_the_body))
    await asyncio.sleep(0.4)
    row = rows(ledger.url, "SELECT id, state, lease_until < clock_timestamp() AS over FROM settled.actions")[0]
    assert (row["state"], row["over"]) == ("running", True)
    other = await door(pay, OTHER, ledger=ledger)
    is_conflict_with(other, row["id"], State.RUNNING, remote)


@both_doors
async def test_conflict_after_a_restart(door: Door, ledger: Ledger) -> None:
    """Another process with another ledger object meets the same conflict."""
    remote = Remote()
    first = await door(pay(remote), FIRST, ledger=ledger)
    with opened(ledger.url) as restarted:
        other = await door(pay(remote), OTHER, ledger=restarted)
        await restarted.aclose()
    is_conflict_with(other, first.action_id, State.SUCCEEDED, remote)


@both_doors
async def test_conflict_with_a_failure_that_a_changed_call_cannot_mend(door: Door, ledger: Ledger) -> None:
    """After `forbidden` another amount is no way around it."""
    remote = Remote()
    tool = pay(remote, ends=Forbidden("not yours to pay"))
    first = await door(tool, FIRST, ledger=ledger)
    assert (first.code, first.state) == (Code.FORBIDDEN, State.FAILED)
    is_conflict_with(await door(tool, OTHER, ledger=ledger), first.action_id, State.FAILED, remote)


@both_doors
@pytest.mark.parametrize(
    "ended", [Invalid("too little", "amount"), Rejected("over the limit")], ids=["invalid", "rejected"]
)
async def test_a_changed_call_after_a_failure_is_a_new_action(door: Door, ended: object, ledger: Ledger) -> None:
    """Where the first one did nothing and a changed call may work, the changed call runs under its own key."""
    remote = Remote()
    first = await door(pay(remote, ends=ended), FIRST, ledger=ledger)
    assert first.state == State.FAILED
    other = await door(pay(remote), OTHER, ledger=ledger)
    assert (other.code, other.state) == (Code.SUCCEEDED, State.SUCCEEDED)
    assert other.action_id != first.action_id
    assert other.idempotency_key != first.idempotency_key
    assert [e["amount"] for e in remote.effects] == [118.5, 180.0]
    assert action_of(ledger, other).occurrence == 1


@both_doors
async def test_a_repeat_of_a_rejection_is_the_same_rejection(door: Door, ledger: Ledger) -> None:
    """The same call after a business no gets that no again, with its receipt; nothing is sent."""
    remote = Remote()
    tool = pay(remote, ends=Rejected("invoice INV-102 was already reimbursed", "R-55821"))
    first = await door(tool, FIRST, ledger=ledger)
    again = await door(tool, FIRST, ledger=ledger)
    for outcome in (first, again):
        assert (outcome.code, outcome.state, outcome.receipt) == (Code.REJECTED, State.FAILED, "R-55821")
        assert "already reimbursed" in outcome.message
    assert (first.replayed, again.replayed) == (False, True)
    assert first.action_id == again.action_id
    assert len(remote.effects) == 1


@both_doors
async def test_a_conflict_names_what_differs_and_nothing_else(door: Door, ledger: Ledger) -> None:
    """A memo that takes no part, a list in another order and 5.0 for 5 are not named; a swapped ordered list is."""
    remote = Remote()

    @action(risk="non_idempotent_write", remote="opaque", identity=("order",))
    def ship(
        order: str,
        amount: Decimal,
        tags: list[str],
        stops: Annotated[list[str], Ordered()],
        on: datetime,
        memo: Annotated[str, Incidental()] = "",
    ) -> object:
        return remote.do(amount=amount)

    first = ["A-1", "5", ["x", "y"], ["a", "b"], "2026-01-05T12:00:00Z", "as asked"]
    other = ["A-1", 5.0, ["y", "x"], ["b", "a"], "2026-01-05T13:00:00+01:00", "worded anew"]
    await door(ship, first, ledger=ledger)
    conflict = await door(ship, other, ledger=ledger)
    assert conflict.code == Code.CONFLICT
    assert conflict.artifact["differing"] == {"stops": [["a", "b"], ["b", "a"]]}
    json.dumps(conflict.artifact)
    assert "worded anew" not in conflict.message
    assert len(remote.effects) == 1


async def test_two_amounts_at_the_same_instant(ledger: Ledger) -> None:
    """Sixteen callers with sixteen amounts: one is sent, fifteen are conflicts with it."""
    remote = Remote()
    tool = pay(remote)
    outcomes = await asyncio.gather(
        *(through_sync(tool, {"invoice": "INV-102", "amount": n}, ledger=ledger) for n in range(16))
    )
    assert len(remote.effects) == 1
    assert sorted(o.code for o in outcomes) == [Code.CONFLICT] * 15 + [Code.SUCCEEDED]
    assert len({o.action_id for o in outcomes}) == 1
