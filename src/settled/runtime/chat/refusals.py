"""What the API says when it does not do as it was asked: a status and one sentence, under `message`.

Owns the mapping from the library's errors to HTTP, and the sentences about what LangGraph's server has and this one
does not. Nothing is left out in silence.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from settled.state.errors import (
    AlreadyDecided,
    ContractError,
    InvalidArguments,
    LedgerUnavailable,
    NotFound,
    NotPermitted,
    SettledError,
    ShownOtherwise,
    ThreadBusy,
)

_log = logging.getLogger("settled")

STATUS: Mapping[type[SettledError], int] = {
    InvalidArguments: 422,
    NotFound: 404,
    NotPermitted: 403,
    AlreadyDecided: 409,
    ShownOtherwise: 409,
    ThreadBusy: 409,
    LedgerUnavailable: 503,
    ContractError: 422,
}

NOT_HERE = "this server does not have that part of the API; it has threads, their runs and states, and assistants"


FAULT = "something went wrong here; the server's log says what"


class Refused(Exception):
    """The request is not carried out; `status` and one sentence say why."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


def first_of(problems: Sequence[Mapping[str, Any]]) -> str:
    """Return the first of what pydantic has found wrong, as a sentence that names the field."""
    where = ".".join(str(part) for part in problems[0]["loc"])
    return f"{where}: {problems[0]['msg']}" if where else str(problems[0]["msg"])


def refusal(status: int, sentence: str) -> JSONResponse:
    """Return a refusal as it is sent."""
    headers = {"www-authenticate": "Bearer"} if status == 401 else {}
    return JSONResponse({"message": sentence, "detail": sentence}, status, headers)


class Refusing(APIRoute):
    """A route whose errors become refusals here, whatever application it is mounted in."""

    def get_route_handler(self) -> Callable[[Request], "Response"]:  # type: ignore[override]
        handle = super().get_route_handler()

        async def refusing(request: Request) -> Response:
            try:
                return await handle(request)
            except Refused as refused:
                return refusal(refused.status, refused.sentence)
            except RequestValidationError as error:
                return refusal(422, first_of(error.errors()))
            except HTTPException as error:
                return refusal(error.status_code, str(error.detail))
            except SettledError as error:
                return _refusal_of(error)
            except Exception:  # noqa: BLE001 - a fault is one too: its trace is for the log
                _log.exception("%s %s", request.method, request.url.path)
                return refusal(500, FAULT)

        return refusing  # type: ignore[return-value]


def _refusal_of(error: SettledError) -> JSONResponse:
    status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)
    if status < 500:
        return refusal(status, str(error))
    _log.error("the chat server cannot answer", exc_info=error)
    if status == 503:
        return refusal(503, "the database does not answer; nothing is lost, ask again in a moment")
    return refusal(500, FAULT)


ABSENT = (
    ("POST", "/assistants", "assistants are the agents that the server was started with"),
    ("PATCH", "/assistants/{rest:path}", "assistants are the agents that the server was started with"),
    ("DELETE", "/assistants/{rest:path}", "assistants are the agents that the server was started with"),
    ("POST", "/threads/prune", "threads are deleted one by one, and the ledger's purge has its own retention"),
    ("POST", "/threads/{thread_id}/copy", "a copy would be another conversation, whose calls are new actions"),
    ("GET", "/threads/{thread_id}/stream", "what a thread says is streamed run by run: join the stream of a run"),
    ("POST", "/runs/batch", "runs are begun one by one"),
    ("POST", "/runs/cancel", "runs are cancelled one by one, with their thread's id"),
    ("POST", "/runs/crons", NOT_HERE),
)
"""What clients of LangGraph's server may ask for: method, path, and why it is not there."""


def add_refusals(router: APIRouter) -> None:
    """Answer the rest of that API with 501 and a sentence. To be added last."""
    for method, path, why in ABSENT:
        router.add_api_route(path, _absent(why), methods=[method], include_in_schema=False)
    for path in ("/assistants", "/threads", "/runs", "/store", "/crons"):
        methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
        router.add_api_route(path + "/{rest:path}", _absent(NOT_HERE), methods=methods, include_in_schema=False)


def _absent(why: str) -> Callable[[], JSONResponse]:
    def absent() -> JSONResponse:
        return refusal(501, f"not here: {why}")

    return absent
