"""An edit as a form: each stored argument a field, and the fields that were changed as new values.

Pure. Whether a field holds text or JSON follows from the stored value, in both directions, and never from what is
typed: the text "0100" stays a text. What is not changed is not sent, so that nothing is rewritten by being shown.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from settled.runtime.desk_pages import visible
from settled.runtime.plain_json import parsed
from settled.runtime.server.forms import Form
from settled.runtime.server.wording import inert
from settled.state.errors import InvalidArguments
from settled.state.secrets import is_sealed

MAX_EDITED_CHARS = 5000
"""More of one value is not edited in a browser, and would make the page large."""

PREFIX = "arg."
Kind = Literal["text", "json", "secret", "long"]


@dataclass(frozen=True)
class Field:
    """One argument in the form. `size` is how long the value is, where it is too long to be edited."""

    name: str
    kind: Kind
    text: str
    size: int = 0

    @property
    def rows(self) -> int:
        """Lines that the text takes, about, and not too many."""
        return min(1 + self.text.count("\n") + len(self.text) // 60, 12)


def fields_of(arguments: Mapping[str, object], typed: Form | None = None) -> list[Field]:
    """Return the fields of the form, with what was typed where it comes back."""
    fields = [_field(name, value) for name, value in arguments.items()]
    if typed is None:
        return fields
    return [Field(one.name, one.kind, _typed(typed, one, one.text), one.size) for one in fields]


def _typed(form: Form, field: Field, otherwise: str) -> str:
    return form.get(PREFIX + field.name, otherwise) if field.kind in ("text", "json") else otherwise


def _field(name: str, value: object) -> Field:
    if is_sealed(value):
        return Field(name, "secret", "")
    kind: Kind = "text" if isinstance(value, str) and inert(value) == value and "\r" not in value else "json"
    text = str(value) if kind == "text" else visible(value)
    return Field(name, kind, text) if len(text) <= MAX_EDITED_CHARS else Field(name, "long", "", len(text))


def changes(arguments: Mapping[str, object], form: Form) -> dict[str, object]:
    """Return the arguments that were changed, by name; InvalidArguments where that is nothing, or no JSON."""
    found: dict[str, object] = {}
    for field in fields_of(arguments):
        given = form.get(PREFIX + field.name)
        if given is None or field.kind == "long":
            continue
        text = given.replace("\r\n", "\n")
        if text == field.text:
            continue
        found[field.name] = _json(field.name, text) if field.kind == "json" else text
    if not found:
        raise InvalidArguments("arguments", "are the same as before: approve it, or change something")
    return found


def _json(name: str, text: str) -> object:
    try:
        return parsed(text)
    except ValueError:
        raise InvalidArguments(name, 'must be JSON: 118.5, "text", true, null, [1, 2]') from None
