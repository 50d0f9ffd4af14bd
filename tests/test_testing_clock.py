"""Time that a test moves by hand: leases, backoff, reconciliation and approvals end without waiting."""

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from settled import (
    Absent,
    AlreadyDecided,
    Approve,
    Desk,
    Found,
    Inquiry,
    Ledger,
    State,
    action,
    always,
    aperform,
    http,
    perform,
)
from settled.state.errors import ContractError
from settled.state.ledger import plan as begin
from settled.testing import COMMIT_AND_DROP, DROP_BEFORE_COMMIT, FastClock, FaultyRemote, plugin, refuse
from settled.tools.perform import Options, prepare

settled_ledger, fast_clock, faulty_remote = plugin.settled_ledger, plugin.fast_clock, plugin.faulty_remote
settled_databases, settled_database_url = plugin.settled_databases, plugin.settled_database_url


@pytest.fixture(scope="session")
def settled_server_url(server_url: str) -> str:
    return server_url


def refund_at(url: str, **contract: Any) -> Any:
    """A tool with the spans of somebody who declares none."""

    def find(asked: Inquiry) -> Found | Absent:
        with http.client(base_url=url, verify=False) as client:
            found = client.get("/", params={"key": asked.idempotency_key}).json()
        return Found(found[0]["receipt"]) if found else Absent()

    @action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find, **contract)
    def refund(order_id: str) -> dict[str, Any]:
        """Refund an order."""
        with http.client(base_url=url, verify=False) as client:
            return dict(client.post("/", json={"order_id": order_id}).json())

    return refund


def test_backoff_takes_no_time(settled_ledger: Ledger, fast_clock: FastClock, faulty_remote: FaultyRemote) -> None:
    """The worked example of the waits: 1, 2 and the 5 seconds that the remote side asks for, in an instant."""
    faulty_remote.next(refuse(), refuse(), refuse(429, retry_after=5))
    begun = time.monotonic()
    refund = refund_at(faulty_remote.url)
    done = perform(refund, ["A-1"], ledger=settled_ledger, thread_id="t", world=fast_clock.world, random=lambda: 0.0)
    assert (done.receipt, done.attempts, fast_clock.waits) == ("R-1", 4, [1.0, 2.0, 5.0])
    assert fast_clock.elapsed_s == 8.0
    assert time.monotonic() - begun < 4
    at = [event.at for event in settled_ledger.timeline(str(done.action_id))]
    assert (at[-1] - at[0]).total_seconds() == 8.0


async def test_backoff_takes_no_time_in_a_loop(
    settled_ledger: Ledger, fast_clock: FastClock, faulty_remote: FaultyRemote
) -> None:
    """As `aperform` waits: the loop goes on meanwhile."""
    faulty_remote.next(refuse())
    async with settled_ledger as ledger:
        refund = refund_at(faulty_remote.url)
        done = await aperform(refund, ["A-1"], ledger=ledger, thread_id="t", world=fast_clock.world)
    assert (done.code, faulty_remote.writes(), len(fast_clock.waits)) == ("succeeded", 2, 1)


def test_absence_is_proved_without_waiting(
    settled_ledger: Ledger, fast_clock: FastClock, faulty_remote: FaultyRemote
) -> None:
    """Not before the request can no longer be under way: 15 seconds, which pass at once."""
    faulty_remote.next(DROP_BEFORE_COMMIT)
    refund = refund_at(faulty_remote.url)
    done = perform(refund, ["A-1"], ledger=settled_ledger, thread_id="t", world=fast_clock.world)
    assert (done.code, done.attempts, faulty_remote.count()) == ("succeeded", 2, 1)
    assert fast_clock.elapsed_s >= 15.0


def test_a_lease_ends_when_the_clock_says_so(
    settled_ledger: Ledger, fast_clock: FastClock, faulty_remote: FaultyRemote
) -> None:
    """The action of a process that is gone is nobody else's before that, and is taken over after it."""
    refund = refund_at(faulty_remote.url)
    call = prepare(refund.contract, ["A-1"], Options("t"), settled_ledger)
    assert settled_ledger.run(begin(call.plan)) is not None, "a process that died right after its plan"
    again = {"ledger": settled_ledger, "thread_id": "t", "wait_s": 0, "world": fast_clock.world}
    assert perform(refund, ["A-1"], **again).code == "in_progress"
    fast_clock.advance(14.9)
    assert perform(refund, ["A-1"], **again).code == "in_progress"
    fast_clock.advance(0.2)
    assert (perform(refund, ["A-1"], **again).code, faulty_remote.count()) == ("succeeded", 1)


def test_an_approval_expires_when_the_clock_says_so(
    settled_ledger: Ledger, fast_clock: FastClock, faulty_remote: FaultyRemote
) -> None:
    """A day later nothing has run, and nobody can approve it any more."""
    refund = refund_at(faulty_remote.url, approval=always)
    waiting = perform(refund, ["A-1"], ledger=settled_ledger, thread_id="t")
    desk = Desk(settled_ledger)
    asked = settled_ledger.action(str(waiting.action_id))
    assert (waiting.code, asked.state) == ("waiting_for_approval", State.PLANNED)
    fast_clock.advance(24 * 3600 + 1)
    with pytest.raises(AlreadyDecided):
        desk.decide(asked.id, Approve(), by="maria", fingerprint=asked.fingerprint)
    assert (settled_ledger.action(asked.id).state, faulty_remote.requests) == (State.CANCELLED, [])


def test_a_lost_reply_is_found_in_the_same_instant(
    settled_ledger: Ledger, fast_clock: FastClock, faulty_remote: FaultyRemote
) -> None:
    """What can be found needs no wait at all."""
    faulty_remote.next(COMMIT_AND_DROP)
    refund = refund_at(faulty_remote.url)
    done = perform(refund, ["A-1"], ledger=settled_ledger, thread_id="t", world=fast_clock.world)
    assert (done.receipt, faulty_remote.count(), faulty_remote.writes(), fast_clock.waits) == ("R-1", 1, 1, [])


def test_the_clock_stands_and_never_goes_back() -> None:
    """Until it is moved; and a start without a time zone is no instant."""
    clock = FastClock(datetime(2026, 1, 5, tzinfo=UTC))
    assert clock() == clock() == datetime(2026, 1, 5, tzinfo=UTC)
    clock.advance(0.5)
    assert (clock() - clock.start).total_seconds() == 0.5
    for seconds in (-1.0, float("nan")):
        with pytest.raises(ContractError, match="time does not go back"):
            clock.advance(seconds)
    with pytest.raises(ContractError, match="must have a time zone"):
        FastClock(datetime(2026, 1, 5))  # noqa: DTZ001 - on purpose
