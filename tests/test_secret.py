"""A `Secret()` argument is hashed, encrypted at rest, and never shown."""

import json
import os
import subprocess
import sys
from typing import Annotated

import psycopg
import pytest
from cryptography.fernet import Fernet

from acts import Door, both_doors, opened, rows
from settled import Code, ContractError, Ledger, Secret, State, action, perform
from settled.tools.contract import ActionTool
from settled.tools.effects import Found
from settled.tools.outcome import Unknown

PLAIN = "4111-1111-1111-1234"
TABLES = ("actions", "events", "decisions")


def charge(got: list[str], *, ends: object = None, found: object = None) -> ActionTool:
    @action(
        risk="non_idempotent_write", remote="opaque" if found is None else "queryable", identity=("order", "card"),
        query=None if found is None else lambda _: found, receipt="receipt",
    )  # fmt: skip
    def charge(order: str, card: Annotated[str, Secret()], amount: float = 5) -> object:
        got.append(card)
        return ends or {"receipt": "R-1"}

    return charge


def is_nowhere(url: str, *shown: object) -> None:
    """Neither in a row of any table, nor in what was told."""
    for table in TABLES:
        text = json.dumps(rows(url, f"SELECT t::text AS row FROM settled.{table} t"))
        assert PLAIN not in text, table
    for thing in shown:
        assert PLAIN not in str(thing)


@both_doors
async def test_a_secret_is_carried_out_and_nowhere_to_be_read(door: Door, database_url: str) -> None:
    """The body gets it; rows, events, messages and summaries do not; a repeat of it is the same call."""
    got: list[str] = []
    with opened(database_url, secret_key=Fernet.generate_key().decode()) as ledger:
        tool = charge(got)
        first = await door(tool, ["A-1", PLAIN], ledger=ledger, decision="click")
        again = await door(tool, {"order": "A-1", "card": PLAIN}, ledger=ledger)
        other = await door(tool, ["A-1", "other"], ledger=ledger)
        conflict = await door(tool, ["A-1", PLAIN, 7], ledger=ledger)
        await ledger.aclose()
    assert (first.code, again.code, other.code) == (Code.SUCCEEDED, Code.DUPLICATE, Code.SUCCEEDED)
    assert got == [PLAIN, "other"]
    assert conflict.code == Code.CONFLICT
    assert set(dict(conflict.artifact["differing"])) == {"amount"}  # type: ignore[call-overload]
    stored = rows(database_url, "SELECT arguments FROM settled.actions")[0]["arguments"]
    assert set(stored["card"]) == {"$secret"}
    is_nowhere(database_url, *(t for o in (first, again, other, conflict) for t in (o, o.message, o.artifact)))


@both_doors
async def test_a_differing_secret_is_named_and_not_shown(door: Door, database_url: str) -> None:
    """In a conflict the field is named; neither version is."""
    got: list[str] = []

    @action(risk="non_idempotent_write", remote="opaque", identity=("order",))
    def charge(order: str, card: Annotated[str, Secret()]) -> object:
        got.append(card)
        return {"receipt": "R-1"}

    with opened(database_url, secret_key=Fernet.generate_key().decode()) as ledger:
        await door(charge, ["A-1", "another card"], ledger=ledger)
        conflict = await door(charge, ["A-1", PLAIN], ledger=ledger)
        await ledger.aclose()
    assert conflict.code == Code.CONFLICT
    assert "card" in conflict.message
    assert "another card" not in conflict.message
    assert got == ["another card"]
    is_nowhere(database_url, conflict.message, conflict.artifact)


@both_doors
@pytest.mark.parametrize(("theirs", "state"), [(PLAIN, State.SUCCEEDED), ("other", State.UNKNOWN)])
async def test_a_query_that_compares_a_secret_leaks_none(
    door: Door, theirs: str, state: State, database_url: str
) -> None:
    """What the remote side has of a secret is compared, and not written into the timeline."""
    got: list[str] = []
    ours = PLAIN if theirs == PLAIN else "ours"
    found = Found("R-7", fields={"card": theirs})
    with opened(database_url, secret_key=Fernet.generate_key().decode()) as ledger:
        outcome = await door(charge(got, ends=Unknown("no answer"), found=found), ["A-1", ours], ledger=ledger)
        await ledger.aclose()
    assert outcome.state == state
    details = json.dumps(rows(database_url, "SELECT detail FROM settled.events WHERE detail IS NOT NULL"))
    for secret in (PLAIN, '"ours"', '"other"'):
        assert secret not in details
    is_nowhere(database_url, outcome.message)


@both_doors
async def test_without_a_key_nothing_is_sent(door: Door, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret without a key to seal it is a fault of the set-up, before anything happens."""
    monkeypatch.delenv("SETTLED_SECRET_KEY", raising=False)
    got: list[str] = []
    with pytest.raises(ContractError, match="SETTLED_SECRET_KEY"):
        await door(charge(got), ["A-1", PLAIN], ledger=ledger)
    assert got == []
    with psycopg.connect(ledger.url) as connection:
        assert connection.execute("SELECT count(*) FROM settled.actions").fetchone() == (0,)


@both_doors
async def test_a_bad_secret_is_refused_without_being_shown(door: Door, database_url: str) -> None:
    """The `invalid` answer names the field, not its value."""
    got: list[str] = []
    with opened(database_url, secret_key=Fernet.generate_key().decode()) as ledger:
        outcome = await door(charge(got), {"order": "A-1", "card": [PLAIN]}, ledger=ledger)
        await ledger.aclose()
    assert outcome.code == Code.INVALID
    assert "card" in outcome.message
    assert PLAIN not in outcome.message
    assert got == []


@both_doors
async def test_another_key_cannot_read_it(door: Door, database_url: str) -> None:
    """A ledger that was opened with another key still answers a repeat, and never acts."""
    got: list[str] = []
    with opened(database_url, secret_key=Fernet.generate_key().decode()) as ledger:
        first = await door(charge(got), ["A-1", PLAIN], ledger=ledger)
        await ledger.aclose()
    with opened(database_url, secret_key=Fernet.generate_key().decode()) as other:
        again = await door(charge(got), ["A-1", PLAIN], ledger=other)
        await other.aclose()
    assert (again.code, again.action_id, again.receipt) == (Code.DUPLICATE, first.action_id, "R-1")
    assert got == [PLAIN]


def test_the_command_line_shows_no_secret(database_url: str) -> None:
    """`settled actions show` and `list`, as a table and as JSON."""
    got: list[str] = []
    with opened(database_url, secret_key=Fernet.generate_key().decode()) as ledger:
        outcome = perform(charge(got), ["A-1", PLAIN], ledger=ledger, thread_id="t")
    for command in (["show", str(outcome.action_id)], ["list"]):
        for form in ([], ["--json"]):
            done = subprocess.run(
                [sys.executable, "-m", "settled.runtime.cli", "actions", *command, *form],
                env={**os.environ, "SETTLED_DATABASE_URL": database_url}, capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert str(outcome.action_id) in done.stdout
            assert PLAIN not in done.stdout + done.stderr
