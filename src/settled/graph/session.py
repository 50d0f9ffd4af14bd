"""A session: the way to run a thread.

Owns the thread's lock, under which a turn (`settled.graph.turn`) is carried out (`settled.graph.driving`). The lock
lives on a connection of its own and dies with its process, so whoever holds it knows that a running action of another
session is orphaned, and may reconcile it at once instead of waiting for its lease. When the lock is lost on the way,
the turn ends without another write.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal, get_args
from uuid import uuid4

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs
from langgraph.runtime import RunControl
from langgraph.types import Durability, StreamMode

from settled.graph.agent import DEFAULT_TENANT, Agent
from settled.graph.approve import deciding
from settled.graph.calls import fit
from settled.graph.driving import Driver
from settled.graph.engine import is_alive
from settled.graph.hosting import Host, host_of
from settled.graph.identity import SESSION_KEY, SESSION_OWNER, Handle, thread_name
from settled.graph.moves import Thread, WhileOpen
from settled.graph.streams import AsyncStream, Stream
from settled.graph.turn import Reply, Turn, registered, replay, turn, unstick
from settled.state import threads
from settled.state.canonical import check_arguments
from settled.state.errors import ContractError, InvalidArguments, ThreadBusy
from settled.state.locks import ThreadLock
from settled.state.model import Action
from settled.state.store import Ledger
from settled.tools.decisions import Decider, Decision, check_decision
from settled.tools.effects import Steps
from settled.tools.perform import MAX_NAME_CHARS, WAIT_S

FIRST_POLL_S, LAST_POLL_S = 0.05, 0.5
"""Between tries for the lock; each costs a connection."""

RESERVED = ("thread_id", "checkpoint_id", "checkpoint_ns", "checkpoint_map")
"""What a session says itself: whose thread it is, and where in it."""

Making = Callable[[Thread], Turn]
"""What makes a turn, once the lock is there."""


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
        roles: Sequence[str] = (),
        language: str | None = None,
        wait_s: float = WAIT_S,
        durability: Durability = "sync",
        while_open: WhileOpen = "keep",
        config: RunnableConfig | None = None,
        context: Any = None,
        agent_name: str | None = None,
    ) -> None:
        """`agent` has a checkpointer, and is one of `build_agent`, one of LangChain's `create_agent` with an
        `ActionMiddleware`, or a graph with an `ActionNode`. What comes late is told in each; in a graph that is not of
        `build_agent` only where its messages are kept as `add_messages` keeps them, and a tool that takes arguments
        from its graph is not carried out late there. `requester` is the user on whose behalf actions run, and `roles`
        are what policies know of him. `tenant` is by default the agent's own.

        `while_open` says what a new message does to an approval that is still open: "keep" it open and tell later what
        became of it; "reject" the message with ThreadBusy; or "withdraw" the request. `config` (callbacks, tags,
        metadata, recursion_limit, and what your own nodes read of `configurable`) and `context` go to every run; a
        `run_id` in metadata or `configurable` does not.

        With an `agent_name` a worker that has an agent of this name goes on with the thread where a turn of it was left
        open, and tells in it what came late; each turn then costs two statements more.

        Raises ContractError for an agent without a checkpointer or of another tenant, for names that cannot be names,
        and for a `config` that names a thread.
        """
        if not agent.checkpointer:
            raise ContractError("a session needs an agent with a checkpointer: build_agent(..., checkpointer=...)")
        if while_open not in get_args(WhileOpen):
            raise ContractError(f"while_open must be one of {', '.join(get_args(WhileOpen))}")
        host = host_of(agent)
        tenant = _tenant(host, tenant)
        self._agent = host.agent
        self._host = host
        self._engine = host.engine
        self._ledger = ledger if agent_name is None else threads.on(ledger)
        self._wait_s = wait_s
        self._durability: Durability = durability
        self._control = RunControl()
        self._context = context
        self._given = _checked(config)
        self._name = thread_name(tenant, thread_id)
        self._while_open: WhileOpen = while_open
        self._agent_name = _name(agent_name)
        self._handle = Handle(tenant, thread_id, requester, language, owner_prefix=SESSION_OWNER, roles=tuple(roles))
        self.config = self._config(self._handle)

    def send(
        self, message: str | HumanMessage, *, message_id: str | None = None, config: RunnableConfig | None = None
    ) -> Reply:
        """Give the thread a message of its user, and run until nothing is left.

        A `message_id` that the thread knows already (a double click, a retry of the client) is not added again: the
        recorded answer comes back; where there is none, the turn goes on. What became of earlier calls is told first.
        Raises ThreadBusy when another session has the thread for longer than `wait_s` or this one has lost it, or an
        approval is open and `while_open` is "reject"; LedgerUnavailable when its lock cannot be asked for,
        InvalidArguments for a message that cannot be stored or an id that was used for another one. What the model
        raises comes out as it is: the message is kept, and the next one is accepted all the same.
        """
        return _ended(self._under_lock(partial(turn, _human(message, message_id)), config))

    async def asend(
        self, message: str | HumanMessage, *, message_id: str | None = None, config: RunnableConfig | None = None
    ) -> Reply:
        """As `send`, in an event loop.

        Cancelled on the way, it leaves a call that was sent unknown, one that was not sent stopped, and either
        recorded; the next session of the thread goes on.
        """
        return await _aended(self._aunder_lock(partial(turn, _human(message, message_id)), config))

    def stream(
        self,
        message: str | HumanMessage | None,
        *,
        message_id: str | None = None,
        stream_mode: StreamMode | Sequence[StreamMode] = "updates",
        subgraphs: bool = False,
        version: Literal["v1", "v2"] = "v1",
        config: RunnableConfig | None = None,
    ) -> Stream:
        """Run what `send` runs (`resume`, without a message), and return it as it happens, in LangGraph's stream modes.

        The chunks are LangGraph's own; each transition of an action is one of mode "custom", `{"settled": {...}}`. The
        lock is taken with the first chunk; `reply` is there after the last. Raises as `send` does, on the way.
        """
        listening = {"stream_mode": _modes(stream_mode), "subgraphs": subgraphs, "version": version}
        return Stream(self._under_lock(_told(message, message_id), config, listening))

    def astream(
        self,
        message: str | HumanMessage | None,
        *,
        message_id: str | None = None,
        stream_mode: StreamMode | Sequence[StreamMode] = "updates",
        subgraphs: bool = False,
        version: Literal["v1", "v2"] = "v1",
        config: RunnableConfig | None = None,
    ) -> AsyncStream:
        """As `stream`, in an event loop: `async with session.astream(...) as chunks`."""
        listening = {"stream_mode": _modes(stream_mode), "subgraphs": subgraphs, "version": version}
        return AsyncStream(self._aunder_lock(_told(message, message_id), config, listening))

    def decide(
        self, action_id: str, decision: Decision, *, by: str, roles: Sequence[str] = (), fingerprint: str | None = None
    ) -> Reply:
        """Write a person's decision about an action of this thread into the ledger, and let the thread go on with it.

        `fingerprint` is that of what the person was shown; without it the decision is about what stands there now.
        Raises what `Desk.decide` does, NotFound for another thread's action too; and ThreadBusy as `send` does: the
        decision is recorded then, and whoever continues the thread goes on with it.
        """
        self._engine.runner().drive(self._deciding(action_id, decision, Decider(by=by, roles=roles), fingerprint))
        return self.resume()

    async def adecide(
        self, action_id: str, decision: Decision, *, by: str, roles: Sequence[str] = (), fingerprint: str | None = None
    ) -> Reply:
        """As `decide`, in an event loop."""
        steps = self._deciding(action_id, decision, Decider(by=by, roles=roles), fingerprint)
        await self._engine.runner().adrive(steps)
        return await self.aresume()

    def _deciding(self, action_id: str, decision: Decision, who: Decider, fingerprint: str | None) -> Steps[Action]:
        return deciding(self._engine, self._handle, action_id, check_decision(decision), who, fingerprint)

    def resume(self, *, config: RunnableConfig | None = None) -> Reply:
        """Continue what a crash, a cancellation or a drain left open, or a person has decided since, and tell what came
        late; harmless when there is nothing.
        """
        return _ended(self._under_lock(partial(turn, None), config))

    async def aresume(self, *, config: RunnableConfig | None = None) -> Reply:
        """As `resume`, in an event loop."""
        return await _aended(self._aunder_lock(partial(turn, None), config))

    def unstick(self) -> Reply:
        """Get a thread going that fails each time it is resumed: an answer that a node cannot read was stored, or its
        step raises again and again.

        What the open step was given is forgotten, and it begins anew, so that it asks again; its actions meet what the
        ledger has of them. Where it fails once more, its calls are answered from the ledger. Raises what no call is to
        blame for (the model's own error, say); harmless on a thread that is well.
        """
        return _ended(self._under_lock(unstick))

    async def aunstick(self) -> Reply:
        """As `unstick`, in an event loop."""
        return await _aended(self._aunder_lock(unstick))

    def replay(
        self, checkpoint_id: str, update: Mapping[str, Any] | None = None, *, as_node: str | None = None
    ) -> Reply:
        """Run the thread again from one of its checkpoints (`agent.get_state_history(session.config)`), as it was or
        with an `update` of its state: a branch that is the thread from then on.

        A call that was made before gets its recorded outcome; an edited one is a new action, with its own approval.
        Raises NotFound for a checkpoint that the thread does not have.
        """
        return _ended(self._under_lock(partial(replay, checkpoint_id, update, as_node)))

    async def areplay(
        self, checkpoint_id: str, update: Mapping[str, Any] | None = None, *, as_node: str | None = None
    ) -> Reply:
        """As `replay`, in an event loop."""
        return await _aended(self._aunder_lock(partial(replay, checkpoint_id, update, as_node)))

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

    def _under_lock(
        self, making: Making, config: RunnableConfig | None = None, listening: Mapping[str, Any] | None = None
    ) -> Generator[Any, None, Reply]:
        with self._locked() as lock:
            driver = self._driver(lock, config, listening)
            return (yield from driver.drive(self._registered(making(driver.thread))))

    async def _aunder_lock(
        self, making: Making, config: RunnableConfig | None = None, listening: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[Any, None]:
        """Yield what is streamed, and then, without the lock, the reply."""
        reply: Reply | None = None
        async with self._alocked() as lock:
            driver = self._driver(lock, config, listening)
            async with aclosing(driver.adrive(self._registered(making(driver.thread)))) as chunks:
                async for chunk in chunks:
                    if isinstance(chunk, Reply):
                        reply = chunk
                    else:
                        yield chunk
        yield reply

    def _registered(self, making: Turn) -> Turn:
        """Return the turn as workers may go on with it, if they may."""
        return making if self._agent_name is None else registered(making, self._handle, self._agent_name)

    def _driver(self, lock: ThreadLock, config: RunnableConfig | None, listening: Mapping[str, Any] | None) -> Driver:
        handle = self._under(lock)
        check = partial(_check, lock)
        thread = Thread(handle, check, self._host.shape, self._while_open, self._engine.contracts.__contains__)
        return Driver(self._host, self._ledger, thread, self._config(handle, config), self._how(), listening)

    def _how(self) -> dict[str, Any]:
        how: dict[str, Any] = {"durability": self._durability, "control": self._control}
        return how if self._context is None else {**how, "context": self._context}

    def _config(self, handle: Handle, given: RunnableConfig | None = None) -> RunnableConfig:
        """Return the configuration of a run: the host's, in which the session has the last word on whose it is."""
        merged = merge_configs(self._given, _checked(given))
        own = {"thread_id": self._name, SESSION_KEY: handle}
        return {
            **merged,
            "metadata": _without_run(merged.get("metadata", {})),
            "configurable": {**_without_run(merged.get("configurable", {})), **own},
        }

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
        if getattr(self._agent.checkpointer, "process", os.getpid()) != os.getpid():
            raise ContractError("a forked process cannot use its parent's checkpointer: open one after the fork")
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


def _tenant(host: Host, asked: str | None) -> str:
    if host.tenant is not None and asked not in (None, host.tenant):
        raise ContractError(f"the agent serves the tenant {host.tenant!r} only, and the session is one of {asked!r}")
    return asked or host.tenant or DEFAULT_TENANT


def _name(agent_name: str | None) -> str | None:
    given: object = agent_name
    is_name = isinstance(given, str) and 0 < len(given) <= MAX_NAME_CHARS and given.isprintable()
    if given is not None and not is_name:
        raise ContractError(f"agent_name must be 1 to {MAX_NAME_CHARS} printable characters")
    return agent_name


def _checked(config: RunnableConfig | None) -> RunnableConfig:
    """Return a host's configuration; ContractError where it says what only the session says."""
    named = [name for name in (config or {}).get("configurable", {}) if name in RESERVED or name.startswith("__")]
    if named:
        raise ContractError(f"the session itself says whose thread it runs: leave out {', '.join(sorted(named))}")
    return config or {}


def _without_run(named: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata or the like without a run's id: LangGraph takes a second run of the same id for a resume of the
    first, and drops its message (1.2.24).
    """
    return {name: value for name, value in named.items() if name != "run_id"}


def _modes(stream_mode: StreamMode | Sequence[StreamMode]) -> StreamMode | list[StreamMode]:
    modes = [stream_mode] if isinstance(stream_mode, str) else list(stream_mode)
    if not modes or any(mode not in get_args(StreamMode) for mode in modes):
        raise ContractError(f"stream_mode is one or more of {', '.join(get_args(StreamMode))}")
    return stream_mode if isinstance(stream_mode, str) else modes


def _told(message: str | HumanMessage | None, message_id: str | None) -> Making:
    return partial(turn, None if message is None else _human(message, message_id))


def _ended(chunks: Generator[Any, None, Reply]) -> Reply:
    """Run a turn that nobody listens to, to its end."""
    while True:
        try:
            next(chunks)
        except StopIteration as end:
            reply: Reply = end.value
            return reply


async def _aended(chunks: AsyncGenerator[Any, None]) -> Reply:
    async with aclosing(chunks):
        reply: Reply = await anext(chunks)
        return reply


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
