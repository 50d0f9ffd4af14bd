"""Processes die by SIGKILL while a person is asked: whoever plans the call, decides on it, or carries it on.

Each dies before and after every statement that it sends, and the same is done again elsewhere. In the end there is one
effect, one ticket that was spent once, and both are for 118.5.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest

import processes
from acts import Clock
from reimbursing import AMOUNT, SUPERVISOR, TTL_S, call, reimbursement
from remote import DROP, Remote, actions, row, timeline
from settled import (
    Action,
    AlreadyDecided,
    Approval,
    Approve,
    Desk,
    DidNotHappen,
    Edit,
    Happened,
    Ledger,
    NotPermitted,
    Outcome,
    Reject,
    ShownOtherwise,
    State,
)

EDITED = 110.5
R = TypeVar("R")
MODES = ["sync", pytest.param("async", marks=pytest.mark.deep)]


@dataclass(frozen=True)
class World:
    """A ledger, a remote side, and the processes of other people."""

    ledger: Ledger
    database_url: str
    remote: Remote
    now: datetime | None = None

    def dies(self, job: str, instant: int | None, **args: Any) -> None:
        """Let a process die at an instant of its work."""
        child = processes.start(f"approving.{job}", **self._args(args), die_at=instant)
        assert child.status() == -9, child.failed or f"it lived past instant {instant}: {child.said}"

    def does(self, job: str, **args: Any) -> dict[str, Any]:
        """Let a process do its work to the end; returns what it told."""
        said: dict[str, Any] = processes.start(f"approving.{job}", **self._args(args)).result()
        return said

    def call(self, invoice: str, amount: float = AMOUNT) -> Outcome:
        """Make the employee's call in this process."""
        return call(self.ledger, self.remote.url, invoice, amount=amount)

    @property
    def desk(self) -> Desk:
        return Desk(self.ledger, tools=[reimbursement(self.remote.url)])

    def approve(self, action: Action) -> Action:
        return self.desk.decide(action.id, Approve("fine"), **SUPERVISOR, fingerprint=action.fingerprint)

    def the_action(self, invoice: str) -> Action:
        (action,) = actions(self.ledger, f"t-{invoice}")
        return action

    def effects(self, invoice: str) -> list[float]:
        """The amounts that were really reimbursed."""
        return [e.body["amount"] for e in self.remote.effects() if e.body["order_id"] == invoice]

    def triggers(self, action: Action) -> list[str]:
        return [event.trigger for event in timeline(self.ledger, action.id) if event.trigger != "ask"]

    def _args(self, args: dict[str, Any]) -> dict[str, Any]:
        now = None if self.now is None else self.now.isoformat()
        return {"database_url": self.database_url, "remote_url": self.remote.url, "now": now, **args}


def each(instants: int, one: Callable[[int], R]) -> list[R]:
    """Do something for each instant, side by side: most of it is waiting."""
    with ThreadPoolExecutor(6) as pool:
        return list(pool.map(one, range(instants)))


def pairs(*names: str) -> list[list[str]]:
    return [[name, when] for name in names for when in ("before", "after")]


PLANNED = ("known", "Judge", "plan_judged_decided")
DECIDED = {
    "approve": ("load", "approve"),
    "reject": ("load", "cancel"),
    "edit": ("load", "Judge", "newest", "supersede"),
}
CARRIED_ON = ("known", "claim", "Invoke", "succeed")
REPLY_LOST = ("known", "claim", "Invoke", "lose", "Probe", "find")
EXPIRED = ("known", "cancel")
REPLACED = ("known", "Judge", "plan_judged_decided", "cancel", "plan_judged_decided", "plan_judged_decided")
RESOLVED = ("load", "lose", "find")
LAPSED = ("known", "claim", "load", "lapse")


def bound(ticket: Approval, action: Action, amount: float = AMOUNT) -> bool:
    """Whether a ticket is for this very action, as it was asked."""
    same = (ticket.action_id, ticket.fingerprint, ticket.requester) == (action.id, action.fingerprint, "ann")
    return same and ticket.arguments["amount"] == action.arguments["amount"] == amount


def check_done(at: World, invoice: str, end: Outcome, *, sent: int = 1) -> None:
    """One action, one effect of 118.5, its receipt told, and one ticket that was spent once."""
    action = at.the_action(invoice)
    (effect,) = [e for e in at.remote.effects() if e.body["order_id"] == invoice]
    assert (end.code, end.action_id, end.receipt) == ("succeeded", action.id, f"R-{effect.id}")
    assert (at.effects(invoice), effect.key, at.remote.posts(effect.key)) == ([AMOUNT], action.idempotency_key, sent)
    (ticket,) = at.desk.history(action.id)
    assert (ticket.decision, ticket.decided_by, ticket.note) == ("approve", "mia", "fine")
    assert ticket.spent_at is not None
    assert bound(ticket, action)
    triggers = at.triggers(action)
    assert triggers[:3] == ["plan", "approve", "claim"]
    assert [triggers.count(name) for name in ("plan", "approve", "claim")] == [1, 1, 1]
    actors = [event.actor for event in timeline(at.ledger, action.id) if event.trigger == "approve"]
    assert actors == ["mia"]


def asked(at: World, invoice: str) -> Action:
    assert at.call(invoice).code == "waiting_for_approval"
    return at.the_action(invoice)


@pytest.fixture
def at(database_url: str) -> Any:
    with Ledger.connect(database_url) as ledger, Remote(database_url) as remote:
        yield World(ledger, database_url, remote)


def test_the_processes_meet_the_statements_that_are_named_here(at: World) -> None:
    """The tests below kill at each of them: a statement that is new must be named there."""
    first = at.does("file", invoice="I")
    assert (first["code"], first["instants"]) == ("waiting_for_approval", pairs(*PLANNED))
    for number, decision in enumerate(DECIDED):
        action = asked(at, f"I-{number}")
        said = at.does("decide", action_id=action.id, fingerprint=action.fingerprint, decision=decision)
        assert said["instants"] == pairs(*DECIDED[decision])
    end = at.does("file", invoice="I-0")
    assert (end["code"], end["instants"]) == ("succeeded", pairs(*CARRIED_ON))


@pytest.mark.parametrize("mode", MODES)
def test_killed_while_it_plans_the_call(at: World, mode: str) -> None:
    """No row, or one that waits; made again, one request for 118.5. Then approved, and done once."""

    def one(instant: int) -> str:
        invoice = f"INV-{instant}"
        at.dies("file", instant, invoice=invoice, mode=mode)
        left = [str(action.state) for action in actions(at.ledger, f"t-{invoice}")]
        again = at.call(invoice)
        action = at.the_action(invoice)
        assert (again.code, again.action_id) == ("waiting_for_approval", action.id)
        (ticket,) = at.desk.approvals(thread_id=f"t-{invoice}")
        assert bound(ticket, action)
        assert at.effects(invoice) == []
        at.approve(action)
        check_done(at, invoice, at.call(invoice))
        return ",".join(left)

    assert each(2 * len(PLANNED), one) == [*[""] * 5, "planned"]


@pytest.mark.parametrize("mode", MODES)
def test_killed_while_it_approves(at: World, mode: str) -> None:
    """Undecided, or approved; the same person approves again without an error. Done once, on that one ticket."""

    def one(instant: int) -> str:
        invoice = f"INV-{instant}"
        action = asked(at, invoice)
        shown = {"action_id": action.id, "fingerprint": action.fingerprint}
        at.dies("decide", instant, **shown, decision="approve", mode=mode)
        left = str(row(at.ledger, action.id).state)
        assert at.approve(action).state is State.APPROVED
        if left == "approved":
            with pytest.raises(AlreadyDecided, match="mia approved it"):
                at.desk.decide(action.id, Reject(), by="bob", roles=("supervisor",), fingerprint=action.fingerprint)
        check_done(at, invoice, at.call(invoice))
        return left

    assert each(2 * len(DECIDED["approve"]), one) == ["planned", "planned", "planned", "approved"]


@pytest.mark.parametrize("mode", MODES)
def test_killed_while_it_carries_on(at: World, mode: str) -> None:
    """Approved, running or done; whoever makes the call again has the receipt of the one effect."""

    def one(instant: int) -> str:
        invoice = f"INV-{instant}"
        at.approve(action := asked(at, invoice))
        at.dies("file", instant, invoice=invoice, mode=mode)
        left = row(at.ledger, action.id)
        (ticket,) = at.desk.history(action.id)
        assert (ticket.spent_at is None) == (left.state is State.APPROVED)
        check_done(at, invoice, at.call(invoice))
        return str(left.state)

    assert each(2 * len(CARRIED_ON), one) == [*["approved"] * 3, *["running"] * 4, "succeeded"]


@pytest.mark.deep
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_killed_while_it_carries_on_and_its_reply_was_lost(at: World, mode: str) -> None:
    """The reply never came, and then the process died at any instant of finding out: asked again, found, once."""

    def one(instant: int) -> str:
        invoice = f"INV-{instant}"
        at.approve(action := asked(at, invoice))
        with Remote(at.database_url) as remote:  # of its own: whose reply is lost must be known
            remote.next(DROP)
            there = World(at.ledger, at.database_url, remote)
            there.dies("file", instant, invoice=invoice, mode=mode)
            left = str(row(at.ledger, action.id).state)
            check_done(there, invoice, there.call(invoice))
        return left

    assert each(2 * len(REPLY_LOST), one) == [
        *(*["approved"] * 3, *["running"] * 4, *["unknown"] * 4, "succeeded"),
    ]


def test_killed_while_another_amount_takes_its_place(at: World) -> None:
    """118.5 was approved, and 180 is asked for by a process that dies: 118.5 may still be filed, or its place is taken
    for good; 180 never is on that ticket, and waits for one of its own.
    """

    def one(instant: int) -> str:
        invoice = f"INV-{instant}"
        at.approve(old := asked(at, invoice))
        if instant == 2 * len(REPLACED):
            assert at.does("file", invoice=invoice, amount=180)["instants"] == pairs(*REPLACED)
        else:
            at.dies("file", instant, invoice=invoice, amount=180)
        left = [str(action.state) for action in reversed(actions(at.ledger, f"t-{invoice}"))]
        assert at.effects(invoice) == []
        if instant % 2 and left == ["approved"]:
            check_done(at, invoice, at.call(invoice))
            assert at.call(invoice, amount=180).code == "conflict"
            return ",".join(left)
        assert at.call(invoice, amount=180).code == "waiting_for_approval"
        assert (at.call(invoice).state, at.effects(invoice)) == (State.CANCELLED, [])
        new, _ = actions(at.ledger, f"t-{invoice}")
        (voided,), (ticket,) = at.desk.history(old.id), at.desk.history(new.id)
        assert (voided.spent_at, bound(voided, old), bound(ticket, new, 180)) == (None, True, True)
        at.approve(new)
        assert (at.call(invoice, amount=180).code, at.effects(invoice)) == ("succeeded", [180])
        (after,) = at.desk.history(old.id)
        assert replace(after, now=voided.now) == voided
        return ",".join(left)

    wanted = [*["approved"] * 7, *["cancelled"] * 4, *["cancelled,planned"] * 2]
    assert each(2 * len(REPLACED) + 1, one) == wanted


@pytest.mark.parametrize("mode", MODES)
def test_killed_while_it_rejects(at: World, mode: str) -> None:
    """Undecided, or refused; refused in the end, and nothing is ever filed."""

    def one(instant: int) -> str:
        invoice = f"INV-{instant}"
        action = asked(at, invoice)
        at.dies(
            "decide", instant, action_id=action.id, fingerprint=action.fingerprint, decision="reject", mode=mode
        )  # fmt: skip
        left = str(row(at.ledger, action.id).state)
        again = at.desk.decide(action.id, Reject("too much"), **SUPERVISOR, fingerprint=action.fingerprint)
        assert (again.state, at.triggers(action)) == (State.CANCELLED, ["plan", "deny"])
        with pytest.raises(AlreadyDecided, match="mia rejected it"):
            at.approve(action)
        end = at.call(invoice)
        assert (end.code, at.effects(invoice)) == ("denied", [])
        assert "too much" in end.message
        return left

    assert each(2 * len(DECIDED["reject"]), one) == ["planned", "planned", "planned", "cancelled"]


@pytest.mark.parametrize("mode", MODES)
def test_killed_while_it_edits(at: World, mode: str) -> None:
    """As it was, or changed whole: the old one ended and the new one begun. The new one is asked for, and done once."""

    def one(instant: int) -> list[str]:
        invoice = f"INV-{instant}"
        old = asked(at, invoice)
        at.dies("decide", instant, action_id=old.id, fingerprint=old.fingerprint, decision="edit", mode=mode)
        left = [str(action.state) for action in reversed(actions(at.ledger, f"t-{invoice}"))]
        edit = Edit({"amount": EDITED}, "as on the invoice")
        if left == ["planned"]:
            at.desk.decide(old.id, edit, **SUPERVISOR, fingerprint=old.fingerprint)
        else:
            with pytest.raises(AlreadyDecided, match="mia changed it"):
                at.desk.decide(old.id, edit, **SUPERVISOR, fingerprint=old.fingerprint)
        new, was = actions(at.ledger, f"t-{invoice}")
        assert (was.id, was.state, was.superseded_by, new.supersedes) == (old.id, State.CANCELLED, new.id, old.id)
        assert at.call(invoice).code == "waiting_for_approval"
        with pytest.raises(ShownOtherwise):
            at.desk.decide(new.id, Approve(), **SUPERVISOR, fingerprint=old.fingerprint)
        for by in ("ann", "mia"):  # who asked for it, and who changed it
            with pytest.raises(NotPermitted):
                at.desk.decide(new.id, Approve(), by=by, roles=("supervisor",), fingerprint=new.fingerprint)
        at.desk.decide(new.id, Approve(), by="bob", roles=("supervisor",), fingerprint=new.fingerprint)
        end = at.call(invoice)
        assert (end.code, end.artifact["outcome"], at.effects(invoice)) == ("changed_by_person", "succeeded", [EDITED])
        (first,), (second,) = at.desk.history(old.id), at.desk.history(new.id)
        assert (first.decision, first.spent_at, bound(first, old)) == ("supersede", None, True)
        assert (second.decision, second.spent_at is None, bound(second, new, EDITED)) == ("approve", False, True)
        return left

    assert each(2 * len(DECIDED["edit"]), one) == [*[["planned"]] * 7, ["cancelled", "planned"]]


@pytest.fixture
def later(database_url: str) -> Any:
    """A world whose ledger has a clock of its own, and the same world when the time of a ticket is over."""
    clock = Clock()
    clock.start = datetime(2026, 1, 5, 12, tzinfo=UTC)
    with Ledger.connect(database_url, clock=clock) as ledger, Remote(database_url) as remote:
        after = clock.start + timedelta(seconds=TTL_S)
        yield clock, World(ledger, database_url, remote, now=after)


def test_killed_while_it_lets_a_request_expire(later: tuple[Clock, World]) -> None:
    """Nobody decided in time, and whoever notices it dies: expired once, nothing filed, and too late to approve."""
    clock, at = later
    waiting = {invoice: asked(at, invoice) for invoice in (f"INV-{n}" for n in range(2 * len(EXPIRED)))}
    said = at.does("file", invoice=asked(at, "I").arguments["order_id"])
    assert (said["code"], said["instants"]) == ("expired", pairs(*EXPIRED))
    clock.elapsed_s = TTL_S

    def one(instant: int) -> str:
        invoice = f"INV-{instant}"
        action = waiting[invoice]
        at.dies("file", instant, invoice=invoice)
        left = str(row(at.ledger, action.id).state)
        with pytest.raises(AlreadyDecided, match="in time"):
            at.approve(action)
        assert (at.call(invoice).code, at.effects(invoice)) == ("expired", [])
        (ticket,) = at.desk.history(action.id)
        assert (ticket.decision, ticket.spent_at, bound(ticket, action)) == ("expire", None, True)
        assert at.triggers(action) == ["plan", "expire"]
        return left

    assert each(2 * len(EXPIRED), one) == ["planned", "planned", "planned", "cancelled"]


def test_killed_while_it_lets_a_permission_lapse(later: tuple[Clock, World]) -> None:
    """Approved, and not filed in time: asked for again once, with a new ticket, whoever dies noticing it. The old one
    buys nothing.
    """
    clock, at = later
    approved = {invoice: asked(at, invoice) for invoice in ("I", *(f"INV-{n}" for n in range(2 * len(LAPSED))))}
    for action in approved.values():
        at.approve(action)
    said = at.does("file", invoice="I")
    assert (said["code"], said["instants"]) == ("waiting_for_approval", pairs(*LAPSED))
    clock.elapsed_s = TTL_S

    def one(instant: int) -> str:
        invoice = f"INV-{instant}"
        action = approved[invoice]
        at.dies("file", instant, invoice=invoice)
        left = str(row(at.ledger, action.id).state)
        again = at.call(invoice)
        assert (again.code, again.action_id, at.effects(invoice)) == ("waiting_for_approval", action.id, [])
        first, second = at.desk.history(action.id)
        assert (first.round, first.decision, first.spent_at) == (1, "approve", None)
        assert (second.round, second.decision, bound(second, action)) == (2, None, True)
        at.approve(action)
        end = at.call(invoice)
        assert (end.code, at.effects(invoice)) == ("succeeded", [AMOUNT])
        first, second = at.desk.history(action.id)
        assert (first.spent_at, second.spent_at is None) == (None, False)
        assert at.triggers(action) == ["plan", "approve", "lapse", "approve", "claim", "succeed"]
        return left

    assert each(2 * len(LAPSED), one) == [*["approved"] * 7, "planned"]


def test_killed_while_it_resolves_what_a_dead_process_left(at: World) -> None:
    """The one that ran it died, and so does the person's process: running, unknown or settled; then said again, and it
    stands once, with the receipt that the person had.
    """

    def one(instant: int) -> str:
        invoice = f"INV-{instant}"
        at.approve(action := asked(at, invoice))
        at.dies("file", 5, invoice=invoice)  # after the body, before its end is written down
        until(lambda: row(at.ledger, action.id).lease_is_over)
        receipt = f"R-{next(e.id for e in at.remote.effects() if e.body['order_id'] == invoice)}"
        said = {"action_id": action.id, "fingerprint": action.fingerprint, "receipt": receipt}
        if instant == 2 * len(RESOLVED):
            assert at.does("resolve", **said)["instants"] == pairs(*RESOLVED)
        else:
            at.dies("resolve", instant, **said)
        left = str(row(at.ledger, action.id).state)
        if left == "succeeded":
            with pytest.raises(AlreadyDecided, match="succeeded"):
                at.desk.resolve(action.id, DidNotHappen(), by="bob", fingerprint=action.fingerprint)
        else:
            at.desk.resolve(action.id, Happened(receipt), by="mia", fingerprint=action.fingerprint)
        assert row(at.ledger, action.id).evidence == "person"
        assert at.triggers(action) == ["plan", "approve", "claim", "lose", "find"]
        check_done(at, invoice, at.call(invoice))
        return left

    assert each(2 * len(RESOLVED) + 1, one) == [*["running"] * 3, *["unknown"] * 2, *["succeeded"] * 2]


def until(true: Callable[[], bool]) -> None:
    """Wait until something is so; a test that needs it says what it was for."""
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end, "it never was"
        time.sleep(0.05)


def test_many_carry_on_after_a_kill(at: World) -> None:
    """The process that had the ticket in its hand died before and after it spent it, and four others carry on at one
    instant: one effect.
    """

    def one(after: int) -> None:
        invoice = f"INV-{after}"
        at.approve(asked(at, invoice))
        at.dies("file", 2 + after, invoice=invoice)
        args = {"database_url": at.database_url, "remote_url": at.remote.url, "invoice": invoice}
        children = [processes.start("approving.file", **args) for _ in range(4)]
        receipts = {child.result()["receipt"] for child in children}
        end = at.call(invoice)
        assert receipts == {end.receipt}
        check_done(at, invoice, end)

    each(2, one)


@pytest.mark.deep
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_each_of_the_three_dies_once_at_any_instant(at: World, mode: str) -> None:
    """Whoever asks, approves and carries on, each killed once: each instant of one with each of another."""
    planned, decided, carried = 2 * len(PLANNED), 2 * len(DECIDED["approve"]), 2 * len(CARRIED_ON)
    ways = [(a, (a + c) % decided, c) for a in range(planned) for c in range(carried)]

    def one(number: int) -> None:
        planning, deciding, carrying = ways[number]
        invoice = f"INV-{number}"
        at.dies("file", planning, invoice=invoice, mode=mode)
        assert at.does("file", invoice=invoice, mode=mode)["code"] == "waiting_for_approval"
        action = at.the_action(invoice)
        shown = {"action_id": action.id, "fingerprint": action.fingerprint, "decision": "approve", "mode": mode}
        at.dies("decide", deciding, **shown)
        assert at.does("decide", **shown)["state"] == "approved"
        at.dies("file", carrying, invoice=invoice, mode=mode)
        check_done(at, invoice, at.call(invoice))

    each(len(ways), one)
