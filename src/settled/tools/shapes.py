"""The arguments of a tool that exists already: as its action validates and stores them, and as the tool takes them.

Owns the way from a LangChain tool's schema (a pydantic model, a JSON schema, an inferred one) to a model for the
contract, and the way back from stored values to the tool's own input. The subtle thing: what LangGraph injects, and the
idempotency key where a tool takes one, are the tool's arguments but never the action's.
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, get_type_hints

from langchain_core.tools import BaseTool, StructuredTool, Tool
from pydantic import AliasChoices, BaseModel, ConfigDict, create_model
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from settled.state.canonical import Marker
from settled.state.errors import ContractError
from settled.tools.arguments import REPEAT_DESCRIPTION, REPEAT_OF, LeftOut
from settled.tools.injected import kind_of, marker_of
from settled.tools.json_schema import model_of


@dataclass(frozen=True)
class Shape:
    """`model` is for the contract; `shown` is the JSON schema that a language model sees, where the tool has one of
    its own; `keys` are the names by which the tool takes the model's fields; `injected` is what it takes from a graph.
    """

    model: type[BaseModel]
    keys: Mapping[str, str]
    shown: dict[str, Any] | None = None
    injected: Mapping[str, inspect.Parameter] = field(default_factory=dict)

    @property
    def call_id(self) -> str | None:
        """The parameter for the id of the tool call, where there is one."""
        named = (
            name for name, parameter in self.injected.items() if _kind(parameter.annotation) == "InjectedToolCallId"
        )
        return next(named, None)

    @property
    def shown_with_repeat(self) -> dict[str, Any]:
        """The JSON schema of a write, which may be repeated deliberately."""
        repeat = {"description": REPEAT_DESCRIPTION, "anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
        shown = self.shown or {}
        return {**shown, "properties": {**shown.get("properties", {}), REPEAT_OF: repeat}}

    def input_of(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tool's own input: without what was left out, and as plain JSON where it asks for that."""
        given = {k: v for k, v in values.items() if k not in self.injected and not isinstance(v, LeftOut)}
        named = {self.keys.get(name, name): value for name, value in given.items()}
        plain: dict[str, Any] = named if self.shown is None else to_jsonable_python(named, by_alias=True)
        injected = {name: values[name] for name in self.injected if name in values and name != self.call_id}
        return {**plain, **injected}


def shape_of(tool: BaseTool, markers: Mapping[str, Marker | Sequence[Marker]], key_argument: str | None) -> Shape:
    """Return the arguments of a tool; ContractError where its schema does not name them, or has no `key_argument`."""
    shape = _shape(tool, frozenset() if key_argument is None else frozenset({key_argument}))
    if unknown := [name for name in markers if name not in shape.model.model_fields]:
        known = sorted(shape.model.model_fields)
        raise ContractError(f"{tool.name}: markers name {unknown}, which is not an argument; it takes {known}")
    if not markers:
        return shape
    marked = {name: _marked(shape.model.model_fields[name], marker) for name, marker in markers.items()}
    options: dict[str, Any] = {"__base__": shape.model, **marked}
    return replace(shape, model=create_model(tool.name, **options))


def _shape(tool: BaseTool, hidden: frozenset[str]) -> Shape:
    if isinstance(tool, Tool) and tool.args_schema is None:  # one text, whatever its function calls it
        only: dict[str, Any] = {"tool_input": (str, ...)}
        _check_hidden(tool, hidden, only)
        return Shape(create_model(tool.name, **only), {"tool_input": "tool_input"})
    schema: Any = tool.args_schema if tool.args_schema is not None else tool.get_input_schema()
    if isinstance(schema, Mapping):
        return _of_json(tool, dict(schema), hidden)
    if not issubclass(schema, BaseModel):  # pydantic's first version, which says the same in JSON
        return _of_json(tool, schema.schema(), hidden)
    return _of_model(tool, schema, hidden)


def _of_json(tool: BaseTool, schema: dict[str, Any], hidden: frozenset[str]) -> Shape:
    properties = schema.get("properties") or {}
    _check_hidden(tool, hidden, properties)
    injected = _injected(tool, {})
    hidden |= injected.keys()
    model = model_of(schema, tool.name, without=hidden)
    shown = {
        **schema,
        "properties": {name: part for name, part in properties.items() if name not in hidden},
        "required": [name for name in schema.get("required") or () if name not in hidden],
    }
    keys = {name: info.alias or name for name, info in model.model_fields.items()}
    return Shape(model, keys, shown, injected)


def _of_model(tool: BaseTool, given: type[BaseModel], hidden: frozenset[str]) -> Shape:
    _check_hidden(tool, hidden, given.model_fields)
    injected = _injected(tool, given.model_fields)
    rest = {parameter.name for parameter in _parameters(tool) if parameter.kind in _REST}
    kept = [name for name in given.model_fields if name not in {*injected, *rest, *hidden}]
    if rest & given.model_fields.keys() and not kept:
        raise ContractError(
            f"{tool.name}: its schema does not name its arguments: give the tool an args_schema that does"
        )
    model = given if len(kept) == len(given.model_fields) else _only(given, kept, tool.name)
    return Shape(model, {name: _key(given, name) for name in kept}, injected=injected)


_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
"""`*args` and `**kwargs`, which LangChain lists among the fields of a schema that it makes from a signature."""


def _function(tool: BaseTool) -> Callable[..., Any] | None:
    return (tool.func or tool.coroutine) if isinstance(tool, StructuredTool | Tool) else tool._run


def _parameters(tool: BaseTool) -> list[inspect.Parameter]:
    function = _function(tool)
    return [] if function is None else list(inspect.signature(function).parameters.values())


def _injected(tool: BaseTool, fields: Mapping[str, FieldInfo]) -> dict[str, inspect.Parameter]:
    """Return what a tool has injected: among its fields, or in its function alone. What nobody here knows how to give
    is left out where the tool does without it.
    """
    hints = {name: _annotated(info.annotation, info.metadata) for name, info in fields.items()} | _hints(tool)
    defaults = {name: info.default for name, info in fields.items() if not info.is_required()}
    defaults |= {parameter.name: parameter.default for parameter in _parameters(tool)}
    return {
        name: inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=defaults.get(name, inspect.Parameter.empty)
        )
        for name, hint in hints.items()
        if marker_of(hint) is not None
        and (_kind(hint) is not None or defaults.get(name, inspect.Parameter.empty) is inspect.Parameter.empty)
    }


def _hints(tool: BaseTool) -> dict[str, Any]:
    try:
        hints = get_type_hints(_function(tool), include_extras=True)
    except (NameError, TypeError, AttributeError):  # LangChain does without them too
        return {}
    return {name: hint for name, hint in hints.items() if name != "return"}


def _kind(hint: object) -> str | None:
    return kind_of(marker_of(hint))


def _check_hidden(tool: BaseTool, hidden: frozenset[str], known: Mapping[str, Any]) -> None:
    for name in hidden - known.keys():
        raise ContractError(f"{tool.name}: key_argument={name!r} is not an argument; it takes {sorted(known)}")


def _only(given: type[BaseModel], names: Sequence[str], title: str) -> type[BaseModel]:
    """Return a model with some of the fields. Its validators stay behind (they may want the others): the tool itself
    has them still.
    """
    fields: dict[str, Any] = {
        name: (given.model_fields[name].annotation, copy.copy(given.model_fields[name])) for name in names
    }
    config: ConfigDict = given.model_config
    return create_model(title, __config__=config, **fields)


def _marked(info: FieldInfo, given: Marker | Sequence[Marker]) -> tuple[Any, FieldInfo]:
    markers = given if isinstance(given, Sequence) else [given]
    unmarked = copy.copy(info)
    unmarked.metadata = []
    return _annotated(info.annotation, [*info.metadata, *markers]), unmarked


def _annotated(annotation: Any, metadata: Sequence[object]) -> Any:
    for part in metadata:
        annotation = Annotated[annotation, part]
    return annotation


def _key(given: type[BaseModel], name: str) -> str:
    """Return the name by which a tool's own model takes a field."""
    if given.model_config.get("populate_by_name") or given.model_config.get("validate_by_name"):
        return name
    info = given.model_fields[name]
    alias = info.validation_alias or info.alias
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    return next((choice for choice in choices if isinstance(choice, str)), name)
