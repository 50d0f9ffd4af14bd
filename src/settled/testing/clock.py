"""Time that a test moves by hand, so that leases, backoff and approvals end without waiting.

The ledger goes by it (`Ledger.connect(clock=fast_clock)`), and the waits of a call move it (`world=fast_clock.world`).
What happens in a tool's body takes real time. The subtle thing is what this cannot show: a caller that waits for
*another* one moves the clock for both, and whatever the remote side does meanwhile takes its real time. Where two
callers meet, or a request is under way longer than its caller, use real time and short spans.
"""

import asyncio
from datetime import UTC, datetime, timedelta

from settled.state.errors import ContractError
from settled.tools.runner import World


class FastClock:
    """A clock for `Ledger.connect(clock=...)`. It begins at `start` (default: now), and stands until it is moved."""

    def __init__(self, start: datetime | None = None) -> None:
        self.start = start or datetime.now(UTC)
        if self.start.tzinfo is None:
            raise ContractError("FastClock: start must have a time zone")
        self.elapsed_s = 0.0
        self.waits: list[float] = []
        """The waits that calls have made, in seconds and in order."""

    def __call__(self) -> datetime:
        return self.start + timedelta(seconds=self.elapsed_s)

    def advance(self, seconds: float) -> None:
        """Move the clock; ContractError for a step back, which no database's clock makes."""
        if not seconds >= 0:
            raise ContractError(f"FastClock: time does not go back ({seconds})")
        self.elapsed_s += seconds

    def sleep(self, seconds: float) -> None:
        """Wait, at once."""
        self.waits.append(seconds)
        self.advance(seconds)

    async def asleep(self, seconds: float) -> None:
        """As `sleep`, and let others have their turn."""
        self.sleep(seconds)
        await asyncio.sleep(0)

    @property
    def world(self) -> World:
        """What to pass as `world=` to `perform`, `build_agent`, `ActionMiddleware`, `ActionNode` and `Desk`."""
        return World(sleep=self.sleep, asleep=self.asleep)
