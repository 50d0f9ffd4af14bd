"""Undoing what succeeded, by an action of its own: asked for once or five times, it is undone once."""

import threading
from typing import Any

import pytest

from acts import opened, states, triggers_of
from chain_shop import Clock, Counter, raising, shop_tools
from settled import (
    AlreadyDecided,
    Approve,
    Compensation,
    ContractError,
    Desk,
    Edit,
    Ended,
    Happened,
    InvalidArguments,
    Ledger,
    NotFound,
    NotPermitted,
    Outcome,
    Refused,
    Reject,
    Rejected,
    State,
    action,
    always,
    perform,
)

both = pytest.mark.parametrize("mode", ["sync", "async"])
ORDER = {"order": "O-1"}


class Shop:
    """Payments that a refund undoes, and the desk that does it, sync or async."""

    def __init__(self, mode: str, ledger: Ledger, *, clock: Clock | None = None, **contracts: Any) -> None:
        self.mode, self.ledger, self.far = mode, ledger, Counter()
        self.world = {} if clock is None else {"world": clock.world()}
        self.tools = shop_tools(self.far, contracts=contracts)
        self.desk = Desk(ledger, tools=[self.tools["pay"], self.tools["refund"]], **self.world)

    def pay(self, thread_id: str = "t") -> Outcome:
        return perform(self.tools["pay"], ORDER, ledger=self.ledger, thread_id=thread_id, **self.world)

    async def undo(self, paid: Outcome) -> Outcome:
        if self.mode == "async":
            return await self.desk.acompensate(str(paid.action_id), by="mia", note="wrong order")
        return self.desk.compensate(str(paid.action_id), by="mia", note="wrong order")

    async def retry(self, action_id: str | None) -> Outcome:
        if self.mode == "async":
            return await self.desk.aretry(str(action_id), by="mia")
        return self.desk.retry(str(action_id), by="mia")

    def state(self, paid: Outcome) -> State:
        return self.ledger.action(str(paid.action_id)).state


@both
async def test_it_is_undone_by_an_action_of_its_own_and_asked_for_again_it_is_the_same(
    ledger: Ledger, mode: str
) -> None:
    """One refund, with a key of its own; the payment's receipt is what it is given."""
    shop = Shop(mode, ledger)
    paid = shop.pay()
    ends = [await shop.undo(paid) for _ in range(3)]
    assert (shop.far.done, shop.far.effects[1]["undoes"]) == (["pay", "refund"], "R-1")
    assert {end.action_id for end in ends} == {ends[0].action_id}
    assert ends[0].idempotency_key != paid.idempotency_key
    assert (shop.state(paid), ends[-1].receipt) == ("compensated", "R-2")
    assert triggers_of(ledger, paid)[-2:] == ["compensate", "compensated"]
    undone = ledger.action(str(paid.action_id))
    assert (undone.compensated_by, ledger.action(str(ends[0].action_id)).compensates) == (
        ends[0].action_id,
        paid.action_id,
    )


def test_the_same_call_afterwards_hears_that_it_is_undone(ledger: Ledger) -> None:
    """Neither done again nor told as done."""
    shop = Shop("sync", ledger)
    shop.desk.compensate(str(shop.pay().action_id), by="mia")
    again = shop.pay()
    assert (again.code, again.state) == ("duplicate", "compensated")
    assert "was carried out before and has been undone since" in again.message
    assert shop.far.done == ["pay", "refund"]


def test_the_business_key_is_free_when_it_is_undone_and_not_before(ledger: Ledger) -> None:
    """While the refund may fail, another conversation pays nothing for this order; after it, it may."""
    shop = Shop("sync", ledger, pay={"unique": ("order",)}, refund={"max_attempts": 1})
    paid = shop.pay()
    shop.far.faults["refund"] = raising(Ended(Refused("busy")))
    shop.desk.compensate(str(paid.action_id), by="mia")
    assert (shop.state(paid), shop.pay("u").code) == ("compensation_pending", "in_progress")
    shop.far.faults.clear()
    shop.desk.compensate(str(paid.action_id), by="mia")
    assert (shop.state(paid), shop.pay("u").code) == ("compensated", "succeeded")
    assert shop.far.done == ["pay", "refund", "pay"]


@both
async def test_one_that_fails_is_in_the_manual_queue_until_it_is_tried_again(ledger: Ledger, mode: str) -> None:
    """The status never says more than is true; the second try has an action and a key of its own."""
    shop = Shop(mode, ledger)
    paid = shop.pay()
    shop.far.faults["refund"] = raising(Ended(Rejected("bank closed")))
    first = await shop.undo(paid)
    assert (first.code, shop.state(paid)) == ("rejected", "compensation_pending")
    (case,) = shop.desk.queue()
    assert (case.action.id, "bank closed" in case.reason) == (paid.action_id, True)
    shop.far.faults.clear()
    second = await shop.undo(paid)
    assert (second.code, shop.state(paid), shop.desk.queue()) == ("succeeded", "compensated", [])
    assert second.action_id != first.action_id
    assert second.idempotency_key != first.idempotency_key
    assert triggers_of(ledger, paid)[-4:] == ["compensate", "escalate", "compensate_again", "compensated"]


@both
async def test_one_that_is_unknown_is_asked_about_and_not_sent_again(ledger: Ledger, mode: str) -> None:
    """Its reply was lost: the bank has it."""
    shop = Shop(mode, ledger)
    paid = shop.pay()
    shop.far.faults["refund, answered"] = raising(TimeoutError())
    assert (await shop.undo(paid)).receipt == "R-2"
    assert (shop.state(paid), shop.far.done) == ("compensated", ["pay", "refund"])


@both
async def test_one_that_nobody_can_tell_about_waits_for_a_person(ledger: Ledger, mode: str) -> None:
    """Unknown stays pending, however often it is asked for; what a person says ends it."""
    shop = Shop(mode, ledger, refund={"query": None, "remote": "opaque"})
    paid = shop.pay()
    shop.far.faults["refund, answered"] = raising(TimeoutError())
    unknown = await shop.undo(paid)
    assert (unknown.code, shop.state(paid)) == ("manual_review", "compensation_pending")
    assert (await shop.undo(paid)).action_id == unknown.action_id
    undo = ledger.action(str(unknown.action_id))
    shop.desk.resolve(undo.id, Happened("RF-9"), by="mia", fingerprint=undo.fingerprint)
    end = await shop.undo(paid)
    assert (end.receipt, shop.state(paid), shop.far.done) == ("RF-9", "compensated", ["pay", "refund"])


@both
async def test_one_that_needs_an_approval(ledger: Ledger, mode: str) -> None:
    """It waits, and nothing is undone; approved and carried on it ends the payment too."""
    shop = Shop(mode, ledger, refund={"approval": always})
    paid = shop.pay()
    waits = await shop.undo(paid)
    assert (waits.code, shop.state(paid), shop.far.done) == ("waiting_for_approval", "compensation_pending", ["pay"])
    undo = ledger.action(str(waits.action_id))
    shop.desk.decide(undo.id, Approve(), by="sam", fingerprint=undo.fingerprint)
    end = await shop.retry(undo.id)
    assert (end.code, shop.state(paid), shop.far.done) == ("succeeded", "compensated", ["pay", "refund"])


@both
async def test_one_that_a_person_denies_leaves_what_was_done(ledger: Ledger, mode: str) -> None:
    """Denied is not undone: it is for a person, and may be asked for once more."""
    shop = Shop(mode, ledger, refund={"approval": always})
    paid = shop.pay()
    waits = await shop.undo(paid)
    undo = ledger.action(str(waits.action_id))
    shop.desk.decide(undo.id, Reject("keep it"), by="sam", fingerprint=undo.fingerprint)
    again = await shop.undo(paid)
    assert (again.code, shop.state(paid)) == ("waiting_for_approval", "compensation_pending")
    assert (again.action_id != undo.id, shop.far.done) == (True, ["pay"])


def test_one_that_waits_is_not_edited(ledger: Ledger) -> None:
    """An edited undoing would be another action, and both might run: it is approved as it is, or rejected."""
    shop = Shop("sync", ledger, refund={"approval": always})
    paid = shop.pay()
    undo = ledger.action(str(shop.desk.compensate(str(paid.action_id), by="mia").action_id))
    with pytest.raises(NotPermitted, match="approve it as it is, or reject it"):
        shop.desk.decide(undo.id, Edit({"receipt": "R-1b"}), by="sam", fingerprint=undo.fingerprint)
    shop.desk.decide(undo.id, Approve(), by="sam", fingerprint=undo.fingerprint)
    shop.desk.compensate(str(paid.action_id), by="mia")
    assert (shop.state(paid), shop.far.done) == ("compensated", ["pay", "refund"])


def test_asked_for_by_eight_people_at_once_it_is_undone_once(ledger: Ledger) -> None:
    """Whoever is first begins it; the others carry the same one on, or wait for it."""
    shop = Shop("sync", ledger)
    paid = shop.pay()
    start, codes = threading.Barrier(8), []

    def undo() -> None:
        start.wait(10)
        codes.append(shop.desk.compensate(str(paid.action_id), by="mia").code)

    threads = [threading.Thread(target=undo) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert shop.far.done == ["pay", "refund"]
    assert set(codes) <= {"succeeded", "in_progress"}
    assert (len(codes), shop.desk.compensate(str(paid.action_id), by="mia").code) == (8, "succeeded")
    assert sorted(states(ledger.url)) == ["compensated", "succeeded"]


@pytest.mark.parametrize("broken", [lambda done: done.result["none"], lambda done: 7, lambda done: {"receipt": None}])
@both
async def test_arguments_that_cannot_be_made_begin_nothing(ledger: Ledger, mode: str, broken: Any) -> None:
    """The payment stays as it was, and the error names what is wrong."""
    shop = Shop(mode, ledger)
    with_broken = shop_tools(shop.far, contracts={"pay": {"compensate": Compensation(shop.tools["refund"], broken)}})
    paid = perform(with_broken["pay"], ORDER, ledger=ledger, thread_id="t")
    shop.desk = Desk(ledger, tools=[with_broken["pay"]])
    with pytest.raises(InvalidArguments):
        await shop.undo(paid)
    assert (shop.state(paid), shop.far.done, len(states(ledger.url))) == ("succeeded", ["pay"], 1)


@both
async def test_what_cannot_be_undone_is_refused(ledger: Ledger, mode: str) -> None:
    """What has not succeeded, has no way back, is not there, is another tenant's, or is denied by a policy."""
    from settled import Deny

    shop = Shop(mode, ledger, refund={"approval": lambda planned: Deny("not by us")})
    paid = shop.pay()
    with pytest.raises(NotPermitted, match="not by us"):
        await shop.undo(paid)
    assert shop.state(paid) == "succeeded"
    shop.far.faults["pay"] = raising(Ended(Rejected("no")))
    with pytest.raises(AlreadyDecided, match="only what has succeeded"):
        await shop.undo(shop.pay("u"))
    shipped = perform(shop.tools["ship"], ORDER, ledger=ledger, thread_id="t")
    with pytest.raises(ContractError, match="says no way to undo it"):
        Desk(ledger, tools=[shop.tools["ship"]]).compensate(str(shipped.action_id), by="mia")
    with pytest.raises(NotFound):
        Desk(ledger, tools=[shop.tools["pay"]], tenant="acme").compensate(str(paid.action_id), by="mia")


def test_one_that_was_away_is_tried_again_and_each_try_is_an_intent_of_its_own(database_url: str) -> None:
    """Five tries of an undoing that is turned down are five actions, and the payment stays pending all the while."""
    clock = Clock()
    with opened(database_url, clock=clock) as ledger:
        shop = Shop("sync", ledger, clock=clock, refund={"max_attempts": 1})
        paid = shop.pay()
        shop.far.faults["refund"] = raising(Ended(Refused("busy")))
        tries = [shop.desk.compensate(str(paid.action_id), by="mia") for _ in range(5)]
        assert len({one.action_id for one in tries}) == len({one.idempotency_key for one in tries}) == 5
        assert (shop.state(paid), shop.far.done) == ("compensation_pending", ["pay"])


def test_by_default_arguments_come_from_the_result_the_arguments_or_the_receipt(ledger: Ledger) -> None:
    """Each by its name."""
    got: list[tuple[str, int, str]] = []

    @action(risk="non_idempotent_write", identity="all")
    def release(seat: str, row: int, receipt: str) -> None:
        """Release a seat."""
        got.append((seat, row, receipt))

    @action(risk="non_idempotent_write", identity="all", compensate=release)
    def reserve(row: int) -> dict[str, str]:
        """Reserve a seat."""
        return {"seat": "C", "receipt": "S-1"}

    held = perform(reserve, {"row": 12}, ledger=ledger, thread_id="t")
    Desk(ledger, tools=[reserve]).compensate(str(held.action_id), by="mia")
    assert got == [("C", 12, "S-1")]


@both
async def test_one_that_was_begun_as_another_tool_is_neither_sent_nor_asked_about_as_this_one(
    ledger: Ledger, mode: str
) -> None:
    """A deploy has changed the way back while a refund waited for its approval: nothing of the new one is called under
    the refund's approval and key; done by its own tool, it is what undid the payment.
    """
    shop = Shop(mode, ledger, refund={"approval": always})
    paid = shop.pay()
    undo = ledger.action(str((await shop.undo(paid)).action_id))
    changed = shop_tools(shop.far, contracts={"pay": {"compensate": shop.tools["give_back"]}})
    deployed = Desk(ledger, tools=[changed["pay"], shop.tools["refund"]])
    shop.desk, before = deployed, shop.desk
    deployed.decide(undo.id, Approve(), by="sam", fingerprint=undo.fingerprint)
    with pytest.raises(ContractError, match=f"by {undo.id}, of the tool refund and not give_back"):
        await shop.undo(paid)
    assert (ledger.action(undo.id).state, shop.far.done) == ("approved", ["pay"])
    before.retry(undo.id, by="sam")
    told = await shop.undo(paid)
    assert (told.code, told.action_id, shop.state(paid)) == ("succeeded", undo.id, "compensated")
    assert shop.far.done == ["pay", "refund"]


@both
async def test_an_undoing_is_not_undone(ledger: Ledger, mode: str) -> None:
    """The ledger says that the payment is undone, and its business key is free: nothing may bring it back unseen."""
    shop = Shop(mode, ledger)
    refund = shop_tools(
        shop.far, contracts={"refund": {"compensate": Compensation(shop.tools["pay"], lambda _: ORDER)}}
    )
    paid = shop.pay()
    undone = await shop.undo(paid)
    with pytest.raises(NotPermitted, match=f"undoes {paid.action_id}"):
        Desk(ledger, tools=[refund["refund"]]).compensate(str(undone.action_id), by="mia")
    assert (shop.state(paid), shop.far.done) == ("compensated", ["pay", "refund"])


@both
async def test_what_nobody_could_undo_a_person_has_undone_by_hand(ledger: Ledger, mode: str) -> None:
    """It leaves the manual queue, its business key is free, and nobody undoes it once more; not while the refund may
    still act.
    """
    shop = Shop(mode, ledger, pay={"unique": ("order",)}, refund={"approval": always})
    paid = shop.pay()
    undo = ledger.action(str((await shop.undo(paid)).action_id))
    with pytest.raises(AlreadyDecided, match=f"may still be undone by {undo.id}"):
        shop.desk.undone(str(paid.action_id), by="mia")
    shop.desk.decide(undo.id, Reject("the bank is shut"), by="sam", fingerprint=undo.fingerprint)
    for _ in range(2):
        assert shop.desk.undone(str(paid.action_id), by="mia", note="in cash").state == "compensated"
    last = ledger.timeline(str(paid.action_id))[-1]
    assert (last.trigger, last.actor, last.detail) == ("compensated", "mia", {"by_hand": True, "note": "in cash"})
    with pytest.raises(AlreadyDecided, match="undone by hand"):
        await shop.undo(paid)
    assert (shop.desk.queue(), shop.pay("u").code, shop.far.done) == ([], "succeeded", ["pay", "pay"])
    with pytest.raises(NotFound):
        Desk(ledger, tenant="acme").undone(str(paid.action_id), by="mia")
