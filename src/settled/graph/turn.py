"""One turn of a thread: continue what is open, accept the user's message if it is new, run until nothing is left.

Written once, as a generator over effects (look, go, ask the ledger, fill in answers) that the drivers of
`settled.graph.driving` carry out. Knows nothing of locks. The subtle thing: what is open goes first, or is answered
from the ledger where it cannot go on, so that a new message never finds a tool call without an answer. A thread that
waits for a person goes on when the ledger says that he has decided, whoever told the ledger so.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.errors import GraphBubbleUp, GraphDrained
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import StateSnapshot

from settled.graph.answers import answer_from_ledger, answer_id, spoken_in, tool_message, turn_of
from settled.graph.approvals import requests_in
from settled.graph.approve import ids_of, waiting
from settled.graph.calls import Request, decision_of, requests_of
from settled.graph.channel import Ticket
from settled.graph.hosting import Shape
from settled.graph.identity import Handle, correlation_of
from settled.graph.late import Belated, belated, is_late
from settled.graph.repair import IsAction, repaired
from settled.state import ledger as operations
from settled.state.errors import (
    AlreadyDecided,
    InvalidArguments,
    LedgerUnavailable,
    NotFound,
    SettledError,
    ThreadBusy,
)
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
    """Read where the thread stands, or stood `at` a checkpoint. Answered by a StateSnapshot."""

    at: str | None = None


@dataclass(frozen=True, slots=True)
class Go:
    """Run the graph with this input, or without one; from a checkpoint, if given. Answered by the state's values, or
    None by a driver that streams; GraphDrained is thrown in.
    """

    message: HumanMessage | None = None
    at: str | None = None


@dataclass(frozen=True, slots=True)
class Catch:
    """Run the node `late` for calls of an idle thread. Answered like `Go`."""

    calls: Sequence[Belated]


@dataclass(frozen=True, slots=True)
class Carry:
    """Carry the action of a call on, without a word in the conversation. Answered by None."""

    request: Request


@dataclass(frozen=True, slots=True)
class Fill:
    """Write messages into the thread in the place of the node that answers calls, and take tickets away. It is idle
    then, or goes on with its model.
    """

    messages: Sequence[BaseMessage]
    tickets: Sequence[Ticket] = ()
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Forget:
    """Forget what the open step's tasks have been given and have ended with: they run again, and ask again."""


@dataclass(frozen=True, slots=True)
class Fork:
    """Change the state that the thread had at a checkpoint, and make that its head."""

    at: str
    values: Mapping[str, Any]
    as_node: str | None


Effect = Look | Go | Catch | Carry | Fill | Forget | Fork | effects.Effect
"""Of the protocol's own effects a turn has only `Ask`."""

WRITES = Go | Catch | Carry | Fill | Forget | Fork
"""What must not be done without the lock."""

R = TypeVar("R")
Within = Generator[Effect, Any, R]
Turn = Within[Reply]


@dataclass(frozen=True, slots=True)
class Thread:
    """Whose thread a turn is about, and what its graph is like. `check` raises ThreadBusy once the lock is lost, and
    `is_action` knows the tools that have a ledger behind them.
    """

    handle: Handle
    check: Callable[[], None]
    shape: Shape = field(default_factory=Shape)
    while_open: WhileOpen = "keep"
    is_action: IsAction = lambda _: True

    def messages_in(self, state: StateSnapshot) -> list[AnyMessage]:
        """Return the conversation of a state."""
        messages: list[AnyMessage] = state.values.get(self.shape.messages, [])
        return messages


def turn(new: HumanMessage | None, thread: Thread) -> Turn:
    """The order of things, under the lock."""
    late: Sequence[AnyMessage] = ()
    try:
        state = yield from _continued(new, thread)
        state, late = yield from _caught_up(thread, state, is_new=new is not None)
    except GraphDrained:
        if new is not None:
            raise ThreadBusy("the session drained before the message was accepted: send it again") from None
        return Reply((), is_finished=False)
    known = thread.messages_in(state)
    if new is None:
        return _reply(turn_of(known), state)
    if _is_recorded(known, new):
        return _reply([*late, *_first_answer(known, new)], state)
    yield from _mended(thread, state)
    try:
        values = yield Go(new)
    except GraphDrained:
        state = yield Look()
        return Reply([*late, *_after(thread.messages_in(state), new)], is_finished=False)
    thread.check()
    if values is None or thread.shape.messages not in values:
        state = yield Look()
        return _reply([*late, *_after(thread.messages_in(state), new)], state)
    stopped = values.get("__interrupt__", ())
    said = [*late, *_after(values[thread.shape.messages], new)]
    return Reply(said, is_finished=not stopped, approvals=_approvals(one.value for one in stopped))


def replay(at: str, values: Mapping[str, Any] | None, as_node: str | None, thread: Thread) -> Turn:
    """Run a thread again from one of its checkpoints, with a changed state if given: a new branch, which is its head
    from then on. What was decided before meets its recorded outcome.
    """
    before: StateSnapshot = yield Look(at)
    if before.created_at is None:
        raise NotFound(f"the thread has no checkpoint {at!r}")
    try:
        if values is None:
            yield Go(at=at)
        else:
            yield Fork(at, values, as_node)
        state = yield from _continued(None, thread)
    except GraphDrained:
        return Reply((), is_finished=False)
    return _reply(turn_of(thread.messages_in(state)), state)


def unstick(thread: Thread) -> Turn:
    """Get a thread going that fails each time: forget what its open step was given, and go on; where that fails too,
    answer the open calls with what the ledger has of them. What still raises then is no call's fault.
    """
    state: StateSnapshot = yield Look()
    if state.tasks and (any(task.error for task in state.tasks) or not (_is_idle(state) and _asked(state))):
        _log.warning("the thread %s is unstuck: its open step begins anew", thread.handle.thread_id)
        yield Forget()
        try:
            yield Go()
        except (GraphBubbleUp, ThreadBusy, LedgerUnavailable):
            raise
        except Exception:
            state = yield Look()
            if not _open_calls(thread.messages_in(state), "en"):
                raise
            _log.warning("the thread %s fails again: its calls are answered", thread.handle.thread_id, exc_info=True)
            yield from _given_up(thread, state)
    return (yield from turn(None, thread))


def _reply(messages: Sequence[AnyMessage], state: StateSnapshot) -> Reply:
    asked = _approvals(interrupt.value for task in state.tasks for interrupt in task.interrupts)
    return Reply(messages, is_finished=not state.tasks, approvals=asked)


def _approvals(payloads: Iterable[object]) -> list[Mapping[str, Any]]:
    return [request for payload in payloads for request in requests_in(payload)]


def _continued(new: HumanMessage | None, thread: Thread) -> Within[StateSnapshot]:
    """Run what is open, until nothing is left or everything that is left waits for a person.

    A new message waits for neither: what is open when it cannot be continued is answered from the ledger.
    """
    tried = False
    for _ in range(MAX_CONTINUES):
        state: StateSnapshot = yield Look()
        is_new = new is not None and _of_id(thread.messages_in(state), new.id) is None
        if not state.tasks:
            return state
        is_idle = _is_idle(state)
        if is_idle and not is_new and not (yield from _is_decided(thread, state)):
            return state
        if is_idle and is_new and (tried or (yield from _is_somebody_elses(thread, state))):
            yield from _closed(thread, state)
            return (yield from _given_up(thread, state))
        tried = True
        try:
            yield Go()
        except (GraphBubbleUp, ThreadBusy, LedgerUnavailable):
            raise
        except Exception:
            if not is_new:
                raise
            _log.warning("the thread %s cannot go on, and takes a new message", thread.handle.thread_id, exc_info=True)
            return (yield from _given_up(thread, (yield Look())))
    raise SettledError(f"the thread is still not idle after {MAX_CONTINUES} continuations")


def _is_decided(thread: Thread, state: StateSnapshot) -> Within[bool]:
    """Whether something that a thread waits for is decided by now, or its time is over."""
    asked = _asked(state)
    return bool(asked) and len((yield from waiting(thread.handle, asked))) < len(asked)


def _is_somebody_elses(thread: Thread, state: StateSnapshot) -> Within[bool]:
    """Whether another graph's nodes wait, and nothing for them has been decided: running them again would only repeat
    what they do before they ask.
    """
    return not thread.shape.is_ours and not (yield from _is_decided(thread, state))


def _asked(state: StateSnapshot) -> list[str]:
    """Return the actions that a thread waits for."""
    shown = _approvals(interrupt.value for task in state.tasks for interrupt in task.interrupts)
    return list(dict.fromkeys([*ids_of(_tickets(state)), *(str(one["action_id"]) for one in shown)]))


def _tickets(state: StateSnapshot) -> list[Ticket]:
    tickets: list[Ticket] = state.values.get("waiting", [])
    return tickets


def _closed(thread: Thread, state: StateSnapshot) -> Within[None]:
    """Do with the open approvals what the session wants before a new message."""
    if thread.while_open == "keep" or not _asked(state):
        return
    if thread.while_open == "reject":
        raise ThreadBusy("a request of this thread waits for a person's decision: send the message again after it")
    handle = thread.handle
    query = operations.open_approvals(handle.tenant, thread_id=handle.thread_id, most=MAX_ACTIONS)
    who = Decider(by=handle.requester or REQUESTER)
    for approval in (yield Ask(query)):
        with suppress(AlreadyDecided):
            yield from withdraw(handle.tenant, approval.action_id, who, note="a new message came in")


REQUESTER = "requester"
"""Who takes a request back where the session names nobody."""


def _caught_up(
    thread: Thread, state: StateSnapshot, *, is_new: bool
) -> Within[tuple[StateSnapshot, Sequence[AnyMessage]]]:
    """Tell what became of calls of earlier turns, and return what that has added; what cannot be told now does not keep
    a new message waiting. While the thread waits for a person nothing can be told in it: what was approved is carried
    out all the same, and told later.
    """
    if not thread.shape.is_ours:
        return state, ()
    messages = thread.messages_in(state)
    calls = yield from belated(messages, thread.handle, only_open=bool(state.tasks))
    if not calls:
        return state, ()
    try:
        yield from _carried(thread, calls, state)
    except (GraphBubbleUp, ThreadBusy, LedgerUnavailable):
        raise
    except Exception:
        if not is_new:
            raise
        _log.warning("what came late in the thread %s cannot be told yet", thread.handle.thread_id, exc_info=True)
    known = {message.id for message in messages}
    state = yield Look()
    return state, [message for message in thread.messages_in(state) if message.id not in known]


def _carried(thread: Thread, calls: Sequence[Belated], state: StateSnapshot) -> Within[None]:
    """Carry calls of earlier turns on. One that a crash has cut short is finished first, or it would be told twice:
    LangGraph keeps what an idle thread was sent, and shows it to nobody.
    """
    if state.tasks:
        for call in calls:
            yield Carry(call["request"])
        return
    yield Go()
    state = yield Look()
    calls = yield from belated(thread.messages_in(state), thread.handle)
    if calls:
        yield Catch(calls)


def _mended(thread: Thread, state: StateSnapshot) -> Within[None]:
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


def _given_up(thread: Thread, state: StateSnapshot) -> Within[StateSnapshot]:
    """Answer the open calls with what the ledger has of them, so that a message may follow."""
    messages = thread.messages_in(state)
    requests = _open_calls(messages, thread.handle.language or spoken_in(messages))
    if not requests:
        return state
    ours = yield from _recorded(thread, requests, state)
    given = _given(thread, state)
    answers = [given.get(one["tool_call_id"]) or ours[answer_id(one)] for one in requests]
    yield Fill(answers, _tickets(state))
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
    by_call = {action.correlation_id: action for action in reversed(actions)} | _by_ticket(state, actions)
    told_of = ((one, by_call.get(correlation_of(decision_of(one)))) for one in requests)
    return {answer_id(one): tool_message(one, answer_from_ledger(one, action)) for one, action in told_of}


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


def _said(messages: Sequence[AnyMessage]) -> AIMessage | None:
    """Return what the model said last in this turn."""
    return next((message for message in reversed(turn_of(messages)) if isinstance(message, AIMessage)), None)


def _open_calls(messages: Sequence[AnyMessage], language: str) -> list[Request]:
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


def _is_recorded(known: Sequence[AnyMessage], new: HumanMessage) -> bool:
    """Whether the thread has this message already."""
    same = _of_id(known, new.id)
    if same is None:
        return False
    if same.content != new.content or not isinstance(same, HumanMessage):
        raise InvalidArguments("message_id", "was used for another message of this thread")
    return True


def _first_answer(messages: Sequence[AnyMessage], new: HumanMessage) -> list[AnyMessage]:
    """Return what a message was answered with at the time: what came late stands after it."""
    return [message for message in _after(messages, new) if not is_late(message)]


def _after(messages: Sequence[AnyMessage], new: HumanMessage) -> Sequence[AnyMessage]:
    """Return what follows a message of the user, up to the next one."""
    start = next((index for index, message in enumerate(messages) if message.id == new.id), len(messages)) + 1
    rest = messages[start:]
    end = next((index for index, message in enumerate(rest) if isinstance(message, HumanMessage)), len(rest))
    return rest[:end]
