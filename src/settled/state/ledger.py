"""The ledger's operations, as values.

One function per trigger; each returns a `Query` that a driver (`settled.state.postgres`) carries out. Nothing here
touches a connection. Every transition answers the moved `Action`, or None: "not yours, nothing was written". All of
them may be sent again after a lost connection: the guard in the statement makes the second sending move nothing.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Generic, TypeVar

from settled.state.errors import IllegalTransition, NotFound
from settled.state.machine import BIRTH, State, Trigger, advance, sources
from settled.state.model import Action, Approval, Claim, Event, Met, Plan, Reservation

T = TypeVar("T")
Row = tuple[Any, ...]
Rows = Sequence[Row]

ACTOR = None
"""The actor of what the library does by itself: nobody is named (a policy or a person is)."""


@dataclass(frozen=True, slots=True)
class Query(Generic[T]):
    """A named statement with its parameters, and how its rows become a value."""

    name: str
    params: Mapping[str, object]
    decode: Callable[[Rows], T]


_STATE = [field.name for field in fields(Action)].index("state")


def _action(row: Row) -> Action:
    values: tuple[Any, ...] = (*row[:_STATE], State(row[_STATE]), *row[_STATE + 1 :])
    return Action(*values)


def _first(rows: Rows) -> Action | None:
    return _action(rows[0]) if rows else None


def _all(rows: Rows) -> list[Action]:
    return [_action(row) for row in rows]


def _met(p: Plan, rows: Rows) -> Met | None:
    born, known, same_intent, now, *columns = rows[0]
    if born:
        return Met("born", begun(p, now))
    if columns[0] is None and known:
        raise NotFound("the action of this decision was purged: it was settled once, and is not begun again")
    if columns[0] is None:
        return None
    return Met("decision" if known else "intent" if same_intent else "business", _action((*columns, now)))


def _events(rows: Rows) -> list[Event]:
    return [Event(*row) for row in rows]


_SOURCES = {trigger: "{" + ",".join(sources(trigger)) + "}" for trigger in Trigger}
"""As Postgres writes an array: a text is bound in a tenth of the time of a list."""


def _transition(trigger: Trigger, params: Mapping[str, object]) -> Query[Action | None]:
    """Return the statement of a trigger; it moves an action only from the states that the machine names."""
    return Query(str(trigger), {**params, "states": _SOURCES[trigger]}, _first)


def _nothing(_: Rows) -> None:
    return None


def _json(value: object) -> str | None:
    """Return JSON in ASCII: whatever text is in it, Postgres can hold it."""
    return None if value is None else json.dumps(value, separators=(",", ":"), default=str)


def _span(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


INTENT_BYTES = 20
"""160 bits of a digest tell intents apart (the idempotency key has as many), and stand in the row and in two index
entries.
"""

_PLAIN = (
    "tenant", "id", "thread_id", "tool", "contract_version", "occurrence", "idempotency_key", "decision", "arguments",
    "summary", "requester", "correlation_id", "trace_context", "repeat_of", "approver", "owner", "supersedes",
    "emits", "compensates",
)  # fmt: skip
"""The fields of a `Plan` that are parameters as they stand."""


def plan(p: Plan) -> Query[Met | None]:
    """Begin an action, or meet the one that has this decision, intent or business key; None: ask again (a race)."""
    name = "plan" if p.birth is State.RUNNING else "plan_judged"
    if p.birth is State.RUNNING:
        spans = {"lease": _span(p.lease_s), "deadline": _span(p.deadline_s)}
        params = _born(p) | {"state": str(State.RUNNING), "trigger": str(Trigger.CLAIM), "token": 1, **spans}
    else:
        params = _born(p) | _judged(p)
    return Query(name if p.decision is None else f"{name}_decided", params, partial(_met, p))


def supersede(old: Action, p: Plan, *, editor: str, code: str, reason: str, note: str | None) -> Query[Action | None]:
    """End an action that waits for approval, and begin its edited form with a verdict of its own; DuplicateAction when
    another action has the edited intent or business key.
    """
    detail = {"superseded_by": p.id, "reason": reason} | ({"note": note} if note else {})
    edited = {"supersedes": old.id, "edited_fingerprint": digest_of(old.fingerprint), "editor": editor}
    said = {"edited_code": code, "edited_reason": _clean(reason), "note": _clean(note), "detail": _json(detail)}
    states = f"{{{State.PLANNED}}}"  # what a person has approved is edited no more: it may be claimed at any instant
    return Query(str(Trigger.SUPERSEDE), _born(p) | _judged(p) | edited | said | {"states": states}, _first)


def _born(p: Plan) -> dict[str, object]:
    params: dict[str, object] = {name: getattr(p, name) for name in _PLAIN}
    params["window"], params["actor"] = _span(p.window_s), ACTOR
    params["settle_window"] = None if p.settle_window_s is None else _span(p.settle_window_s)
    params["fingerprint"] = digest_of(p.fingerprint)
    params["intent"] = p.intent[:INTENT_BYTES]
    params["business_key"] = p.business_key and p.business_key[:INTENT_BYTES]
    return params


_BIRTHS = {State.PLANNED: BIRTH, State.APPROVED: str(Trigger.APPROVE), State.CANCELLED: str(Trigger.DENY)}


def _judged(p: Plan) -> dict[str, object]:
    """Return what the statements of an action that is not claimed at once need beside `_born`."""
    code, reason = p.denied or (None, None)
    said = p.asking if p.birth is State.PLANNED else _json({"reason": reason or p.policy})
    params: dict[str, object] = {"state": str(p.birth), "trigger": _BIRTHS[p.birth]}
    params |= {"asking": p.asking, "ask_ttl": None if p.ask_ttl_s is None else _span(p.ask_ttl_s), "verdict": said}
    if p.denied is not None:
        params["business_key"] = None
    return params | {"code": code, "reason": _clean(reason)}


def digest_of(fingerprint: str) -> bytes:
    """Return the 32 bytes of a fingerprint as the ledger keeps them; `sha256:…` is how it is written."""
    return bytes.fromhex(fingerprint.removeprefix("sha256:"))


def begun(p: Plan, now: datetime) -> Action:
    """Return the row that a plan has just begun; nothing in it needs to come back from Postgres."""
    claimed = p.birth is State.RUNNING
    code, reason = p.denied or (None, None)
    return Action(
        tenant=p.tenant,
        id=p.id,
        thread_id=p.thread_id,
        tool=p.tool,
        contract_version=p.contract_version,
        idempotency_key=p.idempotency_key,
        fingerprint=p.fingerprint,
        occurrence=p.occurrence,
        arguments=json.loads(p.arguments),
        summary=p.summary,
        requester=p.requester,
        correlation_id=p.correlation_id,
        trace_context=p.trace_context,
        repeat_of=p.repeat_of,
        planned_at=now,
        window_until=now + _span(p.window_s),
        approver=p.approver,
        approved_until=None,
        state=p.birth,
        fencing_token=int(claimed),
        attempt=int(claimed),
        owner=p.owner,
        started_at=now if claimed else None,
        lease_until=now + _span(p.lease_s) if claimed else None,
        deadline_at=now + _span(p.deadline_s) if claimed else None,
        in_flight_until=None,
        queries=0,
        next_query_at=None,
        escalated_at=None,
        code=code,
        reason=_clean(reason),
        may_change=None,
        receipt=None,
        result=None,
        evidence=None,
        settled_at=now if p.denied else None,
        asking=None if p.asking is None else json.loads(p.asking),
        asked_until=None if p.ask_ttl_s is None else now + _span(p.ask_ttl_s),
        supersedes=p.supersedes,
        superseded_by=None,
        compensates=p.compensates,
        compensated_by=None,
        now=now,
    )


def approve(
    tenant: str,
    action_id: str,
    *,
    fingerprint: str,
    approver: str,
    valid_for_s: float | None,
    note: str | None = None,
    round: int | None = None,  # noqa: A002 - the word of the ledger
) -> Query[Action | None]:
    """Permit a planned action with exactly this fingerprint to run, if the time to decide is not over, and it is this
    round that is asked about.
    """
    valid_for = None if valid_for_s is None else _span(valid_for_s)
    params: dict[str, object] = {"tenant": tenant, "id": action_id, "fingerprint": digest_of(fingerprint)}
    params |= {"approver": approver, "valid_for": valid_for, "note": _clean(note), "round": round}
    return _transition(Trigger.APPROVE, params | {"actor": approver, "detail": _json({"note": note} if note else None)})


def cancel(
    tenant: str,
    action_id: str,
    *,
    trigger: Trigger,
    code: str,
    reason: str,
    actor: str | None = ACTOR,
    note: str | None = None,
) -> Query[Action | None]:
    """End an action that never ran (deny, expire, supersede, withdraw); IllegalTransition for any other trigger.

    It is denied only while the time to decide is not over, and expires only after it.
    """
    for state in sources(trigger):
        if advance(state, trigger) is not State.CANCELLED:
            raise IllegalTransition(f"{trigger} does not cancel an action")
    params: dict[str, object] = {"tenant": tenant, "id": action_id, "trigger": str(trigger), "code": code}
    params |= {"reason": _clean(reason), "actor": actor, "approver": actor, "note": _clean(note)}
    return Query("cancel", params | {"detail": _json({"reason": reason}), "states": _SOURCES[trigger]}, _first)


def claim(
    tenant: str,
    action_id: str,
    *,
    owner: str,
    lease_s: float,
    deadline_s: float,
    reservations: Sequence[Reservation] = (),
) -> Query[Action | None]:
    """Take the right to run an approved action whose approval fits and has not ended, if its budgets have room."""
    params = {"tenant": tenant, "id": action_id, "owner": owner, "lease": _span(lease_s), "deadline": _span(deadline_s)}
    taken = _json([asdict(one) for one in reservations])
    return _transition(Trigger.CLAIM, params | {"reservations": taken, "actor": ACTOR, "detail": None})


def lapse(tenant: str, action_id: str) -> Query[Action | None]:
    """Plan an approved action again, with a new ticket: its permission ended unused, or is for something else."""
    return _transition(Trigger.LAPSE, {"tenant": tenant, "id": action_id, "actor": ACTOR, "detail": None})


def used(tenant: str, budget: str, window_s: float) -> Query[Decimal]:
    """Read how much of a budget (hex) is taken within its window."""
    params = {"tenant": tenant, "budget": budget, "window": _span(window_s)}
    return Query("used", params, lambda rows: Decimal(rows[0][0]))


def known(tenant: str, decision: bytes) -> Query[Action | None]:
    """Read the action that a decision has met."""
    return Query("known", {"tenant": tenant, "decision": decision}, _first)


def newest(tenant: str, intent: bytes) -> Query[list[Action]]:
    """Read the last action of an intent, and the last one of it that did something or still may: often the same."""
    return Query("newest", {"tenant": tenant, "intent": intent[:INTENT_BYTES]}, _all)


def same_intent(tenant: str, action_id: str, intent: bytes, business_key: bytes | None) -> Query[bool]:
    """Read whether an action is one of this intent, or has this business key."""
    keys = {"intent": intent[:INTENT_BYTES], "business_key": business_key and business_key[:INTENT_BYTES]}
    return Query("same_intent", {"tenant": tenant, "id": action_id, **keys}, bool)


def open_approvals(tenant: str, *, thread_id: str | None = None, most: int = 100) -> Query[list[Approval]]:
    """Read what a person may still decide, what ends first before the rest: at most `most`."""
    return Query("open_approvals", {"tenant": tenant, "thread_id": thread_id, "most": most}, _approvals)


def approvals_of(tenant: str, action_id: str) -> Query[list[Approval]]:
    """Read the tickets of one action, in order."""
    return Query("approvals_of", {"tenant": tenant, "id": action_id}, _approvals)


def manual_queue(tenant: str, *, most: int = 100) -> Query[list[Action]]:
    """Read what only a person can decide, oldest first: at most `most`."""
    return Query("manual_queue", {"tenant": tenant, "most": most}, _all)


def findings(tenant: str, ids: Sequence[str]) -> Query[dict[str, list[tuple[str, Mapping[str, Any]]]]]:
    """Read what was learnt about unknown actions, by id and in order: each a trigger and its event's detail."""
    return Query("findings", {"tenant": tenant, "ids": list(ids)}, _findings)


def _findings(rows: Rows) -> dict[str, list[tuple[str, Mapping[str, Any]]]]:
    found: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for action_id, trigger, detail in rows:
        found.setdefault(action_id, []).append((trigger, detail or {}))
    return found


def _approvals(rows: Rows) -> list[Approval]:
    return [_approval(row) for row in rows]


_VERDICT = [field.name for field in fields(Approval)].index("reason")


def _approval(row: Row) -> Approval:
    """Return a ticket; its reason, approvers and four eyes stand in the verdict, one column of the row."""
    asking: Mapping[str, Any] = row[_VERDICT]
    verdict = (asking["reason"], tuple(asking["approvers"]), asking["four_eyes"])
    values: tuple[Any, ...] = (*row[:_VERDICT], *verdict, *row[_VERDICT + 1 :])
    return Approval(*values)


def renew(claims: Sequence[tuple[Claim, float]]) -> Query[set[tuple[str, str]]]:
    """Prolong leases, each by its own seconds; answers the (tenant, action id) pairs that are still held."""
    params = {
        "tenants": [c.tenant for c, _ in claims],
        "ids": [c.action_id for c, _ in claims],
        "tokens": [c.token for c, _ in claims],
        "leases": [_span(lease_s) for _, lease_s in claims],
    }
    return Query("renew", params, lambda rows: {(row[0], row[1]) for row in rows})


def _clean(text: object) -> str | None:
    """Return what somebody else made (a receipt, a reason) as text that Postgres can hold, cut to `MAX_TEXT_CHARS`."""
    if text is None:
        return None
    return str(text)[:MAX_TEXT_CHARS].replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


MAX_TEXT_CHARS = 2000
"""A reason is read in a table; the transition that it explains must never fail because of it."""


def _of(
    held: Claim, detail: Mapping[str, object] | None, actor: str | None = ACTOR, **params: object
) -> dict[str, object]:
    guard = {"tenant": held.tenant, "id": held.action_id, "token": held.token}
    texts = {name: _clean(params[name]) for name in ("reason", "receipt") if name in params}
    return guard | params | texts | {"actor": actor, "detail": _json(detail)}


def succeed(
    held: Claim, seen: Action, *, receipt: str | None, result: str, messages: str | None = None, posts: bool = False
) -> Query[Action | None]:
    """Settle by the remote side's reply. `seen` is the action as its claim read it, `result` JSON text. One that
    `posts` has `messages` for the outbox (a JSON list of topics and payloads; None: they are still to be made).
    """
    params = _of(held, {"receipt": receipt} if receipt else None, receipt=receipt, result=result)
    query = replace(_transition(Trigger.SUCCEED, params), decode=partial(_succeeded, seen, _clean(receipt), result))
    if not posts:
        return query
    return replace(query, name="succeed_posting", params={**query.params, "messages": messages, "posts": True})


def _succeeded(seen: Action, receipt: str | None, result: str, rows: Rows) -> Action | None:
    if not rows:
        return None
    at = rows[0][0]
    moved = {"state": State.SUCCEEDED, "receipt": receipt, "result": json.loads(result), "evidence": "reply"}
    return replace(seen, **moved, reason=None, owner=None, lease_until=None, next_query_at=None, settled_at=at, now=at)


def fail(
    held: Claim,
    *,
    code: str,
    reason: str,
    may_change: bool,
    receipt: str | None = None,
    evidence: str | None = None,
    actor: str | None = ACTOR,
) -> Query[Action | None]:
    """Settle: it did not take place and never will. `may_change`: a changed call may work. A person who says so is the
    `actor`, and the evidence.
    """
    detail = {"code": code, "reason": reason}
    params = _of(held, detail, actor, code=code, reason=reason, may_change=may_change, receipt=receipt)
    return _transition(Trigger.FAIL, params | {"evidence": evidence})


def refuse(held: Claim, *, attempt: int, reason: str, delay_s: float, lease_s: float) -> Query[Action | None]:
    """Note that attempt number `attempt` was surely not processed, and that the next begins after `delay_s` seconds."""
    detail = {"reason": reason, "delay_s": round(delay_s, 3)}
    params = _of(
        held, detail, attempt=attempt, reason=reason, delay=_span(delay_s), lease=_span(lease_s), owner=held.owner
    )
    return _transition(Trigger.REFUSE, params)


def lose(held: Claim, *, reason: str, settle_window_s: float, orphaned: bool = False) -> Query[Action | None]:
    """Nobody can tell what became of the attempt. `orphaned`: the caller knows that the owner is dead."""
    window = _span(settle_window_s)
    params = _of(held, {"reason": reason}, reason=reason, settle_window=window, owner=held.owner, orphaned=orphaned)
    return _transition(Trigger.LOSE, params)


def ask(held: Claim, *, queries: int, answer: str, delay_s: float) -> Query[Action | None]:
    """Note the answer to query number `queries` + 1, which settled nothing; the next is due after `delay_s` seconds."""
    return Query("ask", _of(held, {"answer": answer}, queries=queries, delay=_span(delay_s)), _first)


def find(
    held: Claim,
    *,
    receipt: str | None,
    result: str,
    evidence: str,
    actor: str | None = ACTOR,
    note: str | None = None,
    messages: str | None = None,
    posts: bool = False,
) -> Query[Action | None]:
    """Settle by what the remote side answered to a query, or by the word of a person, the `actor`. `messages` and
    `posts` as in `succeed`.
    """
    detail = {"receipt": receipt, "evidence": evidence} | ({"note": note} if note else {})
    settled = {"receipt": receipt, "result": result, "evidence": evidence, "messages": messages, "posts": posts}
    return _transition(Trigger.FIND, _of(held, detail, actor, **settled))


def ask_again(held: Claim, *, actor: str, note: str | None) -> Query[Action | None]:
    """Send an action out of the manual queue: whoever asks the remote side asks once more."""
    return Query("ask_again", _of(held, {"note": note} if note else None, actor), _first)


def release(
    held: Claim, *, lease_s: float, deadline_s: float | None, proved_by_absence: bool, reason: str
) -> Query[Action | None]:
    """Claim an unknown action for another attempt under the same key. `held.owner` becomes the owner of the new claim.

    Where absence is the proof, the statement itself refuses before `in_flight_until`. `deadline_s` None keeps the
    deadline.
    """
    deadline = None if deadline_s is None else _span(deadline_s)
    params = _of(held, {"reason": reason}, owner=held.owner, lease=_span(lease_s), deadline=deadline)
    return _transition(Trigger.RELEASE, params | {"proved_by_absence": proved_by_absence})


def escalate(held: Claim, *, reason: str, detail: Mapping[str, object] | None = None) -> Query[Action | None]:
    """Put an unknown action into the manual queue."""
    return _transition(Trigger.ESCALATE, _of(held, {"reason": reason, **(detail or {})}, reason=reason))


def compensate(done: Action, p: Plan, *, by: str | None, note: str | None) -> Query[Action | None]:
    """Begin to undo an action that succeeded, by the action of `p`; answers that one. DuplicateAction when another
    action has its business key.
    """
    said = _undoing(done, p, Trigger.COMPENSATE, by, note) | {"undone_from": str(State.SUCCEEDED)}
    return _transition(Trigger.COMPENSATE, said)


def compensate_again(done: Action, p: Plan, *, by: str | None, note: str | None) -> Query[Action | None]:
    """Begin another action in the place of the one that was to undo it, and did nothing; answers the new one."""
    said = _undoing(done, p, "compensate_again", by, note) | {"undone_from": str(State.COMPENSATION_PENDING)}
    return Query("compensate_again", said | {"failed": done.compensated_by}, _first)


def _undoing(done: Action, p: Plan, word: str, by: str | None, note: str | None) -> dict[str, object]:
    detail = {"compensated_by": p.id} | ({"note": note} if note else {})
    return _born(p) | _judged(p) | {"compensates": done.id, "undone_by": word, "by": by, "detail": _json(detail)}


def compensated(tenant: str, action_id: str, *, receipt: str | None) -> Query[Action | None]:
    """End an undoing: the statement itself sees that the action which undoes it has succeeded, with this receipt."""
    detail = _json({"receipt": receipt} if receipt else None)
    return _transition(Trigger.COMPENSATED, {"tenant": tenant, "id": action_id, "actor": ACTOR, "detail": detail})


def undone_by_hand(tenant: str, action_id: str, *, by: str, note: str | None) -> Query[Action | None]:
    """End an undoing by the word of a person, where the action that was to undo it surely did nothing."""
    detail = _json({"by_hand": True} | ({"note": _clean(note)} if note else {}))
    return Query("undone_by_hand", {"tenant": tenant, "id": action_id, "actor": by, "detail": detail}, _first)


def keep_late(held: Claim, *, detail: Mapping[str, object]) -> Query[None]:
    """Keep what a stale owner wanted to write, as evidence; the action does not move."""
    return Query("keep_late", _of(held, {**detail, "fencing_token": held.token}), _nothing)


def load(tenant: str, action_id: str) -> Query[Action | None]:
    """Read one action."""
    return Query("load", {"tenant": tenant, "id": action_id}, _first)


def load_all(tenant: str, ids: Sequence[str]) -> Query[list[Action]]:
    """Read several actions, in no order; those that there are not are left out. The caller bounds how many."""
    return Query("load_all", {"tenant": tenant, "ids": list(ids)}, _all)


def recall(tenant: str, thread_id: str, correlation_id: str) -> Query[Action | None]:
    """Read the newest action of a thread with this correlation id that did something, or still may."""
    return Query("recall", {"tenant": tenant, "thread_id": thread_id, "correlation_id": correlation_id}, _first)


def timeline(tenant: str, action_id: str) -> Query[list[Event]]:
    """Read the events of one action, in order."""
    return Query("timeline", {"tenant": tenant, "id": action_id}, _events)


def actions(
    tenant: str, *, states: Sequence[str] | None = None, thread_id: str | None = None, most: int = 100
) -> Query[list[Action]]:
    """Read a tenant's actions, newest first: at most `most` of them."""
    states_ = None if states is None else [str(s) for s in states]
    return Query("actions", {"tenant": tenant, "states": states_, "thread_id": thread_id, "most": most}, _all)
