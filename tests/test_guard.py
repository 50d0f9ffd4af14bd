"""Whoever bypasses Python: the database refuses illegal steps, changed intents, and rewritten history."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from acts import Remote, opened, through_sync
from settled import Approve, Desk, IllegalTransition, Ledger, action, always
from settled.state import ledger as ledger_queries
from settled.state.ledger import Query
from settled.state.machine import BIRTH, OPEN, TRANSITIONS, State, Trigger
from settled.state.model import Action, Claim
from settled.tools.contract import contract_of
from settled.tools.perform import Options, prepare

LEGAL = {(str(s), str(t), str(to)) for s, row in TRANSITIONS.items() for t, to in row.items()}
ALL = [(str(s), str(t), str(to)) for s in State for t in Trigger for to in State]
REFUSED, INCOMPLETE = "ST001", "23514"
"""By the guard, or by a CHECK on what a row of that state must hold (which comes first)."""

# Shortest legal ways to each state from running.
WAYS: dict[State, list[Trigger]] = {
    State.SUCCEEDED: [Trigger.SUCCEED],
    State.UNKNOWN: [Trigger.LOSE],
    State.FAILED: [Trigger.FAIL],
    State.COMPENSATION_PENDING: [Trigger.SUCCEED, Trigger.COMPENSATE],
    State.COMPENSATED: [Trigger.SUCCEED, Trigger.COMPENSATE, Trigger.COMPENSATED],
    State.RUNNING: [],
}

MOVE = """
UPDATE settled.actions SET version = version + 1, previous = state, state = %(to)s, trigger = %(trigger)s,
    fencing_token = fencing_token + (%(trigger)s IN ('claim', 'release'))::integer, attempt = greatest(attempt, 1),
    approver = 'someone', owner = 'someone', started_at = now(), lease_until = now(), deadline_at = now(),
    in_flight_until = now(), reason = 'because', code = 'rejected', may_change = false, result = '{}',
    evidence = 'reply', compensated_by = CASE WHEN %(trigger)s = 'compensate' THEN 'act-undo' ELSE compensated_by END,
    settled_at = CASE WHEN %(open)s THEN NULL ELSE now() END
WHERE id = %(id)s"""


def move(connection: psycopg.Connection[Any], action_id: str, trigger: str, to: str) -> None:
    """Make a step in plain SQL, with every column that any state asks for."""
    done = connection.execute(MOVE, {"id": action_id, "trigger": trigger, "to": to, "open": State(to) in OPEN})
    assert done.rowcount == 1


@pytest.fixture
def sql(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True, row_factory=dict_row) as connection:
        yield connection


async def running(ledger: Ledger, connection: psycopg.Connection[Any], order: str = "A-1") -> str:
    """Return the id of an action that runs, without an owner who will ever come back."""

    @action(risk="non_idempotent_write", remote="opaque", identity=("order",))
    def pay(order: str) -> object:
        return None

    call = prepare(contract_of(pay), [order], Options("thread-1"), ledger)
    met = ledger.run(ledger_queries.plan(call.plan))
    assert met is not None
    assert met.way == "born"
    return met.action.id


async def planned(ledger: Ledger, connection: psycopg.Connection[Any]) -> str:
    """Return the id of an action that waits for a person."""
    remote = Remote()

    @action(risk="non_idempotent_write", remote="opaque", identity=("order",), name="wait")
    def pay(order: str) -> object:
        return remote.do()

    first = await through_sync(pay, ["A-1"], ledger=ledger)
    waiting = await through_sync(pay, {"order": "A-1", "repeat_of": first.action_id}, ledger=ledger)
    assert (waiting.state, waiting.action_id is None) == (State.PLANNED, False)
    return str(waiting.action_id)


async def approved(ledger: Ledger) -> str:
    """Return the id of an action that its policy has allowed, and that nobody has claimed."""

    @action(risk="non_idempotent_write", remote="opaque", identity=("order",), name="allow")
    def pay(order: str) -> object:
        return None

    call = prepare(contract_of(pay), ["A-1"], Options("thread-1"), ledger)
    met = ledger.run(ledger_queries.plan(dataclasses.replace(call.plan, is_claimed_later=True)))
    assert met is not None
    return met.action.id


async def in_state(state: State, ledger: Ledger, connection: psycopg.Connection[Any]) -> str:
    """Return the id of an action that went to a state by legal steps."""
    if state is State.APPROVED:
        return await approved(ledger)
    if state in (State.PLANNED, State.CANCELLED):
        action_id = await planned(ledger, connection)
        if state is State.CANCELLED:
            move(connection, action_id, Trigger.DENY, State.CANCELLED)
        return action_id
    action_id, now = await running(ledger, connection), State.RUNNING
    for trigger in WAYS[state]:
        now = TRANSITIONS[now][trigger]
        move(connection, action_id, trigger, now)
    return action_id


def test_the_database_has_the_machine_of_the_code(sql: psycopg.Connection[Any]) -> None:
    """`settled.is_legal` says yes to the pairs of TRANSITIONS and to no others."""
    query = "SELECT settled.is_legal(%s, %s, %s) AS legal"
    said = {step for step in ALL if sql.execute(query, step).fetchone() == {"legal": True}}
    assert said == LEGAL


@pytest.mark.parametrize("state", list(State))
async def test_every_step_in_sql_is_judged(state: State, ledger: Ledger, sql: psycopg.Connection[Any]) -> None:
    """From each state, each trigger to each state: the legal ones pass, all others are refused."""
    action_id = await in_state(state, ledger, sql)
    passed, refusals = set(), set()
    for trigger in Trigger:
        for to in State:
            try:
                with sql.transaction(force_rollback=True):
                    move(sql, action_id, trigger, to)
            except psycopg.Error as error:
                refusals.add(error.sqlstate)
            else:
                passed.add((trigger, to))
    assert passed == set(TRANSITIONS[state].items())
    assert refusals <= {REFUSED, INCOMPLETE}


@pytest.mark.parametrize(
    "change",
    [
        'arguments = \'{"order": "B-2"}\'',
        "fingerprint = sha256('other')",
        "idempotency_key = 's1-other'",
        "intent = substr(sha256('other'), 1, 20)",
        "business_key = sha256('other')",
        "tenant = 'theirs'",
        "thread_id = 'other'",
        "tool = 'other'",
        "occurrence = occurrence + 1",
        "id = 'act-other'",
        "state = 'succeeded', result = '{}', evidence = 'reply', settled_at = now()",
        "fencing_token = fencing_token + 1",
        "fencing_token = fencing_token - 1",
        "attempt = attempt + 1",
        "receipt = 'R-0'",
        "result = '{}'",
        "trigger = 'succeed'",
        "version = version + 2",
        "version = version - 1",
    ],
)
async def test_no_plain_update_changes_what_counts(change: str, ledger: Ledger, sql: psycopg.Connection[Any]) -> None:
    """The intent never changes, and state, token, attempt and result change only by a transition."""
    action_id = await running(ledger, sql)
    before = sql.execute("SELECT * FROM settled.actions WHERE id = %s", [action_id]).fetchone()
    with pytest.raises(psycopg.Error) as refused:
        sql.execute(f"UPDATE settled.actions SET {change} WHERE id = %s", [action_id])  # type: ignore[arg-type]
    assert refused.value.sqlstate in (REFUSED, INCOMPLETE)
    assert sql.execute("SELECT * FROM settled.actions WHERE id = %s", [action_id]).fetchone() == before


@pytest.mark.parametrize("change", ["fingerprint = sha256('other')", "arguments = '{}'", "fencing_token = 0"])
async def test_no_legal_step_smuggles_a_change_in(change: str, ledger: Ledger, sql: psycopg.Connection[Any]) -> None:
    """Also beside a legal step the intent stays, and the token is never lowered."""
    action_id = await running(ledger, sql)
    with pytest.raises(psycopg.Error) as refused:
        sql.execute(
            "UPDATE settled.actions SET version = version + 1, previous = state, state = 'unknown', trigger = 'lose',"  # type: ignore[arg-type]
            f" reason = 'x', in_flight_until = now(), {change} WHERE id = %s",
            [action_id],
        )
    assert refused.value.sqlstate == REFUSED


@pytest.mark.parametrize("state", list(State))
async def test_only_terminal_rows_can_be_deleted(state: State, ledger: Ledger, sql: psycopg.Connection[Any]) -> None:
    """An open action is never deleted; a settled one may be purged."""
    action_id = await in_state(state, ledger, sql)
    if state in OPEN:
        with pytest.raises(psycopg.Error) as refused:
            sql.execute("DELETE FROM settled.actions WHERE id = %s", [action_id])
        assert refused.value.sqlstate == REFUSED
    else:
        assert sql.execute("DELETE FROM settled.actions WHERE id = %s", [action_id]).rowcount == 1


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE settled.events SET trigger = 'find'",
        "UPDATE settled.events SET at = now() - interval '1 day'",
        "DELETE FROM settled.events",
        "TRUNCATE settled.events",
        "TRUNCATE settled.actions",
        "TRUNCATE settled.actions CASCADE",
    ],
)
async def test_history_is_only_ever_added_to(statement: str, ledger: Ledger, sql: psycopg.Connection[Any]) -> None:
    """Events are neither changed nor deleted nor truncated, by whoever."""
    await running(ledger, sql)
    before = sql.execute("SELECT * FROM settled.events ORDER BY id").fetchall()
    with pytest.raises(psycopg.Error) as refused:
        sql.execute(statement)  # type: ignore[arg-type]
    assert refused.value.sqlstate == REFUSED
    assert sql.execute("SELECT * FROM settled.events ORDER BY id").fetchall() == before
    assert len(before) == 3


BORN = """
INSERT INTO settled.actions (planned_at, window_until, occurrence, tenant, id, thread_id, tool, contract_version,
    intent, idempotency_key, fingerprint, arguments, summary, version, fencing_token, attempt, started_at, lease_until,
    deadline_at, in_flight_until, settled_at, may_change, state, trigger, approver, owner,
    code, reason, evidence, result)
SELECT now(), now(), 7, tenant, 'act-forged', thread_id, tool, contract_version,
    intent, 's1-forged', fingerprint, arguments, summary, %(version)s, 1, 1, now(), now(),
    now(), now(), CASE WHEN %(open)s THEN NULL ELSE now() END, false, %(state)s, %(trigger)s, 'someone', 'someone',
    'rejected', 'because', 'reply', '{}'
FROM settled.actions LIMIT 1"""


@pytest.mark.parametrize("version", [1, 2, 0])
async def test_no_action_is_born_settled(version: int, ledger: Ledger, sql: psycopg.Connection[Any]) -> None:
    """An inserted row begins where a plan may begin it: never as succeeded, unknown or failed, whatever its version."""
    await running(ledger, sql)
    born = {("planned", BIRTH), ("cancelled", "deny"), ("approved", "approve"), ("running", "claim")}
    passed, refusals = set(), set()
    for state in State:
        for trigger in [BIRTH, *Trigger]:
            given = {"state": state, "trigger": trigger, "version": version, "open": state in OPEN}
            try:
                with sql.transaction(force_rollback=True):
                    sql.execute(BORN, given)
            except psycopg.Error as error:
                refusals.add(error.sqlstate)
            else:
                passed.add((str(state), str(trigger)))
    assert passed == (born if version == 1 else set())
    assert refusals <= {REFUSED, INCOMPLETE}


def stale(action: Action) -> list[Query[Any]]:
    """Every transition, by an owner whose token is not the row's."""
    action_id, claim = action.id, Claim(action.tenant, action.id, 99, "nobody")
    q = ledger_queries
    return [
        q.succeed(claim, action, receipt="R-1", result="{}"),
        q.fail(claim, code="rejected", reason="x", may_change=True),
        q.refuse(claim, attempt=1, reason="x", delay_s=1, lease_s=1),
        q.lose(claim, reason="x", settle_window_s=1, orphaned=True),
        q.ask(claim, queries=action.queries, answer="absent", delay_s=1),
        q.find(claim, receipt="R-1", result="{}", evidence="query"),
        q.release(claim, lease_s=1, deadline_s=1, proved_by_absence=False, reason="x"),
        q.escalate(claim, reason="x"),
        q.claim("default", action_id, owner="nobody", lease_s=1, deadline_s=1),
        q.approve("default", action_id, fingerprint="sha256:" + "0" * 64, approver="x", valid_for_s=None),
        q.cancel("default", action_id, trigger=Trigger.DENY, code="denied", reason="x"),
        q.claim("theirs", action_id, owner="nobody", lease_s=1, deadline_s=1),
    ]


@pytest.mark.parametrize("state", list(State))
async def test_a_transition_that_loses_writes_nothing(
    state: State, ledger: Ledger, sql: psycopg.Connection[Any]
) -> None:
    """A stale token, another tenant, another fingerprint: zero rows, and no event beside them."""
    action_id = await in_state(state, ledger, sql)
    read = "SELECT * FROM settled.actions WHERE id = %s", [action_id]
    before = sql.execute(*read).fetchone()
    events = sql.execute("SELECT count(*) AS n FROM settled.events").fetchone()
    action = ledger.run(ledger_queries.load("default", action_id))
    assert action is not None
    lawful = {State.APPROVED: "claim", State.PLANNED: "cancel"}.get(state)
    queries = [q for q in stale(action) if q.name != lawful]
    assert [ledger.run(query) for query in queries] == [None] * len(queries)
    assert sql.execute(*read).fetchone() == before
    assert sql.execute("SELECT count(*) AS n FROM settled.events").fetchone() == events


async def test_a_refused_step_raises_our_error(ledger: Ledger, sql: psycopg.Connection[Any]) -> None:
    """What the guard refuses comes out of the ledger as IllegalTransition."""
    action_id = await running(ledger, sql)
    lawful = ledger_queries.cancel("default", action_id, trigger=Trigger.DENY, code="denied", reason="x")
    query = dataclasses.replace(lawful, params={**lawful.params, "states": ["running"]})
    with pytest.raises(IllegalTransition, match="running"):
        ledger.run(query)
    assert sql.execute("SELECT count(*) AS n FROM settled.events").fetchone() == {"n": 3}
    with opened(ledger.url) as other:
        found = other.run(ledger_queries.load("default", action_id))
    assert found is not None
    assert found.state is State.RUNNING


@pytest.mark.parametrize("trigger", sorted(set(Trigger) - {"deny", "expire", "supersede", "withdraw"}))
def test_what_does_not_cancel_is_refused_before_it_is_sent(trigger: Trigger) -> None:
    """The machine's own table refuses an illegal step; the database is asked only for lawful ones."""
    with pytest.raises(IllegalTransition, match="does not cancel"):
        ledger_queries.cancel("default", "act-1", trigger=trigger, code="denied", reason="x")


async def asked(ledger: Ledger, *, decided: bool = False, spent: bool = False) -> str:
    """Return the id of an action that a person is asked about, or was."""
    remote = Remote()

    @action(risk="non_idempotent_write", remote="opaque", identity=("order",), approval=always, name="asks")
    def pay(order: str) -> object:
        return remote.do()

    waiting = await through_sync(pay, ["A-1"], ledger=ledger)
    ticket = Desk(ledger).approval(str(waiting.action_id))
    if decided or spent:
        Desk(ledger).decide(ticket.action_id, Approve(), by="maria", fingerprint=ticket.fingerprint)
    if spent:
        await through_sync(pay, ["A-1"], ledger=ledger)
    return ticket.action_id


def refused(sql: psycopg.Connection[Any], statement: str, words: str) -> None:
    """Let a statement be refused by the guard, in these words, and change no ticket and no action."""
    read = (
        "SELECT a::text, t::text FROM settled.actions a LEFT JOIN settled.approvals t ON action_id = id ORDER BY 1, 2"
    )
    before = sql.execute(read).fetchall()  # type: ignore[arg-type]
    with pytest.raises(psycopg.Error, match=words) as caught:
        sql.execute(statement)  # type: ignore[arg-type]
    assert caught.value.sqlstate == REFUSED
    assert sql.execute(read).fetchall() == before  # type: ignore[arg-type]


@pytest.mark.parametrize("decided", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        "fingerprint = sha256('other')",
        "summary = 'refund of 1.00'",
        "scope = 'everything'",
        "tool = 'other'",
        "requester = 'somebody'",
        "tenant = 'theirs'",
        "action_id = 'act-other'",
        "round = 2",
        "issued_at = issued_at + interval '1 day'",
    ],
)
async def test_what_a_ticket_is_bound_to_never_changes(
    change: str, decided: bool, ledger: Ledger, sql: psycopg.Connection[Any]
) -> None:
    """Neither while it is open nor after it was decided."""
    await asked(ledger, decided=decided)
    refused(sql, f"UPDATE settled.approvals SET {change}", "is bound to never changes")


@pytest.mark.parametrize(
    "change",
    [
        "decision = 'deny'",
        "decision = NULL",
        "decided_by = 'eve'",
        "decided_at = now()",
        "note = 'not I'",
        "valid_until = valid_until + interval '1 year'",
        "valid_until = NULL",
    ],
)
async def test_the_first_decision_is_final(change: str, ledger: Ledger, sql: psycopg.Connection[Any]) -> None:
    """Who decided what, when, and until when it holds."""
    await asked(ledger, decided=True)
    refused(sql, f"UPDATE settled.approvals SET {change}", "the first decision on action .* is final")


async def test_a_ticket_is_spent_once_and_after_it_was_given(ledger: Ledger, sql: psycopg.Connection[Any]) -> None:
    """Not while it is open, not twice, and it is not given back."""
    await asked(ledger)
    refused(sql, "UPDATE settled.approvals SET spent_at = now()", "is spent once, after it was given")
    sql.execute("UPDATE settled.approvals SET decision = 'deny', decided_by = 'bob', decided_at = now()")
    refused(sql, "UPDATE settled.approvals SET spent_at = now()", "is spent once, after it was given")


@pytest.mark.parametrize("change", ["spent_at = NULL", "spent_at = now() + interval '1 day'"])
async def test_a_spent_ticket_stays_spent(change: str, ledger: Ledger, sql: psycopg.Connection[Any]) -> None:
    """It is no ticket any more."""
    await asked(ledger, spent=True)
    refused(sql, f"UPDATE settled.approvals SET {change}", "is spent once, after it was given")


@pytest.mark.parametrize("statement", ["DELETE FROM settled.approvals", "TRUNCATE settled.approvals"])
@pytest.mark.parametrize("spent", [False, True])
async def test_a_ticket_stays_with_its_action(
    statement: str, spent: bool, ledger: Ledger, sql: psycopg.Connection[Any]
) -> None:
    """It goes only after the action has, which an open one never does."""
    action_id = await asked(ledger, spent=spent)
    refused(sql, statement, "an approval stays with its action" if "DELETE" in statement else "truncate")
    if spent:
        sql.execute("DELETE FROM settled.actions WHERE id = %s", [action_id])
        assert sql.execute("DELETE FROM settled.approvals").rowcount == 1


CLAIM = """
UPDATE settled.actions SET version = version + 1, previous = state, state = 'running', trigger = 'claim',
    fencing_token = fencing_token + 1, attempt = attempt + 1, owner = 'eve', started_at = settled.now(),
    lease_until = settled.now() + interval '9 s', deadline_at = settled.now() + interval '9 s'"""
SPEND = "UPDATE settled.approvals SET spent_at = clock_timestamp() - interval '1 s'"


async def test_no_claim_in_sql_goes_without_its_ticket(ledger: Ledger, sql: psycopg.Connection[Any]) -> None:
    """Approved is not enough: the claim spends the ticket in its own statement, or is refused; also one that was spent
    a moment before it.
    """
    await asked(ledger, decided=True)
    refused(sql, CLAIM, "has no approval that this claim spends")
    refused(sql, f"WITH spent AS ({SPEND} RETURNING 1) {CLAIM} FROM spent", "has no approval that this claim spends")
    sql.execute(SPEND)
    refused(sql, CLAIM, "has no approval that this claim spends")


async def test_a_claim_of_what_nobody_approved_is_refused(ledger: Ledger, sql: psycopg.Connection[Any]) -> None:
    """Whatever way SQL takes there: claimed as it waits, or approved by hand, its ticket being open."""
    await asked(ledger)
    refused(sql, CLAIM, "that is planned cannot claim to running")
    sql.execute(
        "UPDATE settled.actions SET version = version + 1, previous = state, state = 'approved', trigger = 'approve',"
        " approver = 'eve', asked_until = NULL"
    )
    refused(sql, CLAIM, "has no approval that this claim spends")


@pytest.mark.parametrize(
    "change",
    [
        "asking = NULL",
        'asking = \'{"reason": "", "scope": "", "ttl_s": 5, "approvers": [], "four_eyes": false}\'',
        "asked_until = asked_until + interval '1 year'",
        "asked_until = NULL",
        "approver = 'eve'",
        "approved_until = now() + interval '1 year'",
        "supersedes = 'act-other'",
        "superseded_by = 'act-other'",
        "requester = 'somebody'",
        "summary = 'refund of 1.00'",
    ],
)
async def test_a_verdict_is_frozen_in_the_row(change: str, ledger: Ledger, sql: psycopg.Connection[Any]) -> None:
    """Who is asked, until when, on whose behalf, and what it was changed into: no plain update touches it."""
    await asked(ledger)
    refused(sql, f"UPDATE settled.actions SET {change}", "what it intends was changed")


@pytest.mark.parametrize("change", ["approver = 'eve'", "approved_until = NULL"])
async def test_who_approved_stays_in_the_row(change: str, ledger: Ledger, sql: psycopg.Connection[Any]) -> None:
    """And until when: a permission is not prolonged by hand."""
    await asked(ledger, decided=True)
    refused(sql, f"UPDATE settled.actions SET {change}", "what it intends was changed")


async def test_no_step_drops_the_verdict(ledger: Ledger, sql: psycopg.Connection[Any]) -> None:
    """A claim beside which nobody was asked any more, is refused."""
    await asked(ledger, decided=True)
    refused(sql, f"{CLAIM}, asking = NULL", "what it intends was changed")


async def test_what_asks_a_person_is_born_waiting(ledger: Ledger, sql: psycopg.Connection[Any]) -> None:
    """No row begins with a verdict to ask, and approved or running beside it."""
    await asked(ledger)
    for state, trigger in (("approved", "approve"), ("running", "claim")):
        born = BORN.replace("INSERT INTO settled.actions (", "INSERT INTO settled.actions (asking, ")
        born = born.replace("SELECT now()", "SELECT asking, now()", 1)
        with pytest.raises(psycopg.Error, match=f"cannot begin as {state}") as caught:
            sql.execute(born, {"state": state, "trigger": trigger, "version": 1, "open": True})  # type: ignore[arg-type]
        assert caught.value.sqlstate == REFUSED
