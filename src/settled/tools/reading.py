"""A read: no side effect, so no ledger row; called again freely until it answers, its attempts or its deadline are
over.

What is refused, or ends without an answer (a timeout, a broken connection, an exception that is not known here), is
called again. A mistake of the body's own (`MISTAKES`) is not: waiting cures no KeyError.
"""

from dataclasses import dataclass
from typing import assert_never

from settled.tools.effects import Steps, Stopped, sleep
from settled.tools.effects import read as body
from settled.tools.messages import Code
from settled.tools.outcome import Conflict, Forbidden, Invalid, Refused, Rejected, Succeeded, Unknown
from settled.tools.standing import Call


@dataclass(frozen=True, slots=True)
class ReadEnd:
    """How a read ended."""

    code: Code
    result: object
    reason: str | None
    attempts: int


MISTAKES = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, NameError, NotImplementedError),
    *(TypeError, ValueError),
)
"""What Python raises for a mistake in the code, or for an answer that cannot be read; a network raises an OSError."""


def read(call: Call) -> Steps[ReadEnd]:
    """Carry a read to its answer."""
    c, attempt, waited = call.contract, 0, 0.0
    while True:
        attempt += 1
        outcome = yield from body(call.values)
        match outcome:
            case Succeeded(result=result):
                return ReadEnd(Code.SUCCEEDED, result, None, attempt)
            case Unknown(cause=cause, reason=reason) if cause is not None and issubclass(cause, MISTAKES):
                return ReadEnd(Code.UNAVAILABLE, None, reason, attempt)
            case Refused() | Unknown():
                retry_after_s = outcome.retry_after_s if isinstance(outcome, Refused) else None
                delay_s = c.backoff.next_delay(attempt - 1, random=call.random, retry_after_s=retry_after_s)
                waited += delay_s
                if attempt >= c.max_attempts or waited > c.deadline_s or (yield from sleep(delay_s)) is not None:
                    return ReadEnd(Code.UNAVAILABLE, None, outcome.reason, attempt)
            case Stopped():
                return ReadEnd(Code.UNAVAILABLE, None, "the caller stopped", attempt)
            case Rejected(reason=reason) | Conflict(reason=reason):
                return ReadEnd(Code.REJECTED, None, reason, attempt)
            case Invalid(reason=reason):
                return ReadEnd(Code.INVALID, None, reason, attempt)
            case Forbidden(reason=reason):
                return ReadEnd(Code.FORBIDDEN, None, reason, attempt)
            case _:
                assert_never(outcome)
