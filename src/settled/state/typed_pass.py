"""From a validated Python value and its annotation to a JSON tree that says what the value is.

Owns which values are the same: lists without order, records by their fields, incidental fields left out, secrets
hashed. Knows nothing of digests. Scalars are next door, in `scalars`.

Subtle: an annotation is walked once and becomes a closure; whatever has nothing special about it becomes `plain`, which
goes by the value alone. Only markers, TypedDicts and tuples of fixed length need the annotation at all.
"""

from __future__ import annotations

import dataclasses
import hashlib
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache

import typing_extensions

from settled.state.branches import SEQUENCES, fit, type_hints
from settled.state.errors import ContractError, InvalidArguments
from settled.state.input_limits import shown_key, within
from settled.state.markers import (
    Incidental,
    Marker,
    Ordered,
    Precision,
    Secret,
    is_alias,
    is_union,
    marked,
    markers_in,
    unwrap,
)
from settled.state.scalars import SCALARS, Encoder, Tree, rounded, sort_key, text, tree_bytes

_Aliases: typing.TypeAlias = Mapping[str, object]

_SECRET_TAG = b"settled/secret/1\n"
# Annotations belong to tools and live as long as they do; a program that makes new ones all the time starts over.
_MAX_CACHED = 1024
_SETS = (set, frozenset)


def plain(value: object) -> Tree:
    """The tree of a value whose annotation says nothing special; raises InvalidArguments for a kind without a form."""
    scalar = SCALARS.get(type(value))
    if scalar is not None:
        return scalar(value)
    if isinstance(value, Enum):
        return plain(value.value)
    fields = _record_fields(typing.cast("typing.Hashable", type(value)))
    if fields is not None:
        return _record(value, fields)
    if isinstance(value, SEQUENCES):
        return _sequence(value, plain, ordered=False)
    if isinstance(value, Mapping):
        return _mapping(value, plain)
    return _rare(value)


def _rare(value: object) -> Tree:
    """Subclasses of scalars (a Path, a str subclass), and pydantic's SecretStr, which stays secret by itself."""
    for kind, scalar in SCALARS.items():
        if isinstance(value, kind):
            return scalar(value)
    reveal = getattr(value, "get_secret_value", None)
    if callable(reveal):
        return _hidden(plain(reveal()))
    raise InvalidArguments("", f"a Python {type(value).__name__} has no canonical form")


def _hidden(tree: Tree) -> Tree:
    return ["s", hashlib.sha256(_SECRET_TAG + tree_bytes(tree)).hexdigest()]


def _sequence(values: Iterable[object], item: Encoder, *, ordered: bool) -> Tree:
    trees: list[Tree] = []
    try:
        for value in values:
            trees.append(item(value))  # noqa: PERF401  (its length says which item was refused)
    except InvalidArguments as error:
        raise within(f"[{len(trees)}]", error) from error.__cause__
    if ordered:
        return ["o-l", *trees]
    return ["l", *sorted(trees, key=sort_key)] if len(trees) > 1 else ["l", *trees]


def _key(key: object) -> str | tuple[Tree, ...]:
    """A key as text, or as the tagged scalar it is: the key 1 is not the key "1"."""
    if isinstance(key, str) and not isinstance(key, Enum):
        return text(key)
    tree = plain(key)
    if isinstance(tree, str):
        return tree
    if tree is None or isinstance(tree, bool) or not all(isinstance(part, str) for part in tree) or len(tree) != 2:
        raise InvalidArguments("", f"a Python {type(key).__name__} cannot be a key")
    return tuple(tree)


def keys_in_order(mapping: Mapping[typing.Any, object]) -> list[tuple[Tree, typing.Any]]:
    """The canonical form of each key beside the key itself, by code point; texts before other scalars."""
    keys: dict[typing.Any, object] = {}
    key: object = ""
    try:
        for key in mapping:
            name = _key(key)
            if name in keys:
                raise InvalidArguments("", "is there twice, in two Unicode forms of one name")
            keys[name] = key
    except InvalidArguments as error:
        raise within(shown_key(key), error) from error.__cause__
    return sorted(keys.items(), key=lambda pair: (isinstance(pair[0], tuple), pair[0]))


def _mapping(mapping: Mapping[typing.Any, object], item: Encoder) -> Tree:
    return ["o", *([name, at(key, item, mapping[key])] for name, key in keys_in_order(mapping))]


def at(key: object, item: Encoder, value: object) -> Tree:
    """The tree of the value under this key; a refusal names the key."""
    try:
        return item(value)
    except InvalidArguments as error:
        raise within(shown_key(key), error) from error.__cause__


_Fields: typing.TypeAlias = Sequence[tuple[str, Encoder]]


@lru_cache(maxsize=_MAX_CACHED)
def _record_fields(kind: typing.Any) -> _Fields | None:
    """The fields of a class of records in canonical order, without the incidental ones; None for other classes."""
    annotations = _record_annotations(kind)
    if annotations is None:
        return None
    encoders = ((name, field_encoder(annotation)) for name, annotation in sorted(annotations.items()))
    return [(name, encoder) for name, encoder in encoders if encoder is not None]


def _record_annotations(kind: type) -> Mapping[str, object] | None:
    models = getattr(kind, "__pydantic_fields__", None)  # by its mark, so that state need not import pydantic
    if models is not None:
        return {name: _with_metadata(field.annotation, field.metadata) for name, field in models.items()}
    if dataclasses.is_dataclass(kind):
        hints = type_hints(kind)
        return {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        hints = type_hints(kind)
        return {name: hints.get(name, typing.Any) for name in kind._fields}
    return None


def _with_metadata(annotation: object, metadata: Iterable[object]) -> object:
    """Pydantic takes `Annotated` apart; put our markers back."""
    for marker in markers_in(metadata):
        annotation = typing.Annotated[annotation, marker]
    return annotation


def _record(value: object, fields: _Fields) -> Tree:
    extra = getattr(value, "__pydantic_extra__", None)
    pairs: list[tuple[Tree, Tree]] = [(name, at(name, encoder, getattr(value, name))) for name, encoder in fields]
    if extra:
        pairs += [(name, at(key, plain, extra[key])) for name, key in keys_in_order(extra)]
        pairs.sort(key=lambda pair: str(pair[0]))
    return ["o", *pairs]


def field_encoder(annotation: object) -> Encoder | None:
    """How values of this field are encoded; None when the field is incidental. Walked once for each annotation.

    The cache goes by identity: `int | str` equals `str | int` and an unhashable annotation has no hash, but each tool
    keeps its own annotation objects. An entry holds its annotation, so no other object can take over its id.
    Raises ContractError for an annotation that cannot be read.
    """
    known = _ENCODERS.get(id(annotation))
    if known is not None:
        return known[1]
    encoder = None if marked(annotation, Incidental) else build(annotation)
    if len(_ENCODERS) >= _MAX_CACHED:
        _ENCODERS.clear()
    _ENCODERS[id(annotation)] = (annotation, encoder)
    return encoder


_ENCODERS: dict[int, tuple[object, Encoder | None]] = {}


def build(annotation: object, inherited: tuple[Marker, ...] = (), aliases: _Aliases | None = None) -> Encoder:
    """One closure for an annotation; `plain` itself where the annotation adds nothing."""
    aliases = aliases or {}
    core, own = unwrap(annotation)
    markers = own + inherited
    if any(isinstance(marker, Secret) for marker in markers):
        return _secret(build(core, tuple(marker for marker in markers if not isinstance(marker, Secret)), aliases))
    if isinstance(core, str | typing.ForwardRef):
        return _forward(core if isinstance(core, str) else core.__forward_arg__, aliases)
    if is_alias(core):
        return _alias(core, markers, aliases)
    if is_union(core):
        return _union(typing.get_args(core), markers, aliases)
    if typing_extensions.is_typeddict(core):
        return _typed_dict(typing.cast("type", core))
    return _container(core, markers, aliases)


def _secret(inner: Encoder) -> Encoder:
    return lambda value: _hidden(inner(value))


def _forward(name: str, aliases: _Aliases) -> Encoder:
    """A name inside a recursive alias stands for that alias; any other unresolved name is refused, not guessed."""
    if name not in aliases:
        raise ContractError(f"the annotation {name!r} is still a text: resolve it with typing.get_type_hints first")
    return _later(aliases[name])


def _later(alias: object) -> Encoder:
    return lambda value: (field_encoder(alias) or plain)(value)


def _alias(alias: object, markers: tuple[Marker, ...], aliases: _Aliases) -> Encoder:
    name = str(getattr(alias, "__name__", ""))
    if aliases.get(name) is alias:
        return _later(alias)
    return build(getattr(alias, "__value__", typing.Any), markers, {**aliases, name: alias})


def _union(branches: Sequence[object], markers: tuple[Marker, ...], aliases: _Aliases) -> Encoder:
    """The branch that fits best, the first of equals; where none fits, a secret one if any, so that nothing leaks."""
    choices = [(branch, build(branch, markers, aliases)) for branch in branches if branch is not type(None)]
    if all(encoder is plain for _, encoder in choices):
        return plain
    if len(choices) == 1:
        only = choices[0][1]
        return lambda value: None if value is None else only(value)
    otherwise = next((encoder for branch, encoder in choices if marked(branch, Secret)), plain)

    def encode(value: object) -> Tree:
        if value is None:
            return None
        score, encoder = max(((fit(value, branch), encoder) for branch, encoder in choices), key=lambda pair: pair[0])
        return encoder(value) if score else otherwise(value)

    return encode


def _typed_dict(kind: type) -> Encoder:
    """A dictionary with declared keys; its annotations are read at first use, since it may hold itself."""

    def encode(value: object) -> Tree:
        if not isinstance(value, Mapping):
            return plain(value)
        return fields_tree(value, type_hints(kind))

    return encode


def fields_tree(values: Mapping[str, object], annotations: Mapping[str, object]) -> Tree:
    """An object whose fields have their own annotations, without the incidental ones."""
    pairs: list[tuple[Tree, Tree]] = []
    for name, key in keys_in_order(values):
        encoder = field_encoder(annotations.get(key, typing.Any))
        if encoder is not None:
            pairs.append((name, at(key, encoder, values[key])))
    return ["o", *pairs]


def _container(core: object, markers: tuple[Marker, ...], aliases: _Aliases) -> Encoder:
    origin, arguments = typing.get_origin(core) or core, typing.get_args(core)
    passed_on = tuple(marker for marker in markers if isinstance(marker, Precision))
    items = [_item(part, passed_on, aliases) for part in _parts(origin, arguments)]
    ordered = any(isinstance(marker, Ordered) for marker in markers)
    if _is_kind(origin, Mapping):
        return _of_mapping(items[-1] if items else plain)
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        return _of_positions(items)
    if _is_kind(origin, Collection) and not _is_kind(origin, (str, bytes)) and not hasattr(origin, "_fields"):
        return _of_items(items[0] if items else plain, ordered)
    if any(item is not plain for item in items):
        raise ContractError(f"markers inside {core!r} cannot be read: put them on the fields of a class")
    return _of_number(passed_on[0].places) if passed_on else plain


def _item(part: object, markers: tuple[Marker, ...], aliases: _Aliases) -> Encoder | None:
    return None if marked(part, Incidental) else build(part, markers, aliases)


def _parts(origin: object, arguments: tuple[object, ...]) -> tuple[object, ...]:
    """The annotations of what is inside; the values of a Literal and the signature of a Callable are none."""
    if not isinstance(origin, type) or _is_kind(origin, typing.cast("type", Callable)):
        return ()
    return tuple(part for part in arguments if part is not Ellipsis)


def _is_kind(origin: object, kind: type | tuple[type, ...]) -> bool:
    return isinstance(origin, type) and issubclass(origin, kind)


def _of_number(places: int) -> Encoder:
    return lambda value: plain(rounded(value, places))


def _of_mapping(item: Encoder | None) -> Encoder:
    if item is plain:
        return plain
    if item is None:
        return lambda value: ["o"] if isinstance(value, Mapping) else plain(value)
    return lambda value: _mapping(value, item) if isinstance(value, Mapping) else plain(value)


def _of_items(item: Encoder | None, ordered: bool) -> Encoder:
    if item is plain and not ordered:
        return plain

    def encode(value: object) -> Tree:
        if not isinstance(value, SEQUENCES):
            return plain(value)
        return ["l"] if item is None else _sequence(value, item, ordered=ordered and not isinstance(value, _SETS))

    return encode


def _of_positions(items: Sequence[Encoder | None]) -> Encoder:
    """A tuple of fixed length: each position has its own meaning, like a field, so its order is kept."""

    def encode(value: object) -> Tree:
        if not isinstance(value, list | tuple) or len(value) != len(items):
            return plain(value)
        kept = [(item, part) for item, part in zip(items, value, strict=True) if item is not None]
        return ["o-l", *(item(part) for item, part in kept)]

    return encode
