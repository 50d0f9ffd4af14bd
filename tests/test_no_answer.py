"""Sent, and no answer came back: unknown, asked, settled by what the remote side says; never sent a second time."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

import remote as far
from acts import Door, both_doors, events_of, mainly_async
from settled import Code, Inquiry, Ledger, State, action, http

LOST = {
    "dropped": far.DROP,
    "reset": far.RESET,
    "truncated": far.TRUNCATE,
    "500 after commit": far.ERROR_AFTER_COMMIT,
    "502 after commit": far.Fault(status=502),
    "504 after commit": far.Fault(status=504),
    "redirected after commit": far.Fault(status=302, headers={"Location": "/elsewhere"}),
    "timeout": far.late(1.6),
}
ARGUMENTS = {"order_id": "A-1", "amount": 25}


@pytest.fixture
def remote(database_url: str) -> Iterator[far.Remote]:
    with far.Remote(database_url, dedupes=False) as running:
        yield running


@both_doors
@pytest.mark.parametrize("lost", LOST.values(), ids=LOST)
async def test_a_lost_reply_is_unknown_and_then_found(
    door: Door, lost: far.Fault, remote: far.Remote, ledger: Ledger
) -> None:
    """One effect on a remote side that does not dedupe; the receipt comes from the query."""
    remote.next(lost)
    outcome = await door(far.payment(remote.url, remote="queryable"), ARGUMENTS, ledger=ledger)
    assert (outcome.code, outcome.state, outcome.receipt) == (Code.SUCCEEDED, State.SUCCEEDED, "R-1")
    assert (remote.count(), remote.posts(), remote.count(outcome.idempotency_key)) == (1, 1, 1)
    assert remote.queries() >= 1
    states = [(e.trigger, e.to_state) for e in events_of(ledger, outcome)]
    assert states[-2:] == [("lose", "unknown"), ("find", "succeeded")]
    assert far.row(ledger, outcome.action_id).evidence == "query"
    again = await door(far.payment(remote.url, remote="queryable"), ARGUMENTS, ledger=ledger)
    assert (again.code, again.receipt, remote.posts()) == (Code.DUPLICATE, "R-1", 1)


@both_doors
async def test_a_lost_reply_of_an_async_body(door: Door, remote: far.Remote, ledger: Ledger) -> None:
    """An async body through both doors: the same."""
    remote.next(far.RESET)
    tool = far.payment(remote.url, remote="queryable", asynchronous=True)
    outcome = await door(tool, ARGUMENTS, ledger=ledger)
    assert (outcome.code, outcome.receipt, remote.posts()) == (Code.SUCCEEDED, "R-1", 1)


@both_doors
async def test_busy_is_tried_again_under_the_same_key(door: Door, remote: far.Remote, ledger: Ledger) -> None:
    """503 and 429 were not processed: three attempts, one key, one effect, no query."""
    remote.next(far.busy(503), far.busy(429, retry_after=0))
    outcome = await door(far.payment(remote.url), ARGUMENTS, ledger=ledger)
    assert (outcome.code, outcome.receipt, outcome.attempts) == (Code.SUCCEEDED, "R-1", 3)
    assert {r.key for r in remote.requests} == {outcome.idempotency_key}
    assert (remote.count(), remote.posts(), remote.queries()) == (1, 3, 0)


@both_doors
async def test_a_refused_connection_is_tried_again_under_the_same_key(
    door: Door, remote: far.Remote, ledger: Ledger
) -> None:
    """Nobody listened, so nothing was sent: the next attempt carries the same key."""
    urls = iter([closed_port(), closed_port(), remote.url])

    @action(risk="non_idempotent_write", remote="opaque", identity="all", **far.SHORT)
    def pay(order_id: str, amount: int) -> object:
        with http.client(verify=False) as client:
            return client.post(next(urls), json={"order_id": order_id, "amount": amount}).json()

    outcome = await door(pay, ARGUMENTS, ledger=ledger)
    assert (outcome.code, outcome.receipt, outcome.attempts) == (Code.SUCCEEDED, "R-1", 3)
    assert remote.count(outcome.idempotency_key) == 1
    refused = [e for e in events_of(ledger, outcome) if e.trigger == "refuse"]
    assert [e.detail["reason"] for e in refused if e.detail] == ["no connection (ConnectError)"] * 2


@both_doors
async def test_a_refused_connection_after_a_sent_request_is_unknown(
    door: Door, remote: far.Remote, ledger: Ledger
) -> None:
    """The second request of one attempt found nobody: what the first one did must be asked, not sent again."""
    nobody = closed_port()

    @action(
        risk="non_idempotent_write", remote="queryable", identity="all", query=far.asking(remote.url), **far.SHORT
    )  # fmt: skip
    def pay(order_id: str, amount: int) -> object:
        with http.client(verify=False) as client:
            client.post(remote.url, json={"order_id": order_id, "amount": amount})
            return client.post(nobody, json={}).json()

    outcome = await door(pay, ARGUMENTS, ledger=ledger)
    assert (outcome.code, outcome.receipt) == (Code.SUCCEEDED, "R-1")
    assert (remote.count(), remote.posts()) == (1, 1)
    assert [e.trigger for e in events_of(ledger, outcome)][-2:] == ["lose", "find"]


@both_doors
async def test_an_error_that_nobody_knows_is_unknown(door: Door, ledger: Ledger) -> None:
    """A bug in the body after the effect is not a failure: a person decides, and the model hears no exception."""

    @action(risk="non_idempotent_write", remote="opaque", identity="all")
    def pay(order: int) -> object:
        raise KeyError("secret-detail")

    outcome = await door(pay, [1], ledger=ledger)
    assert (outcome.code, outcome.state) == (Code.MANUAL_REVIEW, State.UNKNOWN)
    assert "secret-detail" not in outcome.message
    for word in ("fail", "error", "Error", "try again", "exception"):
        assert word not in outcome.message


@both_doors
async def test_a_reply_that_lands_after_two_queries_said_absent(door: Door, remote: far.Remote, ledger: Ledger) -> None:
    """The settle window, not the count of queries, decides: one effect on a remote side that does not dedupe."""
    remote.next(far.lands_later(1.2))
    tool = far.payment(
        remote.url, remote="queryable", unique=("order_id",), resend_when_absent=True, settle_window=1.8
    )  # fmt: skip
    outcome = await door(tool, ARGUMENTS, ledger=ledger)
    assert (outcome.code, outcome.receipt) == (Code.SUCCEEDED, "R-1")
    assert (remote.count(), remote.posts()) == (1, 1)
    answers = [e.detail["answer"] for e in events_of(ledger, outcome) if e.trigger == "ask" and e.detail]
    assert answers == ["absent"] * len(answers)
    assert len(answers) >= 2


@mainly_async
async def test_a_lagging_replica_is_asked_again(door: Door, remote: far.Remote, ledger: Ledger) -> None:
    """A replica that lags says absent first; the effect that is there is found within the window."""
    remote.query_lag_s = 0.7
    remote.next(far.DROP)
    tool = far.payment(remote.url, remote="queryable", settle_window=1.5)
    outcome = await door(tool, ARGUMENTS, ledger=ledger)
    assert (outcome.code, outcome.receipt, remote.posts()) == (Code.SUCCEEDED, "R-1", 1)
    assert remote.queries() >= 2


async def test_callers_who_arrive_while_it_is_unknown_send_nothing(remote: far.Remote, ledger: Ledger) -> None:
    """While one caller reconciles, seven others wait and get its receipt."""
    from acts import through_sync

    remote.next(far.DROP)
    remote.query_lag_s = 0.5
    tool = far.payment(remote.url, remote="queryable", settle_window=1.5)
    outcomes = await asyncio.gather(*(through_sync(tool, ARGUMENTS, ledger=ledger) for _ in range(8)))
    assert {o.receipt for o in outcomes} == {"R-1"}
    assert (remote.count(), remote.posts()) == (1, 1)
    assert {o.code for o in outcomes} <= {Code.SUCCEEDED, Code.DUPLICATE}


def closed_port() -> str:
    """Return a URL on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/"


SAID_NO = {
    400: (Code.INVALID, {"message": "amount is too small"}),
    401: (Code.FORBIDDEN, {"message": "who are you"}),
    403: (Code.FORBIDDEN, {"message": "not yours"}),
    404: (Code.REJECTED, {"message": "no such order"}),
    409: (Code.REJECTED, {"message": "already reimbursed", "receipt": "R-55821"}),
    410: (Code.REJECTED, {"message": "gone"}),
    418: (Code.REJECTED, {"message": "a teapot"}),
    422: (Code.INVALID, {"message": "not payable"}),
}


@both_doors
@pytest.mark.parametrize("status", SAID_NO)
async def test_a_definite_no_is_final(door: Door, status: int, remote: far.Remote, ledger: Ledger) -> None:
    """Processed, and refused: failed, with the remote side's own words; neither asked nor sent again."""
    code, body = SAID_NO[status]
    remote.next(far.Fault(commits=False, status=status, body=body))
    outcome = await door(far.payment(remote.url, remote="queryable"), ARGUMENTS, ledger=ledger)
    assert (outcome.code, outcome.state, outcome.attempts) == (code, State.FAILED, 1)
    assert body["message"] in outcome.message
    assert outcome.receipt == body.get("receipt")
    assert outcome.artifact["may_retry"] is (code == Code.INVALID)
    assert (remote.count(), remote.posts(), remote.queries()) == (0, 1, 0)


@both_doors
async def test_in_flight_at_the_remote_side_is_waited_for(door: Door, remote: far.Remote, ledger: Ledger) -> None:
    """409 about the key itself: the first request still runs there, so it is unknown and asked."""
    body = {"code": "idempotency_key_in_use", "message": "a request with this key is in progress"}
    remote.next(far.Fault(commits=True, status=409, body=body))
    outcome = await door(far.payment(remote.url, remote="queryable"), ARGUMENTS, ledger=ledger)
    assert (outcome.code, outcome.receipt, remote.posts()) == (Code.SUCCEEDED, "R-1", 1)


@both_doors
async def test_a_key_that_the_remote_side_knows_otherwise_is_a_conflict(
    door: Door, database_url: str, ledger: Ledger
) -> None:
    """422 key reuse with other arguments: surfaced, and never sent again."""
    with far.Remote(database_url, dedupes=True) as remote:
        tool = far.payment(remote.url)
        first = await door(tool, ARGUMENTS, ledger=ledger)
        assert remote.commit("other", {}) is not None
        remote.next(far.Fault(commits=False, status=422, body={"code": "idempotency_key_reused", "message": "reused"}))
        outcome = await door(tool, {"order_id": "A-2", "amount": 1}, ledger=ledger)
        again = await door(tool, {"order_id": "A-2", "amount": 1}, ledger=ledger)
        assert (first.code, outcome.code, again.code) == (Code.SUCCEEDED, Code.CONFLICT, Code.CONFLICT)
        assert (outcome.state, again.replayed, remote.posts()) == (State.FAILED, True, 2)


@both_doors
async def test_an_async_query_answers_through_both_doors(door: Door, remote: far.Remote, ledger: Ledger) -> None:
    """The author's query may be async, whichever door is used."""
    ask = far.asking(remote.url)

    async def query(inquiry: Inquiry) -> object:
        await asyncio.sleep(0)
        return ask(inquiry)

    remote.next(far.DROP)
    outcome = await door(far.payment(remote.url, remote="queryable", query=query), ARGUMENTS, ledger=ledger)
    assert (outcome.code, outcome.receipt, remote.posts()) == (Code.SUCCEEDED, "R-1", 1)
