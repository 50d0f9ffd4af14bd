"""Equal calls at the same instant: threads, processes, tasks of one event loop (SPEC 18: double click, one key)."""

import asyncio
import time
from collections import Counter

import pytest

import processes
from remote import Fault, Remote, actions, payment, slow
from settled import Ledger, aperform

CALL = {"order_id": "O-1", "amount": 118}
PATIENT = {"timeout": 8.0, "deadline": 30.0, "lease": 10.0, "settle_window": 8.0}
"""Races are run on a busy machine: nobody must run out of time here, that is another test's subject."""

REMOTES = {
    "dedupes": {"remote": "dedupes", **PATIENT},
    "queryable": {"remote": "queryable", "unique": ["order_id"], "resend_when_absent": True, **PATIENT},
    "opaque": {"remote": "opaque", "query": None, **PATIENT},
}


def check(remote: Remote, ledger: Ledger, ends: list[tuple[str, str | None]], *, waited: bool) -> None:
    """One effect, one POST, one row; everybody has its receipt, or was told that it is in progress."""
    (action,) = actions(ledger)
    (effect,) = remote.effects()
    receipt = f"R-{effect.id}"
    codes = Counter(code for code, _ in ends)
    assert remote.posts() == 1
    assert action.receipt == receipt
    assert codes["succeeded"] == 1
    assert {end for end in ends if end[0] != "in_progress"} <= {("succeeded", receipt), ("duplicate", receipt)}
    told_to_wait, told_the_receipt = codes["in_progress"], codes["duplicate"]
    assert told_to_wait + told_the_receipt == len(ends) - 1
    assert told_to_wait == 0 if waited else told_to_wait > 0


@pytest.mark.parametrize("kind", REMOTES)
def test_thirty_two_threads_with_one_key_have_one_effect(database_url: str, kind: str) -> None:
    """Everybody waits for the first and gets its receipt."""
    with Ledger.connect(database_url) as ledger, Remote(database_url, dedupes=kind == "dedupes") as remote:
        remote.next(slow(0.3))
        tool = payment(remote.url, **REMOTES[kind])
        outcomes = processes.at_once(ledger, tool, "t", CALL, threads=32, at=time.time() + 0.2, wait_s=20)
        assert len(outcomes) == 32
        check(remote, ledger, [(str(o.code), o.receipt) for o in outcomes], waited=True)


@pytest.mark.parametrize(
    ("kind", "wait_s"),
    [
        ("queryable", 20),
        ("dedupes", 0),
        pytest.param("dedupes", 20, marks=pytest.mark.deep),
        pytest.param("opaque", 20, marks=pytest.mark.deep),
        pytest.param("queryable", 0, marks=pytest.mark.deep),
    ],
)
def test_eight_processes_of_four_threads_with_one_key_have_one_effect(
    database_url: str, kind: str, wait_s: float
) -> None:
    """Whoever waits gets the receipt of the one effect; whoever may not wait hears that it is in progress."""
    with Ledger.connect(database_url) as ledger, Remote(database_url, dedupes=kind == "dedupes") as remote:
        remote.next(slow(0.6))
        contract = {name: value for name, value in REMOTES[kind].items() if name != "query"}
        args = {"database_url": database_url, "remote_url": remote.url, "thread_id": "t", "arguments": CALL}
        at = time.time() + 1.0
        children = [
            processes.start("rush", **args, threads=4, at=at, contract=contract, wait_s=wait_s) for _ in range(8)
        ]
        ends = [end for child in children for end in child.result()]
        assert len(ends) == 32
        check(remote, ledger, [(end["code"], end["receipt"]) for end in ends], waited=wait_s > 0)


async def test_thirty_two_tasks_with_one_key_have_one_effect(ledger: Ledger, database_url: str) -> None:
    """The same in one event loop."""
    with Remote(database_url, dedupes=False) as remote:
        remote.next(slow(0.3))
        tool = payment(remote.url, asynchronous=True, **REMOTES["queryable"])
        calls = [aperform(tool, CALL, ledger=ledger, thread_id="t", wait_s=20) for _ in range(32)]
        outcomes = await asyncio.gather(*calls)
        check(remote, ledger, [(str(o.code), o.receipt) for o in outcomes], waited=True)


async def test_a_business_key_raced_from_many_threads_has_one_effect(ledger: Ledger, database_url: str) -> None:
    """Sixteen conversations want the same order paid: one effect, the others hear whose it is."""
    with Remote(database_url, dedupes=False) as remote:
        remote.next(slow(0.3))
        tool = payment(remote.url, asynchronous=True, **REMOTES["queryable"])
        calls = [aperform(tool, CALL, ledger=ledger, thread_id=f"t-{n}", wait_s=0) for n in range(16)]
        outcomes = await asyncio.gather(*calls)
        assert Counter(str(o.code) for o in outcomes) == {"succeeded": 1, "in_progress": 15}
        assert (remote.count(), remote.posts(), len(actions(ledger))) == (1, 1, 1)
        later = await aperform(tool, CALL, ledger=ledger, thread_id="t-later")
        assert (later.code, later.receipt, remote.posts()) == ("rejected", "R-1", 1)


@pytest.mark.parametrize("kind", ["dedupes", "queryable"])
def test_a_reply_lost_under_a_crowd_is_reconciled_by_one_of_them(database_url: str, kind: str) -> None:
    """The owner's reply is lost while the others wait: one effect, one POST, and all get its receipt."""
    with Ledger.connect(database_url) as ledger, Remote(database_url, dedupes=kind == "dedupes") as remote:
        remote.next(Fault(before_s=0.2, reply="drop"))
        tool = payment(remote.url, **REMOTES[kind])
        outcomes = processes.at_once(ledger, tool, "t", CALL, threads=16, at=time.time() + 0.2, wait_s=20)
        assert len(outcomes) == 16
        check(remote, ledger, [(str(o.code), o.receipt) for o in outcomes], waited=True)
