"""The reference agent: model → one `Send` per tool call → model.

Owns the two nodes and the end of a turn. Reads and writes may stand in one message; each call is a task of its own,
so that a crash or an approval in one never repeats another. After `repeat_limit` repeats of one thing, or `max_calls`
calls of anything, in a turn the model gets no tools any more, and if it insists, the recorded facts are the answer.
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

from settled.graph.answers import answers_of, recorded_facts, repeated, tool_message
from settled.graph.calls import Request, requests_of, tidy
from settled.graph.channel import Conversation
from settled.graph.engine import Engine
from settled.graph.identity import Handle, check_lock, handle_of
from settled.state.errors import ContractError
from settled.state.store import Ledger
from settled.tools.contract import Contract, contract_of
from settled.tools.messages import language_of
from settled.tools.runner import REAL, World

Agent = CompiledStateGraph[Any, None, Any, Any]
Update = dict[str, list[AnyMessage]]

DEFAULT_TENANT = "default"

MAX_CALLS = 100
"""In one turn: far more than a person's request needs, and a model that always finds something new to call ends."""


def build_agent(
    model: BaseChatModel,
    tools: Sequence[object],
    *,
    ledger: Ledger,
    checkpointer: BaseCheckpointSaver[Any] | None = None,
    system_prompt: str | None = None,
    tenant: str | None = None,
    language: str | None = None,
    repeat_limit: int = 3,
    max_calls: int = MAX_CALLS,
    world: World = REAL,
) -> Agent:
    """Return an agent whose tool calls are actions: at most one effect for each intent. Works with invoke and ainvoke.

    Run it through a `Session`; or by yourself with a `thread_id` in the configuration, `durability="sync"`, and one
    run per thread at a time. `language` ("en", "zh") is by default that of the user's last message. An agent of a
    `tenant` serves only that one; without, its sessions say whom they serve ("default"). A turn has at most
    `repeat_limit` repeats of one thing and `max_calls` calls; after that the model is asked without tools, for an
    answer to the user. Messages are kept in a DeltaChannel, so that the cost of a turn stays flat as the thread grows.

    Raises ContractError for a tool without a contract, and for two tools of one name.
    """
    if repeat_limit < 1 or max_calls < 1:
        raise ContractError("repeat_limit and max_calls must be at least 1")
    contracts = _by_name([contract_of(tool) for tool in tools])
    engine = Engine(contracts, ledger, world)
    chat = _Chat(model, tools, system_prompt, repeat_limit, max_calls)
    action = _Action(engine, tenant, language)

    def fan_out(state: Conversation, config: RunnableConfig) -> list[Send] | str:
        messages = state["messages"]
        last = messages[-1]
        if not isinstance(last, AIMessage):
            return END
        spoken = action.handle(config).language or spoken_in(messages)
        left = max_calls - len(answers_of(messages))
        return [Send("action", request) for request in requests_of(last, spoken, left)] or END

    graph = StateGraph(Conversation)
    graph.add_node("model", chat)
    graph.add_node("action", action)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", fan_out, ["action", END])
    graph.add_edge("action", "model")
    return graph.compile(checkpointer=checkpointer, name="agent")


class _Chat(Runnable[Conversation, Update]):
    """The node `model`."""

    def __init__(
        self,
        model: BaseChatModel,
        tools: Sequence[Any],
        system_prompt: str | None,
        repeat_limit: int,
        max_calls: int,
    ) -> None:
        self.name = "model"
        self._bare: Runnable[Any, BaseMessage] = model
        self._bound: Runnable[Any, BaseMessage] = model.bind_tools(tools) if tools else model
        self._system = [SystemMessage(system_prompt)] if system_prompt else []
        self._repeat_limit = repeat_limit
        self._max_calls = max_calls

    def invoke(self, input: Conversation, config: RunnableConfig | None = None, **kwargs: Any) -> Update:  # noqa: A002
        check_lock(config or {})
        messages, last_word = input["messages"], self._last_word(input["messages"])
        model = self._bound if last_word is None else self._bare
        said = model.invoke([*self._system, *messages], config)
        check_lock(config or {})
        return _said(said, messages, last_word)

    async def ainvoke(
        self,
        input: Conversation,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Update:
        check_lock(config or {})
        messages, last_word = input["messages"], self._last_word(input["messages"])
        model = self._bound if last_word is None else self._bare
        said = await model.ainvoke([*self._system, *messages], config)
        check_lock(config or {})
        return _said(said, messages, last_word)

    def _last_word(self, messages: Sequence[AnyMessage]) -> str | None:
        """Return what the turn ends with if the model will not end it; None while it may still call tools."""
        given = answers_of(messages)
        if len(given) >= self._max_calls:
            return recorded_facts(given)
        said = repeated(messages, self._repeat_limit)
        return recorded_facts(said) if said else None


class _Action(Runnable[Request, Update]):
    """The node `action`: one call of one message."""

    def __init__(self, engine: Engine, tenant: str | None, language: str | None) -> None:
        self.name = "action"
        self.tenant = tenant
        self._engine = engine
        self._language = language

    def handle(self, config: RunnableConfig) -> Handle:
        """Return the session of a run."""
        return handle_of(config, tenant=self.tenant or DEFAULT_TENANT, language=self._language)

    def invoke(self, input: Request, config: RunnableConfig | None = None, **kwargs: Any) -> Update:  # noqa: A002
        config = config or {}
        check_lock(config)
        answer = self._engine.call(input, self.handle(config), config)
        check_lock(config)
        return {"messages": [tool_message(input, answer)]}

    async def ainvoke(
        self,
        input: Request,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Update:
        config = config or {}
        check_lock(config)
        answer = await self._engine.acall(input, self.handle(config), config)
        check_lock(config)
        return {"messages": [tool_message(input, answer)]}


def tenant_of(agent: Agent) -> str | None:
    """Return the only tenant that an agent of `build_agent` serves, if it was built for one."""
    node = agent.builder.nodes.get("action")
    return node.runnable.tenant if node is not None and isinstance(node.runnable, _Action) else None


def _by_name(contracts: Sequence[Contract]) -> dict[str, Contract]:
    named = {contract.name: contract for contract in contracts}
    if len(named) < len(contracts):
        raise ContractError("two tools have the same name: give one of them another, @action(name=...)")
    return named


def _said(message: BaseMessage, known: Sequence[AnyMessage], last_word: str | None) -> Update:
    """Return the model's answer; where it insists on a call although it has no tools any more, `last_word`."""
    answer = tidy(message, known)
    if last_word is not None and (answer.tool_calls or answer.invalid_tool_calls):
        answer = AIMessage(content=last_word, id=answer.id)
    return {"messages": [answer]}


def spoken_in(messages: Sequence[BaseMessage]) -> str:
    """Return the language of the user's last message."""
    for message in reversed(messages):
        if isinstance(message, HumanMessage):
            return language_of(message.text)
    return "en"
