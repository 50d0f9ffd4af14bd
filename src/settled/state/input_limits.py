"""What raw arguments may look like before anybody reads them.

Owns the limits and one walk that checks them. Knows nothing of schemas: it sees the JSON that a model sent.
Subtle: every step of the walk is bounded by the limits themselves (a 10 MB text is refused by its length, 200 levels
by the 65th), and the path of a refused field is built only while the refusal travels up.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping

from settled.state.errors import InvalidArguments

# Deeper than any tool schema we have seen, and far below Python's recursion limit and Postgres' JSON limit.
MAX_DEPTH = 64
# One row, one event and one message hold the arguments: 1 MiB keeps them within what Postgres writes at ease.
MAX_ARGUMENT_BYTES = 1024 * 1024
# Unicode's stream-safe format allows 30 combining marks in a row. Ordering a run costs its square: 100,000 take 5 s.
MAX_COMBINING_RUN = 128
# A signed 64-bit number is what most remote sides, and JSON readers, keep unchanged.
MAX_INTEGER = 2**63 - 1
MIN_INTEGER = -(2**63)
# A key is quoted in an error; this much of it is enough to find it.
_SHOWN_KEY = 60


def check_arguments(raw: Mapping[str, object]) -> None:
    """Refuse arguments that cannot be stored, hashed or sent as they are.

    `raw` is JSON as a model sent it. Raises InvalidArguments with the path of the first field that breaks a rule.
    Sizes count the UTF-8 bytes of texts and keys and a few bytes for each value, not the bytes of one encoding.
    """
    try:
        _object(raw, MAX_ARGUMENT_BYTES, 1)
    except InvalidArguments as error:
        raise error if error.field else InvalidArguments("arguments", error.rule) from error.__cause__


def within(step: str, error: InvalidArguments) -> InvalidArguments:
    """The same refusal, seen from one level further up: `[2]` in `items`, then `items[2]` in the arguments."""
    joint = "." if error.field and not error.field.startswith("[") else ""
    return InvalidArguments(f"{step}{joint}{error.field}", error.rule)


def shown_key(key: object) -> str:
    """A key as it may stand in a message: short, and without characters that a terminal or Postgres refuses."""
    text = key if isinstance(key, str) else repr(key)
    short = text if len(text) <= _SHOWN_KEY else text[:_SHOWN_KEY] + "…"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in short) or '""'


def utf8_length(text: str) -> int:
    """How many bytes the text takes; raises InvalidArguments for a lone surrogate, which has no UTF-8 form."""
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError as cause:
        raise InvalidArguments("", "must be valid Unicode text, without lone surrogates") from cause


def check_combining(text: str) -> None:
    """Refuse a run of combining marks so long that bringing it into one Unicode form would take minutes.

    A run of MAX_COMBINING_RUN holds one of the characters at every MAX_COMBINING_RUN-th place, so ordinary text is
    looked at only there.
    """
    if text.isascii() or not any(map(unicodedata.combining, text[MAX_COMBINING_RUN - 1 :: MAX_COMBINING_RUN])):
        return
    run = 0
    for character in text:
        run = run + 1 if unicodedata.combining(character) else 0
        if run > MAX_COMBINING_RUN:
            raise InvalidArguments("", f"must not hold more than {MAX_COMBINING_RUN} combining marks in a row")


def _spend(room: int, size: int) -> int:
    if size > room:
        raise InvalidArguments("", f"all arguments together must not be larger than {MAX_ARGUMENT_BYTES} bytes")
    return room - size


def _text(text: str, room: int) -> int:
    _spend(room, len(text))  # before the text is looked at: its length in characters is a lower bound
    if "\0" in text:
        raise InvalidArguments("", "must not hold a NUL character")
    room = _spend(room, utf8_length(text) + 2)
    check_combining(text)
    return room


def _number(number: float, room: int) -> int:
    if isinstance(number, int):
        if not MIN_INTEGER <= number <= MAX_INTEGER:
            raise InvalidArguments("", "must fit in a signed 64-bit integer; a larger number: send it as text")
    elif not math.isfinite(number):
        raise InvalidArguments("", "must be a finite number, not NaN or infinity")
    return _spend(room, 8)


def _value(value: object, room: int, depth: int) -> int:
    """What is left of the room after this value."""
    if isinstance(value, str):
        return _text(value, room)
    if value is None or isinstance(value, bool):
        return _spend(room, 4)
    if isinstance(value, int | float):
        return _number(value, room)
    if depth >= MAX_DEPTH and isinstance(value, Mapping | list | tuple):
        raise InvalidArguments("", f"must not be nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        return _object(value, room, depth + 1)
    if isinstance(value, list | tuple):
        return _list(value, room, depth + 1)
    raise InvalidArguments("", f"must be JSON, not a Python {type(value).__name__}")


def _list(values: list[object] | tuple[object, ...], room: int, depth: int) -> int:
    room = _spend(room, 2)
    done = 0
    try:
        for value in values:
            room = _value(value, room, depth)
            done += 1
    except InvalidArguments as error:
        raise within(f"[{done}]", error) from error.__cause__
    return room


def _object(values: object, room: int, depth: int) -> int:
    if not isinstance(values, Mapping):
        raise InvalidArguments("", "must be a JSON object with one entry for each argument")
    room = _spend(room, 2)
    key: object = ""
    try:
        for key, value in values.items():
            if not isinstance(key, str):
                raise InvalidArguments("", f"must have a text as its name, not a Python {type(key).__name__}")
            room = _value(value, _text(key, room), depth)
    except InvalidArguments as error:
        raise within(shown_key(key), error) from error.__cause__
    return room
