"""The HTTP helper for tool bodies: `httpx` and `httpx2` alike.

Owns what happens around one request of an action: the `Idempotency-Key` header, the check that the lease still holds,
the note that a write went out, and that no answer but 2xx is taken for a success. It must not retry, wait or follow
redirects; those are the ledger's decisions. It imports an HTTP library only to make a new client.

The subtle thing: `guard` wraps the client's own `send` and not its event hooks. An authentication flow (a digest
challenge, a token that is renewed after a 401) happens inside `send`, and a hook would cut it short.

Connects that a transport repeats by itself (`HTTPTransport(retries=…)`) are harmless: nothing was sent. A third-party
transport that repeats *requests* is not, and cannot be told apart here: do not use one.
"""

import importlib
import inspect
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from settled.state.errors import ContractError
from settled.tools.context import ActionContext, current_action
from settled.tools.outcome import Ended, Refused, Unknown, after_sent, from_exception, from_response

if TYPE_CHECKING:
    import httpx2

HEADER = "Idempotency-Key"
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_GUARDED = "_settled_guarded"

ClientT = TypeVar("ClientT")


class _Url(Protocol):
    @property
    def host(self) -> str: ...
    @property
    def path(self) -> str: ...


class _Request(Protocol):
    method: str
    headers: Any
    url: _Url


class _Response(Protocol):
    status_code: int

    def read(self) -> bytes: ...
    async def aread(self) -> bytes: ...


def client(**options: Any) -> "httpx2.Client":
    """Make a guarded client; `options` are those of `httpx2.Client` (or `httpx.Client` where that one is installed)."""
    return cast("httpx2.Client", guard(_library().Client(**_checked(options))))


def async_client(**options: Any) -> "httpx2.AsyncClient":
    """Make a guarded async client; `options` are those of `AsyncClient`."""
    return cast("httpx2.AsyncClient", guard(_library().AsyncClient(**_checked(options))))


def guard(client: ClientT) -> ClientT:
    """Make an existing client of `httpx` or `httpx2` safe for the body of an action, and return it.

    From then on each request that is not a GET, HEAD or OPTIONS carries the action's key unless the author set the
    header himself, is not sent once the lease has ended, is never redirected, and ends the attempt (`Ended`) if the
    answer is not 2xx. Outside an action such a request raises Unguarded. Reads are left to the author.
    """
    if getattr(client, _GUARDED, False):
        return client
    send = getattr(client, "send", None)
    if not callable(send):
        raise ContractError(f"guard() takes a client of httpx or httpx2, not {type(client).__name__}")
    wrapped = _guarded_async(send) if inspect.iscoroutinefunction(send) else _guarded_sync(send)
    for name, value in (("send", wrapped), (_GUARDED, True)):
        setattr(client, name, value)
    return client


def _library() -> ModuleType:
    for name in ("httpx2", "httpx"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as exc:
            if exc.name != name:
                raise
    raise ContractError("settled.tools.http needs an HTTP library: pip install httpx2 (or httpx)")


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    if options.get("follow_redirects"):
        raise ContractError(
            "follow_redirects: a write that is redirected is sent twice; leave it out and use the final address"
        )
    return {**options, "follow_redirects": False}


@dataclass(frozen=True)
class _Write:
    """One write request of an attempt. Its mark stays in `context.sent` as long as it may have had an effect."""

    context: ActionContext
    mark: str

    def broke(self, exc: BaseException) -> None:
        if isinstance(from_exception(exc), Refused):
            self.context.sent.remove(self.mark)

    def ended(self, response: object) -> Ended:
        """Return what a non-2xx answer means for the attempt, counting the writes that went out before this one."""
        outcome = from_response(response)
        if not isinstance(outcome, Unknown):
            self.context.sent.remove(self.mark)
        return Ended(after_sent(outcome, len(self.context.sent)))


def _open(request: _Request) -> _Write | None:
    """Prepare a write for sending; None for a read. Raises Ended when this worker may no longer act."""
    if request.method.upper() in _READS:
        return None
    context = current_action()
    if (ended := _ended(context)) is not None:
        raise Ended(after_sent(Refused(f"{ended} before the request was sent"), len(context.sent)))
    if HEADER not in request.headers:
        request.headers[HEADER] = context.idempotency_key
    # Without the query: it may hold secrets, and the list is only counted and shown.
    write = _Write(context, f"{request.method} {request.url.host}{request.url.path}")
    context.sent.append(write.mark)
    return write


def _ended(context: ActionContext) -> str | None:
    """Say what forbids a write now: another worker may have the action, or others may already count on its absence."""
    now = time.monotonic()
    if now > context.lease_monotonic:
        return "the lease of this action ended"
    return "the time of this attempt was over" if now > context.deadline_monotonic else None


def _accepted(response: _Response) -> bool:
    return 200 <= response.status_code < 300


def _guarded_sync(send: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(request: _Request, **options: Any) -> Any:
        if (write := _open(request)) is None:
            return send(request, **options)
        try:
            response = send(request, **{**options, "follow_redirects": False})
            if _accepted(response):
                return response
            response.read()
        except BaseException as exc:
            write.broke(exc)
            raise
        raise write.ended(response)

    return guarded


def _guarded_async(send: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def guarded(request: _Request, **options: Any) -> Any:
        if (write := _open(request)) is None:
            return await send(request, **options)
        try:
            response = await send(request, **{**options, "follow_redirects": False})
            if _accepted(response):
                return response
            await response.aread()
        except BaseException as exc:
            write.broke(exc)
            raise
        raise write.ended(response)

    return guarded
