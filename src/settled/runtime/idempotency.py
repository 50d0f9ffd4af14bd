"""The `Idempotency-Key` header for any ASGI application: one effect per key, and the first answer for every repeat.

    app = IdempotencyMiddleware(app, store=IdempotencyStore(url, scope="shop"), tenant=lambda scope: user_of(scope))
    app.add_middleware(IdempotencyMiddleware, store=store, tenant=user_of)  # Starlette, FastAPI

Owns the order of things: the key and the body are read, the key is claimed, the application answers, the answer is
written down, and only then is its last part sent. Holds no rules: those are in `settled.tools.endpoint` and
`settled.tools.endpoint_http`.

The subtle thing: a client that leaves ends nothing. The application runs in a task of its own, is not told that the
client is gone, and its answer is kept for when the client asks again. Only the end of the process stops it; then the
key stays as it is until its lease is over, and is reconciled.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, MutableMapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from inspect import isawaitable
from typing import Any, TypeAlias, assert_never

from settled.state.errors import ClaimLost, ContractError, InvalidArguments, SettledError
from settled.tools import endpoint_http as http
from settled.tools.endpoint import (
    Claimed,
    Done,
    IdempotencyStore,
    InFlight,
    OtherPayload,
    StoredAnswer,
    Unresolved,
    answer_of,
    check_name,
)
from settled.tools.endpoint_http import EndpointRequest, Fate, Fingerprint, Problem

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Tenant: TypeAlias = Callable[[Scope], "str | Awaitable[str | None] | None"]

MAX_REQUEST_BYTES = 1024 * 1024
"""A body is held in memory until its key is claimed, for its fingerprint."""

MAX_RUN_S = 300.0
"""After this a handler's lease is renewed no more: it is taken for hung. It is not ended, and may still finish."""

RENEWALS_PER_LEASE = 3
"""Two renewals may be lost before the lease is."""

_CLAIMED = "settled.idempotency"
_UNSEEN = frozenset({"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers"})
"""Extensions by which an answer would pass us unread."""

_RUNNING: set["asyncio.Task[None]"] = set()
"""Keeps the handlers of clients that left alive: an event loop holds its tasks only weakly."""

_log = logging.getLogger("settled")


@dataclass
class ClaimedRequest:
    """What a handler may know about its key: `claimed_request(scope)`. Pass `claimed` to `store.finish(connection=…)`.

    `claimed.reconciled` is true where an earlier handler died and surely did nothing.
    """

    key: str
    request: EndpointRequest
    claimed: Claimed
    says_nothing_happened: bool = False

    def nothing_happened(self) -> None:
        """Say, before the answer, that surely nothing was or will be done: the key is given back, whatever the status,
        and also when an exception follows.
        """
        self.says_nothing_happened = True


def claimed_request(scope: Scope) -> ClaimedRequest | None:
    """Return the claim under which a request runs (`claimed_request(request.scope)`); None for one without a key."""
    found: ClaimedRequest | None = scope.get(_CLAIMED)
    return found


class IdempotencyMiddleware:
    """Guards writes of an ASGI application by their `Idempotency-Key`.

    Answers by itself: 400 without a key or with a bad one, 409 with Retry-After while the first request is in flight
    (after a wait) or nobody can tell what it did, 422 for another payload, 413 above `max_request_bytes`, 503 while the
    store cannot be reached (nothing was done). A repeat gets the first answer with `Idempotency-Replayed: true`.

    What becomes of the key when the application has answered: below 500 the answer is kept, also a no; for
    `not_processed` statuses, and where the handler said `claimed_request(scope).nothing_happened()`, the key is given
    back; 5xx or an exception: unknown, and the next request with this key is reconciled (see `IdempotencyStore`).

    An answer that streams is passed on as it comes, and kept when it is complete, up to the store's `max_answer_bytes`;
    of a larger one it is kept that it was given, and a repeat gets its status with a sentence that says so.
    """

    def __init__(
        self,
        app: App,
        *,
        store: IdempotencyStore,
        tenant: Tenant,
        methods: Collection[str] = ("POST", "PATCH"),
        paths: Collection[str] = ("*",),
        required: bool | Callable[[Scope], bool] = True,
        fingerprint: Fingerprint | None = None,
        not_processed: Collection[int] = http.NOT_PROCESSED,
        kept_headers: Collection[str] = http.KEPT_HEADERS,
        max_request_bytes: int = MAX_REQUEST_BYTES,
        max_run_s: float = MAX_RUN_S,
        about: str = http.DRAFT,
    ) -> None:
        """`tenant`: whose key it is, from the ASGI scope; what it returns must come from who is logged in, so that one
        user's key says nothing to another. None: nobody is known (401). `methods` and `paths` (patterns as of a shell)
        choose what is guarded; a request without a key passes where `required` says no. `about` is a page on your keys.
        """
        self.app = app
        self._store = store
        self._tenant = tenant
        self._methods = frozenset(method.upper() for method in methods)
        self._paths = tuple(paths)
        self._required = required
        self._fingerprint = fingerprint
        self._not_processed = frozenset(not_processed)
        self._kept_headers = frozenset(name.lower() for name in kept_headers)
        self._max_request_bytes = max_request_bytes
        self._max_run_s = max_run_s
        self._about = about
        if never := self._kept_headers & http.NEVER_KEPT:
            raise ContractError(f"kept_headers: {sorted(never)} must not be given again to another request")
        if read := self._methods & {"GET", "HEAD", "OPTIONS"}:
            raise ContractError(f"methods: {sorted(read)} have no effect to guard")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._guards(scope):
            return await self.app(scope, receive, send)
        task = asyncio.ensure_future(self._guarded(scope, receive, send))
        _RUNNING.add(task)
        task.add_done_callback(_let_go)
        return await asyncio.shield(task)

    def _guards(self, scope: Scope) -> bool:
        if scope["type"] != "http" or scope["method"] not in self._methods:
            return False
        if not any(fnmatchcase(scope["path"], pattern) for pattern in self._paths):
            return False
        return bool(_keys(scope)) or (self._required(scope) if callable(self._required) else self._required)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        met = await self._met(scope, receive)
        match met:
            case None:
                return
            case StoredAnswer():
                await _Client(send).answer(met)
            case ClaimedRequest():
                await self._carry_out(met, scope, _Client(send))
            case _:
                assert_never(met)

    async def _met(self, scope: Scope, receive: Receive) -> ClaimedRequest | StoredAnswer | None:
        """Claim the key of a request, or say what it is answered without the application; None: the client left."""
        values = _keys(scope)
        key = http.key_of(values)
        if key is None:
            return self._no(http.MALFORMED if values else http.MISSING)
        tenant = await self._tenant_of(scope)
        if tenant is None:
            return self._no(http.NOBODY_KNOWN)
        body = await _body(receive, self._max_request_bytes)
        if body is None:
            return None
        if len(body) > self._max_request_bytes:
            return self._no(http.too_large(self._max_request_bytes))
        return await self._claim(key, _request(scope, body, tenant))

    async def _claim(self, key: str, request: EndpointRequest) -> ClaimedRequest | StoredAnswer:
        fingerprint = http.fingerprint_of(request, self._fingerprint)
        try:
            met = await self._store.aclaim(key, fingerprint, tenant=request.tenant, request=request)
        except InvalidArguments:
            return self._no(http.MALFORMED)
        except ContractError:
            raise
        except SettledError as error:
            _log.warning("an idempotency key could not be claimed, and its request was refused: %s", error)
            return self._no(http.AWAY)
        match met:
            case Claimed():
                return ClaimedRequest(key, request, met)
            case Done(answer):
                return http.replayed(answer)
            case InFlight(retry_after_s):
                return self._no(http.in_flight(retry_after_s))
            case OtherPayload():
                return self._no(http.REUSED)
            case Unresolved(reason, retry_after_s):
                return self._no(http.unresolved(reason, retry_after_s))
            case _:
                assert_never(met)

    async def _tenant_of(self, scope: Scope) -> str | None:
        found = self._tenant(scope)
        tenant = await found if isawaitable(found) else found
        if tenant is not None:
            check_name("tenant", tenant)
        return tenant

    def _no(self, problem: Problem) -> StoredAnswer:
        return problem.answer(self._about)

    async def _carry_out(self, running: ClaimedRequest, scope: Scope, client: "_Client") -> None:
        """Let the application answer under the claim, and write down what became of it."""
        answered = _Answer(client, self._store.terms.max_answer_bytes, lambda answer: self._settle(running, answer))
        extensions = {name: value for name, value in (scope.get("extensions") or {}).items() if name not in _UNSEEN}
        inner = {**scope, "extensions": extensions, _CLAIMED: running}
        try:
            async with self._renewed(running.claimed):
                await self.app(inner, _once(running.request.body), answered.send)
        except asyncio.CancelledError:  # the process ends, and its connections with it: the lease will be over
            raise
        except BaseException:
            await self._give_up(running, answered)
            raise
        await self._give_up(running, answered)

    async def _settle(self, running: ClaimedRequest, answer: "_Answer") -> StoredAnswer | None:
        """Write down what the answer means; returns another answer to send in its place, where that is the true one."""
        what = http.fate(
            answer.status, nothing_happened=running.says_nothing_happened, not_processed=self._not_processed
        )
        try:
            match what:
                case Fate.RELEASE:
                    await self._store.arelease(running.claimed)
                case Fate.UNKNOWN:
                    await self._store.amark_unknown(running.claimed)
                case Fate.FINISH:
                    stored = StoredAnswer(answer.status, answer.kept, http.kept(answer.headers, self._kept_headers))
                    await self._store.afinish(running.claimed, stored)
        except ClaimLost:
            return await self._instead(running)
        except SettledError as error:
            _log.warning("the answer under an idempotency key is not written down; it will be reconciled: %s", error)
        return None

    async def _instead(self, running: ClaimedRequest) -> StoredAnswer | None:
        """A handler that was taken for dead has answered after all: what was recorded meanwhile is what counts."""
        _log.error("a handler outlived its lease; its idempotency key was taken up by somebody else meanwhile")
        with suppress(SettledError):
            record = await self._store.arecord(running.key, tenant=running.request.tenant)
            if record is not None and record.state == "done":
                return http.replayed(answer_of(record))
        return None

    async def _give_up(self, running: ClaimedRequest, answered: "_Answer") -> None:
        """Let go of a key whose handler has raised, or ended, without a complete answer."""
        if answered.is_complete:
            return
        try:
            if running.says_nothing_happened:
                await self._store.arelease(running.claimed)
            else:
                await self._store.amark_unknown(running.claimed)
        except SettledError as error:
            _log.warning("an idempotency key stays claimed until its lease is over: %s", error)

    @asynccontextmanager
    async def _renewed(self, claimed: Claimed) -> AsyncIterator[None]:
        renewing = asyncio.ensure_future(self._renew(claimed))
        try:
            yield
        finally:
            renewing.cancel()

    async def _renew(self, claimed: Claimed) -> None:
        pause = self._store.terms.lease_s / RENEWALS_PER_LEASE
        for _ in range(int(self._max_run_s / pause)):
            await asyncio.sleep(pause)
            with suppress(SettledError):  # the next one may get through
                if not await self._store.arenew(claimed):
                    return


class _Client:
    """The way back to the client; it may be gone, which is no fault of the application's."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_gone = False

    async def send(self, message: Message) -> None:
        if not self._is_gone:
            try:
                await self._send(message)
            except OSError:  # what servers raise for a closed connection (ASGI 2.4)
                self._is_gone = True

    async def answer(self, answer: StoredAnswer) -> None:
        """Send a whole answer."""
        body = answer.body or b""
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
        if answer.status not in (204, 304):
            headers.append((b"content-length", b"%d" % len(body)))
        await self.send({"type": "http.response.start", "status": int(answer.status), "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


@dataclass
class _Answer:
    """The application's answer on its way to the client. Its last part waits until `settle` has written it down."""

    client: _Client
    limit: int
    settle: Callable[["_Answer"], Awaitable[StoredAnswer | None]]
    is_complete: bool = False
    _start: Message | None = None
    _is_started: bool = False
    _body: bytearray = field(default_factory=bytearray)
    _is_too_large: bool = False

    @property
    def status(self) -> int:
        assert self._start is not None
        return int(self._start["status"])

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        assert self._start is not None
        return [(bytes(name), bytes(value)) for name, value in self._start.get("headers", ())]

    @property
    def kept(self) -> bytes | None:
        """The body, or None where it is too large to be kept."""
        return None if self._is_too_large else bytes(self._body)

    async def send(self, message: Message) -> None:
        """The application's `send`."""
        match message["type"]:
            case "http.response.start":
                self._start = message
            case "http.response.body" if self._start is not None:
                await self._take(message)
            case _:
                await self.client.send(message)

    async def _take(self, message: Message) -> None:
        self._add(message.get("body", b""))
        if not message.get("more_body", False) and not self.is_complete:
            self.is_complete = True
            instead = await self.settle(self)
            if instead is not None and not self._is_started:
                return await self.client.answer(instead)
        if not self._is_started:
            self._is_started = True
            assert self._start is not None
            await self.client.send(self._start)
        return await self.client.send(message)

    def _add(self, part: bytes) -> None:
        self._is_too_large = self._is_too_large or len(self._body) + len(part) > self.limit
        if self._is_too_large:
            self._body.clear()
        else:
            self._body += part


def _keys(scope: Scope) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"idempotency-key"]


def _request(scope: Scope, body: bytes, tenant: str) -> EndpointRequest:
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    return EndpointRequest(scope["method"], scope["path"], scope.get("query_string", b""), headers, body, tenant)


async def _body(receive: Receive, limit: int) -> bytes | None:
    """Read a body, or a little more than `limit` of it; None when the client has left in the middle."""
    body = bytearray()
    while len(body) <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    return bytes(body)


def _once(body: bytes) -> Receive:
    """Return a `receive` that gives the body, and then nothing: nobody is told that a client has left."""
    parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if parts:
            return parts.pop()
        never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        return await never

    return receive


def _let_go(task: "asyncio.Task[None]") -> None:
    _RUNNING.discard(task)
    if not task.cancelled():
        task.exception()  # its caller hears it, where there still is one
