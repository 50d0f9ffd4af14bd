"""What holds for every request, before anybody has looked at it: whom the server answers to, how much it reads, and how
long it waits for it; and the headers that every answer carries.

Pure ASGI, since it must not hold a stream back.
"""

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 2_000_000
"""An edit carries each argument, and the largest arguments are about a million characters."""

BODY_WAIT_S = 20.0
"""For the whole body of a request: a form is sent in an instant, and a client that trickles holds nothing for long."""

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""No inline script or style anywhere, nothing from elsewhere, in nobody's frame; a login link never travels on."""


@dataclass(frozen=True)
class Guard:
    """The outermost layer. `hosts` are the names that the server answers to (none: to any): a foreign name that was
    made to lead to this machine is not among them.
    """

    app: ASGIApp
    hosts: Collection[str] = ()
    body_wait_s: float = BODY_WAIT_S

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        app = self._refusal(Headers(scope=scope)) or self.app
        await app(scope, _Bounded(receive, self.body_wait_s), _with_headers(send))

    def _refusal(self, headers: Headers) -> ASGIApp | None:
        if self.hosts and _without_port(headers.get("host", "")) not in self.hosts:
            return PlainTextResponse("This server is not called that; --allowed-host names it.", 400)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            return PlainTextResponse("The request is too large.", 413, {"connection": "close"})
        return None


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).strip("[]").lower()


class _Bounded:
    """A body that may not be too long, in bytes and in seconds. Once it has arrived, waiting is for the client's end,
    which may take as long as it likes.
    """

    def __init__(self, receive: Receive, wait_s: float) -> None:
        self._receive = receive
        self._end = time.monotonic() + wait_s
        self._read = 0
        self._is_whole = False

    async def __call__(self) -> Message:
        if self._is_whole:
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), self._end - time.monotonic())
        except TimeoutError:
            raise HTTPException(408, headers={"connection": "close"}) from None
        self._read += len(message.get("body", b""))
        if self._read > MAX_BODY_BYTES:
            raise HTTPException(413, headers={"connection": "close"})
        self._is_whole = message["type"] != "http.request" or not message.get("more_body", False)
        return message


def _with_headers(send: Send) -> Send:
    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return answer
