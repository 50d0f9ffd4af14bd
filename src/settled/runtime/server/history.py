"""One action as it is read: where it stands, its attempts, its approvals, its timeline.

Pure: what the ledger holds, put in the order in which a person asks. The timeline is read from events alone, and so are
the attempts.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from settled.runtime.server.languages import Say
from settled.runtime.server.texts_en import TEXTS
from settled.runtime.server.wording import beginning
from settled.state.model import Action, Approval, Event
from settled.state.outbox import Posted
from settled.tools.desk import ManualCase
from settled.tools.policy import BY_POLICY

MAX_LINES = 200
"""A timeline that is read; a model that repeats itself makes longer ones."""

_BEGINS = frozenset({"claim", "refuse", "release"})
"""What begins an attempt: the first, and each next one."""

_ENDS = frozenset({"succeed", "fail", "refuse", "lose"})
"""What says how an attempt ended; asking afterwards is no part of it."""

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True)
class Line:
    """One event, seconds after the first one."""

    event: Event
    after_s: float
    detail: str

    @property
    def is_known(self) -> bool:
        """Whether there is a word for it."""
        return f"what_{self.event.trigger}" in TEXTS


@dataclass(frozen=True)
class Attempt:
    """One try: when it began, and how it ended, if that is recorded."""

    number: int
    begun_s: float
    ended: Event | None = None
    took_s: float = 0.0

    @property
    def why(self) -> str:
        """What was said of its end."""
        return str((self.ended.detail or {}).get("reason") or "") if self.ended else ""


@dataclass(frozen=True)
class History:
    """All that is known of an action. `waiting` is the request that a person may decide, `case` what a person may
    resolve; `left_out` counts events that are older than the ones in `lines`.
    """

    action: Action
    approvals: Sequence[Approval]
    waiting: Approval | None
    case: ManualCase | None
    attempts: Sequence[Attempt]
    messages: Sequence[Posted]
    lines: Sequence[Line]
    left_out: int
    trace_id: str | None
    trace_link: str | None


def lines_of(events: Sequence[Event], say: Say) -> list[Line]:
    """Return the newest events as lines."""
    first = events[0].at if events else None
    return [
        Line(event, (event.at - first).total_seconds() if first else 0.0, detail_of(event, say))
        for event in events[-MAX_LINES:]
    ]


def detail_of(event: Event, say: Say) -> str:
    """Return what an event says beside its trigger: which attempt, which person, and its detail."""
    parts = [say("attempt", n=event.attempt)] if event.trigger in _BEGINS else []
    if event.actor is not None and event.actor.partition(":")[0] != BY_POLICY:
        parts.append(say("by", name=event.actor))
    return " · ".join([*parts, *(_part(name, value) for name, value in (event.detail or {}).items() if _says(value))])


def _says(value: object) -> bool:
    """Whether a part of an event says anything: a person, a note, a verdict that is not empty."""
    return value is not None and value is not False and value not in ("", [])


def _part(name: str, value: object) -> str:
    if name.endswith("_s") and isinstance(value, int | float):
        return f"{name.removesuffix('_s').replace('_', ' ')} {round(value, 2):g} s"
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        value = ", ".join(value)
    text, size = beginning(value)
    return f"{name.replace('_', ' ')}: {text}{'…' if size else ''}"


def attempts_of(events: Sequence[Event]) -> list[Attempt]:
    """Return the attempts that the events tell of. A refusal ends one and begins the next, after its delay."""
    found: list[Attempt] = []
    first = events[0].at if events else None
    for event in events:
        at_s = (event.at - first).total_seconds() if first else 0.0
        if event.trigger in _ENDS and found and found[-1].ended is None:
            found[-1] = Attempt(found[-1].number, found[-1].begun_s, event, max(at_s - found[-1].begun_s, 0.0))
        if event.trigger in _BEGINS:
            found.append(Attempt(event.attempt, at_s + _delay_s(event.detail)))
    return found


def _delay_s(detail: Mapping[str, object] | None) -> float:
    delay_s = (detail or {}).get("delay_s")
    return float(delay_s) if isinstance(delay_s, int | float) else 0.0


def trace_id_of(trace_context: str | None) -> str | None:
    """Return the trace id of a W3C trace context (`traceparent`), if it is one."""
    found = _TRACEPARENT.search(trace_context or "")
    return found[1] if found else None
