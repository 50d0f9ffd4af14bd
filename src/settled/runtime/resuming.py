"""Going on with threads that a session has left in the middle of a turn, or that have something to tell.

Owns how often that is tried: a thread that fails each time is left after `MAX_TRIES`, with its reason in the ledger,
until something happens in it. Who may really go on is decided by the thread's lock: one that somebody else runs is
busy, and that is no failure. Imported only where there are agents: LangGraph takes seconds.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.checkpoint.postgres import PostgresSaver

from settled.graph.hosting import host_of
from settled.graph.session import Session
from settled.state import threads
from settled.state.errors import LedgerUnavailable, ThreadBusy
from settled.state.store import Ledger
from settled.state.threads import OpenThread
from settled.tools.contract import Contract

MAX_TRIES = 8
"""Some ten minutes: what a model's outage lasts, and no more."""

FIRST_WAIT_S, LAST_WAIT_S = 5.0, 300.0
"""Between tries of a thread that fails."""

BUSY_WAIT_S = 5.0
"""Until a thread that somebody runs is looked at again: he may die any moment."""

_log = logging.getLogger("settled")


class Resumer:
    """Goes on with the threads of some agents, by the names that their sessions give them."""

    def __init__(self, ledger: Ledger, agents: Mapping[str, Any]) -> None:
        self._ledger = ledger
        self._threads = threads.on(ledger)
        self._agents = dict(agents)
        self._under_way: set[Session] = set()
        self._is_draining = False

    @property
    def agents(self) -> Sequence[str]:
        """The names of its agents."""
        return list(self._agents)

    @property
    def contracts(self) -> Mapping[str, Contract]:
        """The tools of its agents: what was left of their threads may need them before anybody goes on."""
        return {name: one for agent in self._agents.values() for name, one in host_of(agent).engine.contracts.items()}

    async def resume(self, thread: OpenThread) -> bool:
        """Go on with a thread; whether it could. What fails is put off; raises only what says that the ledger is
        away.
        """
        try:
            if not self._is_draining and await self._goes_on(thread):
                return True
        except ThreadBusy:
            pass
        except LedgerUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a model, a node or a checkpoint raises
            await self._failed(thread, error)
            return False
        await self._threads.arun(threads.put_off(thread, pause_s=BUSY_WAIT_S, tries=thread.tries, reason=None))
        return False

    def drain(self) -> None:
        """Let the threads that are under way stop at their next step, for good; another worker goes on with them."""
        self._is_draining = True
        for session in list(self._under_way):
            session.drain("the worker ends")

    async def _goes_on(self, thread: OpenThread) -> bool:
        """Go on with a thread; whether it came to its end, and was not drained on the way."""
        session = self._session(thread)
        self._under_way.add(session)
        if self._is_draining:  # asked for at this very moment
            session.drain("the worker ends")
        try:
            if isinstance(self._agents[thread.agent].checkpointer, PostgresSaver):  # the one for `invoke`
                reply = await asyncio.to_thread(session.resume)
            else:
                reply = await session.aresume()
        finally:
            self._under_way.discard(session)
        return reply.is_finished or bool(reply.approvals)

    def _session(self, thread: OpenThread) -> Session:
        agent = self._agents[thread.agent]
        return Session(
            agent,
            ledger=self._ledger,
            thread_id=thread.thread_id,
            tenant=thread.tenant,
            requester=thread.requester,
            roles=thread.roles,
            language=thread.language,
            wait_s=0.0,
            agent_name=thread.agent,
        )

    async def _failed(self, thread: OpenThread, error: Exception) -> None:
        tries, reason = thread.tries + 1, f"{type(error).__name__}: {error}"
        pause_s = min(FIRST_WAIT_S * 2**thread.tries, LAST_WAIT_S) if tries < MAX_TRIES else None
        told = f"is tried again in {pause_s:g} s" if pause_s is not None else "is left until something happens in it"
        _log.warning("the thread %s could not go on, and %s", thread.thread_id, told, exc_info=error)
        await self._threads.arun(threads.put_off(thread, pause_s=pause_s, tries=tries, reason=reason))
