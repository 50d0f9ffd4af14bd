"""The pace of a worker: what it has under way, what it has done, and when it does the next.

Owns the tasks of one event loop and the waiting between rounds; knows nothing of what the tasks do. The subtle thing:
what ends while a round is being prepared is news for the pause behind it, so that no place stays empty for a whole
pause.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, fields
from typing import Any

PURGE_EVERY_S = 3600.0
"""A retention is counted in days."""

_log = logging.getLogger("settled")


@dataclass(frozen=True, slots=True)
class Round:
    """What a worker did: how many actions it noted, looked at, and what came of them. `failed` looks raised,
    `carried_on` are runs of chains.
    """

    noted: int = 0
    looked: int = 0
    expired: int = 0
    lapsed: int = 0
    lost: int = 0
    settled: int = 0
    escalated: int = 0
    failed: int = 0
    resumed: int = 0
    carried_on: int = 0
    delivered: int = 0
    purged: int = 0

    def __add__(self, other: "Round") -> "Round":
        return Round(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(Round)))


class Pace:
    """When a worker does what, and what is under way. It belongs to one event loop; `stop` may come from anywhere."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[Round]] = set()
        self._aside: dict[str, asyncio.Task[Round]] = {}
        self.done = Round()
        self.swept_at: float | None = None
        self.is_stopping = False
        self.wanted: int | None = None
        """More is due: as soon as no more than so many are under way, the next may begin."""
        self._has_more = False
        self._purged_at: float | None = None
        self._said: set[str] = set()
        self._is_away = False
        self._back_at: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()

    def begin(self) -> None:
        """Belong to the running loop."""
        self._loop, self._news = asyncio.get_running_loop(), asyncio.Event()

    def stop(self) -> None:
        self.is_stopping = True
        with contextlib.suppress(RuntimeError):  # its loop has ended already
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._news.set)

    def start(self, coroutine: Coroutine[Any, Any, Round]) -> "asyncio.Task[Round]":
        task = asyncio.ensure_future(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def start_aside(self, name: str, make: Callable[[], Coroutine[Any, Any, Round]]) -> None:
        """Begin with something unless it is under way."""
        if name not in self._aside:
            task = self._aside[name] = asyncio.ensure_future(make())
            task.add_done_callback(lambda _: self._aside.pop(name))
            task.add_done_callback(self._ended)

    @property
    def is_busy(self) -> bool:
        return bool(self.tasks or self._aside)

    async def ended(self) -> None:
        """Wait until nothing is under way."""
        while self.is_busy:
            await asyncio.wait({*self.tasks, *self._aside.values()})

    def _ended(self, task: "asyncio.Task[Round]") -> None:
        self.tasks.discard(task)
        if self.wanted is not None and len(self.tasks) <= self.wanted:
            self._news.set()
        if task.cancelled():
            return
        if error := task.exception():
            _log.error("something that a worker did failed", exc_info=error)
            self.done += Round(failed=1)
        else:
            self.done += task.result()

    def swept(self, *, has_more: bool) -> None:
        """The ledger was read on; `has_more`: and is to be at once again."""
        self.swept_at, self._has_more = time.monotonic(), has_more

    @property
    def scanned_s_ago(self) -> float | None:
        return None if self.swept_at is None else time.monotonic() - self.swept_at

    def scans_in(self, scan_every_s: float) -> float:
        """Return the seconds until the ledger is to be read on."""
        if self.swept_at is None or self._has_more:
            return 0.0
        return max(self.swept_at + scan_every_s - time.monotonic(), 0.0)

    def is_time_to_scan(self, scan_every_s: float) -> bool:
        return self.scans_in(scan_every_s) <= 0

    def take(self) -> Round:
        """Return what was done since this was asked last."""
        done, self.done = self.done, Round()
        return done

    def be_back_in(self, pause_s: float) -> None:
        """Let the next round come no later than this."""
        at = time.monotonic() + pause_s
        self._back_at = at if self._back_at is None else min(self._back_at, at)

    def hurry(self) -> None:
        """Let the ledger be read on at once."""
        self._has_more = True
        self._news.set()

    def hears(self) -> None:
        """What ends from now on is news."""
        self._news.clear()

    async def pause(self, pause_s: float) -> None:
        """Wait for the next round: until the time is up, a look wants to be repeated, or places have become free."""
        if self._back_at is not None:
            pause_s = min(pause_s, max(self._back_at - time.monotonic(), LEAST_PAUSE_S))
            self._back_at = None
        if self.is_stopping or pause_s <= 0:
            return
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._news.wait(), pause_s)

    def is_time_to_purge(self) -> bool:
        now = time.monotonic()
        if self._purged_at is not None and now - self._purged_at < PURGE_EVERY_S:
            return False
        self._purged_at = now
        return True

    def is_away(self) -> None:
        """The ledger does not answer: said once, however long that lasts. Call it where the exception is handled."""
        if not self._is_away:
            _log.warning("the worker cannot reach the ledger, and tries again until it can", exc_info=True)
        self._is_away = True

    def is_back(self) -> None:
        """The ledger has answered."""
        if self._is_away:
            _log.warning("the worker reaches the ledger again")
        self._is_away = False

    def say_once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            _log.warning(sentence)


LEAST_PAUSE_S = 0.1
"""However soon a look wants to be repeated."""
