"""Where the queue (procrastinate) keeps its jobs: a schema of its own on the ledger's server.

Owns the making of that schema, under the same lock as everybody's set-up, and the way into it from somebody else's
transaction. Knows nothing of what a job says. The subtle thing: the queue's names are unqualified, so each connection
that speaks to it needs the right search path, and a caller's own one must be as before afterwards.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from settled.state import statements
from settled.state.errors import ContractError
from settled.state.migrations import setup_lock
from settled.state.statements import Statement

SCHEMA = "settled_jobs"


def set_up(url: str, schema: str) -> bool:
    """Make the queue's tables by its own SQL, where they are not there; whether they were made now."""
    if is_set_up(url):
        return False
    with setup_lock(url) as connection:
        if is_set_up(url):
            return False
        with connection.transaction():
            connection.execute(_statement("create_schema").sql)
            connection.execute(_statement("enter_schema").sql)
            connection.execute(schema.encode())
    return True


def is_set_up(url: str) -> bool:
    """Whether the queue's tables are there."""
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(_statement("is_set_up").sql).fetchone()
    return bool(found and found[0])


def conninfo(url: str) -> str:
    """Return how the queue connects: as the ledger does, and in its own schema."""
    options = conninfo_to_dict(url).get("options") or ""
    return make_conninfo(url, options=f"{options} -c search_path={SCHEMA}".strip())


@contextmanager
def inside(connection: object) -> Generator[None]:
    """Speak to the queue in the open transaction of a psycopg connection: what fails in the block leaves that
    transaction as it was, and its commit is the caller's.
    """
    if not isinstance(connection, psycopg.Connection):
        raise ContractError("connection= must be a psycopg Connection")
    _check_open(connection)
    with psycopg.RawCursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(_statement("begin").sql)
    with connection.transaction(), psycopg.RawCursor(connection, row_factory=tuple_row) as cursor:
        path: tuple[Any, ...] | None = cursor.execute(_statement("enter_schema").sql).fetchone()
        yield
        leave = _statement("leave_schema")
        cursor.execute(leave.sql, leave.values({"path": path and path[0]}))


def _check_open(connection: "psycopg.Connection[Any]") -> None:
    """Without a transaction the job would be there before what it is about."""
    if connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE:
        raise ContractError("connection= has no open transaction: use it within `connection.transaction()`")


def _statement(name: str) -> Statement:
    return statements.load("settled.state", "sql/jobs.sql")[name]
