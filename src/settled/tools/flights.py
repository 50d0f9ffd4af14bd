"""Calls under way: begun without waiting, and gathered as they end, from a thread or from an event loop.

Each lane has a bound on its calls. One that overruns its time is let go, and counts against that bound until it has
really ended: a sink that hangs costs a few threads and no more. Knows nothing of the ledger.
"""

import asyncio
import inspect
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from settled.state.outbox import Taken
from settled.tools import bodies

AnyFuture: TypeAlias = "Future[Any] | asyncio.Future[Any]"
OVERRUN = TimeoutError("it did not end within its time")


@dataclass(eq=False)
class Calls:
    """The calls of one lane that have not ended, at most `most` of them."""

    most: int
    _running: set[AnyFuture] = field(default_factory=set)

    @property
    def room(self) -> int:
        """How many more may be begun."""
        self._running = {one for one in self._running if not one.done()}
        return max(self.most - len(self._running), 0)

    def note(self, running: AnyFuture) -> None:
        """Count a call that was begun."""
        self._running.add(running)


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin a call for a message, and do not wait for it. Answered by None."""

    taken: Taken
    calls: Calls
    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Gather:
    """Wait until a call has ended, for at most so many seconds. Answered by a list of `Landed`, empty if none has."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Landed:
    """A call that has ended: with a value, or an error; one that overran its time with `OVERRUN`."""

    taken: Taken
    value: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Flight:
    taken: Taken
    ends_at: float


class Flights:
    """The calls of one run. `timeout_s`: the time of each."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._flights: dict[AnyFuture, _Flight] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def begin(self, begun: Begin) -> None:
        """Begin a call in a thread."""
        running = bodies.start(_bounded(begun.function, self._timeout_s))
        begun.calls.note(running)
        self._add(running, begun)

    def abegin(self, begun: Begin) -> None:
        """Begin a call: an async one in the running loop, a sync one in a thread."""
        if inspect.iscoroutinefunction(begun.function):
            waited: AnyFuture = asyncio.ensure_future(_awaited(begun.function))
            begun.calls.note(waited)
        else:
            running = bodies.start(begun.function)
            begun.calls.note(running)
            waited = asyncio.wrap_future(running)
        self._add(waited, begun)

    def gather(self, seconds: float) -> list[Landed]:
        """Return what has ended, or run out of its time, within so many seconds."""
        waited: list[Future[Any]] = [one for one in self._flights if isinstance(one, Future)]
        wait(waited, self._pause(seconds), FIRST_COMPLETED)
        return self._landed()

    async def agather(self, seconds: float) -> list[Landed]:
        """As `gather`, for calls that were begun by `abegin`."""
        waited = [one for one in self._flights if not isinstance(one, Future)]
        await asyncio.wait(waited, timeout=self._pause(seconds), return_when=asyncio.FIRST_COMPLETED)
        return self._landed()

    def let_go(self) -> None:
        """Wait for none of them any longer; those of an event loop are cancelled."""
        for running in self._flights:
            running.cancel()
        self._flights.clear()

    def _add(self, running: AnyFuture, begun: Begin) -> None:
        self._flights[running] = _Flight(begun.taken, time.monotonic() + self._timeout_s)

    def _pause(self, seconds: float) -> float:
        first_end = min(flight.ends_at for flight in self._flights.values())
        return max(min(seconds, first_end - time.monotonic()), 0.0)

    def _landed(self) -> list[Landed]:
        now = time.monotonic()
        over = {running: flight for running, flight in self._flights.items() if running.done() or flight.ends_at <= now}
        for running in over:
            del self._flights[running]
        return [_end(running, flight.taken) for running, flight in over.items()]


def _end(running: AnyFuture, taken: Taken) -> Landed:
    if not running.done():
        running.cancel()
        return Landed(taken, error=OVERRUN)
    if running.cancelled():
        return Landed(taken, error=asyncio.CancelledError())
    error = running.exception()
    return Landed(taken, error=error) if error is not None else Landed(taken, running.result())


def _bounded(function: Callable[[], Any], timeout_s: float) -> Callable[[], Any]:
    """An async function that is called in a thread ends there with its time; a sync one cannot be ended."""
    return partial(_within, function, timeout_s) if inspect.iscoroutinefunction(function) else function


async def _awaited(function: Callable[[], Any]) -> Any:
    """A function that cannot even be called fails where it is gathered, as any other one."""
    return await function()


async def _within(function: Callable[[], Any], timeout_s: float) -> Any:
    async with asyncio.timeout(timeout_s):
        return await function()
