"""THE file: one action from plan to settle, to be read from top to bottom.

    perform = plan ─▶ run ─▶ (reconcile ─▶ settle ─▶ run)* ─▶ answer

Each step is a generator that yields effects (`settled.tools.effects`) and returns where the call stands. The nodes of
the LangGraph engine are these same functions. The rules: the ledger is committed before the body is called; a lost
outcome is unknown and never sent again before the remote side was asked; a stale owner's write moves nothing.

There is no `finally`, no broad `except` and no context manager across a yield: a killed process runs none of them.
"""

from dataclasses import replace
from typing import assert_never

from settled.state import ledger
from settled.state.errors import InvalidArguments
from settled.state.machine import State
from settled.state.model import Action, Claim, Met
from settled.tools import reconcile as reconciling
from settled.tools.approval import expire, judged, lapse, over_budget, reservations, supersede
from settled.tools.contract import Contract
from settled.tools.effects import Steps, Stopped, ask, invoke, sleep
from settled.tools.messages import Code
from settled.tools.outcome import (
    AttemptOutcome,
    Conflict,
    Forbidden,
    Invalid,
    Refused,
    Rejected,
    Succeeded,
    Unknown,
    Unreadable,
)
from settled.tools.reconcile import Finding, Left, ManualReview, Matched, Moved, Resend, StillManual
from settled.tools.recording import answer, load, messages_of, settlement, write
from settled.tools.standing import (
    ORPHANED,
    STOPPED,
    Again,
    Answered,
    Call,
    Changed,
    Claimable,
    Compared,
    First,
    Granted,
    InFlight,
    Orphan,
    Overdue,
    Replaced,
    Standing,
    Superseded,
    Unsettled,
    Waiting,
    by_state,
    claim_of,
    conflict,
    stand,
    was_stopped,
)
from settled.tools.storable import storable

RACES = 10
"""A plan that meets nothing it can see lost a race by microseconds; more than a few in a row means that something is
wrong.
"""

MAX_EDITS = 50
"""Of one action, each by a person: more is no conversation any more."""

FIRST_POLL_S, LAST_POLL_S = 0.05, 0.5
"""While another caller is in flight: soon at first, since most calls are short, then gently."""


def perform(call: Call) -> Steps[tuple[Call, Answered | Waiting]]:
    """Carry one call to its answer; the call that it is for is another one where a person has changed the action."""
    call, standing = yield from begin(call)
    while True:
        match standing:
            case Granted():
                standing = yield from run(call, standing)
            case Unsettled():
                finding = yield from reconciling.reconcile(call, standing)
                standing = yield from settle(call, finding)
            case Answered() | Waiting():
                return call, standing
            case _:
                assert_never(standing)


def begin(call: Call) -> Steps[tuple[Call, Standing]]:
    """Plan a call, and follow what people have changed its action into."""
    for _ in range(MAX_EDITS):
        standing = yield from plan(call)
        if not isinstance(standing, Changed):
            return call, standing
        call = standing.call
    raise AssertionError(f"{call.contract.name}: the action was changed {MAX_EDITS} times, one after the other")


def plan(call: Call) -> Steps[Standing | Changed]:
    """Begin the call's action and, where no person is asked, claim it in the same commit; or meet the one that
    exists.

    The policy is asked where the call's decision has met no action yet, and never again for the same decision.
    """
    if call.taken_up is not None:
        return (yield from _meet(call, (yield from _now(call, call.taken_up))))
    if call.plan.repeat_of is not None:
        yield from _check_repeat(call, call.plan.repeat_of)
    if call.policies and call.plan.decision is not None:
        known = yield from ask(ledger.known(call.plan.tenant, call.plan.decision))
        if known is not None and not was_stopped(known):
            return (yield from _follow(call, stand(call, Met("decision", known))))
    if call.policies or call.plan.repeat_of is not None:
        call = yield from judged(call)
    return (yield from _follow(call, (yield from _begun_or_met(call))))


def run(call: Call, granted: Granted) -> Steps[Standing]:
    """Call the body, again while it is refused, and settle what came of it."""
    action, claim = granted.action, granted.claim
    while True:
        outcome = yield from invoke(action, claim)
        if not isinstance(outcome, Refused):
            return (yield from _record(call, action, claim, outcome))
        next_attempt = yield from _back_off(call, action, claim, outcome)
        if not isinstance(next_attempt, Action):
            return next_attempt
        action = next_attempt


def stop(call: Call, granted: Granted) -> Steps[Standing]:
    """Write down that the caller stopped before the body was called, as `run` does where it is told so."""
    return (yield from _record(call, granted.action, granted.claim, Stopped(begun=False)))


def settle(call: Call, finding: Finding) -> Steps[Standing]:
    """Write down what reconciliation found: it happened, it may be sent again, or a person must decide."""
    claim = claim_of(finding.action, call.plan.owner)
    match finding:
        case Matched(receipt=receipt, result=result):
            messages = yield from messages_of(call.contract, finding.action, receipt, result)
            text = storable(result)
            query = ledger.find(
                claim,
                receipt=receipt,
                result=text,
                evidence="query",
                messages=messages,
                posts=call.contract.emits is not None,
            )
            action, mine = yield from write(claim, query, State.SUCCEEDED)
            return Answered(Code.SUCCEEDED, action, replayed=not mine)
        case Resend():
            return (yield from _release(call, claim, finding))
        case ManualReview(reason=reason, detail=detail):
            moved = yield from ask(ledger.escalate(claim, reason=reason, detail=detail))
            action = moved or (yield from load(claim))
            return Answered(Code.MANUAL_REVIEW, action, reason=reason) if moved else (yield from _rejoin(call, action))
        case Moved(action=action):
            return (yield from _rejoin(call, action))
        case Left(action=action):
            return Answered(Code.UNKNOWN, action, reason=action.reason)
        case StillManual(action=action):
            return Answered(Code.MANUAL_REVIEW, action, replayed=True, reason=action.reason)
        case _:
            assert_never(finding)


def late(contract: Contract, action: Action, claim: Claim, outcome: AttemptOutcome) -> Steps[None]:
    """Record the reply of a body that came back after its timeout: it settles its own attempt, or stays as evidence."""
    match outcome:
        case Rejected() | Invalid() | Forbidden() | Conflict() if _is_unproved_repeat(contract, claim):
            return  # a "no" to a repeat, as in `_doubt`: it stays unknown
        case Succeeded() | Rejected() | Invalid() | Forbidden() | Conflict():
            query, state, _ = yield from settlement(contract, action, claim, outcome)
            yield from write(claim, query, state)
        case Refused() | Unknown():
            return  # reconciliation is under way, and this adds nothing that it may rely on


def _begun_or_met(call: Call) -> Steps[First]:
    """Plan the call until an action of it has begun, or one that binds it is met."""
    occurrence, unseen, has_replaced, races = call.plan.occurrence, 0, False, 0
    while races < RACES:
        races += 1
        met = yield from ask(ledger.plan(call.as_occurrence(occurrence)))
        if met is None:
            # Once, a race; twice at one occurrence, a repeat has it which this call may not meet. One step at a time:
            # whoever takes the next one meanwhile is met there.
            occurrence, unseen, races = (occurrence + 1, 0, 0) if unseen else (occurrence, 1, races)
            continue
        if _is_over(met):
            yield from expire(met.action)  # a request that nobody answered is over: this call is another one
            continue
        if met.way in ("decision", "intent") and was_stopped(met.action):
            occurrence, unseen = met.action.occurrence + 1, 0
            call = call.anew() if met.way == "decision" else call
            continue
        match stand(call, met):
            case Again(occurrence=later):
                occurrence, unseen = later, 0
            case Replaced(action=action) if has_replaced:  # others ask for yet other arguments, at the same time
                return conflict(call, action)
            case Replaced(action=action):
                yield from supersede(action)  # or it has been claimed meanwhile: it is met anew
                has_replaced = True
            case first:
                return first
    raise AssertionError(f"{call.contract.name}: the ledger neither began nor showed an action {RACES} times")


def _is_over(met: Met) -> bool:
    """Whether another call's request was met, and nobody has answered it in time."""
    return met.way in ("intent", "business") and met.action.state is State.PLANNED and met.action.asking_is_over


def _check_repeat(call: Call, repeat_of: str) -> Steps[None]:
    query = ledger.same_intent(call.plan.tenant, repeat_of, call.plan.intent, call.plan.business_key)
    if not (yield from ask(query)):
        raise InvalidArguments("repeat_of", "names no earlier action of this tool for the same thing")


def _follow(call: Call, first: First) -> Steps[Standing | Changed]:
    """Turn what the call met into something that it can act on."""
    match first:
        case Claimable(action=action, same_decision=same_decision):
            return (yield from _claim(call, action, same_decision))
        case Overdue(action=action):
            return (yield from expire(action)) or (yield from _meet(call, (yield from _now(call, action))))
        case Superseded(action=action):
            asked_for = call.instead_of or action  # of several changes, the first: that is what the caller knows
            return Changed(call.take_up(replace(call, instead_of=asked_for), (yield from _successor(action))))
        case Compared(action=action):
            return (yield from _compare(call, action))
        case Orphan(action=action, same_decision=same_decision):
            return (yield from _take_over(call, action, same_decision))
        case InFlight(action=action, same_decision=same_decision):
            return (yield from _wait(call, action, same_decision))
        case Granted() | Waiting() | Unsettled() | Answered():
            return first
        case Again() | Replaced():
            raise AssertionError(f"{type(first).__name__} is for plan alone")
        case _:
            assert_never(first)


def _claim(call: Call, action: Action, same_decision: bool) -> Steps[Standing | Changed]:
    c, owner = call.contract, call.plan.owner
    spans = {"lease_s": c.lease_s, "deadline_s": c.deadline_s}
    taking = reservations(call, action)
    moved = yield from ask(ledger.claim(action.tenant, action.id, owner=owner, reservations=taking, **spans))
    if moved is not None:
        return Granted(moved, claim_of(moved, owner))
    now = yield from _now(call, action)
    if now.state is not State.APPROVED:
        return (yield from _meet(call, now, same_decision))
    if (asked_again := (yield from lapse(now))) is not None:
        return Waiting(asked_again)
    if (ended := (yield from over_budget(call, now))) is not None:
        return ended
    now = yield from _now(call, now)
    return (yield from _meet(call, now, same_decision))  # room appeared, or somebody moved it


def _now(call: Call, action: Action) -> Steps[Action]:
    return (yield from load(claim_of(action, call.plan.owner)))


def _successor(action: Action) -> Steps[Action]:
    """Return the action that a person changed this one into."""
    changed = yield from ask(ledger.load(action.tenant, action.superseded_by or ""))
    if changed is None:
        raise AssertionError(f"{action.id} was changed into {action.superseded_by}, which is gone from the ledger")
    return changed


def _compare(call: Call, action: Action) -> Steps[Standing | Changed]:
    """The call may ask for what a person has changed: then it is about the changed action, and no conflict with it."""
    original: Action | None = action
    for _ in range(MAX_EDITS):
        if original is None or original.supersedes is None:
            break
        original = yield from ask(ledger.load(action.tenant, original.supersedes))
        if original is not None and original.fingerprint == call.plan.fingerprint:
            return Changed(call.take_up(replace(call, instead_of=original), action))
    return conflict(call, action)


def _take_over(call: Call, action: Action, same_decision: bool) -> Steps[Standing | Changed]:
    """The owner's time is up. That does not make the action free to run: it makes its outcome unknown."""
    claim = claim_of(action, call.plan.owner)
    window_s = call.contract.settle_window_s
    query = ledger.lose(claim, reason=ORPHANED, settle_window_s=window_s, orphaned=call.is_orphan(action))
    moved = yield from ask(query)
    if moved is not None:
        return Unsettled(moved, took_over=True)
    return (yield from _meet(call, (yield from load(claim)), same_decision))


def _wait(call: Call, action: Action, same_decision: bool) -> Steps[Standing | Changed]:
    """Wait a bounded time for the caller that has it in flight, and say so when that is over."""
    waited, pause = 0.0, FIRST_POLL_S
    while waited < call.wait_s:
        if (yield from sleep(pause)) is not None:
            break
        waited, pause = waited + pause, min(pause * 2, LAST_POLL_S)
        action = yield from load(claim_of(action, call.plan.owner))
        first = _moved(call, action, same_decision)
        if not isinstance(first, InFlight):
            return (yield from _follow(call, first))
    code = Code.IN_PROGRESS if action.state is State.RUNNING else Code.UNKNOWN
    return Answered(code, action, replayed=True, reason=action.reason)


def _meet(call: Call, action: Action, same_decision: bool = True) -> Steps[Standing | Changed]:
    """Somebody else moved the action: go on from where it stands now."""
    return (yield from _follow(call, _moved(call, action, same_decision)))


def _moved(call: Call, action: Action, same_decision: bool) -> First:
    """Return what follows from where an action stands that this call has met. It binds the call in any case, also where
    it gave up long ago by a clock that jumped or a process that was frozen.
    """
    first = by_state(call, action, same_decision=same_decision)
    return by_state(call, action, same_decision=True) if isinstance(first, Again) else first


def _rejoin(call: Call, action: Action) -> Steps[Standing]:
    """As `_meet`, for an action that has been claimed: what has run once is changed by nobody."""
    standing = yield from _meet(call, action)
    if isinstance(standing, Changed):
        raise AssertionError(f"{action.id} ran, and was changed afterwards")
    return standing


def _back_off(call: Call, action: Action, claim: Claim, refused: Refused) -> Steps[Action | Standing]:
    """Write the next attempt down and wait for it; or give up where attempts or the deadline are used up."""
    c = call.contract
    delay_s = c.backoff.next_delay(action.attempt - 1, random=call.random, retry_after_s=refused.retry_after_s)
    if action.attempt < c.max_attempts:
        query = ledger.refuse(claim, attempt=action.attempt, reason=refused.reason, delay_s=delay_s, lease_s=c.lease_s)
        moved = yield from ask(query)
        if moved is None:
            now = yield from load(claim)
            sent_twice = now.fencing_token == claim.token and now.attempt == action.attempt + 1
            moved = now if sent_twice and now.state is State.RUNNING else None
            if (
                now.state is State.UNKNOWN
            ):  # it was taken over; that this attempt did nothing ends no attempts that are left
                return (yield from _rejoin(call, now))
        if moved is not None:
            if (yield from sleep(delay_s)) is None:
                return moved
            return (yield from _give_up(call, claim, "stopped before it was sent again", stopped=True))
    return (yield from _give_up(call, claim, refused.reason))


def _give_up(call: Call, claim: Claim, reason: str, *, stopped: bool = False) -> Steps[Standing]:
    """Nothing was sent, so nothing was done; unless an earlier attempt was never cleared up."""
    if _is_unproved_repeat(call.contract, claim):
        return (yield from _doubt(call, claim, reason, stopped=stopped))
    evidence = STOPPED if stopped else None
    query = ledger.fail(claim, code=Code.UNAVAILABLE, reason=reason, may_change=True, evidence=evidence)
    action, mine = yield from write(claim, query, State.FAILED)
    return answer(Code.UNAVAILABLE, action, mine, reason)


def _is_unproved_repeat(contract: Contract, claim: Claim) -> bool:
    """Whether this claim repeats an attempt of which nobody knows whether it took effect (an idempotent write without a
    query is repeated like that).
    """
    return claim.token > 1 and contract.query is None


def _doubt(call: Call, claim: Claim, reason: str, *, stopped: bool = False) -> Steps[Standing]:
    """A "no" to a repeat says nothing about the earlier attempt: deleting twice answers "not found". A person
    decides.
    """
    standing = yield from _lose(call, claim, reason, stopped=stopped)
    if not isinstance(standing, Unsettled):
        return standing
    why = f"an earlier attempt may have done it, and its repeat was answered: {reason}"
    return (yield from settle(call, ManualReview(standing.action, why, {})))


def _record(call: Call, action: Action, claim: Claim, outcome: AttemptOutcome | Stopped) -> Steps[Standing]:
    """Write down how an attempt ended."""
    match outcome:
        case Rejected() | Invalid() | Forbidden() | Conflict() if _is_unproved_repeat(call.contract, claim):
            return (yield from _doubt(call, claim, outcome.reason))
        case Succeeded() | Rejected() | Invalid() | Forbidden() | Conflict():
            query, state, code = yield from settlement(call.contract, action, claim, outcome)
            action, mine = yield from write(claim, query, state)
            reason = None if isinstance(outcome, Succeeded) else outcome.reason
            return answer(code, action, mine, reason, field=outcome.field if isinstance(outcome, Invalid) else None)
        case Stopped(begun=False):
            return (yield from _give_up(call, claim, "stopped before it was sent", stopped=True))
        case Stopped():
            return (yield from _lose(call, claim, "the caller stopped while it was in flight", stopped=True))
        case Unknown(reason=reason, cause=cause) if cause is Unreadable:
            return (yield from _doubt(call, claim, reason))
        case Unknown(reason=reason):
            return (yield from _lose(call, claim, reason))
        case Refused():
            raise AssertionError("a refused attempt is backed off, not recorded")
        case _:
            assert_never(outcome)


def _lose(call: Call, claim: Claim, reason: str, *, stopped: bool = False) -> Steps[Standing]:
    query = ledger.lose(claim, reason=reason, settle_window_s=call.contract.settle_window_s)
    action, mine = yield from write(claim, query, State.UNKNOWN, evidence=reason)
    if stopped:
        return Answered(Code.UNKNOWN, action, reason=reason)
    return Unsettled(action, took_over=False) if mine else (yield from _rejoin(call, action))


def _release(call: Call, claim: Claim, resend: Resend) -> Steps[Standing]:
    c, action = call.contract, resend.action
    over = not resend.took_over and action.deadline_at is not None and action.now >= action.deadline_at
    if over or action.attempt >= c.max_attempts:
        used_up = "its deadline has passed" if over else f"its {c.max_attempts} attempts are used up"
        finding = ManualReview(action, f"{resend.reason}, but {used_up}", {})
        return (yield from settle(call, finding))
    moved = yield from ask(
        ledger.release(
            claim,
            lease_s=c.lease_s,
            deadline_s=c.deadline_s if resend.took_over else None,
            proved_by_absence=resend.proved_by_absence,
            reason=resend.reason,
        )
    )
    if moved is not None:
        return Granted(moved, claim_of(moved, call.plan.owner))
    return (yield from _rejoin(call, (yield from load(claim))))
