"""The outbox: messages that wait to be delivered, and operations on them as values.

Owns the statements of `outbox.sql`. A message is taken for a while (lease, fencing token), and each mark afterwards is
a compare-and-set on token and owner: what comes too late writes nothing. A statement that takes may be sent again after
a lost connection: what the first sending took is due again when its lease is over.

The subtle thing is the order. Nothing is taken while an earlier message of its action is not delivered; so an action
has at most one message under way, and a dead letter holds back what stands behind it, of its own action and no other.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, get_args

from settled.state.ledger import Query, Rows
from settled.state.postgres import Database

Standing = Literal["due", "held", "dead", "delivered"]
"""`due`: delivered next, or being delivered. `held`: an earlier message of its action was not delivered yet."""

STANDINGS: tuple[str, ...] = get_args(Standing)

SHOWN_CHARS = 200
"""Of a payload in a list."""

ALL_CHARS = 2**31 - 1
"""Of a payload that is shown whole; an integer of Postgres ends there."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A message in the hands of one dispatcher. At position 0 it is a note: its messages are still to be made."""

    tenant: str
    id: str
    action_id: str
    position: int
    topic: str | None
    payload: Any
    created_at: datetime
    attempt: int
    fencing_token: int
    owner: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A message that was not delivered, and why. `pause_s` None: it is a dead letter."""

    taken: Taken
    reason: str
    pause_s: float | None


@dataclass(frozen=True, slots=True)
class Posted:
    """A message as people see it. `payload` is JSON text, in a list no more than its beginning. `due_at` None: it is
    over, or waits for the one ahead of it. `topic` None: the messages of its action are still to be made, by whoever
    has the tool. `reason` is why the last attempt did not deliver it.
    """

    tenant: str
    id: str
    action_id: str
    position: int
    topic: str | None
    payload: str | None
    state: Standing
    attempt: int
    created_at: datetime
    due_at: datetime | None
    lease_until: datetime | None
    owner: str | None
    delivered_at: datetime | None
    dead_at: datetime | None
    reason: str | None
    tool: str | None
    now: datetime


def claim(topic: str, *, owner: str, lease_s: float, most: int) -> Query[list[Taken]]:
    """Take due messages of one topic, at most `most`."""
    return Query("claim", {"topic": topic, **_taking(owner, lease_s, most)}, _taken)


def claim_rest(named: Collection[str], *, owner: str, lease_s: float, most: int) -> Query[list[Taken]]:
    """Take due messages of any topic but the named ones."""
    return Query("claim_rest", {"named": sorted(named), **_taking(owner, lease_s, most)}, _taken)


def claim_unmade(tools: Collection[str], *, owner: str, lease_s: float, most: int) -> Query[list[Taken]]:
    """Take actions of these tools whose messages are still to be made."""
    return Query("claim_unmade", {"tools": sorted(tools), **_taking(owner, lease_s, most)}, _taken)


def _taking(owner: str, lease_s: float, most: int) -> dict[str, object]:
    return {"owner": owner, "lease": timedelta(seconds=lease_s), "most": most}


def _taken(rows: Rows) -> list[Taken]:
    return [Taken(*row) for row in rows]


def deliver(acknowledged: Sequence[Taken], *, owner: str) -> Query[set[tuple[str, str]]]:
    """Mark messages as delivered, after the acknowledgement; answers (tenant, id) of those that were still yours."""
    return Query("deliver", {"owner": owner, **_said(acknowledged)}, _written)


def defer(failed: Sequence[Failed], *, owner: str) -> Query[set[tuple[str, str]]]:
    """Put messages off that were not delivered, or give them up as dead letters; answers as `deliver` does."""
    params = _said([one.taken for one in failed])
    params |= {"pauses": [one.pause_s for one in failed], "reasons": [one.reason for one in failed]}
    return Query("defer", {"owner": owner, **params}, _written)


def _said(taken: Sequence[Taken]) -> dict[str, object]:
    return {
        "tenants": [one.tenant for one in taken],
        "ids": [one.id for one in taken],
        "tokens": [one.fencing_token for one in taken],
    }


def _written(rows: Rows) -> set[tuple[str, str]]:
    return {(row[0], row[1]) for row in rows}


def make(note: Taken, messages: str) -> Query[bool]:
    """Put the messages of an action (a JSON list of topics and payloads) behind the note that they were to be made."""
    params = {"tenant": note.tenant, "id": note.id, "token": note.fencing_token, "owner": note.owner}
    return Query("make", params | {"messages": messages}, bool)


def messages(
    tenant: str,
    *,
    state: Standing | None = None,
    topic: str | None = None,
    action_id: str | None = None,
    most: int = 100,
) -> Query[list[Posted]]:
    """Read messages of a tenant, at most `most`: what is due first comes first, of the others the newest."""
    wanted = {"tenant": tenant, "topic": topic, "action_id": action_id, "chars": SHOWN_CHARS, "most": most}
    return Query(state or "messages", wanted, _posted)


def message(tenant: str, message_id: str) -> Query[Posted | None]:
    """Read one message, with its whole payload."""
    params = {"tenant": tenant, "id": message_id, "chars": ALL_CHARS}
    return Query("message", params, lambda rows: Posted(*rows[0]) if rows else None)


def _posted(rows: Rows) -> list[Posted]:
    return [Posted(*row) for row in rows]


def redrive(tenant: str, ids: Sequence[str], *, by: str, note: str | None) -> Query[list[str]]:
    """Make dead letters due again, their attempts counted anew; answers the ids of those that were dead letters."""
    return Query("redrive", {"tenant": tenant, "ids": list(ids), "by": by, "note": note}, _ids)


def redrive_all(tenant: str, *, topic: str | None, by: str, note: str | None, most: int) -> Query[list[str]]:
    """Make the oldest dead letters of a tenant due again, at most `most`; answers their ids."""
    return Query("redrive_all", {"tenant": tenant, "topic": topic, "by": by, "note": note, "most": most}, _ids)


def _ids(rows: Rows) -> list[str]:
    return [row[0] for row in rows]


def on(database: Database) -> Database:
    """Return `database` as one that speaks these statements; the two share their connections."""
    return database.speaking("sql/outbox.sql")
