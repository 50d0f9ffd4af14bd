"""What the commands have in common: their options, and the rules of what is typed.

Knows nothing heavy, since every command imports it. The rules keep a name or a note that is typed here inert
wherever it is shown later; the ledger checks them once more.
"""

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from settled.state.store import Ledger

MOST = 1000
"""Rows that one listing may ask for: more is not read by a person, and a program can narrow it."""

MAX_NAME_CHARS = 200
"""As `settled.tools.decisions` bounds the name of a person."""

MAX_NOTE_CHARS = 2000
"""As the ledger bounds a reason: more of a note would be cut."""


def connect(database_url: str | None) -> "Ledger":
    """Open the ledger: at a URL, else the private one."""
    from settled.state.store import Ledger

    return Ledger.connect(checked_url(database_url))


def checked_url(database_url: str | None) -> str | None:
    """Return the URL as it was given; a wrong use if it cannot be one."""
    if database_url and "://" not in database_url and "=" not in database_url:
        raise typer.BadParameter("must look like postgresql://user@host/database", param_hint="--database-url")
    return database_url


def name(value: str) -> str:
    """Return a person's name or role as it is written down, without blanks around it."""
    stripped = value.strip()
    if not stripped:
        raise typer.BadParameter("must not be blank")
    if len(stripped) > MAX_NAME_CHARS or not stripped.isprintable():
        raise typer.BadParameter(f"must be at most {MAX_NAME_CHARS} printable characters")
    return stripped


def names(values: list[str] | None) -> list[str]:
    """Return several names, each once."""
    return list(dict.fromkeys(name(value) for value in values or []))


def note(value: str | None) -> str | None:
    """Return a note (or a receipt) as it is written down."""
    if value is None:
        return None
    if not value.strip():
        raise typer.BadParameter("must not be blank")
    if len(value) > MAX_NOTE_CHARS or not is_inert(value):
        raise typer.BadParameter(f"must be one line of at most {MAX_NOTE_CHARS} printable characters")
    return value.strip()


def is_inert(value: str) -> bool:
    """Whether a text can be shown as it is: nothing in it moves a terminal, or reads other than it is stored."""
    from settled.tools.outcome import plain

    return plain(value) == value


def settings(values: list[str]) -> list[str]:
    """Return `name=JSON` settings as they were given."""
    if not all(map(is_inert, values)):
        raise typer.BadParameter("must be printable characters; JSON has escapes for the others")
    return values


def reference(value: str | None) -> str | None:
    """Return an id, a tenant or a thread that is looked for."""
    if value is not None and not value.isprintable():
        raise typer.BadParameter("must be printable characters")
    return value


LEAST_DIGITS, ALL_DIGITS = 12, 64
"""Of a fingerprint: as few as `settled.tools.decisions` takes, and all of them."""


def fingerprint(value: str | None) -> str | None:
    """Return a fingerprint, or enough of its beginning; a wrong use if it cannot be one."""
    if value is None:
        return None
    digits = value.strip().lower().removeprefix("sha256:")
    if not LEAST_DIGITS <= len(digits) <= ALL_DIGITS or not set(digits) <= set("0123456789abcdef"):
        raise typer.BadParameter(
            f"must be sha256: and {LEAST_DIGITS} to {ALL_DIGITS} hexadecimal digits, as it was shown"
        )
    return f"sha256:{digits}"


DatabaseUrl: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar="SETTLED_DATABASE_URL", show_envvar=True, show_default=False, help="Default: the private Postgres."
    ),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Tenant: TypeAlias = Annotated[str, typer.Option(callback=reference, help="Whose actions.")]
Thread: TypeAlias = Annotated[str | None, typer.Option(callback=reference, help="Only this conversation.")]
LogJson: TypeAlias = Annotated[
    bool, typer.Option("--log-json", help="Log lines of JSON that name the action they are about.")
]
Limit: TypeAlias = Annotated[int, typer.Option(min=1, max=MOST, help="How many, newest first.")]
ActionId: TypeAlias = Annotated[str, typer.Argument(metavar="ID", callback=reference, help="act-…")]
By: TypeAlias = Annotated[str, typer.Option(callback=name, show_default=False, help="Who decides: your name.")]
Roles: TypeAlias = Annotated[
    list[str] | None, typer.Option("--role", callback=names, help="A role of yours; may be given again.")
]
Note: TypeAlias = Annotated[str | None, typer.Option(callback=note, help="Why, for whoever reads the timeline.")]
Fingerprint: TypeAlias = Annotated[
    str | None,
    typer.Option(callback=fingerprint, help="What you were shown. Without it: print what will follow, and do nothing."),
]
Tools: TypeAlias = Annotated[
    str, typer.Option(show_default=False, help="Where the tool is: module, or module:name of a tool or a list of them.")
]
