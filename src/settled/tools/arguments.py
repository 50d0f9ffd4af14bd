"""The arguments of a tool: from what a caller sent to the validated value that is stored, hashed and carried out.

Owns the schema made from a function's signature, validation, and the stored JSON form (secrets sealed). The subtle
thing: what runs is always read back from the stored form, so that a first run, a retry after a crash and a replay
carry out the same value.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError

from settled.state.canonical import Secret, check_arguments, differing, marked
from settled.state.errors import ContractError, InvalidArguments
from settled.state.input_limits import MAX_ARGUMENT_BYTES
from settled.state.secrets import UnreadableSecret, Vault, is_sealed
from settled.tools.injected import injected_of

_JSON = (str, int, float, Mapping, list, tuple, type(None))
"""What a model can send; a script may also pass a Decimal, a datetime …, which the schema alone judges."""

REPEAT_OF = "repeat_of"
REPEAT_DESCRIPTION = (
    "Leave out. Only when the user explicitly wants the same thing done once more although it was done already: "
    "the id of the earlier action. A person will be asked."
)
_REPEAT_HINT = Annotated[str | None, Field(description=REPEAT_DESCRIPTION)]

STRICT = ConfigDict(extra="forbid", populate_by_name=True, allow_inf_nan=False, arbitrary_types_allowed=False)
"""What every schema of an action refuses: arguments it does not know, and values that have no stored form."""


@dataclass(frozen=True)
class LeftOut:
    """The value of an argument that was not given and has no default (a JSON schema may have such). It is told apart
    from null: one leaves a thing as it is, the other may empty it.
    """

    left_out: bool = True

    def __str__(self) -> str:
        return "(left out)"


LEFT_OUT = LeftOut()


def schema_of(function: Callable[..., object], name: str, *, repeatable: bool) -> type[BaseModel]:
    """Return the pydantic model of a function's parameters, without those that are injected; `repeatable` adds the
    optional `repeat_of`.
    """
    injected = injected_of(function, name)
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ContractError(f"{name}: *{parameter.name} cannot be an argument of an action: name each argument")
        if parameter.name in injected:
            continue
        if parameter.name == REPEAT_OF:
            raise ContractError(f"{name}: repeat_of is added by itself; leave it out of the signature")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints.get(parameter.name, Any), default)
    if repeatable:
        fields[REPEAT_OF] = (_REPEAT_HINT, None)
    try:
        return create_model(name, __config__=STRICT, **fields)
    except Exception as error:  # pydantic has many errors for a type that it cannot hold; all mean the same here
        raise ContractError(f"{name}: its arguments cannot be described: {error}") from error


def schema_for(
    function: Callable[..., object], given: type[BaseModel] | None, name: str, *, repeatable: bool
) -> type[BaseModel]:
    """Return the model of a function's arguments: the one that its author gives, or else that of its parameters."""
    if given is None:
        return schema_of(function, name, repeatable=repeatable)
    try:
        inspect.signature(function).bind(**dict.fromkeys([*given.model_fields, *injected_of(function, name)]))
    except TypeError as error:
        raise ContractError(f"{name}: the function does not take what args_schema describes: {error}") from error
    return _extended(given, name, repeatable=repeatable)


def _extended(given: type[BaseModel], name: str, *, repeatable: bool) -> type[BaseModel]:
    """Return a model that an author brought, with its validators, and as strict as one made from a signature."""
    if REPEAT_OF in given.model_fields and repeatable:
        raise ContractError(f"{name}: repeat_of is added by itself; leave it out of the arguments")
    fields: dict[str, Any] = {REPEAT_OF: (_REPEAT_HINT, None)} if repeatable else {}
    options: dict[str, Any] = {"__base__": given, "__cls_kwargs__": dict(STRICT)}
    try:
        return create_model(name, **options, **fields)
    except Exception as error:  # as in schema_of
        raise ContractError(f"{name}: its arguments cannot be described: {error}") from error


def annotations_of(schema: type[BaseModel]) -> dict[str, Any]:
    """Return each field's annotation with its markers, without `repeat_of`."""
    return {
        name: Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        for name, field in schema.model_fields.items()
        if name != REPEAT_OF
    }


def validate(schema: type[BaseModel], sent: Mapping[str, object] | Sequence[object]) -> BaseModel:
    """Return the validated arguments; InvalidArguments names the first field that breaks a rule.

    `sent` is a mapping by field name or alias, or the values in the order of the fields.
    """
    named = sent if isinstance(sent, Mapping) else _by_position(schema, sent)
    check_arguments({name: value for name, value in named.items() if isinstance(value, _JSON)})
    try:
        model = schema.model_validate(dict(named))
    except ValidationError as error:
        raise _first_rule(error) from None
    except RecursionError:
        raise InvalidArguments("arguments", "are nested too deeply") from None
    for field, value in _given(schema, named):
        if isinstance(value, bool) and not isinstance(getattr(model, field), bool | str | None):
            raise InvalidArguments(field, "a boolean is not a number")
    return model


def plain_json(model: BaseModel) -> str:
    """Return validated values by field name as JSON text; InvalidArguments where they have none, or too much of it."""
    try:
        plain = model.model_dump_json(exclude={REPEAT_OF})
    except (PydanticSerializationError, UnicodeError) as error:
        raise InvalidArguments("arguments", f"cannot be written as JSON ({type(error).__name__})") from error
    if len(plain) > MAX_ARGUMENT_BYTES:
        raise InvalidArguments("arguments", f"must not take more than {MAX_ARGUMENT_BYTES} bytes as JSON")
    return plain


def sealed_json(plain: str, secrets: frozenset[str], vault: Vault) -> str:
    """Return the JSON text that the ledger keeps: the plain one with its secrets sealed."""
    if not secrets:
        return plain
    values = json.loads(plain)
    sealed = {name: vault.seal(json.dumps(value)) if name in secrets else value for name, value in values.items()}
    return json.dumps(sealed, ensure_ascii=False)


def check_read_back(model: BaseModel, plain: str, annotations: Mapping[str, Any]) -> None:
    """Refuse a tool whose arguments do not come back from their stored form as what was hashed; ContractError names
    them.

    What runs is read from the store: a validator that changes a value each time would change it twice there (5 becomes
    500, and 50000 is sent), and a type that hides its value (SecretStr) would send its stars.
    """
    try:
        kept = type(model).model_validate(json.loads(plain))
        if kept == model:
            return
        changed = list(differing(values_of(model), values_of(kept), annotations))
    except ValidationError as error:
        changed = [_first_rule(error).field]
    if changed:
        raise ContractError(
            f"{type(model).__name__}: {', '.join(changed)} cannot be stored and read back as it was validated: declare "
            "a plain type whose validators leave a valid value alone (for a secret: Annotated[str, Secret()])"
        )


def restore(
    schema: type[BaseModel], stored: Mapping[str, object], secrets: frozenset[str], vault: Vault
) -> dict[str, object]:
    """Return the values to carry out, by field name, from the stored JSON; InvalidArguments when the tool has changed
    since, or a secret cannot be read.
    """
    plain = {name: _opened(name, value, vault) if name in secrets else value for name, value in stored.items()}
    try:
        model = schema.model_validate(plain)
    except ValidationError as error:
        raise _first_rule(error) from None
    return values_of(model)


def _opened(name: str, value: object, vault: Vault) -> object:
    if not is_sealed(value):  # stored before the field was marked as a secret
        return value
    try:
        return json.loads(vault.open(value))
    except UnreadableSecret as error:
        raise InvalidArguments(name, str(error)) from error


def values_of(model: BaseModel) -> dict[str, object]:
    """Return a validated model's values by field name, without `repeat_of`."""
    return {name: getattr(model, name) for name in type(model).model_fields if name != REPEAT_OF}


def secret_fields(annotations: Mapping[str, Any]) -> frozenset[str]:
    """Return the fields that are marked Secret()."""
    return frozenset(name for name, hint in annotations.items() if marked(hint, Secret))


def _by_position(schema: type[BaseModel], sent: Sequence[object]) -> dict[str, object]:
    names = [name for name in schema.model_fields if name != REPEAT_OF]
    if isinstance(sent, str | bytes) or not isinstance(sent, Sequence):
        raise InvalidArguments("arguments", "must be a mapping, or the values in order")
    if len(sent) > len(names):
        raise InvalidArguments("arguments", f"are {len(sent)}, but the tool takes {len(names)}")
    return dict(zip(names, sent, strict=False))


def _given(schema: type[BaseModel], named: Mapping[str, object]) -> list[tuple[str, object]]:
    known = {key: name for name, field in schema.model_fields.items() for key in (*_aliases(field), name)}
    return [(known[key], value) for key, value in named.items() if key in known]


def _aliases(field: FieldInfo) -> list[str]:
    choices = field.validation_alias.choices if isinstance(field.validation_alias, AliasChoices) else []
    return [key for key in (field.alias, field.validation_alias, *choices) if isinstance(key, str)]


def _first_rule(error: ValidationError) -> InvalidArguments:
    first = error.errors(include_url=False, include_input=False)[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    rule = "is not an argument of this tool" if first["type"] == "extra_forbidden" else first["msg"]
    return InvalidArguments(path or "arguments", rule)
