"""A storm: many actions that their callers have left, a remote side with faults, and workers that are killed one by one
while Postgres restarts. What comes out in the end is counted at the remote side.

The remote side recognises no repeat here, so that a second sending would be a second effect.
"""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from acts import rows
from own_server import Server
from processes import Child, start
from remote import (
    DROP,
    ERROR_AFTER_COMMIT,
    ERROR_BEFORE_COMMIT,
    FINE,
    RESET,
    Fault,
    Remote,
    busy,
    payment,
)
from settled import Ledger
from settled.state import ledger as operations
from settled.tools.perform import Options, prepare

ACTIONS = int(os.environ.get("SETTLED_STORM_ACTIONS", "2000"))
WORKERS = 4
KILL_EVERY_S = 1.0
RESTARTS_AT_S = (6.0, 14.0)
PATIENCE_S = 400.0

CONTRACT: dict[str, Any] = {"timeout": 4.0, "lease": 5.0, "settle_window": 8.0, "deadline": 30.0}
REFUSAL = Fault(commits=False, status=409, body={"error": "there is no such order"})
FAULTS = [
    *[FINE] * 12,
    *[DROP, RESET, ERROR_AFTER_COMMIT] * 2,
    *[ERROR_BEFORE_COMMIT, busy(503), busy(503, retry_after=1), REFUSAL],
]


class Stormy(Remote):
    """A remote side whose every fourth or so POST goes wrong in some way, and now and then a query."""

    def __init__(self, database_url: str) -> None:
        super().__init__(database_url, dedupes=False)
        self._chance = random.Random(7)

    def take(self, method: str) -> Fault:
        if method == "GET":
            return busy(503) if self._chance.random() < 0.02 else FINE
        return self._chance.choice(FAULTS)


def leave(ledger: Ledger, remote: Remote, n: int) -> str:
    """An action that its caller has left: approved and never claimed, or running in a process that died, before it had
    any effect or after.
    """
    call = prepare(payment(remote.url, **CONTRACT).contract, {"order_id": f"O-{n}", "amount": n}, Options("t"), ledger)
    plan = call.plan
    if n % 4 < 2:
        met = ledger.run(operations.plan(replace(plan, is_claimed_later=True)))
    else:
        met = ledger.run(operations.plan(replace(plan, lease_s=0.5)))
        if n % 4 == 3:
            remote.commit(plan.idempotency_key, {"order_id": f"O-{n}", "amount": n})
    assert met is not None
    return met.action.id


class Crew:
    """Worker processes, one of which is killed every second and replaced."""

    def __init__(self, url: str, remote: Remote) -> None:
        self._args: dict[str, Any] = {"database_url": url, "remote_url": remote.url, "contract": CONTRACT}
        self._chance = random.Random(11)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._storm, daemon=True)
        self.killed = 0
        self.children = [self._hired(n) for n in range(WORKERS)]

    def _hired(self, n: int) -> Child:
        return start("working.work", asynchronous=n % 2 == 0, concurrency=12, **self._args)

    def _storm(self) -> None:
        while not self._is_over.wait(KILL_EVERY_S):
            n = self._chance.randrange(WORKERS)
            self.children[n].kill()
            assert self.children[n].status() == -signal.SIGKILL
            self.killed += 1
            self.children[n] = self._hired(self.killed)

    @contextmanager
    def at_work(self) -> Iterator["Crew"]:
        self._thread.start()
        try:
            yield self
        finally:
            self._is_over.set()
            self._thread.join(60)
            for child in self.children:
                os.kill(child.pid, signal.SIGTERM)
        for child in self.children:
            # One that was hired a moment ago may not listen to signals yet.
            assert child.status(120) in (0, -signal.SIGTERM), child.failed


def standing(url: str) -> Counter[str]:
    """How many actions there are of each state, with what waits for a person apart."""
    read = """SELECT CASE WHEN escalated_at IS NOT NULL AND state = 'unknown' THEN 'manual' ELSE state END AS state,
        count(*) AS n FROM settled.actions GROUP BY 1"""
    return Counter({row["state"]: row["n"] for row in rows(url, read)})


def calm(url: str, begun: float) -> Counter[str]:
    """Wait until all that is left is settled, or a person's."""
    while True:
        try:
            found = standing(url)
        except psycopg.OperationalError:  # it is just restarting
            found = Counter()
        if sum(found.values()) == ACTIONS and set(found) <= {"succeeded", "failed", "manual"}:
            return found
        assert time.monotonic() - begun < PATIENCE_S, found
        time.sleep(0.5)


@pytest.mark.deep
def test_a_storm(server: Server, own_url: str, database_url: str) -> None:
    """All end settled or in the manual queue, there are as many effects as successes, and nothing is left locked."""
    with Ledger.connect(own_url) as ledger, Stormy(database_url) as remote:
        ids = [leave(ledger, remote, n) for n in range(ACTIONS)]
        begun = time.monotonic()
        with Crew(own_url, remote).at_work() as crew:
            for at in RESTARTS_AT_S:
                time.sleep(max(begun + at - time.monotonic(), 0))
                server.crash()
            found = calm(own_url, begun)
            took_s = time.monotonic() - begun
        effects = Counter(effect.key for effect in remote.effects())
        keys = {
            row["idempotency_key"]: row["state"]
            for row in rows(own_url, "SELECT idempotency_key, state FROM settled.actions")
        }
        assert set(effects.values()) == {1}
        for key, state in keys.items():
            assert effects[key] == 1 if state == "succeeded" else state == "unknown" or effects[key] == 0, (key, state)
        assert len(keys) == len(ids) == ACTIONS
        assert crew.killed >= took_s / KILL_EVERY_S / 3
        assert found["succeeded"] > ACTIONS / 2
        left = "SELECT count(*) AS n FROM settled.actions WHERE state = 'running' OR lease_until IS NOT NULL"
        assert rows(own_url, left) == [{"n": 0}]
        locks = """SELECT * FROM pg_locks JOIN pg_database ON pg_database.oid = database
            WHERE locktype = 'advisory' AND datname = current_database()"""
        assert rows(own_url, locks) == []
        print(f"{ACTIONS} actions in {took_s:.0f} s, {crew.killed} workers killed: {dict(found)}")
