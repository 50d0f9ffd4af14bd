"""The service's statements as values; a `Database` carries them out. Knows no HTTP."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from settled.state import statements
from settled.state.ledger import Query
from settled.state.postgres import Database

Json = dict[str, Any]
Rows = Sequence[tuple[Any, ...]]


@dataclass(frozen=True)
class Known:
    """What the service has under a key. `status` None: the first request is in flight."""

    claimant: str
    fingerprint: str
    status: int | None
    answer: Json | None


def open_database(url: str) -> Database:
    """Return the service's database at `url`; its tables are made by `create_tables`."""
    return Database(url, statements.load("settled.demo.service", "tickets.sql"))


def _one(rows: Rows) -> Json | None:
    return rows[0][0] if rows else None


def _all(rows: Rows) -> list[Json]:
    return [row[0] for row in rows]


def create_tables() -> Query[None]:
    """Make the schema if it is not there."""
    return Query("create_tables", {}, lambda _: None)


def claim_key(key: str, claimant: str, fingerprint: str) -> Query[bool]:
    """Claim a key; True when this request is the one that acts."""
    return Query("claim_key", {"key": key, "claimant": claimant, "fingerprint": fingerprint}, bool)


def load_key(key: str) -> Query[Known | None]:
    """Read what is known under a key."""
    return Query("load_key", {"key": key}, lambda rows: Known(*rows[0]) if rows else None)


def store_answer(key: str, status: int, answer: Json) -> Query[None]:
    """Keep the answer of a request that had no effect."""
    return Query("store_answer", {"key": key, "status": status, "answer": json.dumps(answer)}, lambda _: None)


def create_ticket(key: str, body: Mapping[str, object], *, dedupes: bool) -> Query[Json | None]:
    """Create a ticket; None when an open one stands in the way."""
    return Query("create_ticket", {**body, "key": key, "dedupes": dedupes}, _one)


def open_ticket(employee_id: str, invoice_id: str) -> Query[Json | None]:
    """Read the open ticket of an employee and invoice."""
    return Query("open_ticket", {"employee_id": employee_id, "invoice_id": invoice_id}, _one)


def find_tickets(
    *, key: str | None, employee_id: str | None, invoice_id: str | None, lag_s: float
) -> Query[list[Json]]:
    """Read tickets that are older than the lag."""
    params = {"key": key, "employee_id": employee_id, "invoice_id": invoice_id, "lag": timedelta(seconds=lag_s)}
    return Query("find_tickets", params, _all)


def cancel_ticket(key: str, receipt: str) -> Query[Json | None]:
    """Cancel a ticket; None when there is none."""
    return Query("cancel_ticket", {"key": key, "receipt": receipt}, _one)


def count_tickets(employee_id: str) -> Query[int]:
    """Count every ticket that was ever made for an employee."""
    return Query("count_tickets", {"employee_id": employee_id}, lambda rows: int(rows[0][0]))


def create_record(kind: str, prefix: str, key: str, body: Mapping[str, object], *, dedupes: bool) -> Query[Json | None]:
    """Create a refund, coupon, shipment or notification."""
    params = {"kind": kind, "prefix": prefix, "key": key, "body": json.dumps(body), "dedupes": dedupes}
    return Query("create_record", params, _one)


def find_records(kind: str, *, key: str | None, order_id: str | None, lag_s: float) -> Query[list[Json]]:
    """Read records of a kind that are older than the lag."""
    params = {"kind": kind, "key": key, "order_id": order_id, "lag": timedelta(seconds=lag_s)}
    return Query("find_records", params, _all)
