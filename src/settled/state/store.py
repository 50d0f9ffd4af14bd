"""An opened ledger: what callers hold in their hands.

Owns the database, its migration at opening, and the locks of threads. Knows no rules: those are in the statements,
and in `settled.tools.protocol`.
"""

import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import psycopg

from settled.state import embedded
from settled.state.errors import ContractError
from settled.state.locks import LockConnections, ThreadLock
from settled.state.migrations import migrate
from settled.state.postgres import MAX_CONNECTIONS, PATIENCE_S, RECONNECT_WAIT_S, Clock, Database, Tries, unavailable
from settled.state.secrets import Vault


class Ledger(Database):
    """The ledger in one Postgres database. Open it with `Ledger.connect`; close it, or use it in a `with`."""

    vault: Vault
    _locks: LockConnections

    @classmethod
    def connect(
        cls,
        url: str | None = None,
        *,
        max_connections: int = MAX_CONNECTIONS,
        patience_s: float = PATIENCE_S,
        prepare: bool = True,
        secret_key: str | None = None,
        clock: Clock | None = None,
    ) -> Self:
        """Open the ledger at `url`, else at SETTLED_DATABASE_URL, else in a private Postgres; create or update its
        tables.

        `max_connections` bounds the pool, `patience_s` is how long a statement waits for Postgres to come back.
        `prepare=False` for a transaction pooler. `secret_key` (else SETTLED_SECRET_KEY) encrypts `Secret()` arguments.
        Raises LedgerUnavailable when Postgres cannot be reached.
        """
        found = url or os.environ.get("SETTLED_DATABASE_URL") or embedded.server()
        _reach(lambda: migrate(found), patience_s)
        ledger = cls(found, max_connections=max_connections, patience_s=patience_s, prepare=prepare, clock=clock)
        ledger._locks = LockConnections(found)
        ledger.vault = Vault(secret_key or os.environ.get("SETTLED_SECRET_KEY"))
        return ledger

    def thread_lock(self, tenant: str, thread_id: str) -> ThreadLock:
        """Return the lock of a thread, not yet taken."""
        return ThreadLock(self._locks, f"{tenant}\x1f{thread_id}")

    def close(self) -> None:
        """Close the connections. The async pool of a loop is closed by `aclose` in that loop."""
        self._locks.close()
        super().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
        self.close()


_WILL_NOT_HEAL = ("password authentication failed", "does not exist", "no password supplied", "no pg_hba.conf entry")
"""A failed connection carries no SQLSTATE, so its words must do; in another language it is waited for, and then told.
"""


def _reach(step: Callable[[], object], patience_s: float) -> None:
    """Carry out `step` once Postgres can be reached; it may just be starting."""
    tries = Tries(patience_s, free=0)
    for _ in tries:
        try:
            step()
            return
        except psycopg.ProgrammingError as error:
            raise ContractError(f"this is not a database URL that libpq understands: {error}") from error
        except psycopg.OperationalError as error:
            if any(words in str(error) for words in _WILL_NOT_HEAL):
                raise ContractError(f"Postgres refuses the connection: {str(error).strip()}") from error
            if tries.are_over:
                raise unavailable(patience_s) from error
            time.sleep(RECONNECT_WAIT_S)
