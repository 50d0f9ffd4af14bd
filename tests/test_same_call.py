"""The same call, written in other ways, is one intent: one effect, one action, one receipt."""

import asyncio
import threading
from typing import Annotated

import pytest
from pydantic import Field

from acts import Door, Remote, action_of, both_doors, count
from settled import Code, Incidental, Ledger, Ordered, action
from settled.tools.contract import ActionTool

WAYS = [
    {"order_id": "A-1", "amount": 100, "tags": ["x", "y"]},
    {"order_id": "A-1", "amount": "100", "tags": ["x", "y"]},
    {"order_id": "A-1", "amount": 100.00, "tags": ["x", "y"]},
    {"order_id": "A-1", "amount": "1e2", "tags": ["x", "y"]},
    {"order_id": "A-1", "amount": 100, "tags": ["y", "x"]},
    {"tags": ["y", "x"], "amount": 100, "order_id": "A-1"},
    {"order_id": "A-1", "amount": 100, "tags": ["x", "y"], "currency": "EUR"},
    {"orderId": "A-1", "amount": 100, "tags": ["x", "y"]},
    {"order_id": "A-1", "amount": 100, "tags": ["x", "y"], "memo": "worded anew"},
    ["A-1", 100, ["x", "y"]],
    ("A-1", "100.00", ["y", "x"], "EUR", "positional"),
]


def refund(remote: Remote) -> ActionTool:
    @action(risk="non_idempotent_write", remote="opaque", identity="all")
    def refund(
        order_id: Annotated[str, Field(alias="orderId")],
        amount: float,
        tags: list[str],
        currency: Annotated[str, Field(max_length=3)] = "EUR",
        memo: Annotated[str, Incidental()] = "",
    ) -> object:
        return remote.do(order_id=order_id, amount=amount, tags=tags)

    return refund


@both_doors
async def test_a_call_written_in_any_way_has_one_effect(door: Door, ledger: Ledger) -> None:
    """100, "100", 100.00, by position, by alias, default left out, lists in another order: one effect."""
    remote = Remote()
    tool = refund(remote)
    outcomes = [await door(tool, way, ledger=ledger) for way in WAYS]
    assert len(remote.effects) == 1
    assert count(ledger.url) == 1
    assert {o.action_id for o in outcomes} == {outcomes[0].action_id}
    assert {o.receipt for o in outcomes} == {"RF-1"}
    assert [o.code for o in outcomes] == [Code.SUCCEEDED] + [Code.DUPLICATE] * (len(WAYS) - 1)
    assert [o.replayed for o in outcomes] == [False] + [True] * (len(WAYS) - 1)


@pytest.mark.parametrize("way", WAYS, ids=range(len(WAYS)))
async def test_each_way_alone_sends_the_same_values(way: object, ledger: Ledger) -> None:
    """Whichever way comes first, the stored value is carried out: a number, and the list as it was given."""
    from acts import through_sync

    remote = Remote()
    outcome = await through_sync(refund(remote), way, ledger=ledger)  # type: ignore[arg-type]
    sent = remote.effects[0]
    assert (sent["order_id"], sent["amount"]) == ("A-1", 100.0)
    assert isinstance(sent["amount"], float)
    assert sorted(sent["tags"]) == ["x", "y"]  # type: ignore[call-overload]
    assert sent["key"] == outcome.idempotency_key
    assert action_of(ledger, outcome).arguments["order_id"] == "A-1"


@both_doors
async def test_a_text_of_digits_keeps_its_zeros(door: Door, ledger: Ledger) -> None:
    """The string field "0100" is another order than "100"."""
    remote = Remote()
    tool = refund(remote)
    for order in ("0100", "100", "100.0"):
        assert (await door(tool, [order, 5, []], ledger=ledger)).code == Code.SUCCEEDED
    assert [e["order_id"] for e in remote.effects] == ["0100", "100", "100.0"]
    assert len(set(remote.keys)) == 3


async def test_a_list_whose_order_matters_is_told_apart(ledger: Ledger) -> None:
    """`Ordered()` makes [a, b] and [b, a] two intents."""
    from acts import through_sync

    remote = Remote()

    @action(risk="idempotent_write", remote="opaque")
    def route(stops: Annotated[list[str], Ordered()]) -> object:
        return remote.do(stops=stops)

    await through_sync(route, [["a", "b"]], ledger=ledger)
    await through_sync(route, [["b", "a"]], ledger=ledger)
    again = await through_sync(route, [["a", "b"]], ledger=ledger)
    assert [e["stops"] for e in remote.effects] == [["a", "b"], ["b", "a"]]
    assert again.receipt == "RF-1"


@both_doors
async def test_none_is_a_value_and_differs_from_the_default(door: Door, ledger: Ledger) -> None:
    """Missing is the default; an explicit None is another call."""
    remote = Remote()

    @action(risk="idempotent_write", remote="opaque")
    def note(text: Annotated[str | None, Field(max_length=10)] = "hello") -> object:
        return remote.do(text=text)

    first = await door(note, {}, ledger=ledger)
    same = await door(note, {"text": "hello"}, ledger=ledger)
    other = await door(note, {"text": None}, ledger=ledger)
    empty = await door(note, {"text": ""}, ledger=ledger)
    assert first.action_id == same.action_id
    assert len({first.action_id, other.action_id, empty.action_id}) == 3
    assert [e["text"] for e in remote.effects] == ["hello", None, ""]


@both_doors
async def test_the_same_decision_meets_its_action_for_ever(door: Door, ledger: Ledger) -> None:
    """A node that runs again with one decision gets `succeeded` again, with the same action and no effect."""
    remote = Remote()
    tool = refund(remote)
    ask = ["A-1", 100, []]
    outcomes = [await door(tool, ask, ledger=ledger, decision=("msg-1", "call-1", "0")) for _ in range(3)]
    other = await door(tool, ask, ledger=ledger, decision=("msg-2", "call-9", "0"))
    assert [o.code for o in outcomes] == [Code.SUCCEEDED] * 3
    assert [o.replayed for o in outcomes] == [False, True, True]
    assert other.code == Code.DUPLICATE
    assert {o.receipt for o in [*outcomes, other]} == {"RF-1"}
    assert len(remote.effects) == 1


@both_doors
@pytest.mark.parametrize(("wait_s", "code"), [(5, Code.DUPLICATE), (0.1, Code.IN_PROGRESS)])
async def test_a_repeat_in_flight_waits_or_is_told_so(door: Door, wait_s: float, code: Code, ledger: Ledger) -> None:
    """While the first runs, the same call waits for its receipt for as long as it may, and sends nothing."""
    remote, until = Remote(), threading.Event()

    @action(risk="non_idempotent_write", remote="opaque", identity="all", timeout=5)
    def pay(order: int) -> object:
        done = remote.do()
        assert until.wait(5)
        return done

    first = asyncio.create_task(door(pay, [1], ledger=ledger))
    await asyncio.to_thread(remote.begun.wait, 5)
    second = asyncio.create_task(door(pay, [1], ledger=ledger, wait_s=wait_s))
    await asyncio.sleep(0.4)
    until.set()
    done, told = await first, await second
    assert (done.code, told.code, told.action_id) == (Code.SUCCEEDED, code, done.action_id)
    assert told.receipt == (done.receipt if code == Code.DUPLICATE else None)
    assert told.artifact["may_retry"] is False
    assert len(remote.effects) == 1


@both_doors
@pytest.mark.parametrize("decision", ["", ("m", ""), ("m\x1fc",), ("m", "c"), ("mc",), ["m", "c", "0"]], ids=range(6))
async def test_decisions_are_told_apart_by_their_parts(door: Door, decision: object, ledger: Ledger) -> None:
    """No joining of parts makes two decisions one: each begins its own action where the call differs."""
    remote = Remote()
    tool = refund(remote)
    first = await door(tool, ["A-1", 1, []], ledger=ledger, decision=decision)
    same = await door(tool, ["A-1", 1, []], ledger=ledger, decision=decision)
    other = await door(tool, ["A-2", 1, []], ledger=ledger, decision=decision)
    assert (first.code, same.code, other.code) == (Code.SUCCEEDED, Code.SUCCEEDED, Code.SUCCEEDED)
    assert same.replayed
    assert len(remote.effects) == 2
