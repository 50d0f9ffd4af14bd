"""The chat server itself: its threads and runs, over the ledger, the agents and whoever carries runs out.

Owns what may be seen and forgotten of a tenant's threads, and nothing of how that travels. How a run begins is said in
`settled.runtime.chat.beginning`. The subtle thing is that names are given out per tenant: whatever a client names is
looked up with the tenant of who asks, and of another one there is nothing.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import StateSnapshot

from settled.graph.agent import Agent
from settled.graph.checkpointer import aopen_checkpointer
from settled.graph.hosting import host_of
from settled.graph.identity import thread_name
from settled.graph.session import Session
from settled.runtime.chat.carrying import with_checkpointer, working
from settled.runtime.chat.executing import LEASE_S, WORK, Executor
from settled.runtime.chat.listening import ended
from settled.runtime.chat.refusals import Refused
from settled.runtime.chat.who import Who, check_role
from settled.runtime.chat.wire import values_form
from settled.runtime.jobs import Announcer
from settled.state import ledger as operations
from settled.state import runs, tokens
from settled.state.errors import ContractError, InvalidArguments, NotFound, SettledError
from settled.state.machine import State
from settled.state.runs import ChatThread, Run
from settled.state.store import Ledger

_log = logging.getLogger("settled")

A_NAME = re.compile(r"[A-Za-z0-9_~:@-][A-Za-z0-9._~:@-]{0,199}")
"""A thread's name stands in paths, in the checkpointer and in lists."""

KEPT = timedelta(hours=24)
"""What runs have said, after their end: as long as a client may be offline and come back."""

FORGET_EVERY_S = 60.0
FORGOTTEN_AT_ONCE = 200

OPEN = [State.PLANNED, State.APPROVED, State.RUNNING, State.UNKNOWN, State.COMPENSATION_PENDING]


class Chat:
    """A chat server over a ledger. Use it within `opened()`."""

    def __init__(
        self,
        ledger: Ledger,
        agents: Mapping[str, Agent],
        *,
        carries_out: bool = True,
        talk_role: str = "viewer",
        lease_s: float = LEASE_S,
        kept: timedelta = KEPT,
    ) -> None:
        """`agents` by the names that clients know them by; each runs with a checkpointer of this server, whatever it
        was built with. `carries_out=False` leaves the runs to workers, which hear of each by a job. `talk_role` is what
        it takes to send a message; deciding takes an approver. What ended runs have said is `kept` that long. Raises
        ContractError for a graph without a door to the ledger, and for a name that cannot stand in an address.
        """
        if not agents:
            raise ContractError("a chat server needs an agent: Chat(ledger, {name: agent})")
        if odd := [name for name in agents if not A_NAME.fullmatch(name)]:
            raise ContractError(f"the name of an agent stands in addresses, and {odd[0]!r} cannot")
        self.ledger = ledger
        self.rows = runs.on(ledger)
        self.tokens = tokens.on(ledger)
        self.talk_role = talk_role
        self._built = agents
        self._tenants = {name: host_of(agent).tenant for name, agent in agents.items()}
        self._carries_out = carries_out
        self._kept = kept
        self.executor = Executor(ledger, {}, lease_s=lease_s)
        self.bell = self.executor.bell
        self.agents: Mapping[str, Agent] = {}
        self._saver: BaseCheckpointSaver[Any] | None = None
        self._announcer: Announcer | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["Chat"]:
        """Serve within the block, in this event loop. At its end the runs that are under way are left, at their next
        step, to whoever takes them up.
        """
        async with AsyncExitStack() as stack:
            saver = await stack.enter_async_context(aopen_checkpointer(self.ledger))
            self._saver = saver
            self.agents = {name: with_checkpointer(agent, saver) for name, agent in self._built.items()}
            self.executor.agents = self.agents
            if self._carries_out:
                await stack.enter_async_context(working(self.executor))
            else:
                self._announcer = await stack.enter_async_context(Announcer(self.ledger))
            forgetting = asyncio.create_task(self._forget())
            stack.callback(forgetting.cancel)
            yield self

    async def announce(self) -> None:
        """Let the workers know that a run is due, where the runs are theirs."""
        if self._announcer is not None:
            await self._announcer.run_is_due()

    async def _forget(self) -> None:
        while True:
            try:
                await self.rows.arun(runs.forget_events(kept=self._kept, most=FORGOTTEN_AT_ONCE))
            except SettledError:
                _log.exception("what old runs have said cannot be forgotten now")
            await asyncio.sleep(FORGET_EVERY_S)

    def names(self, who: Who) -> list[str]:
        """Return the names of the agents that serve this tenant."""
        return sorted(name for name, tenant in self._tenants.items() if tenant in (None, who.tenant))

    def agent(self, who: Who, name: str) -> Agent:
        """Return the agent of a name; NotFound, for one of another tenant too."""
        if name not in self.names(who):
            raise NotFound(f"there is no assistant {name!r}; there is {', '.join(self.names(who)) or 'none'}")
        return self.agents[name]

    async def thread(self, who: Who, thread_id: str) -> ChatThread:
        """Return a thread; NotFound, for another tenant's too."""
        found = await self.rows.arun(runs.thread(who.tenant, thread_id)) if A_NAME.fullmatch(thread_id) else None
        if found is None:
            raise NotFound(f"there is no thread {thread_id!r}")
        return found

    async def begin_thread(
        self, who: Who, thread_id: str | None, metadata: Mapping[str, Any], *, may_exist: bool
    ) -> ChatThread:
        """Begin a thread; Refused (409) where there is one of that name that may not exist."""
        check_role(who, self.talk_role, "begin a thread")
        name = thread_id or str(uuid4())
        if not A_NAME.fullmatch(name):
            raise InvalidArguments("thread_id", "must be at most 200 letters, digits and . _ ~ : @ -")
        is_new = await self.rows.arun(runs.begin_thread(who.tenant, name, metadata))
        if not (is_new or may_exist or thread_id is None):
            raise Refused(409, f"there is a thread {name!r} already")
        return await self.thread(who, name)

    async def change_thread(self, who: Who, thread_id: str, metadata: Mapping[str, Any]) -> ChatThread:
        """Put values into a thread's metadata."""
        check_role(who, self.talk_role, "change a thread")
        await self.thread(who, thread_id)
        await self.rows.arun(runs.change_thread(who.tenant, thread_id, metadata))
        return await self.thread(who, thread_id)

    async def drop_thread(self, who: Who, thread_id: str) -> None:
        """Forget a thread and its checkpoints, where nothing of it is open. Its actions stay in the ledger."""
        check_role(who, "operator", "delete a thread")
        thread = await self.thread(who, thread_id)
        still = [str(state) for state in OPEN]
        open_ones = await self.ledger.arun(operations.actions(who.tenant, thread_id=thread_id, states=still, most=1))
        if thread.status == "busy" or open_ones:
            raise Refused(409, "something of this thread is still open: a run, or an action whose outcome is to come")
        assert self._saver is not None
        await self._saver.adelete_thread(thread_name(who.tenant, thread_id))
        if not await self.rows.arun(runs.drop_thread(who.tenant, thread_id)):
            raise Refused(409, "a run of this thread has begun in the meantime")

    async def state(
        self, who: Who, thread_id: str, checkpoint_id: str | None = None, *, subgraphs: bool = False
    ) -> StateSnapshot:
        """Return the state of a thread, at a checkpoint if given; NotFound."""
        agent, session = await self._of_thread(who, thread_id)
        config = _at(session.config, checkpoint_id)
        state = await agent.aget_state(config, subgraphs=subgraphs)
        if checkpoint_id is not None and state.created_at is None:
            raise NotFound(f"the thread has no checkpoint {checkpoint_id!r}")
        return state

    async def history(
        self, who: Who, thread_id: str, *, most: int, before: str | None, wanted: Mapping[str, Any] | None
    ) -> list[StateSnapshot]:
        """Return the states of a thread, newest first."""
        agent, session = await self._of_thread(who, thread_id)
        until = None if before is None else _at(session.config, before)
        found = agent.aget_state_history(session.config, before=until, limit=most, filter=dict(wanted or {}) or None)
        return [state async for state in found]

    async def _of_thread(self, who: Who, thread_id: str) -> tuple[Agent, Session]:
        """Return the agent that has run a thread last, and a session of it, which knows the checkpointer's names."""
        await self.thread(who, thread_id)
        last = await self.rows.arun(runs.runs(who.tenant, thread_id, most=1))
        known = self.names(who)
        name = last[0].agent if last and last[0].agent in known else next(iter(known), "")
        return self.agent(who, name), self.session(who, thread_id, name)

    def session(self, who: Who, thread_id: str, agent: str, config: Any = None) -> Session:
        """Return a session; NotFound for the agent, ContractError for a `config` that no session takes."""
        return Session(
            self.agent(who, agent), ledger=self.ledger, thread_id=thread_id, tenant=who.tenant, config=config
        )

    async def run(self, who: Who, thread_id: str, run_id: str) -> Run:
        """Return a run; NotFound."""
        found = await self.rows.arun(runs.run(who.tenant, thread_id, run_id)) if A_NAME.fullmatch(thread_id) else None
        if found is None:
            raise NotFound(f"there is no run {run_id!r} of that thread")
        return found

    async def cancel(self, who: Who, thread_id: str, run_id: str) -> None:
        """Ask for a run's end, at its next step; harmless on one that has ended."""
        check_role(who, self.talk_role, "cancel a run")
        run = await self.run(who, thread_id, run_id)
        await self.rows.arun(runs.cancel(who.tenant, thread_id, run_id, by=who.name))
        self.executor.look_at(run.run_id)
        self.bell.ring(run.run_id)
        self.bell.ring(WORK)

    async def drop_run(self, who: Who, thread_id: str, run_id: str) -> None:
        """Forget a run that has ended; Refused (409)."""
        check_role(who, "operator", "delete a run")
        await self.run(who, thread_id, run_id)
        if not await self.rows.arun(runs.drop_run(who.tenant, thread_id, run_id)):
            raise Refused(409, "the run has not ended: cancel it first")

    async def ended(self, run: Run) -> Run:
        """Wait for a run's end."""
        return await ended(self.rows, self.bell, run)

    async def values(self, who: Who, run: Run) -> Any:
        """Return what a run has left: the thread's values when it ended, or its error."""
        if run.error is not None:
            return {"__error__": dict(run.error)}
        return values_form(await self.state(who, run.thread_id, run.checkpoint_id))


def _at(config: Any, checkpoint_id: str | None) -> Any:
    if checkpoint_id is None:
        return config
    return {**config, "configurable": {**config["configurable"], "checkpoint_id": checkpoint_id}}
