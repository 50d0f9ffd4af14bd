"""One attempt of a body, and one query: what they are called with, and what came of them.

Owns the context of an attempt and the reading of its end as an outcome. No effects: the runner does the calling.
"""

import dataclasses
import inspect
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from settled.state import canonical
from settled.state.model import Action, Claim
from settled.state.store import Ledger
from settled.tools import arguments
from settled.tools.after import Done
from settled.tools.context import ActionContext
from settled.tools.contract import Contract, Inquiry
from settled.tools.effects import Answer, Inconclusive
from settled.tools.messages import Code
from settled.tools.outcome import AttemptOutcome, Forbidden, Rejected, Succeeded, Unknown, from_exception
from settled.tools.result import Outcome

MAX_RECEIPT_CHARS = 256
"""A receipt is a reference that people read aloud; anything longer is not one."""


def context_of(action: Action, claim: Claim, *, lease_ends: float, timeout_s: float) -> ActionContext:
    """Return what the body may know. `lease_ends` is this process's monotonic second at which the claim is no longer
    sure.
    """
    return ActionContext(
        action_id=action.id,
        tool=action.tool,
        idempotency_key=action.idempotency_key,
        fingerprint=action.fingerprint,
        attempt=action.attempt,
        deadline_at=action.deadline_at or action.now,
        correlation_id=action.correlation_id,
        tenant=claim.tenant,
        thread_id=action.thread_id,
        lease_monotonic=lease_ends,
        deadline_monotonic=time.monotonic() + timeout_s,
    )


def timeout_of(contract: Contract, action: Action) -> float:
    """Return the seconds that this attempt may take: its timeout, or what is left of the deadline if that is less."""
    left = _seconds(action.started_at, action.deadline_at)
    return contract.timeout_s if left is None else max(min(contract.timeout_s, left), 0.0)


def _seconds(start: datetime | None, end: datetime | None) -> float | None:
    return (end - start).total_seconds() if start and end else None


def restored(contract: Contract, action: Action, store: Ledger) -> dict[str, Any]:
    """Return the arguments to carry out: the stored ones, never those that a caller holds in memory."""
    return arguments.restore(contract.schema, action.arguments, contract.secrets, store.vault)


def is_as_approved(contract: Contract, action: Action, values: Mapping[str, object]) -> bool:
    """Whether the arguments to carry out are those that a person has seen: the row's fingerprint is made of them.
    Somebody who gets past the database's guard could change the one and not the other.
    """
    stored = {name: value for name, value in values.items() if name in action.arguments}  # not a default of a new one
    found = canonical.fingerprint_of(canonical.arguments_bytes(stored, contract.annotations))
    return found == action.fingerprint


def inquiry_of(action: Action, values: Mapping[str, Any]) -> Inquiry:
    """Return what the author's query is given."""
    return Inquiry(
        action_id=action.id,
        idempotency_key=action.idempotency_key,
        fingerprint=action.fingerprint,
        tenant=action.tenant,
        thread_id=action.thread_id,
        attempt=action.attempt,
        arguments=values,
    )


def done_of(action: Action, values: Mapping[str, Any], receipt: str | None, result: object) -> Done:
    """Return what an author's functions are given about an action that succeeded."""
    return Done(
        action_id=action.id,
        tenant=action.tenant,
        thread_id=action.thread_id,
        tool=action.tool,
        idempotency_key=action.idempotency_key,
        receipt=receipt,
        result=result,
        arguments=values,
    )


def outcome_of_return(contract: Contract, returned: object) -> AttemptOutcome:
    """Read what a body returned: an outcome as it stands (also that of a call it made), anything else as success.

    A generator is no success: its body has not run yet.
    """
    if isinstance(returned, Outcome):
        returned = _of_inner(returned)
    if isinstance(returned, Succeeded):
        return Succeeded(returned.result, _text(returned.receipt) or _receipt(contract, returned.result))
    if isinstance(returned, AttemptOutcome):
        return _with_texts(returned)
    if inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        return Unknown("the body returned a generator, which had not run")
    return Succeeded(returned, _receipt(contract, returned))


def _of_inner(inner: Outcome) -> AttemptOutcome:
    """Return what the end of an inner call means for the body that made it its own result."""
    reason = f"the call that it made ended as {inner.code}"
    match inner.code:
        case Code.SUCCEEDED | Code.DUPLICATE:
            return Succeeded(inner.result, inner.receipt)
        case Code.REJECTED | Code.CONFLICT | Code.INVALID | Code.UNAVAILABLE:
            return Rejected(reason, inner.receipt)
        case Code.FORBIDDEN | Code.DENIED | Code.BUDGET_EXCEEDED:
            return Forbidden(reason)
        case _:
            return Unknown(reason)


def _with_texts(outcome: AttemptOutcome) -> AttemptOutcome:
    """Return an author's outcome with texts where it may hold anything."""
    texts = {name: _text(getattr(outcome, name, None)) for name in ("reason", "field", "receipt")}
    known = {field.name for field in dataclasses.fields(outcome)}
    texts["reason"] = texts["reason"] or "no reason was given"
    changes: dict[str, Any] = {name: text for name, text in texts.items() if name in known}
    return dataclasses.replace(outcome, **changes)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def outcome_of_raise(error: BaseException, context: ActionContext | None) -> AttemptOutcome:
    """Read what a body raised; what is not recognised is unknown."""
    outcome = from_exception(error, len(context.sent) if context else 0)
    return outcome if isinstance(outcome, Succeeded) else _with_texts(outcome)


def answer_of(returned: object) -> Answer:
    """Read what the author's query returned."""
    if isinstance(returned, Answer):
        return returned
    return Inconclusive(f"the query returned {type(returned).__name__}, not Found, Absent or Inconclusive")


def is_control_flow(error: BaseException) -> bool:
    """Whether an exception is not a failure but a signal that must travel on (cancellation, LangGraph's interrupt)."""
    return not isinstance(error, Exception) or any(c.__name__ == "GraphBubbleUp" for c in type(error).__mro__)


def _receipt(contract: Contract, result: object) -> str | None:
    try:
        found = contract.receipt(result) if callable(contract.receipt) else _field(result, contract.receipt)
    except Exception:  # noqa: BLE001 - the effect has happened: a receipt that cannot be read must not turn it into a failure
        return None
    return None if found is None else str(found)[:MAX_RECEIPT_CHARS]


def _field(result: object, name: str) -> object:
    return result.get(name) if isinstance(result, Mapping) else getattr(result, name, None)
