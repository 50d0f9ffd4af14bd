"""The lock of a thread: who holds it runs the conversation.

A session-level advisory lock lives as long as its connection, so a killed session's lock is free at once, and the next
one may take its actions over without waiting for their leases. It needs a connection of its own, and no transaction
pooler in between.

The other side of that: a connection may end while its owner lives (an idle timeout, a firewall, a failover), and then
somebody else may take the lock. `is_lost` tells so at no cost, and its owner asks before it writes.
"""

import os
from collections import deque

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from settled.state.errors import LedgerUnavailable
from settled.state.pools import has_news
from settled.state.postgres import send

MAX_IDLE_LOCKS = 4
"""Opening a connection takes longer than a turn's own statements; a few are kept for the next locks."""

KEEPALIVES = {
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",
}
"""A silent connection stays open, and an owner that is cut off knows it after 25 s: before the server does (60 s), and
so before it gives the lock to anybody else. What the URL says goes before.
"""

_STAY_OPEN = b"""
SELECT set_config('tcp_keepalives_idle', '30', false), set_config('tcp_keepalives_interval', '10', false),
       set_config('tcp_keepalives_count', '3', false),
       CASE WHEN current_setting('idle_session_timeout', true) IS NOT NULL
            THEN set_config('idle_session_timeout', '0', false) END"""
"""The server asks too, or a machine that died would keep its locks for two hours. (The last setting exists from
Postgres 14 on.)
"""


class LockConnections:
    """Connections that hold locks, one each; a few idle ones are kept."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._idle: deque[psycopg.Connection] = deque()
        self._pid = os.getpid()

    def lock(self, name: str) -> psycopg.Connection | None:
        """Return a connection that holds the lock, or None when somebody else has it."""
        if self._pid != os.getpid():  # a forked child leaves its parent's connections alone, and does not end them
            self._inherited, self._idle, self._pid = self._idle, deque(), os.getpid()
        try:
            connection = self._idle.pop()
        except IndexError:
            return self._try(self._opened(), name)
        try:
            return self._try(connection, name)
        except psycopg.OperationalError:  # it died while it was idle
            connection.close()
            return self.lock(name)

    def unlock(self, connection: psycopg.Connection) -> None:
        """Give a lock back, and keep its connection for the next one."""
        try:
            send(connection, "unlock_all")
        except psycopg.Error:  # the lock died with its connection
            connection.close()
            return
        self._keep(connection)

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()

    def _opened(self) -> psycopg.Connection:
        named = conninfo_to_dict(self._url)
        kept = {name: value for name, value in KEEPALIVES.items() if name not in named}
        connection = psycopg.connect(
            make_conninfo(self._url, **kept), autocommit=True, cursor_factory=psycopg.RawCursor
        )
        connection.execute(_STAY_OPEN)
        return connection

    def _try(self, connection: psycopg.Connection, name: str) -> psycopg.Connection | None:
        if send(connection, "lock_thread", name=name)[0][0]:
            return connection
        self._keep(connection)
        return None

    def _keep(self, connection: psycopg.Connection) -> None:
        if len(self._idle) < MAX_IDLE_LOCKS:
            self._idle.append(connection)
        else:
            connection.close()


class ThreadLock:
    """A session-level advisory lock on a connection of its own: it dies with its owner."""

    def __init__(self, connections: LockConnections, name: str) -> None:
        self._connections = connections
        self._name = name
        self._connection: psycopg.Connection | None = None

    def take(self) -> bool:
        """Take the lock; False when somebody else has it. Raises LedgerUnavailable when Postgres cannot be reached."""
        try:
            self._connection = self._connections.lock(self._name)
        except psycopg.OperationalError as error:
            raise LedgerUnavailable("Postgres did not answer when a thread's lock was asked for") from error
        return self._connection is not None

    def is_held(self) -> bool:
        """Ask Postgres whether the connection, and so the lock, is still alive."""
        connection = self._connection
        try:
            return connection is not None and bool(connection.execute(b"SELECT true").fetchone())
        except psycopg.Error:
            return False

    def is_lost(self) -> bool:
        """Whether the lock is gone, or was given back. Postgres is asked only when the connection has something to say:
        one that was ended has.
        """
        connection = self._connection
        try:
            return connection is None or (has_news(connection.fileno()) and not self.is_held())
        except psycopg.Error:  # it is closed
            return True

    def give_back(self) -> None:
        """Give the lock back; harmless when it is lost already."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._connections.unlock(connection)
