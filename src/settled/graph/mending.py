"""Calls that nobody goes on with: each gets its answer, so that a message may follow.

Owns the finding of what is open at the end of a conversation or within it, and of what is known of it: what a sibling
has ended with already, what the ledger has, or that nothing was begun.
"""

from collections.abc import Mapping, Sequence

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, RemoveMessage, ToolMessage
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import StateSnapshot

from settled.graph.answers import Answer, answer_from_ledger, answer_id, spoken_in, tool_message, turn_of
from settled.graph.calls import Request, decision_of, requests_of
from settled.graph.chain_recall import chain_recalled
from settled.graph.channel import Ticket
from settled.graph.identity import correlation_of
from settled.graph.moves import Fill, Look, Thread, Within
from settled.graph.repair import IsAction, repaired
from settled.state import ledger as operations
from settled.state.model import Action
from settled.tools.effects import Ask

MAX_ACTIONS = 200
"""Of a thread, the newest first: a step's open calls are among them."""


def mended(thread: Thread, state: StateSnapshot) -> Within[None]:
    """Answer the calls of earlier turns that nobody has answered, in their place: a run without a session, which a new
    message cut short, leaves such ones.
    """
    messages = thread.messages_in(state)
    whole = yield from repaired(messages, thread.handle, thread.is_action)
    if whole is None or not (thread.shape.is_ours or _has_action_among(whole, messages, thread.is_action)):
        return
    afresh: list[BaseMessage] = [RemoveMessage(id=REMOVE_ALL_MESSAGES), *whole]
    yield Fill(afresh, node="late" if thread.shape.is_ours else None)


def _has_action_among(whole: Sequence[AnyMessage], messages: Sequence[AnyMessage], is_action: IsAction) -> bool:
    """Whether one of the answers that are new is to an action; calls of nothing else are somebody's own affair."""
    known = {id(message) for message in messages}
    return any(is_action(message.name or "") for message in whole if id(message) not in known)


def given_up(thread: Thread, state: StateSnapshot) -> Within[StateSnapshot]:
    """Answer the open calls with what the ledger has of them, so that a message may follow."""
    messages = thread.messages_in(state)
    requests = open_calls(messages, thread.handle.language or spoken_in(messages))
    if not requests:
        return state
    ours = yield from _recorded(thread, requests, state)
    given = _given(thread, state)
    answers = [given.get(one["tool_call_id"]) or ours[answer_id(one)] for one in requests]
    yield Fill(answers, tickets_of(state))
    state = yield Look()
    return state


def _recorded(thread: Thread, requests: Sequence[Request], state: StateSnapshot) -> Within[dict[str, AnyMessage]]:
    """Return what the ledger has of the calls, as the messages that answer them, by their ids."""
    handle = thread.handle
    if not thread.shape.is_ours:
        said = _said(thread.messages_in(state))
        whole = yield from repaired([said] if said else [], handle, thread.is_action)
        told = [message for message in whole or () if isinstance(message, ToolMessage)]
        return {f"{requests[0]['message_id']}/{message.tool_call_id}": message for message in told}
    actions: list[Action] = yield Ask(operations.actions(handle.tenant, thread_id=handle.thread_id, most=MAX_ACTIONS))
    by_id = {action.id: action for action in actions}
    by_call = _by_correlation(by_id) | _by_ticket(state, by_id)
    recorded: dict[str, AnyMessage] = {}
    for one in requests:
        action = by_call.get(correlation_of(decision_of(one)))
        of_chain: Answer | None = yield from chain_recalled(one, handle, action)
        recorded[answer_id(one)] = tool_message(one, of_chain or _answer(one, action, by_id))
    return recorded


Actions = Mapping[str, Action]


def _answer(request: Request, asked_for: Action | None, by_id: Actions) -> Answer:
    """Return the answer to a call, with what people have changed its action into."""
    now = changed = asked_for
    for _ in by_id:
        if changed is None:
            break
        now, changed = changed, by_id.get(changed.superseded_by or "")
    return answer_from_ledger(request, now, None if now is asked_for else asked_for)


def _by_correlation(by_id: Actions) -> dict[str | None, Action]:
    """Return the newest action that each call has begun; of one that a person has changed, the one it asked for."""
    begun = [action for action in by_id.values() if action.supersedes not in by_id]
    return {action.correlation_id: action for action in reversed(begun)}


def _by_ticket(state: StateSnapshot, by_id: Actions) -> dict[str | None, Action]:
    """Return the actions that calls wait for and have not begun themselves, by the call."""
    held = {correlation_of(decision_of(one["request"])): str(one["action_id"]) for one in tickets_of(state)}
    met = {call: by_id[name] for call, name in held.items() if name in by_id}
    return {call: action for call, action in met.items() if action.correlation_id != call}


def tickets_of(state: StateSnapshot) -> list[Ticket]:
    tickets: list[Ticket] = state.values.get("waiting", [])
    return tickets


def _said(messages: Sequence[AnyMessage]) -> AIMessage | None:
    """Return what the model said last in this turn."""
    return next((message for message in reversed(turn_of(messages)) if isinstance(message, AIMessage)), None)


def open_calls(messages: Sequence[AnyMessage], language: str) -> list[Request]:
    """Return the calls of the model's last message when they are not all answered."""
    said = _said(messages)
    if said is None:
        return []
    requests = requests_of(said, language)
    answered = _answers_after(messages)
    return requests if any(request["tool_call_id"] not in answered for request in requests) else []


def _answers_after(messages: Sequence[AnyMessage]) -> dict[str, AnyMessage]:
    """Return the answers that follow the model's last message, by the ids of their calls."""
    found: dict[str, AnyMessage] = {}
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            break
        if isinstance(message, ToolMessage):
            found[message.tool_call_id] = message
    return found


def _given(thread: Thread, state: StateSnapshot) -> dict[str, AnyMessage]:
    """Return the answers that the calls have by now, those of an open step too, which a new message would drop."""
    given = _answers_after(thread.messages_in(state))
    for task in state.tasks:
        told = task.result.get(thread.shape.messages, []) if isinstance(task.result, dict) else []
        given |= {one.tool_call_id: one for one in told if isinstance(one, ToolMessage)}
    return given
