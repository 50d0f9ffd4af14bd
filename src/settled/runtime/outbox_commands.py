"""The commands about messages: `settled outbox list` and `settled outbox redrive`.

The rules are in `settled.tools.outbox`. Everything heavy is imported by the command that needs it.
"""

from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from settled.runtime import options
from settled.runtime.options import By, DatabaseUrl, Json, Limit, Note, Tenant, connect
from settled.runtime.output import print_json, print_page

if TYPE_CHECKING:
    from rich.table import Table

    from settled.state.outbox import Posted, Standing

outbox = typer.Typer(help="Messages that were committed with their actions, and their delivery.", no_args_is_help=True)

Topic = Annotated[str | None, typer.Option(callback=options.reference, help="Only this topic.")]
MessageIds = Annotated[
    list[str] | None, typer.Argument(metavar="ID…", callback=lambda ids: list(map(options.reference, ids or [])))
]


@outbox.command("list")
def list_messages(
    state: Annotated[str | None, typer.Option(help="due, held, dead or delivered.")] = None,
    topic: Topic = None,
    action_id: Annotated[
        str | None, typer.Option("--action", callback=options.reference, help="Only of this action.")
    ] = None,
    tenant: Tenant = "default",
    limit: Limit = 50,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List messages: what waits, why, and until when."""
    from settled.state.outbox import STANDINGS
    from settled.tools.outbox import Outbox

    if state is not None and state not in STANDINGS:
        raise typer.BadParameter(f"{state!r} is none of {', '.join(STANDINGS)}", param_hint="--state")
    with connect(database_url) as ledger:
        wanted = cast("Standing | None", state)
        found = Outbox(ledger, tenant=tenant).messages(state=wanted, topic=topic, action_id=action_id, most=limit)
    if as_json:
        print_json([message_record(one) for one in found])
    elif found:
        print_page(messages_table(found))
    else:
        print("there are no such messages")


@outbox.command()
def redrive(
    by: By,
    ids: MessageIds = None,
    all_dead: Annotated[bool, typer.Option("--all-dead", help="All dead letters of the tenant.")] = False,
    topic: Topic = None,
    note: Note = None,
    tenant: Tenant = "default",
    as_json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Deliver dead letters once more, with all their attempts. What is no dead letter is left as it is."""
    from settled.tools.outbox import MOST_REDRIVEN, Outbox

    if bool(ids) == all_dead or (topic and not all_dead):
        raise typer.BadParameter("give ids of messages, or --all-dead (then with --topic if you like)")
    with connect(database_url) as ledger:
        messages = Outbox(ledger, tenant=tenant)
        if ids:
            redriven = messages.redrive(ids, by=by, note=note)
        else:
            redriven = messages.redrive_all(by=by, note=note, topic=topic)
    left = [one for one in dict.fromkeys(ids or []) if one not in redriven]
    if as_json:
        print_json({"redriven": redriven, "left": left})
    else:
        print("\n".join(_said(redriven, left, has_more=all_dead and len(redriven) == MOST_REDRIVEN)))
    if left:
        raise typer.Exit(1)


def _said(redriven: list[str], left: list[str], *, has_more: bool) -> list[str]:
    lines = [f"{one} is due again" for one in redriven] + [f"{one} is no dead letter here" for one in left]
    more = [f"those were {len(redriven)}; there may be more, run it again"] if has_more else []
    return lines + more or ["there are no dead letters"]


def message_record(message: "Posted") -> dict[str, Any]:
    """Return a message as plain JSON."""
    from settled.runtime.records import instant

    return {
        "message_id": message.id,
        "tenant": message.tenant,
        "action_id": message.action_id,
        "tool": message.tool,
        "position": message.position,
        "topic": message.topic,
        "state": message.state,
        "waits": why_it_waits(message),
        "attempts": message.attempt,
        "reason": message.reason,
        "payload": message.payload,
        "created_at": instant(message.created_at),
        "due_at": instant(message.due_at),
        "delivered_at": instant(message.delivered_at),
        "dead_at": instant(message.dead_at),
    }


def why_it_waits(message: "Posted") -> str | None:
    """Return what a message waits for, as a sentence; None for one that is over."""
    from settled.runtime.words import message_waits_for

    match message_waits_for(message):
        case None:
            return None
        case "held":
            return "an earlier message of its action was not delivered yet"
        case "lease":
            return "it is being delivered"
        case "due":
            return f"its next attempt, in {((message.due_at or message.now) - message.now).total_seconds():.0f} s"
        case "tool":
            return f"a dispatcher that has the tool {message.tool}, to make the messages"
        case "sink":
            return "a dispatcher with a sink for its topic"


STYLES = {"due": "cyan", "held": "yellow", "dead": "red", "delivered": "green"}


def messages_table(messages: "list[Posted]") -> "Table":
    """Return messages as a table."""
    from rich.table import Table

    from settled.runtime.tables import text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("message", "topic", "state", "tries", "why", "payload"):
        table.add_column(column, overflow="fold", no_wrap=column in ("message", "state"))
    for one in messages:
        why = " · ".join(said for said in (why_it_waits(one), one.reason) if said)
        cells = [text(one.topic or "to be made"), text(one.state, STYLES[one.state]), text(one.attempt), text(why)]
        table.add_row(text(one.id, "bold"), *cells, text(_short(one.payload or ""), "bright_black"))
    return table


MAX_SHOWN_CHARS = 60
"""Of a payload in a table: enough to tell two of them apart."""


def _short(payload: str) -> str:
    return payload if len(payload) <= MAX_SHOWN_CHARS else payload[: MAX_SHOWN_CHARS - 1] + "…"
