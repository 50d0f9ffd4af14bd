"""A hint within one process that something has happened. What is true stands in the database, which is asked anyway."""

import asyncio
from collections import defaultdict
from contextlib import suppress


class Bell:
    """Wakes whoever waits for a name. Nobody may rely on it: he asks again after a while of himself."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    def ring(self, name: str) -> None:
        """Wake those who wait for that name now. In the event loop of those who wait."""
        for event in self._waiting.get(name, ()):
            event.set()

    async def wait(self, name: str, at_most_s: float) -> bool:
        """Wait for a ring, at most that long; whether there was one."""
        event = asyncio.Event()
        self._waiting[name].add(event)
        try:
            with suppress(TimeoutError):
                return await asyncio.wait_for(event.wait(), at_most_s)
            return False
        finally:
            self._waiting[name].discard(event)
            if not self._waiting[name]:
                del self._waiting[name]
