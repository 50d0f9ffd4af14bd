"""What follows an action that succeeded, as its author declares it: messages for the outbox, and how it is undone.

Owns the values and their checks. Knows nothing of when they are used: messages are made before the success is written
and committed with it (`settled.tools.protocol`), and undoing is an action of its own (`settled.tools.compensation`).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pydantic_core import PydanticSerializationError, to_json

from settled.state.errors import ContractError, InvalidArguments
from settled.tools.storable import MAX_RESULT_BYTES, without_nul

MAX_MESSAGES = 100
"""Of one action: they are written in the statement that settles it, and delivered one after the other."""

MAX_TOPIC_CHARS = 200
"""A topic is a name by which sinks are chosen."""


@dataclass(frozen=True)
class Done:
    """An action that succeeded, as its author's functions are given it. `arguments` are those that were carried out,
    secrets too; `result` is plain JSON, as the ledger keeps it.
    """

    action_id: str
    tenant: str
    thread_id: str
    tool: str
    idempotency_key: str
    receipt: str | None
    result: Any = field(repr=False)
    arguments: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Message:
    """One message for the outbox: `topic` chooses the sink, `payload` is plain JSON.

    InvalidArguments for a topic that is no name, or a payload that cannot be written.
    """

    topic: str
    payload: object = field(repr=False, default=None)

    def __post_init__(self) -> None:
        topic: object = self.topic
        if not (isinstance(topic, str) and topic.strip() and topic.isprintable() and len(topic) <= MAX_TOPIC_CHARS):
            raise InvalidArguments("topic", f"must be a name of at most {MAX_TOPIC_CHARS} printable characters")


Emits: TypeAlias = Callable[[Done], Message | Sequence[Message] | None]


@dataclass(frozen=True)
class Compensation:
    """How an action is undone: by a call of `tool`, an action too, with the `arguments` that a function makes of what
    was done. Without one, each argument of the tool is taken from the field of that name in the result, in the
    arguments of what was done, or its `receipt` or `action_id`.
    """

    tool: Any
    arguments: Callable[[Done], Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        contract = getattr(self.tool, "contract", None)
        if contract is None or contract.is_read:
            raise ContractError("compensate= takes a tool that was declared with @action and writes, or a Compensation")
        if self.arguments is not None and not callable(self.arguments):
            raise ContractError("Compensation(arguments=) must be a function of what was done")

    def arguments_for(self, done: Done) -> Mapping[str, Any]:
        """Return what the tool is called with; InvalidArguments where the author's function cannot tell."""
        if self.arguments is None:
            return self._by_name(done)
        try:
            given = self.arguments(done)
        except Exception as error:
            raise InvalidArguments("compensate", f"its arguments cannot be made ({type(error).__name__})") from error
        if not isinstance(given, Mapping):
            raise InvalidArguments("compensate", f"its arguments are a {type(given).__name__}, not a mapping")
        return given

    def _by_name(self, done: Done) -> Mapping[str, Any]:
        fields = done.result if isinstance(done.result, Mapping) else {}
        known = {"action_id": done.action_id, "receipt": done.receipt, **done.arguments, **fields}
        return {name: known[name] for name in self.tool.contract.annotations if name in known}


def as_compensation(given: object) -> Compensation | None:
    """Return what `compensate=` was given as a Compensation; ContractError for anything that cannot be one."""
    return given if isinstance(given, Compensation | None) else Compensation(given)


def encoded(made: object) -> str:
    """Return what `emits` returned as the JSON text that the ledger is given; InvalidArguments where it cannot be."""
    several = [] if made is None else [made] if isinstance(made, Message) else made
    if not isinstance(several, Sequence) or not all(isinstance(one, Message) for one in several):
        raise InvalidArguments("emits", f"must return a Message, several or None, and returned {type(made).__name__}")
    if len(several) > MAX_MESSAGES:
        raise InvalidArguments("emits", f"must return at most {MAX_MESSAGES} messages, and returned {len(several)}")
    return "[" + ",".join(f'{{"topic":{json.dumps(one.topic)},"payload":{_payload(one)}}}' for one in several) + "]"


def _payload(message: Message) -> str:
    try:
        text = to_json(message.payload, inf_nan_mode="constants").decode()
        json.loads(text, parse_constant=_refuse)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        rule = f"the payload of {message.topic} is no JSON ({type(error).__name__})"
        raise InvalidArguments("emits", rule) from error
    if len(text) > MAX_RESULT_BYTES:
        raise InvalidArguments("emits", f"the payload of {message.topic} must be at most {MAX_RESULT_BYTES} bytes")
    return without_nul(text)


def _refuse(constant: str) -> object:
    raise ValueError(constant)
