"""The channel of messages: a checkpoint holds what a step added, not the whole conversation again.

Owns the reducer. LangGraph reads a thread by replaying the writes since the last snapshot through it, in batches of
any size, so it must give the same list however the writes are cut: ids are never made here, and removing an unknown
id is nothing.
"""

from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AnyMessage, BaseMessage, RemoveMessage, convert_to_messages
from langgraph.channels.delta import DeltaChannel
from langgraph.graph.message import REMOVE_ALL_MESSAGES

SNAPSHOT_EVERY = 100
"""Updates between two full copies of the list: bounds what reading a thread replays."""


def merge(known: Sequence[Any], writes: Sequence[Any]) -> list[BaseMessage]:
    """Add messages as `add_messages` does: a known id replaces, a RemoveMessage removes, REMOVE_ALL_MESSAGES clears."""
    merged: list[BaseMessage | None] = list(_messages(known))
    place = {message.id: index for index, message in enumerate(merged) if message is not None}
    for message in _messages([one for write in writes for one in (write if isinstance(write, list) else [write])]):
        if isinstance(message, RemoveMessage):
            _remove(message.id, merged, place)
        elif message.id and message.id in place:
            merged[place[message.id]] = message
        else:
            place[message.id] = len(merged)
            merged.append(message)
    return [message for message in merged if message is not None]


def _remove(message_id: str | None, merged: list[BaseMessage | None], place: dict[str | None, int]) -> None:
    if message_id == REMOVE_ALL_MESSAGES:
        merged.clear()
        place.clear()
    elif message_id and (index := place.pop(message_id, None)) is not None:
        merged[index] = None


def _messages(given: Sequence[Any]) -> Sequence[BaseMessage]:
    if all(isinstance(one, BaseMessage) for one in given):
        return given
    return convert_to_messages(given)


class Conversation(TypedDict):
    """The state of an agent: its messages, and nothing that safety depends on."""

    messages: Annotated[list[AnyMessage], DeltaChannel(merge, snapshot_frequency=SNAPSHOT_EVERY)]
