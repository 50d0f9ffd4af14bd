"""Values as a page says them: instants, spans, states, JSON in which all that is there can be seen."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby

from settled.runtime.server.languages import Say
from settled.runtime.words import message_waits_for
from settled.state.model import Approval
from settled.state.outbox import Posted
from settled.tools.outcome import one_line, plain

MAX_SHOWN_CHARS = 300
"""Of a value in a card or a table; the whole of it is one click away."""

_UNITS = ((86400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds"))


def inert(value: object) -> object:
    """Return what a template puts in: a text without what moves a terminal or turns the reading direction. (Markup is
    what a template made, of parts that went through here.)
    """
    if type(value) is str and not value.isprintable():
        return "\n".join(map(plain, value.split("\n")))
    return value


def shown(value: object) -> str:
    """Return an argument as it is read: a text as it is where it can be, anything else as JSON. What is long is cut."""
    return beginning(value)[0]


def beginning(value: object) -> tuple[str, int]:
    """Return what is shown of a value among others, and how many characters it has where that is not all of it (else
    0). However long it is, no more of it is looked at than is shown.
    """
    if isinstance(value, str) and value.isprintable() and value.strip() == value and not _could_be_json(value):
        return value[:MAX_SHOWN_CHARS], _if_cut(value)
    written = json.dumps(value, ensure_ascii=False, default=str)
    return _visible(written[:MAX_SHOWN_CHARS]), _if_cut(written)


def _if_cut(text: str) -> int:
    return len(text) if len(text) > MAX_SHOWN_CHARS else 0


def _could_be_json(text: str) -> bool:
    """Whether a text without its quotes would read as something else: "100" as a number."""
    if len(text) > MAX_SHOWN_CHARS or not text:
        return not text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def pretty(value: object) -> str:
    """Return a value as JSON over several lines, each of which shows all that is in it."""
    return _visible(json.dumps(value, ensure_ascii=False, indent=2, default=str))


def _visible(written: str) -> str:
    """Return JSON in which everything that is there can be seen; its own line breaks stay."""
    if written.isascii():
        return written
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in written)


def instant(at: datetime) -> str:
    """Return an instant, to the second."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def span(seconds: float, say: Say) -> str:
    """Return a span in the unit that a person would use."""
    for unit_s, name in _UNITS:
        if seconds >= 2 * unit_s:
            return say(f"span_{name}", n=f"{round(seconds / unit_s)}")
    return say("span_seconds", n=f"{max(seconds, 0):.0f}")


def from_now(at: datetime, now: datetime, say: Say) -> str:
    """Return how far an instant is, before or behind."""
    seconds = (at - now).total_seconds()
    return say("in_span", span=span(seconds, say)) if seconds > 0 else say("ago", span=span(-seconds, say))


def deciders(approval: Approval, say: Say) -> str:
    """Return who may decide: names or roles, and whether the requester may not."""
    named = say("or").join(approval.approvers) or say("anybody")
    if not approval.four_eyes:
        return named
    return say("four_eyes", who=named, requester=approval.requester or say("nobody_known"))


def decided(approval: Approval, say: Say) -> str:
    """Return what became of a request for approval."""
    if approval.decision is None:
        return say("decision_open")
    key = f"decision_{approval.decision}" + ("" if approval.decided_by else "_by_nobody")
    said = say(key, by=approval.decided_by, at=instant(approval.decided_at or approval.now))
    return f"{said} “{approval.note}”" if approval.note else said


def answers(asked: Sequence[str]) -> list[tuple[str, int]]:
    """Return what the remote side said, each with how often it said so in a row."""
    return [(said, len(list(same))) for said, same in groupby(one_line(one, MAX_SHOWN_CHARS) for one in asked)]


def differences(before: Mapping[str, object], after: Mapping[str, object]) -> list[tuple[str, object, object]]:
    """Return the arguments that differ: name, before, after; one that is not there is None."""
    names = [*before, *(name for name in after if name not in before)]
    return [(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]


def waits_for(message: Posted, say: Say) -> str | None:
    """Return what a message of the outbox waits for; None for one that is over."""
    word = message_waits_for(message)
    when = from_now(message.due_at or message.now, message.now, say)
    return None if word is None else say(f"waits_{word}", when=when, tool=message.tool)
