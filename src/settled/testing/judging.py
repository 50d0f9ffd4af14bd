"""What must be true of a crash point in the end: as many effects as meant, and nothing open. Values only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from settled.state.machine import State
from settled.state.model import Action
from settled.testing.report import Crash
from settled.testing.scene import Died, Finished, Raised

MAX_WORDS = 160
"""A problem is a line of a table."""

Check = Callable[[Crash], object]


@dataclass(frozen=True)
class Judge:
    """What is meant: so many effects, whether the manual queue is an end as well, and what else must be true."""

    effects: int
    manual: bool
    check: Check | None

    def problem(self, crash: Crash, ended: Died | Finished | Raised) -> str | None:
        """Return what is wrong with a crash point, or None."""
        found = [_of_run(ended), self._of_actions(crash.actions), self._of_effects(crash)]
        said = "; ".join(problem for problem in found if problem)
        return _short(said) if said else self._of_check(crash)

    def _of_actions(self, actions: Sequence[Action]) -> str | None:
        left = [action for action in actions if action.is_open and not (self.manual and _is_manual(action))]
        told = [f"{a.tool} stays {a.state}{f' ({a.reason})' if a.reason else ''}" for a in left]
        return "; ".join(told) or None

    def _of_effects(self, crash: Crash) -> str | None:
        may_be_missing = self.manual and any(_is_manual(action) for action in crash.actions)
        if crash.effects == self.effects or (may_be_missing and crash.effects < self.effects):
            return None
        return f"{crash.effects} {'effect' if crash.effects == 1 else 'effects'} instead of {self.effects}"

    def _of_check(self, crash: Crash) -> str | None:
        try:
            if self.check is not None:
                self.check(crash)
        except AssertionError as error:
            return _short(f"check: {error}")
        return None


def waits_for_person(action: Action) -> bool:
    """Whether only a person can end an action: it is in the manual queue, or asks for an approval."""
    return _is_manual(action) or action.state is State.PLANNED


def _is_manual(action: Action) -> bool:
    return action.is_open and action.escalated_at is not None


def _of_run(ended: Died | Finished | Raised) -> str | None:
    match ended:
        case Raised():
            return f"it raised: {ended.reason}"
        case Died():
            return "it never came to its end"
        case Finished():
            return None


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_WORDS else line[: MAX_WORDS - 1] + "…"
