"""A session: the way to run a thread.

Owns the order of things: take the thread's lock, continue unfinished work, accept the user's message if it is new,
run until nothing is left. Because unfinished work goes first, or is answered from the ledger where it cannot go on, a
new message never finds a tool call without an answer. The lock lives on a connection of its own and dies with its
process, so whoever holds it knows that a running action of another session is orphaned, and may reconcile it at once
instead of waiting for its lease. When the lock is lost on the way, the turn ends without another write.

The order is written once, in `_turn`, as a generator over two effects; a sync and an async driver carry it out.
"""

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import uuid4

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl
from langgraph.types import Durability, StateSnapshot

from settled.graph.agent import DEFAULT_TENANT, Agent, spoken_in, tenant_of
from settled.graph.answers import answer_from_ledger, answer_id, tool_message, turn_of
from settled.graph.calls import Request, decision_of, fit, requests_of
from settled.graph.engine import is_alive
from settled.graph.identity import SESSION_KEY, SESSION_OWNER, Handle, correlation_of, thread_name
from settled.state import ledger as operations
from settled.state.canonical import check_arguments
from settled.state.errors import ContractError, InvalidArguments, LedgerUnavailable, SettledError, ThreadBusy
from settled.state.ledger import Query
from settled.state.locks import ThreadLock
from settled.state.model import Action
from settled.state.store import Ledger
from settled.tools.perform import WAIT_S

_log = logging.getLogger("settled")

FIRST_POLL_S, LAST_POLL_S = 0.05, 0.5
"""Between tries for the lock; each costs a connection."""

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
class _Look:
    """Read where the thread stands. Answered by a StateSnapshot."""


@dataclass(frozen=True, slots=True)
class _Go:
    """Run the graph with this input, or without one. Answered by the state's values; GraphDrained is thrown in."""

    message: HumanMessage | None = None


@dataclass(frozen=True, slots=True)
class _Ask:
    """Ask the ledger. Answered by what the query answers."""

    query: Query[Any]


@dataclass(frozen=True, slots=True)
class _Fill:
    """Write the answers of an open step's calls, all of them, in its place."""

    answers: Sequence[AnyMessage]


_Effect = _Look | _Go | _Ask | _Fill
_Turn = Generator[_Effect, Any, Reply]


class Session:
    """One thread of an agent. Any number of sessions may be made for a thread; they take turns."""

    def __init__(
        self,
        agent: Agent,
        *,
        ledger: Ledger,
        thread_id: str,
        tenant: str | None = None,
        requester: str | None = None,
        language: str | None = None,
        wait_s: float = WAIT_S,
        durability: Durability = "sync",
    ) -> None:
        """`agent` comes from `build_agent`, with a checkpointer. `requester` is the user on whose behalf actions run.
        `tenant` is by default the agent's own.

        Raises ContractError for an agent without a checkpointer or of another tenant, and names that cannot be names.
        """
        if not agent.checkpointer:
            raise ContractError("a session needs an agent with a checkpointer: build_agent(..., checkpointer=...)")
        tenant = _tenant(agent, tenant)
        self._agent = agent
        self._ledger = ledger
        self._wait_s = wait_s
        self._durability: Durability = durability
        self._control = RunControl()
        self._name = thread_name(tenant, thread_id)
        self._handle = Handle(tenant, thread_id, requester, language, owner_prefix=SESSION_OWNER)
        self.config = self._config(self._handle)

    def send(self, message: str | HumanMessage, *, message_id: str | None = None) -> Reply:
        """Give the thread a message of its user, and run until nothing is left.

        A `message_id` that the thread knows already (a double click, a retry of the client) is not added again: the
        recorded answer comes back; where there is none, the turn goes on. Raises ThreadBusy when another session has
        the thread for longer than `wait_s` or this one has lost it, LedgerUnavailable when its lock cannot be asked
        for, InvalidArguments for a message that cannot be stored or an id that was used for another one. What the model
        raises comes out as it is: the message is kept, and the next one is accepted all the same.
        """
        new = _human(message, message_id)
        with self._locked() as lock:
            return self._drive(self._turn(new, lock), lock)

    async def asend(self, message: str | HumanMessage, *, message_id: str | None = None) -> Reply:
        """As `send`, in an event loop."""
        new = _human(message, message_id)
        async with self._alocked() as lock:
            return await self._adrive(self._turn(new, lock), lock)

    def resume(self) -> Reply:
        """Continue what a crash, a cancellation or a drain left open; harmless when there is nothing."""
        with self._locked() as lock:
            return self._drive(self._turn(None, lock), lock)

    async def aresume(self) -> Reply:
        """As `resume`, in an event loop."""
        async with self._alocked() as lock:
            return await self._adrive(self._turn(None, lock), lock)

    def drain(self, reason: str = "drain") -> None:
        """Stop at the next step, for good: calls that are under way end and are recorded. From any thread or signal."""
        self._control.request_drain(reason)

    @contextmanager
    def draining_on_sigterm(self) -> Iterator[None]:
        """Drain when the process is asked to end, within the block. Call it in the main thread."""
        before = signal.signal(signal.SIGTERM, lambda *_: self.drain("SIGTERM"))
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _turn(self, new: HumanMessage | None, lock: ThreadLock) -> _Turn:
        """The order of things, under the lock."""
        try:
            state = yield from self._continued(new)
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
            values = yield _Go(new)
        except GraphDrained:
            state = yield _Look()
            return Reply(_after(state.values.get("messages", []), new), is_finished=False)
        _check(lock)
        return Reply(_after(values["messages"], new), is_finished="__interrupt__" not in values)

    def _continued(self, new: HumanMessage | None) -> Generator[_Effect, Any, StateSnapshot]:
        """Run what is open, until nothing is left or everything that is left waits for a person.

        A new message waits for neither: what is open when it cannot be continued is answered from the ledger. (A later
        policy may let a thread wait for a person's approval: it goes here.)
        """
        tried = False
        for _ in range(MAX_CONTINUES):
            state: StateSnapshot = yield _Look()
            is_new = new is not None and _of_id(state.values.get("messages", []), new.id) is None
            if not state.tasks or (_is_idle(state) and not is_new):
                return state
            if tried and _is_idle(state):
                return (yield from self._given_up(state))
            tried = True
            try:
                yield _Go()
            except (GraphDrained, ThreadBusy, LedgerUnavailable):
                raise
            except Exception:
                if not is_new:
                    raise
                _log.warning("the thread %s cannot go on, and takes a new message", self._name, exc_info=True)
                return (yield from self._given_up((yield _Look())))
        raise SettledError(f"the thread is still not idle after {MAX_CONTINUES} continuations")

    def _given_up(self, state: StateSnapshot) -> Generator[_Effect, Any, StateSnapshot]:
        """Answer the open calls with what the ledger has of them, so that a message may follow."""
        messages: list[AnyMessage] = state.values.get("messages", [])
        requests = _open_calls(messages, self._handle.language or spoken_in(messages))
        if not requests:
            return state
        given = _given(messages, state)
        handle = self._handle
        actions: list[Action] = yield _Ask(
            operations.actions(handle.tenant, thread_id=handle.thread_id, most=MAX_ACTIONS)
        )
        by_call = {action.correlation_id: action for action in reversed(actions)}
        answers = []
        for request in requests:
            name = correlation_of(decision_of(request))
            recorded = tool_message(request, answer_from_ledger(request, by_call.get(name)))
            answers.append(given.get(recorded.id, recorded))
        yield _Fill(answers)
        state = yield _Look()
        return state

    def _drive(self, turn: _Turn, lock: ThreadLock) -> Reply:
        config = self._config(self._under(lock))
        answer: Any = None
        raised: Exception | None = None
        while True:
            try:
                effect = turn.throw(raised) if raised else turn.send(answer)
            except StopIteration as end:
                reply: Reply = end.value
                return reply
            raised = None
            try:
                if isinstance(effect, _Go | _Fill):
                    _check(lock)
                match effect:
                    case _Look():
                        answer = self._agent.get_state(config)
                    case _Go(message=message):
                        answer = self._agent.invoke(_input(message), config, **self._how())
                    case _Ask(query=query):
                        answer = self._ledger.run(query)
                    case _Fill(answers=answers):
                        answer = self._agent.update_state(config, {"messages": answers}, as_node="action")
            except Exception as error:  # noqa: BLE001 - the turn decides; what it does not want it raises again
                raised = error

    async def _adrive(self, turn: _Turn, lock: ThreadLock) -> Reply:
        config = self._config(self._under(lock))
        answer: Any = None
        raised: Exception | None = None
        while True:
            try:
                effect = turn.throw(raised) if raised else turn.send(answer)
            except StopIteration as end:
                reply: Reply = end.value
                return reply
            raised = None
            try:
                if isinstance(effect, _Go | _Fill):
                    _check(lock)
                match effect:
                    case _Look():
                        answer = await self._agent.aget_state(config)
                    case _Go(message=message):
                        answer = await self._agent.ainvoke(_input(message), config, **self._how())
                    case _Ask(query=query):
                        answer = await self._ledger.arun(query)
                    case _Fill(answers=answers):
                        answer = await self._agent.aupdate_state(config, {"messages": answers}, as_node="action")
            except Exception as error:  # noqa: BLE001 - as in _drive
                raised = error

    def _how(self) -> dict[str, Any]:
        return {"durability": self._durability, "control": self._control}

    def _config(self, handle: Handle) -> RunnableConfig:
        return {"configurable": {"thread_id": self._name, SESSION_KEY: handle}}

    def _under(self, lock: ThreadLock) -> Handle:
        """Return the handle of one turn: it speaks of this turn's lock, whatever another turn of this session holds."""
        return replace(self._handle, is_orphan=partial(self._is_orphan, lock), check_lock=partial(_check, lock))

    @contextmanager
    def _locked(self) -> Iterator[ThreadLock]:
        lock = self._new_lock()
        for pause_s in self._polls():
            if lock.take():
                break
            time.sleep(pause_s)
        try:
            yield lock
        finally:
            lock.give_back()

    @asynccontextmanager
    async def _alocked(self) -> AsyncIterator[ThreadLock]:
        lock = self._new_lock()
        for pause_s in self._polls():
            if await _taken(lock):
                break
            await asyncio.sleep(pause_s)
        try:
            yield lock
        finally:
            lock.give_back()

    def _new_lock(self) -> ThreadLock:
        if self._control.drain_requested:
            raise ThreadBusy("this session has been drained: another one continues the thread")
        return self._ledger.thread_lock(self._handle.tenant, self._handle.thread_id)

    def _polls(self) -> Iterator[float]:
        """Yield the pauses between tries for the lock until `wait_s` is over; then ThreadBusy."""
        end, pause_s = time.monotonic() + self._wait_s, FIRST_POLL_S
        while True:
            yield pause_s
            if time.monotonic() >= end:
                raise ThreadBusy(f"another session has been running this thread for {self._wait_s:g} s")
            pause_s = min(pause_s * 2, LAST_POLL_S)

    def _is_orphan(self, lock: ThreadLock, action: Action) -> bool:
        """Whether an action has lost its owner: a session that held the thread's lock, which is ours now, began it, and
        it is no call of this process.
        """
        mine = (action.tenant, action.thread_id) == (self._handle.tenant, self._handle.thread_id)
        of_session = (action.owner or "").startswith(SESSION_OWNER)
        return mine and of_session and not is_alive(action) and lock.is_held()


def _tenant(agent: Agent, asked: str | None) -> str:
    own = tenant_of(agent)
    if own is not None and asked not in (None, own):
        raise ContractError(f"the agent serves the tenant {own!r} only, and the session is one of {asked!r}")
    return asked or own or DEFAULT_TENANT


def _check(lock: ThreadLock) -> None:
    if lock.is_lost():
        raise ThreadBusy("the thread's lock was lost on the way: send the message again, with the same message_id")


async def _taken(lock: ThreadLock) -> bool:
    """Try to take a lock in a thread; a try that succeeds after a cancellation gives it back."""
    trying = asyncio.get_running_loop().run_in_executor(None, lock.take)
    try:
        return await asyncio.shield(trying)
    except asyncio.CancelledError:
        trying.add_done_callback(lambda _: lock.give_back())
        raise


def _human(message: str | HumanMessage, message_id: str | None) -> HumanMessage:
    if not isinstance(message, str | HumanMessage):
        raise InvalidArguments("message", f"must be a text or a HumanMessage, not {type(message).__name__}")
    given = HumanMessage(message) if isinstance(message, str) else fit(message)
    check_arguments({"message": given.content})
    name = message_id or given.id or f"user-{uuid4()}"
    if not name.isprintable():
        raise InvalidArguments("message_id", "must be printable")
    return given.model_copy(update={"id": name})


def _input(message: HumanMessage | None) -> dict[str, Any] | None:
    return None if message is None else {"messages": [message]}


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
