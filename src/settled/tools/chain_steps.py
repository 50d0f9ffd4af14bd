"""THE file of chains: one step from its arguments to its end, and the way back. Each node of the graph is one of these.

    begin ─▶ carry_step (the first that is not done) ─▶ … ─▶ succeeded
                  └─▶ turn ─▶ undo (the newest) ─▶ undo ─▶ … ─▶ compensated

A step's arguments and the id of its action are committed before the action begins: whoever comes after a crash begins
that very action, or finds it by its id, for ever. Each function is a generator of parts
(`settled.tools.chain_driving`): what is written after a body was called is a part of its own, which a cancelled caller
never reaches.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from settled.state import chains, ledger
from settled.state.chains import Intended, Place, StepRow
from settled.state.errors import InvalidArguments
from settled.state.model import Plan
from settled.tools import arguments as args
from settled.tools import protocol
from settled.tools.chain_back import can_go_back
from settled.tools.chain_driving import Moves, part
from settled.tools.chain_runs import RACES, Run, meet, place_of
from settled.tools.chain_standing import ChainState, Standing, StepStanding, StepState, may_be_tried_again
from settled.tools.chains import SoFar, Step, StepDone
from settled.tools.effects import Steps, ask
from settled.tools.messages import Code
from settled.tools.perform import Options, prepare, taken_up
from settled.tools.policy import Ask, PlannedAction, Verdict
from settled.tools.reading import ReadEnd, read
from settled.tools.standing import Answered, Waiting
from settled.tools.storable import storable


def next_of(run: Run, now: Standing) -> str | None:
    """Return the node that carries a run on: a step's name, `compensate`, or None where nobody can go on now."""
    if now.chain.ended_at is not None:
        return None
    if now.chain.turned_at is not None:
        step = now.to_undo
        return "compensate" if step is not None and can_go_back(run, step) else None
    step = now.current
    if step is None or now.state in (ChainState.COMPENSATED, ChainState.PARTIALLY_COMPENSATED):
        return None
    match step.state:
        case StepState.FAILED if now.is_to_turn:
            return "compensate"
        case StepState.FAILED:
            return step.name if _begins_anew(run, step) else None
        case StepState.TO_DO | StepState.RUNNING | StepState.WAITING | StepState.UNKNOWN:
            return step.name
        case _:  # a person has undone it by itself: it is his to say how it goes on
            return None


def _begins_anew(run: Run, step: StepStanding) -> bool:
    """Whether a step that did nothing is tried again: what is surely no "no"."""
    if step.action is not None:
        return may_be_tried_again(step.action, run.chain.steps[step.position].contract)
    tool = run.chain.steps[step.position].contract
    return step.code in (Code.UNAVAILABLE, *(() if tool.is_read else (Code.INVALID,)))


def carry_step(run: Run, now: Standing) -> Moves[Standing]:
    """Carry the current step on as far as it goes now, and write down the run's end with the last one's."""
    at = now.current
    if at is not None:
        row = yield from part(None, _written(run, now, at))
        if row is not None and row.finished_at is None and row.code is None:
            yield from _acted(run, now, run.chain.steps[at.position], row)
    return (yield from meet(run, now.chain.id))


def _written(run: Run, now: Standing, at: StepStanding) -> Steps[StepRow | None]:
    """Return the step's row, written now where there is none, or where it is to be tried anew."""
    row = at.row
    if row is not None and not (at.state is StepState.FAILED or (at.state is StepState.TO_DO and at.action)):
        return row
    what = _intended(run, now, at.position)
    place = place_of(now.chain, at)
    for _ in range(RACES):
        query = chains.begin_step(place, what) if row is None else chains.try_step(place, what, tries=row.tries)
        written = yield from ask(query)
        if written is not None or row is not None:
            return written
        chain = yield from ask(chains.load(place.tenant, place.chain_id))
        if chain is None or chain.ended_at is not None or chain.turned_at is not None:
            return None
    raise AssertionError(f"{place.chain_id}: the step {place.name} was neither written nor showed itself")


def _intended(run: Run, now: Standing, position: int) -> Intended:
    """Return what a step will do, or why it cannot."""
    step = run.chain.steps[position]
    try:
        made = step.arguments_for(_so_far(run, now))
    except InvalidArguments as error:  # the author's code: nothing that a caller could correct
        return Intended(failure=(Code.UNAVAILABLE, str(error)))
    try:
        call = prepare(step.contract, made, _options(run, now, step, 0), run.store)
    except InvalidArguments as error:
        return Intended(failure=(Code.INVALID, str(error)))
    return Intended(None if step.contract.is_read else call.plan.id, call.plan.arguments)


def _so_far(run: Run, now: Standing) -> SoFar:
    done = {one.name: StepDone(one.receipt, one.result) for one in now.steps if one.state is StepState.DONE}
    return SoFar(args.restore(run.chain.schema, now.chain.input, run.chain.secrets, run.store.vault), done)


def _options(run: Run, now: Standing, step: Step, tries: int) -> Options:
    """Return on whose behalf a step is carried out: whoever began the run. Its intent is the step's own."""
    chain = now.chain
    return replace(
        run.options,
        thread_id=chain.thread_id,
        decision=("chain", chain.id, step.name, str(tries)) if tries else None,
        requester=chain.requester,
        roles=tuple(chain.roles),
        correlation_id=chain.correlation_id,
        scope=f"chain\x1f{chain.id}\x1f{step.name}",
    )


def _acted(run: Run, now: Standing, step: Step, row: StepRow) -> Moves[None]:
    place = place_of(now.chain, now.steps[row.position])
    values = args.restore(step.contract.schema, row.arguments or {}, step.contract.secrets, run.store.vault)
    options = _options(run, now, step, row.tries)
    if step.contract.is_read:
        found = yield from part(step.contract, read(prepare(step.contract, values, options, run.store)))
        yield from part(None, _recorded(place, row, found))
        return
    asks = now.chain.repeat_of is not None and not any(one.is_in_effect for one in now.steps)
    yield from part(step.contract, _performed(run, step, row, values, options, place, asks=asks))


def _recorded(place: Place, row: StepRow, found: ReadEnd) -> Steps[None]:
    if found.code is Code.SUCCEEDED:
        yield from ask(chains.record_step(place, tries=row.tries, result=storable(found.result)))
    else:
        reason = found.reason or "it has no result"
        yield from ask(chains.fail_step(place, tries=row.tries, code=found.code, reason=reason))


def _performed(
    run: Run, step: Step, row: StepRow, values: Mapping[str, Any], options: Options, place: Place, *, asks: bool
) -> Steps[None]:
    """Carry the action of a step's row on, or begin it under the id that the row has for it."""
    own = row.action_id or ""
    action = yield from ask(ledger.load(place.tenant, own))
    if action is not None:
        call = taken_up(step.contract, action, run.store, options)
    else:
        call = prepare(step.contract, values, options, run.store)
        call = replace(call, plan=replace(call.plan, id=own))
        if asks:
            call = replace(call, policies=(*call.policies, _asks_for_a_repeat))
    run.alive(call.plan.owner)
    _, end = yield from protocol.perform(call)
    yield from _noted(place, row, call.plan, end)


def _asks_for_a_repeat(_: PlannedAction) -> Verdict:
    """A chain that is repeated on purpose is never silent: a person is asked before the first of its effects."""
    return Ask("the chain that it belongs to is asked for once more, beside an earlier one")


def _noted(place: Place, row: StepRow, mine: Plan, end: Answered | Waiting) -> Steps[None]:
    """Note where the step's action is another one than the row says, or was never begun."""
    if end.action.id == mine.id:
        return
    if (yield from ask(ledger.load(place.tenant, mine.id))) is not None:  # a person has changed it
        yield from ask(chains.follow_step(place, changed=mine.id, action_id=end.action.id))
    elif isinstance(end, Answered) and end.code not in (Code.IN_PROGRESS, Code.UNKNOWN):
        reason = end.reason or f"{end.action.id} stands in its way"
        # Closed, so that whoever was frozen before he began it finds that, when nothing stands in its way any more.
        yield from ask(ledger.plan(replace(mine, denied=(end.code, reason))))
        yield from ask(
            chains.fail_step(place, tries=row.tries, code=end.code, reason=reason, receipt=end.action.receipt)
        )
