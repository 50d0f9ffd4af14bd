"""The inbox of a consumer: acts on each message once, however often it comes.

Owns the checks of what it is given. The subtle thing: the note that a message was had and what the consumer does about
it must be one commit, so the note is written on the consumer's own connection, within his transaction. If that is
rolled back, so is the note, and the message is new when it comes again.
"""

from datetime import timedelta

from settled.state import inbox
from settled.state.errors import ContractError
from settled.tools.endpoint import check_name

MOST_AGE = timedelta(days=36_500)
"""A hundred years: an instant of Postgres goes no further back than its calendar does."""


class Inbox:
    """`Inbox("billing")` says of each message whether this consumer has it for the first time.

        with psycopg.connect(url) as connection:
            if billing.first_time(message.id, connection=connection):
                connection.execute("INSERT INTO invoices …")

    In the ledger's database its table is there; in another one `create_tables` makes it.
    """

    def __init__(self, consumer: str) -> None:
        """`consumer` is the name of who acts: two of them do not share what they have had."""
        check_name("consumer", consumer)
        self.consumer = consumer

    def first_time(self, message_id: str, *, connection: object) -> bool:
        """Whether this message comes for the first time, within the open transaction of a psycopg connection.

        True once for ever, if that transaction commits; one that asks at the same time waits until that is decided.
        Raises InvalidArguments for an id that cannot be stored, ContractError for a connection without a transaction.
        """
        return inbox.run(connection, inbox.first_time(self.consumer, _checked(message_id)))

    async def afirst_time(self, message_id: str, *, connection: object) -> bool:
        """As `first_time`, on an AsyncConnection."""
        return await inbox.arun(connection, inbox.first_time(self.consumer, _checked(message_id)))

    def forget(self, *, older_than: timedelta, connection: object, most: int = 1000) -> int:
        """Forget at most `most` messages that came longer ago than that, and return how many.

        A message that comes again afterwards is new: choose longer than anybody may redrive a dead letter.
        """
        return inbox.run(connection, inbox.forget(self.consumer, older_than=_age(older_than), most=most))

    async def aforget(self, *, older_than: timedelta, connection: object, most: int = 1000) -> int:
        """As `forget`, on an AsyncConnection."""
        return await inbox.arun(connection, inbox.forget(self.consumer, older_than=_age(older_than), most=most))

    @staticmethod
    def create_tables(connection: object) -> None:
        """Create the table where it is not there, within the open transaction of a psycopg connection."""
        inbox.create_tables(connection)

    @staticmethod
    async def acreate_tables(connection: object) -> None:
        """As `create_tables`, on an AsyncConnection."""
        await inbox.acreate_tables(connection)


def _checked(message_id: str) -> str:
    check_name("message_id", message_id)
    return message_id


def _age(older_than: object) -> timedelta:
    if isinstance(older_than, timedelta) and timedelta() < older_than <= MOST_AGE:
        return older_than
    raise ContractError(f"older_than must be a timedelta above 0, of at most {MOST_AGE.days} days")
