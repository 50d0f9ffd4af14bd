"""What a person is shown for an approval, and what may come back as the answer.

Pure: payloads out of the ledger's tickets, decisions out of whatever somebody has sent. The subtle thing: an answer is
used whole or not at all. Where one part of it cannot mean what it says (a decision too many, a field that its type does
not have, another tool's name) nothing of it is decided, and the sentence that is returned instead goes into the next
question.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from settled.graph.calls import storable
from settled.state.model import Action, Approval
from settled.state.secrets import masked
from settled.tools.decisions import Approve, Decision, Edit, Reject

ALLOWED = ("approve", "edit", "reject")
"""The decisions that a person is offered; a `respond` is taken as a rejection with words."""

NEEDED = 'an answer is {"decisions": [...]}, with one decision for each request in order'


@dataclass(frozen=True, slots=True)
class Shown:
    """One action, as a person is shown it: plain JSON, with secrets hidden."""

    action_id: str
    fingerprint: str
    tool: str
    arguments: Mapping[str, Any]
    description: str
    expires_at: str | None
    round: int | None = None
    is_reserved: bool = False
    """Whether the request asks for somebody in particular, so that who decides must be known."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """An answer that decides nothing; `problem` is the sentence that says why."""

    problem: str


def shown_of(approval: Approval) -> Shown:
    """Return what is shown of an open ticket."""
    return Shown(
        action_id=approval.action_id,
        fingerprint=approval.fingerprint,
        tool=approval.tool,
        arguments=_readable(approval.arguments),
        description=_described(approval.summary, approval.reason),
        expires_at=_written(approval.valid_until),
        round=approval.round,
        is_reserved=bool(approval.approvers) or approval.four_eyes,
    )


def shown_of_action(action: Action) -> Shown:
    """Return what is shown of a planned action of which no ticket was found."""
    asking = action.asking or {}
    return Shown(
        action_id=action.id,
        fingerprint=action.fingerprint,
        tool=action.tool,
        arguments=_readable(action.arguments),
        description=_described(action.summary, str(asking.get("reason") or "")),
        expires_at=_written(action.asked_until),
        is_reserved=bool(asking.get("approvers") or asking.get("four_eyes")),
    )


def _readable(arguments: Mapping[str, object]) -> dict[str, Any]:
    readable: dict[str, Any] = storable(masked(arguments))
    return readable


def _described(summary: str, reason: str) -> str:
    return "\n".join(line for line in (summary, reason) if line)


def _written(at: datetime | None) -> str | None:
    return at.isoformat(timespec="seconds") if at else None


def batched(shown: Sequence[Shown], problem: str | None = None) -> dict[str, Any]:
    """Return the payload of one interrupt for all that waits, in LangChain 1.x's form.

    Where exactly one action waits, the keys of the older form stand beside it, for the interfaces that know only those.
    """
    payload: dict[str, Any] = {
        "action_requests": [_request(one) for one in shown],
        "review_configs": [{"action_name": one.tool, "allowed_decisions": list(ALLOWED)} for one in shown],
    }
    if problem is not None:
        payload["problem"] = problem
    if len(shown) == 1:
        payload |= {
            "action_request": {"action": shown[0].tool, "args": shown[0].arguments},
            "config": {"allow_accept": True, "allow_edit": True, "allow_respond": True, "allow_ignore": False},
            "description": shown[0].description,
        }
    return payload


def single(one: Shown, tool_call_id: str, problem: str | None = None) -> dict[str, Any]:
    """Return the payload of the interrupt of one call, as LangChain's `per_call` mode has it."""
    told = {} if problem is None else {"problem": problem}
    return {"type": "tool_approval", "tool_call_id": tool_call_id, **_request(one), **told}


def _request(one: Shown) -> dict[str, Any]:
    return {
        "name": one.tool,
        "args": dict(one.arguments),
        "description": one.description,
        "action_id": one.action_id,
        "fingerprint": one.fingerprint,
        "expires_at": one.expires_at,
    } | ({} if one.round is None else {"round": one.round})


def requests_in(payload: Any) -> list[dict[str, Any]]:
    """Return the actions that an interrupt asks for, whichever of our two payloads it has; none for anybody else's."""
    match payload:
        case {"type": "tool_approval", "action_id": str()}:
            return [dict(payload)]
        case {"action_requests": [*requests]}:
            return [one for one in requests if isinstance(one, dict) and "action_id" in one]
        case _:
            return []


def answer_schema(count: int) -> dict[str, Any]:
    """Return the JSON Schema of an answer to a batched question, for a form; LangGraph does not check a dict."""
    decisions = {"type": "array", "minItems": count, "maxItems": count, "items": decision_schema()}
    return {"type": "object", "properties": {"decisions": decisions}, "required": ["decisions"]}


def decision_schema() -> dict[str, Any]:
    """Return the JSON Schema of one decision."""
    text = {"type": "string"}
    bound = {"action_id": text, "fingerprint": text}
    edited = {
        "type": "object",
        "properties": {"name": text, "args": {"type": "object"}},
        "required": ["name", "args"],
    }
    return {
        "oneOf": [
            _decision("approve", {"message": text, **bound}),
            _decision("reject", {"message": text, **bound}),
            _decision("edit", {"edited_action": edited, "message": text, **bound}, "edited_action"),
        ]
    }


def _decision(kind: str, properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"type": {"const": kind}, **properties},
        "required": ["type", *required],
        "additionalProperties": False,
    }


def read_answer(answer: object, shown: Sequence[Shown]) -> list[Decision] | Unusable:
    """Return what was decided about each of the shown actions, in their order; or why the answer decides nothing.

    Taken are `{"decisions": [...]}`, one decision by itself where one action was shown, and the older list of
    `{"type": "accept" | "edit" | "response" | "ignore", "args": ...}`.
    """
    match answer:
        case {"decisions": [*items], **more} if not more:
            given: list[Any] = items
        case {"type": _}:
            given = [answer]
        case [*items]:
            given = items
        case _:
            return Unusable(NEEDED)
    if len(given) != len(shown):
        return Unusable(f"{NEEDED}: {len(shown)} needed, {len(given)} given")
    chosen: list[Decision] = []
    for item, one in zip(given, shown, strict=True):
        read = _read_decision(item, one)
        if isinstance(read, Unusable):
            return read
        chosen.append(read)
    return chosen


_WORDS = {
    "approve": {"message"},
    "reject": {"message"},
    "respond": {"message"},
    "edit": {"edited_action", "args", "message"},
    "accept": {"args"},
    "response": {"args"},
    "ignore": {"args"},
}
"""The fields that a decision of each type may have, beside those that bind it. A field more is not overlooked: an
`approve` that carries edited arguments means something else than it says.
"""

_BOUND = ("action_id", "fingerprint")


def _read_decision(item: object, one: Shown) -> Decision | Unusable:
    """Return what one decision says about the action that it was given for; or why it decides nothing."""
    kind = item.get("type") if isinstance(item, Mapping) else None
    if not isinstance(item, Mapping) or not isinstance(kind, str) or kind not in _WORDS:
        return Unusable(f"{one.tool}: a decision is an object whose type is one of {', '.join(ALLOWED)}")
    if more := [str(name) for name in item if name not in ("type", *_BOUND, *_WORDS[kind])]:
        return Unusable(f"{one.tool}: a decision of type {kind} has no {', '.join(sorted(more))}")
    for name in _BOUND:
        if item.get(name, getattr(one, name)) != getattr(one, name):
            return Unusable(f"{one.tool}: the {name} is that of something else, and not of what was shown")
    return _chosen(kind, item, one)


def _chosen(kind: str, item: Mapping[str, Any], one: Shown) -> Decision | Unusable:
    message = item.get("args" if kind == "response" else "message")
    if not isinstance(message, str | None):
        return Unusable(f"{one.tool}: the message must be a text")
    match kind:
        case "approve":
            return Approve(note=message or None)
        case "accept":
            return _accepted(item.get("args"), one)
        case "edit":
            return _edited(item, one, message or None)
        case "ignore":
            return Reject()
        case _:
            return Reject(note=message or None)


def _accepted(args: object, one: Shown) -> Decision | Unusable:
    """The older interfaces send back what they accept: it must be what was shown."""
    match args:
        case None | {"action": one.tool, "args": one.arguments}:
            return Approve()
        case _:
            return Unusable(f"{one.tool}: what was accepted is not what was shown; send it as an edit")


def _edited(item: Mapping[str, Any], one: Shown, note: str | None) -> Decision | Unusable:
    match item:
        case {"edited_action": {"name": name, "args": {**args}, **more}} if not more and "args" not in item:
            pass
        case {"args": {"action": name, "args": {**args}, **more}} if not more and "edited_action" not in item:
            pass
        case _:
            return Unusable(f'{one.tool}: an edit has "edited_action": {{"name": ..., "args": {{...}}}}')
    if name != one.tool:
        return Unusable(f"{one.tool}: the tool cannot be changed, only its arguments")
    if not all(isinstance(key, str) for key in args):
        return Unusable(f"{one.tool}: the names of the arguments must be texts")
    return Edit({str(key): value for key, value in args.items()}, note=note)
