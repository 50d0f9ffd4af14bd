"""The queue: procrastinate on the ledger's own Postgres, so that what is wanted now does not wait for the next scan.

Owns the jobs, which say no more than "look at this action again", "scan now" or "a run of the chat is due", and how
stalled ones are revived. The ledger's compare-and-set decides what a look does, and the worker's own scan is the ground
truth: a job that is lost, doubled or late changes nothing. Four things in it are there because procrastinate was seen
to need them (3.10):

- a stall threshold of fewer than three heartbeats runs live jobs again, and is refused;
- a queueing lock that is taken aborts the transaction it is met in, so each job is put in behind a savepoint;
- reviving a stalled job whose queueing lock was taken meanwhile is a unique violation: the newer job will do;
- what revives stalled jobs holds no lock, and runs once outside the queue at each start.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import procrastinate
from procrastinate import exceptions
from procrastinate.jobs import Job, Status
from procrastinate.schema import SchemaManager

from settled.state import jobs, work
from settled.state.errors import ContractError
from settled.state.store import Ledger
from settled.tools.perform import MAX_NAME_CHARS

if TYPE_CHECKING:
    from settled.runtime.worker import Worker

QUEUE = "settled"
LOOK, SCAN, REVIVE, RUN = "settled.look", "settled.scan", "settled.revive", "settled.run"

EVERY_MINUTE = "* * * * *"

RETRY_S = 5.0
"""Between tries of a queue that is away: the scan does its work meanwhile."""

POLL_S = 5.0
"""Jobs are announced by a notification; one that was missed is found by this."""

LONGEST_WAIT_S = 31 * 86400.0
"""What is open is looked at once a minute in any case."""

HEARTBEATS = 3
"""That a process may miss before its jobs count as stalled."""

_log = logging.getLogger("settled")


@dataclass(frozen=True, slots=True)
class Stall:
    """When a job counts as stalled: its process has not been heard of for `after_s`, and should be every
    `heartbeat_s`. ContractError for a threshold at which live jobs would be run again.
    """

    heartbeat_s: float = 10.0
    after_s: float = 60.0

    def __post_init__(self) -> None:
        if self.heartbeat_s <= 0:
            raise ContractError(f"heartbeat_s must be more than 0, not {self.heartbeat_s:g}")
        if self.after_s < HEARTBEATS * self.heartbeat_s:
            raise ContractError(
                f"after_s must be at least {HEARTBEATS} heartbeats ({HEARTBEATS * self.heartbeat_s:g} s), not "
                f"{self.after_s:g}: jobs of live processes would be run again"
            )


def set_up(ledger: Ledger) -> bool:
    """Make the queue's tables on the ledger's server, where they are not there; any number may try at once."""
    return jobs.set_up(ledger.url, SchemaManager.get_schema())


class Jobs:
    """The putting in of jobs. Open it once for a process, in a `with`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._work = work.on(ledger)
        conninfo = jobs.conninfo(ledger.url)
        self._app = procrastinate.App(
            connector=procrastinate.SyncPsycopgConnector(conninfo=conninfo, min_size=0, max_size=2)
        )
        set_up(ledger)

    def __enter__(self) -> "Jobs":
        self._app.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._app.close()

    def look_again(self, tenant: str, action_id: str, *, in_s: float = 0.0, connection: object = None) -> bool:
        """Let a worker look at an action in `in_s` seconds; False where a job for that is waiting already.

        With a `connection` the job is part of its open transaction: rolled back, there was none. The scan is told too,
        where there is no `connection`; it finds what a lost job leaves. ContractError for what can be no id or no wait.
        """
        _check(tenant, action_id, in_s)
        if connection is None:
            self._work.run(work.watch(tenant, action_id, in_s=in_s))
            return self._deferred(tenant, action_id, in_s, None)
        try:
            with jobs.inside(connection):
                return self._defer(tenant, action_id, in_s, connection)
        except exceptions.AlreadyEnqueued:
            return False

    def _deferred(self, tenant: str, action_id: str, in_s: float, connection: object) -> bool:
        try:
            return self._defer(tenant, action_id, in_s, connection)
        except exceptions.AlreadyEnqueued:
            return False
        except exceptions.ConnectorException:
            _log.warning("the queue is away: %s is found by the scan", action_id)
            return False

    def _defer(self, tenant: str, action_id: str, in_s: float, connection: object) -> bool:
        job = self._app.configure_task(LOOK, connection=connection, **_look(tenant, action_id, in_s))
        job.defer(tenant=tenant, action_id=action_id)
        return True


def look_again(ledger: Ledger, tenant: str, action_id: str, *, in_s: float = 0.0) -> None:
    """Let a worker look at an action in `in_s` seconds: by the scan, and by the queue where there is one. Fails as
    `Jobs.look_again` does.
    """
    _check(tenant, action_id, in_s)
    if not jobs.is_set_up(ledger.url):
        work.on(ledger).run(work.watch(tenant, action_id, in_s=in_s))
        return
    with Jobs(ledger) as queue:
        queue.look_again(tenant, action_id, in_s=in_s)


def _check(tenant: object, action_id: object, in_s: float) -> None:
    for name, value in (("tenant", tenant), ("action_id", action_id)):
        if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_CHARS or not value.isprintable():
            raise ContractError(f"{name} must be 1 to {MAX_NAME_CHARS} printable characters")
    if not 0 <= in_s <= LONGEST_WAIT_S:
        raise ContractError(f"in_s must be 0 to {LONGEST_WAIT_S:g} seconds, not {in_s}")


def _look(tenant: str, action_id: str, in_s: float) -> dict[str, Any]:
    """Return how a look is put in: one that waits is enough for any number of requests."""
    delay = {"schedule_in": {"seconds": in_s}} if in_s > 0 else {}
    return {"queue": QUEUE, "queueing_lock": f"look {tenant} {action_id}", **delay}


class Listening:
    """What a worker process hears from the queue. It ends by itself in nothing: a queue that is away is tried again."""

    def __init__(
        self,
        worker: "Worker",
        *,
        stall: Stall | None = None,
        concurrency: int = 8,
        on_run: Callable[[], None] | None = None,
    ) -> None:
        """`on_run` is called when a run of the chat is due."""
        self._worker = worker
        self._on_run = on_run
        self._stall = stall or Stall()
        self._concurrency = concurrency
        self._is_away = False

    async def run(self) -> None:
        """Carry out jobs until this is cancelled; those that are under way then end first."""
        while True:
            try:
                await asyncio.to_thread(set_up, self._worker.ledger)
                await self._listen()
            except Exception as error:
                if _was_cancelled():  # its farewell to a queue that is away failed
                    raise asyncio.CancelledError from error
                if not self._is_away:  # once, however long that lasts
                    _log.warning("the queue is away, and is tried again every %g s", RETRY_S, exc_info=True)
                self._is_away = True
            await asyncio.sleep(RETRY_S)

    async def _listen(self) -> None:
        app = self._made()
        async with app.open_async():
            await revive(app, self._stall)
            if self._is_away:
                _log.warning("the queue is there again")
            self._is_away = False
            await app.run_worker_async(
                queues=[QUEUE],
                concurrency=self._concurrency,
                install_signal_handlers=False,
                fetch_job_polling_interval=POLL_S,
                update_heartbeat_interval=self._stall.heartbeat_s,
                stalled_worker_timeout=self._stall.after_s,
                delete_jobs="always",
            )

    def _made(self) -> procrastinate.App:
        worker, stall = self._worker, self._stall
        app = app_of(worker.ledger)

        @app.task(name=LOOK, queue=QUEUE)
        async def look(tenant: str, action_id: str) -> None:
            await worker.look(tenant, action_id)

        @app.task(name=RUN, queue=QUEUE, queueing_lock=RUN)
        async def run() -> None:
            if self._on_run is not None:
                self._on_run()

        @app.periodic(cron=EVERY_MINUTE)
        @app.task(name=SCAN, queue=QUEUE, queueing_lock=SCAN)
        async def scan(timestamp: int) -> None:
            worker.scan_now()

        @app.periodic(cron=EVERY_MINUTE)
        @app.task(name=REVIVE, queue=QUEUE)
        async def revive_stalled(timestamp: int) -> None:
            await revive(app, stall)

        return app


class Announcer:
    """Says that a run of the chat is due, to workers in other processes, in an event loop: `async with Announcer(...)`.

    One job that waits is enough for any number of runs; where the queue is away, the workers' own scan finds them.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._app = app_of(ledger)

    async def __aenter__(self) -> "Announcer":
        await asyncio.to_thread(set_up, self._ledger)
        await self._app.open_async()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._app.close_async()

    async def run_is_due(self) -> None:
        """Put the job in, unless one is waiting already."""
        try:
            await self._app.configure_task(RUN, queue=QUEUE, queueing_lock=RUN).defer_async()
        except exceptions.AlreadyEnqueued:
            pass
        except exceptions.ConnectorException:
            _log.warning("the queue is away: the run is found by a scan")


def _was_cancelled() -> bool:
    """Whether this task was asked to end, also where another exception has taken the place of the cancellation."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def app_of(ledger: Ledger) -> procrastinate.App:
    """Return the queue's app on the ledger's server, not yet open."""
    connector = procrastinate.PsycopgConnector(conninfo=jobs.conninfo(ledger.url), min_size=1, max_size=4)
    return procrastinate.App(connector=connector)


async def revive(app: procrastinate.App, stall: Stall) -> int:
    """Put the jobs of dead processes back into the queue; return how many."""
    stalled = await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=stall.after_s)
    revived = [job for job in stalled if await _put_back(app, job)]
    if revived:
        _log.warning("%d jobs of processes that died are done again", len(revived))
    return len(revived)


async def _put_back(app: procrastinate.App, job: Job) -> bool:
    """Put one job back; one whose queueing lock a newer job has is dropped, since that will do the same."""
    try:
        await app.job_manager.retry_job(job)
    except exceptions.UniqueViolation:
        await app.job_manager.finish_job(job, status=Status.FAILED, delete_job=True)
        return False
    return True
