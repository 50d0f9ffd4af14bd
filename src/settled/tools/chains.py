"""A chain as its author declares it: named steps in an order, each an action or a read.

Owns the declaration and its checks, and what a step's arguments are made of. Knows nothing of runs (those are rows, see
`settled.tools.chain_steps`) and nothing of LangGraph, to which `settled.graph.chain` compiles it. The subtle thing: a
chain has a contract too, as if it were one action. It describes the input, its identity and its summary, and lets a
model call the chain as a tool; its body never runs.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

from pydantic import BaseModel, PrivateAttr, create_model

from settled.state.errors import ContractError, InvalidArguments, Unguarded
from settled.tools import arguments as args
from settled.tools.after import Compensation, as_compensation
from settled.tools.contract import ActionTool, Contract, action, contract_of

MAX_STEPS = 50
"""Each is a request and two commits; a list that is longer wants to be several chains, or a loop."""

RESERVED = ("begin", "compensate")
"""Nodes of the compiled graph that are no steps."""

OnFailure = Literal["stop", "compensate"]


class ChainChanged(ContractError):
    """A step that was begun in a run is no longer where it was in the code: put it back, or let the run be finished by
    the code that began it.
    """


@dataclass(frozen=True)
class StepDone:
    """A step that is done, as the arguments of a later one are made of it; `result` is plain JSON."""

    receipt: str | None
    result: Any = field(repr=False)


@dataclass(frozen=True)
class SoFar:
    """What is known when the arguments of a step are made: the validated `input`, and `so_far["name"]` for each earlier
    step.
    """

    input: Mapping[str, Any] = field(repr=False)
    steps: Mapping[str, StepDone] = field(repr=False)

    def __getitem__(self, name: str) -> StepDone:
        return self.steps[name]


ArgumentsOf: TypeAlias = Callable[[SoFar], Mapping[str, Any]]


@dataclass(frozen=True)
class Step:
    """One step. `contract` is its tool's, undone as the step says where it does."""

    name: str
    contract: Contract
    arguments: ArgumentsOf | None = field(repr=False)

    @property
    def is_reversible(self) -> bool:
        """Whether there is a way back, or nothing to go back from."""
        return self.contract.is_read or self.contract.compensate is not None

    def arguments_for(self, so_far: SoFar) -> Mapping[str, Any]:
        """Return what its tool is called with; InvalidArguments where the author's function cannot tell."""
        if self.arguments is None:
            return {name: so_far.input[name] for name in self.contract.annotations if name in so_far.input}
        try:
            made = self.arguments(so_far)
        except Exception as error:  # the author's own function may raise anything
            raise InvalidArguments(self.name, f"its arguments cannot be made ({type(error).__name__})") from error
        if not isinstance(made, Mapping):
            raise InvalidArguments(self.name, f"its arguments are a {type(made).__name__}, not a mapping")
        return made


def step(
    name: str,
    tool: ActionTool,
    *,
    arguments: ArgumentsOf | None = None,
    compensate: ActionTool | Compensation | None = None,
) -> Step:
    """Declare a step: an action, or a read. `arguments` makes its arguments of the input and of earlier steps
    (`lambda so_far: {"amount": so_far["verify"].result["amount"]}`); by default each is the input's field of that name.
    They are made once, and written down before the step begins. `compensate` undoes it in this chain, instead of what
    the tool says.

    Raises ContractError for what cannot be a step.
    """
    contract = contract_of(tool)
    if not name.isidentifier() or name in RESERVED:
        raise ContractError(f"step {name!r}: a name is letters, digits and _, and not {' or '.join(RESERVED)}")
    if isinstance(contract, ChainContract):
        raise ContractError(f"step {name}: a chain cannot be a step of another one; list its steps")
    if contract.injected:
        raise ContractError(f"step {name}: {contract.name} takes {', '.join(contract.injected)} from an agent's graph")
    if arguments is not None and not callable(arguments):
        raise ContractError(f"step {name}: arguments= must be a function of what is known so far")
    if compensate is not None and contract.is_read:
        raise ContractError(f"step {name}: {contract.name} is a read, and there is nothing to undo; drop compensate=")
    if compensate is not None:
        contract = replace(contract, compensate=as_compensation(compensate))
    return Step(name, contract, arguments)


@dataclass(frozen=True, kw_only=True)
class ChainContract(Contract):
    """The contract of a chain: that of a call of it, and its steps."""

    steps: tuple[Step, ...]
    on_failure: OnFailure

    @cached_property
    def irreversible(self) -> tuple[str, ...]:
        """The steps without a way back, by name."""
        return tuple(step.name for step in self.steps if not step.is_reversible)

    @property
    def contracts(self) -> dict[str, Contract]:
        """What its actions are carried out by: the tools of its steps, and what undoes them."""
        mine = {step.contract.name: step.contract for step in self.steps}
        undoing = [step.contract.compensate.tool.contract for step in self.steps if step.contract.compensate]
        return {contract.name: contract for contract in undoing} | mine


class ChainTool(ActionTool):
    """A chain as a LangChain tool; it is carried by an agent, and its own `invoke` refuses."""

    _chain: ChainContract = PrivateAttr()

    def _how_to_run(self) -> str:
        return (
            f"{self.name} is a chain: run it with {self.name}.run(...), or in an agent: settled.build_agent, "
            "settled.ActionMiddleware in create_agent, settled.ActionNode in place of a ToolNode"
        )


def declared(
    name: str,
    steps: Sequence[Step],
    *,
    on_failure: OnFailure,
    identity: Sequence[str] | Literal["all"],
    args_schema: type[BaseModel] | None,
    description: str | None,
    summary: str | Mapping[str, str] | None,
) -> ChainTool:
    """Return a chain as a tool with its contract; ContractError for a contradiction."""
    _check(name, steps, on_failure)

    def body(**_: object) -> None:
        raise Unguarded(f"{name} is a chain, and has no body of its own")

    made = action(
        risk="non_idempotent_write", identity=identity, args_schema=args_schema or _schema_of(name, steps), name=name,
        summary=summary, description=description or name.replace("_", " "),
    )(body)  # fmt: skip
    known = {one.name: getattr(made.contract, one.name) for one in dataclasses.fields(Contract)}
    contract = ChainContract(**known, steps=tuple(steps), on_failure=on_failure)
    schema: Any = made.args_schema
    tool = ChainTool(name=name, description=_described(made.description, contract), args_schema=schema)
    tool._contract = tool._chain = contract
    return tool


def _check(name: str, steps: Sequence[Step], on_failure: str) -> None:
    if isinstance(steps, Step) or not all(isinstance(one, Step) for one in steps):
        raise ContractError(f"{name}: steps= takes a list of step(name, tool)")
    if not 1 <= len(steps) <= MAX_STEPS:
        raise ContractError(f"{name}: a chain has 1 to {MAX_STEPS} steps, and this one has {len(steps)}")
    names = [one.name for one in steps]
    if twice := {one for one in names if names.count(one) > 1}:
        raise ContractError(f"{name}: two steps are named {min(twice)}: give one of them another name")
    if on_failure not in get_args(OnFailure):
        raise ContractError(f"{name}: on_failure={on_failure!r} is none of {', '.join(get_args(OnFailure))}")
    if on_failure == "compensate" and not any(one.contract.compensate for one in steps):
        raise ContractError(
            f'{name}: on_failure="compensate", and no step has a way back: give one compensate=, or say "stop"'
        )


def _schema_of(name: str, steps: Sequence[Step]) -> type[BaseModel]:
    """Return the input as the steps describe it that take their arguments from it by name."""
    found: dict[str, Any] = {}
    for one in (one for one in steps if one.arguments is None):
        for field_name, info in one.contract.schema.model_fields.items():
            if field_name == args.REPEAT_OF:
                continue
            if field_name in found and found[field_name][0] != one.contract.annotations[field_name]:
                raise ContractError(
                    f"{name}: two steps take {field_name}, of two types: describe the input by args_schema="
                )
            found.setdefault(field_name, (one.contract.annotations[field_name], info))
    if not found:
        raise ContractError(f"{name}: no step takes the input as it is: describe the input by args_schema=")
    return create_model(name, **found)


def _described(description: str, chain: ChainContract) -> str:
    """Return what a model reads of a chain, and so what is said of it before it starts."""
    lines = [description, f"Steps, in this order: {', '.join(map(_shown, (one.name for one in chain.steps)))}."]
    if chain.irreversible:
        lines.append(f"Cannot be undone once done: {', '.join(map(_shown, chain.irreversible))}.")
    return "\n".join(lines)


def _shown(name: str) -> str:
    return name.replace("_", " ")
