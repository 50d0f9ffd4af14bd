"""The reference agent: model → one `Send` per tool call → model.

Owns the two nodes and the end of a turn. Reads and writes may stand in one message; each call is a task of its own,
so that a crash or an approval in one never repeats another. After `repeat_limit` repeats of one thing in a turn the
model gets no tools any more, and if it insists, the recorded facts are the answer.
"""

from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Send

from settled.graph.answers import recorded_facts, repeated, tool_message
from settled.graph.calls import Request, requests_of, tidy
from settled.graph.channel import Conversation
from settled.graph.engine import Engine
from settled.graph.identity import handle_of
from settled.state.errors import ContractError
from settled.state.store import Ledger
from settled.tools.contract import Contract, contract_of
from settled.tools.messages import language_of
from settled.tools.runner import REAL, World

Agent = CompiledStateGraph[Any, None, Any, Any]
Update = dict[str, list[AnyMessage]]


def build_agent(
    model: BaseChatModel,
    tools: Sequence[object],
    *,
    ledger: Ledger,
    checkpointer: BaseCheckpointSaver[Any] | None = None,
    system_prompt: str | None = None,
    tenant: str = "default",
    language: str | None = None,
    repeat_limit: int = 3,
    world: World = REAL,
) -> Agent:
    """Return an agent whose tool calls are actions: at most one effect for each intent. Works with invoke and ainvoke.

    Run it through a `Session`; or by yourself with a `thread_id` in the configuration, `durability="sync"`, and one
    run per thread at a time. `language` ("en", "zh") is by default that of the user's last message. Messages are kept
    in a DeltaChannel, so that the cost of a turn stays flat as the thread grows.

    Raises ContractError for a tool without a contract, and for two tools of one name.
    """
    if repeat_limit < 1:
        raise ContractError("repeat_limit must be at least 1")
    contracts = _by_name([contract_of(tool) for tool in tools])
    engine = Engine(contracts, ledger, world)
    chat = _Chat(model, tools, system_prompt, repeat_limit)

    def fan_out(state: Conversation, config: RunnableConfig) -> list[Send] | str:
        last = state["messages"][-1]
        if not isinstance(last, AIMessage):
            return END
        spoken = handle_of(config, tenant=tenant, language=language).language or _language(state["messages"])
        return [Send("action", request) for request in requests_of(last, spoken)] or END

    graph = StateGraph(Conversation)
    graph.add_node("model", chat)
    graph.add_node("action", _Action(engine, tenant, language))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", fan_out, ["action", END])
    graph.add_edge("action", "model")
    return graph.compile(checkpointer=checkpointer, name="agent")


class _Chat(Runnable[Conversation, Update]):
    """The node `model`."""

    def __init__(
        self, model: BaseChatModel, tools: Sequence[Any], system_prompt: str | None, repeat_limit: int
    ) -> None:
        self.name = "model"
        self._bare: Runnable[Any, BaseMessage] = model
        self._bound: Runnable[Any, BaseMessage] = model.bind_tools(tools) if tools else model
        self._system = [SystemMessage(system_prompt)] if system_prompt else []
        self._limit = repeat_limit

    def invoke(self, input: Conversation, config: RunnableConfig | None = None, **kwargs: Any) -> Update:  # noqa: A002
        messages = input["messages"]
        if said := repeated(messages, self._limit):
            answer = tidy(self._bare.invoke([*self._system, *messages], config))
            return {"messages": [_without_calls(answer, recorded_facts(said))]}
        return {"messages": [tidy(self._bound.invoke([*self._system, *messages], config))]}

    async def ainvoke(
        self,
        input: Conversation,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Update:
        messages = input["messages"]
        if said := repeated(messages, self._limit):
            answer = tidy(await self._bare.ainvoke([*self._system, *messages], config))
            return {"messages": [_without_calls(answer, recorded_facts(said))]}
        return {"messages": [tidy(await self._bound.ainvoke([*self._system, *messages], config))]}


class _Action(Runnable[Request, Update]):
    """The node `action`: one call of one message."""

    def __init__(self, engine: Engine, tenant: str, language: str | None) -> None:
        self.name = "action"
        self._engine = engine
        self._tenant = tenant
        self._language = language

    def invoke(self, input: Request, config: RunnableConfig | None = None, **kwargs: Any) -> Update:  # noqa: A002
        config = config or {}
        handle = handle_of(config, tenant=self._tenant, language=self._language)
        return {"messages": [tool_message(input, self._engine.call(input, handle, config))]}

    async def ainvoke(
        self,
        input: Request,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Update:
        config = config or {}
        handle = handle_of(config, tenant=self._tenant, language=self._language)
        return {"messages": [tool_message(input, await self._engine.acall(input, handle, config))]}


def _by_name(contracts: Sequence[Contract]) -> dict[str, Contract]:
    named = {contract.name: contract for contract in contracts}
    if len(named) < len(contracts):
        raise ContractError("two tools have the same name: give one of them another, @action(name=...)")
    return named


def _without_calls(message: AIMessage, facts: str) -> AIMessage:
    """Return an answer that calls nothing: the model's, or the recorded facts where it insisted on a call."""
    if not message.tool_calls and not message.invalid_tool_calls:
        return message
    return AIMessage(content=facts, id=message.id)


def _language(messages: Sequence[BaseMessage]) -> str:
    """Return the language of the user's last message."""
    for message in reversed(messages):
        if isinstance(message, HumanMessage):
            return language_of(message.text)
    return "en"
