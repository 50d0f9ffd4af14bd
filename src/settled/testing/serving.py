"""The HTTP side of a `FaultyRemote`: one request through its fault, its handler and the socket.

Each connection carries one request (HTTP/1.0), so that a dropped reply never hits another request.
"""

import contextlib
import json
import logging
import socket
import struct
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

from settled.testing.faults import Fault
from settled.testing.requests import Reply, Request
from settled.testing.store import KeyReused

MAX_BODY_BYTES = 16 * 1024 * 1024
"""A test that sends more than this has gone wrong."""

_CUT_OFF = struct.pack("ii", 1, 0)
_log = logging.getLogger("settled.testing")


class Remote(Protocol):
    """What the server asks of its owner."""

    def begin(self, request: Request) -> tuple[Fault, Request]: ...
    def carry_out(self, request: Request) -> object: ...
    def request(self, method: str, target: str, headers: Mapping[str, str], body: object) -> Request: ...
    def look_on(self, request: Request, when: str) -> None: ...
    def under_way(self) -> contextlib.AbstractContextManager[None]: ...


class Server(ThreadingHTTPServer):
    """Serves one remote side; a hung handler never keeps the process from ending."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, port: int, remote: Remote) -> None:
        self.remote = remote
        super().__init__(("127.0.0.1", port), _Connection)


class _Connection(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        with self.server.remote.under_way(), contextlib.suppress(OSError):  # the caller may have gone
            self._serve()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - names of the standard library

    def _serve(self) -> None:
        remote = self.server.remote
        fault, request = remote.begin(remote.request(self.command, self.path, dict(self.headers.items()), self._body()))
        if fault.hangs_up:
            self._end("drop")
        time.sleep(fault.before_s)
        remote.look_on(request, "before")
        reply = answered(remote, request, fault)
        remote.look_on(request, "after")
        time.sleep(fault.after_s)
        if not fault.hangs_up:
            self._send(fault, reply)

    def _body(self) -> object:
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(min(length, MAX_BODY_BYTES))
        return body_of(self.headers.get("Content-Type", ""), raw)

    def _send(self, fault: Fault, reply: Reply) -> None:
        if fault.reply in ("drop", "reset"):
            return self._end(fault.reply)
        text = json.dumps(reply.body).encode()
        self.send_response(reply.status)
        for name, value in {"Content-Type": "application/json", **reply.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text[: len(text) // 2] if fault.reply == "truncate" else text)
        return None

    def _end(self, how: str) -> None:
        self.close_connection = True
        if how == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _CUT_OFF)
            self.connection.close()
        else:
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the standard library
        pass

    def finish(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # what it would flush is closed
            super().finish()


def answered(remote: Remote, request: Request, fault: Fault) -> Reply:
    """Return the answer to a request: that of its handler, with what the fault makes of it."""
    is_write = request.method != "GET"
    if is_write and not fault.commits:
        return Reply(fault.status or 503, {"error": "not processed"}, fault.headers)
    reply = _reply(remote, request)
    body = _changed(reply.body, fault.changes)
    if fault.status is not None and not 200 <= fault.status < 300:
        body = {"error": "the service could not answer"}
    return Reply(fault.status or reply.status, body, {**reply.headers, **fault.headers})


def _reply(remote: Remote, request: Request) -> Reply:
    try:
        returned = remote.carry_out(request)
    except KeyReused:
        return Reply(422, {"code": "idempotency_key_reused", "message": "this key was used with another body"})
    except Exception:  # noqa: BLE001 - a handler is somebody else's: whatever it raises is its answer
        _log.exception("the handler of %s %s raised", request.method, request.path)
        return Reply(500, {"error": "the handler raised"})
    return returned if isinstance(returned, Reply) else Reply(200, returned)


def _changed(body: object, changes: Mapping[str, object]) -> object:
    """Return an answer with other values in some fields; of a list, in each of its items."""
    if not changes:
        return body
    if isinstance(body, list):
        return [_changed(item, changes) for item in body]
    return {**body, **changes} if isinstance(body, dict) else body


def body_of(content_type: str, raw: bytes) -> Any:
    """Return a request's body: JSON, or the fields of a form; {} for none, {"text": ...} for anything else."""
    text = raw.decode("utf-8", "replace")
    if not text:
        return {}
    if content_type.startswith("application/x-www-form-urlencoded"):
        return dict(parse_qsl(text))
    try:
        return json.loads(text)
    except ValueError:
        return {"text": text}


def split_target(target: str) -> tuple[str, dict[str, str]]:
    """Return the path and the query of a request's target."""
    parts = urlsplit(target)
    return parts.path, dict(parse_qsl(parts.query))
