"""What the command line says about a database: where it is, and which migrations it has."""

import re
from typing import Any

from settled.state import embedded
from settled.state.errors import ContractError
from settled.state.ledger import Query
from settled.state.migrations import migrations
from settled.state.postgres import Database
from settled.state.reach import answer
from settled.state.secrets import HIDDEN

PATIENCE_S = 5.0
"""A person waits at a terminal: long enough for a server that is just starting."""


def applied(url: str) -> list[str]:
    """Return the names of the migrations that the database has. Changes nothing."""
    answer(url, PATIENCE_S)
    database = Database(url, patience_s=PATIENCE_S)
    try:
        numbers = database.run(Query("applied_migrations", {}, lambda rows: {row[0] for row in rows}))
    except ContractError:  # it has no tables yet
        numbers = set()
    finally:
        database.close()
    return [migration.name for migration in migrations() if migration.number in numbers]


def pending(url: str) -> list[str]:
    """Return the names of the migrations that the database lacks."""
    have = applied(url)
    return [migration.name for migration in migrations() if migration.name not in have]


def standing(url: str | None) -> dict[str, Any]:
    """Return which database it is, and its migrations; no URL: the private one, which a look does not make."""
    if url is None and not embedded.exists():
        return {
            "database": "the private Postgres, which is made by the first command that needs it",
            "applied": [],
            "pending": [migration.name for migration in migrations()],
        }
    found = url or embedded.server()
    return {"database": without_password(found), "applied": applied(found), "pending": pending(found)}


def without_password(url: str) -> str:
    """Return a database URL (or a libpq string) as it may be shown."""
    hidden = re.sub(r"(://[^/@\s:]*):\S*@", rf"\1:{HIDDEN}@", url)
    return re.sub(r"(?i)(password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&]+)", rf"\1{HIDDEN}", hidden)
