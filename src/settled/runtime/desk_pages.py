"""What a person reads before and after a decision: open approvals, the manual queue, what will follow.

One card for each thing, on a terminal of any width and in a pipe: they are read by people, and programs have --json.
Every value is put in as inert text.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from settled.runtime import words
from settled.runtime.tables import state_text, text
from settled.state.model import Action, Approval
from settled.state.secrets import masked
from settled.tools.outcome import one_line

if TYPE_CHECKING:
    from settled.tools.desk import ManualCase

Fact = tuple[str, object]
"""A name, and a text, several (a line each), or None where there is nothing to say."""

MAX_LISTED_CHARS = 300
"""A value in a listing; what is longer is shown whole before the decision."""


def approvals_page(approvals: Sequence[Approval]) -> RenderableType:
    """Return open approvals, a card each."""
    return _spaced(approval_card(one, most=MAX_LISTED_CHARS) for one in approvals)


def queue_page(cases: "Sequence[ManualCase]") -> RenderableType:
    """Return the manual queue, a card for each case."""
    return _spaced(case_card(one, most=MAX_LISTED_CHARS) for one in cases)


def approval_card(approval: Approval, most: int | None = None) -> RenderableType:
    """Return what a person needs to decide an approval; a value is cut to `most` characters, if given."""
    facts: list[Fact] = [
        ("tool", approval.tool),
        ("asked by", approval.requester or "nobody who is known"),
        ("conversation", approval.thread_id),
        ("why", approval.reason or None),
        ("scope", approval.scope or None),
        ("asked", words.since(approval.issued_at, approval.now)),
        ("again", f"number {approval.round}: an approval ended before it was used" if approval.round > 1 else None),
        ("decide until", words.until(approval.valid_until, approval.now)),
        ("may decide", words.who_may_decide(approval)),
    ]
    return _card(approval.action_id, approval.summary, facts, approval.arguments, approval.fingerprint, most)


def case_card(case: "ManualCase", most: int | None = None) -> RenderableType:
    """Return what a person needs to decide a case of the manual queue."""
    action = case.action
    facts: list[Fact] = [
        ("tool", action.tool),
        ("asked by", action.requester),
        ("conversation", action.thread_id),
        ("why", case.reason),
        ("in the queue", f"for {words.span(case.age.total_seconds())}" if action.escalated_at else "not yet"),
        ("attempts", action.attempt),
        ("key", action.idempotency_key),
        ("answers", _answers(case.asked) or (None if case.found or case.receipt else "it was not asked")),
        ("meant", _version(case.meant)),
        ("found", _version(case.found)),
        ("receipt", case.receipt),
    ]
    return _card(action.id, action.summary, facts, action.arguments, action.fingerprint, most)


def action_card(action: Action) -> RenderableType:
    """Return what a person needs to know of any action before it is moved."""
    facts: list[Fact] = [
        ("tool", action.tool),
        ("asked by", action.requester),
        ("conversation", action.thread_id),
        ("state", state_text(action.state)),
        ("approved", f"by {action.approver}" if action.approver else None),
        ("good until", words.until(action.approved_until, action.now) if action.approved_until else None),
        ("decide until", words.until(action.asked_until, action.now) if action.asked_until else None),
        ("why", action.reason),
        ("receipt", action.receipt),
    ]
    return _card(action.id, action.summary, facts, action.arguments, action.fingerprint, None)


def forecast_page(verb: str, card: RenderableType, follows: Sequence[str]) -> RenderableType:
    """Return what is about to be decided, and what will follow."""
    head = Text.assemble(text(f"To {verb}:", "bold"), " nothing has been done yet.")
    return Group(
        head, Text(), card, Text(), text("What will follow", "bold"), _listed(follows), Text(), text("To do it", "bold")
    )


def done_page(head: str, follows: Sequence[str]) -> RenderableType:
    """Return what was done, and what follows now."""
    return Group(text(head, "bold"), _listed(follows))


def argument_lines(arguments: Mapping[str, object]) -> list[str]:
    """Return arguments one a line, each value as JSON: 100 and "100" are told apart, and so is what is not seen."""
    return [f"{name}: {visible(value)}" for name, value in masked(arguments).items()]


def _card(
    action_id: str, summary: str, facts: Iterable[Fact], arguments: Mapping[str, object], digest: str, most: int | None
) -> RenderableType:
    head = Text.assemble(text(action_id, "bold"), "  ", text(summary))
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bright_black", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in [*facts, ("arguments", argument_lines(arguments) or "none")]:
        if value is not None:
            table.add_row(text(name), _value(value, most))
    return Group(head, Padding(table, (0, 0, 0, 2)), Padding(text(digest), (0, 0, 0, 2)))


def _value(value: object, most: int | None) -> Text:
    if isinstance(value, Text):
        return value
    lines = value if isinstance(value, list) else [value]
    return Text("\n").join(text(_cut(str(line), most)) for line in lines)


def _cut(line: str, most: int | None) -> str:
    return line if most is None or len(line) <= most else f"{line[:most]}… ({len(line)} characters)"


def _answers(asked: Sequence[str]) -> list[str]:
    """Return what the remote side said, each answer on a line: equal ones that follow each other are counted."""
    runs = [(said, len(list(same))) for said, same in groupby(one_line(answer, MAX_LISTED_CHARS) for answer in asked)]
    return [said if times == 1 else f"{said} ({times} times)" for said, times in runs]


def _version(value: object) -> object:
    if value is None or isinstance(value, str):
        return value
    return argument_lines(value) if isinstance(value, Mapping) else visible(value)


def visible(value: object) -> str:
    """Return a value as JSON in which everything that is there can be seen."""
    written = json.dumps(value, ensure_ascii=False, default=str)
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in written)


def _listed(sentences: Sequence[str]) -> RenderableType:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for sentence in sentences:
        table.add_row(text("·"), text(sentence))
    return Padding(table, (0, 0, 0, 2))


def _spaced(cards: Iterable[RenderableType]) -> RenderableType:
    parts: list[RenderableType] = []
    for card in cards:
        parts += [*([Text()] if parts else []), card]
    return Group(*parts)
