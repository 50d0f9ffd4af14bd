"""A remote side that goes wrong on purpose: a real HTTP server on loopback whose effects a test can count.

    with FaultyRemote() as remote:
        remote.next(COMMIT_AND_DROP)       # the next write has its effect, and its reply is lost
        ...                                # point the tool at remote.url, and call it
        assert remote.count() == 1

Any write (`POST /refunds`) has an effect and answers 201 with `{"receipt": "R-1", ...the body}`; any read
(`GET /refunds?idempotency_key=`, or by fields of the body) answers the list of effects that it finds. `mount` puts
handlers of another shape in their place. A remote side that is refused connections is `down()`.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from settled.state.errors import ContractError
from settled.testing import requests
from settled.testing.faults import FINE, Fault
from settled.testing.requests import Handler, Request, Route
from settled.testing.serving import Server, split_target
from settled.testing.store import RemoteEffect, Store

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
# How soon a server that is shut down notices.
_POLL_S = 0.02
IDLE_S = 30.0
"""A request takes as long as its fault says; one that takes longer than this is not waited for."""


@dataclass(frozen=True)
class Seen:
    """A request that arrived, whatever became of it; `at_s` is the monotonic second."""

    method: str
    path: str
    key: str | None
    at_s: float


class FaultyRemote:
    """The server; use it in a `with`, or `start` and `close` it.

    `dedupes`: a repeat of a key gets the first effect's answer, and one with another body is 422; without it, each
    write is one more effect. `lag_s`: queries do not find what is younger. `prefix` begins the receipts.
    """

    def __init__(self, *, dedupes: bool = True, lag_s: float = 0.0, prefix: str = "R") -> None:
        self._store = Store(dedupes=dedupes, lag_s=lag_s, prefix=prefix)
        self._routes: list[Route] = []
        self._writes: deque[Fault] = deque()
        self._reads: deque[Fault] = deque()
        self._always = self._always_for_queries = FINE
        self._open_requests = 0
        self._changed = threading.Condition()
        self._server: Server | None = None
        self._port = 0
        self.requests: list[Seen] = []
        """Every request, in the order of arrival."""
        self.watch: Callable[[Request, str], None] | None = None
        """Called "before" and "after" each request is carried out: the instants at which its caller may die."""

    def start(self) -> Self:
        """Listen, on a free port at first and on the same one afterwards."""
        if self._server is None:
            self._server = Server(self._port, self)
            self._port = self._server.server_address[1]
            serving = self._server.serve_forever
            threading.Thread(target=serving, kwargs={"poll_interval": _POLL_S}, daemon=True).start()
        return self

    def close(self) -> None:
        """Stop listening; what is under way goes on alone."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end."""
        if not self._port:
            raise ContractError("FaultyRemote: it has no address before it is started: use it in a `with`")
        return f"http://127.0.0.1:{self._port}"

    def mount(self, method: str, path: str, handler: Handler) -> Self:
        """Let a function answer these requests: of `/orders/{id}`, it finds `id` in `request.params`. It returns plain
        JSON, or a `Reply`; the last one that was mounted for a path counts.
        """
        if method not in _METHODS or not path.startswith("/"):
            raise ContractError(f"mount: takes one of {', '.join(_METHODS)} and a path like /orders/{{id}}")
        self._routes.insert(0, Route(method, path, handler))
        return self

    def next(self, *faults: Fault) -> Self:
        """Let the next writes meet these, one each."""
        self._writes.extend(faults)
        return self

    def always(self, fault: Fault) -> Self:
        """Let every write meet this that no `next` is left for; `FINE` ends it."""
        self._always = fault
        return self

    def next_query(self, *faults: Fault) -> Self:
        """Let the next queries meet these, one each."""
        self._reads.extend(faults)
        return self

    def always_for_queries(self, fault: Fault) -> Self:
        """Let every query meet this that no `next_query` is left for."""
        self._always_for_queries = fault
        return self

    @contextmanager
    def down(self) -> Generator[None]:
        """Refuse connections for the time of the `with`."""
        self.close()
        try:
            yield
        finally:
            self.start()

    @property
    def effects(self) -> list[RemoteEffect]:
        """What it has done, oldest first."""
        return self._store.effects()

    def count(self, key: str | None = None) -> int:
        """Return how many effects there are, of one key or in all."""
        return len([effect for effect in self.effects if key in (None, effect.key)])

    def writes(self, key: str | None = None) -> int:
        """Return how many writes arrived, of one key or in all."""
        return len([seen for seen in self.requests if seen.method != "GET" and key in (None, seen.key)])

    def queries(self) -> int:
        """Return how many queries arrived."""
        return len([seen for seen in self.requests if seen.method == "GET"])

    def wait_for(self, writes: int = 1, timeout_s: float = IDLE_S) -> bool:
        """Wait until so many writes have arrived, before anything is done with the last one; False when they do not."""
        with self._changed:
            return self._changed.wait_for(lambda: self.writes() >= writes, timeout_s)

    def wait_until_idle(self, timeout_s: float = IDLE_S) -> bool:
        """Wait until nothing is under way any more, also of callers who have left; False when that takes too long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._open_requests, timeout_s)

    def pass_time(self, seconds: float) -> None:
        """Make everything that was done this much older, for `lag_s`."""
        self._store.pass_time(seconds)

    def request(self, method: str, target: str, headers: Mapping[str, str], body: object) -> Request:
        """Return what a handler is given (for the server)."""
        path, query = split_target(target)
        lower = {name.lower(): value for name, value in headers.items()}
        return Request(method, path, query, lower, body, self._store)

    def begin(self, request: Request) -> tuple[Fault, Request]:
        """Note a request, and return what happens to it (for the server)."""
        is_query = request.method == "GET"
        faults, otherwise = (self._reads, self._always_for_queries) if is_query else (self._writes, self._always)
        with self._changed:
            number = self.queries() if is_query else self.writes()
            self.requests.append(Seen(request.method, request.path, request.key, time.monotonic()))
            fault = faults.popleft() if faults else otherwise
            self._changed.notify_all()
        return fault, replace(request, sees_nothing=is_query and not fault.commits, number=number)

    def look_on(self, request: Request, when: str) -> None:
        """Let whoever watches see a request (for the server)."""
        if self.watch is not None:
            self.watch(request, when)

    def carry_out(self, request: Request) -> object:
        """Return what the handler of a request answers (for the server)."""
        for route in self._routes:
            params = route.params_of(request.method, request.path)
            if params is not None:
                return route.handler(replace(request, params=params))
        return requests.query(request) if request.method == "GET" else requests.write(request)

    @contextmanager
    def under_way(self) -> Generator[None]:
        """Count a request as under way (for the server)."""
        with self._changed:
            self._open_requests += 1
        try:
            yield
        finally:
            with self._changed:
                self._open_requests -= 1
                self._changed.notify_all()
