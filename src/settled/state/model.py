"""The values that the ledger gives back; frozen, and made of nothing but rows.

The field order of `Action` is the column order of the fragment `_columns` in sql/queries.sql: a row becomes a value
by position.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Literal

from settled.state.machine import OPEN, State


@dataclass(frozen=True, slots=True)
class Action:
    """One row of the ledger, and `now`: the database's clock at the statement that read it."""

    tenant: str
    id: str
    thread_id: str
    tool: str
    contract_version: str
    idempotency_key: str
    fingerprint: str
    occurrence: int
    arguments: Mapping[str, object]
    summary: str
    requester: str | None
    correlation_id: str | None
    trace_context: str | None
    repeat_of: str | None
    planned_at: datetime
    window_until: datetime
    approver: str | None
    approved_until: datetime | None
    state: State
    fencing_token: int
    attempt: int
    owner: str | None
    started_at: datetime | None
    lease_until: datetime | None
    deadline_at: datetime | None
    in_flight_until: datetime | None
    queries: int
    next_query_at: datetime | None
    escalated_at: datetime | None
    code: str | None
    reason: str | None
    may_change: bool | None
    receipt: str | None
    result: object
    evidence: str | None
    settled_at: datetime | None
    asking: Mapping[str, object] | None
    asked_until: datetime | None
    supersedes: str | None
    superseded_by: str | None
    compensates: str | None
    compensated_by: str | None
    now: datetime

    @property
    def action_id(self) -> str:
        """The id, by the name that an outcome, an approval and JSON have for it."""
        return self.id

    @property
    def is_open(self) -> bool:
        """Whether the action can still act (an open action never leaves its window)."""
        return self.state in OPEN

    @property
    def in_window(self) -> bool:
        """Whether the same intent still means this action."""
        return self.is_open or self.window_until > self.now

    @property
    def lease_is_over(self) -> bool:
        """Whether the time of a running action's owner is up."""
        return self.lease_until is not None and self.lease_until <= self.now

    @property
    def asking_is_over(self) -> bool:
        """Whether the time in which a person could decide is up."""
        return self.asked_until is not None and self.asked_until <= self.now

    @property
    def approval_is_over(self) -> bool:
        """Whether the permission ended before it was used."""
        return self.approved_until is not None and self.approved_until <= self.now


@dataclass(frozen=True, slots=True)
class Approval:
    """A single-use ticket: asked for when an action is planned, decided by a person, spent by the claim.

    `valid_until` is the end of the request, and once it is approved the end of the permission. `decision` is the
    trigger that decided it ("approve", "deny", "supersede", "expire", "withdraw"), None while it is open. `approvers`
    are names or roles, none of them: anybody.
    """

    tenant: str
    action_id: str
    round: int
    thread_id: str
    tool: str
    fingerprint: str
    summary: str
    arguments: Mapping[str, object]
    scope: str
    reason: str
    approvers: tuple[str, ...]
    four_eyes: bool
    requester: str | None
    issued_at: datetime
    valid_until: datetime | None
    decision: str | None
    decided_by: str | None
    decided_at: datetime | None
    note: str | None
    spent_at: datetime | None
    now: datetime


@dataclass(frozen=True, slots=True)
class Event:
    """One line of an action's timeline; never changed once written."""

    at: datetime
    from_state: str | None
    to_state: str
    trigger: str
    attempt: int
    actor: str | None
    correlation_id: str | None
    trace_context: str | None
    detail: Mapping[str, object] | None


Way = Literal["born", "decision", "intent", "business"]
"""How a planned call met its action: it began it, or found it by decision, by intent or by business key."""


@dataclass(frozen=True, slots=True)
class Met:
    """The action that a planned call began or met."""

    way: Way
    action: Action


@dataclass(frozen=True, slots=True)
class Plan:
    """What is written when an action begins.

    It is claimed at once, unless `approver` is None (it waits for a person; `asking` says whom and how long),
    `is_claimed_later` (a budget is judged by the claim) or `denied` (code and reason) says otherwise.
    """

    tenant: str
    id: str
    thread_id: str
    tool: str
    contract_version: str
    intent: bytes
    occurrence: int
    idempotency_key: str
    fingerprint: str
    business_key: bytes | None
    decision: bytes | None
    arguments: str
    summary: str
    requester: str | None
    correlation_id: str | None
    trace_context: str | None
    repeat_of: str | None
    approver: str | None
    owner: str
    window_s: float
    lease_s: float
    deadline_s: float
    asking: str | None = None
    ask_ttl_s: float | None = None
    denied: tuple[str, str] | None = None
    policy: str | None = None
    supersedes: str | None = None
    is_claimed_later: bool = False
    settle_window_s: float | None = None
    emits: bool = False
    compensates: str | None = None

    @property
    def birth(self) -> State:
        """The state that it begins in."""
        if self.denied is not None:
            return State.CANCELLED
        if self.approver is None:
            return State.PLANNED
        return State.APPROVED if self.is_claimed_later else State.RUNNING


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a claim takes of a budget (hex) within its sliding window, if `limit` leaves room; without one it is only
    noted. It is given back when the action turns out not to have happened.
    """

    budget: str
    amount: Decimal
    window_s: float
    limit: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to write to an action: its fencing token and the owner that holds it."""

    tenant: str
    action_id: str
    token: int
    owner: str
