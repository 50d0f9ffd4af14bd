"""Whoever bypasses Python: the database refuses illegal steps, changed intents, and rewritten history."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from acts import Remote, opened, through_sync
from settled import IllegalTransition, Ledger, action
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
    evidence = 'reply', settled_at = CASE WHEN %(open)s THEN NULL ELSE now() END
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
