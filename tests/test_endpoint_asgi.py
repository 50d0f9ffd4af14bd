"""What servers and frameworks do to a middleware, in one process: cancelled calls, closed connections, odd
applications, a database that goes away.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest

from settled import (
    ContractError,
    DidNotHappen,
    IdempotencyMiddleware,
    IdempotencyStore,
    InvalidArguments,
    Ledger,
    LedgerUnavailable,
    StoredAnswer,
    claimed_request,
)

Message = dict[str, Any]


class Client:
    """Sends one request to an application, as a server would."""

    def __init__(self, app: Any, **scope: Any) -> None:
        self.app = app
        headers = [(b"idempotency-key", b"k"), (b"content-type", b"text/plain")]
        plain = {"type": "http", "method": "POST", "path": "/t", "query_string": b"", "headers": headers}
        self.scope: dict[str, Any] = plain | scope
        self.sent: list[Message] = []
        self.received = 0
        self.raises: Exception | None = None

    async def receive(self) -> Message:
        self.received += 1
        if self.received == 1:
            return {"type": "http.request", "body": b"hello", "more_body": False}
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self.raises is not None:
            raise self.raises
        self.sent.append(message)

    async def call(self) -> "Client":
        await self.app(self.scope, self.receive, self.send)
        return self

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])


class Application:
    """Counts its effects; `then` happens after each."""

    def __init__(self, *messages: Message, then: Callable[[dict[str, Any]], Any] | None = None) -> None:
        self.messages = messages or answer(b"done")
        self.then = then
        self.effects = 0
        self.seen: dict[str, Any] = {}
        self.heard: list[Message] = []

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self.seen = scope
        if scope["type"] == "http":
            self.heard.append(await receive())
        self.effects += 1
        if self.then is not None:
            await self.then(scope)
        for message in self.messages:
            await send(message)


def answer(*parts: bytes, status: int = 201) -> tuple[Message, ...]:
    bodies = [{"type": "http.response.body", "body": part, "more_body": True} for part in parts[:-1]]
    last = {"type": "http.response.body", "body": parts[-1]}
    return ({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"t/p")]}, *bodies, last)


@pytest.fixture
def store(ledger: Ledger) -> IdempotencyStore:
    return IdempotencyStore(ledger, scope="shop", wait_s=0, reconcile=lambda key, request: DidNotHappen())


def guarded(app: Any, store: IdempotencyStore, **options: Any) -> IdempotencyMiddleware:
    return IdempotencyMiddleware(app, store=store, **({"tenant": lambda scope: "ann"} | options))


def state(store: IdempotencyStore) -> str | None:
    record = store.record("k", tenant="ann")
    return None if record is None else record.state


async def until(store: IdempotencyStore, wanted: str) -> None:
    for _ in range(200):
        if state(store) == wanted:
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"the key is {state(store)}, not {wanted}")


async def test_a_call_that_is_cancelled_ends_nothing(store: IdempotencyStore) -> None:
    """A middleware around this one may cancel it when the client leaves."""
    begun = asyncio.Event()

    async def then(_: object) -> None:
        begun.set()
        await asyncio.sleep(0.2)

    app = Application(then=then)
    client = Client(guarded(app, store))
    call = asyncio.ensure_future(client.call())
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(store, "done")
    assert (await Client(guarded(app, store)).call()).body == b"done"
    assert app.effects == 1


async def test_the_application_is_not_told_that_the_client_has_left(store: IdempotencyStore) -> None:
    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        assert (await receive())["body"] == b"hello"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receive(), 0.1)
        for message in answer(b"done"):
            await send(message)

    assert (await Client(guarded(app, store)).call()).status == 201
    assert state(store) == "done"


async def test_a_closed_connection_is_no_fault_of_the_application(store: IdempotencyStore) -> None:
    app = Application(*answer(b"a", b"b", b"c"))
    client = Client(guarded(app, store))
    client.raises = OSError("gone")
    await client.call()
    assert (await Client(guarded(app, store)).call()).body == b"abc"
    assert app.effects == 1


async def test_what_is_told_is_written_down_before(store: IdempotencyStore) -> None:
    """Whoever has the last byte of an answer finds it again."""
    states: list[tuple[bytes | None, str | None]] = []
    client = Client(guarded(Application(*answer(b"a", b"b")), store))
    send = client.send

    async def looks(message: Message) -> None:
        states.append((message.get("body"), state(store)))
        await send(message)

    client.send = looks  # type: ignore[method-assign]
    await client.call()
    assert states == [(None, "running"), (b"a", "running"), (b"b", "done")]


async def test_an_answer_that_cannot_be_written_down_is_given_all_the_same_and_reconciled_later(
    store: IdempotencyStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise LedgerUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(store, "afinish", away)
        assert (await Client(guarded(Application(), store)).call()).body == b"done"
    assert "will be reconciled" in caplog.text
    assert state(store) == "running"
    assert (await Client(guarded(Application(), store)).call()).status == 409


async def test_while_the_store_is_away_nothing_is_done(
    store: IdempotencyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise LedgerUnavailable("away")

    monkeypatch.setattr(store, "aclaim", away)
    app = Application()
    client = await Client(guarded(app, store)).call()
    assert (client.status, client.headers[b"retry-after"], app.effects) == (503, b"1", 0)


async def test_a_late_answer_gives_way_to_what_was_recorded_meanwhile(ledger: Ledger) -> None:
    recorded = StoredAnswer(201, b"recorded")
    store = IdempotencyStore(ledger, scope="shop", wait_s=0, lease_s=0.2, reconcile=lambda key, request: recorded)

    async def then(scope: dict[str, Any]) -> None:
        running = claimed_request(scope)
        assert running is not None
        await asyncio.sleep(0.3)
        assert (await Client(guarded(Application(), store)).call()).body == b"recorded"

    client = await Client(guarded(Application(then=then), store, max_run_s=0)).call()
    assert (client.body, client.headers[b"idempotency-replayed"]) == (b"recorded", b"true")


@pytest.mark.parametrize("messages", [(), answer(b"a", b"b")[:2]])
async def test_an_application_that_ends_without_an_answer_is_unknown(
    store: IdempotencyStore, messages: Sequence[Message]
) -> None:
    app = Application()
    app.messages = tuple(messages)
    await Client(guarded(app, store)).call()
    assert state(store) == "unknown"


async def test_an_error_after_the_answer_changes_nothing(store: IdempotencyStore) -> None:
    """As of a background task."""
    inner = Application()

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await inner(scope, receive, send)
        raise RuntimeError("in the background")

    with pytest.raises(RuntimeError):
        await Client(guarded(app, store)).call()
    assert state(store) == "done"


async def test_an_answer_cannot_pass_unread(store: IdempotencyStore) -> None:
    extensions = {"http.response.pathsend": {}, "http.response.trailers": {}, "tls": {"version": 1}}
    app = Application()
    await Client(guarded(app, store), extensions=extensions).call()
    assert app.seen["extensions"] == {"tls": {"version": 1}}
    assert set(extensions) == {"http.response.pathsend", "http.response.trailers", "tls"}


@pytest.mark.parametrize("scope", [{"type": "websocket"}, {"type": "lifespan"}, {"method": "GET"}, {"path": "/free/x"}])
async def test_what_is_not_guarded_passes_untouched(store: IdempotencyStore, scope: dict[str, Any]) -> None:
    app = Application()
    client = Client(guarded(app, store, paths=["/t", "/t/*"]), **scope)
    await client.call()
    assert app.seen is client.scope
    assert claimed_request(app.seen) is None
    assert state(store) is None


async def test_methods_and_paths_are_chosen(store: IdempotencyStore) -> None:
    app = Application()
    middleware = guarded(app, store, methods=["put"], paths=["/orders/*"])
    assert (await Client(middleware, method="PUT", path="/orders/1", headers=[]).call()).status == 400
    await Client(middleware, method="POST", path="/orders/1", headers=[]).call()
    assert app.effects == 1


async def test_a_tenant_may_be_looked_up(store: IdempotencyStore) -> None:
    async def tenant(scope: object) -> str:
        await asyncio.sleep(0)
        return "ann"

    await Client(guarded(Application(), store, tenant=tenant)).call()
    assert state(store) == "done"
    with pytest.raises(InvalidArguments, match="tenant"):
        await Client(guarded(Application(), store, tenant=lambda scope: "")).call()


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_is_replayed_without_a_length(store: IdempotencyStore, status: int) -> None:
    app = Application(*answer(b"", status=status))
    for _ in range(2):
        client = await Client(guarded(app, store)).call()
        assert (client.status, b"content-length" in client.headers) == (status, False)


@pytest.mark.parametrize("wrong", [{"kept_headers": ["Set-Cookie"]}, {"methods": ["GET"]}])
def test_options_that_cannot_be_right_are_refused(store: IdempotencyStore, wrong: dict[str, Any]) -> None:
    with pytest.raises(ContractError):
        guarded(Application(), store, **wrong)


def test_a_loop_that_ends_leaves_the_key_claimed(database_url: str) -> None:
    """The process ends with a handler at work: the key is neither free nor done."""

    async def then(_: object) -> None:
        await asyncio.sleep(60)

    async def ends(own: IdempotencyStore) -> None:
        call = asyncio.ensure_future(Client(guarded(Application(then=then), own)).call())
        await until(own, "running")
        call.cancel()

    with IdempotencyStore(database_url, scope="shop") as own:
        asyncio.run(asyncio.wait_for(ends(own), 30))
        assert state(own) == "running"


async def test_the_keys_are_kept_where_they_are_said_to_be(store: IdempotencyStore, database_url: str) -> None:
    await Client(guarded(Application(), store)).call()
    with psycopg.connect(database_url) as connection:
        row = connection.execute("SELECT scope, tenant, key, state, status, body FROM settled.endpoint_keys").fetchone()
    assert row == ("shop", "ann", "k", "done", 201, b"done")
