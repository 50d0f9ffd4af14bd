"""JSON as people and programs send it, read strictly. Owns one rule that Python's own reader does not have: no NaN."""

import json
from typing import NoReturn


def parsed(text: str | bytes) -> object:
    """Return what a text holds; ValueError for what is no JSON: NaN and infinities, and what is nested without end."""
    try:
        value: object = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
