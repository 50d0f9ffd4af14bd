"""The `Idempotency-Key` header of the IETF draft (draft-ietf-httpapi-idempotency-key-header-07), as values.

Owns how a key is read, what makes two requests the same, which statuses say what about the effect, and the answers of
the draft as problem details (RFC 9457). Knows no server and no store.

The subtle thing: our own callers read these answers (`settled.tools.outcome`). A key in flight, and one that nobody can
tell about, must read as unknown there, another payload as a conflict; and what is said in place of an answer that was
not kept must not read as one of those, so it does not speak of keys.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from http import HTTPStatus
from typing import Any, TypeAlias, cast

from settled.tools.endpoint import MAX_KEY_CHARS, StoredAnswer
from settled.tools.outcome import one_line

DRAFT = "https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/"
REPLAYED = "idempotency-replayed"
"""Of the answer to a repeat: "true"."""

KEPT_HEADERS = frozenset(
    {"content-type", "content-encoding", "content-language", "content-location", "etag", "last-modified", "link"}
    | {"location"}
)
"""What is given again with an answer: all that describes its body and the thing that was made, and nothing that speaks
to one connection or one browser (`Set-Cookie`, dates, CORS, trace ids).
"""

NEVER_KEPT = frozenset({"set-cookie", "connection", "transfer-encoding", "content-length", "date", "keep-alive"})

NOT_PROCESSED = frozenset({401, 425, 429})
"""Statuses by which a handler says that nothing was done and the same request may come again. 503 is not among them:
frameworks give it to a failure in the middle as well.
"""


@dataclass(frozen=True)
class EndpointRequest:
    """A request as `reconcile` and a `fingerprint` of one's own get it. Names of headers are lower case."""

    method: str
    path: str
    query: bytes
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    tenant: str = "default"

    def json(self) -> Any:
        """Return the body as JSON; ValueError when it is none."""
        return json.loads(self.body)


Fingerprint: TypeAlias = Callable[[EndpointRequest], bytes]
"""Returns the bytes that make two requests the same."""

_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"[ \t]*(?:;.*)?')
_BARE = re.compile(r"[!-~]+")


def key_of(values: list[str]) -> str | None:
    """Return the key of a request's header lines; None where it breaks the draft's rule.

    The draft wants a structured string (`"8e03…"`); most clients send the bare key. Both are the same one.
    """
    if len(values) != 1:
        return None
    text = values[0].strip(" \t")
    if quoted := _QUOTED.fullmatch(text):
        key = re.sub(r"\\(.)", r"\1", quoted[1])
    else:
        key = text if _BARE.fullmatch(text) and not text.startswith('"') else ""
    return key if 0 < len(key) <= MAX_KEY_CHARS else None


def fingerprint_of(request: EndpointRequest, own: Fingerprint | None = None) -> str:
    """Return what a request must share with the first one of its key: method, path, query and body.

    JSON counts by its value, so the order of names, blanks and the digits of a number (1.50, 1.5) do not matter; the
    order of a list does. Any other body counts by its bytes.
    """
    body = own(request) if own is not None else _body(request)
    digest = hashlib.sha256(b"settled/endpoint/1\n")
    for part in (request.method.encode(), request.path.encode("utf-8", "surrogatepass"), request.query, body):
        digest.update(b"%d:" % len(part) + part)
    return f"sha256:{digest.hexdigest()}"


def _body(request: EndpointRequest) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        try:
            tree = json.loads(
                request.body, object_pairs_hook=_object, parse_int=_number, parse_float=_number, parse_constant=_none
            )
            return b"json:" + json.dumps(tree, separators=(",", ":")).encode()
        except (ValueError, ArithmeticError, RecursionError):
            pass
    return kind.encode("utf-8", "replace") + b":" + request.body


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A name that comes twice is kept twice: readers differ in which of them counts."""
    return {"object": sorted(pairs, key=lambda pair: pair[0])}


def _number(text: str) -> dict[str, object]:
    sign, digits, exponent = Decimal(text).as_tuple()
    plain = "".join(map(str, digits)).lstrip("0")
    short = plain.rstrip("0")
    power = cast("int", exponent) + len(plain) - len(short) if short else 0
    return {"number": f"{'-' if sign and short else ''}{short or '0'}e{power}"}


def _none(text: str) -> object:
    raise ValueError(f"{text} is no JSON")


class Fate(Enum):
    """What becomes of a key when its handler has answered."""

    FINISH = "finish"
    RELEASE = "release"
    UNKNOWN = "unknown"


def fate(status: int, *, nothing_happened: bool, not_processed: Collection[int] = NOT_PROCESSED) -> Fate:
    """Say what an answer means for its key: a definite one is kept, also a no; a 5xx tells nobody what was done."""
    if nothing_happened or status in not_processed:
        return Fate.RELEASE
    return Fate.UNKNOWN if status >= 500 else Fate.FINISH


def kept(headers: Collection[tuple[bytes, bytes]], names: Collection[str]) -> tuple[tuple[str, str], ...]:
    """Return the headers that are given again."""
    texts = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers]
    return tuple((name, value) for name, value in texts if name in names)


def replayed(answer: StoredAnswer) -> StoredAnswer:
    """Return the answer to a repeat: the first one, marked; or what is said where that was too large to be kept."""
    mark = (REPLAYED, "true")
    if answer.body is not None:
        return StoredAnswer(answer.status, answer.body, (*answer.headers, mark))
    said = {
        "code": "answer_not_kept",
        "title": "The answer was not kept",
        "detail": "this request was carried out before, and nothing new was done; its answer was too large to be kept",
        "status": answer.status,
    }
    kind = "application/json" if answer.status < 400 else "application/problem+json"
    described = {"content-type", "content-encoding", "content-language", "etag"}
    headers = tuple(header for header in answer.headers if header[0] not in described)
    return StoredAnswer(answer.status, json.dumps(said).encode(), (*headers, ("content-type", kind), mark))


@dataclass(frozen=True)
class Problem:
    """An answer that says no, as problem details. `code` is for programs, `detail` for people."""

    status: HTTPStatus
    code: str
    title: str
    detail: str
    retry_after_s: float | None = None

    def answer(self, about: str) -> StoredAnswer:
        """Return it as an answer; `about` is the page that documents the endpoint's use of keys."""
        body = {"type": about, "title": self.title, "status": self.status, "detail": self.detail, "code": self.code}
        headers = [("content-type", "application/problem+json"), ("link", f'<{about}>; rel="describedby"')]
        if self.retry_after_s is not None:
            headers.append(("retry-after", str(max(1, math.ceil(self.retry_after_s)))))
        return StoredAnswer(self.status, json.dumps(body).encode(), tuple(headers))


MISSING = Problem(
    HTTPStatus.BAD_REQUEST,
    "idempotency_key_missing",
    "Idempotency-Key is missing",
    "send an Idempotency-Key header: a text of your own for this one operation, the same when you repeat it",
)
MALFORMED = Problem(
    HTTPStatus.BAD_REQUEST,
    "idempotency_key_malformed",
    "Idempotency-Key is malformed",
    f"send one Idempotency-Key of 1 to {MAX_KEY_CHARS} visible ASCII characters",
)
REUSED = Problem(
    HTTPStatus(422),
    "idempotency_key_reused",
    "Idempotency-Key is already used",
    "this Idempotency-Key was used with another payload; nothing was done",
)
NOBODY_KNOWN = Problem(
    HTTPStatus.UNAUTHORIZED, "caller_unknown", "The caller is not known", "nothing was done: log in first"
)
AWAY = Problem(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "unavailable",
    "The service is not available",
    "nothing was done; send the same request again later",
    retry_after_s=1,
)


def in_flight(retry_after_s: float) -> Problem:
    """Return the answer while the first request is at work."""
    return Problem(
        HTTPStatus.CONFLICT,
        "idempotency_key_in_use",
        "A request is outstanding for this Idempotency-Key",
        "the first request with this Idempotency-Key is in progress; send the same request again later",
        retry_after_s,
    )


def unresolved(reason: str, retry_after_s: float) -> Problem:
    """Return the answer while nobody can tell what the first request did. Its title must say "outstanding": then it is
    read as unknown, whatever the words of the reason are.
    """
    return Problem(
        HTTPStatus.CONFLICT,
        "idempotency_key_unresolved",
        "A request is outstanding for this Idempotency-Key, and its outcome is not known",
        one_line(f"whether it was done is not known, and it is not done again: {reason}", 300),
        retry_after_s,
    )


def too_large(limit: int) -> Problem:
    """Return the answer to a body above the limit."""
    return Problem(
        HTTPStatus(413),
        "body_too_large",
        "The body is too large",
        f"nothing was done; a body has {limit} bytes at most",
    )
