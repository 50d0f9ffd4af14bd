"""Messages become jobs of procrastinate, on its own tables; a repeat is one job while it waits."""

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import servers
from consumers import pay, paying
from settled import ContractError, Ledger, Message
from settled.tools.delivery import Delivery
from settled.tools.dispatcher import Dispatcher
from settled.tools.outbox import Outbox
from settled.tools.sinks.procrastinate_task import ProcrastinateTask

procrastinate = pytest.importorskip("procrastinate")


@pytest.fixture(scope="module")
def jobs_url(server_url: str) -> Iterator[str]:
    with servers.database(server_url) as url:
        app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=url))
        with app.open():
            app.schema_manager.apply_schema()
        yield url


def app_of(connector: Any) -> Any:
    app = procrastinate.App(connector=connector)

    @app.task(name="ship")
    def ship(message: dict[str, Any]) -> None:
        """Ship it."""

    return app, ship


def jobs(url: str) -> list[dict[str, Any]]:
    with psycopg.connect(url, row_factory=psycopg.rows.dict_row) as connection:
        found = connection.execute(
            "SELECT task_name, queueing_lock, args FROM procrastinate_jobs ORDER BY id"
        ).fetchall()
        connection.execute("TRUNCATE procrastinate_jobs CASCADE")
        return found


@pytest.mark.parametrize("door", ["sync", "async"])
def test_each_message_is_a_job(database_url: str, jobs_url: str, door: str) -> None:
    """Through a connector that is open for sync use, and one that is open in the dispatcher's loop."""

    def sync() -> None:
        app, task = app_of(procrastinate.SyncPsycopgConnector(conninfo=jobs_url))
        with app.open(), Ledger.connect(database_url) as ledger:
            assert Dispatcher(ledger, sinks={"*": ProcrastinateTask(task)}).run_once().delivered == 2

    async def asynchronous() -> None:
        app, task = app_of(procrastinate.PsycopgConnector(conninfo=jobs_url))
        async with app.open_async(), Ledger.connect(database_url) as ledger:
            assert (await Dispatcher(ledger, sinks={"*": ProcrastinateTask(task)}).arun_once()).delivered == 2

    with Ledger.connect(database_url) as ledger:
        action_id = pay(ledger, "A")
        sync() if door == "sync" else asyncio.run(asynchronous())
        posted = Outbox(ledger).messages()
    made = jobs(jobs_url)
    assert [(job["task_name"], job["queueing_lock"]) for job in made] == [("ship", one.id) for one in posted]
    assert made[0]["args"]["message"] == {
        "id": posted[0].id,
        "topic": "paid",
        "payload": "A",
        "action_id": action_id,
        "tenant": "default",
        "created_at": posted[0].created_at.isoformat(),
    }


async def test_a_repeat_while_the_job_waits_is_no_second_one(ledger: Ledger, jobs_url: str) -> None:
    app, task = app_of(procrastinate.PsycopgConnector(conninfo=jobs_url))
    had: list[Delivery] = []
    pay(ledger, "A", paying(emits=lambda done: Message("paid", "A")))
    Dispatcher(ledger, sinks={"*": had.append}).run_once()
    async with app.open_async():
        for _ in range(3):
            await ProcrastinateTask(task)(had[0])
    assert len(jobs(jobs_url)) == 1


def test_a_queue_that_is_away_defers_the_message(ledger: Ledger) -> None:
    _, task = app_of(procrastinate.PsycopgConnector(conninfo="host=127.0.0.1 port=1"))
    pay(ledger, "A", paying(emits=lambda done: Message("paid", "A")))
    assert Dispatcher(ledger, sinks={"*": ProcrastinateTask(task)}).run_once().deferred == 1
    (due,) = Outbox(ledger).messages(state="due")
    assert due.reason is not None
    assert "AppNotOpen" in due.reason


def test_what_is_no_task_is_refused() -> None:
    with pytest.raises(ContractError, match="takes a task"):
        ProcrastinateTask(print)
