"""A `Secret()` argument is hashed, encrypted at rest, and never shown."""

import asyncio
import json
import os
import subprocess
import sys
from typing import Annotated, Any

import psycopg
import pytest
from cryptography.fernet import Fernet, InvalidToken

from acts import Door, Remote, action_of, both_doors, mainly_async, mainly_sync, opened, rows
from settled import Code, ContractError, Inquiry, Ledger, Outcome, Secret, State, action, perform
from settled.tools.contract import ActionTool
from settled.tools.effects import Absent, Found
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


@both_doors
async def test_what_only_looks_like_a_sealed_secret_is_carried_out_as_it_is(door: Door, ledger: Ledger) -> None:
    """A model may write `$secret` into any field: only a field that was declared so is unsealed."""
    got: list[object] = []

    @action(risk="non_idempotent_write", remote="opaque", identity=("order",))
    def note(order: str, meta: dict[str, Any]) -> object:
        got.append(meta)
        return {"receipt": "R-1"}

    outcome = await door(note, ["A-1", {"$secret": "x"}], ledger=ledger)
    assert (outcome.code, got) == (Code.SUCCEEDED, [{"$secret": "x"}])
    assert action_of(ledger, outcome).arguments["meta"] == {"$secret": "x"}


@both_doors
async def test_what_only_looks_sealed_can_be_a_secret_itself(door: Door, database_url: str) -> None:
    """A secret whose value has the very shape of a sealed one is sealed like any other."""
    got: list[object] = []

    @action(risk="non_idempotent_write", remote="opaque", identity=("order",))
    def note(order: str, pin: Annotated[dict[str, Any], Secret()]) -> object:
        got.append(pin)
        return {"receipt": "R-1"}

    with opened(database_url, secret_key=Fernet.generate_key().decode()) as ledger:
        outcome = await door(note, ["A-1", {"$secret": PLAIN}], ledger=ledger)
        await ledger.aclose()
    assert (outcome.code, got) == (Code.SUCCEEDED, [{"$secret": PLAIN}])
    is_nowhere(database_url, outcome.message)


async def interrupted(tool: ActionTool, ledger: Ledger) -> None:
    """Make the call and leave it as a process that died after the effect does: running, and its lease over."""
    with pytest.raises(KeyboardInterrupt):
        perform(tool, ["A-1", PLAIN], ledger=ledger, thread_id="thread-1")


def lost(remote: Remote, *, known_by: list[Inquiry]) -> ActionTool:
    """A tool whose first attempt has its effect and no answer; its query goes by the key."""

    def query(inquiry: Inquiry) -> object:
        known_by.append(inquiry)
        return remote.find(inquiry)

    @action(
        risk="non_idempotent_write", remote="dedupes", identity=("order",), query=query,
        timeout=0.3, lease=0.5, settle_window=0.3, deadline=3,
    )  # fmt: skip
    def charge(order: str, card: Annotated[str, Secret()]) -> object:
        remote.do(order=order)
        raise KeyboardInterrupt

    return charge


@mainly_async
async def test_after_a_restart_with_another_key_an_open_action_is_asked_about_by_its_key(
    door: Door, database_url: str
) -> None:
    """The secret cannot be read any more, but the query needs only the idempotency key: settled, and nothing sent."""
    remote, inquiries = Remote(), list[Inquiry]()
    with opened(database_url, secret_key=Fernet.generate_key().decode()) as ledger:
        await interrupted(lost(remote, known_by=inquiries), ledger)
    await asyncio.sleep(1.1)  # whoever stopped had the first right to ask, for a second
    with opened(database_url, secret_key=Fernet.generate_key().decode()) as other:
        outcome = await door(lost(remote, known_by=inquiries), ["A-1", PLAIN], ledger=other)
        await other.aclose()
    assert (outcome.code, outcome.state, outcome.receipt) == (Code.SUCCEEDED, State.SUCCEEDED, "RF-1")
    assert len(remote.effects) == 1
    assert inquiries[-1].idempotency_key == remote.keys[0]
    is_nowhere(database_url, outcome.message, inquiries)


@mainly_sync
async def test_a_new_key_beside_the_old_one_reads_what_the_old_one_sealed(door: Door, database_url: str) -> None:
    """ "new,old": the first seals and both open, so that a key can be replaced while actions are open."""
    old, new = (Fernet.generate_key().decode() for _ in range(2))
    got: list[str] = []

    @action(risk="idempotent_write", remote="opaque", identity=("order", "card"), timeout=0.3, lease=0.5, name="put")
    def put(order: str, card: Annotated[str, Secret()]) -> object:
        got.append(card)
        if len(got) == 1:
            raise KeyboardInterrupt
        return {"receipt": "R-1"}

    with opened(database_url, secret_key=old) as ledger:
        await interrupted(put, ledger)
    await asyncio.sleep(1.1)
    with opened(database_url, secret_key=f"{new}, {old}") as both:
        outcome: Outcome = await door(put, ["A-1", PLAIN], ledger=both)
        await door(put, ["A-2", PLAIN], ledger=both)
        await both.aclose()
    assert (outcome.code, outcome.receipt, got[:2]) == (Code.SUCCEEDED, "R-1", [PLAIN, PLAIN])
    stored = rows(database_url, "SELECT arguments FROM settled.actions")
    sealed = [row["arguments"]["card"]["$secret"] for row in stored]
    openers = [[key for key in (old, new) if opens(key, text)] for text in sealed]
    assert sorted(openers) == sorted([[old], [new]])


def opens(key: str, text: str) -> bool:
    try:
        return Fernet(key).decrypt(text.encode()) is not None
    except InvalidToken:
        return False


@pytest.mark.parametrize("key", ["hunter2", "", "a,b", Fernet.generate_key().decode() + ",hunter2"], ids=range(4))
@both_doors
async def test_a_malformed_key_is_a_fault_of_the_set_up(
    door: Door, key: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A typed error that names the setting and not its value, before anything happens."""
    monkeypatch.delenv("SETTLED_SECRET_KEY", raising=False)
    got: list[str] = []
    with pytest.raises(ContractError, match="SETTLED_SECRET_KEY") as raised:
        await with_key(key, door, charge(got), database_url)
    assert "hunter2" not in str(raised.value)
    assert got == []
    assert rows(database_url, "SELECT id FROM settled.actions") == []


async def with_key(key: str, door: Door, tool: ActionTool, url: str) -> None:
    with opened(url, secret_key=key) as ledger:
        await door(tool, ["A-1", PLAIN], ledger=ledger)


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


@mainly_sync
async def test_a_process_without_the_key_never_says_that_nothing_was_done(door: Door, database_url: str) -> None:
    """It cannot read what was sent, so it asks with what its own call says, and settles nothing as failed."""
    bank: list[str] = []

    def query(inquiry: Inquiry) -> object:
        return Found("RF-1") if inquiry.arguments["iban"] in bank else Absent()

    @action(
        risk="non_idempotent_write", remote="queryable", identity=("order",), unique=("order",), query=query,
        resend_when_absent=True, timeout=0.3, lease=0.5, settle_window=0.3, deadline=3,
    )  # fmt: skip
    def pay(order: str, iban: Annotated[str, Secret()]) -> object:
        bank.append(iban)
        raise KeyboardInterrupt

    with opened(database_url, secret_key=Fernet.generate_key().decode()) as ledger:
        await interrupted(pay, ledger)
    await asyncio.sleep(1.1)
    with opened(database_url, secret_key=Fernet.generate_key().decode()) as other:
        outcome = await door(pay, ["A-1", PLAIN], ledger=other)
        await other.aclose()
    assert (outcome.code, outcome.receipt) == (Code.SUCCEEDED, "RF-1")
    assert bank == [PLAIN]
