"""The pytest plugin: fixtures for whoever has `settled` installed.

pytest imports this in every run, so it imports nothing of weight before a fixture is asked for. Override
`settled_server_url` (session scope) to choose the Postgres server; by default it is the one of SETTLED_DATABASE_URL, on
which only databases that are made here are touched, or else a private one that is removed after the tests.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from settled.state.store import Ledger
    from settled.testing.clock import FastClock
    from settled.testing.databases import Databases
    from settled.testing.models import Script, ScriptedModel
    from settled.testing.remote import FaultyRemote
    from settled.testing.report import CrashReport


@pytest.fixture(scope="session")
def settled_server_url() -> str | None:
    """The Postgres server on which the tests' databases are made; None: SETTLED_DATABASE_URL, else a private one."""
    return None


@pytest.fixture(scope="session")
def settled_databases(settled_server_url: str | None) -> "Iterator[Databases]":
    """Where fresh databases come from."""
    from settled.testing.databases import open_databases

    with open_databases(settled_server_url) as databases:
        yield databases


@pytest.fixture
def settled_database_url(settled_databases: "Databases") -> Iterator[str]:
    """The URL of a fresh, migrated database that only this test uses."""
    with settled_databases.fresh() as url:
        yield url


@pytest.fixture
def settled_ledger(settled_database_url: str, request: pytest.FixtureRequest) -> "Iterator[Ledger]":
    """A ledger on a database of this test's own. It goes by `fast_clock` where the test asks for that one too."""
    from settled.state.store import Ledger

    clock = request.getfixturevalue("fast_clock") if "fast_clock" in request.fixturenames else None
    with Ledger.connect(settled_database_url, clock=clock) as ledger:
        yield ledger


@pytest.fixture
def fast_clock() -> "FastClock":
    """A clock that the test moves by hand: pass `world=fast_clock.world`."""
    from settled.testing.clock import FastClock

    return FastClock()


@pytest.fixture
def faulty_remote() -> "Iterator[FaultyRemote]":
    """A remote side that dedupes and goes wrong as its switches say, listening at `faulty_remote.url`."""
    from settled.testing.remote import FaultyRemote

    with FaultyRemote() as remote:
        yield remote


@pytest.fixture
def scripted_model() -> "Callable[[Script], ScriptedModel]":
    """Makes a chat model of a script: `scripted_model([call_tool("refund", order_id="A-1")])`."""
    from settled.testing.models import ScriptedModel

    return ScriptedModel


@pytest.fixture
def crash_matrix(settled_databases: "Databases") -> "Callable[..., CrashReport]":
    """`settled.testing.crash_matrix`, on the server of the tests."""
    from settled.testing.matrix import crash_matrix as run

    bound: Any = partial(run, databases=settled_databases)
    return bound  # type: ignore[no-any-return]
