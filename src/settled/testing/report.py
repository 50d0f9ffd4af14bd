"""What a crash matrix has seen: a row for each crash point, and the table that people read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from settled.state.model import Action
from settled.state.store import Ledger
from settled.testing.remote import FaultyRemote
from settled.testing.scene import Scene


@dataclass(frozen=True)
class Crash:
    """One crash point after its restarts: what a `check` may look at. `said` is what the scenario returned in the end,
    `actions` all that the ledger has, oldest first, `effects` how many were counted.
    """

    point: str
    scene: Scene
    ledger: Ledger
    remote: FaultyRemote
    actions: Sequence[Action]
    effects: int
    said: Any


@dataclass(frozen=True)
class CrashRow:
    """One crash point: the states that the dead process left, the restarts that followed, the effects at the remote
    side, the states at the end, and what is wrong with it (None: nothing).
    """

    point: str
    found: str
    restarts: int
    effects: int
    final: str
    said: Any = None
    problem: str | None = None


@dataclass(frozen=True)
class CrashReport:
    """All rows of a scenario: the run that nobody killed, then the instants of the protocol in order, then those in the
    middle of a body.
    """

    scenario: str
    rows: tuple[CrashRow, ...]

    @property
    def problems(self) -> tuple[CrashRow, ...]:
        """The rows that something is wrong with."""
        return tuple(row for row in self.rows if row.problem is not None)

    def check(self) -> None:
        """Raise AssertionError, with the table, if something is wrong with any row."""
        if self.problems:
            raise AssertionError(f"{len(self.problems)} of {len(self.rows)} rows are wrong\n\n{self}")

    def __str__(self) -> str:
        head = ("crash point", "found", "restarts", "effects", "final", "problem")
        lines = [head, *(_line(row) for row in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        return "\n".join([f"crash matrix of {self.scenario}", "", *(line.rstrip() for line in shown)])


def states(actions: Sequence[Action]) -> str:
    """Return the states of actions in a cell; those that wait for a person say so."""
    return ", ".join(_state(action) for action in actions) or "none"


def _state(action: Action) -> str:
    return f"{action.state} (manual queue)" if action.escalated_at is not None and action.is_open else str(action.state)


def _line(row: CrashRow) -> tuple[str, ...]:
    return row.point, row.found, str(row.restarts), str(row.effects), row.final, row.problem or ""
