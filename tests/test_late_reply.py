"""The reply comes after the attempt's timeout (SPEC 6.5): it settles the action, or stays as evidence."""

import asyncio
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

import pytest

from processes import SOURCE
from remote import Fault, Remote, late, payment, row, timeline, triggers
from settled import Ledger, Outcome, State, aperform, perform

CALL = {"order_id": "O-1", "amount": 118}
SHORT: dict[str, Any] = {"timeout": 0.3, "lease": 0.8, "settle_window": 2.0}
OPAQUE: dict[str, Any] = {**SHORT, "remote": "opaque", "query": None}


async def called(mode: str, tool: object, ledger: Ledger) -> Outcome:
    if mode == "async":
        return await aperform(tool, CALL, ledger=ledger, thread_id="t")
    return await asyncio.to_thread(perform, tool, CALL, ledger=ledger, thread_id="t")


async def until(true: Callable[[], bool]) -> None:
    """Wait until a reply has been recorded; what it did is for the test to say."""
    end = time.monotonic() + 10
    while not await asyncio.to_thread(true):
        if time.monotonic() > end:
            break
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_it_settles_an_action_that_is_in_the_manual_queue(ledger: Ledger, database_url: str, mode: str) -> None:
    """Nobody could ask, so a person was called; the reply itself answers, and the next call has its receipt."""
    with Remote(database_url, dedupes=False) as remote:
        remote.next(late(1.2))
        tool = payment(remote.url, asynchronous=mode == "async", **OPAQUE)
        first = await called(mode, tool, ledger)
        assert (first.code, first.state, first.receipt) == ("manual_review", State.UNKNOWN, None)
        await until(lambda: row(ledger, first.action_id).settled_at is not None)
        action = row(ledger, first.action_id)
        assert (action.state, action.receipt, action.evidence) == (State.SUCCEEDED, "R-1", "reply")
        assert triggers(ledger, first.action_id) == ["plan", "approve", "claim", "lose", "escalate", "succeed"]
        again = await called(mode, tool, ledger)
        assert (again.code, again.receipt, remote.count(), remote.posts()) == ("duplicate", "R-1", 1, 1)


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_it_settles_an_action_that_is_being_reconciled(ledger: Ledger, database_url: str, mode: str) -> None:
    """The replica does not show it yet; the reply comes first, and the caller who asks hears of it."""
    with Remote(database_url, dedupes=False, query_lag_s=60) as remote:
        remote.next(late(0.7))
        tool = payment(remote.url, asynchronous=mode == "async", **SHORT, remote="queryable")
        end = await called(mode, tool, ledger)
        assert (end.state, end.receipt, end.attempts) == (State.SUCCEEDED, "R-1", 1)
        assert row(ledger, end.action_id).evidence == "reply"
        assert (remote.count(), remote.posts()) == (1, 1)
        assert [t for t in triggers(ledger, end.action_id) if t != "ask"] == [
            *("plan", "approve", "claim", "lose", "succeed")
        ]


@pytest.mark.parametrize("mode", [pytest.param("sync", marks=pytest.mark.deep), "async"])
async def test_a_late_no_settles_it_as_rejected(ledger: Ledger, database_url: str, mode: str) -> None:
    """The reply says that the business refuses: nothing was done, and that is what is recorded."""
    no = Fault(commits=False, status=409, after_s=1.2, body={"message": "order O-1 was paid already"})
    with Remote(database_url, dedupes=False) as remote:
        remote.next(no)
        tool = payment(remote.url, asynchronous=mode == "async", **OPAQUE)
        first = await called(mode, tool, ledger)
        assert first.code == "manual_review"
        await until(lambda: row(ledger, first.action_id).settled_at is not None)
        action = row(ledger, first.action_id)
        assert (action.state, action.code, action.reason) == (State.FAILED, "rejected", "order O-1 was paid already")
        assert remote.count() == 0


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.deep)])
async def test_after_a_resend_the_first_reply_is_only_evidence(ledger: Ledger, database_url: str, mode: str) -> None:
    """It was released and done under a newer token: the old reply moves nothing and is kept; one effect by the key."""
    with Remote(database_url, query_lag_s=60) as remote:
        remote.next(late(2.0))
        tool = payment(remote.url, asynchronous=mode == "async", timeout=0.3, lease=0.8, settle_window=0.9)
        end = await called(mode, tool, ledger)
        assert (end.code, end.receipt, end.attempts, remote.count(), remote.posts()) == ("succeeded", "R-1", 2, 1, 2)
        settled_at = row(ledger, end.action_id).settled_at
        if mode == "sync":
            await until(lambda: timeline(ledger, end.action_id)[-1].trigger == "late")
        else:
            await asyncio.sleep(1.2)
        after = row(ledger, end.action_id)
        assert (after.state, after.settled_at, after.fencing_token) == (State.SUCCEEDED, settled_at, 2)
        if mode == "sync":  # an async body is let go of at the end of its settle window
            kept = timeline(ledger, end.action_id)[-1]
            assert kept.trigger == "late"
            assert kept.detail == {"wanted": "succeeded", "receipt": "R-1", "fencing_token": 1}


HANGS = """
    import sys, threading, time
    from settled import Ledger, action, perform

    @action(risk="non_idempotent_write", identity="all", timeout=0.2, lease=0.5, settle_window=0.3)
    def hang(n: int) -> str:
        '''Never answer.'''
        threading.Event().wait()

    with Ledger.connect(sys.argv[1]) as ledger:
        print(perform(hang, {"n": 1}, ledger=ledger, thread_id="t").code, time.time(), flush=True)
"""


def test_a_body_that_hangs_does_not_keep_the_process_from_ending(database_url: str, ledger: Ledger) -> None:
    """The thread that hangs is a daemon: the process says what it knows and ends."""
    command = [sys.executable, "-c", textwrap.dedent(HANGS), database_url]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=30, env={"PYTHONPATH": str(SOURCE)}, check=False
    )
    ended_at = time.time()
    assert done.returncode == 0, done.stderr
    code, told_at = done.stdout.split()
    assert code == "manual_review"
    assert ended_at - float(told_at) < 3
