"""The queue that workers listen to: what it adds is speed, and no fault of it changes what is done."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta

import procrastinate
import psycopg
import pytest

from acts import opened, rows
from processes import start
from remote import Remote, payment, row
from settled import Approve, ContractError, Desk, Ledger, State, always, perform
from settled.runtime.jobs import Jobs, Listening, Stall, app_of, look_again, revive
from settled.runtime.worker import Worker
from settled.state.jobs import conninfo

JOBS = "SELECT task_name, status::text, args FROM settled_jobs.procrastinate_jobs ORDER BY id"
DEAD = """
WITH dead AS (
    INSERT INTO procrastinate_workers (last_heartbeat) VALUES (now() - interval '2 minutes') RETURNING id)
UPDATE procrastinate_jobs SET status = 'doing', worker_id = dead.id FROM dead RETURNING 1"""


@pytest.fixture
def queue(ledger: Ledger) -> Iterator[Jobs]:
    with Jobs(ledger) as opened_queue:
        yield opened_queue


def test_eight_processes_make_its_tables_at_once(database_url: str) -> None:
    """One makes them, the others find them; nobody fails."""
    at = time.time() + 1
    children = [start("working.set_up_queue", database_url=database_url, at=at) for _ in range(8)]
    assert sorted(child.result() for child in children) == [False] * 7 + [True]
    with Ledger.connect(database_url) as ledger, Jobs(ledger) as queue:
        assert queue.look_again("default", "act-1")


@pytest.mark.parametrize(("heartbeat_s", "after_s"), [(10.0, 29.9), (0.0, 30.0), (10.0, 5.0)])
def test_a_threshold_that_runs_live_jobs_again_is_refused(heartbeat_s: float, after_s: float) -> None:
    """Fewer than three heartbeats, and live jobs count as stalled."""
    with pytest.raises(ContractError, match=r"heartbeat"):
        Stall(heartbeat_s, after_s)
    assert Stall(10.0, 30.0).after_s == 30.0


def test_a_job_is_part_of_its_callers_transaction(ledger: Ledger, queue: Jobs) -> None:
    """Rolled back, there was none; committed, there is one, and the caller's names mean what they meant."""
    with psycopg.connect(ledger.url) as connection:
        path = connection.execute("SHOW search_path").fetchone()
        assert queue.look_again("default", "act-1", connection=connection)
        assert connection.execute("SHOW search_path").fetchone() == path
        connection.rollback()
        assert rows(ledger.url, JOBS) == []
        assert queue.look_again("default", "act-1", connection=connection)
        assert rows(ledger.url, JOBS) == []
        connection.commit()
    assert [job["args"] for job in rows(ledger.url, JOBS)] == [{"tenant": "default", "action_id": "act-1"}]


def test_a_second_request_leaves_the_callers_transaction_as_it_was(ledger: Ledger, queue: Jobs) -> None:
    """One look waits already: that is enough, and what the caller has written besides is kept."""
    assert queue.look_again("default", "act-1")
    with psycopg.connect(ledger.url) as connection:
        connection.execute("CREATE TABLE mine (n integer)")
        path = connection.execute("SHOW search_path").fetchone()
        assert not queue.look_again("default", "act-1", connection=connection)
        assert connection.execute("SHOW search_path").fetchone() == path
        connection.execute("INSERT INTO mine VALUES (1)")
    assert rows(ledger.url, "SELECT n FROM mine") == [{"n": 1}]
    assert not queue.look_again("default", "act-1")
    assert len(rows(ledger.url, JOBS)) == 1


def test_a_connection_without_a_transaction_is_refused(ledger: Ledger, queue: Jobs) -> None:
    """The job would be there before what it is about."""
    with (
        psycopg.connect(ledger.url, autocommit=True) as connection,
        pytest.raises(ContractError, match="no open transaction"),
    ):
        queue.look_again("default", "act-1", connection=connection)
    with pytest.raises(ContractError, match="psycopg"):
        queue.look_again("default", "act-1", connection="mine")
    assert rows(ledger.url, JOBS) == []


async def test_a_stalled_job_is_done_again_unless_a_newer_one_waits(ledger: Ledger, queue: Jobs) -> None:
    """The process that had it died. Where its queueing lock is taken, the newer job will do, and nothing fails."""
    async with app_of(ledger).open_async() as app:
        queue.look_again("default", "act-1")
        assert rows(conninfo(ledger.url), DEAD)
        assert await revive(app, Stall()) == 1
        assert [job["status"] for job in rows(ledger.url, JOBS)] == ["todo"]
        assert rows(conninfo(ledger.url), DEAD)
        assert queue.look_again("default", "act-1")
        assert await revive(app, Stall()) == 0
        assert [job["status"] for job in rows(ledger.url, JOBS)] == ["todo"]


async def test_the_jobs_of_a_live_process_are_left_to_it(ledger: Ledger, queue: Jobs) -> None:
    """Two heartbeats were missed: that is no death yet."""
    async with app_of(ledger).open_async() as app:
        queue.look_again("default", "act-1")
        assert rows(conninfo(ledger.url), DEAD.replace("2 minutes", "25 seconds"))
        assert await revive(app, Stall(10.0, 30.0)) == 0
        assert [job["status"] for job in rows(ledger.url, JOBS)] == ["doing"]


def ahead() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=10)


def approved(ledger: Ledger, remote: Remote) -> str:
    tool = payment(remote.url, approval=always(ttl=timedelta(hours=1)))
    asked = perform(tool, {"order_id": "O-1", "amount": 1}, ledger=ledger, thread_id="t")
    ticket = Desk(ledger).approval(str(asked.action_id))
    Desk(ledger).decide(ticket.action_id, Approve(), by="sue", fingerprint=ticket.fingerprint)
    return ticket.action_id


async def settled_within(ledger: Ledger, action_id: str, seconds: float) -> bool:
    for _ in range(int(seconds / 0.05)):
        if (await asyncio.to_thread(row, ledger, action_id)).state is State.SUCCEEDED:
            return True
        await asyncio.sleep(0.05)
    return False


async def listening(ledger: Ledger, remote: Remote, meanwhile: Callable[[], Awaitable[None]]) -> None:
    """Run a worker that scans once a minute, and listens to the queue."""
    worker = Worker(ledger, tools=[payment(remote.url)], scan_every_s=60)
    tasks = [asyncio.create_task(worker.arun()), asyncio.create_task(Listening(worker).run())]
    try:
        for _ in range(500):
            if worker.scanned_s_ago is not None:
                break
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)
        await meanwhile()
    finally:
        worker.stop()
        tasks[1].cancel()
        await asyncio.wait(tasks)
        await ledger.aclose()


async def test_a_job_does_not_wait_for_the_scan(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a person approved is carried on in moments, by a worker that scans once a minute."""
    monkeypatch.setattr("settled.runtime.jobs.EVERY_MINUTE", "0 0 1 1 *")  # no scan by the queue either
    with opened(database_url) as now, Remote(database_url) as remote, opened(database_url, clock=ahead) as ledger:

        async def meanwhile() -> None:
            mine = await asyncio.to_thread(approved, now, remote)
            assert not await settled_within(now, mine, 0.3)
            await asyncio.to_thread(look_again, now, "default", mine)
            assert await settled_within(now, mine, 15)

        await asyncio.to_thread(look_again, now, "default", "act-none")
        with Jobs(now):
            await listening(ledger, remote, meanwhile)
        assert (remote.count(), remote.posts(), rows(now.url, JOBS)) == (1, 1, [])


async def test_a_lost_job_loses_nothing(database_url: str) -> None:
    """The queue forgets it, and is taken away altogether: the scan finds the action all the same."""
    with opened(database_url) as now, Remote(database_url) as remote, opened(database_url, clock=ahead) as ledger:
        mine = approved(now, remote)
        with Jobs(now) as queue:
            assert queue.look_again("default", mine)
        assert len(rows(now.url, JOBS)) == 1
        with psycopg.connect(now.url) as connection:
            connection.execute("DROP SCHEMA settled_jobs CASCADE")
        done = await Worker(ledger, tools=[payment(remote.url)]).arun_once()
        await ledger.aclose()
        assert (done.settled, row(now, mine).state, remote.count()) == (1, State.SUCCEEDED, 1)


async def test_a_job_for_what_is_settled_or_unknown_does_nothing(ledger: Ledger, database_url: str) -> None:
    """A job may be late, doubled, or about nothing at all."""
    with Remote(database_url) as remote:
        tool = payment(remote.url)
        done = await asyncio.to_thread(perform, tool, {"order_id": "O-1", "amount": 1}, ledger=ledger, thread_id="t")
        worker = Worker(ledger, tools=[tool])
        for action_id in (str(done.action_id), str(done.action_id), "act-none"):
            assert (await worker.look("default", action_id)).settled == 0
        assert (await worker.look("stranger", str(done.action_id))).looked == 0
        assert (remote.posts(), rows(ledger.url, "SELECT * FROM settled.watched")) == (1, [])


def test_its_tables_are_not_those_of_an_application(ledger: Ledger, queue: Jobs) -> None:
    """An application that uses the same queue in its own schema meets none of our jobs."""
    app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=ledger.url))
    with app.open():
        app.schema_manager.apply_schema()
        queue.look_again("default", "act-1")
        assert list(app.job_manager.list_jobs()) == []
