"""Purging by retention: what is over, long enough ago, and bound by nothing any more.

Owns the walk through the ledger, in bounded batches, so that running work is not held up. What may go is decided in
SQL (`settled.state.purge`). Before anything goes, the ledger is read to its end for open actions: what they belong to
stays.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from settled.state import chains, purge, work
from settled.state.errors import ContractError, LedgerUnavailable
from settled.state.store import Ledger
from settled.tools.carrying import LONGEST_REST_S
from settled.tools.endpoint import IdempotencyStore
from settled.tools.standing import RECONCILER_GRACE_S

BATCH = 500
"""Actions that one statement forgets: some ten milliseconds."""

SWEEP_ROWS = 5000
"""Rows that one statement reads for open actions."""

PATIENCE_S = 60.0
"""How long another worker may be reading the ledger on."""


LONGEST = timedelta(days=36525)
"""Postgres' calendar ends some thousand years back."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long what is over is kept. None: for ever.

    `actions`: since it was settled, and its window is over. A success under a business key is kept for ever: it is what
    "never twice" rests on. `checkpoints`: since a thread of a session with an `agent_name` was used last. With
    `decisions`, those of the forgotten actions go as well, and runs of chains with their steps: a call that is repeated
    by a replay of an old conversation, or the input of an old run, acts anew then; without, it learns that it was
    settled, and the steps of chains stay.
    """

    actions: timedelta | None = None
    checkpoints: timedelta | None = None
    decisions: bool = False

    def __post_init__(self) -> None:
        for name, span in (("actions", self.actions), ("checkpoints", self.checkpoints)):
            if span is not None and not timedelta(0) < span <= LONGEST:
                raise ContractError(f"a retention of {name} must be more than 0 and at most 100 years, not {span}")


@dataclass(frozen=True, slots=True)
class Purged:
    """How many were forgotten."""

    actions: int = 0
    threads: int = 0
    endpoint_keys: int = 0

    @property
    def record(self) -> dict[str, int]:
        """As JSON has it."""
        return asdict(self)


class Purge:
    """Forgets what a retention lets go, from one ledger."""

    def __init__(self, ledger: Ledger, retention: Retention, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._ledger = ledger
        self._retention = retention
        self._database = purge.on(ledger)
        self._sleep = sleep
        self._is_draining = False

    def run_once(self) -> Purged:
        """Forget all that may go now. Harmless beside running work, and beside another purge."""
        self._chains()
        return Purged(self._actions(self._forget), self._threads(), self._endpoint_keys())

    def drain(self) -> None:
        """Let it end with the batch that is under way, for good; what is left goes the next time. From any thread."""
        self._is_draining = True

    def count(self) -> int:
        """Return how many actions `run_once` would forget now."""
        return self._actions(self._count)

    def _actions(self, step: "Callable[[Any, timedelta], purge.Batch]") -> int:
        if self._retention.actions is None:
            return 0
        self._read_to_the_end()
        forgotten, after = 0, purge.BEGINNING
        while not self._is_draining:
            batch = step(after, self._retention.actions)
            forgotten += batch.forgotten
            if batch.reach is None or batch.read < BATCH:
                break
            after = batch.reach
        return forgotten

    def _chains(self) -> None:
        """Forget runs of chains that were over so long ago; their actions are like any other ones then."""
        older_than = self._retention.actions
        while older_than is not None and self._retention.decisions:
            if self._ledger.run(chains.forget(older_than, most=BATCH)) < BATCH:
                return

    def _forget(self, after: Any, older_than: timedelta) -> purge.Batch:
        decisions = self._retention.decisions
        query = purge.forget_old(after=after, older_than=older_than, most=BATCH, decisions=decisions)
        return self._database.run(query)

    def _count(self, after: Any, older_than: timedelta) -> purge.Batch:
        return self._database.run(purge.count_old(after=after, older_than=older_than, most=BATCH))

    def _read_to_the_end(self) -> None:
        """Note every open action. LedgerUnavailable where others are reading for longer than anybody does."""
        reading = work.on(self._ledger)
        end = time.monotonic() + PATIENCE_S
        for frontier in work.BEHIND_S:
            query = work.sweep(frontier, most=SWEEP_ROWS, grace_s=RECONCILER_GRACE_S, most_s=LONGEST_REST_S)
            while not self._is_draining and ((swept := reading.run(query)) is None or swept.has_more):
                if swept is None and time.monotonic() > end:
                    raise LedgerUnavailable(f"other workers have been reading the ledger for {PATIENCE_S:g} s")
                if swept is None:
                    self._sleep(0.05)

    def _threads(self) -> int:
        """Forget the checkpoints of threads that nobody uses, each under its lock."""
        if self._retention.checkpoints is None:
            return 0
        self._read_to_the_end()
        from settled.graph.checkpointer import open_checkpointer
        from settled.graph.identity import thread_name

        forgotten = 0
        with open_checkpointer(self._ledger, max_connections=1) as saver:
            for tenant, thread_id, last_at in self._old_threads(self._retention.checkpoints):
                if self._is_draining:
                    break
                lock = self._ledger.thread_lock(tenant, thread_id)
                if not lock.take():
                    continue
                try:
                    if self._database.run(purge.is_unused(tenant, thread_id, last_at)):
                        saver.delete_thread(thread_name(tenant, thread_id))  # first: a crash in between leaves the row
                        forgotten += int(self._database.run(purge.forget_thread(tenant, thread_id, last_at)))
                finally:
                    lock.give_back()
        return forgotten

    def _old_threads(self, older_than: timedelta) -> Iterator[tuple[str, str, Any]]:
        after = purge.BEGINNING
        while batch := self._database.run(purge.old_threads(after=after, older_than=older_than, most=BATCH)):
            yield from batch
            after = batch[-1][2]

    def _endpoint_keys(self) -> int:
        """Forget the idempotency keys whose own retention is over."""
        forgotten = 0
        for scope in self._database.run(purge.endpoint_scopes()):
            store = IdempotencyStore(self._ledger, scope=scope)
            while not self._is_draining and (batch := store.purge()) > 0:
                forgotten += batch
        return forgotten
