"""Runs of chains and their steps: operations as values, and the two rows.

Their statements are those of `chains.sql`, which the ledger speaks beside its own. What a step does is an action, whose
row is the ledger's: a step only names it. Every write is a compare-and-set (on a run's `version`, on a step's `tries`)
and answers None for "somebody else moved it, look again"; all may be sent again after a lost connection.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from settled.state.ledger import INTENT_BYTES, MAX_TEXT_CHARS, Query, Rows, digest_of

End = Literal["succeeded", "stopped", "compensated"]


@dataclass(frozen=True, slots=True)
class ChainRow:
    """One run of a chain. `steps`, their `tools` and the `irreversible` ones are those of the code that began it.

    Since `turned_at` it goes back: `failed_step` failed for good, with `code` and `reason`. `root` is the intent that
    it repeats on purpose, or its own. `now` is the database's clock.
    """

    tenant: str
    id: str
    thread_id: str
    name: str
    occurrence: int
    intent: bytes
    root: bytes
    fingerprint: str
    input: Mapping[str, object]
    summary: str
    steps: Sequence[str]
    tools: Sequence[str]
    irreversible: Sequence[str]
    on_failure: str
    requester: str | None
    roles: Sequence[str]
    correlation_id: str | None
    repeat_of: str | None
    begun_at: datetime
    version: int
    turned_at: datetime | None
    failed_step: str | None
    code: str | None
    reason: str | None
    ended_at: datetime | None
    ended_as: End | None
    now: datetime


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step that was begun. What has no action (a read; what a person did, `finished_by`) has its end here.

    `code` and `reason` say why it could not begin, or why a read has no result; `undo_reason` why its undoing could not
    begin.
    """

    chain_id: str
    position: int
    name: str
    tool: str
    is_reversible: bool
    begun_at: datetime
    tries: int
    action_id: str | None
    arguments: Mapping[str, object] | None
    code: str | None
    reason: str | None
    finished_at: datetime | None
    finished_by: str | None
    note: str | None
    receipt: str | None
    result: object
    undone_at: datetime | None
    undone_by: str | None
    undo_note: str | None
    undo_reason: str | None


@dataclass(frozen=True, slots=True)
class Beginning:
    """What is written when a run begins; `input` is JSON text."""

    tenant: str
    id: str
    thread_id: str
    name: str
    occurrence: int
    intent: bytes
    root: bytes
    fingerprint: str
    input: str
    summary: str
    steps: Sequence[str]
    tools: Sequence[str]
    irreversible: Sequence[str]
    on_failure: str
    requester: str | None
    roles: Sequence[str]
    correlation_id: str | None
    repeat_of: str | None


@dataclass(frozen=True, slots=True)
class Place:
    """A step of a run."""

    tenant: str
    chain_id: str
    position: int
    name: str
    tool: str
    is_reversible: bool


@dataclass(frozen=True, slots=True)
class Intended:
    """What a try of a step will do: its action's id and arguments (JSON text); or `failure`, the code and reason why
    it cannot.
    """

    action_id: str | None = None
    arguments: str | None = None
    failure: tuple[str, str] | None = None


def _chain(rows: Rows) -> ChainRow | None:
    return ChainRow(*rows[0]) if rows else None


def _chains(rows: Rows) -> list[ChainRow]:
    return [ChainRow(*row) for row in rows]


def _step(rows: Rows) -> StepRow | None:
    return StepRow(*rows[0]) if rows else None


def _steps(rows: Rows) -> list[StepRow]:
    return [StepRow(*row) for row in rows]


def latest(tenant: str, intent: bytes) -> Query[ChainRow | None]:
    """Read the newest run of an intent."""
    return Query("chain_latest", {"tenant": tenant, "intent": intent[:INTENT_BYTES]}, _chain)


def begin(new: Beginning) -> Query[ChainRow | None]:
    """Begin a run; None: the intent has one that goes on, or that was begun at this instant."""
    params: dict[str, object] = {name: getattr(new, name) for name in Beginning.__slots__}
    params |= {name: list(getattr(new, name)) for name in ("steps", "tools", "irreversible", "roles")}
    params |= {name: getattr(new, name)[:INTENT_BYTES] for name in ("intent", "root")}
    return Query("chain_begin", params | {"fingerprint": digest_of(new.fingerprint)}, _chain)


def load(tenant: str, chain_id: str) -> Query[ChainRow | None]:
    """Read one run."""
    return Query("chain_load", {"tenant": tenant, "chain_id": chain_id}, _chain)


def steps_of(tenant: str, chain_ids: Sequence[str]) -> Query[list[StepRow]]:
    """Read the steps of some runs that were begun, in order."""
    return Query("chain_steps", {"tenant": tenant, "chain_ids": list(chain_ids)}, _steps)


def listed(
    tenant: str, *, thread_id: str | None = None, is_over: bool | None = None, most: int = 100
) -> Query[list[ChainRow]]:
    """Read runs, newest first: at most `most`, those alone that are over, or that are not, where that is given."""
    return Query("chain_list", {"tenant": tenant, "thread_id": thread_id, "is_over": is_over, "most": most}, _chains)


def left_alone(names: Sequence[str], *, grace_s: float, most: int) -> Query[list[tuple[str, str, str]]]:
    """Read runs of these chains, of all tenants, that are not over and that nobody carries on although nothing of them
    is under way: each as tenant, id and name, oldest first.
    """
    params = {"names": list(names), "grace": timedelta(seconds=grace_s), "most": most}
    return Query("chain_left_alone", params, lambda rows: [(row[0], row[1], row[2]) for row in rows])


def forget(older_than: timedelta, *, most: int) -> Query[int]:
    """Forget at most `most` runs that were over so long ago, with their steps; answers how many. Their actions can be
    forgotten then, and the same input in the same conversation is another run.
    """
    return Query("chain_forget", {"older_than": older_than, "most": most}, lambda rows: int(rows[0][0]))


def of_action(tenant: str, action_id: str) -> Query[ChainRow | None]:
    """Read the run whose step an action is, or whose step it undoes."""
    return Query("chain_of_action", {"tenant": tenant, "action_id": action_id}, _chain)


def recall(tenant: str, thread_id: str, correlation_id: str) -> Query[ChainRow | None]:
    """Read the newest run of a thread that the call of this correlation id has begun."""
    params = {"tenant": tenant, "thread_id": thread_id, "correlation_id": correlation_id}
    return Query("chain_recall", params, _chain)


def begin_step(at: Place, what: Intended) -> Query[StepRow | None]:
    """Write a step down, or read what stands there; None: ask again (a race), or the run is over or goes back."""
    return Query("chain_begin_step", _place(at) | _intended(what), _step)


def try_step(at: Place, what: Intended, *, tries: int) -> Query[StepRow | None]:
    """Write down another try of a step that did nothing; the database refuses it while the step's action may act."""
    return Query("chain_try_step", _place(at) | _intended(what) | {"tries": tries}, _step)


def follow_step(at: Place, *, changed: str, action_id: str) -> Query[StepRow | None]:
    """Note the action that a person has changed the step's one into."""
    return Query("chain_follow_step", _place(at) | {"changed": changed, "action_id": action_id}, _step)


def fail_step(at: Place, *, tries: int, code: str, reason: str, receipt: str | None = None) -> Query[StepRow | None]:
    """Note that a step's action never began, or that its read has no result."""
    said = {"tries": tries, "code": code, "reason": _clean(reason), "receipt": _clean(receipt)}
    return Query("chain_fail_step", _place(at) | said, _step)


def record_step(at: Place, *, tries: int, result: str) -> Query[StepRow | None]:
    """Keep the result of a read, JSON text: it is the same for the rest of the run."""
    return Query("chain_record_step", _place(at) | {"tries": tries, "result": result}, _step)


def finish_step(at: Place, *, by: str, note: str | None, receipt: str | None, result: str) -> Query[StepRow | None]:
    """Note that a person did a step by hand; None: it is done, may still act, or the run is over or goes back."""
    said = {"by": by, "note": _clean(note), "receipt": _clean(receipt), "result": result}
    return Query("chain_finish_step", _place(at) | said, _step)


def undo_step(at: Place, *, by: str, note: str | None) -> Query[StepRow | None]:
    """Note that a person has undone a step by hand; None: there is nothing to undo, or an action undoes it."""
    return Query("chain_undo_step", _place(at) | {"by": by, "note": _clean(note)}, _step)


def undone_by_hand(tenant: str, action_id: str) -> Query[tuple[str, str] | None]:
    """Read in which run, and who, has said that an action is undone by hand."""
    params = {"tenant": tenant, "action_id": action_id}
    return Query("chain_undone_by_hand", params, lambda rows: (rows[0][0], rows[0][1]) if rows else None)


def not_undone(at: Place, *, reason: str | None) -> Query[StepRow | None]:
    """Note why the undoing of a step could not begin; None: it can, after all."""
    return Query("chain_not_undone", _place(at) | {"reason": _clean(reason)}, _step)


def turn(seen: ChainRow, *, failed_step: str, code: str, reason: str) -> Query[ChainRow | None]:
    """From here on the run goes back, since a step failed for good."""
    said = {"failed_step": failed_step, "code": code, "reason": _clean(reason)}
    return Query("chain_turn", _seen(seen) | said, _chain)


def end(seen: ChainRow, *, ended_as: End) -> Query[ChainRow | None]:
    """End a run."""
    return Query("chain_end", _seen(seen) | {"ended_as": ended_as}, _chain)


def _seen(chain: ChainRow) -> dict[str, object]:
    return {"tenant": chain.tenant, "chain_id": chain.id, "version": chain.version}


def _place(at: Place) -> dict[str, object]:
    return {name: getattr(at, name) for name in Place.__slots__}


def _intended(what: Intended) -> dict[str, object]:
    code, reason = what.failure or (None, None)
    return {"action_id": what.action_id, "arguments": what.arguments, "code": code, "reason": _clean(reason)}


def _clean(text: str | None) -> str | None:
    """As the ledger cleans what somebody else made."""
    if text is None:
        return None
    return text[:MAX_TEXT_CHARS].replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
