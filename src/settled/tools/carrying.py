"""What a worker does with one open action that nobody else carries on, as steps.

    planned, time over ─▶ expire            running, lease over ─▶ lose ─▶ ask the remote side
    approved, time over ─▶ lapse            unknown, query due ──▶ ask the remote side ─▶ settle, or send again
    approved, left alone ─▶ claim and run   being undone ────────▶ write down what came of it

Owns when something is to be done, and when to look again; what is done is the protocol's. The subtle thing: a worker
does not wait between two questions to the remote side. It writes the answer down, and comes back when the next one is
due, so that a hundred unknown actions do not hold up one another.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, assert_never

from settled.state import ledger
from settled.state.errors import InvalidArguments
from settled.state.machine import State
from settled.state.model import Action
from settled.state.store import Ledger
from settled.state.work import Rest, Watch
from settled.tools import protocol, reconcile
from settled.tools.approval import expire, lapse
from settled.tools.compensation import conclude
from settled.tools.contract import Contract
from settled.tools.effects import Effect, Sleep, Steps, Stopped, ask
from settled.tools.perform import Options, taken_up
from settled.tools.policy import Policy
from settled.tools.reconcile import FIRST_WAIT_S, LAST_WAIT_S, Finding, Resend
from settled.tools.resolutions import UNKNOWN_SETTLE_WINDOW_S
from settled.tools.standing import (
    ORPHANED,
    RECONCILER_GRACE_S,
    Answered,
    Call,
    Granted,
    Unsettled,
    Waiting,
    claim_of,
)

APPROVED_GRACE_S = 5.0
"""How long what a person has approved is left to its own conversation, which goes on in milliseconds where it lives."""

LONGEST_REST_S = 60.0
"""Everything that is open is looked at once a minute, whatever the last look has promised."""

MARGIN_S = 0.05
"""A look comes after the instant that it waits for, by whose clock ever."""

MAX_DOUBLINGS = 10
"""Far more than lead to the longest wait."""

MAX_SPOKEN_OF = 10_000
"""Ids that a worker keeps so as not to say the same again: half a megabyte."""

_log = logging.getLogger("settled")


@dataclass(frozen=True, slots=True)
class Means:
    """With what a worker carries actions on: the tools that it has, by name, and the policies by risk."""

    store: Ledger
    contracts: Mapping[str, Contract]
    policies: Mapping[str, Policy]
    unreadable: set[str] = field(default_factory=set)
    """The approved actions of which it was said that they cannot be read here."""


@dataclass(frozen=True, slots=True)
class Look:
    """An action as a look has found and as it has left it; None: there is no such action any more."""

    watch: Watch
    before: Action | None
    after: Action | None

    @property
    def word(self) -> str | None:
        """What the look has done, in one word; None: nothing."""
        before, after = self.before, self.after
        if before is None or after is None or (before.state, before.escalated_at) == (after.state, after.escalated_at):
            return None
        match after.state:
            case State.PLANNED:
                return "lapsed"
            case State.UNKNOWN | State.COMPENSATION_PENDING:
                return "lost" if after.escalated_at is None else "escalated"
            case State.CANCELLED:
                return "expired"
            case State.SUCCEEDED | State.FAILED | State.COMPENSATED:
                return "settled"
            case State.APPROVED | State.RUNNING:
                return None
            case _:
                assert_never(after.state)


def contained(contract: Contract) -> Contract:
    """Return a contract whose functions cannot end the process: in a worker, `sys.exit` in a tool or a query (that of a
    command-line client, say) would end everybody's work, and again at each restart.
    """
    query, emits = contract.query, contract.emits
    return replace(
        contract,
        function=_contained(contract.function),
        query=None if query is None else _contained(query),
        emits=None if emits is None else _contained(emits),
    )


def _contained(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            returned = function(*args, **kwargs)
        except SystemExit as error:
            raise _ended(error) from error
        return _awaited(returned) if inspect.isawaitable(returned) else returned

    @wraps(function)
    async def acall(*args: Any, **kwargs: Any) -> Any:
        return await _awaited(function(*args, **kwargs))

    return acall if inspect.iscoroutinefunction(function) else call


async def _awaited(returned: Awaitable[Any]) -> Any:
    try:
        return await returned
    except SystemExit as error:
        raise _ended(error) from error


def _ended(error: SystemExit) -> RuntimeError:
    return RuntimeError(f"it wanted to end the process (SystemExit: {error.code})")


def look(watch: Watch, means: Means) -> Steps[Look]:
    """Look at an action, and do what is to be done now; harmless where somebody else does it."""
    before = yield from ask(ledger.load(watch.tenant, watch.action_id))
    if before is None:
        return Look(watch, None, None)
    after = (yield from _moved(before, watch, means)) if before.is_open else before
    if after.compensates is not None and not after.is_open:
        yield from conclude(after.tenant, after.compensates)
    return Look(watch, before, after)


def _moved(action: Action, watch: Watch, means: Means) -> Steps[Action]:
    contract = means.contracts.get(action.tool)
    match action.state:
        case State.PLANNED if action.asking_is_over:
            ended = yield from expire(action)
            return ended.action if ended else action
        case State.APPROVED if action.approval_is_over:
            return (yield from lapse(action)) or action
        case State.APPROVED if contract is not None and not contract.injected and _is_left_alone(action, watch):
            return (yield from _carried_on(action, contract, means))
        case State.RUNNING if action.lease_is_over:
            if contract is not None:
                return (yield from _carried_on(action, contract, means))
            return (yield from _lost(action)) or action
        case State.UNKNOWN if contract is not None and _is_due(action):
            return (yield from _carried_on(action, contract, means))
        case State.COMPENSATION_PENDING:
            return (yield from conclude(action.tenant, action.id)) or action
        case _:
            return action


def _is_left_alone(action: Action, watch: Watch) -> bool:
    return action.now - (watch.approved_at or action.planned_at) > timedelta(seconds=APPROVED_GRACE_S)


def _is_due(action: Action) -> bool:
    due = (action.next_query_at or action.now) + timedelta(seconds=RECONCILER_GRACE_S)
    return action.escalated_at is None and (action.next_query_at is None or due < action.now)


def _lost(action: Action) -> Steps[Action | None]:
    """Its owner's time is up, and the tool that could ask the remote side is not here."""
    query = ledger.lose(claim_of(action, ""), reason=ORPHANED, settle_window_s=UNKNOWN_SETTLE_WINDOW_S)
    return (yield from ask(query))


def _carried_on(action: Action, contract: Contract, means: Means) -> Steps[Action]:
    options = Options(
        action.thread_id,
        action.tenant,
        requester=action.requester,
        correlation_id=action.correlation_id,
        policies=means.policies,
        wait_s=0.0,
    )
    try:
        call = taken_up(contract, action, means.store, options)
    except InvalidArguments as error:
        return (yield from _unreadable(action, error, means))
    return (yield from _performed(call))


def _unreadable(action: Action, error: InvalidArguments, means: Means) -> Steps[Action]:
    """What cannot be read here is sent by nobody here, and what is unknown about it is a person's to find out. One that
    is approved is met again each minute, and is spoken of once.
    """
    if action.id not in means.unreadable:
        _log.warning("%s cannot be carried on here: its stored arguments cannot be read (%s)", action.id, error)
    if action.state is State.APPROVED and len(means.unreadable) < MAX_SPOKEN_OF:
        means.unreadable.add(action.id)
    if action.state is State.RUNNING:
        return (yield from _lost(action)) or action
    if action.state is not State.UNKNOWN:
        return action
    reason = f"its stored arguments cannot be read here ({error})"
    return (yield from ask(ledger.escalate(claim_of(action, ""), reason=reason))) or action


def _performed(call: Call) -> Steps[Action]:
    """As `protocol.perform`, but ask the remote side once, and send nothing again that needs its graph."""
    call, standing = yield from protocol.begin(call)
    while True:
        match standing:
            case Granted():
                standing = yield from protocol.run(call, standing)
            case Unsettled():
                finding = yield from _asked_once(call, standing)
                if isinstance(finding, Resend) and call.contract.injected:
                    return finding.action
                standing = yield from protocol.settle(call, finding)
            case Answered() | Waiting():
                return standing.action
            case _:
                assert_never(standing)


def _asked_once(call: Call, unsettled: Unsettled) -> Steps[Finding]:
    """Ask as `reconcile` does, up to its first wait between two questions."""
    steps = reconcile.reconcile(call, unsettled)
    if call.contract.query is None:
        return (yield from steps)
    effect: Effect = next(steps)
    while True:
        answer: object = Stopped(begun=False) if isinstance(effect, Sleep) else (yield effect)
        try:
            effect = steps.send(answer)
        except StopIteration as end:
            finding: Finding = end.value
            return finding


def rest_after(look: Look, means: Means) -> Rest:
    """Say when the action is to be looked at again, whether only by somebody who has its tool, and whether its thread
    is to go on.
    """
    action, watch = look.after, look.watch
    if action is None or not action.is_open:
        return Rest(watch, None, wakes=True)
    pause_s = _pause(action, _next(action, watch))
    wakes = look.word is not None or _needs_its_graph(action, watch, means)
    if not _needs_tool(action):
        return Rest(watch, pause_s, wakes=wakes)
    return Rest(watch, pause_s if action.tool in means.contracts else 0.0, action.tool, wakes)


def _needs_its_graph(action: Action, watch: Watch, means: Means) -> bool:
    """Whether nobody can run it but its own conversation, which has left it alone."""
    contract = means.contracts.get(action.tool)
    is_graphs = contract is not None and bool(contract.injected)
    return is_graphs and action.state is State.APPROVED and _is_left_alone(action, watch)


def _needs_tool(action: Action) -> bool:
    return action.state is State.APPROVED or (action.state is State.UNKNOWN and action.escalated_at is None)


def _pause(action: Action, until: datetime | None) -> float:
    if until is None:
        return LONGEST_REST_S
    return min(max((until - action.now).total_seconds(), 0.0) + MARGIN_S, LONGEST_REST_S)


def _next(action: Action, watch: Watch) -> datetime | None:
    """Return when there is something to do next, as far as that is known."""
    match action.state:
        case State.PLANNED:
            return action.asked_until
        case State.APPROVED:
            left_alone = (watch.approved_at or action.planned_at) + timedelta(seconds=APPROVED_GRACE_S)
            return left_alone if left_alone > action.now else action.approved_until
        case State.RUNNING:
            return action.lease_until
        case State.UNKNOWN if action.escalated_at is None:
            return _next_question(action)
        case _:
            return None


def _next_question(action: Action) -> datetime:
    """Ask with growing waits, and soon after the instant from which absence is a proof."""
    wait = action.now + timedelta(seconds=min(FIRST_WAIT_S * 2 ** min(action.queries, MAX_DOUBLINGS), LAST_WAIT_S))
    proof = action.in_flight_until
    soon = proof if proof is not None and action.now < proof < wait else wait
    return max(soon, (action.next_query_at or action.now) + timedelta(seconds=RECONCILER_GRACE_S))
