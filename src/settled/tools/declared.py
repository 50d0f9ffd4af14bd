"""What may be written in `@action(...)`: the type of each part, and what it may be put on.

Owns the refusals that need no contract yet; whether the parts contradict one another is judged in
`settled.tools.contract`. Each refusal is a ContractError whose sentence says what to write instead.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from string import Formatter

from langchain_core.tools import BaseTool
from pydantic import BaseModel

from settled.state.errors import ContractError
from settled.tools.backoff import Backoff
from settled.tools.budget import Budget


def name_of(function: object, given: object) -> str:
    """Return the tool's name; ContractError where `@action` stands on something that is not one plain function."""
    if isinstance(function, BaseTool):
        raise ContractError(
            f"{function.name} is a LangChain tool already: put @action on its function, instead of @tool"
        )
    if not inspect.isroutine(function):
        raise ContractError(f"@action goes on a function, and {function!r} is none: call it from a def of its own")
    if given is not None and not (isinstance(given, str) and given):
        raise ContractError(f"name must be a text, not {given!r}")
    name = str(given or function.__name__)
    if name == "<lambda>":
        raise ContractError("a lambda has no name that a model could call: write a def, or pass name=")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ContractError(
            f"{name}: its body yields, but an action has one result: collect what it yields and return it"
        )
    return name


def check_types(name: str, **given: object) -> None:
    """Refuse a part of the wrong type; None is a part that was left out."""
    for part, value in given.items():
        if value is not None and (must_be := _WRONG[part](value)):
            raise ContractError(f"{name}: {part} must be {must_be}, not {value!r}")


def check_summary(name: str, summary: str | Mapping[str, str] | None, fields: Sequence[str]) -> None:
    """Refuse a template that names no argument, or that no value could be put into."""
    for template in summary.values() if isinstance(summary, Mapping) else [summary or ""]:
        try:
            parts = list(Formatter().parse(template))
        except ValueError as error:
            raise ContractError(f"{name}: summary {template!r}: {error}; write a literal brace twice") from error
        for _, field, spec, conversion in parts:
            if field is not None and field not in fields:
                raise ContractError(f"{name}: summary names {field!r}, which is not an argument")
            if field is not None and not _can_be_shown(spec or "", conversion):
                shown = f"{{{field}{f'!{conversion}' if conversion else ''}{f':{spec}' if spec else ''}}}"
                raise ContractError(f"{name}: summary has {shown}, which suits no value: write {{{field}}}")


def _can_be_shown(spec: str, conversion: str | None) -> bool:
    """Whether a value of some type can be formatted like this. (A datetime takes any text for a format.)"""
    samples: list[object] = [1, 1.5, Decimal("1.5"), "text", *([datetime.now(UTC)] if "%" in spec else [])]
    return any(_formats(sample, spec, conversion) for sample in samples)


def _formats(sample: object, spec: str, conversion: str | None) -> bool:
    try:
        format(Formatter().convert_field(sample, conversion), spec)
    except (ValueError, TypeError):
        return False
    return True


def _seconds(value: object) -> str:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return "" if good else "a finite number of seconds"


def _whole(value: object) -> str:
    return "" if isinstance(value, int) and not isinstance(value, bool) else "a whole number"


def _names(value: object) -> str:
    good = isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(one, str) for one in value)
    example = f'("{value}",)' if isinstance(value, str) else '("field", ...)'
    return "" if good else f"names of arguments, as in {example}"


def _identity(value: object) -> str:
    wrong = "" if value == "all" else _names(value)
    return f'{wrong}, or "all"' if wrong else ""


def _texts(value: object) -> str:
    good = isinstance(value, Mapping) and all(isinstance(one, str) for pair in value.items() for one in pair)
    return "" if good else "a mapping from texts to texts"


def _summary(value: object) -> str:
    return "" if isinstance(value, str) or not _texts(value) else 'a template, or one per language ({"en": ...})'


def _is(kind: type | tuple[type, ...], words: str) -> Callable[[object], str]:
    return lambda value: "" if isinstance(value, kind) else words


def _are(value: object, kind: type) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(one, kind) for one in value)


def _policies(value: object) -> str:
    policies = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return "" if all(callable(one) for one in policies) else "a function of the planned action, or several"


def _function(value: object) -> str:
    return "" if callable(value) else "a function"


def _is_plain(value: object) -> bool:
    """Whether calling it gives what it returns, and not something that is still to run."""
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return not any(is_kind(value) for is_kind in kinds)


_WRONG: Mapping[str, Callable[[object], str]] = {
    "identity": _identity,
    "unique": _names,
    "query": _function,
    "resend_when_absent": _is(bool, "True or False"),
    "timeout": _seconds,
    "deadline": _seconds,
    "lease": _seconds,
    "max_attempts": _whole,
    "backoff": _is(Backoff, "a Backoff(...)"),
    "settle_window": _seconds,
    "window": _is(timedelta, "a timedelta, such as timedelta(hours=24)"),
    "receipt": lambda value: "" if isinstance(value, str) else _function(value) and "a field's name or a function",
    "summary": _summary,
    "messages": _texts,
    "description": _is(str, "a text"),
    "approval": _policies,
    "emits": lambda value: _function(value) or ("" if _is_plain(value) else "a plain function, which returns at once"),
    "budgets": lambda value: "" if _are(value, Budget) else "a sequence of Budget(...)",
    "args_schema": lambda value: "" if isinstance(value, type) and issubclass(value, BaseModel) else "a pydantic model",
}
"""For each part, what it should have been: empty when it is that."""
