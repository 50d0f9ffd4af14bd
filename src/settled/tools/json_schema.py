"""A pydantic model for arguments that are described by a JSON schema, as the tools of an MCP server are.

Owns the reading of a schema as types, so that such arguments have a canonical form: numbers by value, defaults filled
in, objects by their fields. What it does not know (a pattern, a bound, `not`, …) it leaves to the far side, which holds
the schema too. The subtle thing: an argument that was left out and has no default stays left out; a null in its place
could empty what it names.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializationInfo,
    TypeAdapter,
    ValidationError,
    create_model,
    model_serializer,
)

from settled.state.canonical import Ordered
from settled.state.errors import ContractError
from settled.tools.arguments import LEFT_OUT, LeftOut

Schema = Mapping[str, Any]

MAX_NESTING = 32
"""Objects within objects that are read as types; below that anything goes. Half of what arguments may be nested."""

MAX_PARTS = 5_000
"""Of one schema: references can make a small one very large, and it comes from somebody else. Beyond, anything goes."""


class Described(BaseModel):
    """Arguments, or an object in them. What was left out is not written."""

    @model_serializer(mode="plain")
    def _given(self, info: SerializationInfo) -> dict[str, Any]:
        written: dict[str, Any] = dict(self.__pydantic_extra__ or {})
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if not isinstance(value, LeftOut) and name not in (info.exclude or ()):
                written[(field.alias or name) if info.by_alias else name] = value
        return written


def model_of(schema: Schema, name: str, without: Collection[str] = ()) -> type[BaseModel]:
    """Return the model of a tool's arguments. A property whose name Python cannot hold is a field's alias.

    Raises ContractError for a schema that does not name its arguments.
    """
    resolved = _resolved(schema, schema)
    is_open = bool(resolved.get("additionalProperties")) or any(key in resolved for key in ("anyOf", "oneOf", "allOf"))
    if resolved.get("type", "object") != "object" or (not _properties(resolved) and is_open):
        raise ContractError(
            f"{name}: its schema does not name its arguments: an action needs properties to tell calls by"
        )
    properties = {key: value for key, value in _properties(resolved).items() if key not in without}
    return _Reader(schema, name).model({**resolved, "properties": properties, "additionalProperties": False}, ())


class _Reader:
    """Reads the parts of one schema; `path` is the references it came through, so that a schema may hold itself."""

    def __init__(self, root: Schema, name: str) -> None:
        self._root = root
        self._name = name
        self._parts = 0

    def model(self, schema: Schema, path: tuple[str, ...]) -> type[BaseModel]:
        required = schema.get("required")
        fields: dict[str, Any] = {}
        properties = _properties(schema)
        for key, part in properties.items():
            name = _python_name(key, {*fields, *properties})
            is_required = isinstance(required, list) and key in required
            fields[name] = self._field(part, None if name == key else key, is_required, path)
        extra: Literal["allow", "forbid"] = "forbid" if schema.get("additionalProperties") is False else "allow"
        config = ConfigDict(extra=extra, populate_by_name=True, allow_inf_nan=False, protected_namespaces=())
        options: dict[str, Any] = {"__base__": Described, "__cls_kwargs__": dict(config), **fields}
        return create_model(self._name, **options)

    def _field(self, schema: Any, alias: str | None, is_required: bool, path: tuple[str, ...]) -> tuple[Any, Any]:
        annotation = self.annotation(schema, path)
        if is_required:
            return annotation, Field(alias=alias)
        return annotation, Field(default=_default(schema, annotation), alias=alias)

    def annotation(self, schema: Any, path: tuple[str, ...] = ()) -> Any:
        """Return the type of a value; Any for what cannot be said as one."""
        self._parts += 1
        if not isinstance(schema, Mapping) or len(path) >= MAX_NESTING or self._parts > MAX_PARTS:
            return Any
        if isinstance(reference := schema.get("$ref"), str):
            found = _at(self._root, reference)
            return Any if reference in path else self.annotation(found, (*path, reference))
        found = self._by_words(schema, path)
        return found | None if schema.get("nullable") is True and found is not Any else found

    def _by_words(self, schema: Schema, path: tuple[str, ...]) -> Any:
        if "const" in schema:
            return _one_of([schema["const"]])
        if isinstance(values := schema.get("enum"), list):
            return _one_of(values)
        for word in ("anyOf", "oneOf", "allOf"):
            if isinstance(parts := schema.get(word), list) and parts and (word != "allOf" or len(parts) == 1):
                return self._any_of(parts, path)
        kinds = schema.get("type") or ("object" if "properties" in schema else None)
        if isinstance(kinds, list):
            return self._any_of([{**schema, "type": kind} for kind in kinds], path)
        return self._kind(kinds, schema, (*path, ""))

    def _any_of(self, parts: Sequence[Any], path: tuple[str, ...]) -> Any:
        found = [self.annotation(part, (*path, "")) for part in parts]
        return Any if Any in found or not found else reduce(or_, found)

    def _kind(self, kind: object, schema: Schema, path: tuple[str, ...]) -> Any:
        match kind:
            case "string":
                bounds = [f"{word} {schema[word]}" for word in ("pattern", "format", "maxLength") if word in schema]
                return Annotated[str, *bounds] if bounds else str
            case "integer":
                return Annotated[int, BeforeValidator(_number)]
            case "number":
                return Annotated[int | float, BeforeValidator(_number)]
            case "boolean":
                return bool
            case "null":
                return type(None)
            case "array" if "prefixItems" in schema or isinstance(schema.get("items"), list):
                return Annotated[list[Any], Ordered()]  # each place has a meaning of its own
            case "array":
                return list[self.annotation(schema.get("items"), path)]  # type: ignore[misc]
            case "object" if _properties(schema):
                return self.model(schema, path)
            case "object":
                return dict[str, self.annotation(schema.get("additionalProperties"), path)]  # type: ignore[misc]
            case _:
                return Any


def _default(schema: Any, annotation: Any) -> Any:
    """Return a declared default. One that the type refuses (null for a text) says that it may be left out."""
    if not isinstance(schema, Mapping) or "default" not in schema:
        return LEFT_OUT
    try:
        return TypeAdapter(annotation).validate_python(schema["default"])
    except ValidationError:
        return LEFT_OUT


def _one_of(values: Sequence[Any]) -> Any:
    plain = all(isinstance(value, str | bool | int | None) for value in values)
    return Literal[tuple(values)] if values and plain else Any


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a boolean is not a number")
    return value


def _python_name(key: str, taken: Collection[str]) -> str:
    """Return a name that a pydantic field may have: not one of a model's own, and without a leading underscore."""
    if not (key.startswith("_") or hasattr(Described, key)):
        return key
    name = f"arg_{key.lstrip('_')}"
    while name in taken:
        name += "_"
    return name


def _properties(schema: Schema) -> Schema:
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def _resolved(schema: Any, root: Schema) -> Schema:
    for _ in range(MAX_NESTING):
        if not isinstance(schema, Mapping):
            return {}
        if not isinstance(reference := schema.get("$ref"), str):
            return schema
        schema = _at(root, reference)
    return {}


def _at(root: Schema, reference: str) -> Any:
    """Return what a reference within the same document names; None where there is nothing."""
    found: Any = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) and step else found
    return found if reference.startswith("#") else None
