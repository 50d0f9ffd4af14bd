"""`ActionMiddleware`: the ledger inside an agent of `langchain.agents.create_agent`.

Owns the hooks. The tool calls go through the same door as those of an `ActionNode`; here is what LangChain adds: the
tools that are no actions, the order of middlewares, and the repair of a conversation before the model reads it. The
subtle thing is the order. Wrappers that are listed before ours may do what they like: a second call of theirs is
answered from the ledger. A wrapper that is listed after ours stands between the ledger and the tool, and is refused.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

from langchain_core.messages import AnyMessage, RemoveMessage, ToolMessage
from langgraph.config import get_config
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command

from settled.graph.door import Door
from settled.graph.nesting import wrappers_in
from settled.graph.repair import repaired
from settled.state.errors import ContractError
from settled.state.store import Ledger
from settled.tools.contract import ActionTool
from settled.tools.effects import Steps
from settled.tools.policy import Policy
from settled.tools.runner import REAL, World

try:
    from langchain.agents.middleware.types import AgentMiddleware, ExtendedModelResponse, ModelRequest, ModelResponse
except ImportError as error:
    raise ContractError("ActionMiddleware is for agents of LangChain: pip install 'langchain>=1.5'") from error

Handler = Callable[[ToolCallRequest], ToolMessage | Command[Any]]
AsyncHandler = Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
Extended = ExtendedModelResponse[Any]
ModelHandler = Callable[[ModelRequest[Any]], ModelResponse[Any]]
AsyncModelHandler = Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
Update = dict[str, Any]


class ActionMiddleware(AgentMiddleware[Any, Any, Any]):
    """Makes the tool calls of a `create_agent` agent actions: at most one effect for each intent.

    `create_agent(model, tools, middleware=[ActionMiddleware(ledger=ledger)], checkpointer=...)`. Tools that were
    declared with `@action` need nothing else; `contracts` names others by the action that carries them
    (`{"send_mail": as_action(send_mail, risk=...)}`); the rest pass through untouched. A run needs a `thread_id`.
    Where a policy asks a person, the call's own task interrupts the run; without a checkpointer the model is told that
    the call waits. `tenant`, `language` and `policies` are as in `build_agent`.

    List it last: a middleware that wraps tool calls and is listed after it is refused with ContractError at the first
    call, before anything is sent; `allow_inner` says that you know that none of them calls a tool twice.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        contracts: Mapping[str, ActionTool] | None = None,
        tenant: str | None = None,
        language: str | None = None,
        policies: Mapping[str, Policy] | None = None,
        allow_inner: bool = False,
        world: World = REAL,
    ) -> None:
        super().__init__()
        self.tools = []
        self._contracts = _checked(contracts or {})
        self._allow_inner = allow_inner
        self._door = Door(
            ledger,
            self._contracts.values(),
            tenant=tenant,
            language=language,
            policies=policies,
            messages_key="messages",
            world=world,
        )

    def wrap_tool_call(self, request: ToolCallRequest, handler: Handler) -> ToolMessage | Command[Any]:
        """Carry a call of an action; let any other pass."""
        tool = self._action_of(request)
        if tool is None:
            return handler(request)
        self._check_order(tool.name, handler)
        return self._door.carry(request, tool, handler)

    async def awrap_tool_call(self, request: ToolCallRequest, handler: AsyncHandler) -> ToolMessage | Command[Any]:
        """As `wrap_tool_call`, in an event loop."""
        tool = self._action_of(request)
        if tool is None:
            return await handler(request)
        self._check_order(tool.name, handler)
        return await self._door.acarry(request, tool, handler)

    def before_agent(self, state: Any, runtime: Any) -> Update | None:
        """Answer the calls that an earlier run has left open."""
        return _rewritten(self._door.engine.runner().drive(self._mending(state["messages"], whole=True)))

    async def abefore_agent(self, state: Any, runtime: Any) -> Update | None:
        """As `before_agent`, in an event loop."""
        return _rewritten(await self._door.engine.runner().adrive(self._mending(state["messages"], whole=True)))

    def wrap_model_call(self, request: ModelRequest[Any], handler: ModelHandler) -> ModelResponse[Any] | Extended:
        """Show the model no call without an answer, whichever way the conversation came to it, and keep the answers."""
        runner = self._door.engine.runner()
        self._door.learn(request.tools)
        shown = runner.drive(self._mending(request.messages))
        if shown is None:
            return handler(request)
        said = handler(request.override(messages=shown))
        return _kept(said, runner.drive(self._mending(request.state["messages"])))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: AsyncModelHandler
    ) -> ModelResponse[Any] | Extended:
        """As `wrap_model_call`, in an event loop."""
        runner = self._door.engine.runner()
        self._door.learn(request.tools)
        shown = await runner.adrive(self._mending(request.messages))
        if shown is None:
            return await handler(request)
        said = await handler(request.override(messages=shown))
        return _kept(said, await runner.adrive(self._mending(request.state["messages"])))

    def _mending(self, messages: Sequence[AnyMessage], *, whole: bool = False) -> Steps[list[AnyMessage] | None]:
        handle = self._door.handle(get_config())
        return repaired(messages, handle, self._door.knows, only_known=whole)

    def _action_of(self, request: ToolCallRequest) -> ActionTool | None:
        named = self._contracts.get(request.tool_call["name"])
        return named or (request.tool if isinstance(request.tool, ActionTool) else None)

    def _check_order(self, tool: str, handler: Callable[..., Any]) -> None:
        if self._allow_inner:
            return
        if inner := wrappers_in(handler, AgentMiddleware):
            raise ContractError(
                f"{', '.join(inner)} wraps tool calls and is listed after ActionMiddleware, so it stands between the "
                f"ledger and {tool}: what it sends a second time, or answers by itself, the ledger cannot see. List "
                "ActionMiddleware last; or pass allow_inner=True if it calls a tool at most once"
            )


def _checked(contracts: Mapping[str, ActionTool]) -> Mapping[str, ActionTool]:
    for name, tool in contracts.items():
        if not isinstance(tool, ActionTool):
            raise ContractError(f"contracts: {name} needs an action (@action or as_action), not {tool!r}")
        if tool.contract.name != name:
            raise ContractError(f"contracts: the action for {name} needs the same name, not {tool.contract.name}")
    return dict(contracts)


def _rewritten(messages: Sequence[AnyMessage] | None) -> Update | None:
    return None if messages is None else {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *messages]}


def _kept(said: ModelResponse[Any], messages: Sequence[AnyMessage] | None) -> ModelResponse[Any] | Extended:
    """Return what the model said, with the mended conversation before it."""
    if messages is None:
        return said
    spoken = cast("list[AnyMessage]", said.result)
    return ExtendedModelResponse(model_response=said, command=Command(update=_rewritten([*messages, *spoken])))
