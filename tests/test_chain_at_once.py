"""Two processes carry one chain on at the same instant: each step has one effect, and both hear the same."""

import threading
import time
from typing import Any

import pytest

import processes
from chain_shop import FORWARD, INPUT, Counter, order_chain, raising, shop_tools
from remote import Remote
from settled import Desk, Ended, Ledger, Rejected, World, perform
from settled.graph.chain import chain
from settled.tools.chains import step


def at_once(count: int, call: Any) -> list[Any]:
    """Make one call in several threads at one instant; return what each brought, an error too."""
    start, ends = threading.Barrier(count), []

    def one() -> None:
        start.wait(10)
        try:
            ends.append(call())
        except Exception as error:
            ends.append(error)

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return ends


@pytest.mark.parametrize(
    ("on_failure", "wanted", "state"),
    [("stop", [*FORWARD], "succeeded"), ("compensate", [*FORWARD[:2], "refund", "give_back"], "compensated")],
)
def test_four_runs_at_once_are_one(ledger: Ledger, on_failure: str, wanted: list[str], state: str) -> None:
    """Forward and back: each thing once, in order, whoever does it; in the end all of them say the same."""
    for attempt in range(3):
        far = Counter()
        if on_failure == "compensate":
            far.faults["ship"] = raising(Ended(Rejected("no stock")))
        far.faults["pay, answered"] = lambda: time.sleep(0.05)
        order, thread_id = order_chain(far, on_failure=on_failure), f"t-{attempt}"
        ends = at_once(4, lambda: order.run(INPUT, ledger=ledger, thread_id=thread_id))  # noqa: B023 - called before the next
        assert [getattr(end, "chain_id", end) for end in ends] == [ends[0].chain_id] * 4
        last = order.run(INPUT, ledger=ledger, thread_id=thread_id)
        assert (last.state, far.done) == (state, wanted)


def test_two_processes_at_once(database_url: str) -> None:
    """The same over a real socket: one effect for each step."""
    with Remote(database_url) as remote:
        args = {"database_url": database_url, "remote_url": remote.url, "order": "O-1"}
        children = [processes.start("chaining.order", **args) for _ in range(2)]
        said = [child.result(60) for child in children]
        assert {one["chain_id"] for one in said} == {said[0]["chain_id"]}
        assert [one.body["what"] for one in remote.effects()] == list(FORWARD)
        assert "succeeded" in {one["state"] for one in said}


def test_other_inputs_at_once_are_one_run_and_a_clash(ledger: Ledger) -> None:
    """Two coupons for one order at the same instant: one of them is used, the other one hears of it."""
    far = Counter()
    order = order_chain(far, identity=("order",))
    coupons = iter(["C-1", "C-2"])
    ends = at_once(2, lambda: order.run({**INPUT, "coupon": next(coupons)}, ledger=ledger, thread_id="t"))
    assert sorted(str(end.code) for end in ends) == ["conflict", "succeeded"]
    assert far.done == list(FORWARD)


def test_a_step_that_is_in_flight_elsewhere_is_waited_for_and_not_sent(ledger: Ledger) -> None:
    """The second caller gives up waiting and says that it is being processed."""
    begun, go = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        go.wait(4)

    far = Counter(faults={"pay": slow})
    order = order_chain(far)
    first: list[Any] = []
    thread = threading.Thread(target=lambda: first.append(order.run(INPUT, ledger=ledger, thread_id="t")))
    thread.start()
    assert begun.wait(10)
    second = order.run(INPUT, ledger=ledger, thread_id="t", wait_s=0.1)
    assert (second.state, second.code, second["pay"].state) == ("running", "in_progress", "running")
    go.set()
    thread.join(20)
    assert (first[0].state, far.done) == ("succeeded", list(FORWARD))


def test_a_person_and_a_run_at_once_are_one(ledger: Ledger) -> None:
    """Finished by hand while a run begins it: either the person is told that he came late, or nothing is sent."""
    from settled import AlreadyDecided
    from settled.tools.chain_desk import ChainDesk

    for attempt in range(5):
        far = Counter(faults={"pay": raising(Ended(Rejected("no")))})
        order, thread_id = order_chain(far), f"t-{attempt}"
        stopped = order.run(INPUT, ledger=ledger, thread_id=thread_id)
        desk = ChainDesk(ledger)
        desk.finish(str(stopped.chain_id), "pay", by="mia")
        jobs = iter(
            [
                lambda: order.run(INPUT, ledger=ledger, thread_id=thread_id),  # noqa: B023
                lambda: desk.finish(str(stopped.chain_id), "ship", by="mia"),  # noqa: B023
            ]
        )
        lock = threading.Lock()

        def job() -> Any:
            with lock:  # noqa: B023
                mine = next(jobs)  # noqa: B023
            return mine()

        ends = at_once(2, job)
        by_hand = not any(isinstance(end, AlreadyDecided) for end in ends)
        assert far.done == (["deduct_coupon"] if by_hand else ["deduct_coupon", "ship"])
        assert order.run(INPUT, ledger=ledger, thread_id=thread_id).state == "succeeded"


def test_a_process_that_was_frozen_before_its_step_begins_nothing_when_the_chain_has_gone_back(ledger: Ledger) -> None:
    """Another conversation had paid, so the step failed and the chain went back. That payment is undone since, and its
    business key free; the frozen process wakes, and finds its step closed.
    """
    far = Counter()
    tools = shop_tools(far, contracts={"pay": {"unique": ("order",)}})
    steps = [step("deduct_coupon", tools["deduct_coupon"]), step("pay", tools["pay"])]
    order = chain("order", steps, on_failure="compensate")
    given = {"coupon": "C-1", "worth": 5, "order": "O-1"}
    paid = perform(tools["pay"], {"order": "O-1"}, ledger=ledger, thread_id="u")
    frozen, may_wake, ends = threading.Event(), threading.Event(), []

    def freeze(effect: Any, when: str) -> None:
        if when == "before" and getattr(effect, "query", None) and effect.query.params.get("tool") == "pay":
            frozen.set()
            may_wake.wait(30)

    world = World(watch=freeze)
    sleeper = threading.Thread(target=lambda: ends.append(order.run(given, ledger=ledger, thread_id="t", world=world)))
    sleeper.start()
    assert frozen.wait(30)
    assert order.run(given, ledger=ledger, thread_id="t").state == "compensated"
    Desk(ledger, tools=list(tools.values())).compensate(str(paid.action_id), by="mia")
    may_wake.set()
    sleeper.join(30)
    assert far.done == ["pay", "deduct_coupon", "give_back", "refund"]
    assert (ends[0].state, ends[0]["pay"].state) == ("compensated", "failed")
