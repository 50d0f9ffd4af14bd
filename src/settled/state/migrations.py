"""Numbered SQL files, forward only, applied in one transaction under an advisory lock.

Eight processes may start at once: one migrates, the others find nothing to do.
"""

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import psycopg
from psycopg.rows import DictRow, dict_row

from settled.state.errors import LedgerUnavailable
from settled.state.postgres import send

LOCK_WAIT_S = 60.0
"""Longer than any migration of ours; a process that waits longer says so instead of hanging."""


@dataclass(frozen=True)
class Migration:
    """One numbered file: `0001_ledger.sql`."""

    number: int
    name: str
    sql: str


@cache
def migrations() -> tuple[Migration, ...]:
    """Return all migrations of this version, in order."""
    folder = files("settled.state").joinpath("sql/migrations")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return tuple(Migration(int(name[:4]), name, folder.joinpath(name).read_text("utf-8")) for name in names)


def migrate(url: str) -> list[str]:
    """Bring the database at `url` up to this version; answer the names of what was applied."""
    with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as connection:
        if not missing(connection):
            return []
        send(connection, "lock_migrations")
        send(connection, "create_migrations")
        todo = missing(connection)
        for migration in todo:
            connection.execute(migration.sql.encode())
            send(connection, "record_migration", number=migration.number, name=migration.name)
        return [migration.name for migration in todo]


def missing(connection: psycopg.Connection) -> list[Migration]:
    """Return the migrations that this database does not have yet."""
    try:
        with connection.transaction():
            applied = {row[0] for row in send(connection, "applied_migrations")}
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        applied = set()
    return [migration for migration in migrations() if migration.number not in applied]


@contextmanager
def setup_lock(url: str) -> Generator[psycopg.Connection[DictRow]]:
    """Hold the right to set up somebody else's tables (LangGraph's saver): one process at a time. Yields a connection
    to do it on, as that saver wants it; what it commits waits for the disk.

    The lock is polled, not waited for in Postgres: their set-up builds indexes concurrently, which waits for every open
    statement, also for one that waits for a lock.
    """
    with psycopg.connect(url, autocommit=True, cursor_factory=psycopg.RawCursor) as holder:
        for _ in _polls():
            if send(holder, "lock_setup")[0][0]:
                break
        with psycopg.Connection[DictRow].connect(url, autocommit=True, row_factory=dict_row) as connection:
            yield connection


def _polls() -> Iterator[None]:
    end = time.monotonic() + LOCK_WAIT_S
    while time.monotonic() < end:
        yield
        time.sleep(0.05)
    raise LedgerUnavailable(f"another process has been setting up the tables for {LOCK_WAIT_S:g} s")
