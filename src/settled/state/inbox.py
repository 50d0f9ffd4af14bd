"""Which messages a consumer has had: operations as values, carried out in the consumer's own transaction.

Owns the statements of `inbox.sql`. The table stands in the ledger's database, and can be created in another one. The
insert of one id waits for another transaction that is inserting it: of those at once, one is told that it is the first,
and if that one rolls back, the next is.
"""

from datetime import timedelta
from typing import TypeVar

from settled.state import statements
from settled.state.ledger import Query
from settled.state.within import awithin, within

T = TypeVar("T")


def first_time(consumer: str, message_id: str) -> Query[bool]:
    """Note that a consumer has a message; False where it has had it before."""
    return Query("first_time", {"consumer": consumer, "message_id": message_id}, bool)


def forget(consumer: str, *, older_than: timedelta, most: int) -> Query[int]:
    """Forget at most `most` messages that came longer ago than that; answers how many."""
    params = {"consumer": consumer, "older_than": older_than, "most": most}
    return Query("forget", params, lambda rows: int(rows[0][0]))


_TABLES = (Query("lock_tables", {}, bool), Query("create_tables", {}, bool))


def run(connection: object, query: Query[T]) -> T:
    """Carry an operation out within the open transaction of a psycopg connection."""
    return within(connection, query, statements.load("settled.state", "sql/inbox.sql"))


async def arun(connection: object, query: Query[T]) -> T:
    """As `run`, on an AsyncConnection."""
    return await awithin(connection, query, statements.load("settled.state", "sql/inbox.sql"))


def create_tables(connection: object) -> None:
    """Create the table, where it is not there, within the open transaction of a psycopg connection."""
    for query in _TABLES:
        run(connection, query)


async def acreate_tables(connection: object) -> None:
    """As `create_tables`, on an AsyncConnection."""
    for query in _TABLES:
        await arun(connection, query)
