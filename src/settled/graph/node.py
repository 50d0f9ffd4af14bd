"""`ActionNode`: the ledger in the place of a `ToolNode`, in anybody's graph.

It is a tool node: the same inputs, injected arguments and results, and tools that are no actions run as they do there.
Owns the one difference beside the ledger: of several calls in one message, each is a task of its own, so that a crash
of one or a question about one never repeats another.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, ToolCall
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command, Send

from settled.graph.door import Door, Result, messages_of
from settled.graph.injecting import state_of
from settled.graph.inside import FAN_KEY, Fan, restored
from settled.state.errors import ContractError
from settled.state.store import Ledger
from settled.tools.contract import ActionTool
from settled.tools.policy import Policy
from settled.tools.runner import REAL, World


class ActionNode(ToolNode):
    """A tool node whose calls are actions: at most one effect for each intent.

    `graph.add_node("tools", ActionNode(tools, ledger=ledger))`, or `create_react_agent(model, ActionNode(...))`. Takes
    what `ToolNode` takes: a state with messages, a list of messages, `[tool_call]`, `tool_call_with_context`. What was
    declared with `@action` are carried by the ledger, others run as in a tool node. A run needs a `thread_id`.
    Where a policy asks a person, the call's own task interrupts the run; without a checkpointer the model is told that
    the call waits. `tenant`, `language` and `policies` are as in `build_agent`; `options` are those of a tool node:
    `handle_tool_errors` is for the tools that are no actions, and what `wrap_tool_call` and `awrap_tool_call` send a
    second time is answered from the ledger.
    """

    def __init__(
        self,
        tools: Sequence[BaseTool | Callable[..., Any]],
        *,
        ledger: Ledger,
        name: str = "tools",
        messages_key: str = "messages",
        tenant: str | None = None,
        language: str | None = None,
        policies: Mapping[str, Policy] | None = None,
        world: World = REAL,
        **options: Any,
    ) -> None:
        door = Door(
            ledger,
            (),
            tenant=tenant,
            language=language,
            policies=policies,
            messages_key=messages_key,
            world=world,
        )
        gate = _Gate(door)
        own, aown = options.pop("wrap_tool_call", None), options.pop("awrap_tool_call", None)
        if (own is None) != (aown is None):
            raise ContractError("a wrapper of tool calls is needed in both forms: wrap_tool_call and awrap_tool_call")
        options |= {"wrap_tool_call": _around(own, gate.carry), "awrap_tool_call": _around(aown, gate.acarry)}
        super().__init__(tools, name=name, messages_key=messages_key, **options)
        door.learn(self.tools_by_name.values())
        self.func = _with_graph(door.inner, self.func)
        self._key = messages_key
        self._inner = door.inner

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002
        """Carry the calls of a message; each in a task of its own where there are several."""
        config = ensure_config(config)
        calls, state = self._calls(input, config)
        if len(calls) < 2:
            return super().invoke(input, config, **kwargs)
        done = self._inner.invoke({"calls": calls}, self._fanning(state, config, kwargs))
        return self._combined(restored(done["results"]), input)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002
        """As `invoke`, in an event loop."""
        config = ensure_config(config)
        calls, state = self._calls(input, config)
        if len(calls) < 2:
            return await super().ainvoke(input, config, **kwargs)
        done = await self._inner.ainvoke({"calls": calls}, self._fanning(state, config, kwargs))
        return self._combined(restored(done["results"]), input)

    def _calls(self, given: Any, config: RunnableConfig) -> tuple[list[ToolCall], Any]:
        """Return the calls of an input, and the state that their tools see."""
        if isinstance(given, Mapping) and given.get("__type") == "tool_call_with_context":
            return [given["tool_call"]], given["state"]
        if isinstance(given, list) and given and isinstance(given[-1], dict) and given[-1].get("type") == "tool_call":
            return given, state_of(config)
        said = next((one for one in reversed(messages_of(given, self._key)) if isinstance(one, AIMessage)), None)
        return ([] if said is None else list(said.tool_calls)), given

    def _fanning(self, state: Any, config: RunnableConfig, kwargs: Mapping[str, Any]) -> RunnableConfig:
        """Return the configuration of the nested run: its tasks come back here, each with one call."""

        def one(given: dict[str, Any], config: RunnableConfig) -> list[Any]:
            return self._parts(super(ActionNode, self).invoke(given, config, **kwargs))

        async def aone(given: dict[str, Any], config: RunnableConfig) -> list[Any]:
            return self._parts(await super(ActionNode, self).ainvoke(given, config, **kwargs))

        return {**config, "configurable": {**config.get("configurable", {}), FAN_KEY: Fan(one, aone, state)}}

    def _parts(self, result: Any) -> list[Any]:
        """Return the messages and commands that a tool node has answered one call with."""
        parts = result if isinstance(result, list) else [result]
        return [
            part
            for one in parts
            for part in (one[self._key] if isinstance(one, dict) else one if isinstance(one, list) else [one])
        ]

    def _combined(self, parts: Sequence[Any], given: Any) -> Any:
        """Return what a tool node returns for all calls together."""
        is_list = isinstance(given, list) and not isinstance(given[-1], dict)
        if not any(isinstance(part, Command) for part in parts):
            return list(parts) if is_list else {self._key: list(parts)}
        sends = [send for part in parts if _only_sends(part) for send in part.goto]
        mixed = [
            part if isinstance(part, Command) else [part] if is_list else {self._key: [part]}
            for part in parts
            if not _only_sends(part)
        ]
        return [*mixed, *([Command(graph=Command.PARENT, goto=sends)] if sends else [])]


@dataclass(frozen=True, slots=True)
class _Gate:
    """What a tool node calls in the place of a tool."""

    door: Door

    def carry(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Result]) -> Result:
        """Carry an action; let any other tool run."""
        if isinstance(request.tool, ActionTool):
            return self.door.carry(request, request.tool, handler)
        return handler(request)

    async def acarry(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Result]]) -> Result:
        """As `carry`, in an event loop."""
        if isinstance(request.tool, ActionTool):
            return await self.door.acarry(request, request.tool, handler)
        return await handler(request)


def _around(own: Callable[..., Any] | None, ours: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper of somebody else's with ours inside it, sync or async as both are."""
    if own is None:
        return ours
    return lambda request, handler: own(request, lambda changed: ours(changed, handler))


def _only_sends(part: Any) -> bool:
    """Whether a part hands work over to the parent graph: LangGraph takes one such command, with all of them."""
    return (
        isinstance(part, Command)
        and part.graph == Command.PARENT
        and isinstance(part.goto, list)
        and all(isinstance(one, Send) for one in part.goto)
    )


def _with_graph(graph: object, function: Any) -> Any:
    """Return a node's function in which LangGraph finds the nested graph, so that `get_state(subgraphs=True)` shows it:
    it looks at what a function closes over.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        assert graph
        return function(*args, **kwargs)

    return run
