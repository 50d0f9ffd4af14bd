"""Carries out queries on Postgres: the only place that touches psycopg.

One text of SQL, a sync and an async way to send it. Each query is one statement in autocommit mode: one round trip,
and no transaction that could stay open. A connection that turns out to be dead (dropped while idle, Postgres
restarted) is replaced and the query sent again until `patience_s` is over: every query of the ledger may be sent
twice (see `settled.state.ledger`). That is why the pool does not check connections beforehand, which would cost a
round trip each.
"""

import asyncio
import copy
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Self, TypeVar

import psycopg
from psycopg.rows import TupleRow
from psycopg_pool import PoolTimeout

from settled.state import statements
from settled.state.errors import (
    ContractError,
    DuplicateAction,
    IllegalTransition,
    InvalidArguments,
    LedgerFault,
    LedgerUnavailable,
)
from settled.state.ledger import Query
from settled.state.pools import Pools
from settled.state.statements import Statement

T = TypeVar("T")

Clock = Callable[[], datetime]
"""A test's clock; the database's own is used where there is none."""

MAX_CONNECTIONS = 10
"""A query holds a connection for milliseconds, so few serve many callers; Postgres allows 100 in all by default."""

PATIENCE_S = 10.0
"""How long a query waits for Postgres to come back: a restart takes seconds, and a caller should hear before its own
deadline.
"""

_SET_CLOCK = b"SELECT set_config('settled.now', $1, false)"
_REFUSED_BY_GUARD = "ST001"
_PREPARED_IS_GONE = ("26000", "42P05", "08P01")
"""What a transaction pooler answers to prepared statements: no such name, name taken, protocol violation."""


class Database:
    """A Postgres database that carries out named statements, sync and async.

    `named` holds the statements by name (None: the ledger's own). `prepare=False` for a transaction pooler that cannot
    keep prepared statements (one that answers so is noticed, and they are given up by themselves).
    """

    def __init__(
        self,
        url: str,
        named: Mapping[str, Statement] | None = None,
        *,
        max_connections: int = MAX_CONNECTIONS,
        patience_s: float = PATIENCE_S,
        prepare: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.url = url
        self.patience_s = patience_s
        self._statements = named or ledger_statements()
        self._prepare = prepare
        self._clock = clock
        self._max_connections = max_connections
        self.pools = Pools(url, size=max_connections, prepare=prepare)

    def speaking(self, *paths: str, prepare: bool = True) -> Self:
        """Return this database as one that speaks the statements of these files instead; the two share their
        connections. Without `prepare` they are planned each time: for those whose plan must follow the tables' growth.
        """
        other = copy.copy(self)
        other._statements = _loaded(paths)
        other._prepare = self._prepare and prepare
        return other

    def run(self, query: Query[T]) -> T:
        """Carry out a query; LedgerUnavailable when Postgres does not answer within `patience_s`."""
        tries = self._tries()
        for timeout_s in tries:
            try:
                with self.pools.threads().connection(timeout=timeout_s) as connection:
                    return query.decode(self._execute(connection, query))
            except UnicodeEncodeError as error:
                raise unstorable() from error
            except psycopg.Error as error:
                time.sleep(self._wait_or_raise(tries, error))
        raise AssertionError("unreachable: the tries end by raising")

    async def arun(self, query: Query[T]) -> T:
        """Carry out a query without blocking the event loop; fails as `run` does."""
        tries = self._tries()
        for timeout_s in tries:
            try:
                async with (await self.pools.loop()).connection(timeout=timeout_s) as connection:
                    return query.decode(await self._aexecute(connection, query))
            except UnicodeEncodeError as error:
                raise unstorable() from error
            except psycopg.Error as error:
                await asyncio.sleep(self._wait_or_raise(tries, error))
        raise AssertionError("unreachable: the tries end by raising")

    def close(self) -> None:
        """Close the connections, for good. The async ones of a loop are closed by `aclose` in that loop."""
        self.pools.close()

    async def aclose(self) -> None:
        """Close the async connections of the running loop."""
        await self.pools.aclose()

    def _execute(self, connection: psycopg.Connection[TupleRow], query: Query[Any]) -> list[TupleRow]:
        if self._clock is not None:
            connection.execute(_SET_CLOCK, [self._clock().isoformat()])
        statement = self._statements[query.name]
        cursor = connection.execute(statement.sql, statement.values(query.params), prepare=self._prepare)
        return cursor.fetchall() if statement.answers else []

    async def _aexecute(self, connection: psycopg.AsyncConnection[TupleRow], query: Query[Any]) -> list[TupleRow]:
        if self._clock is not None:
            await connection.execute(_SET_CLOCK, [self._clock().isoformat()])
        statement = self._statements[query.name]
        cursor = await connection.execute(statement.sql, statement.values(query.params), prepare=self._prepare)
        return await cursor.fetchall() if statement.answers else []

    def _tries(self) -> "Tries":
        return Tries(self.patience_s, free=self._max_connections + 1)

    def _wait_or_raise(self, tries: "Tries", error: psycopg.Error) -> float:
        """Return how long to wait before the next try, or raise what the caller must hear."""
        if error.sqlstate in _PREPARED_IS_GONE and self._prepare:
            self._prepare = False
            return 0.0
        if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            raise translated(error) from error
        if tries.are_over:
            raise unavailable(self.patience_s) from error
        return 0.0 if tries.next_is_free and not isinstance(error, PoolTimeout) else RECONNECT_WAIT_S


RECONNECT_WAIT_S = 0.1
"""Between tries while Postgres is away: short beside a restart, long beside a round trip."""

POOL_WAIT_S = 1.0
"""For a connection, before a query asks its pool anew: a pool gives up after an outage and begins again when asked."""


class Tries:
    """The seconds left for each next try, until a time is up; the first `free` tries need no wait (dead pooled
    connections).
    """

    def __init__(self, patience_s: float, free: int) -> None:
        self._end = time.monotonic() + patience_s
        self._free = free
        self._count = 0

    @property
    def are_over(self) -> bool:
        return time.monotonic() >= self._end

    @property
    def next_is_free(self) -> bool:
        return self._count <= self._free

    def __iter__(self) -> Generator[float]:
        while True:
            self._count += 1
            yield min(max(self._end - time.monotonic(), 0.1), POOL_WAIT_S)


LEDGER_FILES = ("sql/queries.sql", "sql/chains.sql")
"""What the ledger speaks; chains are among it, whose steps are its actions."""


@cache
def ledger_statements() -> Mapping[str, Statement]:
    """Return the ledger's own named statements."""
    return _loaded(LEDGER_FILES)


def _loaded(paths: Sequence[str]) -> Mapping[str, Statement]:
    return {name: one for path in paths for name, one in statements.load("settled.state", path).items()}


def send(connection: psycopg.Connection, name: str, /, **params: object) -> list[TupleRow]:
    """Carry out one of the ledger's named statements on a connection that makes raw cursors."""
    statement = ledger_statements()[name]
    cursor = connection.execute(statement.sql, statement.values(params) or None)
    return cursor.fetchall() if statement.answers else []


def unavailable(patience_s: float) -> LedgerUnavailable:
    """Return the error for a Postgres that stayed away."""
    return LedgerUnavailable(f"Postgres did not answer within {patience_s:g} s")


def unstorable() -> InvalidArguments:
    """Return the error for a name or a text that no row can hold."""
    return InvalidArguments("text", "has a character that cannot be stored: NUL, or half of a pair")


def translated(error: psycopg.Error) -> Exception:
    """Return the library's error for one that trying again cannot cure."""
    if error.sqlstate is None and isinstance(error, psycopg.DataError):  # refused before it was sent
        return unstorable()
    if error.sqlstate == _REFUSED_BY_GUARD:
        return IllegalTransition(str(error.diag.message_primary))
    if error.sqlstate == "23505":
        return DuplicateAction("another action has this intent or this business key")
    if error.sqlstate in ("42P01", "3F000"):
        return ContractError(
            "the ledger's tables are not there: open it with Ledger.connect, or run `settled db migrate`"
        )
    return LedgerFault(f"Postgres refused a statement: {error.diag.message_primary or type(error).__name__}")
