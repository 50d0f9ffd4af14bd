"""A remote side that can go wrong: a real HTTP server on loopback whose effects are rows that a test can count.

    with Remote(database_url) as remote:
        remote.next(DROP)                      # the next POST commits its effect, and its reply is lost
        perform(payment(remote.url), {"order_id": "O-1", "amount": 5}, ledger=ledger, thread_id="t")
        assert remote.count() == 1

`POST /effects` does it (201, `{"receipt": "R-1", ...}`), `GET /effects?key=` asks (200 with the same body, or 404).
Give it a database that outlives the fault under test: its own connections must not die with the ledger's.
"""

import contextlib
import json
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self
from urllib.parse import parse_qs, urlsplit

import psycopg
from psycopg_pool import ConnectionPool

from settled import (
    Absent,
    Action,
    ActionTool,
    Backoff,
    Event,
    Found,
    Inconclusive,
    Inquiry,
    Ledger,
    action,
    http,
)
from settled.state import ledger as operations


@dataclass(frozen=True)
class Fault:
    """What happens to one request: it waits `before_s`, is committed (or not), waits `after_s`, and is answered.

    `left_alone`: the caller's connection is closed at once, and the effect comes `before_s` later.
    """

    commits: bool = True
    status: int = 201
    reply: Literal["answer", "drop", "reset", "truncate"] = "answer"
    before_s: float = 0.0
    after_s: float = 0.0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, object] | None = None
    left_alone: bool = False


FINE = Fault()
DROP = Fault(reply="drop")
RESET = Fault(reply="reset")
TRUNCATE = Fault(reply="truncate")
ERROR_AFTER_COMMIT = Fault(status=500, body={"error": "the database went away"})
ERROR_BEFORE_COMMIT = Fault(status=500, commits=False, body={"error": "not today"})


def busy(status: int = 503, retry_after: float | str | None = None) -> Fault:
    """Refuse before anything is done."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return Fault(commits=False, status=status, headers=headers, body={"error": "busy"})


def slow(seconds: float) -> Fault:
    """Take this long before the effect; the answer follows it at once."""
    return Fault(before_s=seconds)


def late(seconds: float) -> Fault:
    """Do it at once and answer this much later."""
    return Fault(after_s=seconds)


def lands_later(seconds: float) -> Fault:
    """Drop the caller at once; the effect comes this much later, as from a queue on the way."""
    return Fault(before_s=seconds, left_alone=True)


@dataclass(frozen=True)
class Effect:
    id: int
    key: str | None
    body: dict[str, Any]


@dataclass(frozen=True)
class Request:
    method: str
    key: str | None
    at: float


class Remote:
    """The server. `dedupes`: it recognises a repeated key. `query_lag_s`: how old an effect must be to be found."""

    def __init__(self, database_url: str, *, dedupes: bool = True, query_lag_s: float = 0.0) -> None:
        self.dedupes = dedupes
        self.query_lag_s = query_lag_s
        self.requests: list[Request] = []
        self.database_url = database_url
        self.arrived = threading.Event()
        """Set by the first POST, before anything is done with it."""
        self._posts: deque[Fault] = deque()
        self._queries: deque[Fault] = deque()
        self._pool = ConnectionPool(database_url, min_size=1, max_size=20, kwargs={"autocommit": True}, open=False)
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.remote = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/effects"

    def __enter__(self) -> Self:
        with psycopg.connect(self.database_url) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(1)")  # two remotes may share a database
            connection.execute(_TABLE)
        self._pool.open(wait=True)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._pool.close()

    def next(self, *faults: Fault) -> None:
        """Let the next POSTs meet these, one each; after them all is well."""
        self._posts.extend(faults)

    def next_query(self, *faults: Fault) -> None:
        """Let the next GETs meet these (`commits=False` has no meaning for them; status 201 means: answer truly)."""
        self._queries.extend(faults)

    def count(self, key: str | None = None) -> int:
        """How many effects there are, of one key or in all."""
        return len([effect for effect in self.effects() if key in (None, effect.key)])

    def effects(self) -> list[Effect]:
        with self._pool.connection() as connection:
            return [Effect(*row) for row in connection.execute("SELECT id, key, body FROM remote_effects ORDER BY id")]

    def posts(self, key: str | None = None) -> int:
        """How many POSTs arrived, of one key or in all."""
        return len([r for r in self.requests if r.method == "POST" and key in (None, r.key)])

    def queries(self) -> int:
        return len([r for r in self.requests if r.method == "GET"])

    def take(self, method: str) -> Fault:
        faults = self._posts if method == "POST" else self._queries
        try:
            return faults.popleft()
        except IndexError:
            return FINE

    def commit(self, key: str | None, body: Mapping[str, object]) -> Effect | None:
        """Do it; None when the key is known with another body."""
        known_by = key if self.dedupes else None
        with self._pool.connection() as connection:
            row = connection.execute(_COMMIT, [key, known_by, json.dumps(body)]).fetchone()
            if row is None:
                row = connection.execute(_KNOWN, [known_by]).fetchone()
        assert row is not None
        effect = Effect(*row)
        return effect if effect.body == body else None

    def find(self, key: str | None) -> Effect | None:
        with self._pool.connection() as connection:
            row = connection.execute(_FIND, [key, self.query_lag_s]).fetchone()
        return None if row is None else Effect(*row)


_TABLE = """
CREATE TABLE IF NOT EXISTS remote_effects (
    id serial PRIMARY KEY, key text, known_by text UNIQUE, body jsonb, at timestamptz DEFAULT clock_timestamp())"""
_COMMIT = """
INSERT INTO remote_effects (key, known_by, body) VALUES (%s, %s, %s)
ON CONFLICT (known_by) DO NOTHING RETURNING id, key, body"""
_KNOWN = "SELECT id, key, body FROM remote_effects WHERE known_by = %s"
_FIND = """
SELECT id, key, body FROM remote_effects
WHERE key = %s AND at <= clock_timestamp() - make_interval(secs => %s) ORDER BY id LIMIT 1"""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    remote: Remote


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        remote, key = self.server.remote, self.headers.get("Idempotency-Key")
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fault = self._begin(key)
        remote.arrived.set()
        if fault.left_alone:
            self._end("drop")
        time.sleep(fault.before_s)
        status, answer = fault.status, dict(fault.body or {})
        if fault.commits:
            effect = remote.commit(key, body)
            if effect is None:
                status, answer = 422, {"code": "idempotency_key_reused", "message": "the key has another body"}
            elif status < 300:
                answer = {**_told(effect), **answer}
        time.sleep(fault.after_s)
        if not fault.left_alone:
            self._answer(fault, status, answer)

    def do_GET(self) -> None:
        key = parse_qs(urlsplit(self.path).query).get("key", [None])[0]
        fault = self._begin(key)
        time.sleep(fault.before_s)
        effect = self.server.remote.find(key)
        status, answer = (200, _told(effect)) if effect else (404, {"error": "no such key"})
        if fault.status != 201:
            status, answer = fault.status, dict(fault.body or {})
        time.sleep(fault.after_s)
        self._answer(fault, status, answer)

    def _begin(self, key: str | None) -> Fault:
        remote = self.server.remote
        remote.requests.append(Request(self.command, key, time.monotonic()))
        return remote.take(self.command)

    def _answer(self, fault: Fault, status: int, answer: Mapping[str, object]) -> None:
        if fault.reply in ("drop", "reset"):
            return self._end(fault.reply)
        text = json.dumps(answer).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            for name, value in fault.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text[: len(text) // 2] if fault.reply == "truncate" else text)
        except OSError:  # the caller has gone meanwhile
            pass
        return None

    def _end(self, how: str) -> None:
        self.close_connection = True
        if how == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        else:
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the standard library
        pass

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            super().finish()


def _told(effect: Effect) -> dict[str, object]:
    return {"receipt": f"R-{effect.id}", **effect.body}


SHORT: Mapping[str, Any] = {
    "timeout": 0.8,
    "deadline": 8.0,
    "lease": 1.0,
    "settle_window": 0.8,
    "backoff": Backoff(first=0.1, cap=0.2, jitter=0.0),
}
"""A contract whose every wait is short."""


def payment(
    url: str, *, asynchronous: bool = False, before: Callable[[], object] | None = None, **contract: Any
) -> ActionTool:
    """A tool that pays an order at the remote side at `url`, through the guarded HTTP client, and can ask for it.

    `contract` goes to @action: by default a non-idempotent write on a remote side that dedupes, with short waits.
    `before` is called in the body, before it sends anything.
    """
    declared = {"risk": "non_idempotent_write", "remote": "dedupes", "identity": ("order_id",), **SHORT}
    declare = action(**{**declared, "query": asking(url), "name": "payment", **contract})
    if asynchronous:

        async def apay(order_id: str, amount: int) -> dict[str, Any]:
            """Pay an order."""
            if before is not None:
                before()
            async with http.async_client(verify=_context(), timeout=30) as client:
                reply = await client.post(url, json={"order_id": order_id, "amount": amount})
            answer: dict[str, Any] = reply.json()
            return answer

        return declare(apay)

    def pay(order_id: str, amount: int) -> dict[str, Any]:
        """Pay an order."""
        if before is not None:
            before()
        with http.client(verify=_context(), timeout=30) as client:
            answer: dict[str, Any] = client.post(url, json={"order_id": order_id, "amount": amount}).json()
        return answer

    return declare(pay)


def asking(url: str) -> Any:
    """The query of `payment`: by the key, and what is found is compared field by field."""

    def query(inquiry: Inquiry) -> Found | Absent | Inconclusive:
        with http.client(verify=_context(), timeout=30) as client:
            reply = client.get(url, params={"key": inquiry.idempotency_key})
        match reply.status_code:
            case 200:
                result = reply.json()
                fields = {name: result[name] for name in ("order_id", "amount")}
                return Found(receipt=result["receipt"], result=result, fields=fields)
            case 404:
                return Absent()
            case status:
                return Inconclusive(f"status {status}")

    return query


@cache
def _context() -> Any:
    """A client makes a TLS context although nothing here is encrypted, and that takes longer than the request."""
    import ssl

    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def timeline(ledger: Ledger, action_id: str | None) -> list[Event]:
    """The events of an action, in order."""
    return ledger.run(operations.timeline("default", str(action_id)))


def triggers(ledger: Ledger, action_id: str | None) -> list[str]:
    """What happened to an action, in one word each, in order."""
    return [event.trigger for event in timeline(ledger, action_id)]


def actions(ledger: Ledger, thread_id: str | None = None) -> list[Action]:
    """The rows of the ledger, newest first."""
    return ledger.run(operations.actions("default", states=None, thread_id=thread_id))


def row(ledger: Ledger, action_id: str | None) -> Action:
    """One row of the ledger."""
    found = ledger.run(operations.load("default", str(action_id)))
    assert found is not None
    return found
