"""What an author says about one field, inside `Annotated[...]`.

Owns the four markers and the reading of them. Knows nothing of bytes or digests: `typed_pass` gives the markers
their meaning. Subtle: a marker may sit under a Union, a NewType or a type alias (`Annotated[str, Secret()] | None`),
and a field that carries one there still counts as marked.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable
from dataclasses import dataclass
from types import UnionType

import typing_extensions

from settled.state.errors import ContractError


@dataclass(frozen=True)
class Ordered:
    """The order of this list or tuple means something; without it `["a", "b"]` and `["b", "a"]` are the same."""


@dataclass(frozen=True)
class Incidental:
    """The model words this anew each time: the field takes no part in the key or the fingerprint."""


@dataclass(frozen=True)
class Secret:
    """Only a hash of this value enters the canonical bytes (unsalted: it hides, it does not resist guessing)."""


@dataclass(frozen=True)
class Precision:
    """Numbers of this field are equal when they agree to `places` decimals (half to even, as banks round)."""

    places: int

    def __post_init__(self) -> None:
        if type(self.places) is not int or self.places < 0:
            raise ContractError(f"Precision takes a number of decimals, 0 or more, not {self.places!r}")


Marker: typing.TypeAlias = Ordered | Incidental | Secret | Precision

_WITHOUT_PARAMETERS: dict[object, Marker] = {Ordered: Ordered(), Incidental: Incidental(), Secret: Secret()}
# The same qualifier has one identity in `typing` and another in `typing_extensions` on older Pythons.
_QUALIFIERS = frozenset(
    getattr(module, name)
    for module in (typing, typing_extensions)
    for name in ("Required", "NotRequired", "ReadOnly", "Final", "ClassVar")
    if hasattr(module, name)
)


def is_union(annotation: object) -> bool:
    """Whether this is `X | Y`, `Union[X, Y]` or `Optional[X]`."""
    return typing.get_origin(annotation) in (typing.Union, UnionType)


def is_alias(annotation: object) -> bool:
    """Whether this is a `type X = ...` alias, Python's own or the one of typing_extensions."""
    return type(annotation).__name__ == "TypeAliasType"


def markers_in(metadata: Iterable[object]) -> tuple[Marker, ...]:
    """The markers among the metadata of one `Annotated`; `Secret` without parentheses is read as `Secret()`."""
    found: list[Marker] = []
    for item in metadata:
        if item is Precision:
            raise ContractError("Precision needs its number of decimals: write Precision(2)")
        if isinstance(item, Marker):
            found.append(item)
        elif isinstance(item, type) and item in _WITHOUT_PARAMETERS:
            found.append(_WITHOUT_PARAMETERS[item])
    return tuple(found)


def unwrap(annotation: object) -> tuple[object, tuple[Marker, ...]]:
    """The annotation under its Annotated, Required, NewType and TypeVar layers, and the markers met on the way."""
    markers: tuple[Marker, ...] = ()
    while True:
        if typing.get_origin(annotation) is typing.Annotated:
            markers += markers_in(getattr(annotation, "__metadata__", ()))
            annotation = getattr(annotation, "__origin__", typing.Any)
        elif typing.get_origin(annotation) in _QUALIFIERS:
            annotation = typing.get_args(annotation)[0]
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif isinstance(annotation, typing.TypeVar):
            annotation = annotation.__bound__ or typing.Any
        else:
            return annotation, markers


def marked(annotation: object, marker: type[Marker]) -> bool:
    """Whether a field of this annotation carries the marker, on itself or on a branch of its Union."""
    core, markers = unwrap(annotation)
    if any(isinstance(found, marker) for found in markers):
        return True
    if is_alias(core):
        return marked(getattr(core, "__value__", typing.Any), marker)
    return is_union(core) and any(marked(branch, marker) for branch in typing.get_args(core))
