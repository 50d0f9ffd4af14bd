"""The routes of runs: begun in the background, waited for, streamed, joined, cancelled.

A wait is an answer that begins with blank lines: each keeps the connection alive, and JSON does not mind them.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Literal
from urllib.parse import quote
from uuid import UUID, uuid5

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from sse_starlette import EventSourceResponse, ServerSentEvent

from settled.runtime.chat.asking import ASKING, Asking
from settled.runtime.chat.beginning import begin_run
from settled.runtime.chat.bodies import json_of
from settled.runtime.chat.listening import heard, number_of
from settled.runtime.chat.refusals import Refused, Refusing
from settled.runtime.chat.requests import NO_ROLLBACK, Asked, checked_key, read
from settled.runtime.chat.wire import run_form, selected, text_of
from settled.state import runs as operations
from settled.state.runs import Run

MOST_RUNS = 100
MAX_SKIPPED = 10_000

PING_S = 10
"""Between signs of life on a connection that is silent: proxies end one after 30 s or more."""

SEND_S = 30
"""A listener who does not take what he is sent for so long is dropped; he may come back with the last id."""

OWN_THREADS = UUID("6d1f4c1e-6f0b-4a56-9f0a-3a8f4b1d2c7e")
"""What the names of threads that were made for one run are derived from."""

routes = APIRouter(route_class=Refusing)

Key = Annotated[str | None, Header(alias="idempotency-key")]
LastEvent = Annotated[str | None, Header(alias="last-event-id")]
Limit = Annotated[int, Query(ge=1, le=MOST_RUNS)]
Offset = Annotated[int, Query(ge=0, le=MAX_SKIPPED)]
Names = Annotated[list[str] | None, Query()]


@routes.post("/threads/{thread_id}/runs")
@routes.post("/runs")
async def create(
    request: Request, thread_id: str | None = None, idempotency_key: Key = None, asked: Asking = ASKING
) -> JSONResponse:
    """Begin a run in the background; without a thread, in a new one, which stays: an action may outlive its run."""
    run, _ = await _begun(request, asked, thread_id, idempotency_key)
    return JSONResponse(run_form(run), headers=_named(run))


@routes.post("/threads/{thread_id}/runs/wait")
@routes.post("/runs/wait")
async def wait(
    request: Request, thread_id: str | None = None, idempotency_key: Key = None, asked: Asking = ASKING
) -> Response:
    """Begin a run, and return what it leaves."""
    run, wanted = await _begun(request, asked, thread_id, idempotency_key)
    headers = {**_named(run), "location": f"{_path(run)}/join"}
    return _waiting(asked, run, cancels=wanted.cancels_on_disconnect, headers=headers)


@routes.post("/threads/{thread_id}/runs/stream")
@routes.post("/runs/stream")
async def stream(
    request: Request, thread_id: str | None = None, idempotency_key: Key = None, asked: Asking = ASKING
) -> Response:
    """Begin a run, and stream what it says."""
    run, wanted = await _begun(request, asked, thread_id, idempotency_key)
    headers = {**_named(run), "location": f"{_path(run)}/stream"}
    return _streaming(asked, run, cancels=wanted.cancels_on_disconnect, headers=headers)


@routes.get("/threads/{thread_id}/runs")
async def list_runs(
    thread_id: str,
    limit: Limit = 10,
    offset: Offset = 0,
    status: Literal["pending", "running", "error", "success", "timeout", "interrupted"] | None = None,
    select: Names = None,
    asked: Asking = ASKING,
) -> JSONResponse:
    """Return the runs of a thread, newest first."""
    await asked.chat.thread(asked.who, thread_id)
    query = operations.runs(asked.who.tenant, thread_id, status=status, most=limit, skipped=offset)
    found = await asked.chat.rows.arun(query)
    return JSONResponse(selected([run_form(run) for run in found], select))


@routes.get("/threads/{thread_id}/runs/{run_id}")
async def get(thread_id: str, run_id: str, asked: Asking = ASKING) -> JSONResponse:
    """Return a run."""
    return JSONResponse(run_form(await asked.chat.run(asked.who, thread_id, run_id)))


@routes.delete("/threads/{thread_id}/runs/{run_id}")
async def delete(thread_id: str, run_id: str, asked: Asking = ASKING) -> Response:
    """Forget a run that has ended."""
    await asked.chat.drop_run(asked.who, thread_id, run_id)
    return Response(status_code=204)


@routes.post("/threads/{thread_id}/runs/{run_id}/cancel")
async def cancel(
    thread_id: str,
    run_id: str,
    wait: bool = False,
    action: Literal["interrupt", "rollback"] = "interrupt",
    asked: Asking = ASKING,
) -> Response:
    """Let a run end at its next step: what was sent is not taken back, and its outcome is recorded."""
    if action == "rollback":
        raise Refused(422, f"action: {NO_ROLLBACK}")
    await asked.chat.cancel(asked.who, thread_id, run_id)
    if wait:
        await asked.chat.ended(await asked.chat.run(asked.who, thread_id, run_id))
    return Response(status_code=204 if wait else 202)


@routes.get("/threads/{thread_id}/runs/{run_id}/join")
async def join(thread_id: str, run_id: str, cancel_on_disconnect: bool = False, asked: Asking = ASKING) -> Response:
    """Wait for a run's end, and return what it leaves."""
    run = await asked.chat.run(asked.who, thread_id, run_id)
    return _waiting(asked, run, cancels=cancel_on_disconnect, headers={})


@routes.get("/threads/{thread_id}/runs/{run_id}/stream")
async def join_stream(
    thread_id: str,
    run_id: str,
    stream_mode: Names = None,
    cancel_on_disconnect: bool = False,
    last_event_id: LastEvent = None,
    asked: Asking = ASKING,
) -> Response:
    """Stream what a run says, from its beginning or after the last event that was heard."""
    run = await asked.chat.run(asked.who, thread_id, run_id)
    if run.is_over and not run.has_events:
        raise Refused(410, "what this run has said is not kept any more; read the state of its thread")
    after, modes = number_of(last_event_id), [mode for mode in stream_mode or () if mode] or None
    headers = {"location": f"{_path(run)}/stream"}
    return _streaming(asked, run, after=after, modes=modes, cancels=cancel_on_disconnect, headers=headers)


async def _begun(request: Request, asked: Asking, thread_id: str | None, key: str | None) -> tuple[Run, Asked]:
    wanted, key = read(await json_of(request)), checked_key(key)
    named = thread_id or await _own_thread(asked, wanted, key)
    return await begin_run(asked.chat, asked.who, named, wanted, key), wanted


async def _own_thread(asked: Asking, wanted: Asked, key: str | None) -> str:
    """Begin a thread for one run. What names the request names the thread too, so that a second sending is the same."""
    asked.chat.agent(asked.who, wanted.agent)
    name = f"key:{key}" if key else f"message:{wanted.message_id}" if wanted.message_id else None
    own = None if name is None else str(uuid5(OWN_THREADS, f"{asked.who.tenant}\x1f{asked.who.name}\x1f{name}"))
    return (await asked.chat.begin_thread(asked.who, own, {"is_alone": True}, may_exist=True)).thread_id


def _path(run: Run) -> str:
    return f"/threads/{quote(run.thread_id, safe='')}/runs/{run.run_id}"


def _named(run: Run) -> dict[str, str]:
    return {"content-location": _path(run)}


def _waiting(asked: Asking, run: Run, *, cancels: bool, headers: dict[str, str]) -> Response:
    async def answer() -> AsyncIterator[str]:
        ending = asyncio.ensure_future(asked.chat.ended(run))
        try:
            while not (await asyncio.wait({ending}, timeout=PING_S))[0]:
                yield "\n"
            yield text_of(await asked.chat.values(asked.who, ending.result()))
        finally:
            if not ending.done():
                ending.cancel()
                await _gone(asked, run, cancels)

    # Compressed, a blank line would wait for the next ones, and keep nothing alive.
    headers = {**headers, "content-encoding": "identity"}
    return StreamingResponse(answer(), headers=headers, media_type="application/json")


def _streaming(
    asked: Asking,
    run: Run,
    *,
    after: int = 0,
    modes: list[str] | None = None,
    cancels: bool,
    headers: dict[str, str],
) -> Response:
    async def events() -> AsyncIterator[ServerSentEvent]:
        is_over = False
        try:
            async for one in heard(asked.chat.rows, asked.chat.bell, run, after=after, modes=modes):
                is_over = one.event == "end"
                yield ServerSentEvent(one.data, event=one.event, id=str(one.number), sep="\n")
        finally:
            if not is_over:
                await _gone(asked, run, cancels)

    headers = {**headers, "cache-control": "no-store", "x-accel-buffering": "no"}
    return EventSourceResponse(events(), headers=headers, ping=PING_S, send_timeout=SEND_S, sep="\n")


async def _gone(asked: Asking, run: Run, cancels: bool) -> None:
    """A listener has gone before the end."""
    if cancels:
        await asyncio.shield(asked.chat.cancel(asked.who, run.thread_id, run.run_id))
