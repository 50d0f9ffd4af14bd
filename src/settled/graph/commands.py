"""What a tool may return to LangGraph instead of a result: a `Command`, a tool message, a list of them.

Owns what of it the ledger keeps. The model reads the tool message in it; the state updates are kept with the result, so
that a call that is answered from the ledger after a crash updates the state as it would have done.
"""

import base64
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage, convert_to_messages
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Command

from settled.tools.outcome import Succeeded, Unknown
from settled.tools.result import keeping

_log = logging.getLogger("settled")
_SERIALIZER = JsonPlusSerializer()

Commands = list[Command[Any]]


def recorded(returned: object, tool_call_id: str) -> object:
    """Return what the ledger is given for what a body returned: LangGraph's own values turned into a result."""
    parts = returned if isinstance(returned, list) else [returned]
    if not parts or not all(isinstance(part, Command | ToolMessage) for part in parts):
        return returned
    commands = [part for part in parts if isinstance(part, Command)]
    messages = [*(part for part in parts if isinstance(part, ToolMessage)), *_messages_of(commands)]
    answers = [one for one in messages if isinstance(one, ToolMessage) and one.tool_call_id == tool_call_id]
    if any(answer.status == "error" for answer in answers):
        return Unknown("the tool answered with an error message, which does not say whether it took effect")
    content = answers[-1].content if answers else None
    return Succeeded(keeping(pack(commands), content) if commands else content)


def _messages_of(commands: Iterable[Command[Any]]) -> list[BaseMessage]:
    found: list[BaseMessage] = []
    for command in commands:
        values = command.update.values() if isinstance(command.update, dict) else [command.update]
        for value in values:
            if isinstance(value, list | BaseMessage):
                found += [one for one in _listed(value) if isinstance(one, BaseMessage)]
    return found


def _listed(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def pack(commands: Commands) -> str:
    """Return commands as text; nothing of what cannot be stored."""
    plain = [{"graph": one.graph, "update": one.update, "resume": one.resume, "goto": one.goto} for one in commands]
    try:
        kind, stored = _SERIALIZER.dumps_typed(plain)
    except Exception:  # noqa: BLE001 - the effect has happened, and what else it wanted to say must not undo that
        _log.exception("the state updates of a tool cannot be stored")
        return ""
    return f"{kind}:{base64.b64encode(stored).decode()}"


def unpack(packed: str) -> Commands:
    """Return what was packed; nothing of what cannot be read any more."""
    if not packed:
        return []
    kind, _, stored = packed.partition(":")
    try:
        plain = _SERIALIZER.loads_typed((kind, base64.b64decode(stored)))
        return [Command(**{**one, "goto": one["goto"] or ()}) for one in plain]
    except Exception:  # noqa: BLE001 - the effect has happened, and its call needs an answer
        _log.exception("the state updates of a tool cannot be read")
        return []


def answered(commands: Commands, message: ToolMessage, messages_key: str, *, is_list: bool) -> list[Any]:
    """Return the commands with our message in the place of the tool's own; after them where they have none.

    One that leaves for the parent graph answers nothing here, as in LangGraph's own tool node.
    """
    changed = [_with(one, message, messages_key) for one in commands]
    is_told = any(message in _messages_of([one]) for one in changed)
    if is_told or any(one.graph == Command.PARENT for one in changed):
        return changed
    first, *others = changed
    if first.update is None or isinstance(first.update, dict):
        update: Any = dict(first.update or {})
        known = _listed(update.get(messages_key) or [])
        new: Any = [*known, message] if is_list and not update else {**update, messages_key: [*known, message]}
        return [replace(first, update=new), *others]
    if isinstance(first.update, list):
        return [replace(first, update=[*first.update, message]), *others]
    return [*changed, message]


def _with(command: Command[Any], message: ToolMessage, messages_key: str) -> Command[Any]:
    update: Any = command.update
    if isinstance(update, dict) and messages_key in update:
        return replace(command, update={**update, messages_key: _replaced(update[messages_key], message)})
    if isinstance(update, list):
        return replace(command, update=_replaced(update, message))
    return command


def _replaced(given: Any, message: ToolMessage) -> list[Any]:
    known: Sequence[BaseMessage] = convert_to_messages(_listed(given))
    return [
        message if isinstance(one, ToolMessage) and one.tool_call_id == message.tool_call_id else one for one in known
    ]
