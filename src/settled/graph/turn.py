"""One turn of a thread: continue what is open, accept the user's message if it is new, run until nothing is left.

Written once, as a generator over effects (look, go, ask the ledger, fill in answers) that the drivers of
`settled.graph.session` carry out. Knows nothing of locks. The subtle thing: what is open goes first, or is answered
from the ledger where it cannot go on, so that a new message never finds a tool call without an answer.
"""

import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.errors import GraphDrained
from langgraph.types import StateSnapshot

from settled.graph.agent import spoken_in
from settled.graph.answers import answer_from_ledger, answer_id, tool_message, turn_of
from settled.graph.calls import Request, decision_of, requests_of
from settled.graph.identity import Handle, correlation_of
from settled.state import ledger as operations
from settled.state.errors import InvalidArguments, LedgerUnavailable, SettledError, ThreadBusy
from settled.state.ledger import Query
from settled.state.model import Action

_log = logging.getLogger("settled")

MAX_ACTIONS = 200
"""Of a thread, the newest first: a step's open calls are among them."""

MAX_CONTINUES = 20
"""Each continuation finishes a step that was open; a thread that needs more is not getting anywhere."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a turn has added to the thread. `is_finished` is False when the session drained before the turn was over, or
    a call of it waits for a person.
    """

    messages: Sequence[AnyMessage]
    is_finished: bool = True

    @property
    def text(self) -> str:
        """What the user reads: the agent's last words, or nothing yet."""
        last = self.messages[-1] if self.messages else None
        return str(last.text) if isinstance(last, AIMessage) and not last.tool_calls else ""

    @property
    def tool_messages(self) -> list[ToolMessage]:
        """What the model was told."""
        return [message for message in self.messages if isinstance(message, ToolMessage)]


@dataclass(frozen=True, slots=True)
class Look:
    """Read where the thread stands. Answered by a StateSnapshot."""


@dataclass(frozen=True, slots=True)
class Go:
    """Run the graph with this input, or without one. Answered by the state's values; GraphDrained is thrown in."""

    message: HumanMessage | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the ledger. Answered by what the query answers."""

    query: Query[Any]


@dataclass(frozen=True, slots=True)
class Fill:
    """Write the answers of an open step's calls, all of them, in its place."""

    answers: Sequence[AnyMessage]


Effect = Look | Go | Ask | Fill
Turn = Generator[Effect, Any, Reply]


def turn(new: HumanMessage | None, handle: Handle, check: Callable[[], None]) -> Turn:
    """The order of things, under the lock; `check` raises ThreadBusy once that is lost."""
    try:
        state = yield from _continued(new, handle)
    except GraphDrained:
        if new is not None:
            raise ThreadBusy("the session drained before the message was accepted: send it again") from None
        return Reply((), is_finished=False)
    known: list[AnyMessage] = state.values.get("messages", [])
    if new is None:
        return Reply(turn_of(known), is_finished=not state.tasks)
    if _is_recorded(known, new):
        return Reply(_after(known, new), is_finished=not state.tasks)
    try:
        values = yield Go(new)
    except GraphDrained:
        state = yield Look()
        return Reply(_after(state.values.get("messages", []), new), is_finished=False)
    check()
    return Reply(_after(values["messages"], new), is_finished="__interrupt__" not in values)


def _continued(new: HumanMessage | None, handle: Handle) -> Generator[Effect, Any, StateSnapshot]:
    """Run what is open, until nothing is left or everything that is left waits for a person.

    A new message waits for neither: what is open when it cannot be continued is answered from the ledger. (A later
    policy may let a thread wait for a person's approval: it goes here.)
    """
    tried = False
    for _ in range(MAX_CONTINUES):
        state: StateSnapshot = yield Look()
        is_new = new is not None and _of_id(state.values.get("messages", []), new.id) is None
        if not state.tasks or (_is_idle(state) and not is_new):
            return state
        if tried and _is_idle(state):
            return (yield from _given_up(handle, state))
        tried = True
        try:
            yield Go()
        except (GraphDrained, ThreadBusy, LedgerUnavailable):
            raise
        except Exception:
            if not is_new:
                raise
            _log.warning("the thread %s cannot go on, and takes a new message", handle.thread_id, exc_info=True)
            return (yield from _given_up(handle, (yield Look())))
    raise SettledError(f"the thread is still not idle after {MAX_CONTINUES} continuations")


def _given_up(handle: Handle, state: StateSnapshot) -> Generator[Effect, Any, StateSnapshot]:
    """Answer the open calls with what the ledger has of them, so that a message may follow."""
    messages: list[AnyMessage] = state.values.get("messages", [])
    requests = _open_calls(messages, handle.language or spoken_in(messages))
    if not requests:
        return state
    given = _given(messages, state)
    actions: list[Action] = yield Ask(operations.actions(handle.tenant, thread_id=handle.thread_id, most=MAX_ACTIONS))
    by_call = {action.correlation_id: action for action in reversed(actions)}
    answers = []
    for request in requests:
        name = correlation_of(decision_of(request))
        recorded = tool_message(request, answer_from_ledger(request, by_call.get(name)))
        answers.append(given.get(recorded.id, recorded))
    yield Fill(answers)
    state = yield Look()
    return state


def _is_idle(state: StateSnapshot) -> bool:
    """`next` is no sign: it is empty too when every branch has ended and the step is not closed yet."""
    if not any(task.interrupts for task in state.tasks):
        return not state.tasks
    return all(task.interrupts or task.result is not None for task in state.tasks)


def _of_id(messages: Sequence[AnyMessage], name: str | None) -> AnyMessage | None:
    return next((message for message in messages if message.id == name), None)


def _open_calls(messages: Sequence[AnyMessage], language: str) -> list[Request]:
    """Return the calls of the model's last message when they are not all answered."""
    said = next((message for message in reversed(turn_of(messages)) if isinstance(message, AIMessage)), None)
    if said is None:
        return []
    requests = requests_of(said, language)
    answered = {message.id for message in messages if isinstance(message, ToolMessage)}
    return requests if any(answer_id(request) not in answered for request in requests) else []


def _given(messages: Sequence[AnyMessage], state: StateSnapshot) -> dict[str | None, AnyMessage]:
    """Return the answers that the calls have by now, those of an open step too, which a new message would drop."""
    results = [task.result.get("messages", []) for task in state.tasks if task.result]
    return {message.id: message for given in (messages, *results) for message in given}


def _is_recorded(known: Sequence[AnyMessage], new: HumanMessage) -> bool:
    """Whether the thread has this message already."""
    same = _of_id(known, new.id)
    if same is None:
        return False
    if same.content != new.content or not isinstance(same, HumanMessage):
        raise InvalidArguments("message_id", "was used for another message of this thread")
    return True


def _after(messages: Sequence[AnyMessage], new: HumanMessage) -> Sequence[AnyMessage]:
    """Return what follows a message of the user, up to the next one."""
    start = next((index for index, message in enumerate(messages) if message.id == new.id), len(messages)) + 1
    rest = messages[start:]
    end = next((index for index, message in enumerate(rest) if isinstance(message, HumanMessage)), len(rest))
    return rest[:end]
