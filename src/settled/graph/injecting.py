"""What the injected parameters of a tool are given: the state, the store and the runtime of the graph that calls it.

Owns the values, as LangGraph's own tool node would give them. They are never stored: a call that is carried on after a
crash gets those of the run that carries it on.
"""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.prebuilt import InjectedState, ToolRuntime
from langgraph.runtime import Runtime

from settled.graph.calls import Request
from settled.state.errors import ContractError
from settled.tools.contract import Contract
from settled.tools.injected import kind_of

RUNTIME_KEY = "__pregel_runtime"
READ_STATE_KEY, READ_KEY = "__pregel_read_state", "__pregel_read"
"""LangGraph's own: the runtime of a task, and how it reads the state of its graph (1.2.24)."""

AnyRuntime = ToolRuntime[Any, Any]


def injecting(contract: Contract, request: Request, config: RunnableConfig, runtime: AnyRuntime | None) -> Any:
    """Return the tool's function with its injected parameters filled in; ContractError for what the graph has not."""
    if not contract.injected:
        return contract.function
    runtime = runtime or _runtime_of(request, config)
    defaults = inspect.signature(contract.function).parameters
    values: dict[str, Any] = {}
    for name, marker in contract.injected.items():
        try:
            values[name] = _value(marker, request, runtime)
        except LookupError as missing:
            if defaults[name].default is inspect.Parameter.empty:
                raise ContractError(f"{contract.name} takes {name} from its graph, which has no {missing}") from None
    return partial(contract.function, **values)


def _value(marker: object, request: Request, runtime: AnyRuntime) -> Any:
    match kind_of(marker):
        case "InjectedToolCallId":
            return request["tool_call_id"]
        case "InjectedStore":
            if runtime.store is None:
                raise LookupError("store: compile it with one")
            return runtime.store
        case "InjectedState":
            return _of_state(runtime.state, marker.field if isinstance(marker, InjectedState) else None)
        case _:
            return runtime


def _of_state(state: Any, field: str | None) -> Any:
    if isinstance(state, list):
        state = {"messages": state}
    if field is None:
        return state
    found = state.get(field, _MISSING) if isinstance(state, Mapping) else getattr(state, field, _MISSING)
    if found is _MISSING:
        raise LookupError(f"{field} in its state")
    return found


_MISSING = object()


def _runtime_of(request: Request, config: RunnableConfig) -> AnyRuntime:
    """Return the runtime of a node that is no tool node."""
    runtime = config.get("configurable", {}).get(RUNTIME_KEY)
    if not isinstance(runtime, Runtime):
        raise ContractError(f"{request['name']} takes arguments from a graph, and there is none here")
    return ToolRuntime(
        state=state_of(config),
        tool_call_id=request["tool_call_id"],
        config=config,
        context=runtime.context,
        store=runtime.store,
        stream_writer=runtime.stream_writer,
        execution_info=runtime.execution_info,
        server_info=runtime.server_info,
    )


def state_of(config: RunnableConfig) -> Any:
    """Return the state that the task of this configuration would get by an edge."""
    configurable: Mapping[str, Any] = config.get("configurable", {})
    if (read_state := configurable.get(READ_STATE_KEY)) is not None:
        return read_state()
    read = configurable.get(READ_KEY)
    return {} if read is None else read(list(read.args[1]), True)
