"""The channels of an agent: its messages, and the calls that wait for a person.

Owns their reducers. A checkpoint holds what a step added to the messages, not the whole conversation again: LangGraph
reads a thread by replaying the writes since the last snapshot through the reducer, in batches of any size, so it must
give the same list however the writes are cut: ids are never made here, and removing an unknown id is nothing.
"""

from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AnyMessage, BaseMessage, RemoveMessage, convert_to_messages
from langgraph.channels.delta import DeltaChannel
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from settled.graph.answers import Answer
from settled.graph.calls import Request

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


class Ticket(TypedDict):
    """A call that waits for a person, as plain JSON: the action and the fingerprint that he is shown.

    `answer` is what its model is told if nobody waits any longer, `problem` why the last answer could not be used. One
    without an action takes the call's ticket away.
    """

    request: Request
    action_id: str | None
    fingerprint: str
    answer: Answer | None
    problem: str | None


def renew(known: list[Ticket], update: list[Ticket]) -> list[Ticket]:
    """Put each call's newest ticket in the place of its last one."""
    tickets = {call_of(ticket): ticket for ticket in known}
    for ticket in update:
        if ticket["action_id"] is None:
            tickets.pop(call_of(ticket), None)
        else:
            tickets[call_of(ticket)] = ticket
    return list(tickets.values())


def call_of(ticket: Ticket) -> tuple[str, str]:
    """Return which call a ticket is for."""
    return ticket["request"]["message_id"], ticket["request"]["tool_call_id"]


def gone(ticket: Ticket) -> Ticket:
    """Return the update that takes a ticket away."""
    return {**ticket, "action_id": None, "answer": None, "problem": None}


class Talk(TypedDict):
    """What an agent is given and gives back."""

    messages: Annotated[list[AnyMessage], DeltaChannel(merge, snapshot_frequency=SNAPSHOT_EVERY)]


class Conversation(Talk):
    """The state of an agent, and nothing that safety depends on."""

    waiting: Annotated[list[Ticket], renew]
