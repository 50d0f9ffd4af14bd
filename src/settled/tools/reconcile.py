"""The unknown branch of the protocol: ask the remote side, and conclude.

Never resends by itself: it returns a `Finding`, and `protocol.settle` writes it down. The subtle thing is that
"absent" proves nothing before `in_flight_until`: a delayed request may still arrive. So absence counts only when it
was said at least twice, and at least once by a query that was begun after that instant.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from settled.state import ledger
from settled.state.canonical import differing
from settled.state.errors import InvalidArguments
from settled.state.machine import State
from settled.state.model import Action
from settled.state.secrets import HIDDEN
from settled.tools.contract import Contract, Remote, Risk
from settled.tools.effects import Absent, Answer, Found, Inconclusive, Steps, Stopped, ask, probe, sleep
from settled.tools.standing import Call, Unsettled, claim_of

FIRST_WAIT_S, LAST_WAIT_S = 0.5, 8.0
"""Between queries: most lost replies are there at once; a replica that lags is asked gently."""

LEAST_QUERIES = 2
"""One "absent" may come from a replica that lags."""


@dataclass(frozen=True, slots=True)
class Matched:
    """It happened, and it is what was meant."""

    action: Action
    receipt: str | None
    result: object


@dataclass(frozen=True, slots=True)
class Resend:
    """It may be sent again under the same key."""

    action: Action
    reason: str
    took_over: bool
    proved_by_absence: bool


@dataclass(frozen=True, slots=True)
class ManualReview:
    """Only a person can decide."""

    action: Action
    reason: str
    detail: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Moved:
    """Somebody else moved the action meanwhile."""

    action: Action


@dataclass(frozen=True, slots=True)
class Left:
    """The caller stopped: it stays unknown, for whoever asks next."""

    action: Action


@dataclass(frozen=True, slots=True)
class StillManual:
    """It was in the manual queue, and the remote side can tell no more than it could then."""

    action: Action


Finding = Matched | Resend | ManualReview | Moved | Left | StillManual


def reconcile(call: Call, unsettled: Unsettled) -> Steps[Finding]:
    """Ask the remote side what became of an unknown action, with growing waits, until it can be concluded."""
    c, action = call.contract, unsettled.action
    if action.escalated_at is not None:
        return (yield from _look_again(call, action))
    if c.query is None:
        return (yield from _without_query(call, unsettled))
    asked_at, wait_s = action.now, FIRST_WAIT_S
    while True:
        answer = yield from probe(action, call.values)
        if isinstance(answer, Stopped):
            return Left(action)
        if isinstance(answer, Found):
            return _found(call, action, answer)
        noted = yield from _note(call, action, answer, wait_s)
        if isinstance(noted, Moved):
            return noted
        action = noted
        if asked_at >= _in_flight_until(action) and action.queries >= LEAST_QUERIES:
            return _conclude(c, action, answer, unsettled.took_over)
        pause_s = _pause(action, wait_s)
        if (yield from sleep(pause_s)) is not None:
            return Left(action)
        asked_at, wait_s = action.now + timedelta(seconds=pause_s), min(wait_s * 2, LAST_WAIT_S)


def _look_again(call: Call, action: Action) -> Steps[Finding]:
    """Ask once for an action in the manual queue: a person decides, unless the remote side can tell by now."""
    answer = yield from probe(action, call.values)
    if isinstance(answer, Stopped):
        return Left(action)
    finding = _found(call, action, answer) if isinstance(answer, Found) else None
    return finding if isinstance(finding, Matched) else StillManual(action)


def _note(call: Call, action: Action, answer: Answer, wait_s: float) -> Steps[Action | Moved]:
    """Write an answer down. A note that is there already (our own, sent twice, or another caller's) counts once."""
    claim = claim_of(action, call.plan.owner)
    noted = yield from ask(ledger.ask(claim, queries=action.queries, answer=_word(answer), delay_s=wait_s))
    if noted is not None:
        return noted
    now = yield from ask(ledger.load(action.tenant, action.id))
    if now is None or now.state is not State.UNKNOWN or now.fencing_token != action.fencing_token:
        return Moved(now or action)
    return now if now.escalated_at is None else Moved(now)


def _without_query(call: Call, unsettled: Unsettled) -> Steps[Finding]:
    """Without a query only a contract that calls a repeat harmless allows one; anything else is a person's."""
    c, action = call.contract, unsettled.action
    if c.risk is not Risk.IDEMPOTENT_WRITE:
        return ManualReview(action, "the remote side cannot be asked", {})
    stopped = yield from sleep(c.backoff.next_delay(action.attempt - 1, random=call.random))
    if stopped is not None:
        return Left(action)
    return Resend(action, "a repeat of it is harmless", unsettled.took_over, proved_by_absence=False)


def _found(call: Call, action: Action, found: Found) -> Finding:
    """What was found must be what was meant; otherwise a person sees both versions."""
    if found.fingerprint is not None and found.fingerprint != action.fingerprint:
        detail = {"meant": action.fingerprint, "found": found.fingerprint, "receipt": found.receipt}
        return ManualReview(action, "the remote side has something else under this key", detail)
    try:
        other = _other_values(call, dict(found.fields or {}))
    except (InvalidArguments, TypeError, ValueError) as error:  # NaN, a NUL, no mapping: not a wrong call but an answer
        return ManualReview(action, f"what the remote side has cannot be compared: {error}", {"receipt": found.receipt})
    if other:
        meant, theirs = ({k: pair[side] for k, pair in other.items()} for side in (0, 1))
        both = {"meant": meant, "found": theirs, "receipt": found.receipt}
        return ManualReview(action, "the remote side has other values", both)
    return Matched(action, found.receipt, found.result)


def _other_values(call: Call, found: Mapping[str, object]) -> dict[str, tuple[object, object]]:
    """Return the found fields that are not what was meant, each with both values; a field's own type does the
    comparing.
    """
    c = call.contract
    theirs = {name: c.as_argument(name, value) for name, value in found.items()}
    ours = {name: value for name, value in call.values.items() if name in found}
    pairs = differing(ours, theirs, c.annotations)
    return {name: (HIDDEN, HIDDEN) if name in c.secrets else pair for name, pair in pairs.items()}


def _conclude(c: Contract, action: Action, answer: Absent | Inconclusive, took_over: bool) -> Finding:
    if isinstance(answer, Inconclusive):
        return ManualReview(action, f"the remote side could not tell: {answer.reason}", {})
    if c.remote is Remote.DEDUPES or c.resend_when_absent or c.risk is Risk.IDEMPOTENT_WRITE:
        return Resend(action, "the remote side has no trace of it", took_over, proved_by_absence=True)
    return ManualReview(action, "the remote side has no trace of it, and cannot recognise a repeat", {})


def _in_flight_until(action: Action) -> datetime:
    return action.in_flight_until or action.now


def _pause(action: Action, wait_s: float) -> float:
    """Return the wait before the next query; one of them falls right behind `in_flight_until`."""
    left_s = (_in_flight_until(action) - action.now).total_seconds()
    return left_s + 0.01 if 0 < left_s < wait_s else wait_s


def _word(answer: Answer) -> str:
    return f"inconclusive: {answer.reason}" if isinstance(answer, Inconclusive) else "absent"
