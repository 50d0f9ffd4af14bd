"""The ledger's tables: eight processes may start at once, one migrates, nobody fails."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

import servers
from acts import opened, rows
from settled import ContractError, Ledger
from settled.state import ledger as ledger_queries
from settled.state import migrations
from settled.state.postgres import Database

PROCESSES = 8
START = """
import sys, time
from settled.state.store import Ledger
time.sleep(max(0, float(sys.argv[2]) - time.time()))
Ledger.connect(sys.argv[1]).close()
"""


@pytest.fixture
def empty_url(server_url: str) -> Iterator[str]:
    with servers.database(server_url) as url:
        yield url


def test_eight_processes_at_once(empty_url: str) -> None:
    """All of them open the same empty database at the same instant: each migration is applied once."""
    start = str(time.time() + 3)
    children = [
        subprocess.Popen([sys.executable, "-c", START, empty_url, start], stderr=subprocess.PIPE, text=True)
        for _ in range(PROCESSES)
    ]
    said = [child.communicate(timeout=60)[1] for child in children]
    assert [child.returncode for child in children] == [0] * PROCESSES, said
    applied = rows(empty_url, "SELECT number FROM settled.migrations ORDER BY number")
    assert [row["number"] for row in applied] == [m.number for m in migrations.migrations()]


def test_sixteen_threads_at_once(empty_url: str) -> None:
    """The same in one process; one answer names what was applied, the others are empty."""
    answers: list[list[str]] = []
    gate = threading.Barrier(16)

    def start() -> None:
        gate.wait()
        answers.append(migrations.migrate(empty_url))

    threads = [threading.Thread(target=start) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers.count([]) == 15
    assert max(answers, key=len) == [m.name for m in migrations.migrations()]


def test_a_migration_that_fails_leaves_nothing(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All or nothing, and the next start works."""
    broken = migrations.Migration(9999, "9999_broken.sql", "CREATE TABLE settled.half (); SELECT 1/0")
    real = migrations.migrations()
    monkeypatch.setattr(migrations, "migrations", lambda: (*real, broken))
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrations.migrate(empty_url)
    assert rows(empty_url, "SELECT 1 FROM pg_namespace WHERE nspname = 'settled'") == []
    monkeypatch.undo()
    assert migrations.migrate(empty_url) == [m.name for m in real]
    assert migrations.migrate(empty_url) == []


def test_numbers_rise_without_a_gap() -> None:
    """0001, 0002, … as the files are named."""
    numbers = [m.number for m in migrations.migrations()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_an_unmigrated_database_says_what_to_do(empty_url: str) -> None:
    """Who opens the plain database without migrating gets a sentence, not a SQL error."""
    database = Database(empty_url)
    with pytest.raises(ContractError, match="settled db migrate"):
        database.run(ledger_queries.load("default", "act-1"))
    database.close()


def test_setting_up_is_done_by_one_at_a_time(empty_url: str) -> None:
    """`setup_lock` lets one in; the next waits, and no statement of it stays open meanwhile."""
    inside: list[int] = []
    most: list[int] = []

    def set_up(number: int) -> None:
        with migrations.setup_lock(empty_url):
            inside.append(number)
            most.append(len(inside))
            time.sleep(0.1)
            inside.remove(number)

    threads = [threading.Thread(target=set_up, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    active = rows(
        empty_url, "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1, 1]
    assert active == []


def test_a_setup_lock_that_stays_taken_says_so(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its wait it raises and never goes in."""
    from settled import LedgerUnavailable

    monkeypatch.setattr(migrations, "LOCK_WAIT_S", 0.2)
    with (
        migrations.setup_lock(empty_url),
        pytest.raises(LedgerUnavailable, match="another process"),
        migrations.setup_lock(empty_url),
    ):
        pytest.fail("two were inside at once")


def test_opening_twice_changes_nothing(database_url: str) -> None:
    """A second opening finds nothing to do, and both work."""
    with opened(database_url) as one, opened(database_url) as two:
        assert isinstance(one, Ledger)
        assert one.run(ledger_queries.actions("default")) == two.run(ledger_queries.actions("default")) == []
