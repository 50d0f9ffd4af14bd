"""A read: called again while the network is at fault, and not where the body itself is."""

import pytest

from acts import Door, both_doors
from settled import Backoff, Code, Ledger, Outcome, Unknown, action
from settled.tools.contract import ActionTool

SHORT = Backoff(first=0.01, cap=0.01, jitter=0)


def raising(*errors: BaseException | Unknown) -> tuple[ActionTool, list[int]]:
    calls: list[int] = []

    @action(risk="read", backoff=SHORT)
    def look() -> object:
        """Look."""
        calls.append(len(calls))
        if len(calls) > len(errors):
            return {"amount": 25}
        match errors[len(calls) - 1]:
            case Unknown() as outcome:
                return outcome
            case error:
                raise error

    return look, calls


@both_doors
@pytest.mark.parametrize("error", [ValueError("x"), KeyError("x"), TypeError(), AssertionError()], ids=repr)
async def test_a_mistake_in_the_body_is_answered_after_the_first_attempt(
    door: Door, error: Exception, ledger: Ledger
) -> None:
    """Waiting does not cure it."""
    look, calls = raising(error)
    outcome: Outcome = await door(look, {}, ledger=ledger)
    assert (outcome.code, outcome.attempts, len(calls)) == (Code.UNAVAILABLE, 1, 1)


@both_doors
async def test_a_network_at_fault_is_called_again(door: Door, ledger: Ledger) -> None:
    """A timeout, a reset, an error of somebody's library, an author's own unknown: then the answer, alone."""
    look, calls = raising(TimeoutError(), ConnectionResetError(), RuntimeError("busy"), Unknown("no answer"))
    outcome: Outcome = await door(look, {}, ledger=ledger)
    assert (outcome.code, outcome.result, outcome.message) == (Code.SUCCEEDED, {"amount": 25}, '{"amount": 25}')
    assert len(calls) == 5
