"""An opened ledger: what callers hold in their hands.

Owns the database, its migration at opening, and the locks of threads. Knows no rules: those are in the statements,
and in `settled.tools.protocol`.
"""

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from settled.state import embedded
from settled.state import ledger as operations
from settled.state.closing import AsyncClosing, Closing
from settled.state.errors import NotFound
from settled.state.locks import LockConnections, ThreadLock
from settled.state.migrations import migrate
from settled.state.model import Action, Event
from settled.state.postgres import MAX_CONNECTIONS, PATIENCE_S, Clock, Database
from settled.state.reach import reach
from settled.state.secrets import Vault


class Ledger(Database, Closing, AsyncClosing):
    """The ledger in one Postgres database. Open it with `Ledger.connect`; close it, or use it in a `with`."""

    vault: Vault
    companions: dict[str, object]
    """What others keep for as long as the ledger is open, by a name of their own."""
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
        Raises LedgerUnavailable when Postgres cannot be reached, ContractError for a URL or a login that cannot be
        right.
        """
        found = url or os.environ.get("SETTLED_DATABASE_URL") or embedded.server()
        reach(found, migrate, patience_s)
        ledger = cls(found, max_connections=max_connections, patience_s=patience_s, prepare=prepare, clock=clock)
        ledger.companions = {}
        ledger._locks = LockConnections(found)
        ledger.vault = Vault(secret_key or os.environ.get("SETTLED_SECRET_KEY"))
        return ledger

    def action(self, action_id: str, *, tenant: str = "default") -> Action:
        """Return one action; NotFound where this tenant has none of that id."""
        found = self.run(operations.load(tenant, action_id))
        if found is None:
            raise NotFound(f"there is no action {action_id!r}")
        return found

    def timeline(self, action_id: str, *, tenant: str = "default") -> list[Event]:
        """Return the events of one action, in order."""
        return self.run(operations.timeline(tenant, action_id))

    def actions(
        self,
        *,
        tenant: str = "default",
        states: Sequence[str] | None = None,
        thread_id: str | None = None,
        most: int = 100,
    ) -> list[Action]:
        """Return a tenant's actions, newest first: at most `most`, in these states and of this thread if given."""
        return self.run(operations.actions(tenant, states=states, thread_id=thread_id, most=most))

    def thread_lock(self, tenant: str, thread_id: str) -> ThreadLock:
        """Return the lock of a thread, not yet taken."""
        return ThreadLock(self._locks, f"{tenant}\x1f{thread_id}")

    def close(self) -> None:
        """Close the connections. The async pool of a loop is closed by `aclose` in that loop."""
        self._locks.close()
        super().close()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
        self.close()
