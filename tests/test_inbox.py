"""A consumer acts on each message once: the note that he had it and what he does about it are one commit."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import servers
from settled import ContractError, InvalidArguments
from settled.tools.inbox import Inbox

BILLING = Inbox("billing")


@pytest.fixture
def own_database(server_url: str) -> Iterator[str]:
    """A database of the consumer's own, without a ledger."""
    with servers.database(server_url) as url, psycopg.connect(url) as connection:
        Inbox.create_tables(connection)
        connection.execute("CREATE TABLE invoices (message_id text)")
        connection.commit()
        yield url


def bill(url: str, message_id: str, *, fails: bool = False) -> bool:
    """Act on a message as a consumer does."""
    with psycopg.connect(url) as connection:
        is_first = BILLING.first_time(message_id, connection=connection)
        if is_first:
            connection.execute("INSERT INTO invoices VALUES (%s)", [message_id])
        if fails:
            raise ZeroDivisionError
        return is_first


def invoices(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("SELECT message_id FROM invoices ORDER BY 1").fetchall()]


def test_a_message_is_new_once(own_database: str) -> None:
    assert [bill(own_database, "msg-1"), bill(own_database, "msg-1"), bill(own_database, "msg-2")] == [
        True,
        False,
        True,
    ]
    assert invoices(own_database) == ["msg-1", "msg-2"]


def test_a_rollback_gives_it_back(own_database: str) -> None:
    """Neither the effect nor the note is there: it is new when it comes again."""
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            bill(own_database, "msg-1", fails=True)
    assert invoices(own_database) == []
    assert bill(own_database, "msg-1")


def test_of_sixteen_at_one_instant_one_is_the_first(own_database: str) -> None:
    gate = threading.Barrier(16)

    def one(_: int) -> bool:
        gate.wait(30)
        return bill(own_database, "msg-1")

    with ThreadPoolExecutor(16) as threads:
        assert sorted(threads.map(one, range(16))) == [False] * 15 + [True]
    assert invoices(own_database) == ["msg-1"]


def test_whoever_asks_meanwhile_waits_for_the_first_to_be_decided(own_database: str) -> None:
    """It is told False after a commit, and True after a rollback."""
    for message_id, commits in (("msg-1", True), ("msg-2", False)):
        with psycopg.connect(own_database) as first, ThreadPoolExecutor(1) as thread:
            assert BILLING.first_time(message_id, connection=first)
            second = thread.submit(bill, own_database, message_id)
            with pytest.raises(TimeoutError):
                second.result(0.2)
            first.commit() if commits else first.rollback()
            assert second.result(10) is not commits


async def test_the_same_in_an_event_loop(own_database: str) -> None:
    async def one() -> bool:
        async with await psycopg.AsyncConnection.connect(own_database) as connection:
            return await BILLING.afirst_time("msg-1", connection=connection)

    assert sorted(await asyncio.gather(*(one() for _ in range(4)))) == [False, False, False, True]
    async with await psycopg.AsyncConnection.connect(own_database) as connection:
        await Inbox.acreate_tables(connection)
        assert await BILLING.aforget(older_than=timedelta(hours=1), connection=connection) == 0


def test_two_consumers_share_nothing(database_url: str) -> None:
    """In the ledger's own database the table is there."""
    with psycopg.connect(database_url) as connection:
        assert BILLING.first_time("msg-1", connection=connection)
        assert Inbox("shipping").first_time("msg-1", connection=connection)
        assert not BILLING.first_time("msg-1", connection=connection)


def test_it_forgets_what_is_old_when_it_is_told_to(own_database: str) -> None:
    with psycopg.connect(own_database) as connection:
        for number in range(5):
            BILLING.first_time(f"msg-{number}", connection=connection)
        Inbox("shipping").first_time("msg-0", connection=connection)
        connection.execute("UPDATE settled.inbox SET at = at - interval '2 days' WHERE message_id <> 'msg-4'")
        forget: Any = {"older_than": timedelta(days=1), "connection": connection}
        assert [BILLING.forget(**forget, most=3), BILLING.forget(**forget), BILLING.forget(**forget)] == [3, 1, 0]
        assert BILLING.first_time("msg-0", connection=connection)
        assert not BILLING.first_time("msg-4", connection=connection)
        assert not Inbox("shipping").first_time("msg-0", connection=connection)


def test_eight_create_its_table_at_once(server_url: str) -> None:
    with servers.database(server_url) as url:
        gate = threading.Barrier(8)

        def one(_: int) -> None:
            with psycopg.connect(url) as connection:
                gate.wait(30)
                Inbox.create_tables(connection)

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(one, range(8))) == [None] * 8


def test_a_ledger_can_move_in_afterwards(own_database: str) -> None:
    from settled import Ledger

    assert bill(own_database, "msg-1")
    with Ledger.connect(own_database):
        assert not bill(own_database, "msg-1")


async def test_a_connection_that_cannot_be_right_is_refused(own_database: str) -> None:
    """Without a transaction the note would be committed alone, ahead of the effect."""
    with psycopg.connect(own_database, autocommit=True) as connection:
        with pytest.raises(ContractError, match="no open transaction"):
            BILLING.first_time("msg-1", connection=connection)
        with pytest.raises(ContractError, match="AsyncConnection"):
            await BILLING.afirst_time("msg-1", connection=connection)
    with pytest.raises(ContractError, match="psycopg Connection"):
        BILLING.first_time("msg-1", connection=own_database)


@pytest.mark.parametrize("message_id", ["", "a\x00", "\ud800", "x" * 256, None, 7])
def test_an_id_that_cannot_be_stored_is_refused_by_name(own_database: str, message_id: Any) -> None:
    with psycopg.connect(own_database) as connection, pytest.raises(InvalidArguments, match=r"^message_id: must be"):
        BILLING.first_time(message_id, connection=connection)


def test_terms_that_cannot_be_right_are_refused() -> None:
    with pytest.raises(InvalidArguments, match="consumer"):
        Inbox("")
    for never in (timedelta(), timedelta.max, None, 5):
        with pytest.raises(ContractError, match="older_than"):
            BILLING.forget(older_than=never, connection=None)  # type: ignore[arg-type]
