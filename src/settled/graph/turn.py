"""One turn of a thread: continue what is open, accept the user's message if it is new, run until nothing is left.

Written once, as a generator over effects (look, go, ask the ledger, fill in answers) that the drivers of
`settled.graph.driving` carry out. Knows nothing of locks. The subtle thing: what is open goes first, or is answered
from the ledger where it cannot go on, so that a new message never finds a tool call without an answer. A thread that
waits for a person goes on when the ledger says that he has decided, whoever told the ledger so.
"""

import logging
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.errors import GraphBubbleUp, GraphDrained, InvalidUpdateError
from langgraph.types import StateSnapshot

from settled.graph.answers import Answer, answer_from_ledger, answer_id, turn_of
from settled.graph.approvals import requests_in
from settled.graph.approve import ids_of, waiting
from settled.graph.identity import Handle
from settled.graph.late import Belated, belated, is_late, told
from settled.graph.mending import MAX_ACTIONS, given_up, mended, open_calls, tickets_of
from settled.graph.moves import Carry, Catch, Effect, Forget, Fork, Go, Look, Rest, Tell, Thread, Within
from settled.state import ledger as operations
from settled.state import threads
from settled.state.errors import (
    AlreadyDecided,
    InvalidArguments,
    LedgerUnavailable,
    NotFound,
    SettledError,
    ThreadBusy,
)
from settled.tools.decisions import Decider, withdraw
from settled.tools.effects import Ask

_log = logging.getLogger("settled")

MAX_CONTINUES = 20
"""Each continuation finishes a step that was open; a thread that needs more is not getting anywhere."""


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


Turn = Generator[Effect, Any, Reply]


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
    yield from mended(thread, state)
    try:
        values = yield Go(new)
    except GraphDrained:
        state = yield Look()
        return Reply([*late, *_after(thread.messages_in(state), new)], is_finished=False)
    thread.check()
    if values is None or not thread.shape.is_ours:  # what another graph returns need not be its state
        state = yield Look()
        return _reply([*late, *_after(thread.messages_in(state), new)], state)
    stopped = values.get("__interrupt__", ())
    said = [*late, *_after(values[thread.shape.messages], new)]
    return Reply(said, is_finished=not stopped, approvals=_approvals(one.value for one in stopped))


def registered(running: Turn, handle: Handle, agent: str) -> Turn:
    """Run a turn that a worker may go on with where it does not end: one that waits for a person has ended, one that
    raises or drains has not.
    """
    begun = yield Ask(
        threads.open_turn(
            handle.tenant,
            handle.thread_id,
            agent=agent,
            requester=handle.requester,
            roles=handle.roles,
            language=handle.language,
            pause_s=LEFT_AFTER_S,
        )
    )
    reply = yield from running
    if reply.is_finished or reply.approvals:
        yield Ask(threads.end_turn(handle.tenant, handle.thread_id, begun))
    return reply


LEFT_AFTER_S = 15.0
"""A turn that takes longer is looked at by workers: whether its lock is free, because its process has died."""


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
            if not open_calls(thread.messages_in(state), "en"):
                raise
            _log.warning("the thread %s fails again: its calls are answered", thread.handle.thread_id, exc_info=True)
            yield from given_up(thread, state)
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
            return (yield from given_up(thread, state))
        tried = True
        try:
            yield Go()
        except (GraphBubbleUp, ThreadBusy, LedgerUnavailable):
            raise
        except Exception:
            if not is_new:
                raise
            _log.warning("the thread %s cannot go on, and takes a new message", thread.handle.thread_id, exc_info=True)
            return (yield from given_up(thread, (yield Look())))
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
    return list(dict.fromkeys([*ids_of(tickets_of(state)), *(str(one["action_id"]) for one in shown)]))


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
    if not thread.shape.replaces:
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
    if state.tasks or not thread.shape.is_ours:
        messages = thread.messages_in(state)
        carried = yield from _answered(thread, calls, messages)
        if not state.tasks:
            yield from _told(thread, carried)
        return
    yield Go()
    state = yield Look()
    calls = yield from belated(thread.messages_in(state), thread.handle)
    if calls:
        yield Catch(calls)


def _answered(
    thread: Thread, calls: Sequence[Belated], messages: Sequence[AnyMessage]
) -> Within[list[tuple[Belated, Answer]]]:
    """Carry calls on without a graph, and return the answers of those that have one."""
    found = []
    for call in calls:
        answer: Answer | None = yield Carry(call["request"])
        if answer is None:
            answer = yield from _settled(thread, call, messages)
        if answer is not None:
            found.append((call, answer))
    return found


def _settled(thread: Thread, call: Belated, messages: Sequence[AnyMessage]) -> Within[Answer | None]:
    """Return what the ledger has of a call that cannot be carried on here; None while it may still be carried out."""
    old = _of_id(messages, answer_id(call["request"]))
    record = old.artifact if isinstance(old, ToolMessage) else {}
    actions = yield Ask(operations.load_all(thread.handle.tenant, [str(record.get("action_id"))]))
    done = [one for one in actions if not one.is_open and one.superseded_by is None]
    return answer_from_ledger(call["request"], done[0]) if done else None


def _told(thread: Thread, carried: Sequence[tuple[Belated, Answer]]) -> Within[None]:
    """Write into an idle thread of somebody's graph what became of calls; it is idle afterwards too."""
    messages = told([call for call, _ in carried], [answer for _, answer in carried])["messages"]
    if not messages:
        return
    try:
        yield Tell(messages)
    except InvalidUpdateError:  # several nodes have ended the turn at once
        yield Tell(messages, thread.shape.answers)
    state: StateSnapshot = yield Look()
    if state.tasks:
        yield Rest()


def _is_idle(state: StateSnapshot) -> bool:
    """`next` is no sign: it is empty too when every branch has ended and the step is not closed yet."""
    if not any(task.interrupts for task in state.tasks):
        return not state.tasks
    return all(task.interrupts or task.result is not None for task in state.tasks)


def _of_id(messages: Sequence[AnyMessage], name: str | None) -> AnyMessage | None:
    return next((message for message in messages if message.id == name), None)


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
