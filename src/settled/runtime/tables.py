"""Actions and timelines as tables for a terminal.

Every value is put in as text: markup and control characters in it are inert.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from settled.runtime import words
from settled.runtime.records import in_manual_queue
from settled.state.machine import State
from settled.state.model import Action, Approval, Event
from settled.state.secrets import masked
from settled.tools.outcome import plain
from settled.tools.policy import BY_POLICY

COLOURS: Mapping[str, str] = {
    State.PLANNED: "cyan",
    State.APPROVED: "cyan",
    State.RUNNING: "blue",
    State.SUCCEEDED: "green",
    State.UNKNOWN: "yellow",
    State.FAILED: "red",
    State.CANCELLED: "bright_black",
    State.COMPENSATION_PENDING: "magenta",
    State.COMPENSATED: "magenta",
}

WHAT: Mapping[str, str] = {
    "plan": "written down",
    "approve": "permitted",
    "claim": "claimed, and sent",
    "succeed": "the service answered",
    "fail": "settled as not done",
    "refuse": "not processed; again later",
    "lose": "outcome not known",
    "ask": "asked the service",
    "find": "found by asking",
    "release": "proved absent; sent again",
    "escalate": "handed to a person",
    "repeat": "asked for again",
    "late": "a late answer, kept as evidence",
    "deny": "denied",
    "expire": "expired",
    "supersede": "replaced by another request",
    "withdraw": "withdrawn",
    "lapse": "the permission ended",
    "ask_again": "sent back to be asked about",
    "compensate": "to be undone",
    "compensate_again": "to be undone by another try",
    "compensated": "undone",
    "redrive": "its message is delivered again",
}
"""What each trigger means to a person."""


def text(value: object, style: str = "") -> Text:
    """Return a value as inert text."""
    return Text(plain(str(value)), style)


def state_text(state: str) -> Text:
    """Return a state in its colour."""
    return text(state.replace("_", " "), COLOURS.get(state, ""))


NARROW = 100
"""Below this width a summary gets a line of its own."""


def actions_page(actions: Sequence[Action], width: int) -> RenderableType:
    """Return actions, one or two lines each, as the width allows."""
    return actions_table(actions) if width >= NARROW else Group(*map(_two_lines, actions))


def _two_lines(action: Action) -> Text:
    tries = "1 attempt" if action.attempt == 1 else f"{action.attempt} attempts"
    first = [
        text(action.id, "bold"),
        _planned(action),
        _state(action),
        text(action.receipt or "no receipt"),
        text(tries),
    ]
    return Text.assemble(Text("  ").join(first), "\n    ", text(action.summary))


def actions_table(actions: Iterable[Action]) -> Table:
    """Return actions as a table, one a line."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("action", "planned", "state", "summary", "receipt", "tries"):
        table.add_column(column, overflow="fold", no_wrap=column != "summary")
    for action in actions:
        cells = [text(action.summary), text(action.receipt or ""), text(action.attempt)]
        table.add_row(text(action.id), _planned(action), _state(action), *cells)
    return table


def _planned(action: Action) -> Text:
    return text(action.planned_at.strftime("%m-%d %H:%M"), "bright_black")


def _state(action: Action) -> Text:
    state = state_text(action.state)
    if in_manual_queue(action):
        state.append(" (for a person)", "bold yellow")
    return state


def timeline_table(events: Sequence[Event]) -> Table:
    """Return a timeline as a table: seconds since the first event, the event, the state it led to."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("seconds", justify="right")
    table.add_column("event", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("", overflow="fold")
    for event in events:
        table.add_row(*event_row(event, (event.at - events[0].at).total_seconds()))
    return table


def event_row(event: Event, seconds: float) -> tuple[Text, Text, Text, Text]:
    """Return one event as cells."""
    return (
        text(f"{seconds:.3f}", "bright_black"),
        text(WHAT.get(event.trigger, event.trigger)),
        state_text(event.to_state),
        text(detail_text(event), "bright_black"),
    )


def detail_text(event: Event) -> str:
    """Return what an event says beside its trigger: which attempt, which person, and its detail."""
    said = [_named(name, value) for name, value in (event.detail or {}).items() if not _is_empty(value)]
    if event.actor is not None and event.actor.partition(":")[0] != BY_POLICY:
        said.insert(0, f"by {event.actor}")
    return " · ".join([f"attempt {event.attempt}", *said] if event.trigger in ("claim", "refuse", "release") else said)


def _is_empty(value: object) -> bool:
    """Whether a part of a verdict says nothing: nobody named, no note, no four eyes."""
    return value is None or value is False or value in ("", [])


def _named(name: str, value: object) -> str:
    """Return one part of an event: a span (`delay_s`) with its unit."""
    if name.endswith("_s") and isinstance(value, int | float):
        return f"{name.removesuffix('_s').replace('_', ' ')} {round(value, 2):g} s"
    return f"{name.replace('_', ' ')}: {_one(value)}"


def facts_table(action: Action) -> Table:
    """Return what is known of an action, one fact a line."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bright_black")
    table.add_column(overflow="fold")
    for name, value in _facts(action):
        if value is not None:
            table.add_row(text(name), value if isinstance(value, Text) else text(value))
    return table


def action_page(action: Action, events: Sequence[Event], approvals: Sequence[Approval] = ()) -> RenderableType:
    """Return one action with its approvals and its timeline."""
    tickets = [Text(), tickets_table(approvals)] if approvals else []
    return Group(facts_table(action), *tickets, Text(), timeline_table(events))


def tickets_table(approvals: Sequence[Approval]) -> RenderableType:
    """Return the approvals that one action had, in order."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bright_black", no_wrap=True)
    table.add_column(overflow="fold")
    for one in approvals:
        table.add_row(text(f"approval {one.round}"), text(words.ticket(one)))
    return table


def _facts(action: Action) -> list[tuple[str, object]]:
    return [
        ("action", action.id),
        ("request", action.summary),
        ("tool", action.tool),
        ("thread", action.thread_id),
        ("state", state_text(action.state)),
        ("manual queue", "a person must decide" if in_manual_queue(action) else None),
        ("receipt", action.receipt),
        ("reason", action.reason),
        ("key", action.idempotency_key),
        ("fingerprint", action.fingerprint),
        ("arguments", _one(masked(action.arguments))),
        ("requester", action.requester),
        ("replaces", action.supersedes),
        ("replaced by", action.superseded_by),
        ("undoes", action.compensates),
        ("undone by" if action.state is State.COMPENSATED else "to be undone by", action.compensated_by),
        ("attempts", action.attempt),
        ("planned", _when(action.planned_at)),
        ("settled", _when(action.settled_at)),
    ]


def _when(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(sep=" ", timespec="milliseconds")


def _one(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return f"{value:g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False, default=str)


PIPE_WIDTH = 200
"""Nobody counts the columns of a pipe; a program that reads it wants one line for each thing."""


def console() -> Console:
    """Return the console that everything is printed on."""
    found = Console(highlight=False)
    if not found.is_terminal and "COLUMNS" not in os.environ:
        found.width = PIPE_WIDTH
    return found
