"""What workers ask of the ledger, as operations: which actions need somebody, and which threads.

Owns the statements of `work.sql`. Nothing here moves an action: a watch only says that somebody should look, and when,
and what he does is decided by the guarded statements of `settled.state.ledger`. The subtle thing is that settling must
touch no index, so there is none of the open actions: new rows are read by their age, each twice (`sweep`), those that
are open are noted in a table of their own, and only that table is read from then on (`due`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from settled.state.ledger import Query, Rows
from settled.state.postgres import Database

BEHIND_S = {"new": 1.0, "planned": 60.0}
"""The frontiers, and how far each stays behind the clock. Most actions are over within the first second, and are never
noted. A row is dated by its statement and seen at its commit: what the first reading misses, the second one sees, since
no statement of ours takes nearly a minute.
"""


@dataclass(frozen=True, slots=True)
class Swept:
    """How much of the ledger was read on, how much of that was noted, and whether more is waiting to be read."""

    read: int
    noted: int
    has_more: bool


@dataclass(frozen=True, slots=True)
class Watch:
    """An action that somebody has taken up to look at, until `leased_until`.

    `is_over`: it is open no more, or gone, and it undoes nothing. `approved_at` is when a person last approved it.
    """

    tenant: str
    action_id: str
    leased_until: datetime
    thread_id: str | None
    tool: str | None
    is_over: bool
    approved_at: datetime | None


@dataclass(frozen=True, slots=True)
class Rest:
    """What follows from a look: the next one after `pause_s`, by somebody who has `tool` if it is named; None: none.

    `wakes`: something has moved that its thread is to be told.
    """

    watch: Watch
    pause_s: float | None
    tool: str | None = None
    wakes: bool = False


@dataclass(frozen=True, slots=True)
class Backlog:
    """How much is watched and how much of it is due; `overdue_s` is the age of what has been due the longest."""

    watched: int
    due: int
    overdue_s: float


def on(database: Database) -> Database:
    """Return `database` as one that speaks these statements; the two share their connections.

    They are planned each time: a plan made while the ledger was empty would read all of it later.
    """
    return database.speaking("sql/work.sql", prepare=False)


def sweep(frontier: str, *, most: int, grace_s: float, most_s: float) -> Query[Swept | None]:
    """Read about `most` more rows behind one of the frontiers and note what is open; None while another worker does so.

    A reconciliation is somebody's own until `grace_s` after the query that is due; nothing waits longer than `most_s`.
    """
    place = {"name": frontier, "behind": _span(BEHIND_S[frontier])}
    params = {**place, "most": most, "grace_s": grace_s, "most_s": most_s}
    return Query("sweep", params, lambda rows: Swept(*rows[0]) if rows else None)


def due(*, tools: Sequence[str], most: int, lease_s: float) -> Query[list[Watch]]:
    """Take up at most `most` actions whose time has come, of those that need a tool only where it is one of these."""
    return Query("due", {"tools": list(tools), "most": most, "lease": _span(lease_s)}, _watches)


def one(tenant: str, action_id: str, *, lease_s: float) -> Query[Watch | None]:
    """Take up one action now; None where there is none of that id."""
    params = {"tenant": tenant, "id": action_id, "lease": _span(lease_s)}
    return Query("one", params, lambda rows: Watch(*rows[0]) if rows else None)


def rest(rests: Sequence[Rest]) -> Query[None]:
    """Say what follows from looks; one that took longer than its lease puts nothing off where somebody else looks
    now.
    """
    params = {
        "tenants": [one.watch.tenant for one in rests],
        "ids": [one.watch.action_id for one in rests],
        "leases": [one.watch.leased_until for one in rests],
        "pauses": [one.pause_s for one in rests],
        "tools": [one.tool for one in rests],
        "woken": [one.watch.thread_id if one.wakes else None for one in rests],
    }
    return Query("rest", params, _nothing)


def watch(tenant: str, action_id: str, *, in_s: float) -> Query[None]:
    """Let an action be looked at within `in_s` seconds."""
    return Query("watch", {"tenant": tenant, "id": action_id, "pause": _span(in_s)}, _nothing)


def backlog() -> Query[Backlog]:
    """Read how much is watched, and how much of it is due."""
    return Query("backlog", {}, lambda rows: Backlog(rows[0][0], rows[0][1], rows[0][2] or 0.0))


def _watches(rows: Rows) -> list[Watch]:
    return [Watch(*row) for row in rows]


def _nothing(_: Rows) -> None:
    return None


def _span(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)
