"""One scalar by value, as the tagged part of a JSON tree.

Owns the form of texts, numbers, instants and their like, the type of a tree, and its bytes. Knows nothing of
annotations. A tree holds only texts, booleans, None and arrays; every array starts with a tag that names its kind (`n`
number, `l` list, `o` object …), so that no two kinds can look alike and no text can pass for a number.
Subtle: no number is ever written out, so `Decimal("1e999999999")` costs no more than `1`.
"""

from __future__ import annotations

import json
import typing
import unicodedata
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_EVEN, Context, Decimal
from pathlib import PurePath
from uuid import UUID

import rfc8785

from settled.state.errors import InvalidArguments
from settled.state.input_limits import check_combining, utf8_length

Tree: typing.TypeAlias = "str | bool | Sequence[Tree] | None"
Encoder: typing.TypeAlias = Callable[[typing.Any], Tree]

# Above this, int -> str may be refused by a process-wide setting (at least 640 digits); Decimal has no such setting.
_STR_BITS = 2000
# int -> Decimal takes the square of the digits: 79,000 of them take a tenth of a second, a million take minutes.
_MAX_INT_BITS = 2**18

# The order of items is the order of their canonical bytes. For these trees (no number, no object) Python's C encoder
# writes the very text of RFC 8785, and comparing texts by code point is comparing their UTF-8 bytes.
sort_key = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode


def tree_bytes(tree: Tree) -> bytes:
    """The bytes of a tree by RFC 8785; raises InvalidArguments for text that has no UTF-8 form."""
    try:
        return rfc8785.dumps(typing.cast("typing.Any", tree))
    except rfc8785.CanonicalizationError as cause:
        raise InvalidArguments("", "must be valid Unicode text, without lone surrogates") from cause


def text(value: str) -> str:
    if value.isascii():
        return str.__str__(value)
    utf8_length(value)
    check_combining(value)
    return unicodedata.normalize("NFC", value)


def _scientific(sign: str, digits: str, exponent: int) -> Tree:
    """A number by value: no trailing zeros in the digits, so 100, 1e2 and 100.00 are all `1e2`."""
    short = digits.rstrip("0")
    if not short:
        return ["n", "0"]
    exponent += len(digits) - len(short)
    return ["n", f"{sign}{short}e{exponent}" if exponent else sign + short]


def _integer(value: int) -> Tree:
    if value.bit_length() > _STR_BITS:
        if value.bit_length() > _MAX_INT_BITS:
            raise InvalidArguments("", f"must not be a number of more than {_MAX_INT_BITS} bits")
        return _decimal(Decimal(value))
    return _scientific("-" if value < 0 else "", str(abs(value)), 0)


def _float(value: float) -> Tree:
    return _decimal(Decimal(float.__repr__(value)))


def _decimal(value: Decimal) -> Tree:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise InvalidArguments("", "must be a finite number, not NaN or infinity")
    return _scientific("-" if sign else "", "".join(map(str, digits)), exponent)


def _instant(value: datetime) -> Tree:
    if value.utcoffset() is None:
        return ["tn", value.replace(tzinfo=None).isoformat(timespec="microseconds")]
    try:
        return ["t", value.astimezone(UTC).isoformat(timespec="microseconds")]
    except OverflowError as cause:
        raise InvalidArguments("", "must be an instant between the years 1 and 9999 in UTC") from cause


def _span(value: timedelta) -> Tree:
    return ["td", str(value // timedelta(microseconds=1))]


SCALARS: dict[type, Encoder] = {
    str: text,
    bool: lambda value: value,
    type(None): lambda value: None,
    int: _integer,
    float: _float,
    Decimal: _decimal,
    datetime: _instant,
    date: lambda value: ["d", value.isoformat()],
    time: lambda value: ["tm", value.isoformat(timespec="microseconds")],
    timedelta: _span,
    UUID: lambda value: ["u", str(value)],
    bytes: lambda value: ["b", value.hex()],
    PurePath: lambda value: ["p", text(value.as_posix())],
}


def rounded(value: object, places: int) -> object:
    """A number to so many decimals, whatever its size; every other value as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return value
    number = Decimal(float.__repr__(value)) if isinstance(value, float) else Decimal(value)
    _, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int) or exponent >= -places:
        return value
    exact = Context(prec=len(digits) + places + 1, Emax=MAX_EMAX, Emin=MIN_EMIN)
    return number.quantize(Decimal((0, (1,), -places)), rounding=ROUND_HALF_EVEN, context=exact)
