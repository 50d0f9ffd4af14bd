"""A chain that goes back: newest first, each undoing an action of its own, and never a word of more than was undone."""

import time
from typing import Any

import pytest

from acts import opened
from chain_shop import Clock, Counter, kept, order_chain, raising, shop_tools
from settled import (
    AlreadyDecided,
    Approve,
    Compensation,
    Desk,
    Ended,
    Happened,
    Ledger,
    Refused,
    Reject,
    Rejected,
    always,
    perform,
)
from settled.graph.chain import chain
from settled.tools.chain_desk import ChainDesk
from settled.tools.chains import step
from test_chain import INPUT, both, run

NO = raising(Ended(Rejected("no stock")))
OPAQUE: dict[str, Any] = {"query": None, "remote": "opaque"}


@pytest.mark.parametrize(
    ("failing", "done"),
    [
        ("deduct_coupon", []),
        ("pay", ["deduct_coupon", "give_back"]),
        ("ship", ["deduct_coupon", "pay", "refund", "give_back"]),
    ],
)
@both
async def test_each_step_fails_in_turn(ledger: Ledger, mode: str, failing: str, done: list[str]) -> None:
    """What was done before it is undone, newest first; where nothing was, nothing is."""
    far = Counter(faults={failing: NO})
    end = await run(order_chain(far, on_failure="compensate", asynchronous=mode == "async"), mode, ledger)
    assert far.done == done
    assert end.state == ("compensated" if done else "stopped")
    assert (end.code, "no stock" in end.message) == ("rejected", True)
    assert {one.state for one in end.steps if one.receipt} == ({"undone"} if done else set())
    undone = [effect.get("undoes") for effect in far.effects if "undoes" in effect]
    assert undone == [f"R-{number}" for number in range(len(done) // 2, 0, -1)]


@both
async def test_run_again_a_compensated_chain_says_so_and_does_nothing(ledger: Ledger, mode: str) -> None:
    """It is over: neither forward nor back again."""
    far = Counter(faults={"pay": NO})
    order = order_chain(far, on_failure="compensate", asynchronous=mode == "async")
    await run(order, mode, ledger)
    far.faults.clear()
    again = await run(order, mode, ledger)
    assert (again.state, again.replayed, far.done) == ("compensated", True, ["deduct_coupon", "give_back"])
    assert "has been undone: deduct coupon (receipt R-1)" in again.message


def test_a_step_without_a_way_back_leaves_a_chain_partially_compensated(ledger: Ledger) -> None:
    """What stays in effect is named, also to the model; a person ends it by his word."""
    far = Counter(faults={"audit": NO})
    tools = shop_tools(far)

    def audit(order: str) -> Any:
        """Audit an order."""
        return far.do("audit", order=order)

    from settled import action

    last = step("audit", action(risk="non_idempotent_write", identity="all", name="audit")(audit))
    steps = [step("pay", tools["pay"]), step("ship", tools["ship"]), last]
    order = chain("order", steps, on_failure="compensate")
    end = order.run({"order": "O-1"}, ledger=ledger, thread_id="t")
    assert (end.state, end.code, far.done) == ("partially_compensated", "manual_review", ["pay", "ship", "refund"])
    assert "Still in effect: ship (receipt R-2)" in end.message
    assert end.receipts == {"ship": "R-2"}
    desk = ChainDesk(ledger)
    assert [one.chain.id for one in desk.runs(states=[end.state])] == [end.chain_id]  # type: ignore[list-item]
    desk.undone(str(end.chain_id), "ship", by="mia", note="fetched back")
    closed = order.run({"order": "O-1"}, ledger=ledger, thread_id="t")
    assert (closed.state, closed["ship"].state, far.done) == ("compensated", "undone", ["pay", "ship", "refund"])


@both
async def test_an_undoing_that_fails_does_not_hide_and_a_later_run_tries_it_again(database_url: str, mode: str) -> None:
    """Partially compensated until it is undone; what is older waits for it, and nothing is undone twice."""
    clock, far = Clock(), Counter(faults={"ship": NO, "refund": raising(Ended(Rejected("bank closed")))})
    with opened(database_url, clock=clock) as ledger:
        order = order_chain(far, on_failure="compensate", asynchronous=mode == "async")
        stuck = await run(order, mode, ledger, world=clock.world())
        assert (stuck.state, stuck.code, far.done) == (
            "partially_compensated",
            "manual_review",
            ["deduct_coupon", "pay"],
        )
        assert (stuck["pay"].state, stuck["pay"].reason) == ("not_undone", "bank closed")
        assert (stuck["deduct_coupon"].state, ledger.action(str(stuck["pay"].action_id)).escalated_at is not None) == (
            "done",
            True,
        )
        far.faults.pop("refund")
        assert (await run(order, mode, ledger, world=clock.world())).state == "partially_compensated"
        clock.sleep(30)
        end = await run(order, mode, ledger, world=clock.world())
        assert (end.state, far.done) == ("compensated", ["deduct_coupon", "pay", "refund", "give_back"])
        await ledger.aclose()


def test_an_undoing_that_was_away_is_tried_again_by_the_desk(ledger: Ledger) -> None:
    """A person need not wait: the desk tries at once, and the next run goes on with the older steps."""
    far = Counter(faults={"ship": NO, "refund": raising(Ended(Refused("busy")))})
    tools = shop_tools(far, contracts={"refund": {"max_attempts": 1}, "ship": {"max_attempts": 1}})
    steps = [step("pay", tools["pay"]), step("ship", tools["ship"])]
    order = chain("order", steps, on_failure="compensate")
    stuck = order.run({"order": "O-1"}, ledger=ledger, thread_id="t")
    assert (stuck.state, stuck["pay"].state) == ("partially_compensated", "not_undone")
    far.faults.pop("refund")
    undo = Desk(ledger, tools=[tools["pay"], tools["refund"]]).compensate(str(stuck["pay"].action_id), by="mia")
    assert (undo.code, kept(ledger, stuck.chain_id).state) == ("succeeded", "compensated")
    assert order.run({"order": "O-1"}, ledger=ledger, thread_id="t").state == "compensated"
    assert far.done == ["pay", "refund"]


def test_an_undoing_that_is_unknown_is_found_and_never_sent_again(ledger: Ledger) -> None:
    """Its reply was lost: the bank is asked, has it, and the chain goes on back."""
    far = Counter(faults={"ship": NO, "refund, answered": raising(TimeoutError())})
    end = order_chain(far, on_failure="compensate").run(INPUT, ledger=ledger, thread_id="t")
    assert (end.state, far.done) == ("compensated", ["deduct_coupon", "pay", "refund", "give_back"])


def test_an_undoing_that_nobody_can_tell_about_is_a_persons(ledger: Ledger) -> None:
    """Unknown is not undone: the chain says what is open, and goes on once a person has said."""
    far = Counter(faults={"ship": NO, "refund, answered": raising(TimeoutError())})
    order = order_chain(far, on_failure="compensate", contracts={"refund": OPAQUE})
    stuck = order.run(INPUT, ledger=ledger, thread_id="t")
    assert (stuck.state, stuck["pay"].state) == ("partially_compensated", "not_undone")
    undo = ledger.action(str(stuck["pay"].undone_by))
    assert order.run(INPUT, ledger=ledger, thread_id="t").state == "partially_compensated"
    Desk(ledger).resolve(undo.id, Happened("RF-9"), by="mia", fingerprint=undo.fingerprint)
    end = order.run(INPUT, ledger=ledger, thread_id="t")
    assert (end.state, far.done) == ("compensated", ["deduct_coupon", "pay", "refund", "give_back"])


def test_an_unknown_step_is_reconciled_before_anything_is_undone(ledger: Ledger) -> None:
    """A payment that may have happened: nothing goes back while nobody knows, and when it did not, the coupon does."""
    from settled import DidNotHappen

    far = Counter(faults={"pay": raising(TimeoutError())})
    contract = {**OPAQUE, "timeout": 0.05, "settle_window": 0.05}
    order = order_chain(far, on_failure="compensate", contracts={"pay": contract})
    unknown = order.run(INPUT, ledger=ledger, thread_id="t")
    assert (unknown.state, far.done) == ("unknown", ["deduct_coupon"])
    assert order.run(INPUT, ledger=ledger, thread_id="t").state == "unknown"
    pay = ledger.action(str(unknown["pay"].action_id))
    time.sleep(0.2)  # it can no longer take effect
    Desk(ledger).resolve(pay.id, DidNotHappen(), by="mia", fingerprint=pay.fingerprint)
    end = order.run(INPUT, ledger=ledger, thread_id="t")
    assert (end.state, far.done) == ("compensated", ["deduct_coupon", "give_back"])


@both
async def test_an_undoing_that_asks_a_person(ledger: Ledger, mode: str) -> None:
    """It waits as any action does; the older ones wait for it; approved, the chain goes on back."""
    far = Counter(faults={"ship": NO})
    order = order_chain(
        far, on_failure="compensate", asynchronous=mode == "async", contracts={"refund": {"approval": always}}
    )
    waits = await run(order, mode, ledger)
    assert (waits.state, waits.code, far.done) == ("compensating", "waiting_for_approval", ["deduct_coupon", "pay"])
    assert waits.artifact["action_id"] == waits["pay"].undone_by
    undo = str(waits["pay"].undone_by)
    Desk(ledger).decide(undo, Approve(), by="mia", fingerprint=str(waits.fingerprint))
    end = await run(order, mode, ledger)
    assert (end.state, far.done) == ("compensated", ["deduct_coupon", "pay", "refund", "give_back"])


def test_an_undoing_that_a_person_denies_stands(ledger: Ledger) -> None:
    """A person's no is not asked for again by every run; he may say otherwise, or that it is to stand."""
    far = Counter(faults={"ship": NO})
    order = order_chain(far, on_failure="compensate", contracts={"refund": {"approval": always}})
    waits = order.run(INPUT, ledger=ledger, thread_id="t")
    undo = str(waits["pay"].undone_by)
    Desk(ledger).decide(undo, Reject("keep it"), by="mia", fingerprint=str(waits.fingerprint))
    stuck = order.run(INPUT, ledger=ledger, thread_id="t")
    assert (stuck.state, stuck["pay"].undone_by) == ("partially_compensated", undo)
    assert order.run(INPUT, ledger=ledger, thread_id="t")["pay"].undone_by == undo
    ChainDesk(ledger).undone(str(stuck.chain_id), "pay", by="mia", note="it is to stand")
    end = order.run(INPUT, ledger=ledger, thread_id="t")
    assert (end.state, far.done) == ("compensated", ["deduct_coupon", "pay", "give_back"])


def test_an_undoing_whose_arguments_cannot_be_made_does_not_hide(ledger: Ledger) -> None:
    """Nothing was begun for it, and the chain says why; better code undoes it."""
    far = Counter(faults={"ship": NO})
    tools = shop_tools(far)

    def made(arguments: Any) -> Any:
        pay = step("pay", tools["pay"], compensate=Compensation(tools["refund"], arguments))
        return chain("order", [pay, step("ship", tools["ship"])], on_failure="compensate")

    broken = made(lambda done: {"receipt": done.result["no such field"]})
    stuck = broken.run({"order": "O-1"}, ledger=ledger, thread_id="t")
    assert (stuck.state, stuck["pay"].state) == ("partially_compensated", "not_undone")
    assert "KeyError" in str(stuck["pay"].reason)
    end = made(lambda done: {"receipt": done.receipt}).run({"order": "O-1"}, ledger=ledger, thread_id="t")
    assert (end.state, far.done) == ("compensated", ["pay", "refund"])


def test_what_a_person_undid_by_himself_stops_the_chain(ledger: Ledger) -> None:
    """Its coupon was given back at the desk while it waited: it does not go on as if it were still deducted."""
    far = Counter(faults={"pay": raising(Ended(Refused("busy")))})
    order = order_chain(far, contracts={"pay": {"max_attempts": 1}})
    stopped = order.run(INPUT, ledger=ledger, thread_id="t")
    tools = shop_tools(far)
    Desk(ledger, tools=list(tools.values())).compensate(str(stopped["deduct_coupon"].action_id), by="mia")
    far.faults.clear()
    again = order.run(INPUT, ledger=ledger, thread_id="t")
    assert (again.state, again["deduct_coupon"].state) == ("stopped", "undone")
    assert far.done == ["deduct_coupon", "give_back"]


def test_a_step_of_a_chain_that_is_over_may_be_undone_later(ledger: Ledger) -> None:
    """The record says it: carried out, and undone in part since."""
    far = Counter()
    order = order_chain(far)
    done = order.run(INPUT, ledger=ledger, thread_id="t")
    Desk(ledger, tools=list(shop_tools(far).values())).compensate(str(done["pay"].action_id), by="mia")
    again = order.run(INPUT, ledger=ledger, thread_id="t")
    assert (again.state, again["pay"].state) == ("partially_compensated", "undone")
    assert "have been undone since: pay (receipt R-2)" in again.message
    assert far.done == ["deduct_coupon", "pay", "ship", "refund"]


@pytest.mark.parametrize("begins", [True, False], ids=["rejected", "not begun"])
def test_what_a_person_undid_by_hand_is_undone_by_nobody_else(ledger: Ledger, begins: bool) -> None:
    """The bank was shut, and the cashier paid it out: it leaves the manual queue, and whoever asks for its undoing
    later hears that it is undone. Of an order that is undone, the business key is free.
    """
    far = Counter(faults={"ship": NO, "refund": NO})
    tools = shop_tools(far, contracts={"pay": {"unique": ("order",)}})
    way_back = Compensation(tools["refund"], None if begins else lambda _: {})
    order = chain("order", [step("pay", tools["pay"], compensate=way_back), step("ship", tools["ship"])],
        on_failure="compensate")  # fmt: skip
    end = order.run({"order": "O-1"}, ledger=ledger, thread_id="t")
    ChainDesk(ledger).undone(str(end.chain_id), "pay", by="mia", note="paid out in cash")
    far.faults.clear()
    desk, paid = Desk(ledger, tools=list(tools.values())), str(end["pay"].action_id)
    assert desk.queue() == []
    with pytest.raises(AlreadyDecided, match="was undone by hand, as mia has said"):
        desk.compensate(paid, by="bob")
    assert order.go_on(str(end.chain_id), ledger=ledger).state == "compensated"
    assert far.done == ["pay"]
    if begins:
        last = ledger.timeline(paid)[-1]
        assert (last.trigger, last.actor, last.detail) == (
            "compensated", "mia", {"chain": end.chain_id, "step": "pay", "note": "paid out in cash"},
        )  # fmt: skip
        assert perform(tools["pay"], {"order": "O-1"}, ledger=ledger, thread_id="u").code == "succeeded"


def test_what_a_person_undid_by_himself_does_not_hide_a_step_that_may_still_act(ledger: Ledger) -> None:
    """The coupon is given back while shipping waits for a person: that the run has come to nothing is not said yet."""
    far = Counter()
    tools = shop_tools(far, contracts={"ship": {"approval": always}})
    order = chain("order", [step("pay", tools["pay"]), step("ship", tools["ship"])], on_failure="compensate",
        identity=("order",))  # fmt: skip
    waits = order.run({"order": "O-1"}, ledger=ledger, thread_id="t")
    desk = Desk(ledger, tools=list(tools.values()))
    desk.compensate(str(waits["pay"].action_id), by="mia")
    now = order.go_on(str(waits.chain_id), ledger=ledger)
    assert (now.state, now.code, now["pay"].state) == ("waiting", "waiting_for_approval", "undone")
    assert now.artifact["action_id"] == waits["ship"].action_id
    desk.withdraw(str(now["ship"].action_id), by="mia")
    assert order.go_on(str(waits.chain_id), ledger=ledger).state == "stopped"
    assert far.done == ["pay", "refund"]
