"""Renews the leases of the actions that this process runs.

One thread for each opened ledger, while there is something to hold; an action that is over before a third of its
lease never wakes it. When an action turns out to be somebody else's, its context's lease ends at once, so that the
HTTP helper sends nothing more.
"""

import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from settled.state import ledger
from settled.state.errors import SettledError
from settled.state.model import Claim
from settled.state.store import Ledger
from settled.tools.context import ActionContext

RENEWALS_PER_LEASE = 3
"""Two renewals may be lost before the lease is."""

TICK_S, IDLE_S = 1.0, 10.0
"""With nothing to hold the thread looks up each second (a short action need not wake it), and ends after ten."""


@dataclass(slots=True)
class _Held:
    claim: Claim
    lease_s: float
    context: ActionContext
    due: float


class LeaseKeeper:
    """Prolongs what it holds, each when a third of its lease is over."""

    def __init__(self, store: Ledger) -> None:
        self.process = os.getpid()
        self._store = store
        self._held: dict[int, _Held] = {}
        self._changed = threading.Condition()
        self._next_wake = float("inf")
        self._thread: threading.Thread | None = None

    @contextmanager
    def holding(self, claim: Claim, lease_s: float, context: ActionContext) -> Generator[None]:
        """Keep a claim's lease alive within the block."""
        held = _Held(claim, lease_s, context, time.monotonic() + lease_s / RENEWALS_PER_LEASE)
        with self._changed:
            self._held[id(held)] = held
            self._wake_for(held)
        try:
            yield
        finally:
            with self._changed:
                del self._held[id(held)]

    def _wake_for(self, held: _Held) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="settled-leases", daemon=True)
            self._thread.start()
        elif held.due < self._next_wake:
            self._changed.notify()

    def _run(self) -> None:
        busy_at = time.monotonic()
        while True:
            with self._changed:
                now = time.monotonic()
                if self._held:
                    busy_at = now
                elif now - busy_at > IDLE_S:
                    self._thread = None
                    return
                self._next_wake = min((h.due for h in self._held.values()), default=now + TICK_S)
                if self._next_wake > now:
                    self._changed.wait(self._next_wake - now)
                due = [h for h in self._held.values() if h.due <= time.monotonic()]
            if due:
                self._renew(due)

    def _renew(self, due: list[_Held]) -> None:
        begun = time.monotonic()
        try:
            mine = self._store.run(ledger.renew([(h.claim, h.lease_s) for h in due]))
        except SettledError:  # Postgres is away: the leases run out by themselves, and are tried again meanwhile
            mine = None
        for held in due:
            held.due = begun + held.lease_s / RENEWALS_PER_LEASE
            if mine is None:
                held.due = begun + 1.0
            elif (held.claim.tenant, held.claim.action_id) in mine:
                held.context.lease_monotonic = begun + held.lease_s
            else:
                held.context.lease_monotonic = 0.0


_MAKING = threading.Lock()


def keeper_of(store: Ledger) -> LeaseKeeper:
    """Return the keeper of an opened ledger; it is kept with the ledger, and made anew in a forked child."""
    keeper = store.companions.get(_COMPANION)
    if not isinstance(keeper, LeaseKeeper) or keeper.process != os.getpid():
        with _MAKING:
            keeper = store.companions[_COMPANION] = LeaseKeeper(store)
    return keeper


_COMPANION = "leases"
