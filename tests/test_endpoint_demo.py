"""The demo's ticket service is killed with a ticket under way: its successor finds out what became of it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from uuid import uuid4

import httpx2
import pytest

from settled.demo.processes import Service
from settled.demo.service import store
from settled.demo.service.app import LEASE_S
from settled.state.postgres import Database

BODY = {"employee_id": "E-7", "invoice_id": "INV-102", "amount": 118.5, "over_limit": 38.5}


@contextmanager
def killed(database_url: str, key: str) -> Iterator[str]:
    """The address of a service whose predecessor was killed with this ticket under way."""
    with Service(database_url, {"next": [{"kind": "delay_before_commit", "seconds": 60}]}) as first:
        with pytest.raises(httpx2.ReadTimeout):
            httpx2.post(f"{first.url}/tickets", json=BODY, headers={"Idempotency-Key": key}, timeout=1)
        first.die()
    with Service(database_url, {}) as second:
        yield second.url


def create(url: str, key: str) -> httpx2.Response:
    """Send the ticket until it is answered: what is in flight is not over before its lease is."""
    end = time.monotonic() + LEASE_S + 10
    while True:
        answer = httpx2.post(f"{url}/tickets", json=BODY, headers={"Idempotency-Key": key}, timeout=10)
        if answer.status_code != 409:
            return answer
        assert answer.json()["code"] == "idempotency_key_in_use"
        assert time.monotonic() < end
        time.sleep(0.2)


@contextmanager
def behind(database_url: str) -> Iterator[Database]:
    """The service's database behind its back."""
    database = store.open_database(database_url)
    try:
        yield database
    finally:
        database.close()


def test_a_ticket_that_was_not_made_is_made(database_url: str) -> None:
    key = uuid4().hex
    with killed(database_url, key) as url, behind(database_url) as database:
        answer = create(url, key)
        assert (answer.status_code, "idempotency-replayed" in answer.headers) == (201, False)
        assert create(url, key).json() == answer.json()
        assert database.run(store.count_tickets("E-7")) == 1


def test_a_ticket_that_was_made_is_found(database_url: str) -> None:
    """The process died between the ticket and its record."""
    key = uuid4().hex
    sent = {**BODY, "amount": Decimal("118.5"), "over_limit": Decimal("38.5")}
    with killed(database_url, key) as url, behind(database_url) as database:
        made = database.run(store.create_ticket(key, sent, dedupes=True))
        assert made is not None
        answer = create(url, key)
        assert (answer.status_code, answer.headers["idempotency-replayed"]) == (201, "true")
        assert answer.json()["receipt"] == made["receipt"]
        assert database.run(store.count_tickets("E-7")) == 1
