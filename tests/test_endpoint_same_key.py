"""Equal requests under one key, on real sockets, under Starlette and FastAPI: one effect, and every answer tells of
it.
"""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from uuid import uuid4

import httpx2
import pytest

import servers
from endpoint_shop import Shop, running
from settled.tools.outcome import Conflict, Forbidden, Invalid, Refused, Succeeded, Unknown, from_status


@pytest.fixture(scope="module", params=["starlette", pytest.param("fastapi", marks=pytest.mark.deep)])
def process(server_url: str, migrated_template: str, request: pytest.FixtureRequest) -> Iterator[Shop]:
    with (
        servers.database(server_url, like=migrated_template) as url,
        running(url, framework=request.param, wait=1.0) as one,
    ):
        yield one


@pytest.fixture
def shop(process: Shop) -> Shop:
    """The shop, with a key that it has never seen."""
    process.key = uuid4().hex
    return process


def read(answer: httpx2.Response) -> object:
    """What our own HTTP helper makes of an answer."""
    return from_status(answer.status_code, answer.headers, answer.content, datetime.now(UTC))


@pytest.mark.parametrize("number", [2, 16])
def test_equal_requests_at_the_same_instant_have_one_effect_and_all_get_its_number(shop: Shop, number: int) -> None:
    answers = shop.at_once(number, {"takes": 0.1})
    assert len(shop.effects()) == 1
    assert {answer.status_code for answer in answers} == {201}
    assert {answer.json()["receipt"] for answer in answers} == set(shop.effects())
    assert sum(answer.headers.get("idempotency-replayed") == "true" for answer in answers) == number - 1


def test_a_repeat_gets_the_first_answer_and_none_of_what_was_meant_for_one_browser(shop: Shop) -> None:
    first, second = shop.post(), shop.post()
    assert (second.status_code, second.content) == (first.status_code, first.content)
    assert second.headers["location"] == first.headers["location"]
    assert second.headers["content-type"] == first.headers["content-type"]
    assert "set-cookie" in first.headers
    assert "x-trace" in first.headers
    assert "idempotency-replayed" not in first.headers
    assert not {"set-cookie", "x-trace"} & set(second.headers)
    assert read(first) == read(second) == Succeeded(first.json(), shop.effects()[0])


def test_another_payload_under_the_key_is_refused_and_has_no_effect(shop: Shop) -> None:
    shop.post({"amount": 1})
    answer = shop.post({"amount": 2})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert isinstance(read(answer), Conflict)
    assert len(shop.effects()) == 1


def test_another_path_or_method_under_the_key_is_another_request(shop: Shop) -> None:
    shop.post()
    assert shop.post(path="/open").status_code == 422
    assert shop.post(method="PATCH").status_code == 422
    assert shop.http.post("/tickets?x=1", json={}, headers={"Idempotency-Key": shop.key}).status_code == 422
    assert len(shop.effects()) == 1


def test_the_same_json_in_other_bytes_is_the_same_request(shop: Shop) -> None:
    headers = {"Idempotency-Key": shop.key, "Content-Type": "application/json"}
    bodies = (b'{"a": 1.5, "b": [1, 2]}', b'{"b":[1,2.0],"a":1.50}', b'{"b":[2,1],"a":1.5}')
    answers = [shop.http.post("/tickets", content=body, headers=headers) for body in bodies]
    assert [answer.status_code for answer in answers] == [201, 201, 422]


def test_the_key_as_the_draft_quotes_it_is_the_same_key(shop: Shop) -> None:
    assert shop.post(key=shop.key).json() == shop.post(key=f'"{shop.key}"').json()
    assert len(shop.effects()) == 1


def test_a_repeat_waits_for_the_first_and_gets_its_answer(shop: Shop) -> None:
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(shop.post, {"takes": 0.5})
        shop.wait_for("running")
        second = shop.post({"takes": 0.5})
        assert second.json() == first.result().json()


def test_a_repeat_of_one_that_stays_in_flight_is_told_so_and_when_to_come_back(shop: Shop) -> None:
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(shop.post, {"takes": 2.0})
        shop.wait_for("running")
        second = shop.post({"takes": 2.0})
        assert (second.status_code, second.json()["code"]) == (409, "idempotency_key_in_use")
        assert int(second.headers["retry-after"]) >= 1
        assert isinstance(read(second), Unknown)
        assert shop.post({"takes": 3}).status_code == 422
        assert first.result().status_code == 201
    assert shop.post({"takes": 2.0}).json() == first.result().json()
    assert len(shop.effects()) == 1


def test_a_handler_that_is_at_it_for_longer_than_its_lease_keeps_its_key(shop: Shop) -> None:
    """The lease is 2 s; the middleware renews it."""
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(shop.post, {"takes": 3.5})
        time.sleep(2.5)
        assert shop.post({"takes": 3.5}, timeout=10).json() == first.result().json()
    assert len(shop.effects()) == 1


def test_equal_keys_of_two_users_never_meet(shop: Shop) -> None:
    ann, bob = shop.post({"amount": 1}, user="ann"), shop.post({"amount": 2}, user="bob")
    assert (ann.status_code, bob.status_code) == (201, 201)
    assert len(shop.effects()) == 2
    assert shop.post({"amount": 1}, user="ann").json() == ann.json()
    assert shop.post({"amount": 2}, user="bob").json() == bob.json()
    assert shop.post({"amount": 2}, user="ann").status_code == 422


def test_nobody_is_refused(shop: Shop) -> None:
    answer = shop.post(user="nobody")
    assert isinstance(read(answer), Forbidden)
    assert shop.effects() == []


def test_a_write_without_a_key_is_refused_where_one_is_required_and_passes_elsewhere(shop: Shop) -> None:
    answer = shop.http.post("/tickets", json={})
    assert (answer.status_code, answer.json()["code"]) == (400, "idempotency_key_missing")
    assert isinstance(read(answer), Invalid)
    assert "describedby" in answer.headers["link"]
    assert shop.http.post("/open", json={}).status_code == 201


@pytest.mark.parametrize("key", ["", '"', '"a', "a b", "k" * 256, "schl\xfcssel", '"a\\n"'])
def test_a_malformed_key_is_refused(shop: Shop, key: str) -> None:
    answer = shop.http.post("/tickets", json={}, headers={b"Idempotency-Key": key.encode("latin-1")})
    assert (answer.status_code, answer.json()["code"]) == (400, "idempotency_key_malformed")
    assert isinstance(read(answer), Invalid)


def test_two_keys_are_none(shop: Shop) -> None:
    answer = shop.http.post("/tickets", json={}, headers=[("Idempotency-Key", "a"), ("Idempotency-Key", "b")])
    assert answer.json()["code"] == "idempotency_key_malformed"


def test_reads_pass(shop: Shop) -> None:
    headers = {"Idempotency-Key": shop.key}
    assert shop.http.get("/tickets", headers=headers).json() == []
    assert shop.http.head("/tickets", headers=headers).status_code in (200, 405)
    assert shop.state() is None


def test_a_client_that_leaves_ends_nothing_and_finds_its_answer_later(shop: Shop) -> None:
    with pytest.raises(httpx2.ReadTimeout):
        shop.post({"takes": 1.0}, timeout=0.3)
    shop.wait_for("done")
    answer = shop.post({"takes": 1.0})
    assert (answer.headers["idempotency-replayed"], answer.json()["receipt"]) == ("true", shop.effects()[0])
    assert len(shop.effects()) == 1


def test_a_client_that_leaves_before_its_body_is_there_has_claimed_nothing(shop: Shop) -> None:
    host, port = shop.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        head = f"POST /tickets HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: {shop.key}\r\nContent-Length: 100\r\n\r\n{{"
        client.sendall(head.encode())
        time.sleep(0.2)
    time.sleep(0.2)
    assert shop.state() is None
    assert shop.post().status_code == 201


def test_a_body_above_the_limit_is_refused_and_claims_nothing(shop: Shop) -> None:
    answer = shop.post({"filling": "x" * 300_000})
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert shop.state() is None


def test_a_body_in_many_parts_is_one_body(shop: Shop) -> None:
    def parts() -> Iterator[bytes]:
        yield b'{"amount"'
        time.sleep(0.05)
        yield b": 1}"

    headers = {"Idempotency-Key": shop.key, "Content-Type": "application/json"}
    first = shop.http.post("/tickets", content=parts(), headers=headers)
    assert first.json() == shop.post({"amount": 1}).json()


@pytest.mark.parametrize(
    ("status", "fate"), [(400, "done"), (403, "done"), (404, "done"), (409, "done"), (302, "done")]
)
def test_a_definite_answer_is_kept_also_a_no(shop: Shop, status: int, fate: str) -> None:
    asked = {"says": status}
    assert shop.post(asked).status_code == status
    assert shop.state() == "done"
    assert shop.post(asked).headers["idempotency-replayed"] == "true"


@pytest.mark.parametrize(
    "asked", [{"says": 429}, {"says": 401}, {"says": 503}, {"says": 500, "nothing_happened": True}]
)
def test_where_the_handler_says_that_nothing_happened_the_key_is_given_back(
    shop: Shop, asked: dict[str, object]
) -> None:
    """503 is in this shop's own list."""
    assert shop.post(asked).status_code == asked["says"]
    assert shop.state() is None
    assert shop.post().status_code == 201


def test_a_handler_that_raises_is_asked_about_and_not_run_again(shop: Shop) -> None:
    """It had its effect: the repeat is told of it."""
    assert shop.post({"after": "raise"}).status_code == 500
    assert shop.state() == "unknown"
    answer = shop.post({"after": "raise"})
    assert (answer.status_code, answer.json()["receipt"]) == (201, shop.effects()[0])
    assert len(shop.effects()) == 1


def test_a_handler_that_raised_before_its_effect_is_run_again_once_that_is_sure(shop: Shop) -> None:
    asked = {"before": "raise"}
    assert [shop.post(asked).status_code for _ in range(2)] == [500, 500]
    assert shop.effects() == []
    assert shop.state() == "unknown"


def test_a_handler_that_raises_and_says_that_nothing_happened_gives_its_key_back(shop: Shop) -> None:
    assert shop.post({"before": "raise, and nothing happened"}).status_code == 500
    assert shop.state() is None


def test_effect_and_answer_in_one_commit(shop: Shop) -> None:
    asked = {"in_one_commit": True, "after": "raise"}
    assert shop.post(asked).status_code == 500
    assert shop.state() == "done"
    assert shop.post(asked).json() == {"receipt": shop.effects()[0]}


def test_a_large_answer_is_not_kept_but_that_it_was_given_is(shop: Shop) -> None:
    first, second = shop.post({"filling": 150_000}), shop.post({"filling": 150_000})
    assert len(first.content) > 150_000
    assert (second.status_code, second.json()["code"]) == (201, "answer_not_kept")
    assert second.headers["location"] == first.headers["location"]
    assert isinstance(read(second), Succeeded)
    assert len(shop.effects()) == 1


def test_an_answer_that_streams_arrives_as_it_comes_and_is_kept_when_it_is_complete(shop: Shop) -> None:
    asked = {"parts": 4, "takes": 0.2}
    headers = {"Idempotency-Key": shop.key}
    arrived: list[float] = []
    with shop.http.stream("POST", "/streams", json=asked, headers=headers) as answer:
        text = b""
        for part in answer.iter_raw():
            arrived.append(time.monotonic())
            text += part
    assert arrived[-1] - arrived[0] > 0.3
    repeat = shop.post(asked, path="/streams")
    assert (repeat.content, repeat.headers["content-type"]) == (text, "text/plain; charset=utf-8")
    assert len(shop.effects()) == 1


def test_a_large_stream_is_given_and_not_kept(shop: Shop) -> None:
    asked = {"parts": 5, "filling": 50_000}
    assert len(shop.post(asked, path="/streams").content) > 250_000
    assert shop.post(asked, path="/streams").json()["code"] == "answer_not_kept"
    assert len(shop.effects()) == 1


def test_a_stream_that_breaks_off_is_unknown(shop: Shop) -> None:
    asked = {"parts": 5, "raises_at": 2}
    with pytest.raises(httpx2.RemoteProtocolError):
        shop.post(asked, path="/streams")
    shop.wait_for("unknown")
    assert len(shop.effects()) == 1


def test_a_client_that_leaves_a_stream_finds_all_of_it_later(shop: Shop) -> None:
    asked = {"parts": 5, "takes": 0.1}
    with shop.http.stream("POST", "/streams", json=asked, headers={"Idempotency-Key": shop.key}) as answer:
        next(answer.iter_raw())
    shop.wait_for("done")
    assert len(shop.post(asked, path="/streams").text.splitlines()) == 5
    assert len(shop.effects()) == 1


def test_many_keys_at_once_do_not_get_into_each_others_way(shop: Shop) -> None:
    keys = [f"{shop.key}-{number % 8}" for number in range(32)]
    gate = threading.Barrier(32)

    def send(key: str) -> tuple[str, str]:
        gate.wait()
        return key, shop.post({"takes": 0.05}, key=key).json()["receipt"]

    with ThreadPoolExecutor(32) as threads:
        told = set(threads.map(send, keys))
    assert told == {(key, shop.effects(key)[0]) for key in keys}
    assert all(len(shop.effects(key)) == 1 for key in keys)


def test_refused_reads_as_refused() -> None:
    """The answer while the store is away."""
    from settled.tools.endpoint_http import AWAY, DRAFT

    answer = AWAY.answer(DRAFT)
    assert isinstance(from_status(503, dict(answer.headers), answer.body or b"", datetime.now(UTC)), Refused)
