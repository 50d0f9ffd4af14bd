"""A process dies by SIGKILL at every instant at which the protocol acts, and the call is made again elsewhere.

`expected` says, for each path, what the ledger holds when the process has died before and after each effect.
"""

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

import processes
from remote import DROP, Fault, Remote, actions, busy, payment, row, slow, timeline, triggers
from settled import Ledger, State, perform

CALL = {"amount": 118}
DEDUPES: dict[str, Any] = {"remote": "dedupes"}
QUERYABLE: dict[str, Any] = {"remote": "queryable", "unique": ["order_id"], "resend_when_absent": True}
REMOTES = {"dedupes": DEDUPES, "queryable": QUERYABLE}
PATIENT: dict[str, Any] = {"timeout": 1.5, "settle_window": 1.5, "lease": 1.8}
"""Several die at once, on a machine with much to do, and none of them may be taken for slow."""

SIDE_BY_SIDE = 6


@dataclass(frozen=True)
class Path:
    """A way through the protocol: its effects, the states after each of them, and the POSTs that it takes in all."""

    faults: tuple[Fault, ...]
    effects: tuple[str, ...]
    states: tuple[str, ...]
    posts: int


PATHS = {
    "all is well": Path((), ("Ask", "Invoke", "Ask"), ("running", "running", "succeeded"), posts=1),
    "reply lost": Path(
        (DROP,), ("Ask", "Invoke", "Ask", "Probe", "Ask"), ("running", "running", "unknown", "unknown", "succeeded"), 1
    ),
    "refused once": Path(
        (busy(),),
        ("Ask", "Invoke", "Ask", "Sleep", "Invoke", "Ask"),
        (*("running",) * 5, "succeeded"),
        posts=2,
    ),
}
ALWAYS = [
    ("all is well", "sync", "dedupes"),
    ("all is well", "async", "queryable"),
    ("reply lost", "sync", "queryable"),
    ("reply lost", "async", "dedupes"),
    ("refused once", "sync", "dedupes"),
]
DEEP = [
    pytest.param(*combination, marks=pytest.mark.deep)
    for combination in itertools.product(PATHS, ("sync", "async"), REMOTES)
    if combination not in ALWAYS
]


@pytest.mark.parametrize(("way", "mode", "kind"), ALWAYS + DEEP)
def test_a_kill_at_any_instant_leaves_one_effect_and_its_receipt(
    database_url: str, way: str, mode: str, kind: str
) -> None:
    """One effect whatever the instant; the call that is made again answers with its receipt."""
    path = PATHS[way]
    with Ledger.connect(database_url) as ledger:
        crash = Crash(ledger, database_url, path, mode, kind)
        instants = range(2 * len(path.effects))
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            seen = list(pool.map(crash.at, instants))
    before = ("none", *path.states[:-1])
    wanted = [state for pair in zip(before, path.states, strict=True) for state in pair]
    assert [s.left for s in seen] == wanted
    assert [(s.state, s.effects, s.same_receipt) for s in seen] == [("succeeded", 1, True)] * len(seen)
    assert [s.posts for s in seen] == [path.posts] * len(seen)


@dataclass(frozen=True)
class Seen:
    """What was found after one crash, and after the call that was made again."""

    left: str
    state: str
    effects: int
    posts: int
    same_receipt: bool


@dataclass(frozen=True)
class Crash:
    ledger: Ledger
    database_url: str
    path: Path
    mode: str
    kind: str

    def at(self, instant: int) -> Seen:
        """Kill a process at an instant, then make its call again in this one."""
        order = {"order_id": f"O-{instant}", **CALL}
        contract = {**REMOTES[self.kind], **PATIENT}
        with Remote(self.database_url, dedupes=self.kind == "dedupes") as remote:
            remote.next(*self.path.faults)
            child = processes.start(
                "act",
                database_url=self.database_url,
                remote_url=remote.url,
                thread_id=f"t-{instant}",
                arguments=order,
                mode=self.mode,
                contract=contract,
                die_at=instant,
            )
            assert child.status() == -9, child.failed
            left = actions(self.ledger, f"t-{instant}")
            again = perform(
                payment(remote.url, **contract), order, ledger=self.ledger, thread_id=f"t-{instant}", wait_s=20
            )
            effects = [effect for effect in remote.effects() if effect.body == order]
            assert len(actions(self.ledger, f"t-{instant}")) == 1
            return Seen(
                left=str(left[0].state) if left else "none",
                state=str(again.state),
                effects=len(effects),
                posts=remote.posts(again.idempotency_key),
                same_receipt=again.receipt == f"R-{effects[0].id}",
            )


def test_a_call_meets_the_instants_that_the_paths_name(database_url: str) -> None:
    """The tests above kill at each yield: a yield that is new must be named there."""
    for number, path in enumerate(PATHS.values()):
        with Remote(database_url) as remote:
            remote.next(*path.faults)
            said = processes.start(
                "act",
                database_url=database_url,
                remote_url=remote.url,
                thread_id=f"t-{number}",
                arguments={"order_id": f"O-{number}", **CALL},
                mode="sync",
            ).result()
        assert said["instants"] == [[name, when] for name in path.effects for when in ("before", "after")]


@pytest.mark.parametrize(("mode", "kind"), [("sync", "dedupes"), ("async", "queryable")])
def test_a_kill_while_the_request_is_on_its_way_leaves_one_effect(database_url: str, mode: str, kind: str) -> None:
    """Killed after it was sent and before the remote side did it: found later by its key, never sent again."""
    order = {"order_id": "O-1", **CALL}
    with Ledger.connect(database_url) as ledger, Remote(database_url, dedupes=kind == "dedupes") as remote:
        remote.next(slow(0.6))
        child = processes.start(
            "act",
            database_url=database_url,
            remote_url=remote.url,
            thread_id="t",
            arguments=order,
            mode=mode,
            contract=REMOTES[kind],
        )
        assert remote.arrived.wait(10)
        child.kill()
        assert child.status() == -9
        (left,) = actions(ledger)
        assert (left.state, remote.count()) == (State.RUNNING, 0)
        again = perform(payment(remote.url, **REMOTES[kind]), order, ledger=ledger, thread_id="t")
        assert (again.code, again.action_id, again.attempts) == ("succeeded", left.id, 1)
        assert (remote.count(), remote.posts()) == (1, 1)
        assert row(ledger, left.id).evidence == "query"
        assert triggers(ledger, left.id) == ["plan", "approve", "claim", "lose", "find"]


def test_a_restart_waits_for_the_lease_before_it_takes_over(database_url: str) -> None:
    """A running action is nobody else's until its lease is over, however often the call is made."""
    order = {"order_id": "O-1", **CALL}
    with Ledger.connect(database_url) as ledger, Remote(database_url) as remote:
        tool = payment(remote.url)
        child = processes.start(
            "act",
            database_url=database_url,
            remote_url=remote.url,
            thread_id="t",
            arguments=order,
            mode="sync",
            die_at=3,
        )
        assert child.status() == -9
        (left,) = actions(ledger)
        at_once = perform(tool, order, ledger=ledger, thread_id="t", wait_s=0)
        assert (at_once.code, at_once.state) == ("in_progress", State.RUNNING)
        later = perform(tool, order, ledger=ledger, thread_id="t")
        assert (later.code, later.receipt, remote.count(), remote.posts()) == ("succeeded", "R-1", 1, 1)
        assert left.lease_until is not None
        lost = next(event for event in timeline(ledger, left.id) if event.trigger == "lose")
        assert lost.at >= left.lease_until


@pytest.mark.deep
def test_a_killed_restart_can_be_restarted(database_url: str) -> None:
    """The process that reconciles dies too, and the next one finds what happened: one effect, one POST."""
    order = {"order_id": "O-1", **CALL}
    with Ledger.connect(database_url) as ledger, Remote(database_url, dedupes=False) as remote:
        args = {"database_url": database_url, "remote_url": remote.url, "thread_id": "t", "arguments": order}
        assert processes.start("act", **args, mode="sync", contract=QUERYABLE, die_at=3).status() == -9
        time.sleep(1.1)
        # plan, lose, probe: the second one dies when it has been answered
        assert processes.start("act", **args, mode="sync", contract=QUERYABLE, die_at=5).status() == -9
        assert [a.state for a in actions(ledger)] == [State.UNKNOWN]
        end = perform(payment(remote.url, **QUERYABLE), order, ledger=ledger, thread_id="t")
        assert (end.code, end.receipt, remote.count(), remote.posts()) == ("succeeded", "R-1", 1, 1)
