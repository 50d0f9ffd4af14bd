"""Which calls of a conversation still need something: an answer, a person, another visit.

Pure, over messages and tickets. A ticket speaks of one call of one message; where the conversation was changed under it
(a fork with edited arguments, a message taken out), it is stale, and the call that stands there now is made anew.
"""

from collections.abc import Sequence

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, RemoveMessage, ToolMessage

from settled.graph.answers import Answer, answer_id, tool_message, turn_of
from settled.graph.calls import Request, requests_of
from settled.graph.channel import Conversation, Ticket, call_of, gone


def is_waiting(answer: Answer) -> bool:
    """Whether an answer says that a person is to decide, and what about."""
    return "fingerprint" in answer


def ticket_of(request: Request, answer: Answer, problem: str | None = None) -> Ticket:
    """Return the ticket of a call that waits."""
    return Ticket(
        request=request,
        action_id=answer["artifact"]["action_id"],
        fingerprint=answer["fingerprint"],
        answer=answer,
        problem=problem,
    )


def is_stale(ticket: Ticket, messages: Sequence[BaseMessage]) -> bool:
    """Whether the call that a ticket is for is answered, or does not stand in the conversation as it was made."""
    request = ticket["request"]
    for message in reversed(messages):
        if message.id == answer_id(request):
            return True
        if message.id == request["message_id"]:
            return not isinstance(message, AIMessage) or not any(
                _is_same(request, other) for other in requests_of(message, request["language"])
            )
    return True


def unheard(state: Conversation, language: str) -> list[Request]:
    """Return the calls of the turn's last message with calls that have neither an answer nor a ticket as they stand."""
    messages: Sequence[AnyMessage] = state["messages"]
    said = next((m for m in reversed(turn_of(messages)) if isinstance(m, AIMessage)), None)
    if said is None:
        return []
    answered = {message.id for message in messages if isinstance(message, ToolMessage)}
    held = {call_of(ticket): ticket["request"] for ticket in state["waiting"]}
    requests = [request for request in requests_of(said, language) if answer_id(request) not in answered]
    return [request for request in requests if not _is_same(held.get(_call(request)), request)]


def set_aside(state: Conversation) -> tuple[list[AnyMessage], dict[str, list[object]]]:
    """Return the messages with the waiting calls answered as waiting, before the message that a run without a session
    has put after them; and the update that makes it so.
    """
    messages = state["messages"]
    start = len(messages)
    while start and isinstance(messages[start - 1], HumanMessage):
        start -= 1
    new = messages[start:]
    told = [tool_message(ticket["request"], ticket["answer"]) for ticket in state["waiting"] if ticket["answer"]]
    moved = [*(RemoveMessage(id=str(message.id)) for message in new), *told, *new]
    return [*messages[:start], *told, *new], {
        "messages": list(moved),
        "waiting": [gone(ticket) for ticket in state["waiting"]],
    }


def _is_same(one: Request | None, other: Request) -> bool:
    return one is not None and all(one[name] == other[name] for name in ("name", "args", "tool_call_id", "occurrence"))


def _call(request: Request) -> tuple[str, str]:
    return request["message_id"], request["tool_call_id"]
