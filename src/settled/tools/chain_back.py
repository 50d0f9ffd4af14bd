"""The way back of a chain: newest first, each step undone by an action of its own.

What cannot be undone now holds up what is older: the order of the steps was the author's, and so is its reverse.
Nothing is skipped but what has no way back; a person may say that a step is undone, and the rest goes on.
"""

from settled.state import chains
from settled.state.errors import AlreadyDecided, ContractError, DuplicateAction, InvalidArguments, NotPermitted
from settled.state.model import Action
from settled.tools.chain_driving import Moves, part
from settled.tools.chain_runs import Run, look, meet, place_of
from settled.tools.chain_standing import Standing, StepStanding, StepState, may_be_tried_again
from settled.tools.compensation import Undoing, compensate
from settled.tools.effects import ask
from settled.tools.messages import Code


def go_back(run: Run, now: Standing) -> Moves[Standing]:
    """Turn a run whose step failed for good, and carry the undoing of its newest step on."""
    if now.chain.turned_at is None:
        now = yield from _turned(run, now)
    step = now.to_undo
    if now.chain.turned_at is not None and step is not None and can_go_back(run, step):
        yield from _undone(run, now, step)
    return (yield from meet(run, now.chain.id))


def _turned(run: Run, now: Standing) -> Moves[Standing]:
    failed = now.current
    if failed is not None and failed.state is StepState.FAILED and now.is_to_turn:
        code, reason = failed.code or Code.REJECTED, failed.reason or "no reason was given"
        yield from part(None, ask(chains.turn(now.chain, failed_step=failed.name, code=code, reason=reason)))
    return (yield from look(run, now.chain.id))


def _undone(run: Run, now: Standing, at: StepStanding) -> Moves[None]:
    contract, place, reason = run.chain.steps[at.position].contract, place_of(now.chain, at), None
    note = f"{now.chain.id}: its step {now.chain.failed_step} did not take place"
    undoing = Undoing(
        contract, run.store, run.options.policies, note=note, wait_s=run.options.wait_s, language=run.options.language
    )
    assert at.action is not None, "a step that can be undone has an action"
    try:
        yield from part(undoing.undoer, compensate(undoing, at.action))
    except AlreadyDecided:  # it moved meanwhile: the next look says where to
        return
    except (ContractError, InvalidArguments, NotPermitted, DuplicateAction) as error:
        reason = f"its undoing could not begin: {error}"
    if reason is not None or (at.row is not None and at.row.undo_reason is not None):
        yield from part(None, ask(chains.not_undone(place, reason=reason)))


def can_go_back(run: Run, step: StepStanding) -> bool:
    """Whether whoever carries the run on can do something about the undoing of a step."""
    if step.state is not StepState.NOT_UNDONE or step.undo is None:
        return True
    if step.undo.is_open:  # in the manual queue: its remote side may be able to tell by now
        return True
    how = run.chain.steps[step.position].contract.compensate
    return how is not None and (
        may_be_tried_again(step.undo, how.tool.contract) or _is_old_refusal(step.undo, how.tool.contract.deadline_s)
    )


def _is_old_refusal(undo: Action, deadline_s: float) -> bool:
    """Whether the remote side said no to an undoing, a while ago. (A person's "no" is his to take back.)"""
    said_no = undo.code in (Code.REJECTED, Code.INVALID, Code.CONFLICT)
    return said_no and (undo.now - (undo.settled_at or undo.now)).total_seconds() > deadline_s
