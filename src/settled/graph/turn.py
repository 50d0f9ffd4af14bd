"""One turn of a thread: continue what is open, accept the user's message if it is new, run until nothing is left.

Written once, as a generator over effects (look, go, ask the ledger, fill in answers) that the drivers of
`settled.graph.session` carry out. Knows nothing of locks. The subtle thing: what is open goes first, or is answered
from the ledger where it cannot go on, so that a new message never finds a tool call without an answer. A thread that
waits for a person goes on when the ledger says that he has decided, whoever told the ledger so.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.errors import GraphBubbleUp, GraphDrained
from langgraph.types import StateSnapshot

from settled.graph.answers import answer_from_ledger, answer_id, spoken_in, tool_message, turn_of
from settled.graph.approvals import requests_in
from settled.graph.approve import ids_of, waiting
from settled.graph.calls import Request, decision_of, requests_of
from settled.graph.channel import Ticket
from settled.graph.identity import Handle, correlation_of
from settled.graph.late import Belated, belated
from settled.state import ledger as operations
from settled.state.errors import AlreadyDecided, InvalidArguments, LedgerUnavailable, SettledError, ThreadBusy
from settled.state.model import Action
from settled.tools import effects
from settled.tools.decisions import Decider, withdraw
from settled.tools.effects import Ask

_log = logging.getLogger("settled")

MAX_ACTIONS = 200
"""Of a thread, the newest first: a step's open calls are among them."""

MAX_CONTINUES = 20
"""Each continuation finishes a step that was open; a thread that needs more is not getting anywhere."""


WhileOpen = Literal["keep", "reject", "withdraw"]
"""What happens to an open approval when its user writes a new message."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a turn has added to the thread, after what came late of earlier ones.

    `is_finished` is False when the session drained before the turn was over, or a call of it waits for a person;
    `approvals` are then the requests that wait, as the interrupt shows them.
    """

    messages: Sequence[AnyMessage]
    is_finished: bool = True
    approvals: Sequence[Mapping[str, Any]] = ()

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
class Catch:
    """Run the node `late` for calls of an idle thread. Answered by the state's values."""

    calls: Sequence[Belated]


@dataclass(frozen=True, slots=True)
class Carry:
    """Carry the action of a call on, without a word in the conversation. Answered by None."""

    request: Request


@dataclass(frozen=True, slots=True)
class Fill:
    """Write the answers of an open step's calls, all of them, in its place, and take their tickets away."""

    answers: Sequence[AnyMessage]
    tickets: Sequence[Ticket]


Effect = Look | Go | Catch | Carry | Fill | effects.Effect
"""Of the protocol's own effects a turn has only `Ask`."""

R = TypeVar("R")
Within = Generator[Effect, Any, R]
Turn = Within[Reply]


def turn(new: HumanMessage | None, handle: Handle, check: Callable[[], None], while_open: WhileOpen = "keep") -> Turn:
    """The order of things, under the lock; `check` raises ThreadBusy once that is lost."""
    late: Sequence[AnyMessage] = ()
    try:
        state = yield from _continued(new, handle, while_open)
        state, late = yield from _caught_up(handle, state, is_new=new is not None)
    except GraphDrained:
        if new is not None:
            raise ThreadBusy("the session drained before the message was accepted: send it again") from None
        return Reply((), is_finished=False)
    known: list[AnyMessage] = state.values.get("messages", [])
    if new is None:
        return _reply(turn_of(known), state)
    if _is_recorded(known, new):
        return _reply(_after(known, new), state)
    try:
        values = yield Go(new)
    except GraphDrained:
        state = yield Look()
        return Reply([*late, *_after(state.values.get("messages", []), new)], is_finished=False)
    check()
    stopped = values.get("__interrupt__", ())
    said = [*late, *_after(values["messages"], new)]
    return Reply(said, is_finished=not stopped, approvals=_approvals(one.value for one in stopped))


def _reply(messages: Sequence[AnyMessage], state: StateSnapshot) -> Reply:
    asked = _approvals(interrupt.value for task in state.tasks for interrupt in task.interrupts)
    return Reply(messages, is_finished=not state.tasks, approvals=asked)


def _approvals(payloads: Iterable[object]) -> list[Mapping[str, Any]]:
    return [request for payload in payloads for request in requests_in(payload)]


def _continued(new: HumanMessage | None, handle: Handle, while_open: WhileOpen) -> Within[StateSnapshot]:
    """Run what is open, until nothing is left or everything that is left waits for a person.

    A new message waits for neither: what is open when it cannot be continued is answered from the ledger.
    """
    tried = False
    for _ in range(MAX_CONTINUES):
        state: StateSnapshot = yield Look()
        is_new = new is not None and _of_id(state.values.get("messages", []), new.id) is None
        if not state.tasks:
            return state
        if _is_idle(state) and not is_new and not (yield from _is_decided(handle, state)):
            return state
        if tried and is_new and _is_idle(state):
            yield from _closed(handle, state, while_open)
            return (yield from _given_up(handle, state))
        tried = True
        try:
            yield Go()
        except (GraphBubbleUp, ThreadBusy, LedgerUnavailable):
            raise
        except Exception:
            if not is_new:
                raise
            _log.warning("the thread %s cannot go on, and takes a new message", handle.thread_id, exc_info=True)
            return (yield from _given_up(handle, (yield Look())))
    raise SettledError(f"the thread is still not idle after {MAX_CONTINUES} continuations")


def _is_decided(handle: Handle, state: StateSnapshot) -> Within[bool]:
    """Whether something that a thread waits for is decided by now, or its time is over."""
    asked = _asked(state)
    return bool(asked) and len((yield from waiting(handle, asked))) < len(asked)


def _asked(state: StateSnapshot) -> list[str]:
    """Return the actions that a thread waits for."""
    shown = _approvals(interrupt.value for task in state.tasks for interrupt in task.interrupts)
    return list(dict.fromkeys([*ids_of(_tickets(state)), *(str(one["action_id"]) for one in shown)]))


def _tickets(state: StateSnapshot) -> list[Ticket]:
    tickets: list[Ticket] = state.values.get("waiting", [])
    return tickets


def _closed(handle: Handle, state: StateSnapshot, while_open: WhileOpen) -> Within[None]:
    """Do with the open approvals what the session wants before a new message."""
    if while_open == "keep" or not _asked(state):
        return
    if while_open == "reject":
        raise ThreadBusy("a request of this thread waits for a person's decision: send the message again after it")
    query = operations.open_approvals(handle.tenant, thread_id=handle.thread_id, most=MAX_ACTIONS)
    who = Decider(by=handle.requester or REQUESTER)
    for approval in (yield Ask(query)):
        with suppress(AlreadyDecided):
            yield from withdraw(handle.tenant, approval.action_id, who, note="a new message came in")


REQUESTER = "requester"
"""Who takes a request back where the session names nobody."""


def _caught_up(
    handle: Handle, state: StateSnapshot, *, is_new: bool
) -> Within[tuple[StateSnapshot, Sequence[AnyMessage]]]:
    """Tell what became of calls of earlier turns, and return what that has added; what cannot be told now does not keep
    a new message waiting. While the thread waits for a person nothing can be told in it: what was approved is carried
    out all the same, and told later.
    """
    messages: list[AnyMessage] = state.values.get("messages", [])
    calls = yield from belated(messages, handle, only_open=bool(state.tasks))
    if not calls:
        return state, ()
    try:
        yield from _carried(handle, calls, state)
    except (GraphBubbleUp, ThreadBusy, LedgerUnavailable):
        raise
    except Exception:
        if not is_new:
            raise
        _log.warning("what came late in the thread %s cannot be told yet", handle.thread_id, exc_info=True)
    known = {message.id for message in messages}
    state = yield Look()
    return state, [message for message in state.values["messages"] if message.id not in known]


def _carried(handle: Handle, calls: Sequence[Belated], state: StateSnapshot) -> Within[None]:
    """Carry calls of earlier turns on. One that a crash has cut short is finished first, or it would be told twice:
    LangGraph keeps what an idle thread was sent, and shows it to nobody.
    """
    if state.tasks:
        for call in calls:
            yield Carry(call["request"])
        return
    yield Go()
    state = yield Look()
    calls = yield from belated(state.values["messages"], handle)
    if calls:
        yield Catch(calls)


def _given_up(handle: Handle, state: StateSnapshot) -> Within[StateSnapshot]:
    """Answer the open calls with what the ledger has of them, so that a message may follow."""
    messages: list[AnyMessage] = state.values.get("messages", [])
    requests = _open_calls(messages, handle.language or spoken_in(messages))
    if not requests:
        return state
    given = _given(messages, state)
    actions: list[Action] = yield Ask(operations.actions(handle.tenant, thread_id=handle.thread_id, most=MAX_ACTIONS))
    by_call = {action.correlation_id: action for action in reversed(actions)} | _by_ticket(state, actions)
    answers = []
    for request in requests:
        name = correlation_of(decision_of(request))
        recorded = tool_message(request, answer_from_ledger(request, by_call.get(name)))
        answers.append(given.get(recorded.id, recorded))
    yield Fill(answers, _tickets(state))
    state = yield Look()
    return state


def _by_ticket(state: StateSnapshot, actions: Sequence[Action]) -> dict[str | None, Action]:
    """Return the actions that calls wait for, by the call: it need not be the one that has begun the action."""
    by_id = {action.id: action for action in actions}
    held = {correlation_of(decision_of(one["request"])): str(one["action_id"]) for one in _tickets(state)}
    return {call: by_id[name] for call, name in held.items() if name in by_id}


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
