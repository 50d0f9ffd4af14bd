"""Tokens from a terminal: shown once, listed without their secrets, taken back for good."""

import json
from datetime import timedelta

import psycopg
import pytest
from typer.testing import CliRunner, Result

from acts import rows
from settled import Ledger
from settled.runtime.cli import app
from settled.state import tokens
from settled.state.tokens import Role

HOUR = timedelta(hours=1)


def run(ledger: Ledger, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["tokens", *arguments], env={"SETTLED_DATABASE_URL": ledger.url, "COLUMNS": "200"})


def test_made_listed_and_revoked(ledger: Ledger) -> None:
    """The secret is printed by the command that makes it, and by no other."""
    made = json.loads(
        run(ledger, "create", "--name", "maria", "--role", "approver", "--as-role", "supervisor", "--tenant", "acme",
            "--expires-in", "30d", "--json").stdout
    )  # fmt: skip
    found = tokens.on(ledger).run(tokens.bearer(made["secret"]))
    assert found is not None
    assert (found.name, found.tenant, found.role) == ("maria", "acme", Role.APPROVER)
    assert found.roles == ("approver", "supervisor")
    assert found.expires_at is not None
    assert (found.expires_at - found.created_at).days == 30
    for listing in (run(ledger, "list"), run(ledger, "list", "--json")):
        assert made["token_id"] in listing.stdout
        assert made["secret"] not in listing.stdout
    assert json.loads(run(ledger, "list", "--tenant", "other", "--json").stdout) == []
    assert "is revoked" in run(ledger, "revoke", made["token_id"]).stdout
    assert tokens.on(ledger).run(tokens.bearer(made["secret"])) is None
    assert json.loads(run(ledger, "list", "--json").stdout)[0]["standing"] == "revoked"
    assert run(ledger, "revoke", made["token_id"]).exit_code == 0, "again is no fault"
    assert str(run(ledger, "revoke", "tok-none").exception) == "there is no token tok-none"


def test_what_cannot_be_is_refused(ledger: Ledger) -> None:
    """A wrong option is named, and no token is made."""
    wrong = [("--role", "admin"), ("--name", " "), ("--name", "a\u202eb"), ("--as-role", "x" * 201)]
    for option, value in (*wrong, *(("--expires-in", span) for span in ("soon", "0d", "9999999d", "999999w"))):
        given = {"--name": "maria", "--role": "viewer", option: value}
        result = run(ledger, "create", *(part for pair in given.items() for part in pair))
        assert result.exit_code in (1, 2), (option, value)
        assert option.strip("-") in f"{result.output} {result.exception}"
    assert rows(ledger.url, "SELECT FROM settled.tokens") == []


def test_what_a_token_was_made_as_never_changes(ledger: Ledger) -> None:
    """The database refuses a greater role, another tenant, a longer life, and a revoked one that is good again."""
    tokens.on(ledger).run(tokens.create(tokens.new_secret(), name="maria", role=Role.VIEWER))
    rows(ledger.url, "UPDATE settled.tokens SET revoked_at = now() RETURNING id")
    for change in ("role = 'operator'", "tenant = 'acme'", "expires_at = now()", "revoked_at = NULL", "name = 'bob'"):
        with pytest.raises(psycopg.DatabaseError, match="never changes"):
            rows(ledger.url, f"UPDATE settled.tokens SET {change} RETURNING id")


def test_a_statement_that_is_sent_again_is_the_same_one(ledger: Ledger) -> None:
    """A lost connection makes neither a second token nor a used-up link of a login that took place."""
    database, secret = tokens.on(ledger), tokens.new_secret()
    create = tokens.create(secret, name="a", role=Role.OPERATOR, good_for=HOUR, login_within=HOUR)
    assert database.run(create).id == database.run(create).id
    log_in = tokens.log_in(secret, "session", good_for=HOUR)
    assert database.run(log_in) is not None
    assert database.run(log_in) is not None
    assert database.run(tokens.log_in(secret, "another", good_for=HOUR)) is None
    assert len(rows(ledger.url, "SELECT FROM settled.sessions")) == 1
