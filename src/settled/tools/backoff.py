"""How long to wait before the next attempt.

Owns the formula of the wait and nothing else: no clock, no sleep, no decision whether to try again. The subtle thing:
what the remote side asked for (`Retry-After`) replaces the formula, it is not the larger of the two, and no jitter is
put on top of it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from settled.state.errors import ContractError

# 2 ** 63 seconds is past any cap that a person would write; a larger power would overflow a float.
_LARGEST_POWER = 63

LONGEST_WAIT_S = 366 * 86_400.0
"""Past any deadline, and still an interval that Postgres can add: a remote side that asks for more, or for infinity, is
away.
"""


@dataclass(frozen=True)
class Backoff:
    """The waits between attempts, in seconds: `min(cap, first * 2**n)` plus jitter.

    `jitter` is the upper end of the random part that is added. With `full` the wait is uniform between 0 and the
    formula without jitter ("full jitter"), which spreads a crowd further apart.
    """

    first: float = 1.0
    cap: float = 8.0
    jitter: float = 0.5
    full: bool = False

    def __post_init__(self) -> None:
        for name in ("first", "cap", "jitter"):
            _check_seconds(name, getattr(self, name))
        if self.cap < self.first:
            raise ContractError(f"backoff: cap ({self.cap}) must not be below first ({self.first})")

    def next_delay(self, n: int, *, random: Callable[[], float], retry_after_s: float | None = None) -> float:
        """Return the seconds to wait before retry `n` (0 is the first retry).

        `random` gives a float in [0, 1). A `retry_after_s` from the remote side wins over the formula, as it stands.
        """
        if n < 0:
            raise ContractError(f"backoff: retry number {n} must not be negative")
        if isinstance(retry_after_s, int | float):
            return min(max(0.0, retry_after_s), LONGEST_WAIT_S)
        base = min(self.cap, self.first * 2.0 ** min(n, _LARGEST_POWER))
        return base * random() if self.full else base + self.jitter * random()


def _check_seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ContractError(f"backoff: {name} must be a number of seconds, not {value!r}")
    if not math.isfinite(value) or value < 0:
        raise ContractError(f"backoff: {name} must be finite and not negative, not {value!r}")
