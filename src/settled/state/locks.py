"""The lock of a thread: who holds it runs the conversation.

A session-level advisory lock lives as long as its connection, so a killed session's lock is free at once, and the next
one may take its actions over without waiting for their leases. It needs a connection of its own, and no transaction
pooler in between.
"""

from collections import deque

import psycopg

from settled.state.errors import LedgerUnavailable
from settled.state.postgres import send

MAX_IDLE_LOCKS = 4
"""Opening a connection takes longer than a turn's own statements; a few are kept for the next locks."""


class LockConnections:
    """Connections that hold locks, one each; a few idle ones are kept."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._idle: deque[psycopg.Connection] = deque()

    def lock(self, name: str) -> psycopg.Connection | None:
        """Return a connection that holds the lock, or None when somebody else has it."""
        try:
            connection = self._idle.pop()
        except IndexError:
            return self._try(psycopg.connect(self._url, autocommit=True, cursor_factory=psycopg.RawCursor), name)
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
        try:
            return self._connection is not None and bool(self._connection.execute(b"SELECT true").fetchone())
        except psycopg.Error:
            return False

    def give_back(self) -> None:
        """Give the lock back; harmless when it is lost already."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._connections.unlock(connection)
