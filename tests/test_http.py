"""The HTTP helper with both clients, sync and async, on real sockets where the network is the point (SPEC 5)."""

import asyncio
import contextlib
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import httpx
import httpx2
import pytest

from settled.state.errors import ContractError, Unguarded
from settled.tools import http
from settled.tools.context import CURRENT, ActionContext
from settled.tools.outcome import Conflict, Ended, Forbidden, Refused, Rejected, Unknown, from_exception

LIBRARIES = [httpx, httpx2]
KEY = "s1-0123456789abcdef0123456789abcdef01234567"
Answer = Callable[[socket.socket], None]


@pytest.fixture(params=LIBRARIES, ids=["httpx", "httpx2"])
def lib(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


@pytest.fixture(params=["sync", "async"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def action() -> Iterator[ActionContext]:
    soon = time.monotonic() + 60
    context = ActionContext(
        "act-1", "pay", KEY, "sha256:00", 1, datetime.now(UTC), None, "default", "thread", soon, soon, sent=[]
    )
    token = CURRENT.set(context)
    yield context
    CURRENT.reset(token)


class Remote:
    """A real loopback server that answers each connection by the next function, then closes it."""

    def __init__(self, *answers: Answer) -> None:
        self.requests: list[bytes] = []
        self._answers = answers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/tickets"
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "Remote":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._thread.join(5)

    def _serve(self) -> None:
        for answer in self._answers:
            with contextlib.suppress(OSError):
                connection, _ = self._listener.accept()
                with connection:
                    self.requests.append(_read_request(connection))
                    answer(connection)
        self._listener.close()


def _read_request(connection: socket.socket) -> bytes:
    """Read the head and the body: a peer that closes with bytes unread sends a reset, which is another fault."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    length = int((re.search(rb"content-length: (\d+)", data.lower()) or [b"", b"0"])[1])
    while len(data.partition(b"\r\n\r\n")[2]) < length:
        data += connection.recv(65536)
    return data


def says(status: str, body: bytes = b"{}", *headers: str) -> Answer:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    return lambda connection: connection.sendall("\r\n".join(lines).encode() + body)


def resets(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def drops(_connection: socket.socket) -> None:
    """Close without a byte: the reply is lost."""


def truncates(connection: socket.socket) -> None:
    connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"receipt":')


def sleeps(connection: socket.socket) -> None:
    connection.settimeout(5)
    with contextlib.suppress(OSError):
        connection.recv(1)  # until the client gives up


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def call(
    lib: ModuleType, mode: str, method: str, *urls: str, make: dict[str, Any] | None = None, **options: Any
) -> Any:
    """Send `method` to each of `urls` with one guarded client; return the last response."""
    settings = {"trust_env": False, "timeout": 5, **(make or {})}
    if mode == "sync":
        with http.guard(lib.Client(**settings)) as client:
            return [client.request(method, url, **options) for url in urls][-1]

    async def run() -> Any:
        async with http.guard(lib.AsyncClient(**settings)) as client:
            return [await client.request(method, url, **options) for url in urls][-1]

    return asyncio.run(run())


def fault(*args: Any, **options: Any) -> BaseException:
    with pytest.raises(Exception) as raised:  # noqa: PT011  the outcome made from it is what is asserted
        call(*args, **options)
    return raised.value


def test_the_key_leaves_the_process_with_every_write(lib: ModuleType, mode: str, action: ActionContext) -> None:
    """Seen on the wire, without the author doing anything."""
    with Remote(says("201 Created"), says("200 OK")) as remote:
        call(lib, mode, "POST", remote.url, json={"amount": "118.5"})
        call(lib, mode, "DELETE", remote.url)
    assert [request.lower().count(f"idempotency-key: {KEY}".encode()) for request in remote.requests] == [1, 1]
    assert action.sent == ["POST 127.0.0.1/tickets", "DELETE 127.0.0.1/tickets"]


def test_a_refused_connection_is_refused(lib: ModuleType, mode: str, action: ActionContext) -> None:
    """Nothing was sent, and nothing counts as sent."""
    exc = fault(lib, mode, "POST", f"http://127.0.0.1:{free_port()}/tickets", json={})
    assert type(from_exception(exc, len(action.sent))) is Refused
    assert action.sent == []


@pytest.mark.parametrize("answer", [resets, drops, truncates], ids=["reset", "dropped", "truncated"])
def test_a_broken_reply_is_unknown(lib: ModuleType, mode: str, action: ActionContext, answer: Answer) -> None:
    """The request arrived; nobody knows what it did."""
    with Remote(answer) as remote:
        exc = fault(lib, mode, "POST", remote.url, json={})
    assert type(from_exception(exc)) is Unknown
    assert len(remote.requests) == len(action.sent) == 1


def test_a_read_timeout_is_unknown(lib: ModuleType, mode: str, action: ActionContext) -> None:
    """A timeout is the client's judgement."""
    with Remote(sleeps) as remote:
        exc = fault(lib, mode, "POST", remote.url, json={}, timeout=0.1)
    assert from_exception(exc) == Unknown("no definite answer (ReadTimeout)")
    assert len(remote.requests) == len(action.sent) == 1


def test_a_503_never_passes_for_a_success(lib: ModuleType, mode: str, action: ActionContext) -> None:
    """An author who forgets raise_for_status is not punished with a settled lie."""
    with Remote(says("503 Service Unavailable", b'{"detail": "full"}', "Retry-After: 5")) as remote:
        exc = fault(lib, mode, "POST", remote.url, json={})
    assert from_exception(exc) == Refused("full", 5.0)
    assert action.sent == []


def test_a_refused_connection_after_a_write_that_went_out_is_unknown(
    lib: ModuleType, mode: str, action: ActionContext
) -> None:
    """The first request of the attempt did its work."""
    with Remote(says("201 Created")) as remote:
        exc = fault(lib, mode, "POST", remote.url, f"http://127.0.0.1:{free_port()}/mails", json={})
    assert type(from_exception(exc, len(action.sent))) is Unknown


def test_a_503_after_a_write_that_went_out_is_unknown(lib: ModuleType, mode: str, action: ActionContext) -> None:
    """So is any other definite "no" to the second request."""
    with Remote(says("201 Created"), says("422 Unprocessable", b'{"detail": "no"}')) as remote:
        exc = fault(lib, mode, "POST", remote.url, remote.url, json={})
    assert type(from_exception(exc)) is Unknown
    assert len(action.sent) == 1


def mock(lib: ModuleType, *answers: tuple[int, dict[str, str], Any]) -> tuple[Any, list[Any]]:
    seen: list[Any] = []
    left = list(answers)

    def respond(request: Any) -> Any:
        seen.append(request)
        status, headers, body = left.pop(0)
        return lib.Response(status, headers=headers, json=body)

    return lib.MockTransport(respond), seen


URL = "http://remote/tickets?token=secret"


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (409, {"detail": "already reimbursed", "receipt": "R-1"}, Rejected("already reimbursed", "R-1")),
        (422, {"title": "Idempotency-Key is already used"}, Conflict("Idempotency-Key is already used")),
        (401, {}, Forbidden("the remote side answered 401")),
        (500, {}, Unknown("the remote side answered 500")),
        (302, {}, Unknown("the remote side answered 302")),
    ],
    ids=str,
)
def test_a_write_that_is_not_2xx_ends_the_attempt(
    lib: ModuleType, mode: str, action: ActionContext, status: int, body: Any, outcome: Any
) -> None:
    """With the outcome of the table; only what may have had an effect stays noted, without the secrets of its query."""
    transport, _ = mock(lib, (status, {}, body))
    exc = fault(lib, mode, "PUT", URL, make={"transport": transport})
    assert isinstance(exc, Ended)
    assert exc.outcome == outcome
    assert action.sent == (["PUT remote/tickets"] if isinstance(outcome, Unknown) else [])


def test_a_read_is_left_to_the_author(lib: ModuleType, mode: str, action: ActionContext) -> None:
    """A 404 of a query is an answer; reads carry no key."""
    transport, seen = mock(lib, (404, {}, {}))
    assert call(lib, mode, "GET", URL, make={"transport": transport}).status_code == 404
    assert "Idempotency-Key" not in seen[0].headers
    assert action.sent == []


def test_a_key_that_the_author_sets_is_left_alone(lib: ModuleType, mode: str, action: ActionContext) -> None:
    """In whatever case he writes it."""
    transport, seen = mock(lib, (200, {}, {}))
    call(lib, mode, "POST", URL, make={"transport": transport}, headers={"idempotency-key": "mine"})
    assert seen[0].headers.get_list("Idempotency-Key") == ["mine"]


def test_nothing_is_sent_once_the_lease_has_ended(lib: ModuleType, mode: str, action: ActionContext) -> None:
    """A frozen worker that wakes up does not act; the refusal is definite."""
    transport, seen = mock(lib)
    object.__setattr__(action, "lease_monotonic", time.monotonic() - 1)
    exc = fault(lib, mode, "POST", URL, make={"transport": transport})
    assert from_exception(exc) == Refused("the lease of this action ended before the request was sent")
    assert seen == action.sent == []


def test_a_write_outside_an_action_is_refused(lib: ModuleType, mode: str) -> None:
    """Nothing would guard its effect; a read is fine."""
    transport, seen = mock(lib, (200, {}, {}))
    assert isinstance(fault(lib, mode, "POST", URL, make={"transport": transport}), Unguarded)
    call(lib, mode, "GET", URL, make={"transport": transport})
    assert [request.method for request in seen] == ["GET"]


def test_a_write_is_never_redirected(lib: ModuleType, mode: str, action: ActionContext) -> None:
    """Not even where client and call ask for it: a 307 would send it twice."""
    transport, seen = mock(lib, (307, {"Location": "http://remote/other"}, {}), (200, {}, {}))
    exc = fault(lib, mode, "POST", URL, make={"transport": transport, "follow_redirects": True}, follow_redirects=True)
    assert type(from_exception(exc)) is Unknown
    assert len(seen) == 1


def test_a_digest_challenge_is_answered_inside_the_attempt(lib: ModuleType, mode: str, action: ActionContext) -> None:
    """A 401 that the client's own authentication answers is no end; both requests carry the key."""
    challenge = {"WWW-Authenticate": 'Digest realm="r", nonce="n", qop="auth", algorithm=SHA-256'}
    transport, seen = mock(lib, (401, challenge, {}), (201, {}, {"receipt": "R-1"}))
    response = call(lib, mode, "POST", URL, make={"transport": transport}, auth=lib.DigestAuth("u", "p"))
    assert response.json() == {"receipt": "R-1"}
    assert [request.headers["Idempotency-Key"] for request in seen] == [KEY, KEY]


def test_a_streamed_answer_is_checked_too(lib: ModuleType, action: ActionContext) -> None:
    """Its body is read for the reason."""
    transport, _ = mock(lib, (429, {"Retry-After-Ms": "250"}, {"message": "slow"}))
    client = http.guard(lib.Client(transport=transport))
    with pytest.raises(Ended) as raised, client.stream("POST", URL):
        pass
    assert raised.value.outcome == Refused("slow", 0.25)


def test_guarding_twice_is_guarding_once(lib: ModuleType, action: ActionContext) -> None:
    """The request is noted once."""
    transport, _ = mock(lib, (200, {}, {}))
    client = lib.Client(transport=transport)
    assert http.guard(http.guard(client)) is client
    client.post(URL)
    assert action.sent == ["POST remote/tickets"]


def test_new_clients_come_guarded_and_prefer_httpx2() -> None:
    """And refuse to follow redirects at all."""
    assert type(http.client()) is httpx2.Client
    assert type(http.async_client()) is httpx2.AsyncClient
    with pytest.raises(ContractError, match="follow_redirects"):
        http.client(follow_redirects=True)
    with pytest.raises(ContractError, match="not str"):
        http.guard("client")


@pytest.mark.parametrize("there", [["httpx"], []], ids=["httpx alone", "none"])
def test_without_httpx2_the_other_is_taken_or_named(monkeypatch: pytest.MonkeyPatch, there: list[str]) -> None:
    """The sentence says what to install."""
    real = http.importlib.import_module

    def pretend(name: str) -> ModuleType:
        if name not in there:
            raise ModuleNotFoundError(name, name=name)
        return real(name)

    monkeypatch.setattr(http.importlib, "import_module", pretend)
    if there:
        assert type(http.client()) is httpx.Client
    else:
        with pytest.raises(ContractError, match="pip install httpx2"):
            http.client()
