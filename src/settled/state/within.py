"""Carries an operation out on somebody else's connection, in his transaction: both are committed, or neither is."""

from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from settled.state.errors import ContractError
from settled.state.ledger import Query
from settled.state.statements import Statement

T = TypeVar("T")


def within(connection: object, query: Query[T], named: dict[str, Statement]) -> T:
    """Carry an operation out in the open transaction of a psycopg connection. Its commit is the caller's, and so are
    psycopg's own errors: a transaction that must be tried again is told so by them.
    """
    if not isinstance(connection, psycopg.Connection):
        raise ContractError("connection= must be a psycopg Connection (an AsyncConnection in the async form)")
    _check_open(connection)
    statement = named[query.name]
    with psycopg.RawCursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(statement.sql, statement.values(query.params) or None)
        return query.decode(cursor.fetchall() if statement.answers else [])


async def awithin(connection: object, query: Query[T], named: dict[str, Statement]) -> T:
    """As `within`, on a psycopg AsyncConnection."""
    if not isinstance(connection, psycopg.AsyncConnection):
        raise ContractError("connection= must be a psycopg AsyncConnection (a Connection in the sync form)")
    _check_open(connection)
    statement = named[query.name]
    async with psycopg.AsyncRawCursor(connection, row_factory=tuple_row) as cursor:
        await cursor.execute(statement.sql, statement.values(query.params) or None)
        return query.decode(await cursor.fetchall() if statement.answers else [])


def _check_open(connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> None:
    """Without a transaction the record would be committed alone, ahead of the effect that it vouches for."""
    if connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE:
        raise ContractError("connection= has no open transaction: use it within `connection.transaction()`")
