"""What the pages of operators ask the ledger beside its own reads: a search, and a pulse.

Owns the statements of `console.sql`. The subtle thing: no index may look at a column that a success changes, so a
search has none for states and receipts. It reads a bounded stretch instead, and answers where the next one begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from settled.state.ledger import Query, Rows
from settled.state.postgres import Database

STRETCH = 100_000
"""Rows that one search reads: some tens of milliseconds, also where nothing fits (measured at 300,000 rows)."""

ABOVE_ALL = "acu"
"""Comes after each id, which begins with `act-`."""

MOST_COUNTED = 1000
"""What waits is counted up to this: nobody reads a greater number otherwise, and each open page counts anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which actions are looked for. `reference` is an id, a receipt, an idempotency key, a requester or a correlation
    id, as it is written.
    """

    states: Sequence[str] = ()
    tool: str | None = None
    thread_id: str | None = None
    reference: str | None = None
    older_than: timedelta | None = None
    younger_than: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """What one stretch of the ledger held: ids that fit, newest first. `below` is where the next one begins (None:
    there is no more), and `read_to` how far back this one was read.
    """

    ids: tuple[str, ...]
    below: str | None
    read_to: datetime | None


@dataclass(frozen=True, slots=True)
class Pulse:
    """What waits for people now. A mark changes whenever that does; `one_mark` is that of one action or one run of a
    chain, None where there is none.
    """

    approvals: int
    approvals_mark: str | None
    queue: int
    queue_mark: str | None
    outbox: int
    outbox_mark: str | None
    one_mark: str | None


def search(tenant: str, wanted: Filter, *, below: str | None = None, most: int = 50) -> Query[Stretch]:
    """Look for actions of a tenant, newest first, in one stretch that begins below an id."""
    stretch = most + 1 if wanted == Filter() else STRETCH
    params: dict[str, object] = {"tenant": tenant, "below": below or ABOVE_ALL, "most": most, "stretch": stretch}
    params |= {"states": list(wanted.states) or None, "tool": wanted.tool, "reference": wanted.reference}
    params |= {"older_than": wanted.older_than, "younger_than": wanted.younger_than}

    def decode(rows: Rows) -> Stretch:
        found, read, least, read_to = rows[0]
        ids = tuple(found or ())
        if len(ids) > most:
            return Stretch(ids[:most], ids[most - 1], None)
        return Stretch(ids, least if read == stretch else None, read_to)

    if wanted.thread_id is None:
        return Query("search", params, decode)
    return Query("search_thread", params | {"thread_id": wanted.thread_id}, decode)


def pulse(tenant: str, one: str | None = None) -> Query[Pulse]:
    """Read what waits for people, and the mark of one action or one run of a chain."""
    params = {"tenant": tenant, "id": one, "most": MOST_COUNTED}
    return Query("pulse", params, lambda rows: Pulse(*rows[0]))


def on(database: Database) -> Database:
    """Return `database` as one that speaks these statements; the two share their connections."""
    return database.speaking("sql/console.sql")
