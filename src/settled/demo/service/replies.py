"""Answers that never arrive, or only half: the connection is really closed.

Owns the map from a client's address to its connection, which uvicorn does not hand to an application. A response closes
the connection, and waits until uvicorn has noticed, so that it does not answer in its place.
"""

import asyncio
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

_open: dict[Any, asyncio.Transport] = {}


class Connection(H11Protocol):
    """uvicorn's connection, which can be found again by its client's address."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        _open[self.client] = transport

    def connection_lost(self, exc: Exception | None) -> None:
        _open.pop(self.client, None)
        super().connection_lost(exc)


class Dropped(Response):
    """No answer: the connection is closed."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _open[tuple(scope["client"])].abort()
        await _gone(receive)


class Truncated(JSONResponse):
    """Half an answer: the headers promise more than comes."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        half = bytes(self.body)[: len(self.body) // 2]
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": half, "more_body": True})
        _open[tuple(scope["client"])].close()
        await _gone(receive)


class Frozen(Response):
    """Neither an answer nor an end, until the client leaves."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _gone(receive)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
