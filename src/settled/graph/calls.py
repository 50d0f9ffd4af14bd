"""What a model asked for, made fit to be stored and answered: every call gets an id of its own, and so an answer.

Owns the tidying of an AI message and the reading of its calls. A call whose arguments break the limits of input
becomes one of LangChain's `invalid_tool_calls`, with field and rule as its error: a checkpoint could not even store
some of them.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NotRequired, TypedDict, cast
from uuid import uuid4

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    InvalidToolCall,
    ToolCall,
    message_chunk_to_message,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from settled.graph.identity import Decision
from settled.state.canonical import MAX_DEPTH, MAX_INTEGER, MIN_INTEGER, check_arguments
from settled.state.errors import InvalidArguments

MAX_ID_CHARS = 200
"""Providers' ids have some forty characters."""

MAX_SHOWN_CHARS = 10_000
"""Of a malformed call's arguments: enough for the model to see what it wrote."""


class Request(TypedDict):
    """One call of one message, as it travels in a Send: plain JSON. `error` is (field, rule) of a malformed call, and
    `is_alone` says that the message has no other.
    """

    name: str
    args: dict[str, Any]
    tool_call_id: str
    message_id: str
    occurrence: int
    language: str
    error: list[str] | None
    is_alone: NotRequired[bool]


def decision_of(request: Request) -> Decision:
    """Return where in the conversation a request was decided."""
    return Decision(request["message_id"], request["tool_call_id"], request["occurrence"])


def tidy(message: BaseMessage, known: Iterable[BaseMessage] = ()) -> AIMessage:
    """Return what the model said with ids for the message and for each call, and without what cannot be stored.

    A message of an id that is `known` would replace the older one, and its calls would mean that one's: some providers
    count from zero in each turn. It gets an id of its own.
    """
    whole = message_chunk_to_message(message)
    if not isinstance(whole, AIMessage):
        whole = AIMessage(content=whole.content, id=whole.id)
    taken: set[str] = set()
    good, bad = _sorted(whole)
    return whole.model_copy(
        update={
            "id": _new_id(whole.id, known),
            "name": storable(whole.name),
            "tool_calls": [{**call, "id": _own_id(call.get("id"), taken)} for call in good],
            "invalid_tool_calls": [{**call, "id": _own_id(call.get("id"), taken)} for call in bad],
            "content": storable(whole.content),
            "additional_kwargs": storable(whole.additional_kwargs),
            "response_metadata": storable(whole.response_metadata),
            "usage_metadata": whole.usage_metadata if _is_storable(whole.usage_metadata) else None,
        }
    )


def fit(message: HumanMessage) -> HumanMessage:
    """Return a message of the user without what cannot be stored; its content is checked elsewhere."""
    return message.model_copy(
        update={
            "name": storable(message.name),
            "additional_kwargs": storable(message.additional_kwargs),
            "response_metadata": storable(message.response_metadata),
        }
    )


def requests_of(message: AIMessage, language: str, most: int | None = None) -> list[Request]:
    """Return a message's calls, the malformed ones too, in order. Those beyond the first `most` are refused."""
    seen: Counter[str] = Counter()
    requests = []
    calls = (*message.tool_calls, *message.invalid_tool_calls)
    for number, call in enumerate(calls):
        tool_call_id = call.get("id") or ""
        args, error = call.get("args"), None
        if not isinstance(args, dict):
            args, error = {}, _rule(call)
        if most is not None and number >= most:
            args, error = {}, ["calls", "there were too many in this turn; this one was left out"]
        requests.append(
            Request(
                name=call.get("name") or "",
                args=args,
                tool_call_id=tool_call_id,
                message_id=message.id or "",
                occurrence=seen[tool_call_id],
                language=language,
                error=error,
                is_alone=len(calls) == 1,
            )
        )
        seen[tool_call_id] += 1
    return requests


def storable(value: Any, depth: int = 0) -> Any:
    """Return plain values with what a checkpoint cannot hold turned into text; other objects as they are, if it can
    hold them, and the name of their type if it cannot.
    """
    match value:
        case bool() | float() | None:
            return value
        case int() if not MIN_INTEGER <= value <= MAX_INTEGER:
            return str(value) if value.bit_length() < 10_000 else "a number too large to show"
        case str():
            return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
        case dict() | list() | tuple() if (
            depth >= MAX_DEPTH
        ):  # a provider's raw copy; arguments so deep are refused before
            return "…"
        case dict():
            return {_key(k): storable(v, depth + 1) for k, v in value.items()}
        case list() | tuple():
            return [storable(item, depth + 1) for item in value]
        case _:
            return value if _is_storable(value) else type(value).__name__


def _key(key: Any) -> Any:
    return storable(key) if isinstance(key, str | int | float | None) else type(key).__name__


def _is_storable(value: object) -> bool:
    """Whether LangGraph's serializer takes it. The serializer calls methods of the object, which may raise anything."""
    try:
        _SERIALIZER.dumps_typed(value)
    except Exception:  # noqa: BLE001 - whatever the reason, it cannot be stored
        return False
    return True


_SERIALIZER = JsonPlusSerializer()


def _sorted(message: AIMessage) -> tuple[list[ToolCall], list[InvalidToolCall]]:
    good: list[ToolCall] = []
    bad = list(message.invalid_tool_calls)
    for call in message.tool_calls:
        try:
            check_arguments(call["args"])
        except InvalidArguments as error:
            bad.append(_malformed(call, error))
        else:
            good.append({**call, "name": storable(call["name"])})
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


def _new_id(given: str | None, known: Iterable[BaseMessage]) -> str:
    own = _fit_id(given)
    return f"ai-{uuid4()}" if own is None or any(message.id == own for message in known) else own


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
