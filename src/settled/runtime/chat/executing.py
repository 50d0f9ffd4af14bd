"""Whoever carries runs out: takes up those whose time has come, and lets a `Session` run each.

Owns the life of a run between its lease and its end. Knows nothing of HTTP. Any number of executors may be at work, in
the server and in workers. The subtle thing is what becomes of a run whose process dies: the lease ends, another one
takes it up with the same message id, and the session continues what is open, so that the message is answered once.
"""

import asyncio
import logging
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import HumanMessage

from settled.graph.agent import Agent
from settled.graph.session import Session
from settled.graph.turn import Reply
from settled.runtime.chat.bell import Bell
from settled.runtime.chat.chunks import Chunks, modes_of
from settled.runtime.chat.recording import Recorder
from settled.runtime.chat.requests import Wanted, wanted_of
from settled.runtime.chat.wire import interrupts_of, text_of, values_form
from settled.state import runs
from settled.state.errors import ClaimLost, LedgerUnavailable, SettledError, ThreadBusy
from settled.state.runs import Run
from settled.state.store import Ledger

_log = logging.getLogger("settled")

LEASE_S = 15.0
"""A process that died is missed after this; one that lives prolongs it every second."""

AT_ONCE = 8
"""Runs in one process: each waits for a model most of the time."""

LOOK_S = 1.0
"""Between looks for runs that nobody has told this process about."""

MAX_TRIES = 5
"""Of a run whose process dies under it, or whose database goes away: it may be the run that kills it."""

BUSY_PAUSE_S = 1.0
"""Before another try, while somebody else has the thread."""

WAIT_S = 2.0
"""For the thread's lock, before the run is put back."""

GRACE_S = 10.0
"""For the step that is under way when a run is cancelled, or its process stops: what was sent is better known than
given up.
"""

STOPPING = "the server stops"

WORK = "work"
"""The bell that rings when a run has begun or ended."""


@dataclass(frozen=True, eq=False, slots=True)
class _UnderWay:
    session: Session
    recorder: Recorder
    turn: "asyncio.Future[Reply]"


@dataclass
class Executor:
    """Carries out the runs of these agents, each with a checkpointer of the running event loop."""

    ledger: Ledger
    agents: Mapping[str, Agent]
    bell: Bell = field(default_factory=Bell)
    lease_s: float = LEASE_S
    at_once: int = AT_ONCE
    owner: str = field(default_factory=lambda: f"e:{os.getpid()}:{secrets.token_hex(4)}")

    def __post_init__(self) -> None:
        self._rows = runs.on(self.ledger)
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way: dict[str, _UnderWay] = {}
        self._is_stopping = False

    async def run_once(self, most: int | None = None) -> list[str]:
        """Take up at most `most` runs that are due, carry them out, and return their ids."""
        taken = await self._take(self.at_once if most is None else most)
        await asyncio.gather(*map(self._carry_out, taken))
        return [run.run_id for run in taken]

    async def run(self) -> None:
        """Carry out what is due until `stop`; what is under way then is left to others, at its next step."""
        while not self._is_stopping:
            try:
                taken = await self._take(self.at_once - len(self._tasks))
            except SettledError:
                _log.exception("no run can be taken up")
                taken = []
            for run in taken:
                task = asyncio.create_task(self._carry_out(run))
                self._tasks.add(task)
                task.add_done_callback(self._ended)
            if not taken:
                await self.bell.wait(WORK, LOOK_S)
        await self._left_by_all()

    async def _left_by_all(self) -> None:
        """Wait for what is under way to come to its next step; what takes longer is left in the middle of one."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=GRACE_S)
        for one in list(self._under_way.values()):
            one.turn.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stop(self) -> None:
        """Begin nothing any more, and leave what is under way at its next step. To be called in the loop."""
        self._is_stopping = True
        for one in self._under_way.values():
            one.session.drain(STOPPING)
        self.bell.ring(WORK)

    def look_now(self) -> None:
        """Look for runs that are due as soon as may be. To be called in the loop."""
        self.bell.ring(WORK)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self.bell.ring(WORK)

    async def _take(self, most: int) -> list[Run]:
        if most < 1 or self._is_stopping:
            return []
        query = runs.take(self.owner, agents=list(self.agents), most=most, lease_s=self.lease_s)
        return await self._rows.arun(query)

    async def _carry_out(self, run: Run) -> None:
        held = runs.held_by(self.owner, run)
        recorder = Recorder(self._rows, held, lease_s=self.lease_s, ring=lambda: self.bell.ring(run.run_id))
        try:
            await recorder.begin(("metadata", text_of({"run_id": run.run_id, "attempt": run.tries})))
            if run.cancel_asked_at is not None:
                await recorder.finish("interrupted", [])
            elif run.tries > MAX_TRIES:
                await self._failed(recorder, f"given up: it was taken up {MAX_TRIES} times and never ended")
            else:
                await self._turn(run, recorder)
        except ClaimLost:
            _log.info("the run %s was taken up by another process", run.run_id)
        except LedgerUnavailable:  # the lease ends, and somebody takes it up
            _log.warning("the run %s is left, since the database does not answer", run.run_id)
        except Exception:  # noqa: BLE001 - one run must not end the loop that carries out the others
            _log.exception("the run %s is left", run.run_id)

    async def _turn(self, run: Run, recorder: Recorder) -> None:
        wanted = wanted_of(run.request)
        try:
            session = self._session(run, wanted)
        except SettledError as error:  # the agent has changed since the run was asked for
            await self._failed(recorder, str(error))
            return
        chunks = Chunks(wanted.modes, has_subgraphs=wanted.subgraphs)
        turn = asyncio.ensure_future(_heard(wanted, session, chunks, recorder))
        self._under_way[run.run_id] = _UnderWay(session, recorder, turn)
        if self._is_stopping:  # since the run was asked for
            session.drain(STOPPING)
        try:
            async with recorder.keeping(on_cancel=lambda: _wind_up(session, turn), on_loss=lambda: _give_up(turn)):
                await asyncio.wait({turn})
        finally:
            turn.cancel()
            del self._under_way[run.run_id]
        raised = None if turn.cancelled() else turn.exception()
        if recorder.lost is not None:
            raise recorder.lost from raised
        if turn.cancelled() or raised is not None:
            await self._stopped(run, recorder, raised)
        else:
            await self._replied(run, session, chunks, recorder, turn.result())

    def _session(self, run: Run, wanted: Wanted) -> Session:
        config: Any = wanted.config
        return Session(
            self.agents[run.agent],
            ledger=self.ledger,
            thread_id=run.thread_id,
            tenant=run.tenant,
            requester=run.requester,
            roles=run.roles,
            wait_s=WAIT_S,
            durability=wanted.durability,
            agent_name=run.agent,
            config=config,
        )

    async def _stopped(self, run: Run, recorder: Recorder, error: BaseException | None) -> None:
        """Say what becomes of a run whose turn has not come to its end."""
        if error is None or isinstance(error, ThreadBusy):
            await self._left(recorder)
        elif isinstance(error, LedgerUnavailable) or _is_of_database(error):
            await recorder.put_back(pause_s=BUSY_PAUSE_S, counts=True)
        else:
            _log.error("the run %s has failed", run.run_id, exc_info=error)
            await self._failed(recorder, _told(error), type(error).__name__)

    async def _left(self, recorder: Recorder) -> None:
        """End a run that was cancelled; leave one that has not begun, or whose process stops, to the next."""
        if recorder.is_cancelled:
            await recorder.finish("interrupted", [])
        else:
            await recorder.put_back(pause_s=0.0 if self._is_stopping else BUSY_PAUSE_S, counts=False)

    async def _replied(self, run: Run, session: Session, chunks: Chunks, recorder: Recorder, reply: Reply) -> None:
        state = await self.agents[run.agent].aget_state(session.config)
        is_asking = bool(interrupts_of(state))
        if not reply.is_finished and not is_asking and not recorder.is_cancelled:
            await self._left(recorder)
            return
        status: runs.Status = "success" if reply.is_finished else "interrupted"
        checkpoint_id = state.config["configurable"].get("checkpoint_id")
        await recorder.finish(status, chunks.last(values_form(state)), checkpoint_id=checkpoint_id)

    async def _failed(self, recorder: Recorder, sentence: str, kind: str = "Failed") -> None:
        error = {"error": kind, "message": sentence}
        await recorder.finish("error", [("error", text_of(error))], error=error)

    def look_at(self, run_id: str) -> None:
        """Ask at once whether somebody wants a run cancelled, if it is under way here."""
        if run_id in self._under_way:
            self._under_way[run_id].recorder.look()


async def _heard(wanted: Wanted, session: Session, chunks: Chunks, recorder: Recorder) -> Reply:
    """Run a turn, and pass on what is streamed of it."""
    given = wanted.message
    message = None if given is None else HumanMessage(given["content"], id=given["id"])
    modes = modes_of(wanted.modes)
    async with session.astream(message, stream_mode=modes, subgraphs=True) as stream:
        async for chunk in stream:
            for said in chunks.events(chunk):
                await recorder.say(said)
    return stream.reply


def _give_up(turn: "asyncio.Future[Reply]") -> None:
    turn.cancel()


def _wind_up(session: Session, turn: "asyncio.Future[Reply]") -> None:
    """Stop at the next step; after a while in the middle of one."""
    session.drain("cancelled")
    asyncio.get_running_loop().call_later(GRACE_S, _give_up, turn)


def _is_of_database(error: BaseException | None) -> bool:
    """Whether it is the checkpointer's driver that says so: the thread goes on where it was stored."""
    return type(error).__module__.partition(".")[0] in ("psycopg", "psycopg_pool")


def _told(error: BaseException) -> str:
    """Return what a client is told: what the library says by itself, and of others' errors nothing, since they may hold
    what is not for him.
    """
    if isinstance(error, SettledError):
        return str(error)
    return "the agent has failed; the server's log says why. The message is kept: it can be sent again"
