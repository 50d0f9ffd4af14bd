"""What a handler of a `FaultyRemote` is given, and what it may answer: so that a user's own API can be imitated.

A handler sits behind the switches: it is not called for a request that is refused, its `find` sees nothing where a
replica lags, and its answer is dropped, delayed or changed like any other.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from settled.testing.store import RemoteEffect, Store


@dataclass(frozen=True)
class Reply:
    """An answer with a status of its own."""

    status: int
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """One request. `query` and `params` (of a path like `/orders/{id}`) are texts, `json` the body, {} without one, and
    `number` says how many writes, or how many reads, came before it.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    json: Any
    store: Store = field(repr=False)
    params: Mapping[str, str] = field(default_factory=dict)
    sees_nothing: bool = False
    number: int = 0

    @property
    def key(self) -> str | None:
        """The idempotency key: the header of a write, `idempotency_key` or `key` in the query string of a read."""
        return self.headers.get("idempotency-key") or self.query.get("idempotency_key") or self.query.get("key")

    def commit(self, body: Mapping[str, Any] | None = None, *, key: str | None = None) -> RemoteEffect:
        """Have the effect, under the request's key and with its body unless others are given."""
        return self.store.commit(key or self.key, self.json if body is None else body, self.path)

    def find(self, key: str | None = None, **fields: object) -> list[RemoteEffect]:
        """Return the effects of a key, or with these fields, that a query may see now."""
        return [] if self.sees_nothing else self.store.find(key, **fields)


Handler: TypeAlias = Callable[[Request], object]


@dataclass(frozen=True)
class Route:
    """A handler for a method and a path, which may have parameters: `/orders/{id}`."""

    method: str
    path: str
    handler: Handler

    def params_of(self, method: str, path: str) -> dict[str, str] | None:
        """Return the parameters of a request that this route is for, else None."""
        pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(self.path))
        found = re.fullmatch(pattern, path) if method == self.method else None
        return None if found is None else found.groupdict()


def write(request: Request) -> Reply:
    """Have the effect, and tell its receipt and body: the handler of every write that no other is for."""
    return Reply(201, request.commit().told)


def query(request: Request) -> list[dict[str, Any]]:
    """Tell the effects of a key, or with the fields that the query string names: the handler of every other read."""
    fields = {name: value for name, value in request.query.items() if name not in ("idempotency_key", "key")}
    return [effect.told for effect in request.find(request.key, **fields)]
