"""What a person says became of an action whose outcome nobody else can tell, as steps: the manual queue.

A resolution is the word of a person, written down as the evidence; it settles the action, or sends it back to be asked
about. The subtle thing: "it did not happen" proves nothing while the request may still take effect.
"""

from dataclasses import dataclass
from typing import assert_never

from settled.state import ledger
from settled.state.errors import AlreadyDecided, ContractError, InvalidArguments
from settled.state.machine import State
from settled.state.model import Action, Claim
from settled.tools.decisions import Decider, check_shown, instant, seen
from settled.tools.effects import Steps, ask
from settled.tools.messages import Code
from settled.tools.standing import ORPHANED, claim_of
from settled.tools.storable import storable

UNKNOWN_SETTLE_WINDOW_S = 15.0
"""For a row that was planned before rows said it themselves: as long as a contract says by default."""


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


def resolve(
    tenant: str,
    action_id: str,
    resolution: Resolution,
    who: Decider,
    *,
    fingerprint: str,
    note: str | None = None,
) -> Steps[Action]:
    """Settle an action whose outcome nobody else can tell, by a person's word; or send it back to be asked about.

    Raises NotFound, ShownOtherwise, AlreadyDecided where its outcome is known, InvalidArguments for "it did not happen"
    while it may still take effect. What a person has said already may be said again.
    """
    check_shown(fingerprint)
    action = yield from _unknown(tenant, action_id, fingerprint)
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


def _unknown(tenant: str, action_id: str, fingerprint: str) -> Steps[Action]:
    """Read an action of which a person says what became of it; one whose owner's time is up becomes unknown now."""
    action = yield from seen(tenant, action_id, fingerprint)
    if action.state is State.RUNNING and action.lease_is_over:
        query = ledger.lose(_held(action), reason=ORPHANED, settle_window_s=UNKNOWN_SETTLE_WINDOW_S)
        action = (yield from ask(query)) or (yield from seen(tenant, action_id, fingerprint))
    return action


def _held(action: Action) -> Claim:
    """Return what a person holds: the right to write under the present token, and nobody's ownership."""
    return claim_of(action, "")


def _outcome_known(action: Action) -> str:
    if action.state is State.RUNNING:
        return f"{action.id} is running: its outcome will be known, or its lease ends at {instant(action.lease_until)}"
    return f"{action.id} is {action.state}: there is nothing to resolve"


def _resolving(action: Action, resolution: Resolution, who: Decider, note: str | None) -> ledger.Query[Action | None]:
    held = _held(action)
    match resolution:
        case Happened(receipt=receipt, result=result):
            found = storable({"receipt": receipt} if result is None else result)
            return ledger.find(held, receipt=receipt, result=found, evidence="person", actor=who.by, note=note)
        case DidNotHappen():
            if action.in_flight_until is not None and action.now < action.in_flight_until:
                rule = f"it may still take effect until {instant(action.in_flight_until)}: say so after that"
                raise InvalidArguments("resolution", rule)
            reason, code = note or "a person has checked that it did not happen", Code.UNAVAILABLE
            return ledger.fail(held, code=code, reason=reason, may_change=True, evidence="person", actor=who.by)
        case AskAgain():
            return ledger.ask_again(held, actor=who.by, note=note)
        case _:
            assert_never(resolution)


def check_resolution(resolution: object) -> Resolution:
    """Return a resolution; ContractError for anything else."""
    if isinstance(resolution, Happened | DidNotHappen | AskAgain):
        return resolution
    raise ContractError(f"a resolution is Happened(receipt), DidNotHappen() or AskAgain(), not {resolution!r}")
