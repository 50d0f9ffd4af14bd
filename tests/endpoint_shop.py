"""Starts the shop of `children/endpoint_server.py` in a process, talks to it on a socket, and counts its effects."""

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

import httpx2
import psycopg

import processes

TABLES = """
CREATE SCHEMA IF NOT EXISTS shop;
CREATE TABLE IF NOT EXISTS shop.effects (receipt integer GENERATED ALWAYS AS IDENTITY, key text NOT NULL);
"""


class Shop:
    """One process of the shop."""

    def __init__(self, database_url: str, **options: object) -> None:
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute("SELECT pg_advisory_lock(1)")
            connection.execute(TABLES)
        self.database_url = database_url
        self.key = uuid4().hex
        self.process = processes.start("endpoint_server.serve", database_url=database_url, **options)
        self.address = f"http://127.0.0.1:{self.process.says()}"
        self.http = httpx2.Client(base_url=self.address, timeout=10)

    def post(
        self,
        asked: object = None,
        *,
        key: str | None = None,
        user: str | None = None,
        path: str = "/tickets",
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> httpx2.Response:
        """Send one write, under the key of this test."""
        sent = {"Idempotency-Key": key or self.key, **({"X-User": user} if user else {}), **(headers or {})}
        return self.http.request(method, path, json={} if asked is None else asked, headers=sent, **more)

    def at_once(self, number: int, asked: object = None) -> list[httpx2.Response]:
        """Send equal requests at the same instant, each on a connection of its own."""
        with ThreadPoolExecutor(number) as threads:
            return list(threads.map(lambda _: self.post(asked), range(number)))

    def effects(self, key: str | None = None) -> list[str]:
        """Return the receipts of what was done under a key."""
        with psycopg.connect(self.database_url) as connection:
            found = connection.execute("SELECT receipt FROM shop.effects WHERE key = %s", [key or self.key])
            return [f"R-{row[0]}" for row in found]

    def state(self, key: str | None = None, tenant: str = "everybody") -> str | None:
        """Return the state of a key."""
        with psycopg.connect(self.database_url) as connection:
            row = connection.execute(
                "SELECT state FROM settled.endpoint_keys WHERE key = %s AND tenant = %s", [key or self.key, tenant]
            ).fetchone()
        return None if row is None else str(row[0])

    def wait_for(self, state: str) -> None:
        """Wait until the key of this test is in a state."""
        end = time.monotonic() + 10
        while self.state() != state:
            assert time.monotonic() < end, f"the key is {self.state()}, not {state}"
            time.sleep(0.02)

    def wait_for_transactions(self) -> None:
        """Wait until no process of the shop is in the middle of one."""
        open_ones = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND xact_start < now()"
        end = time.monotonic() + 20
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            while connection.execute(open_ones).fetchone() != (0,):
                assert time.monotonic() < end, "a transaction stays open"
                time.sleep(0.05)

    def wake(self) -> None:
        self.process.thaw()

    def close(self) -> None:
        self.http.close()
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.status()


@contextmanager
def running(database_url: str, **options: object) -> Iterator[Shop]:
    """A shop that is ended at the end."""
    shop = Shop(database_url, **options)
    try:
        yield shop
    finally:
        shop.close()
