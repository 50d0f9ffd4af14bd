"""A worker: looks after what is open in the ledger and has nobody any more.

Owns the rounds (`run_once`) and the loop over them (`run`): read the ledger on, take up what is due, look at it, so
many at a time. Knows nothing of what a look does: that is `settled.tools.carrying`. The ground truth is this scan of
the ledger; a queue only makes it quicker. Workers need not know of one another: what two of them try at once, the
ledger's compare-and-set lets one of them do, so that a worker may be killed, or frozen and woken, at any instant.
"""

import asyncio
import logging
import signal
import threading
from collections.abc import Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from settled.runtime.chaining import ChainRunner
from settled.runtime.pace import Pace, Round
from settled.runtime.purging import Purge, Retention
from settled.state import threads, work
from settled.state.errors import LEDGER_IS_GONE, ContractError
from settled.state.store import Ledger
from settled.state.work import Rest, Watch
from settled.tools.carrying import LONGEST_REST_S, Look, Means, contained, look, rest_after
from settled.tools.contract import Contract, contract_of
from settled.tools.dispatcher import Dispatcher
from settled.tools.perform import check_policies
from settled.tools.policy import Policy
from settled.tools.runner import REAL, Runner, World
from settled.tools.standing import RECONCILER_GRACE_S

if TYPE_CHECKING:
    from settled.graph.chain import Chain

CONCURRENCY = 16
"""Looks at once: most of one is waiting for a remote side, and each may hold a thread."""

SCAN_EVERY_S = 5.0
"""Three short statements; what is due waits half of this on average."""

SWEEP_ROWS = 1000
"""Of the ledger at once: a statement of a few milliseconds."""

LEASE_S = 10.0
"""How long what a killed worker had taken up waits for the next one. A look that takes longer is no fault: whoever
looks meanwhile sees that it is in somebody's hands.
"""

RETRY_S = 1.0
"""Between tries while Postgres is away; each has waited for it already."""

_log = logging.getLogger("settled")


class Resuming(Protocol):
    """What goes on with threads."""

    @property
    def agents(self) -> Sequence[str]:
        """The names of its agents."""

    @property
    def contracts(self) -> Mapping[str, Contract]:
        """The tools of its agents, by name."""

    async def resume(self, thread: threads.OpenThread) -> bool:
        """Go on with a thread; whether it could. Raises nothing but what says that the ledger is away."""

    def drain(self) -> None:
        """Let the threads that are under way stop at their next step, for good. From any thread or signal."""


class Worker:
    """Looks after what is open. Any number of them may run on one ledger, in one process or in many."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        tools: Sequence[object] = (),
        policies: Mapping[str, Policy] | None = None,
        agents: Mapping[str, Any] | None = None,
        chains: Sequence["Chain"] = (),
        dispatcher: Dispatcher | None = None,
        concurrency: int = CONCURRENCY,
        scan_every_s: float = SCAN_EVERY_S,
        lease_s: float = LEASE_S,
        purge_after: timedelta | None = None,
        checkpoints_after: timedelta | None = None,
        world: World = REAL,
    ) -> None:
        """`tools` are those whose actions it may carry on: what needs another tool is left to a worker that has it.
        `agents` are those of sessions with an `agent_name`, by this name: their threads are resumed where a turn was
        left open, and when something came late; their tools need not be given again. `policies` as in `perform`.
        `chains` are those whose runs it carries on where a program has left them open; their tools need not be given
        either. `dispatcher` delivers the outbox; without one only messages are made that could not be made before.

        `lease_s` is how long what a worker that died had taken up waits for the next one. `purge_after` purges what was
        settled so long ago, `checkpoints_after` the threads (see `Retention`); by default nothing is purged. Raises
        ContractError for what cannot be right.
        """
        if concurrency < 1:
            raise ContractError(f"concurrency must be at least 1, not {concurrency}")
        if not 0 < scan_every_s <= LONGEST_REST_S:
            raise ContractError(f"scan_every_s must be more than 0 and at most {LONGEST_REST_S:g}, not {scan_every_s}")
        if not lease_s > 0:
            raise ContractError(f"lease_s must be more than 0, not {lease_s}")
        resumer = _resumer(ledger, agents)
        theirs = {} if resumer is None else resumer.contracts
        for chain in chains:
            theirs = {**chain.contract.contracts, **theirs}
        contracts = {**theirs, **{contract.name: contract for contract in map(contract_of, tools)}}
        self.ledger = ledger
        self.scan_every_s = scan_every_s
        self._lease_s = lease_s
        self._work = work.on(ledger)
        self._threads = threads.on(ledger)
        safe = {name: contained(contract) for name, contract in contracts.items()}
        self._means = Means(ledger, safe, check_policies(policies))
        self._resumer = resumer
        self._dispatcher = dispatcher or _maker(ledger, tools)
        self._chains = _chain_runner(ledger, chains)
        self._concurrency = concurrency
        self._purge = _purge(ledger, purge_after, checkpoints_after)
        self._world = world
        self._pace = Pace()

    def run_once(self) -> Round:
        """Do one bounded batch of everything and return what was done. Raises LedgerUnavailable when Postgres does not
        answer. In an event loop use `arun_once`.
        """
        return asyncio.run(self._closing(self.arun_once()))

    async def arun_once(self) -> Round:
        """As `run_once`, in an event loop."""
        await self._sweep()
        await self._take_up()
        await self._pace.ended()
        self._besides()
        await self._pace.ended()
        return self._pace.take()

    def run(self) -> Round:
        """Run until `stop`, or until the process is asked to end (SIGTERM, SIGINT; in the main thread); return what was
        done. What is under way then ends and is recorded, and nothing new begins.
        """
        with self._draining_on_signals():
            return asyncio.run(self._closing(self.arun()))

    async def arun(self) -> Round:
        """As `run`, in an event loop; cancelled, it records what is under way and goes. Signals are the caller's."""
        self._pace.begin()
        try:
            while not self._pace.is_stopping:
                await self._one_round()
        finally:
            await self._drained()
        return self._pace.take()

    def stop(self) -> None:
        """Let it drain, for good. From any thread or signal."""
        if self._dispatcher is not None:
            self._dispatcher.drain()
        if self._purge is not None:
            self._purge.drain()
        if self._resumer is not None:
            self._resumer.drain()
        if self._chains is not None:
            self._chains.drain()
        self._pace.stop()

    @contextmanager
    def embedded(self) -> Iterator["Worker"]:
        """Run in a thread of this process for as long as the block lasts. ContractError for one that was stopped
        before.
        """
        if self.is_draining:
            raise ContractError("this worker was stopped, which is for good: make another one")
        thread = threading.Thread(target=self.run, name="settled-worker", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.stop()
            thread.join()

    def scan_now(self) -> None:
        """Read the ledger on as soon as may be. In the loop that it runs in."""
        self._pace.hurry()

    async def look(self, tenant: str, action_id: str) -> Round:
        """Look at one action now; what is due by its own time is left until then. One that drains looks at none."""
        if self.is_draining:
            return Round()
        watch = await self._work.arun(work.one(tenant, action_id, lease_s=self._lease_s))
        return Round() if watch is None else await asyncio.shield(self._pace.start(self._look(watch)))

    @property
    def is_draining(self) -> bool:
        """Whether it was asked to stop."""
        return self._pace.is_stopping

    @property
    def in_flight(self) -> int:
        """How many looks and resumed threads are under way."""
        return len(self._pace.tasks)

    @property
    def scanned_s_ago(self) -> float | None:
        """How long ago the ledger was read last; None: not yet."""
        return self._pace.scanned_s_ago

    async def _one_round(self) -> None:
        self._pace.hears()
        pause_s = RETRY_S
        try:
            if self._pace.is_time_to_scan(self.scan_every_s):
                await self._sweep()
                self._besides()
            await self._take_up()
            pause_s = self._pace.scans_in(self.scan_every_s)
            self._pace.is_back()
        except LEDGER_IS_GONE:
            self._pace.is_away()
        await self._pace.pause(pause_s)

    async def _sweep(self) -> None:
        has_more = False
        for frontier in work.BEHIND_S:
            query = work.sweep(frontier, most=SWEEP_ROWS, grace_s=RECONCILER_GRACE_S, most_s=LONGEST_REST_S)
            swept = await self._work.arun(query)
            if swept is not None:
                has_more = has_more or swept.has_more
                self._pace.done += Round(noted=swept.noted)
        self._pace.swept(has_more=has_more)

    async def _take_up(self) -> None:
        """Begin with what is due, as much as may be under way at once."""
        await self._resume_due()
        free = self._free
        self._pace.wanted = self._concurrency * 3 // 4
        if free <= 0:
            return
        due = await self._work.arun(work.due(tools=list(self._means.contracts), most=free, lease_s=self._lease_s))
        if len(due) < free:
            self._pace.wanted = None
        for watch in due:
            self._pace.start(self._look(watch))

    async def _resume_due(self) -> None:
        if self._resumer is None or self._free <= 0:
            return
        query = threads.due(agents=self._resumer.agents, most=self._free, lease_s=LONGEST_REST_S)
        for thread in await self._threads.arun(query):
            self._pace.start(self._resume(self._resumer, thread))

    @property
    def _free(self) -> int:
        return self._concurrency - len(self._pace.tasks)

    def _besides(self) -> None:
        """Begin with what is done beside the looks, one of each at a time: it may take long, and holds up none."""
        if self._dispatcher is not None:
            self._pace.start_aside("deliver", partial(self._deliver, self._dispatcher))
        if self._chains is not None:
            self._pace.start_aside("chains", partial(self._carry_on, self._chains))
        if self._purge is not None and self._pace.is_time_to_purge():
            self._pace.start_aside("purge", partial(self._forget, self._purge))

    async def _deliver(self, dispatcher: Dispatcher) -> Round:
        return Round(delivered=(await dispatcher.arun_once()).delivered)

    async def _carry_on(self, runner: ChainRunner) -> Round:
        return Round(carried_on=await runner.arun_once())

    async def _forget(self, purge: Purge) -> Round:
        return Round(purged=(await asyncio.to_thread(purge.run_once)).actions)

    async def _look(self, watch: Watch) -> Round:
        try:
            found = Look(watch, None, None) if watch.is_over else await self._looked(watch)
            await self._work.arun(work.rest([self._rest(found)]))
        except LEDGER_IS_GONE:
            _log.warning("the ledger went away while %s was looked at", watch.action_id)
            return Round(looked=1, failed=1)
        except Exception:  # noqa: BLE001 - a fault in one look is no reason to look after nothing else
            _log.exception("the look at %s failed", watch.action_id)
            await self._work.arun(work.rest([Rest(watch, LONGEST_REST_S)]))
            return Round(looked=1, failed=1)
        return Round(looked=1, **({found.word: 1} if found.word else {}))

    async def _looked(self, watch: Watch) -> Look:
        runner = Runner(self._means.contracts.get(watch.tool or ""), self.ledger, self._world)
        return await runner.adrive(look(watch, self._means))

    def _rest(self, found: Look) -> Rest:
        rest = rest_after(found, self._means)
        if rest.tool is not None and rest.tool not in self._means.contracts:
            self._pace.say_once(
                f"{rest.tool} is not among the tools of this worker: its actions wait for one that has it"
            )
        elif rest.pause_s is not None:
            self._pace.be_back_in(rest.pause_s)
        return rest

    async def _resume(self, resumer: Resuming, thread: threads.OpenThread) -> Round:
        try:
            return Round(resumed=int(await resumer.resume(thread)))
        except LEDGER_IS_GONE:
            _log.warning("the ledger went away while the thread %s was resumed", thread.thread_id)
            return Round(failed=1)

    async def _drained(self) -> None:
        """Let what is under way end, also when this is cancelled."""
        cancelled: asyncio.CancelledError | None = None
        while self._pace.is_busy:
            try:
                await self._pace.ended()
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    async def _closing(self, running: Coroutine[Any, Any, Round]) -> Round:
        """Run, and close what the ledger has opened for this event loop."""
        try:
            return await running
        finally:
            await self.ledger.aclose()

    @contextmanager
    def _draining_on_signals(self) -> Generator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {one: signal.signal(one, lambda *_: self.stop()) for one in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)


def _resumer(ledger: Ledger, agents: Mapping[str, Any] | None) -> Resuming | None:
    """LangGraph is imported only where there are agents: it takes seconds."""
    if not agents:
        return None
    from settled.runtime.resuming import Resumer

    return Resumer(ledger, agents)


def _maker(ledger: Ledger, tools: Sequence[object]) -> Dispatcher | None:
    """Return what makes the messages that could not be made when their action succeeded, if some tool has any."""
    makers = [tool for tool in tools if contract_of(tool).emits is not None]
    return Dispatcher(ledger, sinks={}, tools=makers) if makers else None


def _chain_runner(ledger: Ledger, chains: "Sequence[Chain]") -> ChainRunner | None:
    return ChainRunner(ledger, chains) if chains else None


def _purge(ledger: Ledger, after: timedelta | None, checkpoints_after: timedelta | None) -> Purge | None:
    if after is None and checkpoints_after is None:
        return None
    return Purge(ledger, Retention(after, checkpoints_after))
