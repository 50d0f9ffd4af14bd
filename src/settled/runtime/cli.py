"""The command line: `settled`.

Owns the commands and the way errors are said: one line and exit code 1 (2 for a wrong use). Everything heavy is
imported by the command that needs it, so that `settled --help` is quick.
"""

import json
import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from settled.state.errors import NotFound, SettledError

if TYPE_CHECKING:
    from settled.state.store import Ledger

app = typer.Typer(name="settled", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
actions = typer.Typer(help="Read the ledger.", no_args_is_help=True)
db = typer.Typer(help="The ledger's database.", no_args_is_help=True)
app.add_typer(actions, name="actions")
app.add_typer(db, name="db")

DatabaseUrl: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar="SETTLED_DATABASE_URL", show_envvar=True, show_default=False, help="Default: the private Postgres."
    ),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Tenant: TypeAlias = Annotated[str, typer.Option(help="Whose actions.")]
MOST = 1000
"""Rows that one listing may ask for: more is not read by a person, and a program can narrow it."""


def main() -> None:
    """Run the command line; an error of ours is one line, never a traceback."""
    logging.getLogger().addHandler(logging.NullHandler())  # a pool that cannot connect would say so line after line
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except SettledError as error:
        print(f"settled: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:  # the reader had enough (| head); Python would flush once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"settled {version('settled')}")
        raise typer.Exit


@app.callback()
def settled(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Tool calls with side effects, made safe for LangGraph agents."""


@app.command()
def demo(
    scenario: Annotated[str | None, typer.Argument(help="Which; see --list.", show_default="lost-reply")] = None,
    as_json: Json = False,
    listed: Annotated[bool, typer.Option("--list", help="List the scenarios.")] = False,
    model: Annotated[str | None, typer.Option(help="A LangChain chat model, as provider:name.")] = None,
    language: Annotated[str, typer.Option(help="What the user speaks: en or zh.")] = "en",
    database_url: DatabaseUrl = None,
) -> None:
    """Break things on purpose, with real processes, and count the effects."""
    from settled.demo.scenarios import DEFAULT, SCENARIOS

    if listed:
        _list_scenarios(as_json)
        return
    if (wanted := scenario or DEFAULT) not in SCENARIOS:
        raise typer.BadParameter(f"there is no {wanted!r}; there are {', '.join(SCENARIOS)}", param_hint="SCENARIO")
    if language not in ("en", "zh"):
        raise typer.BadParameter("must be en or zh", param_hint="--language")
    from settled.demo import play, render

    story = play.play(SCENARIOS[wanted], _checked(database_url), language=language, model=model)
    if as_json:
        _print_json(render.document(story))
    else:
        _print(render.page(story))
    if not story.came_out:
        raise typer.Exit(1)


def _list_scenarios(as_json: bool) -> None:
    from settled.demo import render
    from settled.demo.scenarios import SCENARIOS

    if as_json:
        _print_json([{"scenario": one.name, "title": one.title} for one in SCENARIOS.values()])
    else:
        _print(render.contents())


@actions.command("list")
def list_actions(
    state: Annotated[list[str] | None, typer.Option(help="Only this state; may be given again.")] = None,
    thread: Annotated[str | None, typer.Option(help="Only this conversation.")] = None,
    tenant: Tenant = "default",
    limit: Annotated[int, typer.Option(min=1, max=MOST, help="How many, newest first.")] = 50,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List actions, newest first."""
    from settled.runtime.records import action_record
    from settled.runtime.tables import actions_page
    from settled.state import ledger as operations

    query = operations.actions(tenant, states=_states(state), thread_id=thread, most=limit)
    with _ledger(database_url) as ledger:
        found = ledger.run(query)
    if as_json:
        _print_json([action_record(one) for one in found])
    elif found:
        _print(actions_page(found, _width()))
    else:
        print("there are no such actions")


def _states(given: list[str] | None) -> list[str] | None:
    from settled.state.machine import State

    for state in given or []:
        if state not in set(State):
            raise typer.BadParameter(f"{state!r} is none of {', '.join(State)}", param_hint="--state")
    return given or None


@actions.command("show")
def show_action(
    action_id: Annotated[str, typer.Argument(metavar="ID", help="act-…")],
    tenant: Tenant = "default",
    as_json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Show one action with its timeline."""
    from settled.runtime.records import action_record, timeline_record
    from settled.runtime.tables import action_page
    from settled.state import ledger as operations

    with _ledger(database_url) as ledger:
        action = ledger.run(operations.load(tenant, action_id))
        if action is None:
            raise NotFound(f"tenant {tenant} has no action {action_id}")
        events = ledger.run(operations.timeline(tenant, action_id))
    if as_json:
        _print_json({**action_record(action), **timeline_record(action, events)})
    else:
        _print(action_page(action, events))


@db.command()
def migrate(database_url: DatabaseUrl = None) -> None:
    """Create or update the ledger's tables."""
    from settled.runtime.database import pending

    url = _url(database_url)
    todo = pending(url)
    with _ledger(url):  # opening it brings its tables up to date
        print("\n".join(f"applied {name}" for name in todo) or "nothing to do")


@db.command()
def sql() -> None:
    """Print the migrations as SQL."""
    from settled.state import migrations

    for migration in migrations.migrations():
        print(f"-- {migration.name}\n{migration.sql}")


@db.command()
def status(as_json: Json = False, database_url: DatabaseUrl = None) -> None:
    """Say which database it is, and whether its tables are those of this version. Changes nothing."""
    from settled.runtime.database import standing

    shown = standing(_checked(database_url))
    if as_json:
        _print_json(shown)
    else:
        print(f"database: {shown['database']}")
        for name in ("applied", "pending"):
            print(f"{name}: {', '.join(shown[name]) or 'none'}")


@db.command()
def stop() -> None:
    """Stop the private Postgres, whoever uses it. The data stays."""
    from settled.state import embedded

    print("stopped" if embedded.stop() else "it was not running")


def _url(database_url: str | None) -> str:
    from settled.state import embedded

    return _checked(database_url) or embedded.server()


def _checked(database_url: str | None) -> str | None:
    if database_url and "://" not in database_url and "=" not in database_url:
        raise typer.BadParameter("must look like postgresql://user@host/database", param_hint="--database-url")
    return database_url


def _ledger(database_url: str | None) -> "Ledger":
    from settled.state.store import Ledger

    return Ledger.connect(_checked(database_url))


def _print_json(value: object) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2, default=str))


def _print(page: Any) -> None:
    """Print a page: as it is on a terminal, without colours and trailing blanks elsewhere."""
    from settled.runtime.tables import console

    out = console()
    if out.is_terminal:
        out.print(page)
        return
    with out.capture() as captured:
        out.print(page)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _width() -> int:
    from settled.runtime.tables import console

    return console().width


if __name__ == "__main__":
    main()
