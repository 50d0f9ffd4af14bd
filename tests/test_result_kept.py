"""An effect that happened is never lost because of what its result looks like."""

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from pydantic import BaseModel

from acts import Door, action_of, both_doors, rows
from settled import Code, Ledger, Rejected, State, Succeeded, action


class Ticket(BaseModel):
    receipt: str
    amount: Decimal


class Stubborn:
    """Has no text."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class Odd(dict[str, object]):
    """A mapping whose receipt cannot be read."""

    def get(self, *_: object) -> object:  # type: ignore[override]
        raise RuntimeError("no")


def cyclic() -> object:
    ring: list[object] = []
    ring.append(ring)
    return ring


def deep() -> object:
    value: object = 1
    for _ in range(5000):
        value = [value]
    return value


RESULTS: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "nul": lambda: {"text": "a\x00b"},
    "nul in a key": lambda: {"a\x00b": 1},
    "nul in the receipt": lambda: {"receipt": "R\x001"},
    "an escaped nul": lambda: {"text": "\\u0000"},
    "a backslash before a nul": lambda: {"text": "\\\x00"},
    "lone surrogate": lambda: {"text": "\ud800"},
    "lone surrogate alone": lambda: "\udfff",
    "lone surrogate in the receipt": lambda: {"receipt": "R-\ud800"},
    "nan": lambda: {"amount": math.nan, "other": math.inf},
    "huge": lambda: {"text": "x" * 3_000_000},
    "huge receipt": lambda: {"receipt": "R" * 100_000},
    "huge number": lambda: {"number": 10**400},
    "cyclic": cyclic,
    "deep": deep,
    "bytes": lambda: b"\xff\x00\xfe",
    "a set": lambda: {1, 2},
    "a model": lambda: Ticket(receipt="R-1", amount=Decimal("1.50")),
    "an instant": lambda: datetime(2026, 1, 1, tzinfo=UTC),
    "an object": object,
    "without text": Stubborn,
    "a list without text": lambda: [Stubborn()],
    "odd": Odd,
    "a generator": lambda: (n for n in range(3)),
    "keys that are no text": lambda: {(1, 2): 3, None: 4},
    "said to have succeeded": lambda: Succeeded({"x": "\x00"}, "R-\x001"),
    "a receipt that is no text": lambda: Succeeded("x", 5),  # type: ignore[arg-type]
}


@both_doors
@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
async def test_a_success_is_recorded_whatever_it_returned(
    door: Door, result: Callable[[], object], ledger: Ledger
) -> None:
    """Succeeded, once; the replay answers the same; what is stored is JSON of a bounded size."""
    effects: list[int] = []

    @action(risk="non_idempotent_write", remote="opaque", identity="all")
    def pay(order: int) -> object:
        effects.append(order)
        return result()

    first = await door(pay, [1], ledger=ledger)
    again = await door(pay, [1], ledger=ledger)
    assert (first.code, first.state) == (Code.SUCCEEDED, State.SUCCEEDED)
    assert (again.code, again.result, again.receipt) == (Code.DUPLICATE, first.result, first.receipt)
    assert effects == [1]
    stored = rows(ledger.url, "SELECT result::text, receipt FROM settled.actions")[0]
    assert len(stored["result"]) <= 1024 * 1024
    json.loads(stored["result"])
    assert len(stored["receipt"] or "") <= 256
    for outcome in (first, again):
        outcome.message.encode()
        json.dumps(outcome.artifact, allow_nan=False).encode()
        assert len(outcome.message) < 100_000


@both_doors
@pytest.mark.parametrize("reason", ["a\x00b", "\ud800", "x" * 1_000_000, "{braces} %s\n\u202e"], ids=range(4))
async def test_a_rejection_is_recorded_whatever_its_reason(door: Door, reason: str, ledger: Ledger) -> None:
    """Hostile words of the remote side end in the reason, on one line, and break nothing."""

    @action(risk="non_idempotent_write", remote="opaque", identity="all")
    def pay(order: int) -> object:
        return Rejected(reason, "R-\x00\ud800")

    outcome = await door(pay, [1], ledger=ledger)
    assert (outcome.code, outcome.state) == (Code.REJECTED, State.FAILED)
    outcome.message.encode()
    assert len(outcome.message) < 3000
    assert action_of(ledger, outcome).reason
