"""What the tests of single faults share: both doors, a far side that counts, rows read behind the ledger's back.

The far side here is for what the *ledger* decides (which call is which). What is lost on a socket is tests/remote.py.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from settled import Absent, Found, Inquiry, Ledger, Outcome, Succeeded, aperform, current_action, perform
from settled.state import ledger as ledger_queries
from settled.state.model import Action, Event

Door = Callable[..., Awaitable[Outcome]]
Arguments = Mapping[str, object] | Sequence[object]


async def through_sync(tool: object, arguments: Arguments, **options: Any) -> Outcome:
    """`perform`, in a thread so that several callers may be at it."""
    options.setdefault("thread_id", "thread-1")
    return await asyncio.to_thread(perform, tool, arguments, **options)


async def through_async(tool: object, arguments: Arguments, **options: Any) -> Outcome:
    """`aperform`, in the test's loop."""
    options.setdefault("thread_id", "thread-1")
    return await aperform(tool, arguments, **options)


IDS = ["sync", "async"]
_in_depth = partial(pytest.param, marks=pytest.mark.deep)
both_doors = pytest.mark.parametrize("door", [through_sync, through_async], ids=IDS)
mainly_sync = pytest.mark.parametrize("door", [through_sync, _in_depth(through_async)], ids=IDS)
mainly_async = pytest.mark.parametrize("door", [_in_depth(through_sync), through_async], ids=IDS)
"""Where a test takes seconds: the other door in `make test-deep`."""


@dataclass
class Remote:
    """A far side that counts its effects, and can be asked for the one that a key has."""

    effects: list[dict[str, object]] = field(default_factory=list)
    asked: int = 0
    begun: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def do(self, **what: object) -> Succeeded:
        """Carry out one effect, under the key of the action that runs."""
        key = current_action().idempotency_key
        with self._lock:
            self.effects.append({"key": key, **what})
            receipt = f"RF-{len(self.effects)}"
        self.begun.set()
        return Succeeded({"receipt": receipt}, receipt)

    def find(self, inquiry: Inquiry) -> Found | Absent:
        """Answer a query by key."""
        self.asked += 1
        for number, effect in enumerate(self.effects, 1):
            if effect["key"] == inquiry.idempotency_key:
                return Found(f"RF-{number}", {"receipt": f"RF-{number}"})
        return Absent()

    @property
    def keys(self) -> list[object]:
        return [effect["key"] for effect in self.effects]


class Clock:
    """A test's clock for `Ledger.connect(clock=...)`; time passes only when somebody says so."""

    def __init__(self) -> None:
        self.start = datetime(2026, 1, 5, 12, tzinfo=UTC)
        self.elapsed_s = 0.0

    def __call__(self) -> datetime:
        return self.start + timedelta(seconds=self.elapsed_s)

    def sleep(self, seconds: float) -> None:
        self.elapsed_s += seconds

    async def asleep(self, seconds: float) -> None:
        self.sleep(seconds)


def rows(url: str, statement: str, *params: object) -> list[dict[str, Any]]:
    """Read the ledger's tables behind its back."""
    with psycopg.connect(url, autocommit=True, row_factory=dict_row) as connection:
        return connection.execute(statement, params).fetchall()


def count(url: str, table: str = "settled.actions") -> int:
    """Return the number of rows of a table."""
    return int(rows(url, f"SELECT count(*) AS n FROM {table}")[0]["n"])


def states(url: str) -> list[str]:
    """Return the states of all actions, oldest first."""
    return [row["state"] for row in rows(url, "SELECT state FROM settled.actions ORDER BY planned_at, id")]


def action_of(ledger: Ledger, outcome: Outcome, tenant: str = "default") -> Action:
    """Return the action that an outcome speaks of."""
    assert outcome.action_id is not None
    action = ledger.run(ledger_queries.load(tenant, outcome.action_id))
    assert action is not None
    return action


def events_of(ledger: Ledger, outcome: Outcome, tenant: str = "default") -> list[Event]:
    """Return the timeline of the action that an outcome speaks of."""
    assert outcome.action_id is not None
    return ledger.run(ledger_queries.timeline(tenant, outcome.action_id))


def triggers_of(ledger: Ledger, outcome: Outcome) -> list[str]:
    """Return the triggers of an action's timeline, in order."""
    return [event.trigger for event in events_of(ledger, outcome)]


@contextmanager
def opened(url: str, **options: Any) -> Iterator[Ledger]:
    """A second ledger on the same database, as another process or a restarted one has it."""
    ledger = Ledger.connect(url, **options)
    try:
        yield ledger
    finally:
        ledger.close()
