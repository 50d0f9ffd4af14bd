"""The command line: `settled`.

Owns the commands and the way errors are said: one line and exit code 1 (2 for a wrong use). Everything heavy is
imported by the command that needs it, so that `settled --help` is quick.
"""

import logging
import os
import sys
from typing import Annotated

import typer

from settled.runtime.chain_commands import chains
from settled.runtime.check import check
from settled.runtime.decisions import decisions
from settled.runtime.options import ActionId, DatabaseUrl, Json, Limit, Tenant, Thread, checked_url, connect
from settled.runtime.outbox_commands import outbox
from settled.runtime.output import print_json, print_page, width
from settled.runtime.serve import serve
from settled.runtime.tokens import tokens
from settled.runtime.working import purge, worker
from settled.state.errors import NotFound, SettledError

app = typer.Typer(name="settled", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
actions = typer.Typer(help="Read the ledger, and decide what waits for a person.", no_args_is_help=True)
db = typer.Typer(help="The ledger's database.", no_args_is_help=True)
app.add_typer(actions, name="actions")
app.add_typer(chains, name="chains")
app.add_typer(outbox, name="outbox")
app.add_typer(db, name="db")

WrongUse: type[typer.BadParameter] = typer.BadParameter.__mro__[2]
"""What typer raises for a command that it does not understand: ClickException, of click or of its own copy of it."""


def main() -> None:
    """Run the command line; an error of ours, or a wrong use, is one line, never a traceback."""
    logging.getLogger().addHandler(logging.NullHandler())  # a pool that cannot connect would say so line after line
    try:
        try:
            sys.exit(app(standalone_mode=False))
        finally:
            sys.stdout.flush()
    except WrongUse as error:
        _say(error.format_message())
        sys.exit(error.exit_code)
    except SettledError as error:
        _say(str(error))
        sys.exit(1)
    except typer.Abort:  # Ctrl-C, in older versions of typer
        sys.exit(130)
    except BrokenPipeError:  # the reader had enough (| head); Python would flush once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _say(sentence: str) -> None:
    """Print an error as one line; an empty one has been said already (a command without its name prints its help)."""
    from settled.tools.outcome import one_line

    if sentence:
        print(f"settled: {one_line(sentence, MAX_ERROR_CHARS)}", file=sys.stderr)


MAX_ERROR_CHARS = 2000
"""An error names a field and a rule; a value that somebody sent does not make it a page."""


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

    story = play.play(SCENARIOS[wanted], checked_url(database_url), language=language, model=model)
    if as_json:
        print_json(render.document(story))
    else:
        print_page(render.page(story))
    if not story.came_out:
        raise typer.Exit(1)


def _list_scenarios(as_json: bool) -> None:
    from settled.demo import render
    from settled.demo.scenarios import SCENARIOS

    if as_json:
        print_json([{"scenario": one.name, "title": one.title} for one in SCENARIOS.values()])
    else:
        print_page(render.contents())


@actions.command("list")
def list_actions(
    state: Annotated[list[str] | None, typer.Option(help="Only this state; may be given again.")] = None,
    thread: Thread = None,
    tenant: Tenant = "default",
    limit: Limit = 50,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List actions, newest first."""
    from settled.runtime.records import action_record
    from settled.runtime.tables import actions_page
    from settled.state import ledger as operations

    query = operations.actions(tenant, states=_states(state), thread_id=thread, most=limit)
    with connect(database_url) as ledger:
        found = ledger.run(query)
    if as_json:
        print_json([action_record(one) for one in found])
    elif found:
        print_page(actions_page(found, width()))
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
    action_id: ActionId,
    tenant: Tenant = "default",
    as_json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Show one action with its timeline."""
    from settled.runtime.records import history_record
    from settled.runtime.tables import action_page
    from settled.state import ledger as operations

    with connect(database_url) as ledger:
        action = ledger.run(operations.load(tenant, action_id))
        if action is None:
            raise NotFound(f"tenant {tenant} has no action {action_id}")
        events = ledger.run(operations.timeline(tenant, action_id))
        tickets = ledger.run(operations.approvals_of(tenant, action_id))
    if as_json:
        print_json(history_record(action, events, tickets))
    else:
        print_page(action_page(action, events, tickets))


actions.add_typer(decisions)
app.command()(worker)
db.command()(purge)
app.command()(check)
app.command()(serve)
app.add_typer(tokens, name="tokens")


@db.command()
def migrate(database_url: DatabaseUrl = None) -> None:
    """Create or update the ledger's tables."""
    from settled.runtime.database import pending

    url = _url(database_url)
    todo = pending(url)
    with connect(url):  # opening it brings its tables up to date
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

    shown = standing(checked_url(database_url))
    if as_json:
        print_json(shown)
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

    return checked_url(database_url) or embedded.server()


if __name__ == "__main__":
    main()
