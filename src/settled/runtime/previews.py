"""What is shown before a decision: the action, as a card for people and as JSON, once it is known to be undecided.

The rules are those of `settled.tools.decisions`, which checks them again when the decision is made; here they are
asked early, so that nobody is shown what would follow from something that cannot be done.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from settled.state.errors import AlreadyDecided, InvalidArguments
from settled.state.machine import OPEN, State

if TYPE_CHECKING:
    from rich.console import RenderableType

    from settled.runtime.stepping import Counter
    from settled.state.model import Action


@dataclass(frozen=True)
class Preview:
    """An action before a decision."""

    action: "Action"
    card: "RenderableType"
    record: dict[str, Any]


def waiting(at: "Counter", action_id: str, *, by: str, roles: Sequence[str]) -> Preview:
    """Show an action that waits for a person; AlreadyDecided where it does not, NotPermitted for whoever may not."""
    from settled.runtime.desk_pages import approval_card
    from settled.runtime.records import action_record, approval_record
    from settled.runtime.words import instant
    from settled.tools.decisions import Decider, check_permitted, said

    action, ticket = at.action(action_id), at.desk.approval(action_id)
    if ticket.decision is not None:
        raise AlreadyDecided(said(ticket))
    if action.asked_until is not None and action.asking_is_over:
        raise AlreadyDecided(f"nobody decided on {action.id} in time: it expired at {instant(action.asked_until)}")
    check_permitted(action.asking, action.requester, Decider(by=by, roles=roles))
    record = {"action": action_record(action), "approval": approval_record(ticket)}
    return Preview(action, approval_card(ticket), record)


def case(at: "Counter", action_id: str, *, as_not_happened: bool = False) -> Preview:
    """Show an action whose outcome is unknown; AlreadyDecided where it is known, InvalidArguments where nobody can say
    yet that it did not happen.
    """
    from settled.runtime.desk_pages import case_card
    from settled.runtime.records import case_record
    from settled.runtime.words import instant

    found = at.desk.case(action_id)
    action = found.action
    if action.state is State.RUNNING and action.lease_until is not None and not action.lease_is_over:
        raise AlreadyDecided(
            f"{action.id} is running: look again when its lease ends, at {instant(action.lease_until)}"
        )
    if as_not_happened and action.in_flight_until is not None and action.now < action.in_flight_until:
        rule = f"it may still take effect until {instant(action.in_flight_until)}; say so after that"
        raise InvalidArguments("--did-not-happen", rule)
    return Preview(action, case_card(found), {"case": case_record(found)})


def not_begun(at: "Counter", action_id: str) -> Preview:
    """Show an action that can be taken back; AlreadyDecided where it has run, or has ended."""
    return _any(at, action_id, frozenset({State.PLANNED, State.APPROVED}), "cannot be taken back")


def not_ended(at: "Counter", action_id: str) -> Preview:
    """Show an action that can be carried on; AlreadyDecided where it has ended."""
    return _any(at, action_id, OPEN - {State.COMPENSATION_PENDING}, "there is nothing to carry on")


def done(at: "Counter", action_id: str) -> Preview:
    """Show an action that can be undone, or is being undone; AlreadyDecided where there is nothing to undo."""
    return _any(at, action_id, frozenset({State.SUCCEEDED, State.COMPENSATION_PENDING}), "there is nothing to undo")


def being_undone(at: "Counter", action_id: str) -> Preview:
    """Show an action that is being undone; AlreadyDecided where nobody has begun to."""
    return _any(at, action_id, frozenset({State.COMPENSATION_PENDING}), "nobody has begun to undo it")


def _any(at: "Counter", action_id: str, states: frozenset[State], otherwise: str) -> Preview:
    from settled.runtime.desk_pages import action_card
    from settled.runtime.records import action_record

    action = at.action(action_id)
    if action.state not in states:
        raise AlreadyDecided(f"{action.id} is {action.state}: {otherwise}")
    return Preview(action, action_card(action), {"action": action_record(action)})
