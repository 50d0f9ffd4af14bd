"""What one attempt ended in.

Owns the mapping from what came back (a status, an exception) to one of seven values; the body of a tool may return such
a value too, or raise it from deep code as `Ended`. It must not decide what follows from an outcome: that is the
protocol's. It imports no HTTP library: the exceptions of `httpx` and `httpx2` are known by class and package name.

The subtle thing: a definite "no" is only definite for the request it answers. If an earlier write of the same attempt
went out, the attempt as a whole is unknown (`after_sent`). Whatever is not listed here is unknown.
"""

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeAlias, cast

from settled.state.errors import InvalidArguments

# A reason is read by a model and by people in a table: a sentence or two, never a page.
MAX_REASON_CHARS = 300
# An error body above this is a page of a proxy, not an answer of the remote side; it is not parsed.
MAX_BODY_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Succeeded:
    """The effect took place; `receipt` is the remote side's own reference."""

    result: object
    receipt: str | None = None


@dataclass(frozen=True)
class Refused:
    """The request was definitely not processed; the same attempt may be made again after a wait."""

    reason: str
    retry_after_s: float | None = None


@dataclass(frozen=True)
class Rejected:
    """Processed, and the business says no; `receipt` names what stands in the way, if the remote side told."""

    reason: str
    receipt: str | None = None


@dataclass(frozen=True)
class Invalid:
    """The arguments are wrong and nothing took place; a corrected call may work."""

    reason: str
    field: str | None = None


@dataclass(frozen=True)
class Forbidden:
    """No permission, and nothing took place."""

    reason: str


@dataclass(frozen=True)
class Conflict:
    """The remote side knows this key with other arguments: surface it, never send it again."""

    reason: str


@dataclass(frozen=True)
class Unknown:
    """Sent, or perhaps sent, and nobody can tell yet what happened. `cause` is the kind of a foreign exception."""

    reason: str
    cause: type[BaseException] | None = field(default=None, compare=False, repr=False)


AttemptOutcome: TypeAlias = Succeeded | Refused | Rejected | Invalid | Forbidden | Conflict | Unknown


class Unreadable(Exception):
    """The cause of an attempt that was not made: this process cannot read the action's stored arguments."""


class Ended(Exception):
    """Raised by code deep inside a tool's body to end the attempt with `outcome`."""

    def __init__(self, outcome: AttemptOutcome) -> None:
        super().__init__(type(outcome).__name__.lower())
        self.outcome = outcome


def after_sent(outcome: AttemptOutcome, earlier_sent: int) -> AttemptOutcome:
    """Turn a definite "no" into unknown when `earlier_sent` other writes of this attempt may have had an effect.

    For outcomes concluded from a status or a foreign exception. What an author returns, or raises as `Ended`, is his
    word on the whole attempt and needs no such correction.
    """
    if earlier_sent == 0 or isinstance(outcome, Succeeded | Unknown):
        return outcome
    return Unknown(f"an earlier request of this attempt went out; the last one: {outcome.reason}")


_HTTP_PACKAGES = frozenset({"httpx", "httpx2", "httpcore", "httpcore2"})
# Raised before the first byte of a request leaves: no connection, or no free connection in the pool.
_NEVER_SENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout"})


def from_exception(exc: BaseException, earlier_sent: int = 0) -> AttemptOutcome:
    """Say what an attempt ended in whose body raised `exc`.

    `earlier_sent` is the number of writes of this attempt that may have had an effect (`len(context.sent)`). The text
    of a foreign exception is never used: it can hold addresses, secrets, or an invitation to call again.
    """
    match exc:
        case Ended():
            return exc.outcome
        case InvalidArguments():
            return after_sent(Invalid(exc.rule, exc.field), earlier_sent)
        case _:
            return after_sent(_from_http_exception(exc), earlier_sent)


def _from_http_exception(exc: BaseException) -> AttemptOutcome:
    names = _http_class_names(exc)
    if names & _NEVER_SENT:
        return Refused(f"no connection ({type(exc).__name__})")
    if "HTTPStatusError" in names:
        return from_response(getattr(exc, "response", None))
    return Unknown(f"no definite answer ({type(exc).__name__})", type(exc))


def _http_class_names(exc: BaseException) -> set[str]:
    return {c.__name__ for c in type(exc).__mro__ if c.__module__.partition(".")[0] in _HTTP_PACKAGES}


def from_response(response: object) -> AttemptOutcome:
    """Say what a response of `httpx` or `httpx2` means; a body that was not read, or is broken, counts as empty."""
    status, headers = getattr(response, "status_code", None), getattr(response, "headers", None)
    if not isinstance(status, int) or not isinstance(headers, Mapping):
        return Unknown("no definite answer (the response has no status)")
    try:
        body = getattr(response, "content", b"")
    except RuntimeError:  # ResponseNotRead and its like: the status alone decides
        body = b""
    return from_status(status, headers, body, datetime.now(UTC))


def from_status(status: int, headers: Mapping[str, str], body: bytes | str, now: datetime) -> AttemptOutcome:
    """Say what an HTTP answer to a write means. `now` is aware; it dates `Retry-After`.

    503 and 429: not processed. 400 and 422: wrong arguments. 401 and 403: no permission. Other 4xx: the business says
    no. What is said about the idempotency key means what it says; everything else, 5xx and 3xx too: nobody knows.
    A reason is the remote side's own short message where its JSON body has one.
    """
    parsed = _parse(body)
    parts = _parts(parsed)
    reason = _message(parts) or f"the remote side answered {status}"
    if 200 <= status < 300:
        return Succeeded(parsed if parsed is not None else _as_text(body), _receipt(parts))
    return _idempotency_answer(status, parts, reason) or _by_status(status, headers, parts, reason, now)


def _by_status(
    status: int, headers: Mapping[str, str], parts: list[Mapping[str, object]], reason: str, now: datetime
) -> AttemptOutcome:
    match status:
        case 429 | 503:
            return Refused(reason, retry_after_s(headers, now))
        case 400 | 422:
            specific = [part for part in parts if _field([part])]
            return Invalid(_message(specific) or reason, _field(parts))
        case 401 | 403:
            return Forbidden(reason)
        case _ if 400 <= status < 500:
            return Rejected(reason, _receipt(parts))
        case _:
            return Unknown(reason)


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the seconds the remote side asks to wait, or None. Milliseconds win, being the finer statement.

    Reads `Retry-After` as seconds or an HTTP date (RFC 9110, 10.2.3). A date that has passed is 0; nonsense is None.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        if (milliseconds := _number(lower.get(name, ""))) is not None:
            return milliseconds / 1000
    value = lower.get("retry-after", "")
    seconds = _number(value)
    return seconds if seconds is not None else _until(value, now)


def _number(text: str) -> float | None:
    # Up to 12 digits: past any deadline, and far from the sizes at which float() or a sleep misbehaves.
    return float(text) if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", text.strip()) else None


def _until(text: str, now: datetime) -> float | None:
    try:
        instant = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    aware = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    return max(0.0, (aware - now).total_seconds())


# What the remote side says about the key: the IETF draft's titles, and the codes of well-known payment APIs.
_IN_FLIGHT = re.compile(r"in.?use|in.?flight|in.?progress|outstanding|concurrent|being.processed|pending|still")
_OTHER_ARGUMENTS = re.compile(r"reuse|differ|mismatch|(?:not|n't).match|already.used|first.used|other.(?:arg|pay|par)")
_NO_KEY = re.compile(r"missing|required|malformed|invalid")


def _idempotency_answer(status: int, parts: list[Mapping[str, object]], reason: str) -> AttemptOutcome | None:
    words = " ".join(_strings(parts, ("type", "code", "title", "error", "detail", "message"))).lower()
    if status not in (400, 409, 422) or "idempoten" not in words:
        return None
    in_flight, other = bool(_IN_FLIGHT.search(words)), bool(_OTHER_ARGUMENTS.search(words))
    if in_flight and (status == 409 or not other):
        return Unknown(reason)
    if other:
        return Conflict(reason)
    if status == 409:  # about the key and no more than that: waiting and asking is right for both readings
        return Unknown(reason)
    about_reuse = "idempotency_error" in words or (status == 422 and not _NO_KEY.search(words))
    return Conflict(reason) if about_reuse else None


def _parse(body: bytes | str) -> object:
    if not body or len(body) > MAX_BODY_BYTES:
        return None
    try:
        return cast("object", json.loads(body))
    except (ValueError, RecursionError):
        return None


def _parts(parsed: object) -> list[Mapping[str, object]]:
    """Return the objects of a body that may hold a message: the body, its `error` and `detail`, its first items."""
    if not isinstance(parsed, Mapping):
        return []
    nested = [parsed.get(name) for name in ("error", "detail", "errors")]
    candidates = [parsed, *(item[0] if isinstance(item, list) and item else item for item in nested)]
    return [part for part in candidates if isinstance(part, Mapping)]


def _strings(parts: list[Mapping[str, object]], names: tuple[str, ...]) -> Iterator[str]:
    for part in parts:
        for name in names:
            if isinstance(value := part.get(name), str) and value.strip():
                yield value


def _message(parts: list[Mapping[str, object]]) -> str | None:
    found = next(_strings(parts, ("detail", "message", "msg", "reason", "error", "title")), None)
    return None if found is None else one_line(found, MAX_REASON_CHARS)


def _receipt(parts: list[Mapping[str, object]]) -> str | None:
    for part in parts:
        value = part.get("receipt")
        if isinstance(value, str | int) and not isinstance(value, bool):
            return one_line(str(value), MAX_REASON_CHARS)
    return None


_PLACES = frozenset({"body", "query", "path", "header", "cookie"})


def _field(parts: list[Mapping[str, object]]) -> str | None:
    for part in parts:
        if isinstance(location := part.get("loc"), list) and location:
            path = location[1:] if location[0] in _PLACES and len(location) > 1 else location
            return one_line(".".join(str(step) for step in path), MAX_REASON_CHARS)
    named = next(_strings(parts, ("field", "param", "pointer")), None)
    return None if named is None else one_line(named.lstrip("#/").replace("/", "."), MAX_REASON_CHARS)


def _as_text(body: bytes | str) -> str:
    return body if isinstance(body, str) else body.decode("utf-8", "replace")


# Overrides of the writing direction make a shown text read other than it is stored.
_DIRECTION = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def one_line(text: str, limit: int) -> str:
    """Return `text` as one line of at most `limit` characters, with nothing in it that a terminal or UTF-8 minds."""
    line = " ".join(plain(text[: limit * 4]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def plain(text: str) -> str:
    """Return `text` with control characters as blanks, lone surrogates replaced, and direction overrides left out."""
    return "".join(_plain_character(c) for c in text)


def _plain_character(c: str) -> str:
    match unicodedata.category(c):
        case "Cs":
            return "\ufffd"
        case "Cc":
            return " "
        case _:
            return "" if c in _DIRECTION else c
