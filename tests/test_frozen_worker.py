"""A worker that is slower than its lease, frozen by SIGSTOP and woken after somebody else took over (SPEC 18)."""

import threading
import time
from typing import Any

import processes
import pytest

from remote import Remote, actions, late, payment, row, slow, timeline, triggers
from settled import Ledger, Outcome, State, aperform, perform

CALL = {"order_id": "O-1", "amount": 118}
REMOTES: dict[str, dict[str, Any]] = {
    "dedupes": {"remote": "dedupes"},
    "queryable": {"remote": "queryable", "unique": ["order_id"], "resend_when_absent": True},
}


def frozen(database_url: str, remote: Remote, kind: str, mode: str, effect: str, when: str) -> processes.Child:
    child = processes.start(
        "act",
        database_url=database_url,
        remote_url=remote.url,
        thread_id="t",
        arguments=CALL,
        mode=mode,
        contract=REMOTES[kind],
        stop_at=(effect, when),
    )
    child.wait_until_frozen()
    return child


@pytest.mark.parametrize("kind", REMOTES)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_frozen_before_it_sent_it_sends_nothing_after_the_takeover(database_url: str, mode: str, kind: str) -> None:
    """One effect: the woken worker's lease is over, so its HTTP client refuses to send."""
    with Ledger.connect(database_url) as ledger, Remote(database_url, dedupes=kind == "dedupes") as remote:
        child = frozen(database_url, remote, kind, mode, "Invoke", "before")
        assert remote.posts() == 0
        mine = perform(payment(remote.url, **REMOTES[kind]), CALL, ledger=ledger, thread_id="t")
        assert (mine.code, mine.receipt, mine.attempts) == ("succeeded", "R-1", 2)
        child.thaw()
        theirs = child.result()
        assert (theirs["code"], theirs["receipt"]) == ("succeeded", "R-1")
        assert (remote.count(), remote.posts()) == (1, 1)
        action = row(ledger, mine.action_id)
        assert (action.state, action.fencing_token) == (State.SUCCEEDED, 2)


@pytest.mark.parametrize("kind", REMOTES)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_frozen_after_it_sent_its_late_write_is_refused_and_kept(database_url: str, mode: str, kind: str) -> None:
    """One effect, found by the one who took over; what the woken worker wanted to write is kept as evidence."""
    with Ledger.connect(database_url) as ledger, Remote(database_url, dedupes=kind == "dedupes") as remote:
        child = frozen(database_url, remote, kind, mode, "Invoke", "after")
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


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_stale_reply_against_a_newer_claim_is_kept_as_evidence(database_url: str, mode: str) -> None:
    """The replica lags, so the successor sends again under the same key; the sleeper's write moves nothing."""
    contract = {"remote": "dedupes"}
    with Ledger.connect(database_url) as ledger, Remote(database_url, query_lag_s=60) as remote:
        child = frozen(database_url, remote, "dedupes", mode, "Invoke", "after")
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
        child = frozen(database_url, remote, "queryable", "sync", "Invoke", "before")
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


async def test_a_slow_worker_that_is_alive_keeps_its_lease(ledger: Ledger, database_url: str) -> None:
    """The body takes three leases: it is renewed meanwhile, nobody takes over, one effect and one attempt."""
    slowly = {"timeout": 0.9, "lease": 1.0}
    with Remote(database_url) as remote:
        # The lease must be longer than one attempt; what outlives it is a worker that others only see as slow.
        slowly = {"timeout": 4.0, "lease": 4.1, "deadline": 8.0, "settle_window": 4.0}
        remote.next(late(0.5))
        tool = payment(remote.url, **slowly)
        assert perform(tool, CALL, ledger=ledger, thread_id="t").receipt == "R-1"
    assert time and aperform
