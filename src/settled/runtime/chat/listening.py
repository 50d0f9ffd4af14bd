"""Hearing what a run says: from the beginning, or after the last thing that was heard.

Everything is read from the database, a page at a time and only as fast as the listener takes it: nothing is kept for
whoever is slow, and whoever was cut off comes back with the last number. The bell only saves waiting.
"""

from collections.abc import AsyncIterator, Callable, Sequence

from settled.runtime.chat.bell import Bell
from settled.runtime.chat.refusals import Refused
from settled.state import runs
from settled.state.errors import NotFound
from settled.state.postgres import Database
from settled.state.runs import Run, RunEvent

PAGE = 50
"""Events read at a time."""

FIRST_LOOK_S, LAST_LOOK_S = 0.1, 1.0
"""Between looks for what another process has written."""

ALWAYS = ("metadata", "error", "end", "truncated")
"""What every listener hears, whatever modes he wants."""

Looks = Callable[[], AsyncIterator[Run]]


async def standing(rows: Database, bell: Bell, run: Run) -> AsyncIterator[Run]:
    """Yield a run as it stands, again and again, without an end; waits longer while nothing happens."""
    pause_s = FIRST_LOOK_S
    while True:
        found = await rows.arun(runs.run(run.tenant, run.thread_id, run.run_id))
        if found is None:
            raise NotFound(f"the run {run.run_id} was deleted")
        yield found
        was_rung = await bell.wait(run.run_id, pause_s)
        pause_s = FIRST_LOOK_S if was_rung else min(pause_s * 1.5, LAST_LOOK_S)


async def ended(rows: Database, bell: Bell, run: Run) -> Run:
    """Wait for a run's end, and return it as it stands then."""
    async for found in standing(rows, bell, run):
        if found.is_over:
            return found
    raise AssertionError("unreachable: it is asked about without an end")


async def heard(
    rows: Database, bell: Bell, run: Run, *, after: int = 0, modes: Sequence[str] | None = None
) -> AsyncIterator[RunEvent]:
    """Yield what a run says after a number, until its end; of these modes, if given. Its last event is "end"."""
    last: RunEvent | None = None
    async for found in standing(rows, bell, run):
        while True:
            page = await rows.arun(runs.events(found, after=after, most=PAGE))
            for last in page:
                after = last.number
                if modes is None or is_of(modes, last.event):
                    yield last
            if len(page) < PAGE:
                break
        if found.is_over:  # and was before the last look
            break
    if last is None or last.event != "end":
        yield RunEvent(after, "end", "null")


def is_of(modes: Sequence[str], event: str) -> bool:
    """Whether an event belongs to one of these modes."""
    name = event.partition("|")[0]
    if name in ALWAYS:
        return True
    if name == "messages":
        return "messages-tuple" in modes
    return name.partition("/")[0] in modes


def number_of(last_event_id: str | None) -> int:
    """Return after which number a listener wants to go on: 0, or LangGraph's own "-1", is the beginning."""
    given = (last_event_id or "0").strip()
    if given == "-1":
        return 0
    if not (given.isascii() and given.isdecimal() and len(given) <= 9):
        raise Refused(422, "Last-Event-ID: is the id of an event of this run")
    return int(given)
