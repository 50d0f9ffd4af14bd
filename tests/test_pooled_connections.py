"""Connections that lost their prepared statements, and plans made while the tables were empty."""

import psycopg
import pytest

from acts import Door, Remote, both_doors, opened, rows
from settled import Code, Ledger, action
from settled.state.postgres import ledger_statements
from settled.tools.contract import ActionTool


def pay(remote: Remote) -> ActionTool:
    @action(risk="non_idempotent_write", remote="opaque", identity="all")
    def pay(order: int) -> object:
        return remote.do(order=order)

    return pay


@both_doors
@pytest.mark.parametrize("command", [b"DEALLOCATE ALL", b"DISCARD ALL"])
async def test_lost_prepared_statements_are_transparent(door: Door, command: bytes, database_url: str) -> None:
    """As behind a transaction pooler: the statement is sent again, nothing happens twice, nobody waits."""
    remote = Remote()
    tool = pay(remote)
    with opened(database_url, max_connections=2, patience_s=3) as ledger:
        for n in range(3):
            await door(tool, [n], ledger=ledger)
        for connection in list(ledger.pools.threads()._pool):
            connection.pgconn.exec_(command)
        for connection in list((await ledger.pools.loop())._pool):
            connection.pgconn.exec_(command)
        outcomes = [await door(tool, [n], ledger=ledger) for n in range(6)]
        await ledger.aclose()
    assert [o.code for o in outcomes] == [Code.DUPLICATE] * 3 + [Code.SUCCEEDED] * 3
    assert [e["order"] for e in remote.effects] == [0, 1, 2, 3, 4, 5]


@both_doors
async def test_without_prepared_statements(door: Door, database_url: str) -> None:
    """`prepare=False` leaves none on the server, and works."""
    remote = Remote()
    tool = pay(remote)
    with opened(database_url, prepare=False, max_connections=1) as ledger:
        outcomes = [await door(tool, [1], ledger=ledger) for _ in range(8)]
        with ledger.pools.threads().connection() as connection:
            prepared = connection.execute(b"SELECT count(*) FROM pg_prepared_statements").fetchone()
        await ledger.aclose()
    assert [o.receipt for o in outcomes] == ["RF-1"] * 8
    assert prepared == (0,)


BY_ID = [
    "load",
    "load_all",
    "succeed",
    "fail",
    "refuse",
    "lose",
    "ask",
    "find",
    "release",
    "escalate",
    "claim",
    "approve",
    "cancel",
]


@pytest.mark.parametrize("name", [*BY_ID, "plan", "plan_decided", "timeline", "keep_late"])
def test_a_plan_made_on_an_empty_ledger_uses_the_indexes(name: str, database_url: str) -> None:
    """The generic plan of a fresh database never reads a whole table or another index than the one that is meant."""
    statement = ledger_statements()[name]
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("SET plan_cache_mode = force_generic_plan")
        connection.execute(b"PREPARE tried AS " + statement.sql)
        nulls = ", ".join(["NULL"] * len(statement.names))
        plan = "\n".join(row[0] for row in connection.execute(f"EXPLAIN EXECUTE tried({nulls})"))  # type: ignore[arg-type]
    assert "Seq Scan on" not in plan, plan
    if name in BY_ID:
        assert "actions_pkey" in plan, plan
        assert "open_actions" not in plan, plan
        assert "one_action_per_intent" not in plan, plan


async def test_a_ledger_of_many_tenants_and_threads_is_read_by_index(ledger: Ledger) -> None:
    """After a thousand rows the plan that was made on none still reads a handful of pages for a replay."""
    from settled import perform

    remote = Remote()
    tool = pay(remote)
    perform(tool, [0], ledger=ledger, thread_id="t")
    for n in range(300):
        perform(tool, [n], ledger=ledger, thread_id=f"t{n}")
    before = rows(ledger.url, "SELECT sum(seq_tup_read) AS n FROM pg_stat_user_tables WHERE schemaname = 'settled'")
    for _ in range(20):
        perform(tool, [0], ledger=ledger, thread_id="t")
    ledger.close()  # a session reports what it has counted when it ends
    after = rows(ledger.url, "SELECT sum(seq_tup_read) AS n FROM pg_stat_user_tables WHERE schemaname = 'settled'")
    assert int(after[0]["n"] or 0) - int(before[0]["n"] or 0) == 0
