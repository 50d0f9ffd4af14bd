"""Workers in processes of their own, which are killed, frozen, raced and asked to end; and callers that die.

Real processes, a real HTTP remote whose effects are counted, one Postgres.
"""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from own_server import Server
from processes import Child, start
from remote import Remote, actions, late, payment, row, triggers
from settled import Approve, Desk, Ledger, State, always, perform
from settled.runtime.worker import Worker

CALL = {"order_id": "O-1", "amount": 118}
IN_BODY = 3
"""The number of the instant at which the remote side has done it, and the ledger does not know yet."""


def until(is_so: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Wait for something that a worker does."""
    end = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


@contextmanager
def working(database_url: str, remote: Remote, **options: Any) -> Iterator[Child]:
    """A worker process; asked to end after the block, and then it has ended well."""
    child = start("working.work", database_url=database_url, remote_url=remote.url, **options)
    try:
        yield child
    finally:
        until(lambda: listens(child.pid))
        os.kill(child.pid, signal.SIGTERM)
    child.result()


def listens(pid: int) -> bool:
    """Whether a process has a handler for SIGTERM by now: one that was just started has none."""
    caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def orphan(database_url: str, remote: Remote, die_at: int = IN_BODY) -> None:
    """A call whose process is killed."""
    child = start(
        "act",
        database_url=database_url,
        remote_url=remote.url,
        thread_id="t",
        arguments=CALL,
        mode="sync",
        die_at=die_at,
    )
    assert child.status() == -signal.SIGKILL


def approved(ledger: Ledger, far: Remote, order: str, **contract: Any) -> str:
    """An action that a person has approved, and whose caller is gone."""
    tool = payment(far.url, approval=always(), **contract)
    asked = perform(tool, {"order_id": order, "amount": 1}, ledger=ledger, thread_id="t")
    ticket = Desk(ledger).approval(str(asked.action_id))
    Desk(ledger).decide(ticket.action_id, Approve(), by="sue", fingerprint=ticket.fingerprint)
    return ticket.action_id


def test_the_orphan_of_a_killed_process_is_found_by_a_worker(database_url: str) -> None:
    """Found by its key, in another process, after its lease: succeeded, and no second call."""
    with Ledger.connect(database_url) as ledger, Remote(database_url) as remote:
        orphan(database_url, remote)
        assert [one.state for one in actions(ledger)] == [State.RUNNING]
        with working(database_url, remote):
            until(lambda: actions(ledger)[0].state is State.SUCCEEDED)
        done = actions(ledger)[0]
        assert (done.receipt, done.evidence, remote.count(), remote.posts()) == ("R-1", "query", 1, 1)
        assert triggers(ledger, done.id) == ["plan", "approve", "claim", "lose", "find"]


INSTANTS = 9
"""Of a look that claims and runs, before and after each statement and the body; after the last one it has succeeded."""


@pytest.mark.parametrize(
    "die_at", [pytest.param(n, marks=() if n in (3, 7) else pytest.mark.deep) for n in range(INSTANTS)]
)
def test_a_worker_is_killed_at_any_instant_of_a_look(database_url: str, die_at: int) -> None:
    """The next one carries it on, or asks and finds it: one effect, on a remote side that recognises no repeat."""
    contract = {"remote": "queryable", "unique": ["order_id"], "resend_when_absent": True}
    with Ledger.connect(database_url) as ledger, Remote(database_url, dedupes=False) as remote:
        mine = approved(ledger, remote, "O-1", **contract)
        options = {"database_url": database_url, "remote_url": remote.url, "contract": contract}
        first = start("working.work", ahead_s=10, die_at=die_at, **options)
        assert first.status() == -signal.SIGKILL, "it met fewer instants"
        assert remote.posts() == (1 if die_at >= 7 else 0)
        with working(database_url, remote, ahead_s=30, contract=contract):
            until(lambda: row(ledger, mine).state is State.SUCCEEDED)
        done = row(ledger, mine)
        assert (remote.count(), remote.posts(), done.receipt) == (1, 1, "R-1")


def test_two_workers_race_for_what_was_approved(database_url: str) -> None:
    """Each is carried on by one of them: its ticket is spent once, and there is one effect."""
    with Ledger.connect(database_url) as ledger, Remote(database_url) as remote:
        mine = [approved(ledger, remote, f"O-{n}") for n in range(8)]
        with working(database_url, remote, ahead_s=10), working(database_url, remote, ahead_s=10, asynchronous=True):
            until(lambda: all(row(ledger, one).state is State.SUCCEEDED for one in mine))
        assert (remote.count(), remote.posts()) == (8, 8)
        for one in mine:
            assert triggers(ledger, one) == ["plan", "approve", "claim", "succeed"]


def test_a_worker_that_is_asked_to_end_drains(database_url: str) -> None:
    """What is under way ends and is recorded; what waits is not begun."""
    with Ledger.connect(database_url) as ledger, Remote(database_url) as remote:
        mine = [approved(ledger, remote, f"O-{n}") for n in range(2)]
        remote.next(late(0.6))
        with working(database_url, remote, ahead_s=10, concurrency=1) as child:
            assert remote.arrived.wait(20)
        assert child.said["settled"] == 1
        assert sorted(row(ledger, one).state for one in mine) == [State.APPROVED, State.SUCCEEDED]
        assert (remote.count(), remote.posts()) == (1, 1)


def test_a_worker_that_was_frozen_wakes_after_it_was_taken_over(database_url: str) -> None:
    """Another one has lost, asked and sent again meanwhile: the sleeper sends nothing, and its write is refused."""
    with Ledger.connect(database_url) as ledger, Remote(database_url, dedupes=False) as remote:
        mine = approved(ledger, remote, "O-1")
        frozen = start(
            "working.work", database_url=database_url, remote_url=remote.url, ahead_s=10, stop_at=("Invoke", "before")
        )
        frozen.wait_until_frozen()
        assert (row(ledger, mine).state, remote.posts()) == (State.RUNNING, 0)
        with working(database_url, remote, ahead_s=30):
            until(lambda: row(ledger, mine).state is State.SUCCEEDED)
        before = row(ledger, mine)
        frozen.thaw()
        time.sleep(0.5)
        os.kill(frozen.pid, signal.SIGTERM)
        frozen.result()
        after = row(ledger, mine)
        assert (remote.count(), remote.posts(), after.fencing_token) == (1, 1, 2)
        assert (after.state, after.settled_at, after.receipt) == (State.SUCCEEDED, before.settled_at, "R-1")


@pytest.mark.parametrize("how", ["crash", pytest.param("restart", marks=pytest.mark.deep)])
def test_a_worker_outlives_a_restart_of_postgres(server: Server, own_url: str, database_url: str, how: str) -> None:
    """It goes on by itself when the server is back, and finds what was open before."""
    with Ledger.connect(own_url, patience_s=0.5) as ledger, Remote(database_url) as remote:
        orphan(own_url, remote)
        tool = payment(remote.url)
        with Worker(ledger, tools=[tool], scan_every_s=0.2).embedded() as worker:
            until(lambda: worker.scanned_s_ago is not None)
            getattr(server, how)()
            until(lambda: actions(ledger)[0].state is State.SUCCEEDED)
        assert (actions(ledger)[0].evidence, remote.count(), remote.posts()) == ("query", 1, 1)
