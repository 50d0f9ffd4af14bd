"""Where a run of a chain stands: the pure view of its row, its steps and their actions.

Owns what each step's state means and what follows for the run. Nothing here is stored: actions are settled by anybody
(a worker, a person), so a stored word for the run would be old the moment after. The subtle things: a run never says
"undone" of what still is in effect, whatever the reason, and an action that its caller stopped before it was sent
counts as not begun.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from settled.state.chains import ChainRow, StepRow
from settled.state.machine import State
from settled.state.model import Action
from settled.tools.contract import Contract
from settled.tools.messages import Code
from settled.tools.result import readable
from settled.tools.standing import WITHDRAWN, closed_code, was_stopped


class StepState(StrEnum):
    """Where a step stands. `not_undone`: its undoing did nothing, cannot begin, or is a person's to decide."""

    TO_DO = "to_do"
    RUNNING = "running"
    WAITING = "waiting"
    UNKNOWN = "unknown"
    DONE = "done"
    FAILED = "failed"
    UNDOING = "undoing"
    NOT_UNDONE = "not_undone"
    UNDONE = "undone"


class ChainState(StrEnum):
    """Where a run stands."""

    RUNNING = "running"
    WAITING = "waiting"
    UNKNOWN = "unknown"
    SUCCEEDED = "succeeded"
    STOPPED = "stopped"
    COMPENSATING = "compensating"
    COMPENSATED = "compensated"
    PARTIALLY_COMPENSATED = "partially_compensated"


OVER = frozenset({ChainState.SUCCEEDED, ChainState.COMPENSATED})
"""What nobody has to carry on."""

_MAY_ACT = frozenset({StepState.RUNNING, StepState.WAITING, StepState.UNKNOWN})
_IN_EFFECT = frozenset({StepState.DONE, StepState.UNDOING, StepState.NOT_UNDONE})


@dataclass(frozen=True, slots=True)
class StepStanding:
    """One step: its row and its action, if it was begun, and the action that undoes it, if there is one."""

    position: int
    name: str
    tool: str
    is_reversible: bool
    row: StepRow | None = None
    action: Action | None = None
    undo: Action | None = None

    @property
    def state(self) -> StepState:
        """Where it stands."""
        if self.row is None:
            return StepState.TO_DO
        if self.row.undone_at is not None:
            return StepState.UNDONE
        if self.row.finished_at is not None:
            return StepState.DONE
        if self.action is None:
            return StepState.RUNNING if self.row.code is None else StepState.FAILED
        return _of_action(self.action, self.undo, self.row.undo_reason)

    @property
    def is_in_effect(self) -> bool:
        """Whether it has changed something that is not undone."""
        return self.state in _IN_EFFECT and (self.action is not None or self.by is not None)

    @property
    def can_be_undone(self) -> bool:
        """Whether an action can undo it. What a person did by hand, a person undoes."""
        return self.is_reversible and self.action is not None and self.is_in_effect

    @property
    def by(self) -> str | None:
        """The person who did it by hand."""
        return self.row.finished_by if self.row is not None else None

    @property
    def receipt(self) -> str | None:
        """The remote side's reference of what was done."""
        if self.action is not None:
            return self.action.receipt
        return self.row.receipt if self.row is not None else None

    @property
    def result(self) -> object:
        """What it has brought, as plain JSON."""
        if self.action is not None:
            return readable(self.action.result)
        return self.row.result if self.row is not None else None

    @property
    def code(self) -> Code | None:
        """How a step that failed ended."""
        if self.state is not StepState.FAILED:
            return None
        if self.action is not None:
            return closed_code(self.action)
        return Code(self.row.code) if self.row is not None and self.row.code else None

    @property
    def reason(self) -> str | None:
        """Why it stands where it does."""
        if self.state is StepState.NOT_UNDONE:
            return _why_not_undone(self)
        if self.action is not None:
            return self.action.reason
        return self.row.reason if self.row is not None else None

    @property
    def open_action(self) -> Action | None:
        """The action that has to end before the run goes on: its own, or the one that undoes it."""
        own = self.undo if self.state in (StepState.UNDOING, StepState.NOT_UNDONE) else self.action
        return own if own is not None and own.is_open else None


def _of_action(action: Action, undo: Action | None, undo_reason: str | None) -> StepState:
    match action.state:
        case State.PLANNED:
            return StepState.WAITING
        case State.APPROVED | State.RUNNING:
            return StepState.RUNNING
        case State.UNKNOWN:
            return StepState.UNKNOWN
        case State.SUCCEEDED:
            return StepState.DONE if undo_reason is None else StepState.NOT_UNDONE
        case State.FAILED | State.CANCELLED:
            if action.superseded_by is not None:  # by a person: the step goes on as the changed one
                return StepState.RUNNING
            return StepState.TO_DO if was_stopped(action) else StepState.FAILED
        case State.COMPENSATION_PENDING:
            return StepState.NOT_UNDONE if undo is None or _did_nothing(undo) else StepState.UNDOING
        case State.COMPENSATED:
            return StepState.UNDONE
        case _:
            assert_never(action.state)


def _did_nothing(undo: Action) -> bool:
    """Whether an undoing needs a person, or another try."""
    if undo.state in (State.FAILED, State.CANCELLED):
        return undo.superseded_by is None
    return undo.is_open and undo.escalated_at is not None


def _why_not_undone(step: StepStanding) -> str | None:
    if step.undo is not None:
        return step.undo.reason
    return step.row.undo_reason if step.row is not None else None


@dataclass(frozen=True, slots=True)
class Standing:
    """One run with all its steps, those too that are still to do."""

    chain: ChainRow
    steps: tuple[StepStanding, ...]

    @property
    def state(self) -> ChainState:
        """Where the run stands."""
        under_way = self.under_way
        if (
            any(step.state in _GOES_BACK for step in self.steps) and under_way is None
        ) or self.chain.turned_at is not None:
            return self._going_back()
        if self.chain.ended_as is not None:
            return ChainState(self.chain.ended_as)
        if (step := under_way or self.current) is None:
            return ChainState.RUNNING  # all is done, and that is written down next
        match step.state:
            case StepState.WAITING:
                return ChainState.WAITING
            case StepState.UNKNOWN:
                return ChainState.UNKNOWN
            case StepState.FAILED:
                return ChainState.COMPENSATING if self.is_to_turn else ChainState.STOPPED
            case _:
                return ChainState.RUNNING

    def _going_back(self) -> ChainState:
        """A run that was turned; or one of which a person has undone a step by itself."""
        if not self.in_effect:
            return ChainState.COMPENSATED if self.chain.turned_at or self.chain.ended_at else ChainState.STOPPED
        step = self.to_undo
        is_next = step is not None and step.state is StepState.DONE and self.chain.turned_at is not None
        if is_next or (step is not None and step.state is StepState.UNDOING):
            return ChainState.COMPENSATING
        return ChainState.PARTIALLY_COMPENSATED

    @property
    def current(self) -> StepStanding | None:
        """The first step that is not done."""
        return next((step for step in self.steps if step.state is not StepState.DONE), None)

    @property
    def under_way(self) -> StepStanding | None:
        """The step that may still take effect: the current one, but where a person has undone an earlier one by itself
        meanwhile.
        """
        return next((step for step in self.steps if step.state in _MAY_ACT), None)

    @property
    def is_all_done(self) -> bool:
        """Whether every step is done."""
        return self.current is None

    @property
    def in_effect(self) -> tuple[StepStanding, ...]:
        """The steps that have changed something which is not undone."""
        return tuple(step for step in self.steps if step.is_in_effect)

    @property
    def is_to_turn(self) -> bool:
        """Whether a failure of the current step means to undo what was done."""
        return self.chain.on_failure == "compensate" and bool(self.in_effect)

    @property
    def to_undo(self) -> StepStanding | None:
        """The step whose undoing is next, or under way: the newest that an action can undo."""
        return next((step for step in reversed(self.steps) if step.can_be_undone), None)

    @property
    def waits_for(self) -> StepStanding | None:
        """The step that keeps the run from going on."""
        if self.chain.turned_at is not None:
            return self.to_undo or next(iter(reversed(self.in_effect)), None)
        return self.under_way or self.current

    @property
    def did_nothing(self) -> bool:
        """Whether nothing of it is in effect and nothing may come: another input is no conflict with it."""
        state = self.state
        return state is ChainState.COMPENSATED or (state is ChainState.STOPPED and not self.in_effect)

    def of(self, name: str) -> StepStanding | None:
        """Return a step by name."""
        return next((step for step in self.steps if step.name == name), None)


_GOES_BACK = frozenset({StepState.UNDOING, StepState.NOT_UNDONE, StepState.UNDONE})


def standing_of(
    chain: ChainRow, rows: Sequence[StepRow], actions: Mapping[str, Action], code: Sequence[tuple[str, str, bool]] = ()
) -> Standing:
    """Return where a run stands. `code` names the steps of the chain as it is declared now (name, tool, whether it can
    be undone); without it, they are those of the code that began the run.
    """
    begun = {row.position: row for row in rows}
    irreversible = set(chain.irreversible)
    then = [(n, t, n not in irreversible) for n, t in zip(chain.steps, chain.tools, strict=True)]
    known = then if chain.ended_at is not None else code or then  # a run that is over has no steps that came later
    last = max((*begun, len(known) - 1))
    return Standing(chain, tuple(_step_at(place, known, begun.get(place), actions) for place in range(last + 1)))


def _step_at(
    place: int, known: Sequence[tuple[str, str, bool]], row: StepRow | None, actions: Mapping[str, Action]
) -> StepStanding:
    if row is None:
        return StepStanding(place, *known[place])
    action = actions.get(row.action_id or "")
    undo = None if action is None else actions.get(action.compensated_by or "")
    reversible = row.is_reversible or (place < len(known) and known[place][2])
    return StepStanding(place, row.name, row.tool, reversible, row, action, undo)


def may_be_tried_again(action: Action, contract: Contract) -> bool:
    """Whether what did nothing is begun anew by whoever carries the run on: it was away, out of budget or not decided
    in time, and that is a while ago (as long as its deadline, as for any action). A "no" stands.
    """
    if was_stopped(action):
        return True
    if action.code not in (Code.UNAVAILABLE, Code.EXPIRED, Code.BUDGET_EXCEEDED, WITHDRAWN):
        return False
    return (action.now - (action.settled_at or action.now)).total_seconds() > contract.deadline_s
