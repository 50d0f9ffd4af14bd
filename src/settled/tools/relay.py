"""A body that is called by way of somebody else's code: a tool node, with its events, callbacks and middlewares.

Between the attempt and the author's function stand calls that are not ours. They get an opportunity to run the body
and no say in what it is called with, how often it runs, or what its end is taken for: what they return or raise instead
is not looked at. Owns the context variable by which the tool at the far end finds its attempt.
"""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from settled.state.errors import Unguarded
from settled.tools import bodies
from settled.tools.outcome import AttemptOutcome

RELAY: ContextVar["Relay | None"] = ContextVar("settled_relay", default=None)


@dataclass(frozen=True, slots=True)
class End:
    """What a body returned or raised."""

    returned: Any = None
    error: BaseException | None = None


class Relay:
    """One call of a body: `run` is for the far end, `end` for the attempt."""

    def __init__(self, tool: str, function: Callable[..., Any], values: Mapping[str, Any]) -> None:
        self.tool = tool
        self._function = function
        self._values = values
        self._once = threading.Lock()
        self.end: End | None = None

    @property
    def is_begun(self) -> bool:
        """Whether the body was ever called."""
        return self._once.locked()

    def run(self) -> Any:
        """Call the body, in a thread that may block; raises Unguarded the second time."""
        self._begin()
        try:
            returned = self._function(**self._values)
            if inspect.isawaitable(returned):
                returned = asyncio.run(_await(returned))
        except BaseException as error:
            self.end = End(error=error)
            raise
        self.end = End(returned)
        return shown(returned)

    async def arun(self) -> Any:
        """As `run`, in an event loop."""
        self._begin()
        try:
            returned = await bodies.astart(self._function, **self._values)
        except BaseException as error:
            self.end = End(error=error)
            raise
        self.end = End(returned)
        return shown(returned)

    def _begin(self) -> None:
        if not self._once.acquire(blocking=False):
            raise Unguarded(
                f"{self.tool} was called a second time in one attempt: what retries a tool must stand outside the "
                "ledger (list it before ActionMiddleware), which then answers what became of the first call"
            )


def shown(returned: object) -> object:
    """Return what those who listen on the way are shown of a body's result."""
    if not isinstance(returned, AttemptOutcome):
        return returned
    return getattr(returned, "result", None) or getattr(returned, "reason", "")


async def _await(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
