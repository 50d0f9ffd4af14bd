"""What LangGraph streams, as the events that `langgraph_sdk` reads.

Owns the two forms of messages: "messages-tuple" passes each piece on as it comes, "messages" the whole of each message
so far. The last values of a run are said by whoever ends it, once.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessageChunk, BaseMessage, BaseMessageChunk

from settled.runtime.chat.wire import text_of

Said = tuple[str, str]
"""An event's name and its JSON text."""

MAX_GROWING = 200
"""Messages of one run that are still being said; an older one is over."""


def modes_of(modes: Sequence[str]) -> list[Any]:
    """Return LangGraph's own modes for those of the API."""
    return list(dict.fromkeys("messages" if mode == "messages-tuple" else mode for mode in modes))


class Chunks:
    """Makes events of the chunks of one run."""

    def __init__(self, modes: Sequence[str], *, has_subgraphs: bool = False) -> None:
        self._modes = modes
        self._has_subgraphs = has_subgraphs
        self._growing: dict[str, BaseMessage] = {}
        self._values: str | None = None
        self._told: dict[str, object] = {}

    def events(self, chunk: tuple[Sequence[str], str, Any]) -> Iterator[Said]:
        """Yield the events of one chunk: the names of the graphs that it comes from, its mode, and what it holds."""
        names, mode, payload = chunk
        if mode == "custom":
            yield from self._of_custom(names, payload)
        elif names and not self._has_subgraphs:
            return
        elif mode == "messages":
            yield from self._of_message(names, payload)
        else:
            text = text_of(payload)
            self._values = text if mode == "values" and not names else self._values
            yield _named(mode, names), text

    def _of_custom(self, names: Sequence[str], payload: Any) -> Iterator[Said]:
        """Yield what a node says by itself. A transition of an action is for everybody: some are made by the engine's
        own graph, within the agent's.
        """
        told = payload.get("settled") if isinstance(payload, dict) else None
        if not names or self._has_subgraphs:
            yield _named("custom", names), text_of(payload)
        elif isinstance(told, dict) and self._told.get(told["action_id"]) != (told["state"], told["attempt"]):
            yield "custom", text_of(payload)
        if isinstance(told, dict):
            self._told[told["action_id"]] = (told["state"], told["attempt"])

    def last(self, values: Any) -> list[Said]:
        """Return the values that a run ends with, where they were not said as the last ones already."""
        if "values" not in self._modes or (self._values is not None and json.loads(self._values) == values):
            return []
        return [("values", text_of(values))]

    def _of_message(self, names: Sequence[str], payload: tuple[BaseMessage, Mapping[str, Any]]) -> Iterator[Said]:
        if "messages-tuple" in self._modes:
            yield _named("messages", names), text_of(_open(payload))
        if "messages" in self._modes:
            yield from self._of_whole(names, *payload)

    def _of_whole(self, names: Sequence[str], message: BaseMessage, metadata: Mapping[str, Any]) -> Iterator[Said]:
        name = str(message.id)
        before = self._growing.get(name)
        if before is None:
            yield _named("messages/metadata", names), text_of({name: {"metadata": _shown(metadata)}})
        if not isinstance(message, BaseMessageChunk):
            yield _named("messages/complete", names), text_of([message])
            return
        whole = before + message if isinstance(before, BaseMessageChunk) else message
        self._growing[name] = whole
        if len(self._growing) > MAX_GROWING:
            self._growing.pop(next(iter(self._growing)))
        is_over = isinstance(whole, AIMessageChunk) and whole.chunk_position == "last"
        yield _named("messages/complete" if is_over else "messages/partial", names), text_of([whole])


def _named(mode: str, names: Sequence[str]) -> str:
    return "|".join((mode, *names))


def _open(payload: tuple[BaseMessage, Mapping[str, Any]]) -> list[Any]:
    message, metadata = payload
    return [message, _shown(metadata)]


def _shown(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is told of where a message comes from: not the thread's name in the checkpointer."""
    return {name: value for name, value in metadata.items() if name != "thread_id"}
