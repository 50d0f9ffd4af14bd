"""A worker that is slower than its lease, frozen by SIGSTOP and woken after somebody else took over (SPEC 18)."""

import asyncio
import threading
from typing import Any

import pytest

import processes
from acts import Door, mainly_async
from acts import Remote as Counted
from remote import Remote, actions, busy, late, payment, row, slow, timeline, triggers
from settled import Ended, Ledger, Outcome, Refused, State, action, aperform, current_action, perform
from settled.state import ledger as operations
from settled.state.model import Claim

CALL = {"order_id": "O-1", "amount": 118}
REMOTES: dict[str, dict[str, Any]] = {
    "dedupes": {"remote": "dedupes"},
    "queryable": {"remote": "queryable", "unique": ["order_id"], "resend_when_absent": True},
}


def frozen(database_url: str, remote: Remote, kind: str, mode: str, at: tuple[str, str] | None) -> processes.Child:
    """A worker that has stopped itself at an instant of the protocol, or else in its body."""
    child = processes.start(
        "act",
        database_url=database_url,
        remote_url=remote.url,
        thread_id="t",
        arguments=CALL,
        mode=mode,
        contract=REMOTES[kind],
        stop_at=at,
        stop_in_body=at is None,
    )
    child.wait_until_frozen()
    return child


@pytest.mark.parametrize(
    ("mode", "where"),
    [
        ("sync", "in its body"),
        ("async", "before its body"),
        pytest.param("sync", "before its body", marks=pytest.mark.deep),
        pytest.param("async", "in its body", marks=pytest.mark.deep),
    ],
)
def test_frozen_before_it_sent_it_sends_nothing_after_the_takeover(database_url: str, mode: str, where: str) -> None:
    """One effect, on a remote side that does not dedupe: the woken worker's HTTP client refuses to send."""
    kind = "queryable"
    with Ledger.connect(database_url) as ledger, Remote(database_url, dedupes=False) as remote:
        child = frozen(database_url, remote, kind, mode, None if where == "in its body" else ("Invoke", "before"))
        assert remote.posts() == 0
        mine = perform(payment(remote.url, **REMOTES[kind]), CALL, ledger=ledger, thread_id="t")
        assert (mine.code, mine.receipt, mine.attempts) == ("succeeded", "R-1", 2)
        child.thaw()
        theirs = child.result()
        assert (theirs["code"], theirs["receipt"]) == ("succeeded", "R-1")
        assert (remote.count(), remote.posts()) == (1, 1)
        action = row(ledger, mine.action_id)
        assert (action.state, action.fencing_token) == (State.SUCCEEDED, 2)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("sync", "dedupes"),
        ("async", "queryable"),
        pytest.param("sync", "queryable", marks=pytest.mark.deep),
        pytest.param("async", "dedupes", marks=pytest.mark.deep),
    ],
)
def test_frozen_after_it_sent_its_late_write_is_refused_and_kept(database_url: str, mode: str, kind: str) -> None:
    """One effect, found by the one who took over; what the woken worker wanted to write is kept as evidence."""
    with Ledger.connect(database_url) as ledger, Remote(database_url, dedupes=kind == "dedupes") as remote:
        child = frozen(database_url, remote, kind, mode, ("Invoke", "after"))
        assert (remote.count(), [a.state for a in actions(ledger)]) == (1, [State.RUNNING])
        mine = perform(payment(remote.url, **REMOTES[kind]), CALL, ledger=ledger, thread_id="t")
        assert (mine.code, mine.receipt, mine.attempts) == ("succeeded", "R-1", 1)
        before = row(ledger, mine.action_id)
        child.thaw()
        theirs = child.result()
        assert (theirs["code"], theirs["receipt"]) == ("succeeded", "R-1")
        assert (remote.count(), remote.posts()) == (1, 1)
        after = row(ledger, mine.action_id)
        assert (after.state, after.evidence, after.settled_at) == (State.SUCCEEDED, "query", before.settled_at)


@pytest.mark.parametrize("mode", [pytest.param("sync", marks=pytest.mark.deep), "async"])
def test_a_stale_reply_against_a_newer_claim_is_kept_as_evidence(database_url: str, mode: str) -> None:
    """The replica lags, so the successor sends again under the same key; the sleeper's write moves nothing."""
    contract = {"remote": "dedupes"}
    with Ledger.connect(database_url) as ledger, Remote(database_url, query_lag_s=60) as remote:
        child = frozen(database_url, remote, "dedupes", mode, ("Invoke", "after"))
        mine = perform(payment(remote.url, **contract), CALL, ledger=ledger, thread_id="t")
        assert (mine.code, mine.receipt, mine.attempts) == ("succeeded", "R-1", 2)
        before = row(ledger, mine.action_id)
        child.thaw()
        theirs = child.result()
        assert (theirs["code"], theirs["receipt"]) == ("succeeded", "R-1")
        assert (remote.count(), remote.posts()) == (1, 2)
        after = row(ledger, mine.action_id)
        assert (after.state, after.fencing_token, after.settled_at) == (State.SUCCEEDED, 2, before.settled_at)
        kept = timeline(ledger, mine.action_id)[-1]
        assert (kept.trigger, kept.from_state, kept.to_state) == ("late", "succeeded", "succeeded")
        assert kept.detail == {"wanted": "succeeded", "receipt": "R-1", "fencing_token": 1}
        assert triggers(ledger, mine.action_id).count("succeed") == 1


def test_two_workers_never_both_own_an_action(database_url: str) -> None:
    """While the sleeper is away the successor is in flight; the woken one joins it instead of sending."""
    with Ledger.connect(database_url) as ledger, Remote(database_url, dedupes=False) as remote:
        child = frozen(database_url, remote, "queryable", "sync", ("Invoke", "before"))
        remote.next(slow(0.5))
        mine: list[Outcome] = []
        tool = payment(remote.url, **REMOTES["queryable"])
        successor = threading.Thread(target=lambda: mine.append(perform(tool, CALL, ledger=ledger, thread_id="t")))
        successor.start()
        assert remote.arrived.wait(10)
        child.thaw()
        theirs = child.result()
        successor.join(20)
        assert (mine[0].code, mine[0].receipt) == ("succeeded", "R-1")
        assert (remote.count(), remote.posts()) == (1, 1)
        assert theirs["code"] in ("succeeded", "unknown", "in_progress")


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.deep)])
async def test_a_slow_worker_that_is_alive_keeps_its_lease(ledger: Ledger, database_url: str, mode: str) -> None:
    """Its lease is prolonged while its body runs, so nobody takes over: one attempt, one effect."""
    contract = {"timeout": 4.0, "lease": 4.2, "settle_window": 4.0}
    with Remote(database_url) as remote:
        remote.next(late(2.6))  # a lease is renewed when a third of it is over, at 1.4 s
        tool = payment(remote.url, asynchronous=mode == "async", **contract)
        call = asyncio.create_task(called(mode, tool, ledger))
        while await asyncio.to_thread(leased_s, ledger) < 4.2 + 0.4:
            assert not call.done(), "it ended without a renewal"
            await asyncio.sleep(0.05)
        other = await asyncio.to_thread(perform, tool, CALL, ledger=ledger, thread_id="t", wait_s=0)
        assert other.code == "in_progress"
        mine = await call
        assert (mine.code, mine.attempts, remote.count(), remote.posts()) == ("succeeded", 1, 1, 1)
        assert triggers(ledger, mine.action_id) == ["plan", "approve", "claim", "succeed"]


@pytest.mark.parametrize("mode", [pytest.param("sync", marks=pytest.mark.deep), "async"])
async def test_a_worker_that_waits_for_its_next_attempt_keeps_its_lease(
    ledger: Ledger, database_url: str, mode: str
) -> None:
    """Told to come back after more than a lease, it is still the owner when the wait is over."""
    with Remote(database_url) as remote:
        remote.next(busy(503, retry_after=3))
        tool = payment(remote.url, asynchronous=mode == "async")
        call = asyncio.create_task(called(mode, tool, ledger))
        await asyncio.sleep(1.4)
        other = await asyncio.to_thread(perform, tool, CALL, ledger=ledger, thread_id="t", wait_s=0)
        assert other.code == "in_progress"
        mine = await call
        assert (mine.code, mine.attempts, remote.count(), remote.posts()) == ("succeeded", 2, 1, 2)
        assert triggers(ledger, mine.action_id) == ["plan", "approve", "claim", "refuse", "succeed"]


def leased_s(ledger: Ledger) -> float:
    """How long the one action's claim reaches, from its beginning; 0 as long as there is none."""
    for one in actions(ledger):
        if one.lease_until is not None and one.started_at is not None:
            return (one.lease_until - one.started_at).total_seconds()
    return 0.0


async def called(mode: str, tool: object, ledger: Ledger) -> Outcome:
    if mode == "async":
        return await aperform(tool, CALL, ledger=ledger, thread_id="t")
    return await asyncio.to_thread(perform, tool, CALL, ledger=ledger, thread_id="t")


@mainly_async
async def test_taken_over_before_it_sent_it_ends_no_attempts_that_are_left(door: Door, ledger: Ledger) -> None:
    """It wakes, may not send any more, and finds its action unknown: nothing was done, and the action goes on to its
    end, instead of failing for good although attempts were left.
    """
    far, takeovers = Counted(), []

    @action(
        risk="non_idempotent_write", remote="dedupes", identity=("order",), query=far.find, timeout=0.5,
        settle_window=0.5, name="pay",
    )  # fmt: skip
    def pay(order: str) -> object:
        if not takeovers:
            context = current_action()
            claim = Claim(context.tenant, context.action_id, 1, "somebody else")
            takeovers.append(ledger.run(operations.lose(claim, reason="x", settle_window_s=0.5, orphaned=True)))
            raise Ended(Refused("the lease of this action ended before the request was sent"))
        return far.do(order=order)

    outcome = await door(pay, ["A-1"], ledger=ledger, wait_s=10)
    assert takeovers[0] is not None
    assert (outcome.state, outcome.receipt, len(far.effects)) == (State.SUCCEEDED, "RF-1", 1)
    assert [event.trigger for event in ledger.timeline(str(outcome.action_id))].count("fail") == 0
