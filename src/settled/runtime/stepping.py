"""One decision from a terminal, in two steps: what will follow is shown, and then it is done.

Owns the order of the two, and the command that leads from the first to the second. The fingerprint is what ties them
together: what was shown is what is decided, or nothing is.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from settled.runtime.options import connect
from settled.runtime.output import print_json, print_page
from settled.state.errors import ShownOtherwise

if TYPE_CHECKING:
    from rich.console import RenderableType

    from settled.runtime.previews import Preview
    from settled.state.model import Action
    from settled.state.store import Ledger
    from settled.tools.contract import ActionTool
    from settled.tools.decisions import Decision
    from settled.tools.desk import Desk
    from settled.tools.policy import Policy


@dataclass(frozen=True)
class Counter:
    """Where one command stands: an open ledger, and the desk of one tenant on it."""

    ledger: "Ledger"
    desk: "Desk"
    tenant: str

    def action(self, action_id: str) -> "Action":
        """Return an action as it stands now; NotFound where this tenant has none of that id."""
        return self.ledger.action(action_id, tenant=self.tenant)


@contextmanager
def opened(
    database_url: str | None,
    tenant: str,
    tools: "Sequence[ActionTool]" = (),
    policies: "Mapping[str, Policy] | None" = None,
) -> Iterator[Counter]:
    """Open the ledger, and the desk of one tenant on it."""
    from settled.tools.desk import Desk

    with connect(database_url) as ledger:
        yield Counter(ledger, Desk(ledger, tools=tools, tenant=tenant, policies=policies), tenant)


@dataclass(frozen=True)
class Step:
    """One decision: what is shown before it, how it is made, and what follows (`after` it, where that is said
    otherwise). `hidden` are the arguments whose new values are never printed.
    """

    see: Callable[[Counter, str], "Preview"]
    do: Callable[[Counter], "Action"]
    follows: Callable[["Action"], list[str]]
    after: Callable[["Action"], list[str]] | None = None
    hidden: frozenset[str] = frozenset()


def take(ctx: typer.Context, step: Step) -> None:
    """Open the ledger, and carry a step out."""
    with opened(ctx.params["database_url"], ctx.params["tenant"]) as at:
        carry_out(ctx, at, step)


def carry_out(ctx: typer.Context, at: Counter, step: Step) -> None:
    """Make a decision, or print what would follow from it."""
    from settled.runtime import words
    from settled.runtime.desk_pages import done_page
    from settled.runtime.records import action_record

    given = ctx.params
    if given["fingerprint"] is None:
        foretell(ctx, step.see(at, given["action_id"]), step.follows, step.hidden)
    action = step.do(at)
    follows = (step.after or step.follows)(action)
    if given["as_json"]:
        print_json({"done": True, "action": action_record(action), "will_follow": follows})
    else:
        print_page(done_page(words.done(given["action_id"], action), follows))


def deciding(ctx: typer.Context, decision: "Decision") -> Callable[[Counter], "Action"]:
    """Return the doing of a decision on what waits, as it was shown."""
    given = ctx.params

    def do(at: Counter) -> "Action":
        with saying_what_changed(at, ctx):
            return at.desk.decide(
                given["action_id"],
                decision,
                by=given["by"],
                roles=given["role"] or (),
                fingerprint=given["fingerprint"],
            )

    return do


def foretell(
    ctx: typer.Context,
    seen: "Preview",
    follows: Callable[["Action"], list[str]],
    hidden: frozenset[str] = frozenset(),
) -> NoReturn:
    """Print what will follow and how to go on, and end with 2: nothing was written."""
    forecast(ctx, seen.action.fingerprint, seen.card, seen.record, follows(seen.action), hidden)


def forecast(
    ctx: typer.Context,
    fingerprint: str,
    card: "RenderableType",
    record: Mapping[str, Any],
    sentences: Sequence[str],
    hidden: frozenset[str] = frozenset(),
) -> NoReturn:
    """As `foretell`, of anything that has a fingerprint."""
    from settled.runtime.desk_pages import forecast_page

    command = _with_fingerprint(ctx, fingerprint, hidden)
    if ctx.params["as_json"]:
        print_json({"done": False, **record, "will_follow": list(sentences), "command": command})
    else:
        print_page(forecast_page(str(ctx.info_name), card, sentences))
        print(command)  # past the page: a line that is broken cannot be copied
    raise typer.Exit(2)


def check_shown(at: Counter, ctx: typer.Context) -> None:
    """Refuse to go on with an action that is not the one that was shown."""
    if not at.action(ctx.params["action_id"]).fingerprint.startswith(ctx.params["fingerprint"]):
        raise _changed(at, ctx)


@contextmanager
def saying_what_changed(at: Counter, ctx: typer.Context) -> Iterator[None]:
    """Say what stands there instead, where it is not what was shown."""
    try:
        yield
    except ShownOtherwise as error:
        raise _changed(at, ctx) from error


def _changed(at: Counter, ctx: typer.Context) -> ShownOtherwise:
    action = at.action(ctx.params["action_id"])
    return ShownOtherwise(
        f"--fingerprint: {ctx.params['fingerprint']} is not that of {action.id}, which is “{action.summary}” with "
        f"{action.fingerprint}. Nothing was done; look at it again without --fingerprint"
    )


def _with_fingerprint(ctx: typer.Context, fingerprint: str, hidden: frozenset[str]) -> str:
    """Return the command as it was given, with a fingerprint: one line, to be copied."""
    typed = [ctx.command_path]
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(str(parameter.name))
        if source is not None and source.name == "COMMANDLINE":
            typed += _typed(parameter, ctx.params[str(parameter.name)], hidden)
    return " ".join([*typed, "--fingerprint", fingerprint])


def _typed(parameter: Any, value: Any, hidden: frozenset[str]) -> list[str]:
    if parameter.param_type_name == "argument":
        return [quote(str(value))]
    option = parameter.opts[0]
    if parameter.is_flag:
        return [option]
    words: list[str] = []
    for one in value if isinstance(value, list) else [value]:
        said = _safe(option, str(one), hidden)
        words += [quote(f"{option}={said}")] if said.startswith("-") else [option, quote(said)]
    return words


def _safe(option: str, value: str, hidden: frozenset[str]) -> str:
    """Return a value as it may be printed: a password or a secret has to be typed again."""
    from settled.runtime.database import without_password
    from settled.state.secrets import HIDDEN

    match option:
        case "--database-url":
            return without_password(value)
        case "--set" if value.partition("=")[0] in hidden:
            return f"{value.partition('=')[0]}={HIDDEN}"
        case _:
            return value
