"""A session: the way to run a thread.

Owns the thread's lock and the two drivers, sync and async, of what happens under it (`settled.graph.turn`). The lock
lives on a connection of its own and dies with its process, so whoever holds it knows that a running action of another
session is orphaned, and may reconcile it at once instead of waiting for its lease. When the lock is lost on the way,
the turn ends without another write.
"""

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, get_args
from uuid import uuid4

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import RunControl
from langgraph.types import Command, Durability, Send

from settled.graph.agent import DEFAULT_TENANT, Agent, engine_of, tenant_of
from settled.graph.approve import deciding
from settled.graph.calls import fit
from settled.graph.channel import gone
from settled.graph.engine import is_alive
from settled.graph.identity import SESSION_KEY, SESSION_OWNER, Handle, thread_name
from settled.graph.late import Belated
from settled.graph.turn import Carry, Catch, Fill, Go, Look, Reply, Turn, WhileOpen, turn
from settled.state.canonical import check_arguments
from settled.state.errors import ContractError, InvalidArguments, ThreadBusy
from settled.state.locks import ThreadLock
from settled.state.model import Action
from settled.state.store import Ledger
from settled.tools.decisions import Decider, Decision, check_decision
from settled.tools.effects import Ask, Steps
from settled.tools.perform import WAIT_S

_log = logging.getLogger("settled")

FIRST_POLL_S, LAST_POLL_S = 0.05, 0.5
"""Between tries for the lock; each costs a connection."""


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
    ) -> None:
        """`agent` comes from `build_agent`, with a checkpointer. `requester` is the user on whose behalf actions run,
        and `roles` are what policies know of him. `tenant` is by default the agent's own.

        `while_open` says what a new message does to an approval that is still open: "keep" it open and tell later what
        became of it; "reject" the message with ThreadBusy; or "withdraw" the request.

        Raises ContractError for an agent without a checkpointer or of another tenant, and names that cannot be names.
        """
        if not agent.checkpointer:
            raise ContractError("a session needs an agent with a checkpointer: build_agent(..., checkpointer=...)")
        if while_open not in get_args(WhileOpen):
            raise ContractError(f"while_open must be one of {', '.join(get_args(WhileOpen))}")
        tenant = _tenant(agent, tenant)
        self._agent = agent
        self._engine = engine_of(agent)
        self._ledger = ledger
        self._wait_s = wait_s
        self._durability: Durability = durability
        self._control = RunControl()
        self._name = thread_name(tenant, thread_id)
        self._while_open: WhileOpen = while_open
        self._handle = Handle(tenant, thread_id, requester, language, owner_prefix=SESSION_OWNER, roles=tuple(roles))
        self.config = self._config(self._handle)

    def send(self, message: str | HumanMessage, *, message_id: str | None = None) -> Reply:
        """Give the thread a message of its user, and run until nothing is left.

        A `message_id` that the thread knows already (a double click, a retry of the client) is not added again: the
        recorded answer comes back; where there is none, the turn goes on. What became of earlier calls is told first.
        Raises ThreadBusy when another session has the thread for longer than `wait_s` or this one has lost it, or an
        approval is open and `while_open` is "reject"; LedgerUnavailable when its lock cannot be asked for,
        InvalidArguments for a message that cannot be stored or an id that was used for another one. What the model
        raises comes out as it is: the message is kept, and the next one is accepted all the same.
        """
        new = _human(message, message_id)
        with self._locked() as lock:
            return self._drive(self._steps(new, lock), lock)

    async def asend(self, message: str | HumanMessage, *, message_id: str | None = None) -> Reply:
        """As `send`, in an event loop."""
        new = _human(message, message_id)
        async with self._alocked() as lock:
            return await self._adrive(self._steps(new, lock), lock)

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

    def resume(self) -> Reply:
        """Continue what a crash, a cancellation or a drain left open, or a person has decided since, and tell what came
        late; harmless when there is nothing.
        """
        with self._locked() as lock:
            return self._drive(self._steps(None, lock), lock)

    async def aresume(self) -> Reply:
        """As `resume`, in an event loop."""
        async with self._alocked() as lock:
            return await self._adrive(self._steps(None, lock), lock)

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

    def _steps(self, new: HumanMessage | None, lock: ThreadLock) -> Turn:
        return turn(new, self._under(lock), partial(_check, lock), self._while_open)

    def _drive(self, turn: Turn, lock: ThreadLock) -> Reply:
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
                if isinstance(effect, Go | Catch | Carry | Fill):
                    _check(lock)
                match effect:
                    case Look():
                        answer = self._agent.get_state(config)
                    case Go(message=message):
                        answer = self._agent.invoke(_input(message), config, **self._how())
                    case Catch(calls=calls):
                        answer = self._agent.invoke(_late(calls), config, **self._how())
                    case Carry(request=request):
                        answer = self._engine.call(request, self._under(lock), config)
                    case Ask(query=query):
                        answer = self._ledger.run(query)
                    case Fill(answers=answers, tickets=tickets):
                        filled = {"messages": answers, "waiting": [gone(ticket) for ticket in tickets]}
                        answer = self._agent.update_state(config, filled, as_node="action")
            except Exception as error:  # noqa: BLE001 - the turn decides; what it does not want it raises again
                raised = error

    async def _adrive(self, turn: Turn, lock: ThreadLock) -> Reply:
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
                if isinstance(effect, Go | Catch | Carry | Fill):
                    _check(lock)
                match effect:
                    case Look():
                        answer = await self._agent.aget_state(config)
                    case Go(message=message):
                        answer = await self._agent.ainvoke(_input(message), config, **self._how())
                    case Catch(calls=calls):
                        answer = await self._agent.ainvoke(_late(calls), config, **self._how())
                    case Carry(request=request):
                        answer = await self._engine.acall(request, self._under(lock), config)
                    case Ask(query=query):
                        answer = await self._ledger.arun(query)
                    case Fill(answers=answers, tickets=tickets):
                        filled = {"messages": answers, "waiting": [gone(ticket) for ticket in tickets]}
                        answer = await self._agent.aupdate_state(config, filled, as_node="action")
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


def _late(calls: Sequence[Belated]) -> Command[Any]:
    return Command(goto=Send("late", {"calls": list(calls)}))
