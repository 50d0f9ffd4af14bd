"""An effect that happened is never lost because of what its result looks like."""

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from pydantic import BaseModel

from acts import Door, action_of, both_doors, rows
from settled import (
    Backoff,
    Code,
    Conflict,
    Forbidden,
    Found,
    Inconclusive,
    Invalid,
    Ledger,
    Refused,
    Rejected,
    State,
    Succeeded,
    Unknown,
    action,
)

QUICK = Backoff(first=0.01, cap=0.01, jitter=0)


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


HOSTILE = ["a\x00b", "\ud800", "x" * 500_000]


@both_doors
@pytest.mark.parametrize("text", HOSTILE, ids=range(3))
@pytest.mark.parametrize("kind", [Unknown, Forbidden, Conflict, Invalid, Refused])
async def test_every_end_is_recorded_whatever_its_words(
    door: Door, kind: Callable[[str], object], text: str, ledger: Ledger
) -> None:
    """No words of a remote side keep an outcome from being written down."""

    @action(risk="non_idempotent_write", remote="opaque", identity="all", max_attempts=2, backoff=QUICK)
    def pay(order: int) -> object:
        return kind(text)

    outcome = await door(pay, [1], ledger=ledger)
    assert outcome.state == (State.UNKNOWN if kind is Unknown else State.FAILED)
    assert len(outcome.message.encode()) < 3000
    assert len(action_of(ledger, outcome).reason or "") <= 2000


@both_doors
@pytest.mark.parametrize("text", HOSTILE, ids=range(3))
@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (lambda t: Found(t, {"t": t}), State.SUCCEEDED),
        (lambda t: Found("R-1", fields={"order": t}), State.UNKNOWN),
        (lambda t: Found("R-1", fields={t: t}), State.UNKNOWN),
        (lambda t: Found(t, fingerprint=t), State.UNKNOWN),
        (lambda t: Inconclusive(t), State.UNKNOWN),
    ],
    ids=["found", "other value", "other field", "other fingerprint", "inconclusive"],
)
async def test_every_answer_of_a_query_is_recorded(
    door: Door, answer: Callable[[str], object], state: State, text: str, ledger: Ledger
) -> None:
    """Nor the words of a query's answer: it settles the action, or a person sees it."""

    @action(
        risk="non_idempotent_write", remote="queryable", identity="all", query=lambda _: answer(text),
        timeout=0.05, settle_window=0.05,
    )  # fmt: skip
    def pay(order: str) -> object:
        return Unknown("no answer")

    outcome = await door(pay, ["A"], ledger=ledger)
    assert outcome.state == state
    assert len(outcome.message.encode()) < 50_000
    assert len(action_of(ledger, outcome).receipt or "") <= 2000


@both_doors
@pytest.mark.parametrize("after_s", [math.nan, math.inf, -5, 1e300, "5"], ids=repr)
async def test_an_odd_retry_after_ends_the_call_and_not_the_process(
    door: Door, after_s: object, ledger: Ledger
) -> None:
    """A wait that is no number of seconds is not waited for."""

    @action(risk="non_idempotent_write", remote="opaque", identity="all", max_attempts=2, backoff=QUICK)
    def pay(order: int) -> object:
        return Refused("busy", after_s)  # type: ignore[arg-type]

    outcome = await door(pay, [1], ledger=ledger)
    assert (outcome.code, outcome.state) == (Code.UNAVAILABLE, State.FAILED)
