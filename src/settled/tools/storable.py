"""The result of an effect as JSON text that the ledger can hold.

An effect that happened is never lost because of what its result looks like: what cannot be written is written as
text, and what is too large is cut to a note of its size.
"""

import json

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
    return text.replace("\\u0000", "\\ufffd")


def _as_text(result: object) -> str:
    try:
        text = str(result)
    except Exception as error:  # noqa: BLE001 - an author's __str__ may do anything, and the effect has happened
        text = f"a {type(result).__name__} whose text cannot be made ({type(error).__name__})"
    return text[:MAX_RESULT_BYTES].encode("utf-8", "replace").decode("utf-8")
