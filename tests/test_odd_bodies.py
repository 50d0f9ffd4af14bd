"""A body that ends in an unexpected way is read as what it is, answered at once, and its bugs are in the log."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from acts import Door, action_of, both_doors, events_of, rows, through_sync
from settled import (
    Code,
    ContractError,
    Found,
    Invalid,
    Ledger,
    Outcome,
    Rejected,
    State,
    Succeeded,
    Unknown,
    action,
    perform,
)
from settled.tools.contract import ActionTool
from settled.tools.outcome import Ended

SLOW_S = 5.0
"""The timeout of these tools: an end that got lost would take this long."""


def tool(body: Callable[[], object], *, asynchronous: bool = False, **contract: Any) -> ActionTool:
    """A tool on a remote side that cannot be asked (unless `contract` says so) whose body does what is given."""
    declare = action(
        **{"risk": "non_idempotent_write", "remote": "opaque", "identity": "all", "timeout": SLOW_S, **contract}
    )
    if asynchronous:

        async def apay(order: int) -> object:
            return body()

        return declare(apay)

    def pay(order: int) -> object:
        return body()

    return declare(pay)


def raising(error: BaseException) -> Callable[[], object]:
    def body() -> object:
        raise error

    return body


def lost(ledger: Ledger, outcome: Outcome) -> str:
    """Return what the timeline says of the attempt that ended unknown."""
    (event,) = [event for event in events_of(ledger, outcome) if event.trigger == "lose"]
    return str(event.detail)


async def agen() -> AsyncIterator[int]:
    yield 1


def test_a_body_that_yields_is_refused_where_it_is_declared() -> None:
    """Calling it would run nothing: the sentence says to return what it yields."""

    def pay(order: int) -> Iterator[int]:
        yield order

    async def apay(order: int) -> AsyncIterator[int]:
        yield order

    for function in (pay, apay):
        with pytest.raises(ContractError, match="yields"):
            action(risk="non_idempotent_write", remote="opaque", identity="all")(function)


@both_doors
@pytest.mark.parametrize("made", [lambda: (n for n in range(3)), agen], ids=["generator", "async generator"])
async def test_a_generator_that_a_body_returns_has_done_nothing_yet(
    door: Door, made: Callable[[], object], ledger: Ledger
) -> None:
    """Its code may hold the effect, and it has not run: never a success."""
    outcome = await door(tool(made), [1], ledger=ledger)
    assert (outcome.code, outcome.state, outcome.receipt) == (Code.MANUAL_REVIEW, State.UNKNOWN, None)
    assert "generator" in lost(ledger, outcome)


INNER: dict[str, tuple[Callable[[], object], Code, State, str | None]] = {
    "succeeded": (lambda: Succeeded({"n": 1}, "R-1"), Code.SUCCEEDED, State.SUCCEEDED, "R-1"),
    "rejected": (lambda: Rejected("paid already", "R-0"), Code.REJECTED, State.FAILED, "R-0"),
    "invalid": (lambda: Invalid("must be small", "order"), Code.REJECTED, State.FAILED, None),
    "unknown": (lambda: Unknown("no answer"), Code.MANUAL_REVIEW, State.UNKNOWN, None),
}


@both_doors
@pytest.mark.parametrize(("body", "code", "state", "receipt"), INNER.values(), ids=INNER)
async def test_the_outcome_of_an_inner_call_is_the_outcome_of_the_body_that_returns_it(
    door: Door, body: Callable[[], object], code: Code, state: State, receipt: str | None, ledger: Ledger
) -> None:
    """A tool that is made of another one tells no success where the inner one had none."""
    inner = tool(body, name="inner")
    outer = tool(lambda: perform(inner, [1], ledger=ledger, thread_id="inner"), name="outer")
    outcome = await door(outer, [1], ledger=ledger)
    assert (outcome.code, outcome.state, outcome.receipt) == (code, state, receipt)
    if state is State.SUCCEEDED:
        assert outcome.result == {"n": 1}


@both_doors
async def test_the_duplicate_of_an_inner_call_is_a_success(door: Door, ledger: Ledger) -> None:
    """What the inner call answers from the ledger did happen."""
    done: list[int] = []

    def pay() -> object:
        done.append(1)
        return {"receipt": "R-1"}

    inner = tool(pay, name="inner")
    perform(inner, [1], ledger=ledger, thread_id="inner")
    outer = tool(lambda: perform(inner, [1], ledger=ledger, thread_id="inner"), name="outer")
    outcome = await door(outer, [1], ledger=ledger)
    assert (outcome.code, outcome.receipt, done) == (Code.SUCCEEDED, "R-1", [1])


ODD: dict[str, tuple[Callable[[], object], Code, State, str]] = {
    "Rejected(None)": (lambda: Rejected(None), Code.REJECTED, State.FAILED, "no reason was given"),  # type: ignore[arg-type]
    "Unknown(None)": (lambda: Unknown(None), Code.MANUAL_REVIEW, State.UNKNOWN, ""),  # type: ignore[arg-type]
    "Invalid, field 5": (lambda: Invalid("x", 5), Code.INVALID, State.FAILED, "x"),  # type: ignore[arg-type]
    "an error as reason": (lambda: Rejected(ValueError("sold out")), Code.REJECTED, State.FAILED, "sold out"),  # type: ignore[arg-type]
    "a receipt that is no text": (lambda: Rejected("x", 5), Code.REJECTED, State.FAILED, "x"),  # type: ignore[arg-type]
    "Ended(Unknown(None))": (raising(Ended(Unknown(None))), Code.MANUAL_REVIEW, State.UNKNOWN, ""),  # type: ignore[arg-type]
    "Ended(Rejected(None))": (raising(Ended(Rejected(None))), Code.REJECTED, State.FAILED, "no reason was given"),  # type: ignore[arg-type]
}


@both_doors
@pytest.mark.parametrize(("body", "code", "state", "reason"), ODD.values(), ids=ODD)
async def test_an_outcome_without_proper_words_is_recorded(
    door: Door, body: Callable[[], object], code: Code, state: State, reason: str, ledger: Ledger
) -> None:
    """Whatever stands in its reason, field and receipt: the action is settled, once."""
    outcome = await door(tool(body), [1], ledger=ledger)
    again = await door(tool(body), [1], ledger=ledger)
    assert [(o.code, o.state) for o in (outcome, again)] == [(code, state)] * 2
    assert outcome.action_id == again.action_id or code is Code.INVALID
    assert reason in str(action_of(ledger, outcome).reason)
    assert reason in outcome.message


@both_doors
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync body", "async body"])
async def test_a_stop_iteration_is_an_end_like_any_other(door: Door, asynchronous: bool, ledger: Ledger) -> None:
    """A future cannot hold one, so it could be lost: it is heard at once, and not at the timeout."""
    begun = time.monotonic()
    outcome = await door(tool(raising(StopIteration(5)), asynchronous=asynchronous), [1], ledger=ledger)
    assert (outcome.code, outcome.state) == (Code.MANUAL_REVIEW, State.UNKNOWN)
    assert time.monotonic() - begun < SLOW_S


async def aquery_that_stops(inquiry: object) -> Found:
    raise StopIteration


def query_that_stops(inquiry: object) -> Found:
    raise StopIteration


@both_doors
@pytest.mark.parametrize("query", [query_that_stops, aquery_that_stops], ids=["sync query", "async query"])
async def test_a_stop_iteration_of_a_query_tells_nothing_and_is_heard_at_once(
    door: Door, query: Callable[[object], Any], ledger: Ledger
) -> None:
    """It could not tell; a person decides, long before the query's timeout."""
    begun = time.monotonic()
    asking = tool(lambda: Unknown("no answer"), remote="queryable", query=query, settle_window=SLOW_S, deadline=SLOW_S)
    call: Awaitable[Any] = door(asking, [1], ledger=ledger)
    watched = asyncio.ensure_future(call)
    while not any(await asyncio.to_thread(_asked, ledger)):
        assert time.monotonic() - begun < SLOW_S, "the first query was not heard before its timeout"
        await asyncio.sleep(0.02)
    watched.cancel()
    await asyncio.gather(watched, return_exceptions=True)


def _asked(ledger: Ledger) -> list[int]:
    return [row["queries"] for row in rows(ledger.url, "SELECT queries FROM settled.actions")]


@both_doors
async def test_a_bug_in_a_body_is_in_the_log_and_not_in_the_message(
    door: Door, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """The traceback is for the author; the model reads the name of a class at most."""
    with caplog.at_level(logging.WARNING, "settled"):
        outcome = await door(tool(raising(KeyError("hunter2, try again")), name="buggy"), [1], ledger=ledger)
    (logged,) = [record for record in caplog.records if "buggy" in record.getMessage()]
    assert logged.exc_info is not None
    assert isinstance(logged.exc_info[1], KeyError)
    assert logged.exc_info[2] is not None
    assert "no definite answer (KeyError)" in lost(ledger, outcome)
    for told in (outcome.message, str(outcome.artifact)):
        assert "hunter2" not in told


async def test_what_an_author_says_on_purpose_is_no_bug(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    """`Ended` is an answer: nothing is logged."""
    with caplog.at_level(logging.WARNING, "settled"):
        outcome = await through_sync(tool(raising(Ended(Rejected("sold out")))), [1], ledger=ledger)
    assert outcome.code == Code.REJECTED
    assert [record for record in caplog.records if record.name.startswith("settled")] == []
