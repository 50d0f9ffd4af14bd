"""What a `FaultyRemote` remembers: effects by idempotency key. Knows no HTTP and no faults but a lagging replica.

In memory, because the remote side lives in the test's own process, and that one is not killed.
"""

import copy
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class KeyReused(Exception):
    """The key is known with another body: as a service that dedupes answers, 422."""


@dataclass(frozen=True)
class RemoteEffect:
    """One effect: its number from 1, the receipt made of it, and the key, the body and the path of its request."""

    number: int
    receipt: str
    key: str | None
    body: Mapping[str, Any]
    path: str
    at_s: float

    @property
    def told(self) -> dict[str, Any]:
        """What an answer says about it: its receipt and its body."""
        return {"receipt": self.receipt, **copy.deepcopy(dict(self.body))}


class Store:
    """The effects of one remote side. `dedupes`: a known key gets its effect back. `lag_s`: what is younger is not
    found.
    """

    def __init__(self, *, dedupes: bool, lag_s: float, prefix: str) -> None:
        self.dedupes = dedupes
        self.lag_s = lag_s
        self._prefix = prefix
        self._effects: list[RemoteEffect] = []
        self._passed_s = 0.0
        self._lock = threading.Lock()

    def commit(self, key: str | None, body: Mapping[str, Any], path: str) -> RemoteEffect:
        """Do it; or return what was done under this key. Raises KeyReused for a known key with another body."""
        with self._lock:
            known = self._known(key, path)
            if known is not None:
                if known.body != body:
                    raise KeyReused(key)
                return known
            number = len(self._effects) + 1
            done = RemoteEffect(number, f"{self._prefix}-{number}", key, copy.deepcopy(dict(body)), path, self._now_s())
            self._effects.append(done)
            return done

    def find(self, key: str | None = None, **fields: object) -> list[RemoteEffect]:
        """Return the effects of a key (any, if None) that have these fields, oldest first, but for those that a replica
        does not have yet. A field is compared as text, as a query string has it.
        """
        until_s = self._now_s() - self.lag_s
        with self._lock:
            seen = [effect for effect in self._effects if effect.at_s <= until_s and key in (None, effect.key)]
        return [e for e in seen if all(str(e.body.get(name)) == str(value) for name, value in fields.items())]

    def effects(self) -> list[RemoteEffect]:
        """Return all effects, oldest first."""
        with self._lock:
            return list(self._effects)

    def pass_time(self, seconds: float) -> None:
        """Make everything this much older."""
        with self._lock:
            self._passed_s += seconds

    def _known(self, key: str | None, path: str) -> RemoteEffect | None:
        if not self.dedupes or key is None:
            return None
        return next((e for e in self._effects if (e.key, e.path) == (key, path)), None)

    def _now_s(self) -> float:
        return time.monotonic() + self._passed_s
