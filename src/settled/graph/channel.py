"""The channels of an agent: its messages, and the calls that wait for a person.

Owns their reducers. A checkpoint holds what a step added to the messages, not the whole conversation again: LangGraph
reads a thread by replaying the writes since the last snapshot through the reducer, in batches of any size, so it must
give the same list however the writes are cut: ids are never made here, removing an unknown id is nothing, and where a
message goes depends on the list alone that it is added to.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, RemoveMessage, ToolMessage, convert_to_messages
from langgraph.channels.delta import DeltaChannel
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from settled.graph.answers import Answer
from settled.graph.calls import Request

SNAPSHOT_EVERY = 100
"""Updates between two full copies of the list: bounds what reading a thread replays."""


def merge(known: Sequence[Any], writes: Sequence[Any]) -> list[BaseMessage]:
    """Add messages as `add_messages` does: a known id replaces, a RemoveMessage removes, REMOVE_ALL_MESSAGES clears.

    A new answer takes its place among those behind the message that made its call, in the order of the calls.
    """
    merged: Merged = list(_messages(known))
    place = {message.id: index for index, message in enumerate(merged) if message is not None}
    for message in _messages([one for write in writes for one in (write if isinstance(write, list) else [write])]):
        if isinstance(message, RemoveMessage):
            _remove(message.id, merged, place)
        elif message.id and message.id in place:
            merged[place[message.id]] = message
        elif isinstance(message, ToolMessage):
            _insert(message, _place_of(message, merged), merged, place)
        else:
            place[message.id] = len(merged)
            merged.append(message)
    return [message for message in merged if message is not None]


Merged = list[BaseMessage | None]
"""The list while it is made: None is where a message was removed."""


def _insert(message: BaseMessage, at: int, merged: Merged, place: dict[str | None, int]) -> None:
    merged.insert(at, message)
    place.update((one.id, index) for index, one in enumerate(merged[at:], at) if one is not None)


def _place_of(answer: ToolMessage, merged: Merged) -> int:
    """Return where an answer goes: before the first one to a later call of the same message, else behind those to the
    earlier ones; at the end where no message has made its call.
    """
    for index in range(len(merged) - 1, -1, -1):
        said = merged[index]
        if isinstance(said, AIMessage) and answer.tool_call_id in (order := _order(said)):
            return _place_among(order, order[answer.tool_call_id], merged, index + 1)
    return len(merged)


def _order(said: AIMessage) -> dict[str | None, int]:
    """Return the places of a message's calls, as `requests_of` counts them."""
    calls = (*said.tool_calls, *said.invalid_tool_calls)
    return {call["id"]: place for place, call in reversed([*enumerate(calls)])}


def _place_among(order: Mapping[str | None, int], own: int, merged: Merged, start: int) -> int:
    for index in range(start, len(merged)):
        other = merged[index]
        is_answer = other is None or isinstance(other, ToolMessage)
        if not is_answer or (isinstance(other, ToolMessage) and order.get(other.tool_call_id, -1) > own):
            return index
    return len(merged)


def _remove(message_id: str | None, merged: Merged, place: dict[str | None, int]) -> None:
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
