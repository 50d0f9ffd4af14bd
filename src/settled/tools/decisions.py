"""What a person decides about an action, as steps: approve, reject or edit what waits; resolve what nobody else can.

Owns who may decide, and what a second decision hears. Nothing here runs an action: a decision is written into the
ledger, and whoever carries the conversation on finds it there. The subtle thing: between reading the action and writing
the decision anybody may decide; so the statement decides, and who comes second is told what was decided first.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, assert_never

from settled.state import ledger
from settled.state.errors import (
    AlreadyDecided,
    ContractError,
    DuplicateAction,
    InvalidArguments,
    NotFound,
    NotPermitted,
    ShownOtherwise,
)
from settled.state.machine import State, Trigger
from settled.state.model import Action, Approval, Claim
from settled.tools.approval import expire, judged
from settled.tools.contract import Contract
from settled.tools.effects import Steps, ask
from settled.tools.messages import Code
from settled.tools.policy import BY_POLICY
from settled.tools.standing import ORPHANED, WITHDRAWN, Call, claim_of
from settled.tools.storable import storable

MAX_BY_CHARS = 200
"""A name that people read in a timeline."""

LEAST_FINGERPRINT_CHARS = 12
"""Of the hex digits: so many are shown where the whole one is too long to read, and 48 bits name one action."""

UNKNOWN_SETTLE_WINDOW_S = 15.0
"""Where the tool, whose contract says it, is not at hand: as long as a contract says by default."""

_NO_TOOLS: Mapping[str, Contract] = MappingProxyType({})


@dataclass(frozen=True)
class Approve:
    """It may run, once, with exactly these arguments.

    `round` names the request that is answered (`Approval.round`): then a repeat of this answer that comes after the
    permission has ended, and been asked for again, is none.
    """

    note: str | None = None
    round: int | None = None


@dataclass(frozen=True)
class Reject:
    """It may not run; `note` is told to the model and the user."""

    note: str | None = None


@dataclass(frozen=True)
class Edit:
    """It ends, and a new action with these arguments begins, which its policy judges anew. Arguments that are left out
    stay as they were.
    """

    arguments: Mapping[str, object] = field(repr=False)
    note: str | None = None


Decision = Approve | Reject | Edit


@dataclass(frozen=True)
class Happened:
    """The remote side did it: `receipt` is its reference."""

    receipt: str | None = None
    result: object = None


@dataclass(frozen=True)
class DidNotHappen:
    """The remote side did not do it, and will not."""


@dataclass(frozen=True)
class AskAgain:
    """The remote side may be able to tell by now."""


Resolution = Happened | DidNotHappen | AskAgain


@dataclass(frozen=True, kw_only=True)
class Decider:
    """Who decides, as the host vouches for it: a model has no way to be one."""

    by: str
    roles: Sequence[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.roles, str):  # of which any part would be a role
            raise InvalidArguments("roles", 'must be several names, as in ("supervisor",)')
        _check_name("by", self.by)
        for role in self.roles:
            _check_name("roles", role)
        if self.by.casefold().split(":")[0].strip() == BY_POLICY:
            raise InvalidArguments("by", f"cannot be {BY_POLICY!r}: that is what the ledger calls the author's policy")

    def is_named(self, name: str | None) -> bool:
        """Whether this is the person called `name`; capitals, blanks and ways to write a letter make no other one."""
        return name is not None and _folded(self.by) == _folded(name)


def _check_name(field: str, name: object) -> None:
    if not (isinstance(name, str) and name.strip() and name.isprintable() and len(name) <= MAX_BY_CHARS):
        raise InvalidArguments(field, f"must be a name of at most {MAX_BY_CHARS} printable characters")


def _folded(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def decide(
    tenant: str,
    action_id: str,
    decision: Approve | Reject,
    who: Decider,
    *,
    fingerprint: str,
    thread_id: str | None = None,
) -> Steps[Action]:
    """Approve or reject an action that waits; returns it as it stands then.

    Raises NotFound (also for an action of another thread, where `thread_id` is given), ShownOtherwise, NotPermitted,
    and AlreadyDecided for a decision that comes second or too late. The same decision by the same person again is none.
    """
    check_shown(fingerprint)
    action = yield from seen(tenant, action_id, fingerprint, thread_id=thread_id)
    if action.state is State.PLANNED:
        yield from _check_open(action, who)
        moved = yield from ask(_deciding(action, decision, who))
        if moved is not None:
            return moved
        action = yield from seen(tenant, action_id, fingerprint)
        if action.state is State.PLANNED:  # its time ended at this moment
            yield from _check_open(action, who)
    return (yield from _decided_before(action, decision, who))


def edit(call: Call, action: Action, decision: Edit, who: Decider) -> Steps[Action]:
    """End an action that waits, and begin its edited form, `call`; returns the new action.

    Raises as `decide` does, InvalidArguments where nothing was changed, NotPermitted where the policy denies the edited
    form, DuplicateAction where there is such an action already.
    """
    if action.state is not State.PLANNED:
        return (yield from _decided_before(action, decision, who))
    yield from _check_open(action, who)
    if call.plan.fingerprint == action.fingerprint:
        raise InvalidArguments("arguments", "are the same as before: approve it, or change something")
    call = yield from judged(call)
    if call.plan.denied is not None:
        raise NotPermitted(f"the policy denies the edited action: {call.plan.denied[1]}")
    occurrence = yield from _free_occurrence(call, action)
    plan = replace(call.as_occurrence(occurrence), supersedes=action.id, decision=None, is_claimed_later=True)
    reason, code = f"changed by {who.by}", str(Code.CHANGED_BY_PERSON)
    new = yield from ask(ledger.supersede(action, plan, editor=who.by, code=code, reason=reason, note=decision.note))
    if new is not None:
        return new
    now = yield from seen(action.tenant, action.id, action.fingerprint)
    return (yield from _decided_before(now, decision, who))


def withdraw(tenant: str, action_id: str, who: Decider, *, note: str | None = None) -> Steps[Action]:
    """Take back an action that has not run; returns it. AlreadyDecided where it has, or has ended."""
    action = yield from seen(tenant, action_id)
    trigger, reason = Trigger.WITHDRAW, note or ""
    query = ledger.cancel(tenant, action_id, trigger=trigger, code=WITHDRAWN, reason=reason, actor=who.by, note=note)
    moved = yield from ask(query)
    if moved is not None:
        return moved
    action = yield from seen(tenant, action_id)
    if action.code == WITHDRAWN:
        return action
    raise AlreadyDecided(f"{action.id} is {action.state}, and cannot be taken back")


def resolve(
    tenant: str,
    action_id: str,
    resolution: Resolution,
    who: Decider,
    *,
    fingerprint: str,
    note: str | None = None,
    contracts: Mapping[str, Contract] = _NO_TOOLS,
) -> Steps[Action]:
    """Settle an action whose outcome nobody else can tell, by a person's word; or send it back to be asked about.

    Raises NotFound, ShownOtherwise, AlreadyDecided where its outcome is known, InvalidArguments for "it did not happen"
    while it may still take effect. What a person has said already may be said again. Of the `contracts` at hand, the
    tool's own says how long that is.
    """
    check_shown(fingerprint)
    action = yield from _unknown(tenant, action_id, fingerprint, contracts)
    if action.state is not State.UNKNOWN:
        return _said_before(action, resolution)
    moved = yield from ask(_resolving(action, resolution, who, note))
    if moved is not None:
        return moved
    now = yield from seen(tenant, action_id, fingerprint)
    return _said_before(now, resolution)


def _said_before(action: Action, resolution: Resolution) -> Action:
    """Return the action where a person has said the very same; AlreadyDecided where its outcome is another one."""
    by_person = action.evidence == "person"
    match resolution:
        case AskAgain() if action.state is State.UNKNOWN:
            return action
        case Happened(receipt=receipt) if by_person and (action.state, action.receipt) == (State.SUCCEEDED, receipt):
            return action
        case DidNotHappen() if by_person and action.state is State.FAILED:
            return action
        case _:
            raise AlreadyDecided(_outcome_known(action))


def seen(tenant: str, action_id: str, fingerprint: str | None = None, *, thread_id: str | None = None) -> Steps[Action]:
    """Read an action that a person speaks of; ShownOtherwise when it is not what was shown."""
    action = yield from ask(ledger.load(tenant, action_id))
    if action is None or thread_id not in (None, action.thread_id):
        raise NotFound(f"there is no action {action_id!r}")
    if fingerprint is not None and not _is_fingerprint(fingerprint, action):
        raise ShownOtherwise(f"{action.id} has the fingerprint {action.fingerprint}, and what was shown {fingerprint}")
    return action


def check_permitted(asking: Mapping[str, Any] | None, requester: str | None, who: Decider) -> None:
    """Raise NotPermitted unless this person may decide: the request says who may, and whether the requester may not."""
    asking = asking or {}
    if asking.get("four_eyes"):
        if requester is None or not _folded(requester):
            raise NotPermitted("somebody other than the requester must decide, and the action does not say who that is")
        if who.is_named(requester):
            raise NotPermitted(f"{who.by} asked for it, and somebody else must decide")
    named = [str(name) for name in asking.get("approvers", ())]
    if named and not any(who.is_named(name) or name in who.roles for name in named):
        raise NotPermitted(f"{who.by} may not decide: it takes {' or '.join(named)}")


def check_shown(fingerprint: object) -> None:
    """Raise ShownOtherwise for a decision that does not say what it is on: a host may have read None from a form."""
    if not isinstance(fingerprint, str):
        raise ShownOtherwise("the fingerprint of what was shown must be given with a decision")


def _is_fingerprint(shown: str, action: Action) -> bool:
    """Whether this is the action's fingerprint, or enough of its beginning."""
    digits = shown.removeprefix("sha256:")
    return len(digits) >= LEAST_FINGERPRINT_CHARS and action.fingerprint.removeprefix("sha256:").startswith(digits)


def _check_open(action: Action, who: Decider) -> Steps[None]:
    check_permitted(action.asking, action.requester, who)
    if action.asking_is_over and (yield from expire(action)) is not None:
        raise AlreadyDecided(f"nobody decided on {action.id} in time: it expired at {_instant(action.asked_until)}")


def _deciding(action: Action, decision: Approve | Reject, who: Decider) -> ledger.Query[Action | None]:
    match decision:
        case Approve(note=note, round=number):
            ttl_s = (action.asking or {}).get("ttl_s")
            valid_for_s = ttl_s if isinstance(ttl_s, int | float) else None
            return ledger.approve(
                action.tenant, action.id, fingerprint=action.fingerprint, approver=who.by, valid_for_s=valid_for_s,
                note=note, round=number,
            )  # fmt: skip
        case Reject(note=note):
            return ledger.cancel(
                action.tenant, action.id, trigger=Trigger.DENY, code=Code.DENIED, reason=note or "", actor=who.by,
                note=note,
            )  # fmt: skip


_TRIGGER_OF = {Approve: Trigger.APPROVE, Reject: Trigger.DENY, Edit: Trigger.SUPERSEDE}


def _decided_before(action: Action, decision: Decision, who: Decider) -> Steps[Action]:
    """Return the action if this person has decided the same already; otherwise say what was decided first."""
    tickets = yield from ask(ledger.approvals_of(action.tenant, action.id))
    first = next((ticket for ticket in reversed(tickets) if ticket.decision is not None), None)
    if first is None:
        raise AlreadyDecided(f"{action.id} is {action.state}: no person is asked about it")
    is_same = first.decision == _TRIGGER_OF[type(decision)] and not isinstance(decision, Edit)
    if is_same and who.is_named(first.decided_by):
        return action
    raise AlreadyDecided(said(first))


def said(ticket: Approval) -> str:
    """Return in a sentence what was decided, by whom, and when."""
    by = ticket.decided_by
    words = {
        "approve": f"{by} approved it",
        "deny": f"{by} rejected it",
        "supersede": f"{by} changed it" if by else "it was asked for anew with other arguments",
        "withdraw": f"{by} took it back" if by else "it was taken back",
        "expire": "nobody decided in time, and it expired",
    }
    said_so = words.get(ticket.decision or "", "it was decided")
    note = f" ({ticket.note})" if ticket.note else ""
    return f"{said_so} at {_instant(ticket.decided_at)}{note}: the first decision on {ticket.action_id} stands"


def _instant(at: datetime | None) -> str:
    return at.isoformat(sep=" ", timespec="seconds") if at else "an unknown time"


def _free_occurrence(call: Call, action: Action) -> Steps[int]:
    """Return the occurrence that the edited form is of its intent; DuplicateAction where that has been asked for
    already.
    """
    newest = yield from ask(ledger.newest(call.plan.tenant, call.plan.intent))
    if call.plan.repeat_of is None:
        for other in newest[1:]:  # what a denied repeat of it must not hide
            if other.id != action.id and other.in_window:
                raise DuplicateAction(f"the edited request is the one of {other.id} already, which is {other.state}")
    return newest[0].occurrence + 1 if newest else 0


def _unknown(tenant: str, action_id: str, fingerprint: str, contracts: Mapping[str, Contract]) -> Steps[Action]:
    """Read an action of which a person says what became of it; one whose owner's time is up becomes unknown now."""
    action = yield from seen(tenant, action_id, fingerprint)
    if action.state is State.RUNNING and action.lease_is_over:
        contract = contracts.get(action.tool)
        window_s = UNKNOWN_SETTLE_WINDOW_S if contract is None else contract.settle_window_s
        query = ledger.lose(_held(action), reason=ORPHANED, settle_window_s=window_s)
        action = (yield from ask(query)) or (yield from seen(tenant, action_id, fingerprint))
    return action


def _held(action: Action) -> Claim:
    """Return what a person holds: the right to write under the present token, and nobody's ownership."""
    return claim_of(action, "")


def _outcome_known(action: Action) -> str:
    if action.state is State.RUNNING:
        return f"{action.id} is running: its outcome will be known, or its lease ends at {_instant(action.lease_until)}"
    return f"{action.id} is {action.state}: there is nothing to resolve"


def _resolving(action: Action, resolution: Resolution, who: Decider, note: str | None) -> ledger.Query[Action | None]:
    held = _held(action)
    match resolution:
        case Happened(receipt=receipt, result=result):
            found = storable({"receipt": receipt} if result is None else result)
            return ledger.find(held, receipt=receipt, result=found, evidence="person", actor=who.by, note=note)
        case DidNotHappen():
            if action.in_flight_until is not None and action.now < action.in_flight_until:
                rule = f"it may still take effect until {_instant(action.in_flight_until)}: say so after that"
                raise InvalidArguments("resolution", rule)
            reason, code = note or "a person has checked that it did not happen", Code.UNAVAILABLE
            return ledger.fail(held, code=code, reason=reason, may_change=True, evidence="person", actor=who.by)
        case AskAgain():
            return ledger.ask_again(held, actor=who.by, note=note)
        case _:
            assert_never(resolution)


def check_decision(decision: object) -> Decision:
    """Return a decision; ContractError for anything else."""
    if isinstance(decision, Approve | Reject | Edit):
        return decision
    raise ContractError(f"a decision is Approve(), Reject() or Edit(arguments), not {decision!r}")


def check_resolution(resolution: object) -> Resolution:
    """Return a resolution; ContractError for anything else."""
    if isinstance(resolution, Happened | DidNotHappen | AskAgain):
        return resolution
    raise ContractError(f"a resolution is Happened(receipt), DidNotHappen() or AskAgain(), not {resolution!r}")
