"""Forgetting what is over, as operations: a batch at a time, walking through the ledger by age.

Owns the statements of `purge.sql`. What may go is decided there, in the statement that deletes it, and once more by
the guards of the tables: an open action cannot be deleted, and what belongs to an action only after it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from settled.state.ledger import Query, Rows
from settled.state.postgres import Database

BEGINNING = datetime.min.replace(tzinfo=UTC)
"""Before the age of every row."""


@dataclass(frozen=True, slots=True)
class Batch:
    """How many rows were read, how far they reach (None: there were none), and how many of them were (or could be)
    forgotten.
    """

    read: int
    reach: datetime | None
    forgotten: int


def on(database: Database) -> Database:
    """Return `database` as one that speaks these statements; they are planned each time, as those of `work` are."""
    return database.speaking("sql/purge.sql", prepare=False)


def count_old(*, after: datetime, older_than: timedelta, most: int) -> Query[Batch]:
    """Read about `most` of the rows behind `after`, and count what could be forgotten."""
    return Query("count_old", {"after": after, "older_than": older_than, "most": most}, _batch)


def forget_old(*, after: datetime, older_than: timedelta, most: int, decisions: bool) -> Query[Batch]:
    """As `count_old`, and forget them; with their `decisions`, if that is asked for."""
    params = {"after": after, "older_than": older_than, "most": most, "decisions": decisions}
    return Query("forget_old", params, _batch)


def _batch(rows: Rows) -> Batch:
    return Batch(*rows[0])


def old_threads(*, after: datetime, older_than: timedelta, most: int) -> Query[list[tuple[str, str, datetime]]]:
    """Read about `most` threads (tenant, id, last used) behind `after` that nobody has used for so long."""
    return Query("old_threads", {"after": after, "older_than": older_than, "most": most}, _rows)


def _rows(rows: Rows) -> list[tuple[str, str, datetime]]:
    return [(row[0], row[1], row[2]) for row in rows]


def is_unused(tenant: str, thread_id: str, last_at: datetime) -> Query[bool]:
    """Read whether nobody has used a thread since."""
    return Query("is_unused", {"tenant": tenant, "thread_id": thread_id, "last_at": last_at}, bool)


def forget_thread(tenant: str, thread_id: str, last_at: datetime) -> Query[bool]:
    """Forget a thread, if nobody has used it since."""
    return Query("forget_thread", {"tenant": tenant, "thread_id": thread_id, "last_at": last_at}, bool)


def endpoint_scopes() -> Query[Sequence[str]]:
    """Read which applications have idempotency keys with an answer."""
    return Query("endpoint_scopes", {}, lambda rows: [row[0] for row in rows])
