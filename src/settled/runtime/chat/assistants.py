"""The routes of assistants: the agents that the server was started with, by name."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from settled.runtime.chat.asking import ASKING, Asking
from settled.runtime.chat.bodies import json_of
from settled.runtime.chat.refusals import Refusing
from settled.runtime.chat.requests import validated
from settled.runtime.chat.wire import plain, selected

STARTED = datetime.now(UTC)
"""Assistants begin with their server."""

routes = APIRouter(route_class=Refusing)


class _Search(BaseModel):
    model_config = ConfigDict(extra="forbid")
    metadata: dict[str, JsonValue] = {}
    graph_id: str | None = None
    name: str | None = None
    limit: int = Field(default=10, ge=1, le=1000)
    offset: int = Field(default=0, ge=0)
    sort_by: str | None = None
    sort_order: str | None = None
    select: list[str] | None = None


@routes.post("/assistants/search")
async def search(request: Request, asked: Asking = ASKING) -> JSONResponse:
    """Return the assistants, by name."""
    wanted: _Search = validated(_Search, await json_of(request))
    found = _found(asked, wanted)[wanted.offset : wanted.offset + wanted.limit]
    return JSONResponse(selected(map(_form, found), wanted.select))


@routes.post("/assistants/count")
async def count(request: Request, asked: Asking = ASKING) -> JSONResponse:
    """Count the assistants."""
    return JSONResponse(len(_found(asked, validated(_Search, await json_of(request)))))


@routes.get("/assistants/{name}")
async def get(name: str, asked: Asking = ASKING) -> JSONResponse:
    """Return an assistant."""
    asked.chat.agent(asked.who, name)
    return JSONResponse(_form(name))


@routes.get("/assistants/{name}/graph")
async def graph(name: str, asked: Asking = ASKING) -> JSONResponse:
    """Return the nodes and edges of an assistant."""
    return JSONResponse(plain(asked.chat.agent(asked.who, name).get_graph().to_json()))


@routes.get("/assistants/{name}/schemas")
async def schemas(name: str, asked: Asking = ASKING) -> JSONResponse:
    """Return the schemas of an assistant's input and output."""
    agent = asked.chat.agent(asked.who, name)
    given = {"input_schema": _schema(agent.get_input_jsonschema), "output_schema": _schema(agent.get_output_jsonschema)}
    rest = {"state_schema": None, "config_schema": None, "context_schema": None}
    return JSONResponse(plain({"graph_id": name, **given, **rest}))


def _schema(make: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    """Return a schema; None for a graph whose state has none that can be written."""
    try:
        return make()
    except Exception:  # noqa: BLE001 - pydantic raises one kind or another for a type that it cannot describe
        return None


def _found(asked: Asking, wanted: _Search) -> list[str]:
    names = {wanted.graph_id, wanted.name} - {None}
    return [name for name in asked.chat.names(asked.who) if not wanted.metadata and names <= {name}]


def _form(name: str) -> dict[str, Any]:
    return {
        "assistant_id": name,
        "graph_id": name,
        "name": name,
        "description": None,
        "config": {},
        "context": {},
        "metadata": {},
        "version": 1,
        "created_at": STARTED.isoformat(),
        "updated_at": STARTED.isoformat(),
    }
