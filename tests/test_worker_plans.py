"""What a worker reads does not grow with the past: counted in pages, on a ledger of many settled actions.

The statistics of the tables are those of an empty ledger, and then those of a full one: a plan must not depend on them.
"""

import json
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import servers
from acts import Remote, opened, rows
from filled import fill
from settled import Ledger, action, always, perform
from settled.runtime.worker import Worker
from settled.state import ledger as operations
from settled.state import statements, work
from settled.state.ledger import Query

PAST = 30_000
PAGES_OF_ALL = PAST // 30
"""Fewer than the table itself has."""

MOST_PAGES = 150
"""For a handful of open actions: their own rows and the way to them in each index."""


@pytest.fixture(scope="module")
def full_url(server_url: str, migrated_template: str) -> Iterator[str]:
    with servers.database(server_url, like=migrated_template) as url:
        fill(url, PAST)
        yield url


@pytest.fixture(params=["statistics of an empty ledger", "of a full one"])
def full(full_url: str, request: pytest.FixtureRequest) -> Iterator[Ledger]:
    if request.param == "of a full one":
        with psycopg.connect(full_url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE settled.actions")
    with opened(full_url) as ledger:
        yield ledger


def pages(url: str, path: str, query: Query[Any], *, generic: bool) -> int:
    """How many pages a statement reads, as the library sends it."""
    statement = statements.load("settled.state", path)[query.name]
    with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as connection:
        if generic:
            connection.execute(b"SET plan_cache_mode = force_generic_plan")
        explain = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + statement.sql
        row = connection.execute(explain, statement.values(query.params)).fetchone()
        connection.rollback()
    assert row is not None
    plan = row[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def test_the_past_is_as_large_as_it_should_be(full: Ledger) -> None:
    """Else the others would prove nothing."""
    read = "SELECT pg_relation_size('settled.actions') / 8192 AS pages, count(*) AS n FROM settled.actions"
    found = rows(full.url, read)[0]
    assert found["pages"] > PAGES_OF_ALL
    assert found["n"] >= PAST


def test_a_scan_reads_nothing_of_what_is_settled(full: Ledger) -> None:
    """Neither to find what is new, nor to take up what is due."""
    far = Remote()

    @action(risk="non_idempotent_write", remote="opaque", identity=("order",), approval=always)
    def pay(order: int) -> object:
        return far.do(order=order)

    for n in range(5):
        perform(pay, [n], ledger=full, thread_id=f"now-{n}")
    sweep = work.sweep("planned", most=1000, grace_s=2, most_s=60)
    assert 0 < pages(full.url, "sql/work.sql", sweep, generic=False) < MOST_PAGES
    time.sleep(1.1)  # what is younger than a second is most likely over before it is noted
    assert Worker(full).run_once().noted == 5
    with psycopg.connect(full.url) as connection:
        connection.execute("UPDATE settled.watched SET due_at = now()")
    due = work.due(tools=["pay"], most=100, lease_s=10)
    assert 0 < pages(full.url, "sql/work.sql", due, generic=False) < MOST_PAGES
    with psycopg.connect(full.url) as connection:
        connection.execute("SET LOCAL session_replication_role = replica")
        connection.execute("DELETE FROM settled.watched; DELETE FROM settled.actions WHERE thread_id LIKE 'now-%'")


def test_a_claim_and_a_list_read_as_much_as_ever(full: Ledger) -> None:
    """Whatever is behind them, and with the plan that is made once."""
    claim = operations.claim("default", "act-0" + "7".zfill(15), owner="me", lease_s=10, deadline_s=30)
    listed = operations.actions("default", most=50)
    for query in (claim, listed):
        assert 0 < pages(full.url, "sql/queries.sql", query, generic=True) < MOST_PAGES, query.name


def test_a_frontier_that_has_never_moved_is_walked_in_steps(full_url: str) -> None:
    """The first worker on an old ledger: bounded batches, each read once, and nothing of it is read again."""
    with psycopg.connect(full_url) as connection:
        connection.execute("UPDATE settled.frontiers SET at = '-infinity'")
    with opened(full_url) as ledger:
        reading = work.on(ledger)
        read: list[int] = []
        while True:
            swept = reading.run(work.sweep("planned", most=10_000, grace_s=2, most_s=60))
            assert swept is not None
            read.append(swept.read)
            if not swept.has_more:
                break
        assert (sum(read[:3]), len(read)) == (PAST, 4)
        swept = reading.run(work.sweep("planned", most=10_000, grace_s=2, most_s=60))
        assert swept is not None
        assert swept.read < 10
        assert json.dumps(rows(full_url, "SELECT count(*) AS n FROM settled.watched")) == '[{"n": 0}]'
