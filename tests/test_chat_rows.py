"""The rows of runs: one owner at a time, nothing said twice, and nothing written by who has lost it."""

import secrets
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from settled import Ledger
from settled.runtime.chat import recording
from settled.state import runs
from settled.state.postgres import Database
from settled.state.runs import NewRun, Run

TENANT = "default"
SAID = [("values", "{}"), ("custom", "1")]


@pytest.fixture
def rows(ledger: Ledger) -> Database:
    opened = runs.on(ledger)
    for name in ("t", "u"):
        assert opened.run(runs.begin_thread(TENANT, name, {}))
    return opened


def new(**given: Any) -> NewRun:
    made: dict[str, Any] = {"agent": "a", "requester": "jo", "roles": ["r"], "strategy": "enqueue", "request_key": None}
    made |= {"run_id": secrets.token_hex(8), "fingerprint": b"x" * 32, "request": {}, "metadata": {}}
    return NewRun(**{**made, **given})


def begin(rows: Database, thread_id: str = "t", **given: Any) -> Run | None:
    return rows.run(runs.begin(TENANT, thread_id, new(**given)))


def begun(rows: Database, thread_id: str = "t", **given: Any) -> Run:
    run = begin(rows, thread_id, **given)
    assert run is not None
    return run


def take(rows: Database, owner: str, *, lease_s: float = 60.0) -> list[Run]:
    return rows.run(runs.take(owner, agents=["a"], most=10, lease_s=lease_s))


def test_the_runs_of_a_thread_are_taken_one_after_the_other(rows: Database) -> None:
    """Of each thread the oldest that is due; one that begins later holds nobody up."""
    begun(rows, after_s=600)
    first, second, other = begun(rows), begun(rows), begun(rows, "u")
    taken = take(rows, "one")
    assert {run.run_id for run in taken} == {first.run_id, other.run_id}
    assert take(rows, "two") == []
    held = runs.held_by("one", next(run for run in taken if run.run_id == first.run_id))
    assert rows.run(runs.finish(held, "success", [], first=1))
    assert [run.run_id for run in take(rows, "two")] == [second.run_id]


def test_a_statement_that_is_sent_twice_says_nothing_twice(rows: Database) -> None:
    """As after a connection that broke before its answer: events keep their numbers, and the end comes once."""
    one = begun(rows)
    (run,) = take(rows, "one")
    held = runs.held_by("one", run)
    for _ in range(2):
        assert rows.run(runs.append(held, SAID, first=1, lease_s=60)) is False
    for _ in range(2):
        rows.run(runs.finish(held, "success", [("end", "null")], first=3))
    assert [(said.number, said.event) for said in rows.run(runs.events(one, after=0, most=9))] == [
        (1, "values"),
        (2, "custom"),
        (3, "end"),
    ]


def test_who_has_lost_a_run_writes_nothing_more(rows: Database) -> None:
    """A stale owner's events, end and putting back change nothing; the new owner's end stands."""
    one = begun(rows)
    (stale,) = take(rows, "one", lease_s=0)
    (run,) = take(rows, "two")
    assert (run.tries, run.fencing_token) == (2, 2)
    lost, held = runs.held_by("one", stale), runs.held_by("two", run)
    assert rows.run(runs.append(lost, SAID, first=1, lease_s=60)) is None
    assert not rows.run(runs.finish(lost, "success", SAID, first=1))
    assert not rows.run(runs.put_back(lost, pause_s=0, counts=True))
    assert rows.run(runs.last_event(held)) is None
    assert rows.run(runs.finish(held, "error", [], first=1, error={"error": "x"}))
    ended = rows.run(runs.run(TENANT, "t", one.run_id))
    assert ended is not None
    assert (ended.status, ended.error, ended.has_failed) == ("error", {"error": "x"}, True)


def test_a_request_is_one_run_and_too_many_runs_are_refused(rows: Database) -> None:
    """One key is one run of its thread, and what waits in a thread is bounded."""
    assert begin(rows, request_key="k")
    assert begin(rows, request_key="k") is None
    assert begin(rows, strategy="reject") is None
    assert begin(rows, "nowhere") is None
    assert begin(rows, "u", request_key="k", strategy="reject")
    waiting = [begin(rows) for _ in range(runs.MOST_LIVE)]
    assert waiting[-1] is None
    assert sum(one is not None for one in waiting) == runs.MOST_LIVE - 1


def test_a_thread_is_not_dropped_under_a_run_and_what_it_said_goes_with_it(rows: Database) -> None:
    """What ended runs have said is forgotten by age, and a thread's runs go with it."""
    one = begun(rows)
    assert not rows.run(runs.drop_thread(TENANT, "t"))
    (run,) = take(rows, "one")
    rows.run(runs.finish(runs.held_by("one", run), "success", SAID, first=1))
    assert rows.run(runs.forget_events(kept=timedelta(0), most=9)) == 1
    assert rows.run(runs.forget_events(kept=timedelta(0), most=9)) == 0
    assert rows.run(runs.events(one, after=0, most=9)) == []
    assert rows.run(runs.drop_thread(TENANT, "t"))
    assert rows.run(runs.run(TENANT, "t", one.run_id)) is None


async def test_what_a_run_says_has_a_bound_and_its_end_is_told(rows: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener learns that something was left out, and an event that is too large says where to read it."""
    monkeypatch.setattr(recording, "MAX_EVENTS", 4)
    monkeypatch.setattr(recording, "MAX_EVENT_CHARS", 10)
    one = begun(rows)
    (run,) = take(rows, "one")
    recorder = recording.Recorder(rows, runs.held_by("one", run), lease_s=60, ring=lambda: None)
    await recorder.begin(("metadata", "{}"))
    async with recorder.keeping(on_cancel=lambda: None, on_loss=lambda: None):
        await recorder.say(("values", "x" * 11))
        for _ in range(10):
            await recorder.say(("custom", "1"))
    await recorder.finish("success", [])
    said = rows.run(runs.events(one, after=0, most=99))
    assert [event.event for event in said] == ["metadata", "values", "custom", "truncated", "end"]
    assert [event.number for event in said] == [1, 2, 3, 4, 5]
    assert "too large" in said[1].data


@pytest.mark.parametrize(
    "change", ["status = 'pending'", "fencing_token = fencing_token + 2", "requester = 'me'", "request = '{\"a\": 1}'"]
)
def test_whoever_bypasses_python_is_refused_too(rows: Database, database_url: str, change: str) -> None:
    """An ended run stays as it ended, and who asked for what never changes."""
    begin(rows)
    (run,) = take(rows, "one")
    if change.startswith("status"):
        rows.run(runs.finish(runs.held_by("one", run), "success", [], first=1))
    with psycopg.connect(database_url) as connection, pytest.raises(psycopg.errors.Error, match="cannot become"):
        connection.execute(f"UPDATE settled.runs SET {change}")
