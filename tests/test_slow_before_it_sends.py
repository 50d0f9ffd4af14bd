"""A body that dawdles before it sends: its request must not go out when others already count on its absence.

The settle window begins with the attempt. A request that is begun after the attempt's time is over would land behind
the query that said "absent", on a remote side that does not recognise a repeat.
"""

import asyncio
import threading
import time
from typing import Any

import pytest

import processes
from remote import Remote, payment, triggers
from settled import Ledger, aperform, perform

CALL = {"order_id": "O-1", "amount": 118}
CONTRACT: dict[str, Any] = {
    "remote": "queryable",
    "unique": ("order_id",),
    "resend_when_absent": True,
    "timeout": 0.6,
    "lease": 6.0,
    "settle_window": 0.6,
}


class Dawdle:
    """Sleeps the first time it is called."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.woken = threading.Event()

    def __call__(self) -> None:
        seconds, self.seconds = self.seconds, 0.0
        time.sleep(seconds)
        if seconds:
            self.woken.set()


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.deep)])
async def test_a_body_that_overran_its_timeout_sends_nothing_more(ledger: Ledger, database_url: str, mode: str) -> None:
    """Its lease would still hold, but its time is over: one effect, that of the attempt that followed."""
    with Remote(database_url, dedupes=False) as remote:
        dawdle = Dawdle(1.8)
        tool = payment(remote.url, before=dawdle, **CONTRACT)
        if mode == "async":
            end = await aperform(tool, CALL, ledger=ledger, thread_id="t")
        else:
            end = await asyncio.to_thread(perform, tool, CALL, ledger=ledger, thread_id="t")
        assert (end.code, end.receipt, end.attempts) == ("succeeded", "R-1", 2)
        assert await asyncio.to_thread(dawdle.woken.wait, 5)
        await asyncio.sleep(0.3)
        assert (remote.count(), remote.posts()) == (1, 1)


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.deep)])
def test_a_worker_that_froze_before_its_body_has_less_time_left(database_url: str, mode: str) -> None:
    """Frozen for less than its lease: the attempt's time and its settle window still run from its beginning."""
    with Ledger.connect(database_url) as ledger, Remote(database_url, dedupes=False) as remote:
        child = processes.start(
            "act",
            database_url=database_url,
            remote_url=remote.url,
            thread_id="t",
            arguments=CALL,
            mode=mode,
            contract={**CONTRACT, "unique": ["order_id"]},
            stop_at=("Invoke", "before"),
        )
        child.wait_until_frozen()
        time.sleep(0.9)
        child.thaw()
        theirs = child.result()
        assert (theirs["code"], theirs["receipt"]) == ("succeeded", "R-1")
        assert (remote.count(), remote.posts()) == (1, 1)
        assert triggers(ledger, theirs["action_id"]) == ["plan", "approve", "claim", "refuse", "succeed"]
