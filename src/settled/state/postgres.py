"""Carries out queries on Postgres: the only place that touches psycopg.

One text of SQL, a sync and an async way to send it. Each query is one statement in autocommit mode: one round trip,
and no transaction that could stay open. A connection that turns out to be dead (dropped while idle, Postgres
restarted) is replaced and the query sent again until `patience_s` is over: every query of the ledger may be sent
twice (see `settled.state.ledger`). That is why the pool does not check connections beforehand, which would cost a
round trip each.
"""

import asyncio
import select
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg.rows import DictRow, TupleRow, dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from settled.state import statements
from settled.state.errors import ContractError, IllegalTransition, LedgerFault, LedgerUnavailable
from settled.state.ledger import Query
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
_KEEP_PLANS = b"SET plan_cache_mode = force_generic_plan"
"""Planning one of our statements takes longer than carrying it out, and the plan never depends on a value."""

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
        self._opening = threading.Lock()
        self._pool: ConnectionPool[psycopg.Connection[TupleRow]] | None = None
        self._apools: WeakKeyDictionary[
            asyncio.AbstractEventLoop, AsyncConnectionPool[psycopg.AsyncConnection[TupleRow]]
        ] = WeakKeyDictionary()

    def run(self, query: Query[T]) -> T:
        """Carry out a query; LedgerUnavailable when Postgres does not answer within `patience_s`."""
        pool = self._sync_pool()
        tries = self._tries()
        for timeout_s in tries:
            try:
                with pool.connection(timeout=timeout_s) as connection:
                    return query.decode(self._execute(connection, query))
            except psycopg.Error as error:
                time.sleep(self._wait_or_raise(tries, error))
        raise AssertionError("unreachable: the tries end by raising")

    async def arun(self, query: Query[T]) -> T:
        """Carry out a query without blocking the event loop; fails as `run` does."""
        pool = await self._async_pool()
        tries = self._tries()
        for timeout_s in tries:
            try:
                async with pool.connection(timeout=timeout_s) as connection:
                    return query.decode(await self._aexecute(connection, query))
            except psycopg.Error as error:
                await asyncio.sleep(self._wait_or_raise(tries, error))
        raise AssertionError("unreachable: the tries end by raising")

    def close(self) -> None:
        """Close the sync pool. The async pool of a loop is closed by `aclose` in that loop."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    async def aclose(self) -> None:
        """Close the async pool of the running loop."""
        pool = self._apools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.close()

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

    def checkpoint_pool(self, size: int) -> ConnectionPool[psycopg.Connection[DictRow]]:
        """Return a pool, not yet open, as LangGraph's saver needs it, on this database (see `_checkpoint_args`)."""
        args = self._checkpoint_args()
        return ConnectionPool(self.url, min_size=1, max_size=size, kwargs=args, open=False, check=_check)

    def acheckpoint_pool(self, size: int) -> AsyncConnectionPool[psycopg.AsyncConnection[DictRow]]:
        """As `checkpoint_pool`, for the async saver."""
        args = self._checkpoint_args()
        return AsyncConnectionPool(self.url, min_size=1, max_size=size, kwargs=args, open=False, check=_acheck)

    def _checkpoint_args(self) -> dict[str, Any]:
        return {"autocommit": True, "row_factory": dict_row, "prepare_threshold": 0 if self._prepare else None}

    @property
    def _connect_args(self) -> dict[str, Any]:
        return {"autocommit": True, "prepare_threshold": 1 if self._prepare else None}

    def _sync_pool(self) -> ConnectionPool[psycopg.Connection[TupleRow]]:
        with self._opening:
            if self._pool is None:
                self._pool = ConnectionPool(
                    self.url,
                    min_size=1,
                    max_size=self._max_connections,
                    reconnect_timeout=POOL_RECONNECT_S,
                    kwargs={**self._connect_args, "cursor_factory": psycopg.RawCursor},
                    configure=_keep_plans if self._prepare else None,
                    open=True,
                )
            return self._pool

    async def _async_pool(self) -> AsyncConnectionPool[psycopg.AsyncConnection[TupleRow]]:
        loop = asyncio.get_running_loop()
        pool = self._apools.get(loop)
        if pool is None:
            refuse_proactor_loop(loop)
            pool = AsyncConnectionPool(
                self.url,
                min_size=1,
                max_size=self._max_connections,
                reconnect_timeout=POOL_RECONNECT_S,
                kwargs={**self._connect_args, "cursor_factory": psycopg.AsyncRawCursor},
                configure=_akeep_plans if self._prepare else None,
                open=False,
            )
            self._apools[loop] = pool
            await pool.open()
        return pool


def _check(connection: psycopg.Connection[Any]) -> None:
    """Ask an idle connection whether it lives, but only when its socket has something to say (a round trip
    otherwise).
    """
    if _has_news(connection.fileno()):
        ConnectionPool.check_connection(connection)


async def _acheck(connection: psycopg.AsyncConnection[Any]) -> None:
    """As `_check`."""
    if _has_news(connection.fileno()):
        await AsyncConnectionPool.check_connection(connection)


def _has_news(socket: int) -> bool:
    """Whether an idle connection's socket can be read: the server has said something, or hung up."""
    if not hasattr(select, "poll"):  # Windows
        return True
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))


def _keep_plans(connection: psycopg.Connection[TupleRow]) -> None:
    connection.execute(_KEEP_PLANS)


async def _akeep_plans(connection: psycopg.AsyncConnection[TupleRow]) -> None:
    await connection.execute(_KEEP_PLANS)


RECONNECT_WAIT_S = 0.1
"""Between tries while Postgres is away: short beside a restart, long beside a round trip."""

POOL_RECONNECT_S, POOL_WAIT_S = 0.2, 1.0
"""A pool doubles the waits between its own attempts to connect, so after an outage of a minute it would stay away for
half a minute more. It gives up sooner than that, and a query that asks again makes it begin anew.
"""


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


def ledger_statements() -> dict[str, Statement]:
    """Return the ledger's own named statements."""
    return statements.load("settled.state", "sql/queries.sql")


def send(connection: psycopg.Connection, name: str, /, **params: object) -> list[TupleRow]:
    """Carry out one of the ledger's named statements on a connection that makes raw cursors."""
    statement = ledger_statements()[name]
    cursor = connection.execute(statement.sql, statement.values(params) or None)
    return cursor.fetchall() if statement.answers else []


def unavailable(patience_s: float) -> LedgerUnavailable:
    """Return the error for a Postgres that stayed away."""
    return LedgerUnavailable(f"Postgres did not answer within {patience_s:g} s")


def translated(error: psycopg.Error) -> Exception:
    """Return the library's error for one that trying again cannot cure."""
    if error.sqlstate == _REFUSED_BY_GUARD:
        return IllegalTransition(str(error.diag.message_primary))
    if error.sqlstate in ("42P01", "3F000"):
        return ContractError(
            "the ledger's tables are not there: open it with Ledger.connect, or run `settled db migrate`"
        )
    return LedgerFault(f"Postgres refused a statement: {error.diag.message_primary or type(error).__name__}")


def refuse_proactor_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Raise one clear error for the Windows loop that async psycopg cannot use."""
    if sys.platform == "win32" and isinstance(loop, asyncio.ProactorEventLoop):
        raise ContractError(
            "psycopg cannot use the ProactorEventLoop: asyncio.run(main(), loop_factory=asyncio.SelectorEventLoop)"
        )
