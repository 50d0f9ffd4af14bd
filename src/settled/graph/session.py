"""A session: the way to run a thread.

Owns the order of things: take the thread's lock, continue unfinished work, accept the user's message if it is new,
run until nothing is left. Because unfinished work goes first, a new message never finds a tool call without an
answer. The lock lives on a connection of its own and dies with its process, so whoever holds it knows that a running
action of another owner is orphaned, and may reconcile it at once instead of waiting for its lease.

The order is written once, in `_turn`, as a generator over two effects; a sync and an async driver carry it out.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl
from langgraph.types import Durability, StateSnapshot

from settled.graph.agent import Agent
from settled.graph.answers import turn_of
from settled.graph.engine import is_alive
from settled.graph.identity import SESSION_KEY, Handle, thread_name
from settled.state.canonical import check_arguments
from settled.state.errors import ContractError, InvalidArguments, SettledError, ThreadBusy
from settled.state.locks import ThreadLock
from settled.state.model import Action
from settled.state.store import Ledger
from settled.tools.perform import WAIT_S

FIRST_POLL_S, LAST_POLL_S = 0.05, 0.5
"""Between tries for the lock; each costs a connection."""

MAX_CONTINUES = 20
"""Each continuation finishes a step that was open; a thread that needs more is not getting anywhere."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a turn has added to the thread. `is_finished` is False when the session drained before the turn was over."""

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


_Turn = Generator[_Look | _Go, Any, Reply]


class Session:
    """One thread of an agent. Any number of sessions may be made for a thread; they take turns."""

    def __init__(
        self,
        agent: Agent,
        *,
        ledger: Ledger,
        thread_id: str,
        tenant: str = "default",
        requester: str | None = None,
        language: str | None = None,
        wait_s: float = WAIT_S,
        durability: Durability = "sync",
    ) -> None:
        """`agent` comes from `build_agent`, with a checkpointer. `requester` is the user on whose behalf actions run.

        Raises ContractError for an agent without a checkpointer or names that cannot be names.
        """
        if not agent.checkpointer:
            raise ContractError("a session needs an agent with a checkpointer: build_agent(..., checkpointer=...)")
        self._agent = agent
        self._ledger = ledger
        self._wait_s = wait_s
        self._durability: Durability = durability
        self._held: ThreadLock | None = None
        self._control = RunControl()
        self._handle = Handle(tenant, thread_id, requester, language, self._is_orphan)
        self.config: RunnableConfig = {
            "configurable": {"thread_id": thread_name(tenant, thread_id), SESSION_KEY: self._handle}
        }

    def send(self, message: str | HumanMessage, *, message_id: str | None = None) -> Reply:
        """Give the thread a message of its user, and run until nothing is left.

        A `message_id` that the thread knows already (a double click, a retry of the client) is not added again: the
        recorded answer comes back. Raises ThreadBusy when another session has the thread for longer than `wait_s`,
        LedgerUnavailable when its lock cannot be asked for, InvalidArguments for a message that cannot be stored or an
        id that was used for another one.
        """
        new = _human(message, message_id)
        with self._locked():
            return self._drive(self._turn(new))

    async def asend(self, message: str | HumanMessage, *, message_id: str | None = None) -> Reply:
        """As `send`, in an event loop."""
        new = _human(message, message_id)
        async with self._alocked():
            return await self._adrive(self._turn(new))

    def resume(self) -> Reply:
        """Continue what a crash, a cancellation or a drain left open; harmless when there is nothing."""
        with self._locked():
            return self._drive(self._turn(None))

    async def aresume(self) -> Reply:
        """As `resume`, in an event loop."""
        async with self._alocked():
            return await self._adrive(self._turn(None))

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

    def _turn(self, new: HumanMessage | None) -> _Turn:
        """The order of things, under the lock."""
        try:
            state = yield from self._continued()
        except GraphDrained:
            if new is not None:
                raise ThreadBusy("the session drained before the message was accepted: send it again") from None
            return Reply((), is_finished=False)
        known: list[AnyMessage] = state.values.get("messages", [])
        if new is None:
            return Reply(turn_of(known))
        if (answer := _recorded(known, new)) is not None:
            return answer
        try:
            values = yield _Go(new)
        except GraphDrained:
            state = yield _Look()
            return Reply(_after(state.values.get("messages", []), new), is_finished=False)
        return Reply(_after(values["messages"], new))

    def _continued(self) -> Generator[_Look | _Go, Any, StateSnapshot]:
        """Run what is open, until nothing is left or everything that is left waits for a person."""
        for _ in range(MAX_CONTINUES):
            state: StateSnapshot = yield _Look()
            if _is_idle(state):
                return state
            yield _Go()
        raise SettledError(f"the thread is still not idle after {MAX_CONTINUES} continuations")

    def _drive(self, turn: _Turn) -> Reply:
        answer: Any = None
        drained: GraphDrained | None = None
        while True:
            try:
                effect = turn.throw(drained) if drained else turn.send(answer)
            except StopIteration as end:
                reply: Reply = end.value
                return reply
            drained = None
            try:
                match effect:
                    case _Look():
                        answer = self._agent.get_state(self.config)
                    case _Go(message=message):
                        answer = self._agent.invoke(_input(message), self.config, **self._how())
            except GraphDrained as error:
                drained = error

    async def _adrive(self, turn: _Turn) -> Reply:
        answer: Any = None
        drained: GraphDrained | None = None
        while True:
            try:
                effect = turn.throw(drained) if drained else turn.send(answer)
            except StopIteration as end:
                reply: Reply = end.value
                return reply
            drained = None
            try:
                match effect:
                    case _Look():
                        answer = await self._agent.aget_state(self.config)
                    case _Go(message=message):
                        answer = await self._agent.ainvoke(_input(message), self.config, **self._how())
            except GraphDrained as error:
                drained = error

    def _how(self) -> dict[str, Any]:
        return {"durability": self._durability, "control": self._control}

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = self._new_lock()
        for pause_s in self._polls():
            if lock.take():
                break
            time.sleep(pause_s)
        with self._holding(lock):
            yield

    @asynccontextmanager
    async def _alocked(self) -> AsyncIterator[None]:
        lock = self._new_lock()
        for pause_s in self._polls():
            if await _taken(lock):
                break
            await asyncio.sleep(pause_s)
        with self._holding(lock):
            yield

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

    @contextmanager
    def _holding(self, lock: ThreadLock) -> Iterator[None]:
        self._held = lock
        try:
            yield
        finally:
            self._held = None
            lock.give_back()

    def _is_orphan(self, action: Action) -> bool:
        """Whether a running action has lost its owner: we hold its thread's lock, and it is no call of this process."""
        mine = (action.tenant, action.thread_id) == (self._handle.tenant, self._handle.thread_id)
        lock = self._held
        return mine and lock is not None and not is_alive(action) and lock.is_held()


async def _taken(lock: ThreadLock) -> bool:
    """Try to take a lock in a thread; a try that succeeds after a cancellation gives it back."""
    trying = asyncio.get_running_loop().run_in_executor(None, lock.take)
    try:
        return await asyncio.shield(trying)
    except asyncio.CancelledError:
        trying.add_done_callback(lambda _: lock.give_back())
        raise


def _human(message: str | HumanMessage, message_id: str | None) -> HumanMessage:
    given = HumanMessage(message) if isinstance(message, str) else message
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


def _recorded(known: Sequence[AnyMessage], new: HumanMessage) -> Reply | None:
    """Return the answer that the thread has for this message already."""
    same = next((message for message in known if message.id == new.id), None)
    if same is None:
        return None
    if same.content != new.content or not isinstance(same, HumanMessage):
        raise InvalidArguments("message_id", "was used for another message of this thread")
    return Reply(_after(known, new))


def _after(messages: Sequence[AnyMessage], new: HumanMessage) -> Sequence[AnyMessage]:
    """Return what follows a message of the user, up to the next one."""
    start = next((index for index, message in enumerate(messages) if message.id == new.id), len(messages)) + 1
    rest = messages[start:]
    end = next((index for index, message in enumerate(rest) if isinstance(message, HumanMessage)), len(rest))
    return rest[:end]
