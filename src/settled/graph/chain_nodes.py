"""A chain as a LangGraph graph: `begin`, a node for each step, and `compensate`.

    begin ─▶ verify_coupon ─▶ deduct_coupon ─▶ ship ─▶ (end)
                                    └─▶ compensate ─▶ compensate ─▶ (end)

Each node carries out the moves of its name (`settled.tools.chain_steps`), which read where the run stands from the
ledger: running any node again, in any process, is harmless, and one whose turn it is not only says whose it is. The
state is plain JSON. Where a person is asked and the graph keeps checkpoints, the node of the step interrupts; the
decision goes into the ledger first, and a new task of that node carries it on.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypedDict

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph

from settled.graph.identity import check_lock
from settled.state.errors import LEDGER_IS_GONE, ContractError, InvalidArguments
from settled.tools.chain_back import go_back
from settled.tools.chain_begin import Clash, begin
from settled.tools.chain_driving import Driver, Moves
from settled.tools.chain_outcome import (
    ChainOutcome,
    clash_outcome,
    outcome_of,
    refused_outcome,
    unrecorded_outcome,
)
from settled.tools.chain_runs import Run, look, meet
from settled.tools.chain_standing import Standing, StepState
from settled.tools.chain_steps import carry_step, next_of
from settled.tools.chains import MAX_STEPS, RESERVED, ChainContract
from settled.tools.effects import Steps
from settled.tools.messages import Code
from settled.tools.perform import invalid
from settled.tools.runner import REAL, Runner, World

VISIT_KEY = "__settled_chain"
"""Under which a nested run is told who carries the chain on."""

BEGIN, COMPENSATE = RESERVED

MOST_NODES = 4 * MAX_STEPS
"""Each step is visited once forward and once back, and once more for each answer of a person."""

_log = logging.getLogger("settled")

ChainGraph = CompiledStateGraph[Any, None, Any, Any]


class Progress(TypedDict, total=False):
    """The graph's state: the `input` of a new run, or the `chain_id` of one that is to go on; the node that is `next`;
    the record of a `ChainOutcome` after each node; why a person's last answer could not be used.
    """

    input: dict[str, Any]
    chain_id: str
    next: str
    outcome: dict[str, Any]
    problem: str | None


@dataclass(frozen=True)
class Visit:
    """Who carries a chain on. `own_call` is the correlation id of the call that it answers; `ask` asks a person about
    an action, and says why his answer could not be used: None where nobody can be asked from here. `told` are the
    outcomes after each node, with what the graph's state is too small for.
    """

    run: Run
    world: World = REAL
    own_call: str | None = None
    ask: Callable[[str, str | None], tuple[Runner, Steps[str | None]]] | None = None
    told: list[ChainOutcome] = field(default_factory=list)
    seen: list[Standing] = field(default_factory=list)
    """Where the run stood at the end of the node before, in this process. Each write is compared with what it was made
    of, so that reading it anew would cost statements and add no safety.
    """


VisitOf = Callable[[RunnableConfig], Visit]


def visit_in(config: RunnableConfig) -> Visit:
    """Return the visit that a nested run was begun with."""
    visit: Visit = config.get("configurable", {})[VISIT_KEY]
    return visit


def compiled(
    chain: ChainContract, visit_of: VisitOf = visit_in, checkpointer: BaseCheckpointSaver[Any] | bool | None = False
) -> ChainGraph:
    """Return the graph of a chain."""
    graph = StateGraph(Progress)
    names = [BEGIN, *(step.name for step in chain.steps), COMPENSATE]
    for name in names:
        graph.add_node(name, _Node(name, visit_of))
        graph.add_conditional_edges(name, _next, {**{other: other for other in names}, "": END})
    graph.add_edge(START, BEGIN)
    compiled_graph: ChainGraph = graph.compile(checkpointer=checkpointer, name=chain.name)
    return compiled_graph.with_config(recursion_limit=MOST_NODES)


def _next(state: Progress) -> str:
    return state.get("next", "")


class _Node(Runnable[Progress, Progress]):
    """One node."""

    def __init__(self, name: str, visit_of: VisitOf) -> None:
        self.name: str = name
        self._visit_of = visit_of

    def invoke(self, input: Progress, config: RunnableConfig | None = None, **kwargs: Any) -> Progress:  # noqa: A002
        check_lock(config or {})
        visit = self._visit_of(config or {})
        try:
            update = Driver(visit.run.store, visit.world).drive(_visited(self.name, visit, input))
        except LEDGER_IS_GONE:
            update = _not_recorded(self.name, visit, input)
        check_lock(config or {})
        if visit.ask is not None and (waiting := _waiting(update)):
            runner, asking = visit.ask(waiting, input.get("problem"))
            return {**update, "next": self.name, "problem": runner.drive(asking)}
        return update

    async def ainvoke(
        self,
        input: Progress,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Progress:
        check_lock(config or {})
        visit = self._visit_of(config or {})
        try:
            update = await Driver(visit.run.store, visit.world).adrive(_visited(self.name, visit, input))
        except LEDGER_IS_GONE:
            update = _not_recorded(self.name, visit, input)
        check_lock(config or {})
        if visit.ask is not None and (waiting := _waiting(update)):
            runner, asking = visit.ask(waiting, input.get("problem"))
            return {**update, "next": self.name, "problem": await runner.adrive(asking)}
        return update


def _visited(name: str, visit: Visit, state: Progress) -> Moves[Progress]:
    """Do what a node does, and say which one is next."""
    run = visit.run
    if name == BEGIN:
        return (yield from _begun(visit, state))
    now = visit.seen.pop() if visit.seen else (yield from look(run, state["chain_id"]))
    if next_of(run, now) != name:
        return _update(visit, now, next_of(run, now))
    was_undone = _undone(now)
    try:
        now = yield from (go_back(run, now) if name == COMPENSATE else carry_step(run, now))
    except InvalidArguments:  # of a step that was begun: its tool, or its secret's key, has changed since
        _log.exception("the step %s of %s cannot be carried on by the code as it is", name, now.chain.id)
        return _update(visit, (yield from look(run, now.chain.id)), None)
    wanted = next_of(run, now)
    # A step is tried once in a visit of the chain; the way back goes on while something is undone.
    return _update(visit, now, None if wanted == name and _undone(now) == was_undone else wanted)


def _begun(visit: Visit, state: Progress) -> Moves[Progress]:
    run = visit.run
    try:
        given = state.get("input")
        if given is None and "chain_id" not in state:
            raise ContractError(f'{run.chain.name}: begin it with {{"input": {{...}}}}, or go on with a chain_id')
        met = yield from (begin(run, given) if given is not None else meet(run, state["chain_id"]))
    except InvalidArguments as error:
        told = refused_outcome(invalid(run.chain, error, run.options.language), run.chain.irreversible)
        return _ended(visit, told)
    if isinstance(met, Clash):
        return _ended(visit, clash_outcome(met, run.chain.name, run.options.language))
    if (left := next_of(run, met)) is not None and run.chain.irreversible and not any(one.row for one in met.steps):
        _log.info("%s begins; its steps without a way back: %s", met.chain.id, ", ".join(run.chain.irreversible))
    is_others = visit.own_call is None or visit.own_call != met.chain.correlation_id
    return _update(visit, met, left, replayed=is_others and met.chain.ended_at is not None)


def _undone(now: Standing) -> int:
    return sum(step.state is StepState.UNDONE for step in now.steps)


def _update(visit: Visit, now: Standing, wanted: str | None, *, replayed: bool = False) -> Progress:
    outcome = outcome_of(now, visit.run.options.language, replayed=replayed)
    _tell(now, outcome)
    visit.told.append(outcome)
    visit.seen[:] = [now]
    return Progress(chain_id=now.chain.id, next=wanted or "", outcome=outcome.record(), problem=None)


def _ended(visit: Visit, outcome: ChainOutcome) -> Progress:
    visit.told.append(outcome)
    return Progress(next="", outcome=outcome.record(), problem=None)


def _not_recorded(name: str, visit: Visit, state: Progress) -> Progress:
    """Say what is known where the ledger went away: of a run that has begun, not even whether it acted."""
    _log.error("the ledger did not answer for %s", state.get("chain_id") or visit.run.chain.name, exc_info=True)
    chain = visit.run.chain
    invoked = name != BEGIN
    return _ended(
        visit, unrecorded_outcome(chain.name, visit.run.options.language, chain.irreversible, invoked=invoked)
    )


def _waiting(update: Progress) -> str | None:
    """Return the action that waits for a person, where the run cannot go on without him."""
    outcome = update["outcome"]
    is_waiting = outcome["code"] == Code.WAITING_FOR_APPROVAL and not update["next"]
    return outcome["artifact"]["action_id"] if is_waiting else None


def _tell(now: Standing, outcome: ChainOutcome) -> None:
    """Stream where the run stands now, to whoever listens to `custom` events."""
    event = {
        "chain_id": now.chain.id,
        "chain": now.chain.name,
        "state": str(now.state),
        "steps": {step.name: str(step.state) for step in now.steps},
        "irreversible": list(outcome.irreversible),
    }
    try:
        write = get_stream_writer()
    except RuntimeError:  # no graph is running
        return
    write({"settled": event})
