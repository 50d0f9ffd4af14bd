"""Runs of chains as pages for a terminal, and as plain JSON. Every value is inert text; secrets are never shown."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from settled.runtime import words
from settled.runtime.records import instant
from settled.runtime.tables import text
from settled.state.secrets import masked
from settled.tools.chain_standing import ChainState, Standing, StepStanding, StepState

COLOURS = {
    ChainState.SUCCEEDED: "green",
    ChainState.WAITING: "cyan",
    ChainState.RUNNING: "blue",
    ChainState.UNKNOWN: "yellow",
    ChainState.STOPPED: "red",
    ChainState.COMPENSATING: "magenta",
    ChainState.COMPENSATED: "magenta",
    ChainState.PARTIALLY_COMPENSATED: "bold red",
}


def chain_record(now: Standing) -> dict[str, Any]:
    """Return a run with its steps."""
    chain = now.chain
    return {
        "chain_id": chain.id,
        "tenant": chain.tenant,
        "thread_id": chain.thread_id,
        "name": chain.name,
        "summary": chain.summary,
        "state": str(now.state),
        "input": masked(chain.input),
        "fingerprint": chain.fingerprint,
        "on_failure": chain.on_failure,
        "irreversible": list(chain.irreversible),
        "requester": chain.requester,
        "repeat_of": chain.repeat_of,
        "failed_step": chain.failed_step,
        "code": chain.code,
        "reason": chain.reason,
        "begun_at": instant(chain.begun_at),
        "turned_at": instant(chain.turned_at),
        "ended_at": instant(chain.ended_at),
        "steps": [step_record(step) for step in now.steps],
    }


def step_record(step: StepStanding) -> dict[str, Any]:
    """Return one step of a run."""
    row = step.row
    return {
        "name": step.name,
        "tool": step.tool,
        "state": str(step.state),
        "reversible": step.is_reversible,
        "tries": row.tries if row is not None else 0,
        "action_id": step.action.id if step.action is not None else None,
        "receipt": step.receipt,
        "result": step.result,
        "code": None if step.code is None else str(step.code),
        "reason": step.reason,
        "finished_by": step.by,
        "note": row.note if row is not None else None,
        "undone_by": row.undone_by if row is not None and row.undone_by else step.undo.id if step.undo else None,
        "undo_note": row.undo_note if row is not None else None,
    }


def chains_page(found: Sequence[Standing]) -> RenderableType:
    """Return runs, one a line."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("chain", "begun", "state", "at", "request"):
        table.add_column(column, overflow="fold", no_wrap=column != "request")
    for one in found:
        begun = text(one.chain.begun_at.strftime("%m-%d %H:%M"), "bright_black")
        step = one.waits_for
        table.add_row(
            text(one.chain.id), begun, _state(one.state), text(step.name if step else ""), text(one.chain.summary)
        )
    return table


def chain_page(now: Standing) -> RenderableType:
    """Return one run, with where each step stands and why."""
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(style="bright_black")
    facts.add_column(overflow="fold")
    for name, value in _facts(now):
        if value is not None:
            facts.add_row(text(name), value if isinstance(value, Text) else text(value))
    return Group(facts, Text(), steps_table(now))


def steps_table(now: Standing) -> Table:
    """Return the steps of a run, one a line."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("step", "state", "action", "receipt", "why"):
        table.add_column(column, overflow="fold", no_wrap=column not in ("why", "receipt"))
    for step in now.steps:
        action = step.action.id if step.action is not None else ""
        table.add_row(text(step.name), _step_state(step), text(action), text(step.receipt or ""), text(_why(step)))
    return table


def _facts(now: Standing) -> list[tuple[str, object]]:
    chain = now.chain
    turned = f"{chain.failed_step} did not take place: {chain.reason}" if chain.turned_at is not None else None
    return [
        ("chain", chain.id),
        ("request", chain.summary),
        ("thread", chain.thread_id),
        ("state", _state(now.state)),
        ("goes back since", turned),
        ("when a step fails", chain.on_failure),
        ("without a way back", ", ".join(chain.irreversible) or None),
        ("requester", chain.requester),
        ("repeats", chain.repeat_of),
        ("fingerprint", chain.fingerprint),
        ("begun", words.instant(chain.begun_at)),
        ("ended", None if chain.ended_at is None else words.instant(chain.ended_at)),
    ]


def _why(step: StepStanding) -> str:
    """Return what there is to say of a step beside its state."""
    row = step.row
    said = [
        f"by {step.by}" if step.by else None,
        row.note if row is not None else None,
        f"{step.code}" if step.code is not None else None,
        step.reason if step.state not in (StepState.DONE, StepState.UNDONE) else None,
        f"undone by {row.undone_by}" if row is not None and row.undone_by else None,
        f"undone by {step.undo.id}" if step.undo is not None and step.state is StepState.UNDONE else None,
        f"{step.undo.id} undoes it" if step.undo is not None and step.state is StepState.UNDOING else None,
        "no way back" if not step.is_reversible and step.state in (StepState.TO_DO, StepState.DONE) else None,
    ]
    return " · ".join(one for one in said if one)


def _state(state: ChainState) -> Text:
    return text(state.replace("_", " "), COLOURS[state])


def _step_state(step: StepStanding) -> Text:
    colour = {StepState.DONE: "green", StepState.FAILED: "red", StepState.NOT_UNDONE: "bold red"}.get(
        step.state, "cyan"
    )
    return text(step.state.replace("_", " "), colour)
