"""A shop with an endpoint of its own, guarded by the middleware: started by `tests/endpoint_shop.py`, on uvicorn.

`POST /tickets` takes what shall go wrong in its payload. Each effect is a row of `shop.effects`, in which no key is
unique: a second effect would be seen.
"""

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import psycopg
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from telling import say

from settled.runtime.idempotency import IdempotencyMiddleware, claimed_request
from settled.tools.effects import Inconclusive
from settled.tools.endpoint import Finding, IdempotencyStore, StoredAnswer
from settled.tools.endpoint_http import NOT_PROCESSED, EndpointRequest
from settled.tools.resolutions import DidNotHappen

EFFECT = "INSERT INTO shop.effects (key) VALUES (%s) RETURNING receipt"


class Shop:
    """The handlers: plain functions of a request, the same under each framework."""

    def __init__(self, url: str, *, is_mortal: bool, reconcile: str, **keys: Any) -> None:
        self.url = url
        self.is_mortal = is_mortal
        asked = {"find": self.find, "cannot": self.cannot, "fails": self.fails, "none": None}[reconcile]
        self.keys = IdempotencyStore(url, scope="shop", reconcile=asked, keep=timedelta(days=1), **keys)

    async def effect(self, key: str) -> str:
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection:
            return await self._insert(connection, key)

    async def _insert(self, connection: psycopg.AsyncConnection[Any], key: str) -> str:
        row = await (await connection.execute(EFFECT, [key])).fetchone()
        assert row is not None
        return f"R-{row[0]}"

    async def create(self, request: Request) -> Response:
        running = claimed_request(request.scope)
        key = running.key if running else "no key"
        asked = await request.json() if request.headers.get("content-type") == "application/json" else {}
        if "before" in asked:
            await self._goes_wrong(asked["before"], request)
        if asked.get("says") is not None:
            if asked.get("nothing_happened") and running:
                running.nothing_happened()
            return JSONResponse({"error": "no"}, asked["says"])
        await asyncio.sleep(asked.get("takes", 0))
        receipt = await (self._in_one_commit(request, key, asked) if asked.get("in_one_commit") else self.effect(key))
        if "after" in asked:
            await self._goes_wrong(asked["after"], request)
        answer = JSONResponse({"receipt": receipt, "filling": "x" * asked.get("filling", 0)}, 201)
        answer.headers["location"] = f"/tickets/{receipt}"
        answer.headers["x-trace"] = "of this request alone"
        answer.set_cookie("session", "secret")
        return answer

    async def _in_one_commit(self, request: Request, key: str, asked: dict[str, Any]) -> str:
        running = claimed_request(request.scope)
        assert running is not None
        async with await psycopg.AsyncConnection.connect(self.url) as connection:
            receipt = await self._insert(connection, key)
            await asyncio.sleep(asked.get("holds", 0))
            body = json.dumps({"receipt": receipt}).encode()
            answer = StoredAnswer(201, body, (("content-type", "application/json"),))
            await self.keys.afinish(running.claimed, answer, connection=connection)
        return receipt

    async def _goes_wrong(self, how: str, request: Request) -> None:
        running = claimed_request(request.scope)
        match how:
            case "kill" if self.is_mortal:
                os.kill(os.getpid(), signal.SIGKILL)
            case "freeze":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "raise":
                raise RuntimeError("in the middle")
            case "raise, and nothing happened":
                assert running is not None
                running.nothing_happened()
                raise RuntimeError("at the beginning")

    async def stream(self, request: Request) -> Response:
        asked = await request.json()
        running = claimed_request(request.scope)
        assert running is not None
        receipt = await self.effect(running.key)

        async def parts() -> AsyncIterator[bytes]:
            for number in range(asked["parts"]):
                yield f"{receipt} {number} ".encode() + b"x" * asked.get("filling", 0) + b"\n"
                await asyncio.sleep(asked.get("takes", 0))
                if number == asked.get("raises_at"):
                    raise RuntimeError("in the middle")

        return StreamingResponse(parts(), media_type="text/plain")

    async def tickets(self, _: Request) -> Response:
        return JSONResponse([])

    async def find(self, key: str, request: EndpointRequest) -> Finding:
        assert request.path == "/tickets"
        async with await psycopg.AsyncConnection.connect(self.url) as connection:
            rows = await connection.execute("SELECT receipt FROM shop.effects WHERE key = %s", [key])
            row = await rows.fetchone()
        if row is None:
            return DidNotHappen()
        body = json.dumps({"receipt": f"R-{row[0]}", "filling": ""}).encode()
        return StoredAnswer(201, body, (("content-type", "application/json"),))

    def cannot(self, key: str, request: EndpointRequest) -> Finding:
        return Inconclusive("the till is closed")

    def fails(self, key: str, request: EndpointRequest) -> Finding:
        raise RuntimeError("no till")


def starlette(shop: Shop) -> Any:
    routes = [
        Route("/tickets", shop.create, methods=["POST", "PATCH"]),
        Route("/tickets", shop.tickets, methods=["GET"]),
        Route("/streams", shop.stream, methods=["POST"]),
        Route("/open", shop.create, methods=["POST"]),
    ]
    return Starlette(routes=routes)


def fastapi(shop: Shop) -> Any:
    from fastapi import FastAPI  # half a second, which only its own tests pay
    from fastapi import Request as FastAPIRequest

    app = FastAPI()

    @app.post("/tickets")
    @app.patch("/tickets")
    @app.post("/open")
    async def create(request: FastAPIRequest) -> Response:
        return await shop.create(request)

    @app.get("/tickets")
    async def tickets(request: FastAPIRequest) -> Response:
        return await shop.tickets(request)

    @app.post("/streams")
    async def stream(request: FastAPIRequest) -> Response:
        return await shop.stream(request)

    return app


def _user(scope: Any) -> str | None:
    user = dict(scope["headers"]).get(b"x-user", b"everybody").decode()
    return None if user == "nobody" else user


def serve(
    *,
    database_url: str,
    framework: str = "starlette",
    reconcile: str = "find",
    lease: float = 2.0,
    mortal: bool = True,
    wait: float = 2.0,
    limit: int = 100_000,
) -> None:
    """Serve on a free port of the loopback interface, which is said."""
    keys = {"lease_s": lease, "wait_s": wait, "max_answer_bytes": limit}
    shop = Shop(database_url, is_mortal=mortal, reconcile=reconcile, **keys)
    app = fastapi(shop) if framework == "fastapi" else starlette(shop)
    app.add_middleware(
        IdempotencyMiddleware,
        store=shop.keys,
        tenant=_user,
        required=lambda scope: scope["path"] != "/open",
        not_processed={*NOT_PROCESSED, 503},
        max_request_bytes=200_000,
    )
    listener = socket.create_server(("127.0.0.1", 0))
    say(listener.getsockname()[1])
    config = uvicorn.Config(app, ws="none", lifespan="off", log_level="critical", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    asyncio.run(server.serve(sockets=[listener]))
