"""The store of an endpoint, through both doors: a key is claimed once, time frees nothing, and a late owner changes
nothing.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from settled import ClaimLost, ContractError, DidNotHappen, IdempotencyStore, Inconclusive, InvalidArguments, Ledger
from settled.state import endpoint
from settled.tools.endpoint import (
    MAX_KEY_CHARS,
    Claimed,
    Done,
    InFlight,
    Met,
    OtherPayload,
    StoredAnswer,
    Unresolved,
)

ONE, OTHER = "sha256:" + "1" * 64, "sha256:" + "2" * 64
ANSWER = StoredAnswer(201, b'{"receipt": "R-1"}', (("content-type", "application/json"),))


class Clock:
    """The database's clock, which a test moves."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def open_store(database_url: str, clock: Clock) -> Any:
    opened: list[Ledger] = []

    def open_one(reconcile: Any = None, **options: Any) -> IdempotencyStore:
        opened.append(Ledger.connect(database_url, clock=clock))
        return IdempotencyStore(opened[-1], scope="shop", reconcile=reconcile, **({"wait_s": 0} | options))

    yield open_one
    for ledger in opened:
        ledger.close()


Open = Callable[..., IdempotencyStore]


def claimed(met: Met) -> Claimed:
    assert isinstance(met, Claimed), met
    return met


def test_the_first_claim_acts_and_the_rest_are_told(open_store: Open) -> None:
    store = open_store()
    mine = claimed(store.claim("k", ONE))
    assert isinstance(store.claim("k", ONE), InFlight)
    assert isinstance(store.claim("k", OTHER), OtherPayload)
    store.finish(mine, ANSWER)
    assert store.claim("k", ONE) == Done(ANSWER)
    assert isinstance(store.claim("k", OTHER), OtherPayload)


async def test_the_same_in_an_event_loop(open_store: Open) -> None:
    store = open_store()
    mine = claimed(await store.aclaim("k", ONE))
    assert isinstance(await store.aclaim("k", ONE), InFlight)
    assert await store.arenew(mine)
    await store.afinish(mine, ANSWER)
    assert await store.aclaim("k", ONE) == Done(ANSWER)
    assert not await store.arenew(mine)
    assert (await store.arecord("k")).state == "done"  # type: ignore[union-attr]
    assert await store.arelease(claimed(await store.aclaim("other", ONE)))
    assert await store.amark_unknown(claimed(await store.aclaim("third", ONE)))
    assert await store.apurge() == 0


def test_sixteen_claims_at_one_instant_have_one_winner(database_url: str) -> None:
    gate = threading.Barrier(16)
    with IdempotencyStore(database_url, scope="shop", wait_s=0) as store:

        def one(_: int) -> Met:
            gate.wait()
            return store.claim("k", ONE)

        with ThreadPoolExecutor(16) as threads:
            met = list(threads.map(one, range(16)))
    assert sorted(type(one).__name__ for one in met) == ["Claimed"] + ["InFlight"] * 15


def test_a_key_belongs_to_its_scope_and_its_tenant(open_store: Open, database_url: str) -> None:
    store = open_store()
    claimed(store.claim("k", ONE))
    claimed(store.claim("k", OTHER, tenant="acme"))
    with IdempotencyStore(database_url, scope="other shop") as other:
        claimed(other.claim("k", OTHER))
    assert store.record("k", tenant="nobody") is None


@pytest.mark.parametrize("days", [1, 10_000])
def test_no_passing_of_time_frees_a_key(open_store: Open, clock: Clock, days: int) -> None:
    """Neither of one whose handler died, nor of one that nobody could tell about, nor of one that is done."""
    store = open_store()
    claimed(store.claim("died", ONE))
    store.mark_unknown(claimed(store.claim("unknown", ONE)))
    store.finish(claimed(store.claim("done", ONE)), ANSWER)
    clock.passes(days * 86_400)
    for _ in range(3):
        assert isinstance(store.claim("died", ONE), Unresolved)
        assert isinstance(store.claim("unknown", ONE), Unresolved)
        assert store.claim("done", ONE) == Done(ANSWER)
        clock.passes(60)


def test_a_purge_forgets_what_is_done_and_past_its_retention_and_nothing_else(open_store: Open, clock: Clock) -> None:
    store = open_store(keep=timedelta(hours=1))
    for number in range(5):
        store.finish(claimed(store.claim(f"done-{number}", ONE)), ANSWER)
    claimed(store.claim("died", ONE))
    store.mark_unknown(claimed(store.claim("unknown", ONE)))
    clock.passes(3599)
    store.finish(claimed(store.claim("young", ONE)), ANSWER)
    assert store.purge() == 0
    clock.passes(2)
    assert store.purge(most=2) == 2
    assert store.purge() == 3
    assert store.purge() == 0
    states = {key: getattr(store.record(key), "state", None) for key in ("died", "unknown", "young", "done-0")}
    assert states == {"died": "running", "unknown": "unknown", "young": "done", "done-0": None}


def test_reconciled_as_done_the_answer_is_given_and_kept(open_store: Open, clock: Clock) -> None:
    asked: list[tuple[str, object]] = []

    def reconcile(key: str, request: object) -> StoredAnswer:
        asked.append((key, request))
        return ANSWER

    store = open_store(reconcile)
    claimed(store.claim("k", ONE, request="first"))
    clock.passes(29)
    assert isinstance(store.claim("k", ONE, request="early"), InFlight)
    clock.passes(2)
    assert [store.claim("k", ONE, request="late") for _ in range(3)] == [Done(ANSWER)] * 3
    assert asked == [("k", "late")]


def test_reconciled_as_surely_not_done_one_may_run_it_again(open_store: Open, clock: Clock) -> None:
    store = open_store(lambda key, request: DidNotHappen())
    first = claimed(store.claim("k", ONE))
    clock.passes(31)
    second = claimed(store.claim("k", ONE))
    assert second.reconciled
    assert isinstance(store.claim("k", ONE), InFlight)
    with pytest.raises(ClaimLost):
        store.finish(first, ANSWER)
    assert not store.renew(first)
    assert not store.release(first)
    assert not store.mark_unknown(first)
    other = StoredAnswer(201, b"second")
    store.finish(second, other)
    with pytest.raises(ClaimLost):
        store.finish(first, ANSWER)
    assert store.claim("k", ONE) == Done(other)


async def test_an_async_reconcile_is_asked_through_both_doors(open_store: Open, clock: Clock) -> None:
    async def reconcile(key: str, request: object) -> StoredAnswer:
        await asyncio.sleep(0)
        return ANSWER

    store = open_store(reconcile)
    for key in ("sync", "async"):
        claimed(store.claim(key, ONE))
    clock.passes(31)
    assert await asyncio.to_thread(store.claim, "sync", ONE) == Done(ANSWER)
    assert await store.aclaim("async", ONE) == Done(ANSWER)


def _raises(key: str, request: object) -> StoredAnswer:
    raise KeyError("secret")


@pytest.mark.parametrize(
    ("reconcile", "says"),
    [
        (lambda key, request: Inconclusive("till closed"), "till closed"),
        (_raises, "KeyError"),
        (lambda key, request: None, "NoneType"),
    ],
)
def test_while_nobody_can_tell_nobody_acts_and_it_is_asked_again(
    open_store: Open, clock: Clock, reconcile: Any, says: str
) -> None:
    store = open_store(reconcile)
    claimed(store.claim("k", ONE))
    clock.passes(31)
    met = store.claim("k", ONE)
    assert isinstance(met, Unresolved)
    assert says in met.reason
    assert "secret" not in met.reason
    assert isinstance(store.claim("k", OTHER), OtherPayload)
    able = open_store(lambda key, request: ANSWER)
    assert isinstance(able.claim("k", ONE), Unresolved)  # a crowd does not ask all at once
    clock.passes(2)
    assert able.claim("k", ONE) == Done(ANSWER)


def test_one_of_many_asks(database_url: str) -> None:
    asked: list[str] = []

    def reconcile(key: str, request: object) -> StoredAnswer:
        asked.append(key)
        return ANSWER

    with IdempotencyStore(database_url, scope="shop", reconcile=reconcile, wait_s=5) as store:
        store.mark_unknown(claimed(store.claim("k", ONE)))
        with ThreadPoolExecutor(16) as threads:
            met = list(threads.map(lambda _: store.claim("k", ONE), range(16)))
    assert met == [Done(ANSWER)] * 16
    assert asked == ["k"]


def test_a_released_key_is_new_and_its_former_owner_has_no_hold_of_it(open_store: Open) -> None:
    store = open_store()
    first = claimed(store.claim("k", ONE))
    assert store.release(first)
    second = claimed(store.claim("k", OTHER))
    assert first.held.fencing_token == second.held.fencing_token == 1
    with pytest.raises(ClaimLost):
        store.finish(first, ANSWER)
    assert not store.release(first)
    store.finish(second, ANSWER)
    assert not store.release(second)


def test_the_first_answer_is_final(open_store: Open) -> None:
    """A second sending is no error (its reply may have been lost), and changes nothing."""
    store = open_store()
    mine = claimed(store.claim("k", ONE))
    store.finish(mine, ANSWER)
    store.finish(mine, StoredAnswer(500, b"other"))
    assert not store.mark_unknown(mine)
    assert store.claim("k", ONE) == Done(ANSWER)


def test_every_statement_may_be_sent_twice(open_store: Open, clock: Clock) -> None:
    """As after a connection that was lost with the reply."""
    store = open_store()
    run = store._database.run
    query = endpoint.claim("shop", "default", "k", fingerprint=bytes.fromhex("11" * 32), owner="me", lease_s=30)
    assert [run(query).owner for _ in range(2)] == ["me", "me"]  # type: ignore[union-attr]
    clock.passes(31)
    seen = store.record("k")
    assert seen is not None
    assert run(endpoint.take_up(seen, owner="you", lease_s=30)) is not None
    assert run(endpoint.take_up(seen, owner="him", lease_s=30)) is None


def test_a_large_answer_is_known_to_have_been_given(open_store: Open) -> None:
    store = open_store(max_answer_bytes=10)
    store.finish(claimed(store.claim("k", ONE)), StoredAnswer(201, b"x" * 11, (("location", "/1"),)))
    assert store.claim("k", ONE) == Done(StoredAnswer(201, None, (("location", "/1"),)))


def test_effect_and_answer_in_one_commit(open_store: Open, database_url: str) -> None:
    store = open_store()
    mine = claimed(store.claim("k", ONE))
    with psycopg.connect(database_url) as connection:
        connection.execute("CREATE TABLE effects (key text)")
    with pytest.raises(ZeroDivisionError), psycopg.connect(database_url) as connection:  # noqa: PT012
        connection.execute("INSERT INTO effects VALUES ('k')")
        store.finish(mine, ANSWER, connection=connection)
        raise ZeroDivisionError
    assert isinstance(store.claim("k", ONE), InFlight)
    with psycopg.connect(database_url, row_factory=psycopg.rows.dict_row) as connection:
        connection.execute("INSERT INTO effects VALUES ('k')")
        store.finish(mine, ANSWER, connection=connection)
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT count(*) FROM effects").fetchone() == (1,)
    assert store.claim("k", ONE) == Done(ANSWER)


async def test_a_late_transaction_fails_with_its_effect(open_store: Open, database_url: str, clock: Clock) -> None:
    """So "it did not happen" is the truth about whatever is not recorded."""
    store = open_store(lambda key, request: DidNotHappen())
    first = claimed(store.claim("k", ONE))
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        await connection.execute("CREATE TABLE effects (key text)")
        with pytest.raises(ClaimLost):  # noqa: PT012
            async with connection.transaction():
                await connection.execute("INSERT INTO effects VALUES ('first')")
                clock.passes(31)
                second = claimed(await store.aclaim("k", ONE))
                await store.afinish(first, ANSWER, connection=connection)
        async with connection.transaction():
            await connection.execute("INSERT INTO effects VALUES ('second')")
            await store.afinish(second, ANSWER, connection=connection)
        found = await (await connection.execute("SELECT key FROM effects")).fetchall()
    assert found == [("second",)]


async def test_a_connection_that_cannot_be_right_is_refused(open_store: Open, database_url: str) -> None:
    store = open_store()
    mine = claimed(store.claim("k", ONE))
    with pytest.raises(ContractError, match="psycopg Connection"):
        store.finish(mine, ANSWER, connection=database_url)
    with (
        psycopg.connect(database_url, autocommit=True) as connection,
        pytest.raises(ContractError, match="no open transaction"),
    ):
        store.finish(mine, ANSWER, connection=connection)
    with psycopg.connect(database_url) as connection, pytest.raises(ContractError, match="AsyncConnection"):
        await store.afinish(mine, ANSWER, connection=connection)
    assert isinstance(store.claim("k", ONE), InFlight)


@pytest.mark.parametrize("key", ["", "k" * (MAX_KEY_CHARS + 1), "a\x00", "a\nb", "\ud800", None, 7])
def test_a_key_that_cannot_be_stored_is_refused_by_name(open_store: Open, key: Any) -> None:
    store = open_store()
    with pytest.raises(InvalidArguments, match=r"^key: must be"):
        store.claim(key, ONE)
    with pytest.raises(InvalidArguments, match=r"^tenant: must be"):
        store.claim("k", ONE, tenant=key)


@pytest.mark.parametrize("fingerprint", ["", "1" * 64, "sha256:" + "g" * 64, ONE + "1"])
def test_a_fingerprint_that_is_none_is_refused(open_store: Open, fingerprint: str) -> None:
    with pytest.raises(InvalidArguments, match="fingerprint"):
        open_store().claim("k", fingerprint)


@pytest.mark.parametrize("wrong", [{"lease_s": 0}, {"wait_s": -1}, {"keep": timedelta()}, {"max_answer_bytes": -1}])
def test_terms_that_cannot_be_right_are_refused(open_store: Open, wrong: dict[str, Any]) -> None:
    with pytest.raises(ContractError):
        open_store(**wrong)


GUARDED = [
    "UPDATE settled.endpoint_keys SET state = 'reconciling', fencing_token = 2, owner = 'x' WHERE key = 'running'",
    "UPDATE settled.endpoint_keys SET owner = 'x' WHERE key = 'running'",
    "UPDATE settled.endpoint_keys SET fencing_token = 2 WHERE key = 'running'",
    "UPDATE settled.endpoint_keys SET state = 'running' WHERE key = 'unknown'",
    "UPDATE settled.endpoint_keys SET fingerprint = sha256('x') WHERE key = 'running'",
    "UPDATE settled.endpoint_keys SET body = 'x' WHERE key = 'done'",
    "UPDATE settled.endpoint_keys SET kept_until = kept_until WHERE key = 'done'",
    "DELETE FROM settled.endpoint_keys WHERE key = 'unknown'",
    "DELETE FROM settled.endpoint_keys WHERE key = 'done'",
    "TRUNCATE settled.endpoint_keys",
]


@pytest.mark.parametrize("statement", GUARDED)
def test_the_database_itself_refuses(database_url: str, statement: str) -> None:
    with IdempotencyStore(database_url, scope="shop") as store:
        claimed(store.claim("running", ONE))
        store.mark_unknown(claimed(store.claim("unknown", ONE)))
        store.finish(claimed(store.claim("done", ONE)), ANSWER)
    with psycopg.connect(database_url) as connection, pytest.raises(psycopg.Error) as refused:
        connection.execute(statement.encode())
    assert refused.value.sqlstate == "ST001"
