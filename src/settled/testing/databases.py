"""A fresh, migrated database for each test, on a private Postgres from the wheel or on the one that is given.

Owns the making and dropping of databases whose names begin with `settled_test_`; it never touches another one, so it
may be pointed at a server that is used for other things. The login needs the right to create databases.
"""

import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from settled.state import embedded, statements
from settled.state.errors import LEDGER_IS_GONE, ContractError
from settled.state.ledger import Query
from settled.state.migrations import migrate
from settled.state.postgres import Database
from settled.state.statements import Statement

# Processes die in a test and the machine does not, so nothing is lost by not waiting for the disk.
_SETTINGS = {"fsync": "off"}
# In memory a copy of a database takes 10 ms; on a slow disk 300. The 64 MB that containers give it are too few.
_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 2 * 1024**3


class Databases:
    """Fresh databases on one server. Close it: what it made is dropped. Threads may share one."""

    def __init__(self, server_url: str) -> None:
        if "://" not in server_url:
            raise ContractError("the server of the tests must be given as a URL, like postgresql://user@host:5432/name")
        self.server_url = server_url
        self._migrated: str | None = None
        self._making = threading.Lock()

    @contextmanager
    def fresh(self) -> Generator[str]:
        """The URL of a new, migrated database, dropped at the end."""
        names = {"migrated_database": self._template(), "fresh_database": _new_name()}
        self._run("create_fresh", names)
        try:
            yield self._url(names["fresh_database"])
        finally:
            self._run("drop_fresh", names)

    def close(self) -> None:
        """Drop the database that the others were copies of."""
        if self._migrated is not None:
            self._run("drop_migrated", {"migrated_database": self._migrated})
            self._migrated = None

    def _template(self) -> str:
        with self._making:
            if self._migrated is None:
                name = _new_name()
                self._run("create_migrated", {"migrated_database": name})
                migrate(self._url(name))
                self._migrated = name
            return self._migrated

    def _run(self, statement: str, names: dict[str, str]) -> None:
        named = {statement: _with_names(statements.load("settled.testing", "sql/databases.sql")[statement], names)}
        database = Database(self.server_url, named, max_connections=1, prepare=False)
        try:
            database.run(Query(statement, {}, lambda _: None))
        finally:
            database.close()

    def _url(self, name: str) -> str:
        return urlunsplit(urlsplit(self.server_url)._replace(path=f"/{name}"))


@contextmanager
def open_databases(server_url: str | None = None) -> Generator[Databases]:
    """Databases on the server at `server_url`, else at SETTLED_DATABASE_URL, else on a private one that is removed.

    Raises ContractError for a URL that cannot be right, LedgerUnavailable when the server cannot be reached.
    """
    given = server_url or os.environ.get("SETTLED_DATABASE_URL")
    if given is None:
        with _private_server() as url:
            yield Databases(url)
        return
    databases = Databases(given)
    try:
        yield databases
    finally:
        with suppress(*LEDGER_IS_GONE):  # a server that went away keeps one empty database: no reason to fail a test
            databases.close()


@contextmanager
def _private_server() -> Generator[str]:
    has_room = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES
    home = Path(tempfile.mkdtemp(prefix="settled-", dir=_MEMORY if has_room else None))
    try:
        yield embedded.server(home, settings=_SETTINGS)
    finally:
        embedded.stop(home)
        shutil.rmtree(home, ignore_errors=True)


def _new_name() -> str:
    return f"settled_test_{secrets.token_hex(6)}"


def _with_names(statement: Statement, names: dict[str, str]) -> Statement:
    """Put names that were made here into a statement; hexadecimal digits need no quoting."""
    sql = statement.sql
    for placeholder, name in names.items():
        sql = sql.replace(placeholder.encode(), name.encode())
    return Statement(sql, statement.names, statement.answers)
