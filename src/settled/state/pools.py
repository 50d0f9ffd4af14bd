"""The connections of one database: a pool for threads, and one for each event loop.

Owns their opening and closing, also where nobody closes them: a loop that has ended, and a forked child, which must
leave its parent's connections alone. Knows nothing of statements.
"""

import asyncio
import os
import select
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import psycopg
from psycopg.rows import DictRow, TupleRow, dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from settled.state.errors import ContractError, LedgerUnavailable

Connection = psycopg.Connection[TupleRow]
AsyncConnection = psycopg.AsyncConnection[TupleRow]

RECONNECT_S = 0.2
"""A pool doubles the waits between its own attempts to connect, so after an outage of a minute it would stay away for
half a minute more. It gives up sooner than that, and a query that asks again makes it begin anew.
"""

_KEEP_PLANS = b"SET plan_cache_mode = force_generic_plan"
"""Planning one of our statements takes longer than carrying it out, and the plan never depends on a value."""

_SEE_WHAT_IS_COMMITTED = b"SET default_transaction_isolation = 'read committed'"
"""A budget is summed after its lock was taken. A snapshot that is older than the lock, as in a repeatable read, misses
what was reserved meanwhile.
"""

_INHERITED: list[object] = []
"""Pools of a parent process. They are kept and never used: closing one would write to the parent's sockets."""


@dataclass
class _LoopPool:
    """The pool of an event loop, the task that closes it, and its connections: they outlive a loop that was killed."""

    pool: AsyncConnectionPool[AsyncConnection]
    closing: "asyncio.Task[None]"
    connections: WeakSet[AsyncConnection]


class Pools:
    """The pools of one database; each is opened when it is first needed. `prepare` is False behind a pooler."""

    def __init__(self, url: str, *, size: int, prepare: bool) -> None:
        self._url = url
        self._size = size
        self._prepare = prepare
        self._sync: ConnectionPool[Connection] | None = None
        self._loops: dict[asyncio.AbstractEventLoop, _LoopPool] = {}
        self._begin()

    def threads(self) -> ConnectionPool[Connection]:
        """Return the pool for threads; LedgerUnavailable once it is closed."""
        self._leave_parent()
        with self._opening:
            self._refuse_closed()
            if self._sync is None:
                self._sync = ConnectionPool(
                    self._url,
                    min_size=1,
                    max_size=self._size,
                    reconnect_timeout=RECONNECT_S,
                    kwargs={**self._args(), "cursor_factory": psycopg.RawCursor},
                    configure=_keep_plans if self._prepare else None,
                    open=True,
                )
            return self._sync

    async def loop(self) -> AsyncConnectionPool[AsyncConnection]:
        """Return the pool of the running event loop; LedgerUnavailable once all are closed."""
        self._leave_parent()
        self._refuse_closed()
        running = asyncio.get_running_loop()
        known = self._loops.get(running)
        if known is None:
            _refuse_proactor(running)
            with self._opening:
                self._drop_ended_loops()
                known = self._loops[running] = self._pool_for_loop(running)
            await known.pool.open()
        return known.pool

    def close(self) -> None:
        """Close the pool for threads, for good; pools of loops are closed by `aclose` in their loop."""
        self._closed = True
        with self._opening:
            self._drop_ended_loops()
        if self._sync is not None:
            self._sync.close()
            self._sync = None

    async def aclose(self) -> None:
        """Close the pool of the running event loop."""
        known = self._loops.pop(asyncio.get_running_loop(), None)
        if known is not None:
            known.closing.cancel()
            await asyncio.wait({known.closing})

    def checkpoint(self, size: int) -> ConnectionPool[psycopg.Connection[DictRow]]:
        """Return a pool, not yet open, as LangGraph's saver needs it."""
        return ConnectionPool(self._url, min_size=1, max_size=size, kwargs=self._saver_args(), open=False, check=_check)

    def acheckpoint(self, size: int) -> AsyncConnectionPool[psycopg.AsyncConnection[DictRow]]:
        """As `checkpoint`, for the async saver."""
        return AsyncConnectionPool(
            self._url, min_size=1, max_size=size, kwargs=self._saver_args(), open=False, check=_acheck
        )

    def _begin(self) -> None:
        self._process = os.getpid()
        self._opening = threading.Lock()
        self._closed = False
        self._sync = None
        self._loops = {}

    def _leave_parent(self) -> None:
        """In a forked child: begin anew, and leave what the parent has open alone."""
        if self._process != os.getpid():
            _INHERITED.append((self._sync, self._loops))
            self._begin()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise LedgerUnavailable("the ledger is closed")

    def _pool_for_loop(self, loop: asyncio.AbstractEventLoop) -> _LoopPool:
        connections: WeakSet[AsyncConnection] = WeakSet()
        pool = AsyncConnectionPool(
            self._url,
            min_size=1,
            max_size=self._size,
            reconnect_timeout=RECONNECT_S,
            kwargs={**self._args(), "cursor_factory": psycopg.AsyncRawCursor},
            configure=_remembering(connections, keep_plans=self._prepare),
            open=False,
        )
        return _LoopPool(pool, loop.create_task(_close_at_the_end(pool)), connections)

    def _drop_ended_loops(self) -> None:
        """Close the connections of loops that have ended; their pools can no longer do it."""
        for loop in [loop for loop in self._loops if loop.is_closed()]:
            for connection in self._loops.pop(loop).connections:
                connection.pgconn.finish()

    def _args(self) -> dict[str, Any]:
        return {"autocommit": True, "prepare_threshold": 1 if self._prepare else None}

    def _saver_args(self) -> dict[str, Any]:
        return {"autocommit": True, "row_factory": dict_row, "prepare_threshold": 0 if self._prepare else None}


async def _close_at_the_end(pool: AsyncConnectionPool[AsyncConnection]) -> None:
    """Close a pool when this task is cancelled: by `aclose`, or by a loop that ends and cancels all tasks. (The
    pool's own workers may swallow that cancellation, and the loop would wait for them for ever.)
    """
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        await pool.close()


def _remembering(
    connections: WeakSet[AsyncConnection], *, keep_plans: bool
) -> Callable[[AsyncConnection], Awaitable[None]]:
    async def configure(connection: AsyncConnection) -> None:
        connections.add(connection)
        try:
            if keep_plans:
                await connection.execute(_KEEP_PLANS + b";" + _SEE_WHAT_IS_COMMITTED)
        except BaseException:  # a loop that ends: the pool forgets a connection that it has not got yet
            connection.pgconn.finish()
            raise

    return configure


def _keep_plans(connection: Connection) -> None:
    connection.execute(_KEEP_PLANS + b";" + _SEE_WHAT_IS_COMMITTED)


def _check(connection: psycopg.Connection[Any]) -> None:
    """Ask an idle connection whether it lives, but only when its socket has something to say."""
    if has_news(connection.fileno()):
        ConnectionPool.check_connection(connection)


async def _acheck(connection: psycopg.AsyncConnection[Any]) -> None:
    """As `_check`."""
    if has_news(connection.fileno()):
        await AsyncConnectionPool.check_connection(connection)


def has_news(socket: int) -> bool:
    """Whether an idle connection's socket can be read: the server has said something, or hung up. Asks nobody."""
    if not hasattr(select, "poll"):  # Windows
        return True
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))


def _refuse_proactor(loop: asyncio.AbstractEventLoop) -> None:
    """Raise one clear error for the Windows loop that async psycopg cannot use."""
    if sys.platform == "win32" and isinstance(loop, asyncio.ProactorEventLoop):
        raise ContractError(
            "psycopg cannot use the ProactorEventLoop: asyncio.run(main(), loop_factory=asyncio.SelectorEventLoop)"
        )
