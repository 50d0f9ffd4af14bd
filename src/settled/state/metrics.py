"""Counts and ages of what is open, due or new, as rows: what a scrape reads.

Owns the statements of sql/metrics.sql. They read by the indexes of open things, so their cost follows what is open and
what is new, and not how much was ever settled.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from settled.state.ledger import Query, Rows
from settled.state.postgres import Database

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OpenActions:
    """Open actions of one tenant, tool and state; ages in seconds."""

    tenant: str
    tool: str
    state: str
    count: int
    escalated: int
    oldest_s: float
    escalated_oldest_s: float


@dataclass(frozen=True, slots=True)
class RecentActions:
    """Actions that were planned lately, by where they stand now, and the attempts that they took."""

    tenant: str
    tool: str
    state: str
    count: int
    attempts: int


@dataclass(frozen=True, slots=True)
class OpenApprovals:
    """Approvals of one tenant that wait for a person."""

    tenant: str
    count: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class OpenMessages:
    """Messages of one tenant and topic; the topic is empty where they are still to be made."""

    tenant: str
    topic: str
    waiting: int
    dead: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class Backlog:
    """What workers have before them. `behind_s` is None where no worker has ever read the ledger."""

    watched: int
    due: int
    oldest_due_s: float
    behind_s: float | None


def open_actions() -> Query[list[OpenActions]]:
    """Read what is open."""
    return Query("open_actions", {}, lambda rows: _several(OpenActions, rows))


def recent_actions(span_s: float) -> Query[list[RecentActions]]:
    """Read what was planned in the last `span_s` seconds."""
    return Query("recent_actions", {"span": timedelta(seconds=span_s)}, lambda rows: _several(RecentActions, rows))


def open_approvals() -> Query[list[OpenApprovals]]:
    """Read what waits for a person's approval."""
    return Query("open_approvals", {}, lambda rows: _several(OpenApprovals, rows))


def open_messages() -> Query[list[OpenMessages]]:
    """Read what the outbox still has."""
    return Query("open_messages", {}, lambda rows: _several(OpenMessages, rows))


def backlog() -> Query[Backlog]:
    """Read what workers have before them."""
    return Query("backlog", {}, lambda rows: Backlog(*rows[0]))


def _several(kind: Callable[..., T], rows: Rows) -> list[T]:
    return [kind(*row) for row in rows]


def on(database: Database) -> Database:
    """Return `database` as one that speaks these statements; the two share their connections."""
    return database.speaking("sql/metrics.sql")
