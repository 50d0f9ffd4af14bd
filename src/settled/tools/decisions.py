"""What a person decides about an action that has not run, as steps: approve, reject or edit it, or take it back.

Owns who may decide, and what a second decision hears. Nothing here runs an action: a decision is written into the
ledger, and whoever carries the conversation on finds it there. The subtle thing: between reading the action and writing
the decision anybody may decide; so the statement decides, and who comes second is told what was decided first.
"""

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

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
from settled.state.model import Action, Approval
from settled.tools.approval import expire, judged
from settled.tools.effects import Steps, ask
from settled.tools.messages import Code
from settled.tools.policy import BY_POLICY
from settled.tools.standing import WITHDRAWN, Call

MAX_BY_CHARS = 200
"""A name that people read in a timeline."""

LEAST_FINGERPRINT_CHARS = 12
"""Of the hex digits: so many are shown where the whole one is too long to read, and 48 bits name one action."""


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

    def __post_init__(self) -> None:
        if not isinstance(self.arguments, Mapping):
            raise ContractError("Edit takes a mapping of arguments to their new values")


Decision = Approve | Reject | Edit


@dataclass(frozen=True, kw_only=True)
class Decider:
    """Who decides, as the host vouches for it: a model has no way to be one."""

    by: str
    roles: Sequence[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.roles, str) or not isinstance(self.roles, Sequence):  # of which any part would be a role
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
    """Return a name without what the eye does not tell apart: capitals, accents, blanks, signs that show nothing."""
    seen = (c for c in unicodedata.normalize("NFKD", name).casefold() if c not in _FILLERS)
    return " ".join("".join(c for c in seen if unicodedata.category(c) not in ("Mn", "Cf")).split())


_FILLERS = frozenset("\u115f\u1160\u3164\uffa0\u2800")
"""Letters and signs that are blank by themselves."""


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
    if action.compensates is not None:  # what it undoes is bound to this very action, and would be undone by both
        raise NotPermitted(f"{action.id} undoes {action.compensates}: approve it as it is, or reject it")
    if call.plan.fingerprint == action.fingerprint:
        raise InvalidArguments("arguments", "are the same as before: approve it, or change something")
    call = yield from judged(call)
    if call.plan.denied is not None:
        raise NotPermitted(f"the policy denies the edited action: {call.plan.denied[1]}")
    occurrence = yield from _free_occurrence(call, action)
    plan = replace(call.as_occurrence(occurrence), supersedes=action.id, decision=None, is_claimed_later=True)
    if plan.asking is not None:
        plan = replace(plan, asking=json.dumps({**json.loads(plan.asking), "editor": who.by}))
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
        if who.is_named(asking.get("editor")):
            raise NotPermitted(f"{who.by} changed it, and somebody else must decide")
    named = [str(name) for name in asking.get("approvers", ())]
    if named and not any(who.is_named(name) or name in who.roles for name in named):
        raise NotPermitted(f"{who.by} may not decide: it takes {' or '.join(named)}, by that name or with that role")


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
        raise AlreadyDecided(f"nobody decided on {action.id} in time: it expired at {instant(action.asked_until)}")


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


_TRIGGER_OF = {Approve: Trigger.APPROVE, Reject: Trigger.DENY}
"""What can be said twice. A second edit of an action is another edit, and comes too late."""


def _decided_before(action: Action, decision: Decision, who: Decider) -> Steps[Action]:
    """Return the action if this person has decided the same already; otherwise say what was decided first."""
    tickets = yield from ask(ledger.approvals_of(action.tenant, action.id))
    first = next((ticket for ticket in reversed(tickets) if ticket.decision is not None), None)
    if first is None:
        raise AlreadyDecided(f"{action.id} is {action.state}: no person is asked about it")
    if first.decision == _TRIGGER_OF.get(type(decision)) and who.is_named(first.decided_by):
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
    return f"{said_so} at {instant(ticket.decided_at)}{note}: the first decision on {ticket.action_id} stands"


def instant(at: datetime | None) -> str:
    """Return an instant as it stands in a sentence."""
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


def check_decision(decision: object) -> Decision:
    """Return a decision; ContractError for anything else."""
    if isinstance(decision, Approve | Reject | Edit):
        return decision
    raise ContractError(f"a decision is Approve(), Reject() or Edit(arguments), not {decision!r}")
