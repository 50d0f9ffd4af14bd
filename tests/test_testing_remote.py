"""A remote side with switches: each fault as a caller meets it on a real socket, and what it leaves behind."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from settled.state.errors import ContractError
from settled.testing import (
    ABSENT,
    COMMIT_AND_500,
    COMMIT_AND_DROP,
    DROP_BEFORE_COMMIT,
    FINE,
    TRUNCATE,
    Fault,
    FaultyRemote,
    Reply,
    Request,
    commit_and_delay,
    commit_later,
    delay_before_commit,
    plugin,
    refuse,
    wrong,
)

faulty_remote = plugin.faulty_remote
BODY = {"order_id": "A-1", "amount": 25}


@pytest.fixture
def client(faulty_remote: FaultyRemote) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=faulty_remote.url, timeout=0.25, verify=False) as client:
        yield client


def post(client: httpx2.Client, key: str = "k-1", **changes: Any) -> httpx2.Response:
    return client.post("/refunds", json={**BODY, **changes}, headers={"Idempotency-Key": key})


def found(client: httpx2.Client, **query: str) -> Any:
    return client.get("/refunds", params=query).json()


def test_it_remembers_effects_by_key(faulty_remote: FaultyRemote, client: httpx2.Client) -> None:
    """A repeat gets the first answer, another body under the same key is refused, and all of it is counted."""
    first, repeat, other = post(client), post(client), post(client, amount=30)
    assert (first.status_code, first.json()) == (201, {"receipt": "R-1", **BODY})
    assert (repeat.status_code, repeat.json()) == (201, first.json())
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    assert (faulty_remote.count(), faulty_remote.count("k-1"), faulty_remote.count("k-2")) == (1, 1, 0)
    assert (faulty_remote.writes(), faulty_remote.writes("k-1"), faulty_remote.queries()) == (3, 3, 0)
    assert [(e.key, e.body, e.path) for e in faulty_remote.effects] == [("k-1", BODY, "/refunds")]


def test_it_answers_queries_by_key_and_by_fields(faulty_remote: FaultyRemote, client: httpx2.Client) -> None:
    """As `find_refund` of the README asks, and by the business key."""
    post(client)
    one = [{"receipt": "R-1", **BODY}]
    assert found(client, idempotency_key="k-1") == found(client, order_id="A-1", amount="25") == one
    assert found(client, idempotency_key="k-2") == found(client, order_id="A-2") == []
    assert faulty_remote.queries() == 4


def test_without_dedupe_each_write_is_one_more_effect() -> None:
    """What a resend does at a remote side that does not recognise a key."""
    with FaultyRemote(dedupes=False, prefix="RF") as remote, httpx2.Client(base_url=remote.url, verify=False) as client:
        assert [post(client).json()["receipt"] for _ in range(2)] == ["RF-1", "RF-2"]
        assert remote.count("k-1") == 2


@pytest.mark.parametrize(
    ("fault", "effects", "seen"),
    [
        (COMMIT_AND_DROP, 1, httpx2.RemoteProtocolError),
        (Fault(reply="reset"), 1, httpx2.ReadError),
        (TRUNCATE, 1, httpx2.RemoteProtocolError),
        (DROP_BEFORE_COMMIT, 0, httpx2.RemoteProtocolError),
        (COMMIT_AND_500, 1, 500),
        (commit_and_delay(0.4), 1, httpx2.ReadTimeout),
        (delay_before_commit(0.4), 1, httpx2.ReadTimeout),
        (commit_later(0.1), 1, httpx2.RemoteProtocolError),
        (refuse(), 0, 503),
        (refuse(429, retry_after=7), 0, 429),
    ],
    ids=lambda value: f"{value.reply}-{value.status}" if isinstance(value, Fault) else None,
)
def test_a_fault_hits_one_write(
    faulty_remote: FaultyRemote, client: httpx2.Client, fault: Fault, effects: int, seen: Any
) -> None:
    """What the caller sees, and what has taken place in the end; the next write is fine again."""
    faulty_remote.next(fault)
    if isinstance(seen, int):
        assert post(client).status_code == seen
    else:
        with pytest.raises(seen):
            post(client)
    assert faulty_remote.wait_until_idle()
    assert faulty_remote.count() == effects
    assert (post(client, "k-2").status_code, faulty_remote.count("k-2")) == (201, 1)


def test_a_delay_is_before_or_after_the_effect(faulty_remote: FaultyRemote, client: httpx2.Client) -> None:
    """A caller who has left at his deadline finds the effect there already, or not yet."""
    for fault, at_once in ((commit_and_delay(0.5), 1), (delay_before_commit(0.5), 0), (commit_later(0.3), 0)):
        before = faulty_remote.count()
        faulty_remote.next(fault)
        with pytest.raises(httpx2.TransportError):
            post(client, f"k-{fault}")
        assert faulty_remote.count() - before == at_once, fault
        assert faulty_remote.wait_until_idle()
        assert faulty_remote.count() - before == 1, fault


def test_it_says_how_long_to_wait(faulty_remote: FaultyRemote, client: httpx2.Client) -> None:
    """`Retry-After` as it was given."""
    faulty_remote.always(refuse(429, retry_after=7))
    assert [post(client).headers["Retry-After"] for _ in range(2)] == ["7", "7"]
    assert (faulty_remote.always(FINE).count(), post(client).status_code) == (0, 201)


def test_connections_are_refused_while_it_is_down(faulty_remote: FaultyRemote, client: httpx2.Client) -> None:
    """And afterwards it is where it was, with what it remembers."""
    post(client)
    with faulty_remote.down(), pytest.raises(httpx2.ConnectError):
        post(client, "k-2")
    assert found(client, idempotency_key="k-1") == [{"receipt": "R-1", **BODY}]
    assert faulty_remote.writes() == 1


def test_a_replica_lags_by_time_or_by_queries(client: httpx2.Client) -> None:
    """What was done is not found yet, for some seconds or for some queries."""
    with FaultyRemote(lag_s=30.0) as remote, httpx2.Client(base_url=remote.url, verify=False) as lagging:
        post(lagging)
        assert found(lagging, idempotency_key="k-1") == []
        remote.pass_time(30.0)
        assert found(lagging, idempotency_key="k-1") == [{"receipt": "R-1", **BODY}]
        remote.next_query(ABSENT, ABSENT)
        assert [len(found(lagging, idempotency_key="k-1")) for _ in range(3)] == [0, 0, 1]


def test_an_answer_can_be_wrong(faulty_remote: FaultyRemote, client: httpx2.Client) -> None:
    """What is told is not what was done, in the reply of a write and in every item of a query's."""
    faulty_remote.next(wrong(amount=999)).next_query(wrong(receipt="R-77"), Fault(status=500), Fault(reply="drop"))
    assert post(client).json() == {"receipt": "R-1", "order_id": "A-1", "amount": 999}
    assert found(client, idempotency_key="k-1") == [{**BODY, "receipt": "R-77"}]
    assert client.get("/refunds").status_code == 500
    with pytest.raises(httpx2.RemoteProtocolError):
        client.get("/refunds")
    assert faulty_remote.effects[0].body == BODY


def test_handlers_of_another_shape_sit_behind_the_switches(faulty_remote: FaultyRemote, client: httpx2.Client) -> None:
    """A user's own API: its paths and fields, with the same faults in front of it."""

    def create(request: Request) -> Reply:
        done = request.commit({**request.json, "account": request.params["account"]})
        return Reply(200, {"id": done.receipt, "object": "refund"}, {"X-Shape": "own"})

    def look_up(request: Request) -> object:
        return {"data": [effect.receipt for effect in request.find(account=request.params["account"])]}

    def fails(request: Request) -> object:
        raise ZeroDivisionError

    faulty_remote.mount("POST", "/v1/{account}/refunds", create).mount("GET", "/v1/{account}/refunds", look_up)
    faulty_remote.mount("POST", "/v1/broken", fails)
    form = {"data": {"charge": "ch_1"}, "headers": {"Idempotency-Key": "k-1"}}
    done = client.post("/v1/acct_1/refunds", **form)
    assert (done.status_code, done.json(), done.headers["X-Shape"]) == (200, {"id": "R-1", "object": "refund"}, "own")
    assert faulty_remote.effects[0].body == {"charge": "ch_1", "account": "acct_1"}
    faulty_remote.next(refuse(), COMMIT_AND_DROP).next_query(ABSENT)
    assert client.post("/v1/acct_1/refunds", **form).status_code == 503
    with pytest.raises(httpx2.RemoteProtocolError):
        client.post("/v1/acct_2/refunds", **form)
    answers = [client.get(f"/v1/{account}/refunds").json() for account in ("acct_2", "acct_2", "acct.2")]
    assert answers == [{"data": []}, {"data": ["R-2"]}, {"data": []}]
    assert client.post("/v1/broken").status_code == 500


def test_callers_at_once_have_one_effect(faulty_remote: FaultyRemote, client: httpx2.Client) -> None:
    """Sixteen writes with one key at one instant: one effect, and all get its receipt."""
    start, receipts = threading.Barrier(16), []

    def one() -> None:
        start.wait(10)
        receipts.append(post(client).json()["receipt"])

    callers = [threading.Thread(target=one) for _ in range(16)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(10)
    assert (receipts, faulty_remote.count(), faulty_remote.writes()) == (["R-1"] * 16, 1, 16)


def test_a_test_can_wait_for_a_request(faulty_remote: FaultyRemote, client: httpx2.Client) -> None:
    """Until it has arrived, and until nothing is under way any more."""
    assert not faulty_remote.wait_for(1, timeout_s=0.05)
    faulty_remote.next(delay_before_commit(0.3))

    def call() -> None:
        with pytest.raises(httpx2.ReadTimeout):
            post(client)

    caller = threading.Thread(target=call)
    begun = time.monotonic()
    caller.start()
    assert faulty_remote.wait_for(1)
    assert (faulty_remote.count(), faulty_remote.wait_until_idle(0.01)) == (0, False)
    assert faulty_remote.wait_until_idle()
    assert faulty_remote.count() == 1
    assert time.monotonic() - begun >= 0.3
    caller.join(10)


def test_what_cannot_be_right_is_said() -> None:
    """An address before it listens, a path without a slash, a method that there is not."""
    remote = FaultyRemote()
    with pytest.raises(ContractError, match="no address before it is started"):
        _ = remote.url
    for method, path in (("POST", "refunds"), ("FETCH", "/refunds")):
        with pytest.raises(ContractError, match="mount: takes one of GET, POST"):
            remote.mount(method, path, lambda request: None)
