"""What a model asked for, made fit to be stored and answered: every call gets an id of its own, and so an answer.

Owns the tidying of an AI message and the reading of its calls. A call whose arguments break the limits of input
becomes one of LangChain's `invalid_tool_calls`, with field and rule as its error: a checkpoint could not even store
some of them.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict, cast
from uuid import uuid4

from langchain_core.messages import AIMessage, BaseMessage, InvalidToolCall, ToolCall, message_chunk_to_message

from settled.graph.identity import Decision
from settled.state.canonical import MAX_DEPTH, MAX_INTEGER, MIN_INTEGER, check_arguments
from settled.state.errors import InvalidArguments

MAX_ID_CHARS = 200
"""Providers' ids have some forty characters."""

MAX_SHOWN_CHARS = 10_000
"""Of a malformed call's arguments: enough for the model to see what it wrote."""


class Request(TypedDict):
    """One call of one message, as it travels in a Send: plain JSON. `error` is (field, rule) of a malformed call."""

    name: str
    args: dict[str, Any]
    tool_call_id: str
    message_id: str
    occurrence: int
    language: str
    error: list[str] | None


def decision_of(request: Request) -> Decision:
    """Return where in the conversation a request was decided."""
    return Decision(request["message_id"], request["tool_call_id"], request["occurrence"])


def tidy(message: BaseMessage) -> AIMessage:
    """Return what the model said with ids for the message and for each call, and without what cannot be stored."""
    whole = message_chunk_to_message(message)
    if not isinstance(whole, AIMessage):
        whole = AIMessage(content=whole.content, id=whole.id)
    taken: set[str] = set()
    good, bad = _sorted(whole)
    return whole.model_copy(
        update={
            "id": _fit_id(whole.id) or f"ai-{uuid4()}",
            "tool_calls": [{**call, "id": _own_id(call.get("id"), taken)} for call in good],
            "invalid_tool_calls": [{**call, "id": _own_id(call.get("id"), taken)} for call in bad],
            "content": storable(whole.content),
            "additional_kwargs": storable(whole.additional_kwargs),
            "response_metadata": storable(whole.response_metadata),
        }
    )


def requests_of(message: AIMessage, language: str) -> list[Request]:
    """Return a message's calls, the malformed ones too, in order."""
    seen: Counter[str] = Counter()
    requests = []
    for call in (*message.tool_calls, *message.invalid_tool_calls):
        tool_call_id = call.get("id") or ""
        args, error = call.get("args"), None
        if not isinstance(args, dict):
            args, error = {}, _rule(call)
        requests.append(
            Request(
                name=call.get("name") or "",
                args=args,
                tool_call_id=tool_call_id,
                message_id=message.id or "",
                occurrence=seen[tool_call_id],
                language=language,
                error=error,
            )
        )
        seen[tool_call_id] += 1
    return requests


def storable(value: Any, depth: int = 0) -> Any:
    """Return plain values with what a checkpoint cannot hold turned into text; other objects as they are."""
    match value:
        case bool():
            return value
        case int() if not MIN_INTEGER <= value <= MAX_INTEGER:
            return str(value) if value.bit_length() < 10_000 else "a number too large to show"
        case str():
            return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
        case dict() | list() if depth >= MAX_DEPTH:  # a provider's raw copy; arguments so deep are refused before
            return "…"
        case dict():
            return {storable(k): storable(v, depth + 1) for k, v in value.items()}
        case list():
            return [storable(item, depth + 1) for item in value]
        case _:
            return value


def _sorted(message: AIMessage) -> tuple[list[ToolCall], list[InvalidToolCall]]:
    good: list[ToolCall] = []
    bad = list(message.invalid_tool_calls)
    for call in message.tool_calls:
        try:
            check_arguments(call["args"])
        except InvalidArguments as error:
            bad.append(_malformed(call, error))
        else:
            good.append(call)
    return good, [cast("InvalidToolCall", storable(dict(call))) for call in bad]


def _malformed(call: ToolCall, error: InvalidArguments) -> InvalidToolCall:
    return InvalidToolCall(
        name=call["name"],
        args=_shown(call["args"]),
        id=call.get("id"),
        error=json.dumps([error.field, error.rule]),
        type="invalid_tool_call",
    )


def _shown(args: Mapping[str, Any]) -> str:
    try:
        return json.dumps(storable(args), default=str)[:MAX_SHOWN_CHARS]
    except (ValueError, RecursionError):
        return "…"


def _rule(call: Mapping[str, Any]) -> list[str]:
    """Return field and rule of a malformed call: ours, or one for what the provider's parser could not read."""
    try:
        field, rule = json.loads(call.get("error") or "")
    except (ValueError, TypeError):
        return ["arguments", "must be one JSON object"]
    return [str(field), str(rule)]


def _own_id(given: str | None, taken: set[str]) -> str:
    own = _fit_id(given) or f"call-{uuid4()}"
    if own in taken:
        own = next(name for name in _numbered(own) if name not in taken)
    taken.add(own)
    return own


def _numbered(name: str) -> Iterable[str]:
    number = 1
    while True:
        number += 1
        yield f"{name}-{number}"


def _fit_id(given: str | None) -> str | None:
    return given if given and len(given) <= MAX_ID_CHARS and given.isprintable() else None
