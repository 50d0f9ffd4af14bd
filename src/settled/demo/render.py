"""A played scenario for people and for programs: the pages of `settled demo`. Reads the story, decides nothing."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from settled.demo.scenarios import DEFAULT, SCENARIOS, TENANT
from settled.demo.story import Story
from settled.runtime.records import approval_record, timeline_record
from settled.runtime.tables import event_row, state_text, text
from settled.runtime.words import DECISIONS
from settled.state.machine import Trigger
from settled.state.model import Approval
from settled.tools.outcome import plain

Row = tuple[float, str, Text, Text, Text]


def document(story: Story) -> dict[str, Any]:
    """Return the story as the one JSON document that `--json` prints."""
    return {
        "scenario": story.scenario.name,
        "effects": story.effects,
        "expected_effects": story.scenario.expected_effects,
        "actions": [timeline_record(action, events) for action, events in story.actions],
        "tool_messages": list(story.told.tool_messages),
        "reply": story.told.reply,
        "approvals": [approval_record(approval) for approval in story.approvals],
    }


def page(story: Story) -> RenderableType:
    """Return the story as a page."""
    parts: list[RenderableType] = [Text(), _title(story), Text()]
    parts += [_quoted("user", words) for words in story.turns]
    parts += [Text(), _timeline(story)]
    parts += [Text()]
    parts += [_quoted("model was told", content, times=times) for content, times in _told(story)]
    parts += [_quoted("user was told", story.told.reply, "bold"), Text(), _verdict(story)]
    return Group(*parts)


def contents() -> Table:
    """Return the scenarios as a table."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for scenario in SCENARIOS.values():
        default = " (default)" if scenario.name == DEFAULT else ""
        table.add_row(text(scenario.name, "bold"), text(scenario.title + default))
    return table


def _title(story: Story) -> Text:
    return Text.assemble((story.scenario.name, "bold cyan"), "  ", story.scenario.title)


def _quoted(who: str, words: str, style: str = "", *, times: int = 1) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(width=14, style="bright_black")
    table.add_column(overflow="fold")
    lines = [text(line, style) for line in words.splitlines()]
    if times > 1:
        lines.append(text(f"({times} times)", "bright_black"))
    table.add_row(text(who), Text("\n").join(lines))
    return table


def _told(story: Story) -> Iterator[tuple[str, int]]:
    """Yield the answers about actions (reads have none), each with how often it came in a row."""
    about_writes = [told["content"] for told in story.told.tool_messages if (told["artifact"] or {}).get("action_id")]
    for content, same in groupby(about_writes):
        yield content, len(list(same))


def _timeline(story: Story) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("seconds", justify="right", style="bright_black")
    table.add_column("who", style="bright_black")
    table.add_column("event", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("", overflow="fold")
    rows = sorted(_rows(story), key=lambda row: row[0])
    for at, who, *cells in rows:
        table.add_row(f"{at - rows[0][0]:.3f}", who, *cells)
    return table


def _rows(story: Story) -> Iterator[Row]:
    """Everything that happened, from the three who saw it."""
    nothing = Text()
    for mark in story.marks:
        detail = text(mark.detail, "bright_black")
        yield mark.at, mark.who, text(mark.text, "red" if "SIGKILL" in mark.text else ""), nothing, detail
    for seen in story.requests:
        happened = f"{seen['method']} {seen['path']}"
        yield seen["at"], "service", text(happened), nothing, text(seen["outcome"], "bright_black")
    for _, events in story.actions:
        for event in events:
            _, what, state, detail = event_row(event, 0.0)
            yield _unix(event.at) - story.skew_s, "ledger", what, state, detail


def _unix(at: datetime) -> float:
    return at.timestamp()


def _conflicts(story: Story) -> list[Mapping[str, Any]]:
    artifacts = [told["artifact"] or {} for told in story.told.tool_messages]
    return [artifact for artifact in artifacts if artifact.get("code") == "conflict"]


def _refused(artifact: Mapping[str, Any]) -> Text:
    """Say what was asked for and not sent; the ledger keeps no row for it."""
    differing = artifact.get("differing") or {}
    asked = ", ".join(f"{name} {now} instead of {before}" for name, (before, now) in differing.items())
    return Text.assemble(("refused", "bold"), f", and nothing sent: {plain(asked)}")


def _ticket(approval: Approval) -> Text:
    """Say what a person was asked, what was decided by whom, and whether the permission was used."""
    asked = f"  asked about {plain(approval.summary)}: "
    if approval.decided_at is None or approval.decision is None:
        return Text.assemble(asked, ("not decided", "bold"))
    by = f" by {plain(approval.decided_by)}" if approval.decided_by else ""
    after_s = (approval.decided_at - approval.issued_at).total_seconds()
    used = "" if approval.decision != Trigger.APPROVE else ", used once" if approval.spent_at else ", and never used"
    word = DECISIONS.get(approval.decision, approval.decision)
    return Text.assemble(asked, (f"{word}{by}", "bold"), f" after {after_s:.2f} s{used}")


def _verdict(story: Story) -> RenderableType:
    tickets = "ticket" if story.effects == 1 else "tickets"
    counted = f" in the service's database, {story.scenario.expected_effects} expected"
    lines = [Text.assemble((f"{story.effects} {tickets}", "bold"), counted)]
    for action, _ in story.actions:
        tries = "1 attempt" if action.attempt == 1 else f"{action.attempt} attempts"
        none = "no receipt" if action.settled_at else "no receipt yet"
        said = [state_text(action.state), text(action.receipt or none), text(tries)]
        lines.append(Text.assemble(f"{action.id}: ", Text(", ").join(said)))
        lines += [_ticket(ticket) for ticket in story.approvals if ticket.action_id == action.id]
    lines += [_refused(artifact) for artifact in _conflicts(story)]
    if story.actions:
        lines.append(text(f"settled actions list --tenant {TENANT}  shows them all", "bright_black"))
    return Panel(Text("\n").join(lines), border_style="green" if story.came_out else "red", expand=False)
