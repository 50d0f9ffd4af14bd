"""What a played scenario leaves: who did what, and what everybody was told; `play` fills it, `render` shows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from settled.demo.scenarios import Scenario
from settled.state.model import Action, Approval, Event


@dataclass(frozen=True)
class Told:
    """What an agent's process answered last; `waiting` names the actions that a person is to decide on."""

    reply: str
    tool_messages: Sequence[Mapping[str, Any]]
    waiting: Sequence[str] = ()


@dataclass(frozen=True)
class Mark:
    """Something that a process did or suffered, or a person did, at a Unix time."""

    at: float
    text: str
    detail: str = ""
    who: str = "process"


@dataclass
class Story:
    """A scenario that was played. `skew_s` is how far the ledger's clock is ahead of this machine's."""

    scenario: Scenario
    turns: Sequence[str]
    effects: int = 0
    actions: Sequence[tuple[Action, Sequence[Event]]] = ()
    approvals: Sequence[Approval] = ()
    told: Told = field(default_factory=lambda: Told("", ()))
    marks: list[Mark] = field(default_factory=list)
    requests: Sequence[Mapping[str, Any]] = ()
    skew_s: float = 0.0

    @property
    def came_out(self) -> bool:
        """Whether there are as many effects as there must be."""
        return self.effects == self.scenario.expected_effects
