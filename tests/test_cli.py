"""The command line on a real ledger: what it prints, what it hides, and how it says that something is wrong."""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import psycopg
import pytest
from typer.testing import CliRunner, Result

import servers
from settled import ContractError, Ledger, LedgerUnavailable, Secret, action, perform
from settled.runtime.cli import app
from settled.runtime.database import without_password
from settled.runtime.tables import detail_text
from settled.state.machine import TRANSITIONS, State, Trigger
from settled.state.model import Event

FERNET = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="


@action(risk="non_idempotent_write", identity=("order_id",), summary="refund of {amount} for order {order_id}")
def refund(order_id: str, amount: float) -> dict[str, Any]:
    """Refund an order."""
    return {"receipt": f"RF-{order_id}"}


@action(risk="non_idempotent_write", identity=("card",), summary="charge {card}")
def charge(card: Annotated[str, Secret()]) -> dict[str, Any]:
    """Charge a card."""
    return {"receipt": "C-1"}


def run(*arguments: str, url: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"SETTLED_DATABASE_URL": url, "COLUMNS": "200"})


def as_json(*arguments: str, url: str) -> Any:
    result = run(*arguments, "--json", url=url)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "settled.runtime.cli", *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60)


def test_actions_are_listed_newest_first_and_can_be_narrowed(ledger: Ledger) -> None:
    ids = [perform(refund, (order, 25.0), ledger=ledger, thread_id=f"t-{order}").action_id for order in ("A", "B")]
    assert [one["action_id"] for one in as_json("actions", "list", url=ledger.url)] == ids[::-1]
    assert [one["action_id"] for one in as_json("actions", "list", "--thread", "t-A", url=ledger.url)] == ids[:1]
    assert len(as_json("actions", "list", "--limit", "1", url=ledger.url)) == 1
    assert as_json("actions", "list", "--state", "unknown", "--state", "failed", url=ledger.url) == []
    table = run("actions", "list", url=ledger.url).stdout
    assert "refund of 25.0 for order B" in table
    assert "RF-B" in table


def test_another_tenants_actions_do_not_exist(ledger: Ledger) -> None:
    outcome = perform(refund, ("A", 1.0), ledger=ledger, thread_id="t", tenant="acme")
    assert as_json("actions", "list", url=ledger.url) == []
    assert len(as_json("actions", "list", "--tenant", "acme", url=ledger.url)) == 1
    done = process("actions", "show", outcome.action_id or "", SETTLED_DATABASE_URL=ledger.url)
    assert done.returncode == 1
    assert done.stderr == f"settled: tenant default has no action {outcome.action_id}\n"


def test_an_action_is_shown_with_its_timeline(ledger: Ledger) -> None:
    action_id = perform(refund, ("A", 25.0), ledger=ledger, thread_id="t").action_id or ""
    shown = as_json("actions", "show", action_id, url=ledger.url)
    assert (shown["state"], shown["receipt"], shown["attempts"]) == ("succeeded", "RF-A", 1)
    assert [event["trigger"] for event in shown["events"]] == ["plan", "approve", "claim", "succeed"]
    page = run("actions", "show", action_id, url=ledger.url).stdout
    for part in (
        "refund of 25.0 for order A",
        "written down",
        "claimed, and sent",
        "the service answered",
        "succeeded",
    ):
        assert part in page


def test_a_secret_is_never_shown(database_url: str) -> None:
    with Ledger.connect(database_url, secret_key=FERNET) as ledger:
        action_id = perform(charge, ("4111-1111",), ledger=ledger, thread_id="t").action_id or ""
    for arguments in (("actions", "show", action_id), ("actions", "list")):
        for form in ((), ("--json",)):
            said = run(*arguments, *form, url=database_url).stdout
            assert "4111" not in said
            assert "$secret" not in said
            assert "•••" in said


def test_markup_and_control_characters_in_values_are_inert(ledger: Ledger) -> None:
    hostile = "[red]A[/red] \x1b[31mB [/nothing]"
    action_id = perform(refund, (hostile, 1.0), ledger=ledger, thread_id="t").action_id or ""
    for arguments in (("actions", "list"), ("actions", "show", action_id)):
        page = run(*arguments, url=ledger.url)
        assert page.exit_code == 0
        assert "[red]A[/red]" in page.stdout
        assert "\x1b[31m" not in page.stdout


def test_an_empty_ledger_says_so(database_url: str) -> None:
    assert run("actions", "list", url=database_url).stdout == "there are no such actions\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("actions", "list", "--state", "done"), "'done' is none of"),
        (("actions", "list", "--limit", "0"), "greater than or equal to 1"),
        (("demo", "earthquake"), "there is no 'earthquake'"),
        (("demo", "--language", "fr"), "must be en or zh"),
        (("actions", "list", "--database-url", "nonsense"), "must look like"),
        (("dance",), "No such command"),
    ],
)
def test_a_wrong_use_exits_with_2(arguments: tuple[str, ...], said: str, database_url: str) -> None:
    result = run(*arguments, url=database_url)
    assert result.exit_code == 2
    assert said in re.sub(r"\s+", " ", re.sub("[│╭╮╰╯─]", " ", result.output))


def test_a_database_that_is_away_is_one_line_and_exit_code_1() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"postgresql://me:secret@127.0.0.1:{closed.getsockname()[1]}/none"
        done = process("db", "status", SETTLED_DATABASE_URL=url)
    assert done.returncode == 1
    assert re.fullmatch(
        r"settled: Postgres at 127\.0\.0\.1:\d+ did not answer within 5 s: Connection refused\n", done.stderr
    )


@pytest.mark.parametrize(
    ("url", "error", "said"),
    [
        ("postgresql://me:hunter2@nobody.invalid/db", LedgerUnavailable, r"at nobody\.invalid:5432 cannot be found"),
        ("postgresql://me:hunter2/x@127.0.0.1/db", ContractError, "a port that is no number.*%40"),
        ("postgresql://me:hunter2@p:hunter2@127.0.0.1/db", ContractError, "a port that is no number"),
        ("postgresql://me:hun%ter2@127.0.0.1/db", ContractError, "not a database URL.*postgresql://user:password@host"),
        ("host=127.0.0.1 pasword=hunter2", ContractError, "not a database URL"),
    ],
)
def test_a_url_that_cannot_be_right_is_told_at_once_without_its_password(
    url: str, error: type[Exception], said: str
) -> None:
    """Waiting would not cure it."""
    begun = time.monotonic()
    with pytest.raises(error, match=said) as caught:
        Ledger.connect(url)
    assert "hunter2" not in str(caught.value)
    assert time.monotonic() - begun < 5


def test_db_status_makes_no_private_postgres() -> None:
    """A look changes nothing."""
    with tempfile.TemporaryDirectory(prefix="settled-") as home:  # pytest's folders are too deep for a socket
        done = process("db", "status", SETTLED_HOME=home)
        assert list(Path(home).iterdir()) == []
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("database: the private Postgres, which is made by the first command that needs it\n")
    assert "pending: 0001_ledger.sql" in done.stdout


def test_a_reader_that_has_had_enough_is_not_an_error() -> None:
    """`settled db sql | head -1` says nothing more."""
    command = [sys.executable, "-m", "settled.runtime.cli", "db", "sql"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as printing:
        assert printing.stdout is not None
        assert printing.stderr is not None
        printing.stdout.close()
        assert printing.stderr.read() == b""


def test_a_list_can_be_read_at_80_columns_and_in_a_pipe(ledger: Ledger) -> None:
    """On a narrow terminal the summary has a line of its own; in a pipe each action is one line, without blanks."""
    perform(refund, ("A-1001", 25.0), ledger=ledger, thread_id="t")
    narrow = CliRunner().invoke(app, ["actions", "list"], env={"SETTLED_DATABASE_URL": ledger.url, "COLUMNS": "80"})
    first, second = narrow.stdout.splitlines()
    assert re.fullmatch(r"act-\w{16}  \d\d-\d\d \d\d:\d\d  succeeded  RF-A-1001  1 attempt", first)
    assert second == "    refund of 25.0 for order A-1001"
    piped = process("actions", "list", SETTLED_DATABASE_URL=ledger.url).stdout.splitlines()
    assert len(piped) == 2
    assert "refund of 25.0 for order A-1001" in piped[1]
    assert [line.rstrip() for line in piped] == piped


def test_a_timeline_says_its_units() -> None:
    """A span of a policy is seconds; other details are told by name."""
    detail = {"delay_s": 0.3321, "reason": "busy"}
    event = Event(datetime(2026, 1, 1, tzinfo=UTC), "running", "running", "refuse", 2, None, None, None, detail)
    assert detail_text(event) == "attempt 2 · delay 0.33 s · reason: busy"


def test_db_migrate_says_what_it_did_and_then_finds_nothing_to_do(server_url: str) -> None:
    with servers.database(server_url) as url:
        before = as_json("db", "status", url=url)
        assert (before["applied"], before["pending"][0]) == ([], "0001_ledger.sql")
        assert run("db", "migrate", url=url).stdout.startswith("applied 0001_ledger.sql\n")
        assert run("db", "migrate", url=url).stdout == "nothing to do\n"
        after = as_json("db", "status", url=url)
        assert (after["applied"], after["pending"]) == (before["pending"], [])
        assert "pending: none" in run("db", "status", url=url).stdout


def test_db_sql_prints_what_would_be_applied(server_url: str) -> None:
    """A host that applies migrations by itself pipes this into psql."""
    printed = run("db", "sql", url="").stdout
    assert printed.startswith("-- 0001_ledger.sql\n")
    with servers.database(server_url) as url, psycopg.connect(url) as connection:
        connection.execute(printed.encode())
        assert connection.execute("SELECT count(*) FROM settled.actions").fetchone() == (0,)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:s3cret@host/db", "postgresql://me:•••@host/db"),
        ("postgresql://me:p:w/d@host/db", "postgresql://me:•••@host/db"),
        ("postgresql://me@host/db?password=s3cret&port=1", "postgresql://me@host/db?password=•••&port=1"),
        ("host=h password='s3 cret' user=me", "host=h password=••• user=me"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_every_trigger_and_state_has_words_and_a_colour() -> None:
    from settled.runtime.tables import COLOURS, WHAT

    assert set(TRANSITIONS) == set(State) == set(COLOURS)
    assert set(Trigger) <= set(WHAT)


def test_the_version_is_printed() -> None:
    assert process("--version").stdout.startswith("settled ")


def test_help_is_quick_because_nothing_heavy_is_loaded() -> None:
    heavy = {"psycopg", "pydantic", "langgraph", "langchain_core", "rich.table"}
    code = f"import sys, settled.runtime.cli; print(*{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == ""
