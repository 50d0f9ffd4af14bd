"""Arguments that no model gives: the state of a graph, its store, the runtime, the id of the call.

Owns how they are recognised in a signature. They take no part in the schema, in keys and in fingerprints, and what
they hold is given anew by whoever runs the body: see `settled.graph.injecting`. They are known by the names of their
classes, since LangGraph, which has most of them, is not imported here.
"""

from collections.abc import Callable, Mapping
from typing import Any, get_args, get_origin, get_type_hints

from langchain_core.tools import InjectedToolArg

from settled.state.errors import ContractError

KNOWN = ("InjectedState", "InjectedStore", "InjectedToolCallId", "ToolRuntime")


def injected_of(function: Callable[..., object], name: str) -> dict[str, object]:
    """Return what marks each injected parameter of a function, by the parameter's name: an `InjectedState("field")`, a
    class. Raises ContractError for a marker that nobody fills in.
    """
    hints = get_type_hints(function, include_extras=True)
    found = {parameter: marker_of(hint) for parameter, hint in hints.items() if parameter != "return"}
    for parameter, marker in found.items():
        if marker is not None and kind_of(marker) is None:
            raise ContractError(
                f"{name}: nobody gives {parameter}, which is marked {marker!r}; what can be injected is: "
                f"{', '.join(KNOWN)}"
            )
    return {parameter: marker for parameter, marker in found.items() if marker is not None}


def marker_of(hint: object) -> object | None:
    """Return what marks a type hint as injected; None for an argument of the model's."""
    kind = get_origin(hint) or hint
    if isinstance(kind, type) and kind_of(kind) is not None:
        return kind
    for part in (*getattr(hint, "__metadata__", ()), *get_args(hint)):
        if isinstance(part, InjectedToolArg) or (isinstance(part, type) and issubclass(part, InjectedToolArg)):
            return part
        if get_args(part) and (found := marker_of(part)) is not None:
            return found
    return None


def kind_of(marker: object) -> str | None:
    """Return which of `KNOWN` a marker is."""
    names = [base.__name__ for base in (marker if isinstance(marker, type) else type(marker)).__mro__]
    return next((name for name in KNOWN if name in names), None)


def check_runs_alone(name: str, injected: Mapping[str, Any]) -> None:
    """Raise ContractError for a tool that needs a graph, where there is none."""
    if injected:
        raise ContractError(
            f"{name} takes {', '.join(injected)} from a graph, and there is none here: call it in an agent "
            "(build_agent, ActionMiddleware, ActionNode)"
        )
