"""The result of an effect as JSON text that the ledger can hold.

An effect that happened is never lost because of what its result looks like: what cannot be written is written as
text, and what is too large is cut to a note of its size.
"""

import json
import re

from pydantic_core import PydanticSerializationError, to_json

MAX_RESULT_BYTES = 1024 * 1024
"""As for arguments: what a model and a person can read is far smaller, and every replay carries it."""


def storable(result: object) -> str:
    """Return the JSON text of a result; never raises."""
    try:
        text = to_json(result, inf_nan_mode="strings").decode()
    except (PydanticSerializationError, ValueError, RecursionError, UnicodeError):
        text = json.dumps(_as_text(result))
    size = len(text)
    if size > MAX_RESULT_BYTES:
        return json.dumps({"note": f"the result was too large to keep ({size} bytes)"})
    return without_nul(text)


_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
"""The escape of a NUL, which Postgres does not read; not a backslash that stands before these characters in a text."""


def without_nul(text: str) -> str:
    """Return JSON text that Postgres can read: a NUL becomes the sign for what cannot be shown."""
    return _NUL.sub(r"\1\\ufffd", text)


def _as_text(result: object) -> str:
    try:
        text = str(result)
    except Exception as error:  # noqa: BLE001 - an author's __str__ may do anything, and the effect has happened
        text = f"a {type(result).__name__} whose text cannot be made ({type(error).__name__})"
    return text[:MAX_RESULT_BYTES].encode("utf-8", "replace").decode("utf-8")
