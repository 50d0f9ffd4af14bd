"""A resend that rested on no proof of absence: what the first attempt did stays open until somebody knows."""

import asyncio
from typing import Any

import pytest

from remote import DROP, Remote, busy, payment, row
from settled import Conflict, Forbidden, Invalid, Ledger, Rejected, State, aperform, perform
from settled.state.model import Claim
from settled.tools.protocol import late

CALL = {"order_id": "O-1", "amount": 118}
HARMLESS: dict[str, Any] = {"risk": "idempotent_write", "remote": "opaque", "query": None}


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_refused_after_a_lost_reply_is_not_failed(ledger: Ledger, database_url: str, mode: str) -> None:
    """Attempt 1 was done and its reply lost, every later one is refused: nobody may say that it did not happen."""
    with Remote(database_url) as remote:
        remote.next(DROP, *[busy()] * 10)
        tool = payment(remote.url, asynchronous=mode == "async", max_attempts=3, **HARMLESS)
        if mode == "async":
            end = await aperform(tool, CALL, ledger=ledger, thread_id="t")
        else:
            end = await asyncio.to_thread(perform, tool, CALL, ledger=ledger, thread_id="t")
        assert remote.count() == 1
        assert (end.code, end.state) == ("manual_review", State.UNKNOWN)
        assert row(ledger, end.action_id).attempt == 3


async def test_repeated_after_a_lost_reply_has_one_effect(ledger: Ledger, database_url: str) -> None:
    """The contract calls a repeat harmless: it is sent again under the same key, and its reply settles it."""
    with Remote(database_url) as remote:
        remote.next(DROP)
        tool = payment(remote.url, asynchronous=True, **HARMLESS)
        end = await aperform(tool, CALL, ledger=ledger, thread_id="t")
        assert (end.code, end.receipt, end.attempts, remote.count(), remote.posts()) == ("succeeded", "R-1", 2, 1, 2)


@pytest.mark.parametrize("status", [404, 409, 422, 403])
async def test_a_no_to_the_repeat_says_nothing_about_the_first(ledger: Ledger, database_url: str, status: int) -> None:
    """Attempt 1 did it and its reply was lost; the repeat hears "not found": no failure, a person decides."""
    with Remote(database_url) as remote:
        remote.next(DROP, busy(status))
        tool = payment(remote.url, asynchronous=True, **HARMLESS)
        end = await aperform(tool, CALL, ledger=ledger, thread_id="t")
        assert (end.code, end.state, end.attempts, remote.count()) == ("manual_review", State.UNKNOWN, 2, 1)


@pytest.mark.parametrize("no", [Rejected("gone"), Invalid("gone"), Forbidden("gone"), Conflict("gone")])
async def test_a_no_to_the_repeat_that_comes_late_settles_nothing(ledger: Ledger, database_url: str, no: Any) -> None:
    """The same answer after the repeat's timeout: the action stays as it is, and no statement is sent."""
    with Remote(database_url) as remote:
        tool = payment(remote.url, asynchronous=True, **HARMLESS)
        end = await aperform(tool, CALL, ledger=ledger, thread_id="t")
    action = row(ledger, end.action_id)
    assert list(late(tool.contract, action, Claim("default", action.id, 2, "x"), no)) == []
    assert next(late(tool.contract, action, Claim("default", action.id, 1, "x"), no)) is not None
