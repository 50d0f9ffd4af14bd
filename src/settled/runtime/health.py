"""Whether a worker lives and works, for whoever restarts it, and what is open, for whoever counts: pages over HTTP.

`/metrics` is the ledger's (`settled.runtime.metrics`), of all tenants, where Prometheus' client is installed. `/live`
answers as long as the event loop turns. `/ready` is 200 while the ledger answers and was read lately, and 503 when it
is not, or the worker drains. Owns just so much of HTTP as a probe needs.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

from settled.runtime.worker import Worker
from settled.state import threads, work
from settled.state.errors import LEDGER_IS_GONE

MISSED_SCANS = 3
"""A worker that has missed so many is not ready; a scan itself may take its time."""

PATIENCE_S = 2.0
"""A probe gives up after a few seconds, and wants an answer before that."""

MAX_REQUEST_BYTES = 8192

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 503: "Service Unavailable"}


@asynccontextmanager
async def health(worker: Worker, host: str, port: int) -> AsyncIterator[int]:
    """Answer probes at an address (port 0: any that is free) within the block; yields the port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            path = await asyncio.wait_for(_path(reader), PATIENCE_S)
            writer.write(await _metrics(worker) if path == "/metrics" else _told(*await _answer(worker, path)))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, host, port, limit=MAX_REQUEST_BYTES)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def _path(reader: asyncio.StreamReader) -> str | None:
    """Return what is asked for; None for what is no GET."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None
    method, _, rest = head.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")
    return rest.split(" ")[0].partition("?")[0] if method in ("GET", "HEAD") else None


async def _metrics(worker: Worker) -> bytes:
    if find_spec("prometheus_client") is None:
        return _told(404, {"error": "metrics need Prometheus' client: pip install 'settled[serve]'"})
    from settled.runtime.metrics import CONTENT_TYPE, page

    return _page(200, CONTENT_TYPE, await asyncio.to_thread(page, worker.ledger))


async def _answer(worker: Worker, path: str | None) -> tuple[int, dict[str, Any]]:
    match path:
        case "/live":
            return 200, {"live": True}
        case "/ready":
            standing = await readiness(worker)
            return (200 if standing["ready"] else 503), standing
        case None:
            return 400, {"error": "this answers GET /live, GET /ready and GET /metrics"}
        case _:
            return 404, {"error": "there are /live, /ready and /metrics"}


async def readiness(worker: Worker) -> dict[str, Any]:
    """Return how a worker stands: whether it is ready, what it has in hand, and what waits for any worker."""
    age = worker.scanned_s_ago
    is_late = age is None or age > MISSED_SCANS * worker.scan_every_s + PATIENCE_S
    told: dict[str, Any] = {
        "ready": not is_late and not worker.is_draining,
        "draining": worker.is_draining,
        "scanned_s_ago": None if age is None else round(age, 1),
        "in_flight": worker.in_flight,
    }
    try:
        backlog, stuck = await asyncio.wait_for(_waiting(worker), PATIENCE_S)
    except (TimeoutError, *LEDGER_IS_GONE):
        return {**told, "ready": False, "ledger": False}
    return {**told, "ledger": True, **asdict(backlog), "stuck_threads": stuck}


async def _waiting(worker: Worker) -> tuple[work.Backlog, int]:
    """Return what waits for any worker, and how many threads have been given up (a hundred at most)."""
    backlog = await work.on(worker.ledger).arun(work.backlog())
    stuck: list[threads.StuckThread] = await threads.on(worker.ledger).arun(threads.stuck())
    return backlog, len(stuck)


def _told(status: int, told: dict[str, Any]) -> bytes:
    return _page(status, "application/json", json.dumps(told).encode() + b"\n")


def _page(status: int, kind: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
