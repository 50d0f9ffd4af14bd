"""Bad input gets the `invalid` answer or a typed error, before anything is sent, and leaves no row that could run."""

import json
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import pytest
from pydantic import AliasChoices, BaseModel, Field

from acts import Door, Remote, both_doors, count
from settled import Code, ContractError, InvalidArguments, Ledger, Outcome, action
from settled.state import ledger as operations
from settled.tools.contract import ActionTool


class Line(BaseModel):
    sku: str
    amount: float


def order(remote: Remote) -> ActionTool:
    @action(risk="non_idempotent_write", remote="opaque", identity=("order_id",))
    def order(order_id: str, amount: float = 1, count: int = 1, lines: list[Line] = [], extra: Any = None) -> object:  # noqa: B006
        return remote.do()

    return order


def nested(levels: int) -> object:
    value: object = "deep"
    for _ in range(levels):
        value = [value]
    return value


BAD: dict[str, tuple[object, str]] = {
    "wrong type": ({"order_id": ["A"]}, "order_id"),
    "number for a text": ({"order_id": 5}, "order_id"),
    "text for a number": ({"order_id": "A", "amount": "a lot"}, "amount"),
    "none for a text": ({"order_id": None}, "order_id"),
    "boolean for a number": ({"order_id": "A", "amount": True}, "amount"),
    "boolean for a count": ({"order_id": "A", "count": False}, "count"),
    "fraction for a count": ({"order_id": "A", "count": 1.5}, "count"),
    "nan": ({"order_id": "A", "amount": float("nan")}, "amount"),
    "nan as text": ({"order_id": "A", "amount": "nan"}, "amount"),
    "infinity": ({"order_id": "A", "amount": float("inf")}, "amount"),
    "nan deep inside": ({"order_id": "A", "extra": {"a": [1, {"b": float("nan")}]}}, "extra.a[1].b"),
    "nul": ({"order_id": "A\x00"}, "order_id"),
    "nul in a key": ({"order_id": "A", "extra": {"k\x00": 1}}, "extra"),
    "nul deep inside": ({"order_id": "A", "lines": [{"sku": "x\x00", "amount": 1}]}, "lines[0].sku"),
    "lone surrogate": ({"order_id": "\ud800"}, "order_id"),
    "lone surrogate in a key": ({"order_id": "A", "extra": {"\udfff": 1}}, "extra"),
    "2**70": ({"order_id": "A", "count": 2**70}, "count"),
    "-2**70 deep inside": ({"order_id": "A", "extra": [-(2**70)]}, "extra[0]"),
    "200 levels": ({"order_id": "A", "extra": nested(200)}, "extra"),
    "50000 levels": ({"order_id": "A", "extra": nested(50_000)}, "extra"),
    "10 MB": ({"order_id": "A" * 10_000_000}, "order_id"),
    "10 MB of small parts": ({"order_id": "A", "extra": ["x" * 10] * 1_000_000}, "extra"),
    "missing identity field": ({"amount": 1}, "order_id"),
    "nothing": ({}, "order_id"),
    "unknown argument": ({"order_id": "A", "oder_id": "B"}, "oder_id"),
    "key that is no text": ({"order_id": "A", 5: "B"}, "5"),
    "too many by position": (["A", 1, 1, [], None, "more"], "arguments"),
    "a text": ("A", "arguments"),
    "bytes": (b"A", "arguments"),
    "nothing at all": (None, "arguments"),
    "a number": (5, "arguments"),
    "wrong inside a list": ({"order_id": "A", "lines": [{"sku": "x", "amount": 1}, {"sku": "x"}]}, "lines[1].amount"),
    "a Python object": ({"order_id": "A", "extra": object()}, "extra"),
    "a set": ({"order_id": "A", "extra": {object()}}, "extra"),
    "repeat_of of a wrong type": ({"order_id": "A", "repeat_of": 5}, "repeat_of"),
    "repeat_of nothing": ({"order_id": "A", "repeat_of": "act-none"}, "repeat_of"),
}


def is_invalid(outcome: Outcome, field: str) -> None:
    assert (outcome.code, outcome.state, outcome.action_id) == (Code.INVALID, None, None)
    assert outcome.artifact["may_retry"] is True
    named = outcome.told.facts.field or ""
    assert named == field or (field == "extra" and named.startswith(("extra[", "extra.")))
    assert named in outcome.message
    assert outcome.told.facts.reason
    assert len(outcome.message) < 2000
    outcome.message.encode()
    json.dumps(outcome.artifact).encode()


@both_doors
@pytest.mark.parametrize(("arguments", "field"), BAD.values(), ids=BAD)
async def test_bad_arguments_are_answered_by_field_and_rule(
    door: Door, arguments: Any, field: str, ledger: Ledger
) -> None:
    """The answer names the field and the rule; nothing is sent and no row is written."""
    remote = Remote()
    is_invalid(await door(order(remote), arguments, ledger=ledger), field)
    assert remote.effects == []
    assert (count(ledger.url), count(ledger.url, "settled.events"), count(ledger.url, "settled.decisions")) == (0, 0, 0)


@both_doors
@pytest.mark.parametrize("name", ["", "a\x00b", "\ud800", "x" * 513, "line\nbreak", 5, None], ids=repr)
@pytest.mark.parametrize("what", ["thread_id", "tenant"])
async def test_bad_names_are_refused(door: Door, what: str, name: Any, ledger: Ledger) -> None:
    """A thread or tenant that cannot be a name is named as the fault."""
    remote = Remote()
    outcome = await door(order(remote), ["A"], ledger=ledger, **{what: name})
    assert outcome.code == Code.INVALID
    assert outcome.told.facts.field == what
    assert (remote.effects, count(ledger.url)) == ([], 0)


@both_doors
@pytest.mark.parametrize("option", ["requester", "correlation_id", "decision"])
@pytest.mark.parametrize("value", ["a\x00b", "\ud800"], ids=repr)
async def test_a_bad_option_is_a_typed_answer(door: Door, option: str, value: str, ledger: Ledger) -> None:
    """What only accompanies a call is judged before the body as well."""
    remote = Remote()
    outcome = await door(order(remote), ["A"], ledger=ledger, **{option: value})
    if (option, value) == ("decision", "a\x00b"):  # it is only hashed, and that can be
        assert (outcome.code, len(remote.effects)) == (Code.SUCCEEDED, 1)
        return
    assert (outcome.code, remote.effects, count(ledger.url)) == (Code.INVALID, [], 0)
    assert outcome.told.facts.field == ("arguments" if option == "decision" else option)


@both_doors
@pytest.mark.parametrize("value", [5, UUID(int=1), [1], ["click", None], [["click"]], {"a": 1}, {"click"}], ids=repr)
async def test_a_decision_that_is_no_text_is_named(door: Door, value: Any, ledger: Ledger) -> None:
    """What names a request is a text or several; anything else is refused before the body."""
    remote = Remote()
    outcome = await door(order(remote), ["A"], ledger=ledger, decision=value)
    assert (outcome.code, outcome.told.facts.field) == (Code.INVALID, "decision")
    assert (remote.effects, count(ledger.url)) == ([], 0)


ALIASED: dict[str, Any] = {
    "alias": Field(alias="sum"),
    "validation_alias": Field(validation_alias="sum"),
    "alias choices": Field(validation_alias=AliasChoices("total", "sum")),
}


@both_doors
@pytest.mark.parametrize("field", ALIASED.values(), ids=ALIASED)
async def test_a_boolean_is_no_number_under_another_name_either(door: Door, field: Any, ledger: Ledger) -> None:
    """True would be carried out as 1: it is refused by whatever name it was sent, and the field is named."""
    got: list[object] = []

    @action(risk="non_idempotent_write", remote="opaque", identity=("order_id",))
    def pay(order_id: str, amount: Annotated[int, field]) -> object:
        got.append(amount)
        return {"receipt": "R-1"}

    for name in ("sum", "amount"):
        outcome = await door(pay, {"order_id": "A", name: True}, ledger=ledger)
        assert (outcome.code, outcome.told.facts.field) == (Code.INVALID, "amount"), name
    assert (got, count(ledger.url)) == ([], 0)
    done = await door(pay, {"order_id": "A", "sum": 1}, ledger=ledger)
    assert (done.code, got) == (Code.SUCCEEDED, [1])


@both_doors
@pytest.mark.parametrize("tool", [None, "refund", print, object(), 5], ids=lambda tool: type(tool).__name__)
async def test_an_unknown_tool_is_a_typed_error(door: Door, tool: object, ledger: Ledger) -> None:
    """What was not declared with @action has no contract."""
    with pytest.raises(ContractError, match="no contract"):
        await door(tool, {}, ledger=ledger)
    assert count(ledger.url) == 0


@both_doors
async def test_hard_but_good_input_survives(door: Door, ledger: Ledger) -> None:
    """Emoji, combining marks, right-to-left text, 63-bit numbers, 60 levels: carried out as given."""
    got: list[object] = []

    @action(risk="non_idempotent_write", remote="opaque", identity="all")
    def keep(text: str, number: int, amount: Decimal, extra: Any) -> object:
        got.extend([text, number, amount, extra])
        return {"text": text}

    text, extra = "e\u0301 שלום 你好 👩‍👩‍👧 \u202e {braces} %s", nested(60)
    outcome = await door(keep, [text, 2**63 - 1, "1e3", extra], ledger=ledger)
    assert outcome.code == Code.SUCCEEDED
    assert got == [text, 2**63 - 1, Decimal("1e3"), extra]
    assert outcome.result == {"text": text}


@both_doors
async def test_a_body_may_say_invalid(door: Door, ledger: Ledger) -> None:
    """A 422 of the remote side names field and rule too, and a corrected call may follow."""
    from settled import Invalid

    @action(risk="non_idempotent_write", remote="opaque", identity=("order_id",))
    def pay(order_id: str, amount: float) -> object:
        return Invalid("must be at most 100", "amount") if amount > 100 else {"receipt": "R-1"}

    refused = await door(pay, ["A", 500], ledger=ledger)
    assert (refused.code, refused.artifact["may_retry"]) == (Code.INVALID, True)
    assert "amount" in refused.message
    assert "at most 100" in refused.message
    assert (await door(pay, ["A", 100], ledger=ledger)).receipt == "R-1"


@pytest.mark.parametrize("name", ["act-\ud800", "act-\x00"], ids=["half of a pair", "NUL"])
async def test_a_name_that_no_row_can_hold_is_refused_by_its_rule(name: str, ledger: Ledger) -> None:
    """An id from a URL or a message may be anything; what Postgres cannot read is no fault of the ledger's."""
    with pytest.raises(InvalidArguments, match="text: has a character that cannot be stored"):
        ledger.action(name)
    with pytest.raises(InvalidArguments, match="text: has a character that cannot be stored"):
        await ledger.arun(operations.load("default", name))
