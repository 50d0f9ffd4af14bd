"""Which branch of a Union a value belongs to.

Owns the reading of annotations against values: type hints of classes, and how well a value fits. Knows nothing of trees
or bytes. Subtle: a validated value does not say which branch made it, so the insides of a container decide too.
"""

from __future__ import annotations

import typing
from collections import deque
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import lru_cache

import typing_extensions

from settled.state.errors import ContractError
from settled.state.markers import is_alias, is_union, unwrap

SEQUENCES = (list, tuple, set, frozenset, deque)


@lru_cache(maxsize=1024)  # as many classes as a program with very many tools has; more are read again
def type_hints(kind: typing.Any) -> Mapping[str, object]:
    """The annotations of a class with their markers; raises ContractError where a name cannot be resolved."""
    try:
        return typing_extensions.get_type_hints(kind, include_extras=True)
    except NameError as cause:
        raise ContractError(
            f"the annotations of {kind.__qualname__} cannot be read ({cause}): define their types at module level"
        ) from cause


def fit(value: object, annotation: object) -> int:
    """How well a value and its insides match an annotation: 3 surely, 2 loosely, 1 as anything does, 0 not at all."""
    core, _ = unwrap(annotation)
    origin, arguments = typing.get_origin(core) or core, typing.get_args(core)
    if is_alias(core):
        return fit(value, getattr(core, "__value__", typing.Any))
    if is_union(core):
        return max(fit(value, branch) for branch in arguments)
    if core is None or core is type(None):
        return 3 if value is None else 0
    if origin is typing.Literal:
        return 3 if any(type(value) is type(one) and value == one for one in arguments) else 0
    if typing_extensions.is_typeddict(core):
        return _fit_typed_dict(value, typing.cast("type", core))
    if origin in (typing.Any, object) or not isinstance(origin, type) or getattr(origin, "_is_protocol", False):
        return 1
    if not isinstance(value, origin) or (isinstance(value, bool) and origin is not bool):
        return 2 if origin in (float, int, Decimal) and _is_number(value) else 0
    return _fit_inside(value, origin, arguments)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _fit_inside(value: object, origin: type, arguments: tuple[object, ...]) -> int:
    if isinstance(value, Mapping) and len(arguments) == 2:
        pairs = value.items()
        return _least(min(fit(key, arguments[0]), fit(item, arguments[1])) for key, item in pairs)
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        same = isinstance(value, tuple) and len(value) == len(arguments)
        return _least(map(fit, typing.cast("tuple[object]", value), arguments)) if same else 0
    if isinstance(value, SEQUENCES) and arguments:
        return _least(fit(item, arguments[0]) for item in value)
    return 3 if type(value) is origin or arguments else 2


def _least(items: Iterable[int]) -> int:
    """A container fits as its worst item does, but a list of anything fits a list better than anything does."""
    least = min(items, default=3)
    return max(2, least) if least else 0


def _fit_typed_dict(value: object, kind: type) -> int:
    hints = type_hints(kind)
    declared: frozenset[str] = getattr(kind, "__required_keys__", frozenset())
    # A class whose annotations are texts (`from __future__ import annotations`) takes every key for required.
    required = {key for key in declared if typing.get_origin(hints[key]) is not typing.NotRequired}
    if not isinstance(value, Mapping) or not required <= value.keys() <= hints.keys():
        return 0
    return _least(fit(item, hints[key]) for key, item in value.items())
