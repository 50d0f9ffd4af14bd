"""A played scenario for people and for programs: the pages of `settled demo`. Reads the story, decides nothing."""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from settled.demo.scenarios import DEFAULT, SCENARIOS
from settled.demo.story import Story
from settled.demo.timeline import timeline
from settled.demo.verdict import verdict
from settled.runtime.chain_pages import chain_record, steps_table
from settled.runtime.outbox_commands import message_record, messages_table
from settled.runtime.records import approval_record, timeline_record
from settled.runtime.tables import text


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
        "counted": dict(story.counted),
        "chains": [chain_record(run) for run in story.chains],
        "messages": [message_record(message) for message in story.messages],
        "workers": [asdict(worker) for worker in story.workers],
    }


def page(story: Story) -> RenderableType:
    """Return the story as a page."""
    parts: list[RenderableType] = [Text(), _title(story), Text()]
    parts += [_quoted("user", words) for words in story.turns]
    parts += [Text(), timeline(story)]
    for run in story.chains:
        parts += [Text(), steps_table(run)]
    if story.messages:
        parts += [Text(), messages_table(list(story.messages))]
    parts += [Text()]
    parts += [_quoted("model was told", content, times=times) for content, times in _told(story)]
    if story.told.reply:
        parts += [_quoted("user was told", story.told.reply, "bold"), Text()]
    return Group(*parts, verdict(story))


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
