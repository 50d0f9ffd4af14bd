"""A chain is killed at every instant of every step, forward and back: each effect once, and it goes on where it was."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import processes
from acts import opened
from chain_shop import FORWARD, INPUT, Clock, Counter, order_chain, raising, real_chain
from remote import Remote
from settled import Ended, Ledger, LedgerUnavailable, Rejected
from settled.tools.effects import Effect, Invoke

BACK = [*FORWARD[:2], "refund", "give_back"]
"""What happens in all where shipping is turned down: newest first."""


class Killed(BaseException):
    """The process is gone: nothing after it runs."""


class Fuse:
    """Counts the instants at which a chain may die, and dies at one of them."""

    def __init__(self, at: int | None, error: BaseException | None = None) -> None:
        self.at, self.seen, self.error = at, 0, error or Killed()

    def __call__(self, effect: Effect, when: str) -> None:
        self.seen += 1
        if self.seen - 1 == self.at:
            raise self.error


def one_run(ledger: Ledger, clock: Clock, number: int | None, on_failure: str) -> tuple[Counter, Any, int]:
    """Run a chain that dies at one instant, and once more; return what was done, the end, and the instants met."""
    far, fuse, thread_id = Counter(), Fuse(number), f"{on_failure}-{number}"
    if on_failure == "compensate":
        far.faults["ship"] = raising(Ended(Rejected("no stock")))
    order = order_chain(far, on_failure=on_failure)
    try:
        end = order.run(INPUT, ledger=ledger, thread_id=thread_id, world=clock.world(fuse))
    except Killed:
        clock.sleep(60)  # its lease is over
        end = order.run(INPUT, ledger=ledger, thread_id=thread_id, world=clock.world())
    return far, end, fuse.seen


SIDES = [
    pytest.param(on_failure, every, id=f"{on_failure}-{every}", marks=[pytest.mark.deep] if every == 1 else [])
    for on_failure in ("stop", "compensate")
    for every in (1, 3)
]


@pytest.mark.parametrize(("on_failure", "every"), SIDES)
def test_killed_at_any_instant_each_step_has_one_effect(database_url: str, on_failure: str, every: int) -> None:
    """The coupon is deducted once, and given back once, whatever the instant; the run ends as if nothing had been."""
    wanted, state = ([*FORWARD], "succeeded") if on_failure == "stop" else (BACK, "compensated")
    clock = Clock()
    with opened(database_url, clock=clock) as ledger:
        far, end, instants = one_run(ledger, clock, None, on_failure)
        assert (far.done, end.state) == (wanted, state)
        assert instants > 40
        for number in range(0, instants, every):
            far, end, _ = one_run(ledger, clock, number, on_failure)
            assert (far.done, end.state) == (wanted, state), f"killed at instant {number}"


def killed_for_real(url: str, points: range, on_failure: str) -> Iterator[tuple[int, list[str], str]]:
    """Kill a process at each of some instants, run the chain again in another one; yield what was done."""

    def at(point: int) -> tuple[int, list[str], str]:
        with Remote(url) as remote:
            args = {"database_url": url, "remote_url": remote.url, "order": f"{on_failure}-{point}"}
            args["on_failure"] = on_failure
            assert processes.start("chaining.order", **args, die_at=point).status(60) == -9
            said = processes.start("chaining.order", **args).result(60)
            done = [one.body["what"] for one in remote.effects() if one.body["order_id"] == args["order"]]
            return point, done, said["state"]

    with ThreadPoolExecutor(4) as pool:
        yield from pool.map(at, points)


@pytest.mark.parametrize("on_failure", ["stop", "compensate"])
def test_a_killed_process_leaves_a_chain_that_goes_on(database_url: str, on_failure: str) -> None:
    """SIGKILL within each of the steps: one effect each, and the next process ends the run."""
    _real(database_url, on_failure, range(5, 50, 9))


@pytest.mark.deep
@pytest.mark.parametrize("on_failure", ["stop", "compensate"])
def test_a_killed_process_leaves_a_chain_that_goes_on_from_any_instant(database_url: str, on_failure: str) -> None:
    """As above, at each instant."""
    _real(database_url, on_failure, range(58))


def _real(url: str, on_failure: str, points: range) -> None:
    wanted = {
        "stop": (list(FORWARD), "succeeded"),
        "compensate": (["deduct_coupon", "pay", "give_back"], "partially_compensated"),
    }
    for point, done, state in killed_for_real(url, points, on_failure):
        assert (done, state) == wanted[on_failure], f"killed at instant {point}"


async def test_an_async_chain_is_killed_at_some_instants(database_url: str) -> None:
    """The async driver leaves the same as the sync one."""
    for number in range(3, 60, 8):
        far, clock = Counter(), Clock()
        async with Ledger.connect(database_url, clock=clock) as ledger:
            order = order_chain(far, asynchronous=True)
            try:
                await order.arun(INPUT, ledger=ledger, thread_id=f"a-{number}", world=clock.world(Fuse(number)))
            except Killed:
                clock.sleep(60)
            end = await order.arun(INPUT, ledger=ledger, thread_id=f"a-{number}", world=clock.world())
        assert (far.done, end.state) == ([*FORWARD], "succeeded"), f"killed at instant {number}"


def test_what_the_real_chain_does_unkilled(database_url: str) -> None:
    """The kills above mean something: unkilled, the same happens, over more instants than are killed at."""
    with Remote(database_url) as remote, Ledger.connect(database_url) as ledger:
        fuse = Fuse(None)
        end = real_chain(remote.url).run({"order": "O-1"}, ledger=ledger, thread_id="t", world=Clock().world(fuse))
        assert (end.state, [one.body["what"] for one in remote.effects()]) == ("succeeded", list(FORWARD))
        assert fuse.seen >= 58


def test_a_ledger_that_goes_away_at_any_instant_loses_nothing(database_url: str) -> None:
    """The answer says that nothing was begun, or that nobody knows yet; the next run ends it, each effect once."""
    clock, codes = Clock(), set()
    with opened(database_url, clock=clock) as ledger:
        for number in range(0, 70, 4):
            far, fuse, thread_id = Counter(), Fuse(number, LedgerUnavailable("away")), f"gone-{number}"
            order = order_chain(far)
            end = order.run(INPUT, ledger=ledger, thread_id=thread_id, world=clock.world(fuse))
            codes.add(str(end.code))
            assert (end.state, fuse.seen) == (None, number + 1)
            assert end.code == "unknown" or far.done == []
            clock.sleep(60)
            end = order.run(INPUT, ledger=ledger, thread_id=thread_id, world=clock.world())
            assert (far.done, end.state) == ([*FORWARD], "succeeded"), f"away at instant {number}"
    assert codes == {"unavailable", "unknown"}


async def test_cancelled_in_a_step_it_is_recorded_and_the_next_run_goes_on(database_url: str) -> None:
    """A caller that goes away leaves no step that is done twice, and no later step that is begun."""
    far, clock, begun = Counter(), Clock(), asyncio.Event()

    async with Ledger.connect(database_url, clock=clock) as ledger:
        order = order_chain(far, asynchronous=True)

        def reached(effect: Effect, when: str) -> None:
            if far.done == ["deduct_coupon"] and isinstance(effect, Invoke) and when == "before":
                begun.set()

        world = clock.world(reached)
        task = asyncio.create_task(order.arun(INPUT, ledger=ledger, thread_id="t", world=world))
        await asyncio.wait_for(begun.wait(), 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert far.done in (["deduct_coupon"], ["deduct_coupon", "pay"])
        clock.sleep(60)
        end = await order.arun(INPUT, ledger=ledger, thread_id="t", world=clock.world())
        assert (end.state, far.done) == ("succeeded", [*FORWARD])


@pytest.mark.parametrize("asks", [False, True])
def test_an_agents_process_is_killed_in_a_chain(database_url: str, asks: bool) -> None:
    """SIGKILL at some instants of a conversation: the next process answers the call, and each step has one effect."""
    _talks(database_url, asks, range(4, 40, 12))


@pytest.mark.deep
@pytest.mark.parametrize("asks", [False, True])
def test_an_agents_process_is_killed_in_a_chain_at_any_instant(database_url: str, asks: bool) -> None:
    """As above, at each of them."""
    _talks(database_url, asks, range(40))


def _talks(url: str, asks: bool, points: range) -> None:
    def at(point: int) -> tuple[int, list[str], Any]:
        with Remote(url) as remote:
            args = {"database_url": url, "remote_url": remote.url, "order": f"{asks}-{point}", "asks": asks}
            assert processes.start("chaining.talk", **args, die_at=point).status(90) == -9
            said = processes.start("chaining.talk", **args).result(90)
            return point, [one.body["what"] for one in remote.effects() if one.body["order_id"] == args["order"]], said

    with ThreadPoolExecutor(3) as pool:
        for point, done, said in pool.map(at, points):
            assert done == list(FORWARD), f"killed at instant {point}"
            assert said["codes"] in (["succeeded"], ["duplicate"]), f"killed at instant {point}: {said}"
