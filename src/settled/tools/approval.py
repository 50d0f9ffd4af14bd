"""Approval in the protocol: the verdict of a policy, and what becomes of a ticket that is not used.

Steps that `settled.tools.protocol` takes between planning and claiming. The policy is asked once, before the action is
begun; its verdict is written down with it. Everything after that is judged by the ledger's clock in the statement that
moves the action: a request that nobody answered expires, a permission that nobody used lapses and is asked for again.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

from settled.state import ledger
from settled.state.machine import Trigger
from settled.state.model import Action, Plan, Reservation
from settled.tools.effects import Steps, Stopped, ask, judge
from settled.tools.messages import Code
from settled.tools.outcome import MAX_REASON_CHARS, one_line
from settled.tools.policy import BY_POLICY, Allow, Ask, Deny, PlannedAction, Remembering, Verdict
from settled.tools.standing import WITHDRAWN, Answered, Call

REPEATED = Ask("it is asked for once more, beside an earlier one")
"""A deliberate repeat is never silent, whatever the policy would allow."""


class Unjudged(Exception):
    """The caller stopped before the policy had answered: nothing was begun. (Its own signal travels on instead.)"""


def judged(call: Call) -> Steps[Call]:
    """Return the call with the verdict of its policies; of several, the first that does not allow decides."""
    verdict: Verdict = Allow()
    for policy in call.policies:
        if isinstance(policy, Remembering):
            verdict = yield from policy.weigh(call.planned)
        else:
            answer = yield from judge(policy, call.planned)
            if isinstance(answer, Stopped):
                raise Unjudged
            verdict = answer
        if not isinstance(verdict, Allow):
            break
    if call.plan.repeat_of is not None and isinstance(verdict, Allow):
        verdict = REPEATED
    return replace(call, plan=with_verdict(call.plan, verdict, call.planned))


def with_verdict(plan: Plan, verdict: Verdict, planned: PlannedAction) -> Plan:
    """Return the plan of an action as its policy wants it."""
    match verdict:
        case Allow(reason=given):
            reason = one_line(given, MAX_REASON_CHARS)
            return replace(plan, approver=f"{BY_POLICY}: {reason}" if reason else BY_POLICY, policy=reason)
        case Deny(reason=reason, is_forbidden=is_forbidden):
            code = Code.FORBIDDEN if is_forbidden else Code.DENIED
            return replace(plan, approver=BY_POLICY, denied=(str(code), reason))
        case Ask(ttl=ttl):
            asking = json.dumps(_asking(verdict, planned), ensure_ascii=True)
            return replace(plan, approver=None, asking=asking, ask_ttl_s=ttl.total_seconds())


def _asking(verdict: Ask, planned: PlannedAction) -> Mapping[str, object]:
    """Return what is frozen of a verdict; the requester's roles, since an edit of the action is judged by them too."""
    return {
        "reason": verdict.reason,
        "scope": verdict.scope or planned.tool,
        "ttl_s": verdict.ttl.total_seconds(),
        "approvers": list(verdict.approvers),
        "four_eyes": verdict.four_eyes,
        "roles": sorted(planned.roles),
    }


def reservations(call: Call, action: Action) -> list[Reservation]:
    """Return what a claim of this action takes of budgets, and notes for policies that look back. It counts for whoever
    asked for it, and not for who carries it on.
    """
    planned = replace(call.planned, requester=action.requester)
    noted = [policy.reservation(planned) for policy in call.policies if isinstance(policy, Remembering)]
    return [*(budget.reservation(planned) for budget in call.contract.budgets), *noted]


def expire(action: Action) -> Steps[Answered | None]:
    """End a request that nobody answered in time; None: somebody did, at the last moment."""
    reason = "nobody decided in time"
    query = ledger.cancel(action.tenant, action.id, trigger=Trigger.EXPIRE, code=Code.EXPIRED, reason=reason)
    moved = yield from ask(query)
    return None if moved is None else Answered(Code.EXPIRED, moved)


def supersede(action: Action) -> Steps[Action | None]:
    """End what has not run, since the same is asked for with other arguments; None: it was claimed meanwhile."""
    trigger, reason = Trigger.SUPERSEDE, "it was asked for anew with other arguments"
    query = ledger.cancel(action.tenant, action.id, trigger=trigger, code=WITHDRAWN, reason=reason)
    return (yield from ask(query))


def lapse(action: Action) -> Steps[Action | None]:
    """Ask again for what was permitted, and not run until the permission's end."""
    return (yield from ask(ledger.lapse(action.tenant, action.id)))


def over_budget(call: Call, action: Action) -> Steps[Answered | None]:
    """End an approved action for which there is no room; None: there is, or somebody moved it."""
    reason = yield from _no_room(call, action)
    if reason is None:
        return None
    code = Code.BUDGET_EXCEEDED
    query = ledger.cancel(action.tenant, action.id, trigger=Trigger.WITHDRAW, code=code, reason=reason)
    moved = yield from ask(query)
    return None if moved is None else Answered(code, moved, reason=reason)


def _no_room(call: Call, action: Action) -> Steps[str | None]:
    for one in reservations(call, action):
        if one.limit is None:
            continue
        used = yield from ask(ledger.used(call.plan.tenant, one.budget, one.window_s))
        if used + one.amount > one.limit:
            return f"{_plain(used)} of {_plain(one.limit)} are used, and {_plain(one.amount)} more would be needed"
    return None


def _plain(amount: Decimal) -> str:
    return f"{amount.normalize():f}"
