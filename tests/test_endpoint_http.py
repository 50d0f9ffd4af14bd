"""The `Idempotency-Key` header as values: how keys are read, what makes two requests the same, and what our own HTTP
helper makes of each answer.
"""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from settled.tools import endpoint_http as http
from settled.tools.endpoint import StoredAnswer
from settled.tools.endpoint_http import EndpointRequest, Fate
from settled.tools.outcome import Conflict, Forbidden, Invalid, Refused, Rejected, Succeeded, Unknown, from_status

JSON = {"content-type": "application/json; charset=utf-8"}


def of(body: bytes, **more: object) -> str:
    plain: dict[str, object] = {"method": "POST", "path": "/t", "query": b"", "headers": JSON} | more
    return http.fingerprint_of(EndpointRequest(**plain, body=body))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sent", "key"),
    [
        (["abc"], "abc"),
        (['"abc"'], "abc"),
        ([' "abc" '], "abc"),
        (['"abc";p=1'], "abc"),
        ([r'"a\"b\\c"'], r'a"b\c'),
        (['a"b'], 'a"b'),
        ([], None),
        ([""], None),
        (['""'], None),
        (['"abc'], None),
        (['"abc" "d"'], None),
        (["a b"], None),
        (["a", "a"], None),
        (["é"], None),
        (["k" * 255], "k" * 255),
        (["k" * 256], None),
    ],
)
def test_keys_are_read_bare_or_as_the_draft_quotes_them(sent: list[str], key: str | None) -> None:
    assert http.key_of(sent) == key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"a":1,"b":2}', b' {"b": 2, "a": 1} '),
        (b'{"a":1.50}', b'{"a":1.5}'),
        (b'{"a":100}', b'{"a":1e2}'),
        (b'{"a":-0}', b'{"a":0.0}'),
        (b'"\\u00e9"', '"é"'.encode()),
    ],
)
def test_json_of_equal_value_is_the_same_request(one: bytes, other: bytes) -> None:
    assert of(one) == of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"[1,2]", b"[2,1]"),
        (b'{"a":1}', b'{"a":"1"}'),
        (b'{"a":1}', b'{"a":true}'),
        (b'{"a":1}', b'{"a":{"number":"1e0"}}'),
        (b'{"a":1,"a":2}', b'{"a":2}'),
        (b'{"a":1,"a":2}', b'{"a":2,"a":1}'),
        (b"9007199254740993", b"9007199254740992"),
        (b"0.1", b"0.10000000000000000000000000000000001"),
        (b"NaN", b"null"),
        (b"1" * 30, b"1" * 31),
        (b"{", b"{ "),
    ],
)
def test_json_of_another_value_is_another_request(one: bytes, other: bytes) -> None:
    assert of(one) != of(other)


NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(st.none() | st.booleans() | NUMBERS | st.text(), st.lists, max_leaves=5)


@given(st.dictionaries(st.text(), VALUES))
def test_blanks_and_the_order_of_names_never_matter(value: dict[str, object]) -> None:
    turned = dict(reversed(value.items()))
    assert of(json.dumps(value).encode()) == of(json.dumps(turned, indent=2, ensure_ascii=False).encode())


@pytest.mark.parametrize("body", [b"[" * 100_000, b"1e999999999999999999999", b"\xff\xfe", b"9" * 10_000, b""])
def test_hostile_bodies_have_a_fingerprint(body: bytes) -> None:
    assert of(body) == of(body)
    assert of(body) != of(body + b"1")


def test_method_path_query_and_kind_count() -> None:
    body = b"{}"
    others: list[dict[str, object]] = [
        {"method": "PATCH"},
        {"path": "/u"},
        {"query": b"a=1"},
        {"headers": {"content-type": "text/plain"}},
    ]
    assert len({of(body), *(of(body, **other) for other in others)}) == 5
    assert of(b"b", path="/ta") != of(b"ab", path="/t")


def test_a_fingerprint_of_ones_own() -> None:
    request = EndpointRequest("POST", "/t", b"", JSON, b'{"id": 1, "at": "now"}')
    other = EndpointRequest("POST", "/t", b"", JSON, b'{"id": 1, "at": "later"}')
    by_id = [http.fingerprint_of(one, lambda one: str(one.json()["id"]).encode()) for one in (request, other)]
    assert by_id[0] == by_id[1]


@pytest.mark.parametrize(
    ("problem", "outcome"),
    [
        (http.MISSING, Invalid),
        (http.MALFORMED, Invalid),
        (http.REUSED, Conflict),
        (http.NOBODY_KNOWN, Forbidden),
        (http.AWAY, Refused),
        (http.in_flight(1), Unknown),
        (http.unresolved("a mismatch was reused", 1), Unknown),
        (http.unresolved("it differs", 1), Unknown),
        (http.too_large(10), Rejected),
    ],
)
def test_our_own_helper_reads_each_answer_as_what_it_means(problem: http.Problem, outcome: type) -> None:
    answer = problem.answer("https://shop.example/keys")
    said = from_status(answer.status, dict(answer.headers), answer.body or b"", datetime.now(UTC))
    assert isinstance(said, outcome), said


@pytest.mark.parametrize(
    ("status", "outcome"), [(201, Succeeded), (409, Rejected), (422, Invalid), (403, Forbidden), (400, Invalid)]
)
def test_what_is_said_for_an_answer_that_was_not_kept_reads_as_that_answer(status: int, outcome: type) -> None:
    answer = http.replayed(StoredAnswer(status, None, (("location", "/1"), ("content-type", "text/html"))))
    headers = dict(answer.headers)
    assert headers["location"] == "/1"
    assert "json" in headers["content-type"]
    assert isinstance(from_status(status, headers, answer.body or b"", datetime.now(UTC)), outcome)


def test_statuses() -> None:
    def fate(status: int, nothing: bool = False) -> Fate:
        return http.fate(status, nothing_happened=nothing)

    assert {fate(status) for status in (200, 201, 204, 302, 400, 403, 404, 409, 422)} == {Fate.FINISH}
    assert {fate(status) for status in (500, 502, 503, 504)} == {Fate.UNKNOWN}
    assert {fate(status) for status in (401, 425, 429)} == {Fate.RELEASE}
    assert {fate(status, True) for status in (200, 409, 500)} == {Fate.RELEASE}


def test_headers_that_speak_to_one_browser_are_not_kept() -> None:
    headers = [(b"Content-Type", b"text/plain"), (b"Set-Cookie", b"a=b"), (b"X-Trace", b"1"), (b"Location", b"/1")]
    assert http.kept(headers, http.KEPT_HEADERS) == (("content-type", "text/plain"), ("location", "/1"))
