"""The service's statements as values; a `Database` carries them out. Knows no HTTP."""

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from settled.state import statements
from settled.state.ledger import Query
from settled.state.postgres import Database

Json = dict[str, Any]
Rows = Sequence[tuple[Any, ...]]


STATEMENTS = statements.load("settled.demo.service", "tickets.sql")


def open_database(url: str) -> Database:
    """Return the service's database at `url`; its tables are made by `create_tables`."""
    return Database(url, STATEMENTS)


def _one(rows: Rows) -> Json | None:
    return rows[0][0] if rows else None


def _all(rows: Rows) -> list[Json]:
    return [row[0] for row in rows]


def create_tables() -> Query[None]:
    """Make the schema if it is not there."""
    return Query("create_tables", {}, lambda _: None)


def create_ticket(key: str, body: Mapping[str, object], *, dedupes: bool) -> Query[Json | None]:
    """Create a ticket; None when there is one of this key, or an open one stands in the way."""
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


def cancel_ticket(receipt: str) -> Query[Json | None]:
    """Cancel a ticket; None when there is none."""
    return Query("cancel_ticket", {"receipt": receipt}, _one)


def load_ticket(receipt: str) -> Query[Json | None]:
    """Read one ticket."""
    return Query("load_ticket", {"receipt": receipt}, _one)


def ticket_of(key: str) -> Query[Json | None]:
    """Read the first ticket that was made under a key."""
    nothing = {"employee_id": None, "invoice_id": None, "lag": timedelta()}
    return Query("find_tickets", {"key": key, **nothing}, _one)


def count_tickets(employee_id: str) -> Query[int]:
    """Count every ticket that was ever made for an employee."""
    return Query("count_tickets", {"employee_id": employee_id}, lambda rows: int(rows[0][0]))


def create_record(kind: str, prefix: str, key: str, body: Mapping[str, object], *, dedupes: bool) -> Query[Json | None]:
    """Create a record of a kind (a refund, a shipment …); None when there is one of this key."""
    params = {"kind": kind, "prefix": prefix, "key": key, "body": json.dumps(body), "dedupes": dedupes}
    return Query("create_record", params, _one)


def record_of(kind: str, key: str) -> Query[Json | None]:
    """Read the first record of a kind that was made under a key."""
    return Query("find_records", {"kind": kind, "key": key, "order_id": None, "lag": timedelta()}, _one)


def count_records(kind: str, *, field: str, value: str) -> Query[int]:
    """Count the records of a kind whose body has this value in this field."""
    return Query("count_records", {"kind": kind, "field": field, "value": value}, lambda rows: int(rows[0][0]))


def find_records(kind: str, *, key: str | None, order_id: str | None, lag_s: float) -> Query[list[Json]]:
    """Read records of a kind that are older than the lag."""
    params = {"kind": kind, "key": key, "order_id": order_id, "lag": timedelta(seconds=lag_s)}
    return Query("find_records", params, _all)
