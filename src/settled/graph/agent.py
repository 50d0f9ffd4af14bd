"""The reference agent: model → one `Send` per tool call → model, and a node each for what waits and what comes late.

    model ─▶ action ─▶ model         one task per call
    model ─▶ approve ─▶ action       while a call waits for a person, no model is asked
    late                             entered by a session: what became of a call whose turn is over

Owns the nodes and the end of a turn. Reads and writes may stand in one message; each call is a task of its own,
so that a crash or an approval in one never repeats another. After `repeat_limit` repeats of one thing, or `max_calls`
calls of anything, in a turn the model gets no tools any more, and if it insists, the recorded facts are the answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Send

from settled.graph.answers import Answer, answers_of, recorded_facts, repeated, spoken_in, tool_message
from settled.graph.approve import Asking
from settled.graph.calls import Request, requests_of, tidy
from settled.graph.chain import as_tools
from settled.graph.channel import Conversation, Talk
from settled.graph.engine import Engine
from settled.graph.identity import Handle, can_pause, check_lock, handle_of
from settled.graph.late import Late
from settled.graph.tickets import is_waiting, set_aside, ticket_of, unheard
from settled.graph.twin import Twin
from settled.state.errors import ContractError
from settled.state.store import Ledger
from settled.tools.contract import Contract, contract_of
from settled.tools.effects import Steps
from settled.tools.perform import check_policies
from settled.tools.policy import Policy
from settled.tools.runner import REAL, Runner, World

Agent = CompiledStateGraph[Any, None, Any, Any]
Update = dict[str, list[Any]]
Approvals = Literal["batched", "per_call"]

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
    approvals: Approvals = "batched",
    policies: Mapping[str, Policy] | None = None,
    world: World = REAL,
) -> Agent:
    """Return an agent whose tool calls are actions: at most one effect for each intent. Works with invoke and ainvoke.

    Run it through a `Session`; or by yourself with a `thread_id` in the configuration, `durability="sync"`, and one
    run per thread at a time. `language` ("en", "zh") is by default that of the user's last message. An agent of a
    `tenant` serves only that one; without, its sessions say whom they serve ("default"). A turn has at most
    `repeat_limit` repeats of one thing and `max_calls` calls; after that the model is asked without tools, for an
    answer to the user. Messages are kept in a DeltaChannel, so that the cost of a turn stays flat as the thread grows.

    `policies` judge, by risk, the tools that declare no `approval` of their own. Where a person is asked, the run ends
    with one interrupt for all calls that wait ("batched"), or with one for each ("per_call"); who answers it stands in
    the configuration (`approver`, `approver_roles`). Without a checkpointer a run cannot wait, and the model is told
    that the call does.

    A chain among the tools is called as one of them. Raises ContractError for a tool without a contract, and for two
    tools of one name.
    """
    if repeat_limit < 1 or max_calls < 1:
        raise ContractError("repeat_limit and max_calls must be at least 1")
    if approvals not in get_args(Approvals):
        raise ContractError(f"approvals must be one of {', '.join(get_args(Approvals))}")
    tools = as_tools(tools)
    contracts = _by_name([contract_of(tool) for tool in tools])
    engine = Engine(contracts, ledger, world, check_policies(policies))
    chat = _Chat(model, tools, system_prompt, repeat_limit, max_calls)
    asking = Asking(engine)
    action = _Action(engine, asking, tenant, language, asks_itself=approvals == "per_call")

    def fan_out(state: Conversation, config: RunnableConfig) -> list[Send] | str:
        messages = state["messages"]
        spoken = action.handle(config).language or spoken_in(messages)
        if state["waiting"]:
            return [Send("action", request) for request in unheard(state, spoken)] or "approve"
        if not isinstance(messages[-1], AIMessage):
            return END
        left = max_calls - len(answers_of(messages))
        return [Send("action", request) for request in requests_of(messages[-1], spoken, left)] or END

    def approve(state: Conversation, config: RunnableConfig) -> tuple[Runner, Steps[Any]]:
        check_lock(config)
        return engine.runner(), asking.batch(state, action.handle(config), config)

    graph = StateGraph(Conversation, input_schema=Talk, output_schema=Talk)
    graph.add_node("model", chat)
    graph.add_node("action", action)
    graph.add_node("approve", Twin("approve", approve), destinations=("action", "approve", "model"))
    graph.add_node("late", Late(engine, action.handle))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", fan_out, ["action", "approve", END])
    graph.add_edge("action", "model")
    graph.add_edge("late", END)
    return graph.compile(checkpointer=checkpointer, name="agent")


@dataclass(frozen=True, slots=True)
class _Heard:
    """What the model is shown, the update that makes the conversation so, and which model it is: one without tools
    where `last_word` is what the turn ends with otherwise.
    """

    messages: Sequence[AnyMessage]
    update: Update
    model: Runnable[Any, BaseMessage]
    last_word: str | None


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
        if _is_waiting(input):
            return {}
        heard = self._heard(input)
        said = heard.model.invoke([*self._system, *heard.messages], config)
        check_lock(config or {})
        return _said(said, heard)

    async def ainvoke(
        self,
        input: Conversation,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Update:
        check_lock(config or {})
        if _is_waiting(input):
            return {}
        heard = self._heard(input)
        said = await heard.model.ainvoke([*self._system, *heard.messages], config)
        check_lock(config or {})
        return _said(said, heard)

    def _heard(self, state: Conversation) -> _Heard:
        """Return what the model is shown. A message that was put into a thread that waits (without a session, which
        would have answered the calls first) follows the answers, and the update makes the conversation so.
        """
        messages, update = set_aside(state) if state["waiting"] else (state["messages"], {"messages": []})
        last_word = self._last_word(messages)
        return _Heard(messages, update, self._bound if last_word is None else self._bare, last_word)

    def _last_word(self, messages: Sequence[AnyMessage]) -> str | None:
        """Return what the turn ends with if the model will not end it; None while it may still call tools."""
        given = answers_of(messages)
        if len(given) >= self._max_calls:
            return recorded_facts(given)
        said = repeated(messages, self._repeat_limit)
        return recorded_facts(said) if said else None


class _Action(Runnable[Request, Update]):
    """The node `action`: one call of one message."""

    def __init__(
        self, engine: Engine, asking: Asking, tenant: str | None, language: str | None, *, asks_itself: bool
    ) -> None:
        self.name = "action"
        self.tenant = tenant
        self.engine = engine
        self.asking = asking
        self._asks_itself = asks_itself
        self._language = language

    def handle(self, config: RunnableConfig) -> Handle:
        """Return the session of a run."""
        return handle_of(config, tenant=self.tenant or DEFAULT_TENANT, language=self._language)

    def invoke(self, input: Request, config: RunnableConfig | None = None, **kwargs: Any) -> Update:  # noqa: A002
        config = config or {}
        check_lock(config)
        handle, problem = self.handle(config), None
        answer = self.engine.call(input, handle, config)
        if self._asks(answer, config):
            problem = self.engine.runner().drive(self.asking.single(input, answer, handle, config))
            if problem is None:
                answer = self.engine.call(input, handle, config)
        check_lock(config)
        return _answered(input, answer, problem, config)

    async def ainvoke(
        self,
        input: Request,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Update:
        config = config or {}
        check_lock(config)
        handle, problem = self.handle(config), None
        answer = await self.engine.acall(input, handle, config)
        if self._asks(answer, config):
            problem = await self.engine.runner().adrive(self.asking.single(input, answer, handle, config))
            if problem is None:
                answer = await self.engine.acall(input, handle, config)
        check_lock(config)
        return _answered(input, answer, problem, config)

    def _asks(self, answer: Answer, config: RunnableConfig) -> bool:
        return self._asks_itself and is_waiting(answer) and can_pause(config)


def _answered(request: Request, answer: Answer, problem: str | None, config: RunnableConfig) -> Update:
    """Return the message that answers a call; or its ticket, where a person is to decide and the run can wait."""
    if is_waiting(answer) and can_pause(config):
        return {"waiting": [ticket_of(request, answer, problem)]}
    return {"messages": [tool_message(request, answer)]}


def tenant_of(agent: Agent) -> str | None:
    """Return the only tenant that an agent of `build_agent` serves, if it was built for one."""
    node = agent.builder.nodes.get("action")
    return node.runnable.tenant if node is not None and isinstance(node.runnable, _Action) else None


def engine_of(agent: Agent) -> Engine:
    """Return what carries the calls of an agent; ContractError for a graph that `build_agent` did not make."""
    node = agent.builder.nodes.get("action")
    if node is None or not isinstance(node.runnable, _Action):
        raise ContractError("a session runs the agents of build_agent")
    return node.runnable.engine


def _by_name(contracts: Sequence[Contract]) -> dict[str, Contract]:
    named = {contract.name: contract for contract in contracts}
    if len(named) < len(contracts):
        raise ContractError("two tools have the same name: give one of them another, @action(name=...)")
    return named


def _is_waiting(state: Conversation) -> bool:
    """Whether a call waits for a person, and no new message has come in."""
    return bool(state["waiting"]) and not isinstance(state["messages"][-1], HumanMessage)


def _said(message: BaseMessage, heard: _Heard) -> Update:
    """Return the model's answer, with what goes before it; where it insists on a call although it has no tools any
    more, its last word.
    """
    answer = tidy(message, heard.messages)
    if heard.last_word is not None and (answer.tool_calls or answer.invalid_tool_calls):
        answer = AIMessage(content=heard.last_word, id=answer.id)
    return {**heard.update, "messages": [*heard.update["messages"], answer]}
