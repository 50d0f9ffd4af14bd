"""A webhook is signed as the Standard Webhooks specification has it, and only a 2xx is an acknowledgement."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from consumers import SECRET, Answer, Consumer, pay, paying
from settled import Backoff, ContractError, Ledger, Message
from settled.tools.delivery import Delivery, Undelivered
from settled.tools.dispatcher import Dispatcher
from settled.tools.dispatching import Dispatched
from settled.tools.outbox import Outbox
from settled.tools.sinks.signature import Unverified, body_of, keys_of, new_secret, signed, verified
from settled.tools.sinks.webhook import Webhook

DELIVERY = Delivery(
    "msg-1-1", "paid", {"amount": 118.5, "to": "ü"}, "act-1", "default", datetime(2026, 1, 5, tzinfo=UTC)
)
OTHER = new_secret()
NOW = 1_767_614_400.0


def headers(secret: Any = SECRET, body: bytes | None = None, now: float = NOW) -> dict[str, str]:
    return signed(DELIVERY.id, body or body_of(DELIVERY), keys_of(secret), now=now)


def read(given: dict[str, str], body: bytes | None = None, secret: Any = SECRET, **options: Any) -> Delivery:
    return verified(given, body or body_of(DELIVERY), secret, now=lambda: NOW, **options)


def test_the_signature_is_that_of_the_specification() -> None:
    """The vector that its libraries are tested with."""
    made = signed("msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}', keys_of(SECRET), now=1614265330)
    assert made == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_what_was_signed_is_read_again() -> None:
    assert read(headers()) == DELIVERY
    assert read({name.title(): value for name, value in headers().items()}) == DELIVERY


def test_while_one_secret_replaces_the_other_both_are_good() -> None:
    both = headers((SECRET, OTHER))
    assert read(both) == read(both, secret=OTHER) == read(headers(), secret=(OTHER, SECRET)) == DELIVERY
    more = headers() | {"webhook-signature": "v1a,xyz " + headers()["webhook-signature"] + " v1,"}
    assert read(more) == DELIVERY


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"webhook-id": "msg-2"}, "signature"),
        ({"webhook-timestamp": str(int(NOW) + 1)}, "signature"),
        ({"webhook-signature": "v1,"}, "signature"),
        ({"webhook-signature": "v1,ü \x00 v1,\ud800"}, "signature"),
        ({"webhook-id": "\ud800"}, "signature"),
        ({"webhook-signature": "v2," + headers()["webhook-signature"][3:]}, "signature"),
        ({"webhook-timestamp": str(int(NOW) - 301)}, "300 s ago"),
        ({"webhook-timestamp": str(int(NOW) + 301)}, "300 s ago"),
        ({"webhook-timestamp": "٣"}, "no time"),
        ({"webhook-timestamp": "-1"}, "no time"),
        ({"webhook-timestamp": "9" * 400}, "no time"),
    ],
)
def test_a_header_that_was_changed_is_refused(changed: dict[str, str], says: str) -> None:
    with pytest.raises(Unverified, match=says):
        read(headers() | changed)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_a_header_that_is_missing_is_named(name: str) -> None:
    with pytest.raises(Unverified, match=name):
        read({key: value for key, value in headers().items() if key != name})


def test_another_body_and_another_secret_are_refused() -> None:
    with pytest.raises(Unverified, match="signature"):
        read(headers(), body_of(DELIVERY) + b" ")
    with pytest.raises(Unverified, match="signature") as refused:
        read(headers(), secret=OTHER)
    assert OTHER.removeprefix("whsec_") not in str(refused.value)


@pytest.mark.parametrize("body", [b"", b"[]", b"7", b'{"id": 1}', b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_message_is_refused(body: bytes) -> None:
    """Signed with our secret, but by something else that uses it."""
    with pytest.raises(Unverified, match="no message"):
        read(headers(body=body or b" "), body or b" ")


def test_a_field_that_is_new_is_no_fault() -> None:
    body = body_of(DELIVERY).replace(b"{", b'{"new": 1, ', 1)
    assert read(headers(body=body), body) == DELIVERY


def test_a_body_that_somebody_has_read_already_cannot_be_verified() -> None:
    body: Any = {"id": "msg-1"}
    with pytest.raises(ContractError, match="bytes"):
        read(headers(), body)


def test_a_repeat_within_the_tolerance_is_the_inboxs_to_notice() -> None:
    assert read(headers(now=NOW - 299)) == read(headers(now=NOW + 299)) == DELIVERY
    with pytest.raises(Unverified, match="10 s ago"):
        read(headers(now=NOW - 11), tolerance_s=10)


@pytest.mark.parametrize(
    "secret", ["", "abc", "whsec_", "whsec_!!!", "whsec_c2hvcnQ=", SECRET.removeprefix("whsec_"), (), (SECRET, "x")]
)
def test_a_secret_that_is_none_is_refused_and_not_shown(secret: Any) -> None:
    with pytest.raises(ContractError, match="secret=") as refused:
        Webhook("https://shop.example", secret=secret)
    assert "abc" not in str(refused.value)
    assert "c2hvcnQ" not in str(refused.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "shop.example"},
        {"url": "ftp://shop.example"},
        {"url": "http://"},
        {"url": "http://[::1"},
        {"url": "https://shop.example:99999"},
        {"timeout_s": 0},
        {"headers": {"Webhook-Id": "mine"}},
    ],
    ids=str,
)
def test_a_webhook_that_cannot_be_right_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ContractError):
        Webhook(**{"url": "https://shop.example", "secret": SECRET, **wrong})


def test_what_is_shown_of_it_holds_no_secret() -> None:
    assert repr(Webhook("https://me:pass@shop.example/hooks?token=1", secret=SECRET)) == "Webhook('shop.example')"


STEADY = Backoff(first=2.0, cap=3600.0, jitter=0.0)


@pytest.mark.parametrize(
    ("answer", "state", "wait_s", "reason"),
    [
        (Answer(status=200), "delivered", None, None),
        (Answer(status=202), "delivered", None, None),
        (Answer(status=301, headers={"location": "/hooks"}), "due", 2, "answered 301 Moved Permanently"),
        (Answer(status=307, headers={"location": "/hooks"}), "due", 2, "answered 307 Temporary Redirect"),
        (Answer(status=400), "due", 2, "answered 400 Bad Request"),
        (Answer(status=401), "due", 2, "answered 401 Unauthorized"),
        (Answer(status=404), "due", 2, "answered 404 Not Found"),
        (Answer(status=410), "dead", None, "answered 410 Gone"),
        (Answer(status=429, headers={"retry-after": "90"}), "due", 90, "answered 429 Too Many Requests"),
        (Answer(status=503, headers={"retry-after": "999999999"}), "due", 86_400, "answered 503 Service Unavailable"),
        (Answer(status=503, headers={"retry-after": "soon"}), "due", 2, "answered 503 Service Unavailable"),
        (Answer(status=503, headers={"retry-after": "0"}), "due", 2, "answered 503 Service Unavailable"),
        (Answer(status=None), "due", 2, "RemoteProtocolError"),
    ],
    ids=lambda value: str(getattr(value, "status", "")),
)
def test_what_an_answer_means(
    ledger: Ledger, consumer: Consumer, answer: Answer, state: str, wait_s: float | None, reason: str | None
) -> None:
    pay(ledger, "A", paying(emits=lambda done: Message("paid", "A")))
    consumer.next(answer)
    Dispatcher(ledger, sinks={"*": Webhook(consumer.url, secret=SECRET)}, backoff=STEADY).run_once()
    (message,) = Outbox(ledger).messages()
    assert message.state == state
    assert reason is None or reason in (message.reason or "")
    if wait_s is not None:
        assert message.due_at is not None
        assert (message.due_at - message.now).total_seconds() == pytest.approx(wait_s, abs=2)
    assert len(consumer.seen) == 1  # no redirect was followed, and nothing was sent again


@pytest.fixture
def consumer(database_url: str) -> Iterator[Consumer]:
    with Consumer(database_url) as opened:
        yield opened


def test_a_consumer_with_another_secret_takes_nothing(ledger: Ledger, consumer: Consumer) -> None:
    pay(ledger, "A")
    assert Dispatcher(ledger, sinks={"*": Webhook(consumer.url, secret=OTHER)}).run_once().deferred == 1
    assert (consumer.effects(), len(consumer.refused)) == ([], 1)
    (first, _) = Outbox(ledger).messages()
    assert first.reason == "answered 401 Unauthorized"


def test_headers_of_ones_own_are_sent(ledger: Ledger) -> None:
    with listening(b"HTTP/1.1 204 No Content\r\n\r\n") as (url, heard):
        pay(ledger, "A")
        hook = Webhook(url, secret=SECRET, headers={"Authorization": "Bearer abc"})
        assert Dispatcher(ledger, sinks={"*": hook}, batch=1).run_once().delivered == 1
    request = heard[0].lower()
    assert b"authorization: bearer abc" in request
    assert b"content-type: application/json" in request
    assert b"webhook-id: msg-" in request


@contextmanager
def listening(*parts: bytes, every_s: float = 0.0) -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers each connection in these parts, one after the other."""
    server = socket.create_server(("127.0.0.1", 0))
    heard: list[bytes] = []

    def answer(connection: socket.socket) -> None:
        with connection:
            heard.append(connection.recv(65536))
            for part in parts:
                connection.sendall(part)
                time.sleep(every_s)

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=_quietly, args=(answer, connection), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/hooks", heard
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def _quietly(answer: Any, connection: socket.socket) -> None:
    try:
        answer(connection)
    except OSError:
        return


@pytest.mark.parametrize("door", ["sync", "async"])
async def test_an_answer_that_drips_takes_no_longer_than_its_time(ledger: Ledger, door: str) -> None:
    """Each read brings something, so no read times out; the whole does."""
    drops = [bytes([byte]) for byte in b"HTTP/1.1 204 No Content\r\n" + b"x-drip: drop\r\n" * 50]
    with listening(*drops, every_s=0.05) as (url, _):
        pay(ledger, "A")
        dispatcher = Dispatcher(ledger, sinks={"*": Webhook(url, secret=SECRET, timeout_s=0.5)}, backoff=STEADY)
        begun = time.monotonic()
        did = await (dispatcher.arun_once() if door == "async" else asyncio.to_thread(dispatcher.run_once))
        assert did == Dispatched(taken=1, deferred=1)
        assert time.monotonic() - begun < 5
    (first, _) = Outbox(ledger).messages()
    assert first.reason == "127.0.0.1 did not answer within 0.5 s"


def test_a_large_answer_is_not_read(ledger: Ledger) -> None:
    """The head says it all; a body without an end costs nothing."""
    endless = [b"x" * 1024] * 10_000
    with listening(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n", *endless, every_s=0.01) as (url, _):
        pay(ledger, "A", paying(emits=lambda done: Message("m")))
        begun = time.monotonic()
        assert Dispatcher(ledger, sinks={"*": Webhook(url, secret=SECRET)}).run_once().delivered == 1
        assert time.monotonic() - begun < 5


@pytest.mark.parametrize("host", ["127.0.0.1:1", "nowhere.invalid"])
async def test_nobody_there_is_said(host: str) -> None:
    with pytest.raises(Undelivered, match="could not be asked: Connect") as refused:
        await Webhook(f"http://me:pass@{host}/hooks", secret=SECRET)(DELIVERY)
    assert "pass" not in str(refused.value)
