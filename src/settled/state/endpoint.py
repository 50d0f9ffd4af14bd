"""What an endpoint has under the idempotency keys of its callers: operations as values, and a record of one key.

Owns the statements of `endpoint.sql`. Every write is a compare-and-set on owner and fencing token, and answers None
(or False) for "not yours, nothing was written"; all of them may be sent again after a lost connection. An owner is a
random text per claim: a key that was given back and claimed anew begins at token 1 again, and its former owner still
has no hold of it.

`within` carries an operation out on somebody else's connection, in his transaction.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, TypeVar

from settled.state import statements
from settled.state import within as borrowed
from settled.state.ledger import Query, Rows
from settled.state.postgres import Database

T = TypeVar("T")
KeyState = Literal["running", "reconciling", "unknown", "done"]


@dataclass(frozen=True, slots=True)
class Record:
    """One key as it stands. Until `lease_until` nobody but its owner may touch it; `now` is the database's clock.

    `running`: its handler is at work. `reconciling`: somebody finds out what became of it. `unknown`: nobody can tell
    yet. `done`: `status`, `headers` and `body` are its answer; `body` None: it was too large to be kept.
    """

    scope: str
    tenant: str
    key: str
    fingerprint: str
    state: KeyState
    owner: str
    fencing_token: int
    claimed_at: datetime
    lease_until: datetime
    done_at: datetime | None
    kept_until: datetime | None
    status: int | None
    headers: list[list[str]] | None
    body: bytes | None
    now: datetime


@dataclass(frozen=True, slots=True)
class Held:
    """The hold of one owner on a key: what each of its writes is compared with."""

    scope: str
    tenant: str
    key: str
    owner: str
    fencing_token: int


def _record(rows: Rows) -> Record | None:
    return Record(*rows[0]) if rows else None


def _span(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def _this(scope: str, tenant: str, key: str) -> dict[str, object]:
    return {"scope": scope, "tenant": tenant, "key": key}


def _mine(held: Held) -> dict[str, object]:
    return {**_this(held.scope, held.tenant, held.key), "owner": held.owner, "token": held.fencing_token}


def claim(scope: str, tenant: str, key: str, *, fingerprint: bytes, owner: str, lease_s: float) -> Query[Record | None]:
    """Claim a key, or read what is known under it; None: ask again (a race)."""
    params = {"fingerprint": fingerprint, "owner": owner, "lease": _span(lease_s)}
    return Query("claim", _this(scope, tenant, key) | params, _record)


def load(scope: str, tenant: str, key: str) -> Query[Record | None]:
    """Read what is known under a key."""
    return Query("load", _this(scope, tenant, key), _record)


def take_up(seen: Record, *, owner: str, lease_s: float) -> Query[Record | None]:
    """Take a key whose lease is over, to reconcile it; None: it moved since it was seen."""
    params = {"owner": owner, "token": seen.fencing_token, "lease": _span(lease_s)}
    return Query("take_up", _this(seen.scope, seen.tenant, seen.key) | params, _record)


def run_again(held: Held, *, lease_s: float) -> Query[Record | None]:
    """Go from reconciling to running: it surely was not done."""
    return Query("run_again", _mine(held) | {"lease": _span(lease_s)}, _record)


def mark_unknown(held: Held, *, pause_s: float) -> Query[Record | None]:
    """Say that nobody can tell whether it was done; it is not asked about again before the pause is over."""
    return Query("mark_unknown", _mine(held) | {"pause": _span(pause_s)}, _record)


def renew(held: Held, *, lease_s: float) -> Query[bool]:
    """Prolong a lease."""
    return Query("renew", _mine(held) | {"lease": _span(lease_s)}, bool)


def finish(
    held: Held, *, status: int, headers: Sequence[tuple[str, str]], body: bytes | None, keep: timedelta
) -> Query[Record | None]:
    """Record that it is done, with its answer."""
    params = {"status": status, "headers": json.dumps(headers), "body": body, "keep": keep}
    return Query("finish", _mine(held) | params, _record)


def release(held: Held) -> Query[bool]:
    """Give a key back: nothing was done under it."""
    return Query("release", _mine(held), bool)


def purge(scope: str, *, most: int) -> Query[int]:
    """Forget at most `most` done keys whose retention is over."""
    return Query("purge", {"scope": scope, "most": most}, lambda rows: int(rows[0][0]))


def _statements() -> dict[str, statements.Statement]:
    return statements.load("settled.state", "sql/endpoint.sql")


def on(database: Database) -> Database:
    """Return `database` as one that speaks these statements; the two share their connections."""
    return database.speaking("sql/endpoint.sql")


def within(connection: object, query: Query[T]) -> T:
    """Carry an operation out in the open transaction of a psycopg connection."""
    return borrowed.within(connection, query, _statements())


async def awithin(connection: object, query: Query[T]) -> T:
    """As `within`, on a psycopg AsyncConnection."""
    return await borrowed.awithin(connection, query, _statements())
