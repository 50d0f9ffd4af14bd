"""Forms as they arrive: bounded, of one's own making (CSRF), and with texts that can be written into a timeline.

A form's fields are texts; what they mean is judged by the desk. Bad input is InvalidArguments, naming field and rule.
"""

import hmac
from collections.abc import Mapping
from typing import Annotated

from fastapi import Depends, Request
from starlette.datastructures import UploadFile

from settled.runtime.options import MAX_NOTE_CHARS, is_inert
from settled.runtime.server.people import Person, csrf_token, signed_in
from settled.state.errors import InvalidArguments

MAX_FIELDS = 200
"""More than any tool has arguments: an edit has a field for each."""

Form = Mapping[str, str]


class Forged(Exception):
    """The form was not made by this server for this person, or is older than the login."""


async def posted(request: Request, person: Annotated[Person, Depends(signed_in)]) -> Form:
    """Return the fields of a form that this server made for who is signed in; Forged."""
    return await checked(request, person.csrf)


async def checked(request: Request, expected: str) -> Form:
    """Return the fields of a form (or of a script's request) that carries the expected token; Forged."""
    form = await request.form(max_files=0, max_fields=MAX_FIELDS)
    fields = {name: value for name, value in form.multi_items() if not isinstance(value, UploadFile)}
    given = fields.pop("csrf", None) or request.headers.get("x-csrf-token", "")
    if not hmac.compare_digest(given.encode(), expected.encode()):
        raise Forged
    return fields


def visitor_token(visit: str) -> str:
    """Return what the login form carries, for whoever is not signed in yet."""
    return csrf_token(f"visit {visit}")


def note_of(form: Form, field: str = "note") -> str | None:
    """Return a note as one line; None where there is none. InvalidArguments for one that cannot be shown."""
    text = " ".join(form.get(field, "").split())
    if len(text) > MAX_NOTE_CHARS or not is_inert(text):
        raise InvalidArguments(field, f"must be at most {MAX_NOTE_CHARS} printable characters")
    return text or None


def needed(form: Form, field: str) -> str:
    """Return a field that the form must have; InvalidArguments."""
    value = form.get(field, "").strip()
    if not value:
        raise InvalidArguments(field, "is needed")
    return value
