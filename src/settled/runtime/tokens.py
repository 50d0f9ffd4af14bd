"""Tokens from a terminal: who may log into the console, and which programs may use the API.

A secret is printed once, by the command that makes it; the database has only its hash.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from settled.runtime import options
from settled.runtime.options import DatabaseUrl, Json, Limit, connect
from settled.runtime.output import print_json, print_page
from settled.runtime.working import span_of

if TYPE_CHECKING:
    from rich.table import Table

    from settled.state.tokens import Token

tokens = typer.Typer(help="Who may log into the console and use the API.", no_args_is_help=True)


@tokens.command("create")
def create(
    name: Annotated[str, typer.Option(callback=options.name, help="Of the person: what timelines say.")],
    role: Annotated[str, typer.Option(help="viewer, approver or operator; each may do what the ones before it may.")],
    as_role: Annotated[
        list[str] | None,
        typer.Option(callback=options.names, help="A role that policies ask for: supervisor; may be given again."),
    ] = None,
    tenant: Annotated[str, typer.Option(callback=options.reference, help="Whose actions it shows.")] = "default",
    expires_in: Annotated[str | None, typer.Option(metavar="30d", help="When it ends.", show_default="never")] = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Make a token, and print its secret: once, here."""
    from settled.state import tokens as operations
    from settled.state.errors import InvalidArguments
    from settled.state.tokens import Role

    try:
        wanted = Role.named(role)
    except InvalidArguments as error:
        raise typer.BadParameter(error.rule, param_hint="--role") from None
    secret = operations.new_secret()
    query = operations.create(
        secret,
        name=name,
        role=wanted,
        tenant=tenant,
        extra_roles=tuple(as_role or ()),
        good_for=span_of(expires_in, "--expires-in"),
    )
    with connect(database_url) as ledger:
        token = operations.on(ledger).run(query)
    if as_json:
        print_json({**record(token), "secret": secret})
    else:
        print(secret)
        print(f"{token.id}: {token.name}, {', '.join(token.roles)}, of tenant {token.tenant}. It is not shown again.")


@tokens.command("list")
def list_tokens(
    tenant: Annotated[str | None, typer.Option(callback=options.reference, help="Only this tenant's.")] = None,
    limit: Limit = 100,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List tokens, newest first; never their secrets."""
    from settled.state import tokens as operations

    with connect(database_url) as ledger:
        found = operations.on(ledger).run(operations.tokens(tenant, most=limit))
    if as_json:
        print_json([record(token) for token in found])
    elif found:
        print_page(_table(found))
    else:
        print("there are no tokens")


@tokens.command("revoke")
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", callback=options.reference, help="tok-…")],
    as_json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Take a token back; whoever is logged in with it is logged out."""
    from settled.state import tokens as operations
    from settled.state.errors import NotFound

    with connect(database_url) as ledger:
        token = operations.on(ledger).run(operations.revoke(token_id))
    if token is None:
        raise NotFound(f"there is no token {token_id}")
    if as_json:
        print_json(record(token))
    else:
        print(f"{token.id} ({token.name}) is revoked")


def record(token: "Token") -> dict[str, Any]:
    """Return a token as plain JSON, without its secret, which nobody has any more."""
    from settled.runtime.records import instant

    return {
        "token_id": token.id,
        "name": token.name,
        "role": token.role.label,
        "as_roles": list(token.extra_roles),
        "tenant": token.tenant,
        "standing": standing(token),
        "created_at": instant(token.created_at),
        "expires_at": instant(token.expires_at),
        "used_at": instant(token.used_at),
        "revoked_at": instant(token.revoked_at),
    }


def standing(token: "Token") -> str:
    """Return whether a token is good, in a word."""
    if token.revoked_at is not None:
        return "revoked"
    return "good" if token.is_good else "expired"


def _table(found: "list[Token]") -> "Table":
    from rich.table import Table

    from settled.runtime.tables import text
    from settled.runtime.words import instant

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("token", "name", "roles", "tenant", "standing", "until", "last login"):
        table.add_column(column, overflow="fold")
    for token in found:
        until = instant(token.expires_at) if token.expires_at else "without an end"
        used = instant(token.used_at) if token.used_at else "never"
        cells = [token.id, token.name, ", ".join(token.roles), token.tenant, standing(token), until, used]
        table.add_row(*map(text, cells))
    return table
