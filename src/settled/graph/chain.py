"""`chain`: several actions in an order, compiled to a LangGraph graph, run by itself or as a tool of an agent.

Owns the public object. What a step does is `settled.tools.chain_steps`; the graph is `settled.graph.chain_nodes`. The
subtle thing: a run belongs to a conversation and an input, and has no window: the same input in the same thread is the
same run for ever, whoever asks, and goes on where it stands. Once more on purpose is `repeat_of`: a person is asked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.runtime import RunControl
from langgraph.types import interrupt
from pydantic import BaseModel

from settled.graph.approvals import Unusable, answer_schema, batched, read_answer
from settled.graph.approve import Asking, person_of, waiting
from settled.graph.chain_nodes import MOST_NODES, VISIT_KEY, ChainGraph, Visit, compiled
from settled.graph.engine import INHERITED_DURABILITY_KEY, Engine
from settled.graph.identity import Handle, can_pause, handle_of
from settled.state.errors import ContractError
from settled.state.store import Ledger
from settled.tools.chain_outcome import ChainOutcome
from settled.tools.chain_runs import Run
from settled.tools.chains import ChainContract, ChainTool, OnFailure, Step, declared
from settled.tools.effects import Steps
from settled.tools.perform import WAIT_S, Options, check_policies
from settled.tools.policy import Policy
from settled.tools.runner import REAL, Runner, World


def chain(
    name: str,
    steps: Sequence[Step],
    *,
    on_failure: OnFailure = "stop",
    identity: Sequence[str] | Literal["all"] = "all",
    args_schema: type[BaseModel] | None = None,
    description: str | None = None,
    summary: str | Mapping[str, str] | None = None,
) -> "Chain":
    """Declare a chain: `steps` in their order, each `step(name, tool)` with a tool that was declared with @action.

    A run continues at the first step that is not done, after a crash, a person's decision, or in another version of the
    code that has new steps at the end. When a step fails for good, a chain stops, or with `on_failure="compensate"`
    undoes what was done, newest first. `identity` are the fields of the input that make two runs of a conversation the
    same (an input that differs in others clashes); `args_schema` describes the input, by default what the steps take
    from it by name. Names are a wire format: a step that was begun is not renamed while a run of it is open.

    Raises ContractError for a contradiction.
    """
    return Chain(
        declared(
            name,
            steps,
            on_failure=on_failure,
            identity=identity,
            args_schema=args_schema,
            description=description,
            summary=summary,
        )
    )


@dataclass(frozen=True)
class Chain:
    """A chain. `tool` is what an agent calls: `build_agent(model, [order])` takes the chain itself, `create_agent` and
    `ActionNode` its tool.
    """

    tool: ChainTool

    @property
    def contract(self) -> ChainContract:
        """The declaration."""
        return self.tool._chain

    @property
    def name(self) -> str:
        """The chain's name."""
        return self.contract.name

    @property
    def irreversible(self) -> tuple[str, ...]:
        """The steps without a way back."""
        return self.contract.irreversible

    def run(
        self,
        input: Mapping[str, Any],  # noqa: A002 - LangGraph's word
        *,
        ledger: Ledger,
        thread_id: str,
        tenant: str = "default",
        requester: str | None = None,
        roles: Sequence[str] = (),
        policies: Mapping[str, Policy] | None = None,
        correlation_id: str | None = None,
        language: str = "en",
        wait_s: float = WAIT_S,
        world: World = REAL,
    ) -> ChainOutcome:
        """Begin the run of this input in this conversation, or carry it on from where it stands; returns where it
        stands then. The parameters are those of `perform`; a run belongs to whoever began it.

        Bad input, a refusal, an unknown outcome and a ledger that is away are answers, not exceptions. Raises
        ChainChanged where a step that was begun is gone from the code, or is elsewhere.
        """
        options = Options(
            thread_id, tenant, None, requester, correlation_id, language, wait_s, roles=roles,
            policies=check_policies(policies),
        )  # fmt: skip
        return self._drive(_given(self.name, input), options, ledger, world)

    async def arun(
        self,
        input: Mapping[str, Any],  # noqa: A002
        *,
        ledger: Ledger,
        thread_id: str,
        tenant: str = "default",
        requester: str | None = None,
        roles: Sequence[str] = (),
        policies: Mapping[str, Policy] | None = None,
        correlation_id: str | None = None,
        language: str = "en",
        wait_s: float = WAIT_S,
        world: World = REAL,
    ) -> ChainOutcome:
        """As `run`, in an event loop."""
        options = Options(
            thread_id, tenant, None, requester, correlation_id, language, wait_s, roles=roles,
            policies=check_policies(policies),
        )  # fmt: skip
        return await self._adrive(_given(self.name, input), options, ledger, world)

    def go_on(
        self,
        chain_id: str,
        *,
        ledger: Ledger,
        tenant: str = "default",
        policies: Mapping[str, Policy] | None = None,
        language: str = "en",
        wait_s: float = WAIT_S,
        world: World = REAL,
    ) -> ChainOutcome:
        """Carry a run on by its id (`chn-…`), as a worker or a person does; raises as `run`, and NotFound."""
        options = Options("-", tenant, language=language, wait_s=wait_s, policies=check_policies(policies))
        return self._drive({"chain_id": chain_id}, options, ledger, world)

    async def ago_on(
        self,
        chain_id: str,
        *,
        ledger: Ledger,
        tenant: str = "default",
        policies: Mapping[str, Policy] | None = None,
        language: str = "en",
        wait_s: float = WAIT_S,
        world: World = REAL,
    ) -> ChainOutcome:
        """As `go_on`, in an event loop."""
        options = Options("-", tenant, language=language, wait_s=wait_s, policies=check_policies(policies))
        return await self._adrive({"chain_id": chain_id}, options, ledger, world)

    def graph(
        self,
        ledger: Ledger,
        *,
        checkpointer: BaseCheckpointSaver[Any] | None = None,
        tenant: str = "default",
        language: str | None = None,
        policies: Mapping[str, Policy] | None = None,
        wait_s: float = WAIT_S,
        world: World = REAL,
    ) -> ChainGraph:
        """Return the chain as a LangGraph graph, for streaming, or as a part of a graph of your own: its input is
        `{"input": {...}}`, its state's `outcome` the record of a `ChainOutcome`. A run needs a `thread_id`. With a
        checkpointer it interrupts where a person is asked; who answers stands in the configuration, as for an agent.
        """
        engine = Engine(self.contract.contracts, ledger, world, check_policies(policies))
        visit_of = partial(_visit, self.contract, engine, tenant, language, wait_s, world)
        return compiled(self.contract, visit_of, checkpointer)

    def _drive(self, given: dict[str, Any], options: Options, ledger: Ledger, world: World) -> ChainOutcome:
        visit = Visit(Run(self.contract, ledger, options), world, options.correlation_id)
        self._nested.invoke(given, _config(visit), control=RunControl())
        return visit.told[-1]

    async def _adrive(self, given: dict[str, Any], options: Options, ledger: Ledger, world: World) -> ChainOutcome:
        visit = Visit(Run(self.contract, ledger, options), world, options.correlation_id)
        await self._nested.ainvoke(given, _config(visit), control=RunControl())
        return visit.told[-1]

    @cached_property
    def _nested(self) -> ChainGraph:
        return compiled(self.contract)


def _given(name: str, fields: object) -> dict[str, Any]:
    if not isinstance(fields, Mapping):
        raise ContractError(f"{name}: the input of a chain is a mapping of its fields, not a {type(fields).__name__}")
    return {"input": dict(fields)}


def _config(visit: Visit) -> RunnableConfig:
    return {
        "configurable": {VISIT_KEY: visit, INHERITED_DURABILITY_KEY: "exit"},
        "recursion_limit": MOST_NODES,
    }


def _visit(
    chain: ChainContract,
    engine: Engine,
    tenant: str,
    language: str | None,
    wait_s: float,
    world: World,
    config: RunnableConfig,
) -> Visit:
    """Return who carries a chain on in a graph that runs by itself, as its configuration says."""
    handle = handle_of(config, tenant=tenant, language=language)
    options = Options(
        handle.thread_id, handle.tenant, requester=handle.requester, language=handle.language or "en", wait_s=wait_s,
        is_orphan=handle.is_orphan, owner_prefix=handle.owner_prefix, roles=handle.roles, policies=engine.policies,
    )  # fmt: skip
    asks = partial(_asked, engine, handle, config) if can_pause(config) else None
    return Visit(Run(chain, engine.store, options), world, ask=asks)


def _asked(
    engine: Engine, handle: Handle, config: RunnableConfig, action_id: str, problem: str | None
) -> tuple[Runner, Steps[str | None]]:
    return engine.runner(), _question(engine, handle, config, action_id, problem)


def _question(
    engine: Engine, handle: Handle, config: RunnableConfig, action_id: str, problem: str | None
) -> Steps[str | None]:
    """Ask a person about the action of a step, write down what he says, and say why it could not be used."""
    shown = (yield from waiting(handle, [action_id])).get(action_id)
    if shown is None:  # it was decided meanwhile
        return None
    given = interrupt(batched([shown], problem), response_schema=answer_schema(1))
    chosen = read_answer(given, [shown])
    if isinstance(chosen, Unusable):
        return chosen.problem
    return (yield from Asking(engine).decide(shown, chosen[0], handle, person_of(config, handle)))


def as_tools(tools: Sequence[object]) -> list[Any]:
    """Return an agent's tools, chains as what a model calls; ContractError for what is neither."""
    if isinstance(tools, Chain):
        raise ContractError("tools= takes a list: [order]")
    return [one.tool if isinstance(one, Chain) else one for one in tools]
