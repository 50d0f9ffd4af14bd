"""What stands between the ledger and the tool: the wrappers of other middlewares that were listed after ours.

A wrapper inside ours that calls the tool again sends a second request within one attempt, which the ledger cannot see;
one that answers by itself makes up an outcome. Owns the search for them in the handler that LangChain hands us, which
is a chain of closures (langchain 1.2 to 1.5): it must be right before anything is sent.
"""

from collections.abc import Callable, Iterator
from types import FunctionType, MethodType
from typing import Any

MAX_STEPS = 200
"""Of closures on the way to a tool: far more than anybody lists middlewares."""

_STOPS = ("execute",)
_COMPOSED = "call_inner"


def wrappers_in(handler: Callable[..., Any], middleware: type[Any]) -> list[str]:
    """Return the names of the middlewares whose wrappers a handler calls, outermost first."""
    names = [
        str(one.__self__.name)
        for one in _reached(handler)
        if isinstance(one, MethodType) and isinstance(one.__self__, middleware)
    ]
    if not names and getattr(handler, "__name__", "") == _COMPOSED:
        names.append("another wrapper")
    return list(dict.fromkeys(names))


def _reached(handler: Callable[..., Any]) -> Iterator[object]:
    """Yield what a function calls by way of its closures, each once."""
    seen: set[int] = set()
    waiting: list[object] = [handler]
    while waiting and len(seen) < MAX_STEPS:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, FunctionType) and one.__name__ not in _STOPS:
            waiting += [cell.cell_contents for cell in one.__closure__ or () if _is_filled(cell)]
        if (wrapped := getattr(one, "__wrapped__", None)) is not None:
            waiting.append(wrapped)


def _is_filled(cell: Any) -> bool:
    try:
        return callable(cell.cell_contents)
    except ValueError:
        return False
