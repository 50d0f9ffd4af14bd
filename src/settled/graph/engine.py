"""The engine: one action as a LangGraph graph, plan → approve → run → reconcile → settle.

    plan ─┬─▶ run ─┬─▶ (answered)
          │        └─▶ reconcile ─▶ settle ─▶ run or (answered)
          └─▶ approve ─▶ run or (answered)

Each node runs the protocol's function of the same name. The state is plain JSON; the right to write (a claim) stays
in the `Flight` of this visit and is taken out when it is used. A node that does not find it there goes back to
`plan`, which asks the ledger where the action stands: a running action of a dead owner becomes unknown there and is
reconciled, and never reaches the body again. So every node may be run again.

The graph keeps no checkpoints of its own (`checkpointer=False`): what it would need after a crash is in the ledger,
which is asked first anyway, and the host's graph keeps the place of the call in the conversation. The happy path
needs neither waiting nor branching, so `Engine.call` takes its two nodes, plan and run, straight, and enters the
graph where there is something to wait for; a nested run of two supersteps costs some 2.5 ms, a third of a turn of a
plain agent.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Literal, TypedDict, TypeVar, assert_never, get_args

from langchain_core.runnables import RunnableConfig
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import RunControl

from settled.graph.answers import Answer, answer_of, refusal
from settled.graph.calls import Request, decision_of
from settled.graph.chain_nodes import MOST_NODES, VISIT_KEY, ChainGraph, Visit
from settled.graph.chain_nodes import compiled as compiled_chain
from settled.graph.chain_recall import answer_of_chain
from settled.graph.identity import Handle, options_of
from settled.graph.injecting import injecting
from settled.graph.passage import Passage
from settled.graph.twin import Twin
from settled.state import ledger
from settled.state.errors import LEDGER_IS_GONE, ContractError, InvalidArguments
from settled.state.ledger import Query
from settled.state.machine import State
from settled.state.model import Action
from settled.state.store import Ledger
from settled.tools import protocol, tracing
from settled.tools.chain_runs import Run
from settled.tools.chains import ChainContract
from settled.tools.contract import Contract
from settled.tools.effects import Steps, ask
from settled.tools.messages import Code
from settled.tools.perform import invalid, of_read, outcome, prepare, recalled, unrecorded
from settled.tools.policy import Policy
from settled.tools.reading import read
from settled.tools.reconcile import Finding, reconcile
from settled.tools.result import kept_with
from settled.tools.runner import Runner, World
from settled.tools.standing import Answered, Call, Granted, Standing, Unsettled, Waiting

FLIGHT_KEY = "__settled_flight"

INHERITED_DURABILITY_KEY = "__pregel_durability"
"""LangGraph's own. A graph without checkpoints that inherits "sync" waits for one that it never began (1.2.24)."""

NODES = ("plan", "approve", "run", "reconcile", "settle")

_ALIVE: set[str] = set()
"""What is under way in this process: the owners of its calls, and the ids of the actions that it reconciles."""

_NO_POLICIES: Mapping[str, Policy] = {}

S = TypeVar("S")
Step = Literal["plan", "approve", "run", "reconcile", "settle", "answered"]


def is_alive(action: Action) -> bool:
    """Whether a call of this process runs or reconciles an action."""
    return action.owner in _ALIVE or action.id in _ALIVE


class Where(TypedDict, total=False):
    """The engine's state: the request, the node that is next, the action and claim it speaks of, and the answer."""

    request: Request
    step: Step
    action_id: str
    token: int
    answer: Answer


@dataclass
class Flight:
    """One visit of the engine: what only this process knows, and only until it is used."""

    contract: Contract
    handle: Handle
    request: Request
    runner: Runner
    policies: Mapping[str, Policy] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    held: dict[tuple[str, int], object] = field(default_factory=dict)
    alive: set[str] = field(default_factory=set)
    write: Callable[[Any], None] | None = None
    told: tuple[str, State, int] | None = None

    def begin(self) -> Call:
        """Return a call with an owner of its own; the ledger hears of it next. InvalidArguments for a bad one."""
        options = options_of(self.handle, decision_of(self.request), self.request["language"], self.policies)
        call = prepare(self.contract, self.request["args"], options, self.runner.store)
        self.calls.append(call)
        self.keeps_alive(call.plan.owner)
        return call

    def goes_on_as(self, call: Call) -> None:
        """A person has changed the action: the visit is about the changed one from here on."""
        if call is not self.calls[-1]:
            self.calls.append(call)

    def end(self) -> None:
        """The visit is over: what it ran or reconciled is nobody's any more."""
        _ALIVE.difference_update(self.alive)

    def keeps_alive(self, name: str) -> None:
        """Note what is under way in this process, until the visit is over."""
        self.alive.add(name)
        _ALIVE.add(name)

    def hold(self, step: Step, standing: Granted | Unsettled | Finding) -> Where:
        """Keep a standing for the node `step`, and return where that node finds it."""
        action = standing.action
        if isinstance(standing, Unsettled):
            self.keeps_alive(action.id)
        self.held[action.id, action.fencing_token] = standing
        return Where(step=step, action_id=action.id, token=action.fencing_token)

    def take(self, where: Where, kind: type[S] | tuple[type[S], ...]) -> S | None:
        """Take out what was held for a node; None when it was used already, or held by another process."""
        held = self.held.pop((where.get("action_id", ""), where.get("token", 0)), None)
        return held if isinstance(held, kind) else None

    def unsent(self) -> Granted | None:
        """Take out a claim that was never used, if there is one."""
        claims = [standing for standing in self.held.values() if isinstance(standing, Granted)]
        self.held.clear()
        return claims[0] if claims else None


class Engine:
    """Carries the calls of an agent's tools. One for each agent; it holds nothing between calls."""

    def __init__(
        self,
        contracts: Mapping[str, Contract],
        store: Ledger,
        world: World,
        policies: Mapping[str, Policy] = _NO_POLICIES,
    ) -> None:
        self.contracts = contracts
        self.store = store
        self._world = world
        self.policies = policies
        self.graph = compiled()
        self._chains: dict[str, ChainGraph] = {}

    def call(self, request: Request, handle: Handle, config: RunnableConfig, via: Passage | None = None) -> Answer:
        """Carry one request to its answer; `via` a tool node, where it came from one.

        A nested run has a control of its own: a drain before `run` would leave a claimed action that nobody sends.
        """
        with tracing.execution(request["name"]):
            return self._call(request, handle, config, via)

    def _call(self, request: Request, handle: Handle, config: RunnableConfig, via: Passage | None) -> Answer:
        flight = self._flight(request, handle, config, via)
        if not isinstance(flight, Flight):
            return _unless_known(flight, request, self.store.run(_recall(request, handle)))
        if flight.contract.is_read:
            return flight.runner.drive(_reading(flight))
        if isinstance(flight.contract, ChainContract):
            try:
                said = self._chain(flight.contract).invoke(*_chained(flight, config), control=RunControl())
            finally:
                flight.end()
            return answer_of_chain(said["outcome"])
        try:
            end: Any = flight.runner.drive(_straight(flight, Where(request=request)))
            if end["step"] != "answered":
                end = self.graph.invoke(end, _inside(config, flight), control=RunControl())
        except BaseException:
            if (granted := flight.unsent()) is not None:
                flight.runner.drive(protocol.stop(flight.calls[-1], granted))
            raise
        finally:
            flight.end()
        return _said(end)

    async def acall(
        self, request: Request, handle: Handle, config: RunnableConfig, via: Passage | None = None
    ) -> Answer:
        """As `call`, in an event loop."""
        with tracing.execution(request["name"]):
            return await self._acall(request, handle, config, via)

    async def _acall(self, request: Request, handle: Handle, config: RunnableConfig, via: Passage | None) -> Answer:
        flight = self._flight(request, handle, config, via)
        if not isinstance(flight, Flight):
            return _unless_known(flight, request, await self.store.arun(_recall(request, handle)))
        if flight.contract.is_read:
            return await flight.runner.adrive(_reading(flight))
        if isinstance(flight.contract, ChainContract):
            try:
                said = await self._chain(flight.contract).ainvoke(*_chained(flight, config), control=RunControl())
            finally:
                flight.end()
            return answer_of_chain(said["outcome"])
        try:
            end: Any = await flight.runner.adrive(_straight(flight, Where(request=request)))
            if end["step"] != "answered":
                end = await self.graph.ainvoke(end, _inside(config, flight), control=RunControl())
        except BaseException:
            if (granted := flight.unsent()) is not None:
                await flight.runner.adrive(protocol.stop(flight.calls[-1], granted))
            raise
        finally:
            flight.end()
        return _said(end)

    def contract_named(self, tool: str) -> Contract | None:
        """Return the contract of an action, also of one that is a step of a chain."""
        chains = (one.contracts for one in self.contracts.values() if isinstance(one, ChainContract))
        return self.contracts.get(tool) or next((steps[tool] for steps in chains if tool in steps), None)

    def _chain(self, chain: ChainContract) -> ChainGraph:
        if chain.name not in self._chains:
            self._chains[chain.name] = compiled_chain(chain)
        return self._chains[chain.name]

    def needs_graph(self, request: Request) -> bool:
        """Whether the tool of a request takes arguments from the graph that calls it."""
        contract = self.contracts.get(request["name"])
        return contract is not None and bool(contract.injected)

    def runner(self) -> Runner:
        """Return what carries out steps that are no call: a person's decisions, about any of the tools. A policy that
        judges an edit gets the time of the slowest one.
        """
        slowest = max(self.contracts.values(), key=lambda contract: contract.timeout_s, default=None)
        return Runner(slowest, self.store, self._world)

    def _flight(self, request: Request, handle: Handle, config: RunnableConfig, via: Passage | None) -> Flight | Answer:
        """Return a new visit, or the answer to a request that names no tool or is malformed."""
        contract = self.contracts.get(request["name"]) if via is None else via.tool.contract
        if contract is None:
            return refusal(
                request, "name", f"there is no tool of this name; the tools are: {', '.join(self.contracts)}"
            )
        if request["error"] is not None:
            return refusal(request, *request["error"])
        function = injecting(contract, request, config, via.runtime if via is not None else None)
        if via is not None:
            function = via.body_of(function)
        if function is not contract.function:
            contract = replace(contract, function=function)
        runner = Runner(contract, self.store, self._world)
        return Flight(contract, handle, request, runner, self.policies, write=_writer())


def _chained(flight: Flight, config: RunnableConfig) -> tuple[dict[str, Any], RunnableConfig]:
    """Return the input of a chain's graph, and the configuration of its nested run. Where a person is asked, the host's
    graph asks him, as for any action.
    """
    assert isinstance(flight.contract, ChainContract)
    handle, request = flight.handle, flight.request

    taken: set[tuple[str, int]] = set()

    def is_orphan(action: Action) -> bool:
        if handle.is_orphan(action):
            taken.add((action.id, action.fencing_token))  # it is asked about more than once
            flight.keeps_alive(action.id)  # nobody else of this process takes it over too
        return (action.id, action.fencing_token) in taken

    given = options_of(handle, decision_of(request), request["language"], flight.policies)
    options = replace(given, decision=None, is_orphan=is_orphan)
    run = Run(flight.contract, flight.runner.store, options, flight.keeps_alive)
    visit = Visit(run, flight.runner.world, options.correlation_id)
    mine = {VISIT_KEY: visit, INHERITED_DURABILITY_KEY: "exit"}
    configurable = {**config.get("configurable", {}), **mine}
    return {"input": request["args"]}, {**config, "configurable": configurable, "recursion_limit": MOST_NODES}


def compiled() -> CompiledStateGraph[Where, None, Where, Where]:
    """Return the engine's graph."""
    graph = StateGraph(Where)
    for name, steps in zip(NODES, (_plan, _approve, _run, _reconcile, _settle), strict=True):
        graph.add_node(name, Twin(name, _with_flight(steps)))
    for name in (START, *NODES):
        graph.add_conditional_edges(name, _next, {**{node: node for node in NODES}, "answered": END})
    return graph.compile(checkpointer=False, name="action")


def _plan(flight: Flight, where: Where) -> Steps[Where]:
    """Begin the action, or meet it; as a new owner each time, since an earlier visit's claim may have been used."""
    call, standing = yield from protocol.begin(flight.begin())
    flight.goes_on_as(call)
    return _place(flight, standing)


def _approve(flight: Flight, where: Where) -> Steps[Where]:
    """Ask the ledger again whether a person has decided.

    The person is asked by the agent's graph, which keeps the place: this one has no checkpoints, and would ask for
    ever. The decision goes into the ledger before that graph is resumed, so what resumes is a new visit whose `plan`
    meets an approved action; nothing here has to remember the question.
    """
    call, standing = yield from protocol.begin(flight.begin())
    flight.goes_on_as(call)
    if isinstance(standing, Waiting):
        standing = Answered(Code.WAITING_FOR_APPROVAL, standing.action)
    return _place(flight, standing)


def _run(flight: Flight, where: Where) -> Steps[Where]:
    """Call the body for the claim that plan, approve or settle has left; without one, back to plan."""
    granted = flight.take(where, Granted)
    if granted is None:
        return Where(step="plan")
    standing = yield from protocol.run(flight.calls[-1], granted)
    return _place(flight, standing)


def _reconcile(flight: Flight, where: Where) -> Steps[Where]:
    """Ask the remote side what became of it."""
    unsettled = flight.take(where, Unsettled)
    if unsettled is None:
        return Where(step="plan")
    finding = yield from reconcile(flight.calls[-1], unsettled)
    return flight.hold("settle", finding)


def _settle(flight: Flight, where: Where) -> Steps[Where]:
    """Write down what was found."""
    finding: Finding | None = flight.take(where, get_args(Finding))
    if finding is None:
        return Where(step="plan")
    standing = yield from protocol.settle(flight.calls[-1], finding)
    return _place(flight, standing)


def _place(flight: Flight, standing: Standing) -> Where:
    """Return where a standing leads."""
    match standing:
        case Granted():
            where = flight.hold("run", standing)
        case Unsettled():
            where = flight.hold("reconcile", standing)
        case Waiting():
            where = Where(step="approve", action_id=standing.action.id)
        case Answered():
            where = _answered(_answer(flight.calls[-1], standing))
        case _:
            assert_never(standing)
    _tell(flight, standing)
    return where


def _tell(flight: Flight, standing: Standing) -> None:
    """Stream where the action stands now, to whoever listens to `custom` events: of the host's graph, since what a
    nested one says is heard only by who asks for subgraphs.
    """
    action = standing.action
    event: dict[str, Any] = {
        "action_id": action.id,
        "tool": action.tool,
        "state": str(action.state),
        "attempt": action.attempt,
    }
    if isinstance(standing, Answered):
        event["code"] = str(standing.code)
    seen = (action.id, action.state, action.attempt)
    if flight.write is not None and flight.told != seen:
        flight.told = seen
        flight.write({"settled": event})


def _writer() -> Callable[[Any], None] | None:
    try:
        return get_stream_writer()
    except RuntimeError:  # no graph is running: the engine was called by itself
        return None


def _answer(call: Call, end: Answered) -> Answer:
    tracing.met(end.action, str(end.code))
    if end.code is not Code.WAITING_FOR_APPROVAL:
        return _with_kept(answer_of(outcome(call, end)), end.action.result if _is_of_this(call, end) else None)
    answer = answer_of(outcome(call, Waiting(end.action)))
    answer["fingerprint"] = end.action.fingerprint
    return answer


def _is_of_this(call: Call, end: Answered) -> bool:
    """Whether the result is that of this very call, and not of an earlier one that wanted the same. (Another visit of
    it may have carried it out meanwhile.)
    """
    own = call.plan.correlation_id or ""
    return end.code is Code.SUCCEEDED or (end.action.correlation_id == own and not own.startswith("/"))


def _with_kept(answer: Answer, result: object) -> Answer:
    """Return the answer with what the result has for the graph."""
    kept = kept_with(result)
    return answer if kept is None else {**answer, "kept": kept}


def _answered(answer: Answer) -> Where:
    return Where(step="answered", answer=answer)


def _next(where: Where) -> Step:
    return where.get("step", "plan")


def _said(end: Any) -> Answer:
    answer: Answer = end["answer"]
    return answer


def _with_flight(
    steps: Callable[[Flight, Where], Steps[Where]],
) -> Callable[[Where, RunnableConfig], tuple[Runner, Steps[dict[str, Any]]]]:
    """Return how a node begins: its steps over this visit's flight, with an answer for a ledger that goes away."""

    def begin(where: Where, config: RunnableConfig) -> tuple[Runner, Steps[Any]]:
        flight = config.get("configurable", {}).get(FLIGHT_KEY)
        if not isinstance(flight, Flight):
            raise ContractError(
                "the engine's graph is entered through Engine.call, which knows the tools and the ledger"
            )
        return flight.runner, _or_unrecorded(flight, steps(flight, where))

    return begin


def _or_unrecorded(flight: Flight, steps: Steps[Where]) -> Steps[Where]:
    try:
        return (yield from steps)
    except InvalidArguments as error:
        if flight.runner.invoked:
            return _answered(answer_of(unrecorded(flight.calls[-1], invoked=True)))
        told = invalid(flight.contract, error, flight.request["language"])
        known = yield from ask(_recall(flight.request, flight.handle))
        return _answered(_unless_known(answer_of(told), flight.request, known))
    except LEDGER_IS_GONE:
        told = unrecorded(flight.calls[-1], invoked=flight.runner.invoked)
        return _answered(answer_of(told))


def _recall(request: Request, handle: Handle) -> Query[Action | None]:
    """Ask for the action of a call that can no longer be read: its tool may have been renamed or changed since."""
    options = options_of(handle, decision_of(request), request["language"])
    return ledger.recall(options.tenant, options.thread_id, options.correlation_id or "")


def _unless_known(refused: Answer, request: Request, known: Action | None) -> Answer:
    """Return a refusal, which says that nothing was done; or what is known of the action that this very call began."""
    if known is None or request["error"] is not None or not _agree(request["args"], known.arguments):
        return refused
    return answer_of(recalled(known, request["language"]))


def _agree(sent: Mapping[str, object], stored: Mapping[str, object]) -> bool:
    """Whether a call's arguments are those of an action as far as both name them; "118.50" and 118.5 are the same."""
    return all(_plain(sent[name]) == _plain(stored[name]) for name in sent.keys() & stored.keys())


def _plain(value: object) -> object:
    try:
        return Decimal(str(value))
    except ArithmeticError:
        return value


def _straight(flight: Flight, where: Where) -> Steps[Where]:
    """The happy path, plan and run, without a visit to the graph; where it ends otherwise, the graph goes on."""
    where = {**where, **(yield from _or_unrecorded(flight, _plan(flight, where)))}
    if where["step"] == "run":
        where = {**where, **(yield from _or_unrecorded(flight, _run(flight, where)))}
    return where


def _reading(flight: Flight) -> Steps[Answer]:
    """A read needs no row and no engine."""
    try:
        call = flight.begin()
    except InvalidArguments as error:
        return refusal(flight.request, error.field, error.rule)
    flight.end()
    end = yield from read(call)
    return _with_kept(answer_of(of_read(flight.contract, end, call)), end.result)


def _inside(config: RunnableConfig, flight: Flight) -> RunnableConfig:
    """Return the configuration of a nested run."""
    mine = {FLIGHT_KEY: flight, INHERITED_DURABILITY_KEY: "exit"}
    return {**config, "configurable": {**config.get("configurable", {}), **mine}}
