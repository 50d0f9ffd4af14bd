"""The database is gone while people look: they are told so, nothing is lost, and it goes on by itself."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from acts import rows
from browsing import REFUND, SUPERVISOR, begun, refund, serving, token, visiting
from settled import Ledger, State


@contextmanager
def away(server_url: str, ledger: Ledger) -> Iterator[None]:
    """Let nobody into the database, and throw out who is in."""
    name = urlsplit(ledger.url).path.strip("/")
    _send(server_url, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
    rows(server_url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", name)
    try:
        yield
    finally:
        _send(server_url, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


def _send(url: str, statement: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)  # type: ignore[arg-type]


def test_a_page_says_that_the_database_is_away(server_url: str, database_url: str) -> None:
    """A page, a decision, the login and a stream answer 503 in a sentence; session and form are good again after."""
    with Ledger.connect(database_url, patience_s=0.3) as ledger, serving(ledger) as url:
        action = begun(ledger, refund, REFUND)
        with visiting(url, token(ledger, **SUPERVISOR)) as maria, visiting(url) as stranger:
            form, login = maria.form("/approvals", "/approve"), stranger.form("/login", "/login")
            with away(server_url, ledger):
                for answer in (maria.get("/approvals"), maria.send(form), stranger.send(login, token="settled_x"),
                               maria.get("/live"), maria.get(f"/actions/{action.id}")):  # fmt: skip
                    assert answer.status_code == 503
                    assert "The database does not answer. Nothing is lost" in answer.text
                assert maria.get("/static/console.css").status_code == 200
            for _ in range(50):
                if maria.get("/approvals").status_code == 200:
                    break
                threading.Event().wait(0.1)
            assert ledger.action(action.id).state is State.PLANNED
            assert maria.send(form).status_code == 200
            assert ledger.action(action.id).approver == "maria"
