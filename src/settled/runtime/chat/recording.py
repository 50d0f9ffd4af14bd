"""What a run says, written down under its lease.

Owns the numbering. The subtle thing: only one task writes, and it is never cancelled in the middle of a statement, or
nobody would know which number comes next; whoever says something only puts it on the pile.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from settled.runtime.chat.chunks import Said
from settled.state import runs
from settled.state.errors import ClaimLost, SettledError
from settled.state.postgres import Database
from settled.state.runs import HeldRun, Status

GATHER_S = 0.05
"""Pieces of a message come faster than a reader's eye: what is said within this time is one statement."""

BEAT_S = 1.0
"""A run that says nothing asks this often whether somebody wants it cancelled."""

MAX_PILE = 500
"""Events that are not written yet: whoever says more waits for the database."""

MAX_EVENTS = 20_000
"""Of one run: a long answer, piece by piece, has some thousands. Beyond it only the end of the run is told."""

MAX_EVENT_CHARS = 2_000_000
"""Of one event: the values of a long conversation. A larger one is told of, and read from the thread's state."""


class Recorder:
    """Writes down what one run says. `ring` is called whenever there is something to read."""

    def __init__(self, rows: Database, held: HeldRun, *, lease_s: float, ring: Callable[[], None]) -> None:
        self._rows = rows
        self._held = held
        self._lease_s = lease_s
        self._ring = ring
        self._pile: list[Said] = []
        self._next = 1
        self._heard = asyncio.Event()
        self._room = asyncio.Event()
        self._is_over = False
        self.is_cancelled = False
        self.lost: SettledError | None = None
        """Why this process does not have the run any more: somebody else took it up, or the database is gone."""

    async def begin(self, said: Said) -> None:
        """Find the number that comes next, and say something if it was not said last."""
        last = await self._rows.arun(runs.last_event(self._held))
        if last is not None:
            self._next = last.number + 1
        if last is None or (last.event, last.data) != said:
            await self.say(said)

    async def say(self, said: Said) -> None:
        """Put something on the pile; waits while it is too high."""
        self._pile += self._bounded(said)
        self._heard.set()
        while len(self._pile) > MAX_PILE and self.lost is None:
            self._room.clear()
            await self._room.wait()

    def look(self) -> None:
        """Ask at once whether somebody wants the run cancelled."""
        self._heard.set()

    def _bounded(self, said: Said) -> list[Said]:
        count = self._next + len(self._pile)
        if count >= MAX_EVENTS:
            return [] if count > MAX_EVENTS else [("truncated", f'{{"after": {MAX_EVENTS}}}')]
        if len(said[1]) > MAX_EVENT_CHARS:
            return [(said[0], '{"note": "too large to be streamed: read the state of the thread"}')]
        return [said]

    @asynccontextmanager
    async def keeping(self, *, on_cancel: Callable[[], None], on_loss: Callable[[], None]) -> AsyncIterator[None]:
        """Write down what is said within the block, and keep the lease."""
        keeper = asyncio.ensure_future(self._keep(on_cancel, on_loss))
        try:
            yield
        finally:
            self._is_over = True
            self._heard.set()
            await _finished(keeper)

    async def _keep(self, on_cancel: Callable[[], None], on_loss: Callable[[], None]) -> None:
        try:
            while not self._is_over:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._heard.wait(), min(BEAT_S, self._lease_s / 3))
                self._heard.clear()
                was_cancelled = self.is_cancelled
                await self._write()
                if self.is_cancelled and not was_cancelled:
                    on_cancel()
                if not self._is_over:
                    await asyncio.sleep(GATHER_S)
        except SettledError as error:
            self.lost = error
            on_loss()
        finally:
            self._room.set()

    async def _write(self) -> None:
        said = list(self._pile)
        query = runs.append(self._held, said, first=self._next, lease_s=self._lease_s)
        answer = await self._rows.arun(query)
        if answer is None:
            raise ClaimLost("another process has taken the run up")
        self._next += len(said)
        del self._pile[: len(said)]
        self.is_cancelled = answer
        self._room.set()
        if said:
            self._ring()

    async def finish(
        self,
        status: Status,
        said: list[Said],
        *,
        checkpoint_id: str | None = None,
        error: Mapping[str, Any] | None = None,
    ) -> None:
        """End the run, with the last that it says; after `keeping`. ClaimLost where it is somebody else's by now."""
        last = [*self._pile, *said, ("end", "null")]
        query = runs.finish(self._held, status, last, first=self._next, checkpoint_id=checkpoint_id, error=error)
        is_ended = await self._rows.arun(query)
        self._ring()
        if not is_ended:
            raise ClaimLost("another process has taken the run up")

    async def put_back(self, *, pause_s: float, counts: bool) -> None:
        """Leave the run to whoever takes it up next."""
        await self._rows.arun(runs.put_back(self._held, pause_s=pause_s, counts=counts))
        self._ring()


async def _finished(task: "asyncio.Future[None]") -> None:
    """Wait for a task's end, also while the one who waits is cancelled."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()
