"""The timeline of a played scenario, from the three who saw it: the processes, the service and the ledger."""

from collections.abc import Iterator
from datetime import datetime

from rich.table import Table
from rich.text import Text

from settled.demo.story import MANY, Story
from settled.runtime.tables import event_row, text

Row = tuple[float, str, Text, Text, Text]


def timeline(story: Story) -> Table:
    """Return who did what and when, as a table."""
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
    if len(story.actions) > MANY:
        return
    for seen in story.requests:
        happened = f"{seen['method']} {seen['path']}"
        yield seen["at"], "service", text(happened), nothing, text(seen["outcome"], "bright_black")
    for _, events in story.actions:
        for event in events:
            _, what, state, detail = event_row(event, 0.0)
            yield _unix(event.at) - story.skew_s, "ledger", what, state, detail


def _unix(at: datetime) -> float:
    return at.timestamp()
