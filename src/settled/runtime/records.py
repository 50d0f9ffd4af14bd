"""Actions and events as plain JSON, the same wherever a person or a program reads them. Secrets are never shown."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from settled.state.model import Action, Approval, Event
from settled.state.secrets import masked

if TYPE_CHECKING:
    from settled.tools.desk import ManualCase
    from settled.tools.result import Outcome


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


def history_record(action: Action, events: Sequence[Event], approvals: Sequence[Approval]) -> dict[str, Any]:
    """Return all that is known of an action: with its approvals, and who did what."""
    return {
        **action_record(action),
        "approvals": [approval_record(one) for one in approvals],
        **timeline_record(action, events),
        "events": [{**event_record(event), "actor": event.actor} for event in events],
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
        "arguments": masked(action.arguments),
        "requester": action.requester,
        "approver": action.approver,
        "asked_until": instant(action.asked_until),
        "approved_until": instant(action.approved_until),
        "supersedes": action.supersedes,
        "superseded_by": action.superseded_by,
        "compensates": action.compensates,
        "compensated_by": action.compensated_by,
        "attempts": action.attempt,
        "code": action.code,
        "reason": action.reason,
        "receipt": action.receipt,
        "result": action.result,
        "evidence": action.evidence,
        "planned_at": instant(action.planned_at),
        "started_at": instant(action.started_at),
        "in_flight_until": instant(action.in_flight_until),
        "escalated_at": instant(action.escalated_at),
        "settled_at": instant(action.settled_at),
    }


def approval_record(approval: Approval) -> dict[str, Any]:
    """Return one approval: what it is bound to, who may decide, and what was decided."""
    return {
        "action_id": approval.action_id,
        "tenant": approval.tenant,
        "thread_id": approval.thread_id,
        "round": approval.round,
        "tool": approval.tool,
        "summary": approval.summary,
        "arguments": masked(approval.arguments),
        "fingerprint": approval.fingerprint,
        "reason": approval.reason,
        "scope": approval.scope,
        "requester": approval.requester,
        "approvers": list(approval.approvers),
        "four_eyes": approval.four_eyes,
        "issued_at": instant(approval.issued_at),
        "valid_until": instant(approval.valid_until),
        "decision": approval.decision,
        "decided_by": approval.decided_by,
        "decided_at": instant(approval.decided_at),
        "note": approval.note,
        "spent_at": instant(approval.spent_at),
    }


def case_record(case: "ManualCase") -> dict[str, Any]:
    """Return one case of the manual queue: its action, and what a person needs to decide it."""
    return {
        **action_record(case.action),
        "reason": case.reason,
        "asked": list(case.asked),
        "meant": case.meant,
        "found": case.found,
        "receipt": case.receipt,
        "age_s": round(case.age.total_seconds(), 3),
    }


def outcome_record(outcome: "Outcome") -> dict[str, Any]:
    """Return how a call ended."""
    return {
        "code": str(outcome.code),
        "state": None if outcome.state is None else str(outcome.state),
        "action_id": outcome.action_id,
        "receipt": outcome.receipt,
        "result": outcome.result,
        "attempts": outcome.attempts,
        "replayed": outcome.replayed,
        "message": outcome.message,
    }


def in_manual_queue(action: Action) -> bool:
    """Whether only a person can decide what became of it."""
    return action.escalated_at is not None and action.settled_at is None


def instant(at: datetime | None) -> str | None:
    """Return an instant as JSON has it."""
    return None if at is None else at.isoformat()
