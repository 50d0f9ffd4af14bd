"""What a child process of the tests of approvals and budgets can be asked to do."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from jobs import told

from reimbursing import AMOUNT, SUPERVISOR, call, reimbursement
from remote import payment
from settled import Action, Approve, Budget, Desk, Edit, Happened, Ledger, Reject, World, perform
from settled.tools.effects import Effect

DECISIONS: dict[str, Approve | Reject | Edit] = {
    "approve": Approve("fine"),
    "reject": Reject("too much"),
    "edit": Edit({"amount": 110.5}, "as on the invoice"),
}


def dying(at: int | None, instants: list[list[str]]) -> World:
    """A world that notes each instant, and in which this process dies by SIGKILL at number `at`."""

    def watch(effect: Effect, when: str) -> None:
        query = getattr(effect, "query", None)
        instants.append([query.name if query is not None else type(effect).__name__, when])
        if len(instants) - 1 == at:
            os.kill(os.getpid(), signal.SIGKILL)

    return World(watch=watch)


def spend(*, database_url: str, remote_url: str, orders: Sequence[str], at: float) -> list[str]:
    """Pay several orders of 30 out of a budget of 100, each in a thread, at one instant; tells the codes."""
    tool = payment(remote_url, budgets=[Budget(100, of="amount")], timeout=8.0, lease=10.0, settle_window=8.0)
    codes: list[str] = []

    def one(order: str) -> None:
        time.sleep(max(at - time.time(), 0))
        codes.append(str(perform(tool, [order, 30], ledger=ledger, thread_id=order).code))

    with Ledger.connect(database_url) as ledger:
        _all(one, orders)
    return codes


def pay(
    *, database_url: str, remote_url: str, order_id: str, thread_id: str, limit: int, die_at: int | None = None
) -> dict[str, Any]:
    """Pay an order of 118 out of a budget."""
    instants: list[list[str]] = []
    tool = payment(remote_url, budgets=[Budget(limit, of="amount")])
    with Ledger.connect(database_url) as ledger:
        end = perform(tool, [order_id, 118], ledger=ledger, thread_id=thread_id, world=dying(die_at, instants))
    return {**told(end), "instants": instants}


def _all(one: Callable[[str], None], values: Sequence[str]) -> None:
    threads = [threading.Thread(target=one, args=(value,)) for value in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def file(
    *,
    database_url: str,
    remote_url: str,
    invoice: str,
    amount: float = AMOUNT,
    mode: str = "sync",
    die_at: int | None = None,
    now: str | None = None,
) -> dict[str, Any]:
    """File an invoice, or carry it on where it was filed before; `now` sets the ledger's clock."""
    instants: list[list[str]] = []
    with _opened(database_url, now) as ledger:
        end = call(ledger, remote_url, invoice, amount=amount, mode=mode, world=dying(die_at, instants))
    return {**told(end), "instants": instants}


def decide(
    *,
    database_url: str,
    remote_url: str,
    action_id: str,
    fingerprint: str,
    decision: str,
    mode: str = "sync",
    die_at: int | None = None,
    now: str | None = None,
) -> dict[str, Any]:
    """Decide on an action as a supervisor."""
    instants: list[list[str]] = []
    with _opened(database_url, now) as ledger:
        desk = Desk(ledger, tools=[reimbursement(remote_url)], world=dying(die_at, instants))
        said: dict[str, Any] = {**SUPERVISOR, "fingerprint": fingerprint}

        async def adecide() -> Action:
            try:
                return await desk.adecide(action_id, DECISIONS[decision], **said)
            finally:
                await ledger.aclose()

        moved = desk.decide(action_id, DECISIONS[decision], **said) if mode == "sync" else asyncio.run(adecide())
    return {"action_id": moved.id, "state": str(moved.state), "instants": instants}


def resolve(
    *,
    database_url: str,
    remote_url: str,
    action_id: str,
    fingerprint: str,
    receipt: str,
    die_at: int | None = None,
    now: str | None = None,
) -> dict[str, Any]:
    """Say of an action whose outcome nobody knows that it happened."""
    instants: list[list[str]] = []
    with _opened(database_url, now) as ledger:
        desk = Desk(ledger, world=dying(die_at, instants))
        moved = desk.resolve(action_id, Happened(receipt), by="mia", fingerprint=fingerprint)
    return {"state": str(moved.state), "instants": instants}


def _opened(database_url: str, now: str | None) -> Ledger:
    return Ledger.connect(database_url, clock=None if now is None else lambda: datetime.fromisoformat(now))
