"""What a played scenario leaves: who did what, and what everybody was told; `play` fills it, `render` shows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from settled.demo.scenarios import Scenario
from settled.state.model import Action, Approval, Event
from settled.state.outbox import Posted
from settled.tools.chain_standing import OVER, Standing

MANY = 5
"""More actions than these are not told one by one."""


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


@dataclass(frozen=True)
class Worked:
    """What became of a worker process: how it ended, how long it was frozen, and what it said that it had done; one
    that was killed said nothing.
    """

    name: str
    ended: str
    frozen_s: float = 0.0
    did: Mapping[str, int] | None = None


@dataclass
class Story:
    """A scenario that was played. `counted` are the effects by kind, as the service has them; `skew_s` is how far the
    ledger's clock is ahead of this machine's.
    """

    scenario: Scenario
    turns: Sequence[str]
    counted: Mapping[str, int] = field(default_factory=dict)
    actions: Sequence[tuple[Action, Sequence[Event]]] = ()
    approvals: Sequence[Approval] = ()
    told: Told = field(default_factory=lambda: Told("", ()))
    marks: list[Mark] = field(default_factory=list)
    requests: Sequence[Mapping[str, Any]] = ()
    skew_s: float = 0.0
    chains: Sequence[Standing] = ()
    messages: Sequence[Posted] = ()
    workers: Sequence[Worked] = ()

    @property
    def effects(self) -> int:
        """How many effects there are in all."""
        return sum(self.counted.values())

    @property
    def left_open(self) -> Sequence[Action]:
        """The actions that are not settled, and that nobody was asked to decide."""
        return [action for action, _ in self.actions if is_left_open(action)]

    @property
    def came_out(self) -> bool:
        """Whether there are as many effects as there must be, of each kind, and nothing was left to do."""
        as_many = self.counted == self.scenario.expected and self.effects == self.scenario.expected_effects
        is_over = all(run.state in OVER for run in self.chains)
        return as_many and is_over and not self.left_open and all(one.state == "delivered" for one in self.messages)


def is_left_open(action: Action) -> bool:
    """Whether an action is not settled, and nobody was asked to decide it."""
    return action.is_open and action.escalated_at is None
