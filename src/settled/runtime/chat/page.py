"""The chat page, and what it asks for beside the API: how the actions of a thread stand, and one decision at a time.

It lives in the layout of the console, with its login. All it shows is put in as text, by its own script; nothing of it
is inline.
"""

from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from jinja2 import ChoiceLoader, Environment, PackageLoader
from pydantic import BaseModel, ConfigDict, Field

from settled.runtime.chat.asking import ASKING, Asking
from settled.runtime.chat.beginning import begin_run
from settled.runtime.chat.bodies import json_of
from settled.runtime.chat.refusals import Refused, Refusing
from settled.runtime.chat.requests import read, validated
from settled.runtime.chat.texts import TEXTS
from settled.runtime.chat.who import check_role
from settled.runtime.chat.wire import plain, run_form
from settled.runtime.records import instant
from settled.runtime.server.languages import language_of
from settled.runtime.server.pages.routes import TheSite, Viewer, pulse_of
from settled.runtime.server.rendering import environment, layout
from settled.runtime.server.static_files import KEEP
from settled.state import ledger as operations
from settled.state import runs
from settled.state.model import Action, Approval
from settled.state.secrets import masked
from settled.tools.decisions import Approve, Reject
from settled.tools.desk import Desk

MOST_ACTIONS = 200
"""Of a thread on one page; the console has the others."""

MEDIA = {"chat.js": "text/javascript", "chat.css": "text/css"}

MODES = ["messages-tuple", "updates", "custom"]
"""What the page listens to."""

page = APIRouter()
routes = APIRouter(route_class=Refusing)


class _Decided(BaseModel):
    model_config = ConfigDict(extra="forbid")
    action_id: str = Field(max_length=100)
    fingerprint: str = Field(max_length=100)
    type: Literal["approve", "reject"]
    note: str = Field(default="", max_length=500)


@page.get("/chat")
def chat_page(request: Request, person: Viewer, site: TheSite) -> HTMLResponse:
    """Return the page; whoever is not signed in is asked to do so."""
    values = {
        "words": TEXTS[language_of(request)],
        "agents": request.state.chat.names(person),
        "version": _version(),
    }
    frame = layout(request, person, pulse_of(site, person))
    return HTMLResponse(_templates().get_template("chat.html").render({**frame, **values}))


@page.get("/chat/static/{name}")
def static(name: str) -> Response:
    """Return the page's script or style."""
    if name not in MEDIA:
        return Response(status_code=404)
    return Response(_static(name), media_type=MEDIA[name], headers={"cache-control": KEEP})


@routes.get("/chat/threads/{thread_id}/live")
async def live(thread_id: str, asked: Asking = ASKING) -> JSONResponse:
    """Return the last run of a thread, and how its actions stand now."""
    chat, who = asked.chat, asked.who
    await chat.thread(who, thread_id)
    unended = await chat.rows.arun(runs.runs(who.tenant, thread_id, status="running", most=1))
    last = unended or await chat.rows.arun(runs.runs(who.tenant, thread_id, most=1))
    actions = await chat.ledger.arun(
        operations.actions(who.tenant, states=None, thread_id=thread_id, most=MOST_ACTIONS)
    )
    waiting = await chat.ledger.arun(operations.open_approvals(who.tenant, thread_id=thread_id, most=MOST_ACTIONS))
    tickets = {one.action_id: one for one in waiting}
    forms = [_action_form(one, tickets.get(one.id)) for one in actions]
    return JSONResponse({"run": run_form(last[0]) if last else None, "actions": forms})


@routes.post("/chat/threads/{thread_id}/decisions")
async def decide(thread_id: str, request: Request, asked: Asking = ASKING) -> JSONResponse:
    """Decide about one action of a thread, and let the thread go on. A second click is the same run."""
    chat, who = asked.chat, asked.who
    check_role(who, "approver", "decide")
    decided: _Decided = validated(_Decided, await json_of(request))
    await chat.thread(who, thread_id)
    action = await chat.ledger.arun(operations.load(who.tenant, decided.action_id))
    if action is None or action.thread_id != thread_id:
        raise Refused(404, f"there is no action {decided.action_id!r} in this thread")
    note = decided.note.strip() or None
    choice = Approve(note=note) if decided.type == "approve" else Reject(note=note)
    desk = Desk(chat.ledger, tenant=who.tenant)
    await desk.adecide(action.id, choice, by=who.name, roles=who.roles, fingerprint=decided.fingerprint)
    last = await chat.rows.arun(runs.runs(who.tenant, thread_id, most=1))
    agent = last[0].agent if last else next(iter(chat.names(who)))
    go_on = read({"assistant_id": agent, "stream_mode": MODES})
    run = await begin_run(chat, who, thread_id, go_on, f"decided:{action.id}:{decided.fingerprint[-16:]}")
    return JSONResponse(run_form(run))


def _action_form(action: Action, approval: Approval | None) -> dict[str, Any]:
    return {
        "action_id": action.id,
        "tool": action.tool,
        "summary": action.summary,
        "state": str(action.state),
        "is_manual": action.state == "unknown" and action.escalated_at is not None,
        "receipt": action.receipt,
        "attempt": action.attempt,
        "correlation_id": action.correlation_id,
        "approval": None if approval is None else _approval_form(approval),
    }


def _approval_form(approval: Approval) -> dict[str, Any]:
    return {
        "fingerprint": approval.fingerprint,
        "arguments": plain(masked(approval.arguments)),
        "reason": approval.reason,
        "valid_until": instant(approval.valid_until),
    }


@cache
def _templates() -> Environment:
    base = environment()
    own = PackageLoader("settled.runtime.chat")
    return base.overlay(loader=ChoiceLoader([own, base.loader])) if base.loader else base


def _static(name: str) -> bytes:
    return files("settled.runtime.chat").joinpath("static", name).read_bytes()


@cache
def _version() -> str:
    """Return what changes with the script or the style."""
    return sha256(b"".join(map(_static, sorted(MEDIA)))).hexdigest()[:12]
