"""The routes of threads and their states."""

from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from settled.runtime.chat.asking import ASKING, Asking
from settled.runtime.chat.bodies import json_of
from settled.runtime.chat.refusals import Refused, Refusing
from settled.runtime.chat.requests import validated
from settled.runtime.chat.wire import selected, state_form, thread_form
from settled.state import runs

MOST_THREADS = 100
MOST_STATES = 100
"""Of a thread's history in one answer: each is read by itself."""

MAX_SKIPPED = 10_000

NO_UPDATE = (
    "a thread's state is changed by messages and decisions alone; another branch of it is made with Session.replay"
)
NO_TTL = "ttl: threads are kept until they are deleted, or purged by the retention of the server"
NO_SUPERSTEPS = "supersteps: a thread begins empty"
NO_VALUES = "values: threads are looked for by metadata, ids and status"

routes = APIRouter(route_class=Refusing)

Metadata = dict[str, JsonValue]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _New(_Strict):
    thread_id: str | None = None
    metadata: Metadata = Field(default={}, max_length=50)
    if_exists: Literal["raise", "do_nothing"] = "raise"


class _Change(_Strict):
    metadata: Metadata = Field(max_length=50)


class _Search(_Strict):
    metadata: Metadata = {}
    ids: list[str] | None = Field(default=None, max_length=MOST_THREADS)
    status: Literal["idle", "busy", "interrupted", "error"] | None = None
    limit: int = Field(default=10, ge=1, le=MOST_THREADS)
    offset: int = Field(default=0, ge=0, le=MAX_SKIPPED)
    sort_by: Literal["updated_at"] = "updated_at"
    sort_order: Literal["desc"] = "desc"
    select: list[str] | None = None


class _Count(_Strict):
    metadata: Metadata = {}
    status: Literal["idle", "busy", "interrupted", "error"] | None = None


class _History(_Strict):
    limit: int = Field(default=10, ge=1, le=MOST_STATES)
    before: str | dict[str, JsonValue] | None = None
    metadata: Metadata | None = None
    checkpoint: dict[str, JsonValue] | None = None
    select: list[str] | None = None


@routes.post("/threads")
async def create(request: Request, asked: Asking = ASKING) -> JSONResponse:
    """Begin a thread."""
    body = await json_of(request)
    _refuse(body, ttl=NO_TTL, supersteps=NO_SUPERSTEPS)
    new: _New = validated(_New, body)
    may_exist = new.if_exists == "do_nothing"
    thread = await asked.chat.begin_thread(asked.who, new.thread_id, new.metadata, may_exist=may_exist)
    return JSONResponse(thread_form(thread))


@routes.post("/threads/search")
async def search(request: Request, asked: Asking = ASKING) -> JSONResponse:
    """Look for threads, newest first. Their values are read one by one, so only where `select` names them."""
    body = await json_of(request)
    _refuse(body, values=NO_VALUES, extract="extract: read the values of a thread")
    wanted: _Search = validated(_Search, body)
    query = runs.threads(
        asked.who.tenant,
        metadata=wanted.metadata,
        ids=wanted.ids,
        status=wanted.status,
        most=wanted.limit,
        skipped=wanted.offset,
    )
    found = await asked.chat.rows.arun(query)
    has_values = wanted.select is not None and {"values", "interrupts"} & set(wanted.select)
    forms = [
        thread_form(one, await asked.chat.state(asked.who, one.thread_id) if has_values else None) for one in found
    ]
    return JSONResponse(selected(forms, wanted.select))


@routes.post("/threads/count")
async def count(request: Request, asked: Asking = ASKING) -> JSONResponse:
    """Count threads."""
    body = await json_of(request)
    _refuse(body, values=NO_VALUES)
    wanted: _Count = validated(_Count, body)
    query = runs.count_threads(asked.who.tenant, metadata=wanted.metadata, status=wanted.status)
    return JSONResponse(await asked.chat.rows.arun(query))


@routes.get("/threads/{thread_id}")
async def get(thread_id: str, asked: Asking = ASKING) -> JSONResponse:
    """Return a thread with its values."""
    thread = await asked.chat.thread(asked.who, thread_id)
    return JSONResponse(thread_form(thread, await asked.chat.state(asked.who, thread_id)))


@routes.patch("/threads/{thread_id}")
async def change(thread_id: str, request: Request, asked: Asking = ASKING) -> Response:
    """Put values into a thread's metadata."""
    body = await json_of(request)
    _refuse(body, ttl=NO_TTL)
    wanted: _Change = validated(_Change, body)
    changed = await asked.chat.change_thread(asked.who, thread_id, wanted.metadata)
    if request.headers.get("prefer") == "return=minimal":
        return Response(status_code=204)
    return JSONResponse(thread_form(changed))


@routes.delete("/threads/{thread_id}")
async def delete(thread_id: str, asked: Asking = ASKING) -> Response:
    """Forget a thread of which nothing is open. Its actions stay in the ledger."""
    await asked.chat.drop_thread(asked.who, thread_id)
    return Response(status_code=204)


@routes.get("/threads/{thread_id}/state")
async def state(thread_id: str, subgraphs: bool = False, asked: Asking = ASKING) -> JSONResponse:
    """Return a thread's state."""
    return await _state(asked, thread_id, None, subgraphs)


@routes.post("/threads/{thread_id}/state/checkpoint")
async def state_at(thread_id: str, request: Request, asked: Asking = ASKING) -> JSONResponse:
    """Return a thread's state at a checkpoint that the body names."""
    body = await json_of(request)
    return await _state(asked, thread_id, _checkpoint_of(body.get("checkpoint")), body.get("subgraphs") is True)


@routes.get("/threads/{thread_id}/state/{checkpoint_id}")
async def state_of(thread_id: str, checkpoint_id: str, subgraphs: bool = False, asked: Asking = ASKING) -> JSONResponse:
    """Return a thread's state at a checkpoint."""
    return await _state(asked, thread_id, checkpoint_id, subgraphs)


async def _state(asked: Asking, thread_id: str, checkpoint_id: str | None, subgraphs: bool) -> JSONResponse:
    found = await asked.chat.state(asked.who, thread_id, checkpoint_id, subgraphs=subgraphs)
    return JSONResponse(state_form(found, thread_id, subgraphs=subgraphs))


@routes.post("/threads/{thread_id}/state")
async def update_state(thread_id: str, asked: Asking = ASKING) -> JSONResponse:
    """Refuse: what was said and done is not edited."""
    await asked.chat.thread(asked.who, thread_id)
    raise Refused(422, NO_UPDATE)


@routes.post("/threads/{thread_id}/history")
async def history(thread_id: str, request: Request, asked: Asking = ASKING) -> JSONResponse:
    """Return the states of a thread, newest first."""
    wanted: _History = validated(_History, await json_of(request))
    if wanted.checkpoint is not None and wanted.checkpoint.get("checkpoint_ns"):
        raise Refused(422, "checkpoint: the history of a thread is that of its root")
    before = wanted.before if wanted.before is None else _checkpoint_of(wanted.before)
    states = await asked.chat.history(asked.who, thread_id, most=wanted.limit, before=before, wanted=wanted.metadata)
    return JSONResponse(selected([state_form(one, thread_id) for one in states], wanted.select))


def _checkpoint_of(named: Any) -> str:
    """Return the id in a checkpoint, which is the id itself or an object of it."""
    name = named.get("checkpoint_id") if isinstance(named, dict) else named
    if not isinstance(name, str) or not name:
        raise Refused(422, "checkpoint: must name a checkpoint_id")
    return name


def _refuse(body: dict[str, Any], **reasons: str) -> None:
    """Refuse what this server does not have, each with its reason."""
    for name, why in reasons.items():
        if name in body:
            raise Refused(422, why)
