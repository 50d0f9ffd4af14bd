"""What a client may ask of a run, checked before anything begins.

Pure: the body of a request in, what is wanted out. Whatever is not supported is refused with its reason, and a field
that is not known is refused too: a client that believes it was heard is worse off than one that was told.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from langchain_core.messages import HumanMessage, convert_to_messages
from langgraph.types import Durability
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from settled.graph.session import RESERVED
from settled.runtime.chat.refusals import Refused, first_of
from settled.state.errors import InvalidArguments
from settled.state.runs import Strategy

MODES = ("values", "updates", "messages", "messages-tuple", "custom")
"""What may be streamed. The rest of LangGraph's modes tell of its inside (tasks, checkpoints, callbacks)."""

MAX_AFTER_S = 7 * 24 * 3600
"""For what begins later: a run waits in the database, and who asked for it should still know."""

MAX_KEY_CHARS = 200
MAX_TITLE_CHARS = 80
MAX_STEPS = 1000
"""Of one run: far more than a conversation's turn takes."""

OURS = (*RESERVED, "run_id", "requester", "tenant", "roles", "approver", "approver_roles", "assistant_id", "graph_id")
"""What the server says itself about a run, from the token that asked for it."""

NO_WEBHOOK = "nobody is called back: what follows an action is a message of the outbox, emits="
NO_FORK = "a run goes on where its thread stands; another branch is made with Session.replay"
NO_STOPS = "a run stops where a tool's approval asks a person, and not at nodes that a client names"
NO_CONTEXT = "what an agent's nodes are given beside the conversation is the server's to say"
NO_TRACER = "traces go where the server is told to send them"
NO_ROLLBACK = "what was done cannot be rolled back by forgetting it: use interrupt, and undo actions one by one"
NO_INTERRUPT = (
    "a run that acts is not cut off by the next one: use enqueue or reject, or cancel it and see what became of it"
)
NO_UPDATE = "a conversation changes by its messages and by decisions; command.resume is the only command here"

UNSUPPORTED: Mapping[str, str] = {
    "webhook": NO_WEBHOOK,
    "checkpoint": NO_FORK,
    "checkpoint_id": NO_FORK,
    "interrupt_before": NO_STOPS,
    "interrupt_after": NO_STOPS,
    "context": NO_CONTEXT,
    "feedback_keys": NO_TRACER,
    "langsmith_tracer": NO_TRACER,
    "checkpoint_during": "it is called durability now",
}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Command(_Strict):
    resume: JsonValue = None
    update: JsonValue = None
    goto: JsonValue = None


class _Config(_Strict):
    tags: list[str] = Field(default=[], max_length=20)
    recursion_limit: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    configurable: dict[str, JsonValue] = Field(default={}, max_length=50)


class _Body(_Strict):
    assistant_id: str
    input: dict[str, JsonValue] | None = None
    command: _Command | None = None
    config: _Config = _Config()
    metadata: dict[str, JsonValue] = Field(default={}, max_length=50)
    stream_mode: str | list[str] = "values"
    stream_subgraphs: bool = False
    stream_resumable: bool = True
    multitask_strategy: str | None = None
    on_disconnect: Literal["cancel", "continue"] = "continue"
    on_completion: Literal["keep", "delete"] = "keep"
    if_not_exists: Literal["create", "reject"] = "reject"
    after_seconds: float = Field(default=0, ge=0, le=MAX_AFTER_S)
    durability: Durability = "sync"
    strict_resume: bool = True


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a run is to do: hear a message of the user, or (None) go on with what is open.

    All of it is JSON, and kept in the run's row: whoever takes the run up reads it there.
    """

    message: Mapping[str, Any] | None
    modes: tuple[str, ...]
    subgraphs: bool
    config: Mapping[str, Any]
    durability: Durability


@dataclass(frozen=True, slots=True)
class Asked:
    """A whole request. `answer` is what was sent to what waits for a person (`has_answer`: there is one)."""

    agent: str
    wanted: Wanted
    answer: Any
    has_answer: bool
    message_id: str | None
    metadata: Mapping[str, Any]
    strategy: Strategy | None
    creates_thread: bool
    cancels_on_disconnect: bool
    after_s: float

    @property
    def title(self) -> str | None:
        """The beginning of the message, as a list of threads shows it."""
        text = self.wanted.message and HumanMessage(self.wanted.message["content"]).text
        return " ".join(text.split())[:MAX_TITLE_CHARS] if text else None

    def fingerprint(self) -> bytes:
        """Return what tells two requests of one key apart."""
        parts = [self.agent, self.wanted.message, self.answer, self.wanted.config]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode("utf-8", "replace")).digest()


def read(given: Mapping[str, Any]) -> Asked:
    """Return what a request asks for; Refused (422) with the field and its rule."""
    for name, why in UNSUPPORTED.items():
        if name in given:
            raise Refused(422, f"{name}: {why}")
    parsed = validated(_Body, given)
    _check_supported(parsed)
    has_answer = parsed.command is not None and "resume" in parsed.command.model_fields_set
    if has_answer and parsed.input is not None:
        raise Refused(422, "input: goes on with a message, and command.resume with a decision; send one of them")
    message, message_id = (None, None) if parsed.input is None else _message(parsed.input)
    wanted = Wanted(message, _modes(parsed.stream_mode), parsed.stream_subgraphs, _config(parsed), parsed.durability)
    return Asked(
        agent=parsed.assistant_id,
        wanted=wanted,
        answer=parsed.command.resume if parsed.command else None,
        has_answer=has_answer,
        message_id=message_id,
        metadata=parsed.metadata,
        strategy=_strategy(parsed.multitask_strategy),
        creates_thread=parsed.if_not_exists == "create",
        cancels_on_disconnect=parsed.on_disconnect == "cancel",
        after_s=parsed.after_seconds,
    )


def kept(wanted: Wanted, run_id: str) -> dict[str, Any]:
    """Return what a run's row keeps of what is wanted. A message without an id of its own is named after the run, so
    that it is the same one for whoever takes the run up.
    """
    plain = asdict(wanted)
    if wanted.message is not None:
        plain["message"] = {"id": f"message-{run_id}", **wanted.message}
    return plain


def wanted_of(request: Mapping[str, Any]) -> Wanted:
    """Return what a run's row keeps."""
    return Wanted(**{**request, "modes": tuple(request["modes"])})


def validated(model: type[Any], given: object) -> Any:
    """Return what a model makes of a body; Refused with the first field that breaks a rule."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise Refused(422, first_of(error.errors(include_url=False, include_input=False))) from None


def _check_supported(body: _Body) -> None:
    command = body.command
    if command is not None and (command.update is not None or command.goto is not None):
        raise Refused(422, f"command: {NO_UPDATE}")
    if body.on_completion == "delete":
        raise Refused(422, "on_completion: the thread is kept, for an action of it may still be open")
    if not body.strict_resume:
        raise Refused(422, "strict_resume: an answer is always held against what was asked")


def _strategy(name: str | None) -> Strategy | None:
    match name:
        case None | "enqueue" | "reject":
            return name
        case "rollback":
            raise Refused(422, f"multitask_strategy: {NO_ROLLBACK}")
        case "interrupt":
            raise Refused(422, f"multitask_strategy: {NO_INTERRUPT}")
        case _:
            raise Refused(422, f"multitask_strategy: must be one of {', '.join(get_args(Strategy))}")


def _modes(given: str | Sequence[str]) -> tuple[str, ...]:
    modes = (given,) if isinstance(given, str) else tuple(dict.fromkeys(given))
    if not modes:
        raise Refused(422, "stream_mode: name at least one")
    if unknown := [mode for mode in modes if mode not in MODES]:
        raise Refused(422, f"stream_mode: {unknown[0]!r} is not streamed here; what is: {', '.join(MODES)}")
    return modes


def _config(body: _Body) -> dict[str, Any]:
    for name in body.config.configurable:
        if name in OURS or name.startswith(("__", "langgraph_auth")):
            raise Refused(422, f"config.configurable.{name}: the server says that itself")
    config: dict[str, Any] = {"configurable": body.config.configurable, "tags": body.config.tags}
    limit = body.config.recursion_limit
    return config if limit is None else {**config, "recursion_limit": limit}


def _message(given: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return the user's message, and the id that the client has given it."""
    if more := [name for name in given if name != "messages"]:
        raise Refused(422, f"input.{more[0]}: an input has messages and nothing else")
    messages = given.get("messages")
    if not isinstance(messages, list | dict | str):
        raise Refused(422, "input.messages: must be a list with one message of the user")
    try:
        read = convert_to_messages(messages if isinstance(messages, list) else [messages])
    except (ValueError, TypeError, KeyError, NotImplementedError) as error:
        raise Refused(422, "input.messages: that is no message; {'role': 'user', 'content': ...} is one") from error
    if len(read) != 1 or not isinstance(read[0], HumanMessage):
        raise Refused(422, "input.messages: must be one message of the user; what was said before is the thread's")
    name = read[0].id
    if name is not None and not (0 < len(name) <= MAX_KEY_CHARS and name.isprintable()):
        raise Refused(422, f"input.messages.id: must be at most {MAX_KEY_CHARS} printable characters")
    message = {"content": read[0].content, **({"id": name} if name else {})}
    if not read[0].content:
        raise Refused(422, "input.messages: the message is empty")
    return message, name


def checked_key(key: str | None) -> str | None:
    """Return an `Idempotency-Key` header; InvalidArguments."""
    if key is not None and not (0 < len(key) <= MAX_KEY_CHARS and key.isprintable()):
        raise InvalidArguments("Idempotency-Key", f"must be at most {MAX_KEY_CHARS} printable characters")
    return key
