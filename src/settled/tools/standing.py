"""Where a call stands: the values that pass between the steps of the protocol, and the pure decision that makes the
first one.

Owns `stand`: given a planned call and the action that the ledger answered, what follows. No effects here.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from settled.state.canonical import differing, idempotency_key
from settled.state.machine import OPEN, State
from settled.state.model import Action, Claim, Met, Plan
from settled.state.secrets import HIDDEN
from settled.tools.contract import Contract
from settled.tools.messages import Code
from settled.tools.policy import BY_POLICY, PlannedAction, Policy

ORPHANED = "its owner stopped before it recorded an outcome"
"""Why the outcome of an action is unknown whose owner's time is up."""

RECONCILER_GRACE_S = 2.0
"""How long after a due query another caller concludes that whoever was reconciling has died."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool, ready to be planned. `owner` is new for each call: a row with it was written by this call.

    `is_orphan` says whether a running action's owner is known to be dead (a session that holds the thread's lock
    knows); `wait_s` bounds the wait for an action that another caller has in flight. `take_up` returns the call of an
    action that stands in the ledger already, which is then `taken_up`; `instead_of` is the action that a person changed
    into it.
    """

    contract: Contract
    values: Mapping[str, object]
    plan: Plan
    wait_s: float
    language: str
    random: Callable[[], float]
    planned: PlannedAction
    take_up: "Callable[[Call, Action], Call]"
    is_orphan: Callable[[Action], bool] = lambda _: False
    policies: tuple[Policy, ...] = ()
    taken_up: Action | None = None
    instead_of: Action | None = None

    def anew(self) -> "Call":
        """Return the call without its decision, which has met an action that never left; its intent still binds it."""
        return replace(self, plan=replace(self.plan, decision=None))

    def as_occurrence(self, occurrence: int) -> Plan:
        """Return the plan of this call as the given occurrence of its intent."""
        if occurrence == self.plan.occurrence:
            return self.plan
        key = idempotency_key(self.plan.intent, occurrence)
        return replace(self.plan, occurrence=occurrence, idempotency_key=key)


@dataclass(frozen=True, slots=True)
class Granted:
    """This caller may run the action now: `claim` is its right to write."""

    action: Action
    claim: Claim


@dataclass(frozen=True, slots=True)
class Waiting:
    """The action waits for a person's approval."""

    action: Action


@dataclass(frozen=True, slots=True)
class Changed:
    """A person has changed the action of this call: `call` is that of the changed one, to be begun in its place."""

    call: Call


@dataclass(frozen=True, slots=True)
class Unsettled:
    """Nobody knows the outcome, and this caller is to reconcile. `took_over`: its attempts began with somebody else."""

    action: Action
    took_over: bool


@dataclass(frozen=True, slots=True)
class Answered:
    """The end of the call: how the answer is classed, and the action that it speaks of."""

    code: Code
    action: Action
    replayed: bool = False
    reason: str | None = None
    field: str | None = None
    differing: Mapping[str, tuple[object, object]] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Again:
    """The intent's earlier action does not bind this call: plan it as the next occurrence."""

    occurrence: int


@dataclass(frozen=True, slots=True)
class InFlight:
    """Another caller is running or reconciling it. `same_decision` as for Claimable."""

    action: Action
    same_decision: bool


@dataclass(frozen=True, slots=True)
class Orphan:
    """It says running, but its owner's time is up. `same_decision` as for Claimable."""

    action: Action
    same_decision: bool


@dataclass(frozen=True, slots=True)
class Claimable:
    """It is approved, and nobody has claimed it yet. `same_decision`: by this call's own decision, so that the call is
    no duplicate of it.
    """

    action: Action
    same_decision: bool


@dataclass(frozen=True, slots=True)
class Overdue:
    """Nobody decided in time."""

    action: Action


@dataclass(frozen=True, slots=True)
class Superseded:
    """A person has changed it: another action has taken its place."""

    action: Action


@dataclass(frozen=True, slots=True)
class Replaced:
    """The intent's action has not run, and this call has other arguments: it takes its place, with a verdict of its
    own.
    """

    action: Action


@dataclass(frozen=True, slots=True)
class Compared:
    """The intent's action has other arguments because a person changed it: perhaps the call is for the original."""

    action: Action


Standing = Granted | Waiting | Unsettled | Answered
First = Standing | Again | InFlight | Orphan | Claimable | Overdue | Superseded | Replaced | Compared


def stand(call: Call, met: Met) -> First:
    """Return what follows for `call` from the action that it met."""
    first = _stand(call, met)
    if isinstance(first, Again) and call.plan.business_key is not None and met.action.state in _HOLDS_BUSINESS_KEY:
        return _taken(met.action)
    return first


_HOLDS_BUSINESS_KEY = OPEN | {State.SUCCEEDED}
"""As the unique index on the business key says: in these states nobody else gets it, however old the action is."""


def _stand(call: Call, met: Met) -> First:
    action = met.action
    if met.way == "business":
        return _taken(action)
    if met.way == "born" and action.state is State.CANCELLED:
        return Answered(closed_code(action), action, reason=action.reason)
    if call.plan.repeat_of is not None and action.repeat_of != call.plan.repeat_of:
        return Again(action.occurrence + 1)  # before the arguments: a repeat is the way on from a conflict
    if met.way != "decision" and action.fingerprint != call.plan.fingerprint:
        return _other_arguments(call, action)
    if met.way == "intent" and not action.in_window:
        return Again(action.occurrence + 1)
    return by_state(call, action, same_decision=met.way != "intent")


def by_state(call: Call, action: Action, *, same_decision: bool) -> First:
    """Return what follows from the state of the call's own action."""
    match action.state:
        case State.PLANNED:
            return Overdue(action) if action.asking_is_over else Waiting(action)
        case State.APPROVED:
            return Claimable(action, same_decision)
        case State.RUNNING:
            return _running(call, action, same_decision)
        case State.UNKNOWN:
            return _unknown(call, action, same_decision)
        case State.SUCCEEDED:
            code = Code.SUCCEEDED if same_decision else Code.DUPLICATE
            return Answered(code, action, replayed=True)
        case State.COMPENSATION_PENDING | State.COMPENSATED:  # it was done, and the answer says that it is undone
            return Answered(Code.DUPLICATE, action, replayed=True)
        case State.FAILED:
            return _failed(call, action, same_decision)
        case State.CANCELLED:
            return _cancelled(call, action, same_decision)
        case _:
            assert_never(action.state)


def claim_of(action: Action, owner: str) -> Claim:
    """Return the claim that the action's present fencing token stands for."""
    return Claim(action.tenant, action.id, action.fencing_token, owner)


def _running(call: Call, action: Action, same_decision: bool) -> First:
    if action.owner == call.plan.owner:
        return Granted(action, claim_of(action, call.plan.owner))
    is_orphan = action.lease_is_over or call.is_orphan(action)
    return Orphan(action, same_decision) if is_orphan else InFlight(action, same_decision)


def _unknown(call: Call, action: Action, same_decision: bool) -> First:
    if action.escalated_at is not None:
        if call.contract.query is not None:  # it may be able to tell by now, and asking changes nothing
            return Unsettled(action, took_over=True)
        return Answered(Code.MANUAL_REVIEW, action, replayed=True, reason=action.reason)
    due = action.next_query_at or action.now
    overdue = (action.now - due).total_seconds() > RECONCILER_GRACE_S
    if overdue or call.is_orphan(action):
        return Unsettled(action, took_over=True)
    return InFlight(action, same_decision)


WITHDRAWN = "withdrawn"
"""The code of an action that was taken back before anybody decided; the model is told so under `denied`."""


STOPPED = "stopped"
"""The evidence of an action that its caller stopped before it was sent: it is certain that nothing happened."""


def was_stopped(action: Action) -> bool:
    """Whether a call that comes again may begin anew: the one before it stopped before anything was sent."""
    return action.state is State.FAILED and action.evidence == STOPPED


def closed_code(action: Action) -> Code:
    """Return the code of an action that failed or was cancelled."""
    if action.code == WITHDRAWN:
        return Code.DENIED
    return Code(action.code or (Code.REJECTED if action.state is State.FAILED else Code.DENIED))


def _cancelled(call: Call, action: Action, same_decision: bool) -> First:
    """A person's "no" binds the intent. What nobody decided, or a policy or a full budget stopped, may be asked for
    anew by a new call: a policy is asked again then, and its second "no" is the first one's answer.
    """
    if action.superseded_by is not None:
        return Superseded(action)
    answered = Answered(closed_code(action), action, replayed=True, reason=action.reason)
    again = Again(action.occurrence + 1)
    if same_decision:
        return answered
    if action.code in (Code.EXPIRED, WITHDRAWN):
        return again
    if action.code == Code.BUDGET_EXCEEDED:
        return again if _has_cooled(call, action) else answered
    if action.approver == BY_POLICY and call.plan.denied is None:
        return again
    return answered


def _has_cooled(call: Call, action: Action) -> bool:
    return (action.now - (action.settled_at or action.now)).total_seconds() > call.contract.deadline_s


def _failed(call: Call, action: Action, same_decision: bool) -> First:
    """A failed action did nothing, so only its own reason binds: a service that was away may be asked again a while
    later.
    """
    if action.code == Code.UNAVAILABLE and not same_decision and _has_cooled(call, action):
        return Again(action.occurrence + 1)
    return Answered(closed_code(action), action, replayed=True, reason=action.reason)


def _other_arguments(call: Call, action: Action) -> First:
    """Same intent, other arguments: a conflict, unless the earlier one surely did nothing and a changed call may work.

    One that waits for a person, or for whoever carries on what he approved, has done nothing yet: a changed argument
    voids its approval, and the changed call is judged anew.
    """
    did_nothing = action.state is State.CANCELLED or (action.state is State.FAILED and bool(action.may_change))
    if did_nothing or not action.in_window:
        return Again(action.occurrence + 1)
    if action.supersedes is not None:
        return Compared(action)
    has_not_run = action.state in (State.PLANNED, State.APPROVED)
    return Replaced(action) if has_not_run and call.plan.denied is None else conflict(call, action)


def conflict(call: Call, action: Action) -> Answered:
    """Return the answer to a call for the same intent with other arguments."""
    return Answered(Code.CONFLICT, action, differing=_shown(call, action))


def _shown(call: Call, action: Action) -> dict[str, tuple[object, object]]:
    """Name the arguments that make the difference, as each field's own type compares them. A secret's stored form is
    new each time and cannot be compared: it is named where nothing else differs.
    """
    c, stored, sent = call.contract, action.arguments, json_values(call.plan.arguments)
    ours, theirs = (
        {name: c.as_argument(name, value) for name, value in values.items() if name not in c.secrets}
        for values in (stored, sent)
    )
    pairs = differing(ours, theirs, c.annotations)
    if not pairs:
        return dict.fromkeys(sorted(c.secrets), (HIDDEN, HIDDEN))
    return {name: (stored.get(name), sent.get(name)) for name in pairs}


def json_values(arguments: str) -> dict[str, object]:
    """Return stored arguments as plain JSON."""
    values: dict[str, object] = json.loads(arguments)
    return values


def _taken(action: Action) -> Answered:
    """Another conversation's action holds the business key."""
    if action.state is State.SUCCEEDED:
        return Answered(Code.REJECTED, action, replayed=True, reason="it was done already")
    if action.state in (State.PLANNED, State.APPROVED):
        reason = "the same was asked for elsewhere, and waits for a decision there"
        return Answered(Code.REJECTED, action, replayed=True, reason=reason)
    reason = "it is being undone" if action.state is State.COMPENSATION_PENDING else "it is being done already"
    return Answered(Code.IN_PROGRESS, action, replayed=True, reason=reason)
