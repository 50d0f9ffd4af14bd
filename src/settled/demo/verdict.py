"""How a played scenario came out, for people: the effects, the actions, and what became of each. Decides nothing."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.panel import Panel
from rich.text import Text

from settled.demo.scenarios import TENANT
from settled.demo.story import MANY, Story
from settled.runtime.tables import WHAT, state_text, text
from settled.runtime.words import DECISIONS
from settled.state.machine import Trigger
from settled.state.model import Action, Approval, Event
from settled.tools.outcome import plain

NAMES = {
    "tickets": ("ticket", "tickets"),
    "coupons": ("coupon deducted", "coupons deducted"),
    "returns": ("coupon given back", "coupons given back"),
    "shipments": ("parcel shipped", "parcels shipped"),
    "notifications": ("notification", "notifications"),
    "refunds": ("refund", "refunds"),
}
"""What one effect of a kind is called, and several."""


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


def verdict(story: Story) -> RenderableType:
    """Return how it came out: the effects that were counted, and where the actions stand."""
    expected = _counted(story.scenario.expected) if len(story.counted) > 1 else story.scenario.expected_effects
    as_many = "as expected" if story.counted == story.scenario.expected else f"{expected} expected"
    lines = [Text.assemble((_counted(story.counted), "bold"), f" in the service's database, {as_many}")]
    lines += _each(story) if len(story.actions) <= MANY else _by_way(story)
    lines += [_refused(artifact) for artifact in _conflicts(story)]
    if story.actions:
        lines.append(text(f"settled actions list --tenant {TENANT}  shows them all", "bright_black"))
    return Panel(Text("\n").join(lines), border_style="green" if story.came_out else "red", expand=False)


def _counted(effects: Mapping[str, int]) -> str:
    """Say how many effects there are, of each kind."""
    return ", ".join(f"{count} {NAMES[kind][count != 1]}" for kind, count in effects.items())


def _each(story: Story) -> Iterator[Text]:
    """Say of each action where it stands."""
    for action, _ in story.actions:
        tries = "1 attempt" if action.attempt == 1 else f"{action.attempt} attempts"
        none = "no receipt" if action.settled_at else "no receipt yet"
        said = [state_text(action.state), text(action.receipt or none), text(tries)]
        yield Text.assemble(f"{action.id}: ", Text(", ").join(said))
        yield from (_ticket(ticket) for ticket in story.approvals if ticket.action_id == action.id)


def _by_way(story: Story) -> Iterator[Text]:
    """Say of many actions how many went which way, and what the workers and the service saw of it."""
    ways = Counter((action.state, _way(action, events)) for action, events in story.actions)
    for (state, way), count in ways.most_common():
        yield Text.assemble(f"{count} action{'s' if count > 1 else ''}: ", state_text(state), text(f", {way}"))
    seen = Counter(seen["outcome"] for seen in story.requests if seen["method"] == "POST")
    yield text("the service: " + ", ".join(f"{count} × {outcome}" for outcome, count in seen.most_common()))
    late = sum(event.trigger == "late" for _, events in story.actions for event in events)
    if late:
        yield text(f"{late} × {WHAT['late']}: somebody else had taken over")
    for worker in story.workers:
        frozen = f", frozen for {worker.frozen_s:.1f} s" if worker.frozen_s else ""
        did = ", ".join(f"{count} {word}" for word, count in (worker.did or {}).items() if count)
        yield text(f"{worker.name}: {worker.ended}{frozen}" + (f" ({did})" if did else ""))


def _way(action: Action, events: Sequence[Event]) -> str:
    """Return how an action came to its end."""
    sent = sum(event.trigger == Trigger.RELEASE for event in events)
    last = next(event for event in reversed(events) if event.from_state != event.to_state)
    way = WHAT.get(last.trigger, last.trigger) if action.escalated_at is None else WHAT[Trigger.ESCALATE]
    return f"{way}, after it was sent again" if sent else way
