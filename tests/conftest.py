"""What every test may ask for: a Postgres server, a migrated database of its own, a ledger."""

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

import servers
from own_server import own_url, server  # noqa: F401 - fixtures

if TYPE_CHECKING:
    from settled import Ledger

LONGEST = (
    *("test_demo_scenarios", "test_demo_approvals", "test_endpoint_died", "test_postgres_restarts"),
    *("test_conformance", "test_mcp", "test_embedded", "test_approval_graph_kills", "test_graph_kills"),
    *("test_middleware_kills", "test_secret", "test_session_cancelled", "test_cancelled", "test_frozen_worker"),
)
"""Begun first: a file stays with its worker, and one of these at the end would keep the others waiting."""

_given_url = pytest.StashKey[str | None]()
_home = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--postgres",
        choices=["auto", "wheel", "debian"],
        default="auto",
        help="the server to test on: auto is SETTLED_DATABASE_URL if set, else the wheel's; debian is the package's",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Child processes see a database only where a test passes one, and never the user's own private Postgres."""
    config.stash[_given_url] = os.environ.pop("SETTLED_DATABASE_URL", None)
    config.stash[_home] = tempfile.TemporaryDirectory(prefix="settled-home-")
    os.environ["SETTLED_HOME"] = config.stash[_home].name


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_home].cleanup()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONGEST)))


@pytest.fixture(scope="session")
def server_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a running server, on which databases may be created."""
    given = request.config.stash[_given_url]
    match request.config.getoption("--postgres"):
        case "auto" if given:
            running = nullcontext(given)
        case "debian":
            running = servers.debian()
        case _:
            running = servers.wheel()
    try:
        with running as url:
            yield url
    except servers.Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing))
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def migrated_template(server_url: str) -> Iterator[str]:
    with servers.template(server_url) as name:
        yield name


@pytest.fixture
def database_url(server_url: str, migrated_template: str) -> Iterator[str]:
    """The URL of a fresh, migrated database that only this test uses."""
    with servers.database(server_url, like=migrated_template) as url:
        yield url


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator["Ledger"]:
    """A ledger on this test's own database; its async side is closed in the test's own loop."""
    from settled import Ledger

    opened = Ledger.connect(database_url)
    try:
        yield opened
    finally:
        await opened.aclose()
        opened.close()
