"""The body of a request, read with a bound, as JSON."""

from typing import Any

from fastapi import Request

from settled.runtime.chat.refusals import Refused
from settled.runtime.plain_json import parsed
from settled.state.canonical import check_arguments

MAX_BODY_BYTES = 1_000_000
"""A person's message with a picture in it; what is larger belongs into a store, and its name into the message."""


async def json_of(request: Request) -> dict[str, Any]:
    """Return the JSON object that came with a request; Refused (413, 422), InvalidArguments."""
    given = await _whole(request)
    if not given:
        return {}
    try:
        body = parsed(given)
    except ValueError:
        raise Refused(422, "the body must be JSON") from None
    if not isinstance(body, dict):
        raise Refused(422, "the body must be a JSON object")
    check_arguments(body)
    return {name: value for name, value in body.items() if value is not None}


async def _whole(request: Request) -> bytes:
    size = request.headers.get("content-length", "0")
    if not size.isdecimal() or int(size) > MAX_BODY_BYTES:
        raise _too_large()
    parts: list[bytes] = []
    left = MAX_BODY_BYTES
    async for part in request.stream():
        left -= len(part)
        if left < 0:
            raise _too_large()
        parts.append(part)
    return b"".join(parts)


def _too_large() -> Refused:
    return Refused(413, f"the body must be at most {MAX_BODY_BYTES} bytes")
