"""Actions and events as plain JSON, the same wherever a person or a program reads them. Secrets are never shown."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from settled.state.model import Action, Event
from settled.state.secrets import HIDDEN, is_sealed


def timeline_record(action: Action, events: Sequence[Event]) -> dict[str, Any]:
    """Return an action with its timeline."""
    return {
        "action_id": action.id,
        "tool": action.tool,
        "state": str(action.state),
        "idempotency_key": action.idempotency_key,
        "fingerprint": action.fingerprint,
        "receipt": action.receipt,
        "attempts": action.attempt,
        "events": [event_record(event) for event in events],
    }


def event_record(event: Event) -> dict[str, Any]:
    """Return one line of a timeline."""
    return {
        "at": event.at.isoformat(),
        "from": event.from_state,
        "to": event.to_state,
        "trigger": event.trigger,
        "detail": event.detail,
    }


def action_record(action: Action) -> dict[str, Any]:
    """Return an action without its timeline."""
    return {
        "action_id": action.id,
        "tenant": action.tenant,
        "thread_id": action.thread_id,
        "tool": action.tool,
        "summary": action.summary,
        "state": str(action.state),
        "manual_queue": in_manual_queue(action),
        "idempotency_key": action.idempotency_key,
        "fingerprint": action.fingerprint,
        "occurrence": action.occurrence,
        "arguments": shown(action.arguments),
        "requester": action.requester,
        "approver": action.approver,
        "attempts": action.attempt,
        "code": action.code,
        "reason": action.reason,
        "receipt": action.receipt,
        "result": action.result,
        "evidence": action.evidence,
        "planned_at": _instant(action.planned_at),
        "started_at": _instant(action.started_at),
        "in_flight_until": _instant(action.in_flight_until),
        "escalated_at": _instant(action.escalated_at),
        "settled_at": _instant(action.settled_at),
    }


def in_manual_queue(action: Action) -> bool:
    """Whether only a person can decide what became of it."""
    return action.escalated_at is not None and action.settled_at is None


def shown(arguments: Mapping[str, object]) -> dict[str, object]:
    """Return arguments with the secret ones hidden."""
    return {name: HIDDEN if is_sealed(value) else value for name, value in arguments.items()}


def _instant(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
