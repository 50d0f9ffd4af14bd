"""The graph inside a tool node's task: each of its calls, and each of its questions to a person, is a task of its own.

LangGraph runs a task again from its first line, and matches the answers of a task to its questions by their number. So
calls that share a task repeat one another, and a second question may be given the first one's answer. Owns the nested
graph that keeps them apart. It has the checkpointer of the graph around it, and so goes on where it stood; it keeps
plain JSON and messages, and what only this process knows travels in the configuration.
"""

import hashlib
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Annotated, Any, NotRequired, TypedDict

from langchain_core.messages import ToolCall
from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, Send

from settled.graph.answers import Answer
from settled.graph.approve import SCRATCHPAD_KEY, Asking
from settled.graph.calls import Request
from settled.graph.commands import pack, unpack
from settled.graph.identity import Handle, check_lock
from settled.graph.twin import Twin
from settled.state.errors import ContractError
from settled.tools.effects import Steps
from settled.tools.runner import Runner

FAN_KEY = "__settled_fan"

NS_SEP = "|"
"""LangGraph's own: between the parts of a namespace; a part of digits tells runs of one graph apart (1.2.24)."""


class Question(TypedDict):
    """What one call asks a person, and why the last answer could not be used."""

    request: Request
    answer: Answer
    problem: NotRequired[str]


class Inside(TypedDict, total=False):
    """What is to be done, and what came of the calls, in their order."""

    calls: list[ToolCall]
    question: Question
    results: Annotated[list[Any], operator.add]


Inner = CompiledStateGraph[Inside, None, Inside, Inside]


@dataclass(frozen=True, slots=True)
class Fan:
    """How a task of this process carries one call of its state: `node` takes `tool_call_with_context`."""

    node: Callable[[dict[str, Any], RunnableConfig], Any]
    anode: Callable[[dict[str, Any], RunnableConfig], Any]
    state: Any

    def given(self, call: ToolCall) -> dict[str, Any]:
        """Return the input of the node for one call."""
        return {"__type": "tool_call_with_context", "tool_call": call, "state": self.state}


def inner(asking: Asking, handle: Callable[[RunnableConfig], Handle]) -> Inner:
    """Return the graph; its nodes are `call` and `approval`."""

    def approval(question: Question, config: RunnableConfig) -> tuple[Runner, Steps[Any]]:
        check_lock(config)
        return asking.engine.runner(), _ask(asking, question, handle(config), config)

    graph = StateGraph(Inside)
    graph.add_node("call", _Call())
    graph.add_node("approval", Twin("approval", approval), destinations=("approval",))
    graph.add_conditional_edges(START, _begin, ["call", "approval"])
    graph.add_edge("call", END)
    return graph.compile(name="tools")


def apart(config: RunnableConfig, request: Request) -> RunnableConfig:
    """Return the configuration in which one call asks: its nested runs are told from those of other calls that share
    its task (LangGraph numbers them as they come, and calls in threads come in any order).
    """
    configurable = config.get("configurable", {})
    scratchpad, namespace = configurable.get(SCRATCHPAD_KEY), configurable.get("checkpoint_ns")
    if not is_dataclass(scratchpad) or isinstance(scratchpad, type) or not namespace:
        return config
    name = f"{request['message_id']}/{request['tool_call_id']}/{request['occurrence']}"
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big")
    counting: Any = {"subgraph_counter": itertools.count().__next__}
    own = {SCRATCHPAD_KEY: replace(scratchpad, **counting), "checkpoint_ns": f"{namespace}{NS_SEP}{number}"}
    return {**config, "configurable": {**configurable, **own}}


def _begin(state: Inside) -> list[Send]:
    if "question" in state:
        return [Send("approval", state["question"])]
    return [Send("call", call) for call in state["calls"]]


def _ask(asking: Asking, question: Question, handle: Handle, config: RunnableConfig) -> Steps[Command[Any]]:
    """Ask once. An answer that cannot be used is asked for again by a new task."""
    request, answer = question["request"], question["answer"]
    problem = yield from asking.single(request, answer, handle, config, question.get("problem"))
    if problem is None:
        return Command()
    return Command(goto=Send("approval", {**question, "problem": problem}))


class _Call(Runnable[ToolCall, Inside]):
    """The node `call`: one call, in its own task."""

    name = "call"

    def invoke(self, input: ToolCall, config: RunnableConfig | None = None, **kwargs: Any) -> Inside:  # noqa: A002
        config = config or {}
        fan = _fan(config)
        return {"results": stored(fan.node(fan.given(input), config))}

    async def ainvoke(
        self,
        input: ToolCall,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Inside:
        config = config or {}
        fan = _fan(config)
        return {"results": stored(await fan.anode(fan.given(input), config))}


def _fan(config: RunnableConfig) -> Fan:
    fan = config.get("configurable", {}).get(FAN_KEY)
    if not isinstance(fan, Fan):
        raise ContractError("this graph is entered through ActionNode, which knows the tools")
    return fan


def stored(results: Sequence[Any]) -> list[Any]:
    """Return results as a checkpoint keeps them: commands packed, where they can be."""
    return [{"command": packed} if isinstance(one, Command) and (packed := pack([one])) else one for one in results]


def restored(results: Sequence[Any]) -> list[Any]:
    """Return what was stored."""
    return [
        command
        for one in results
        for command in (unpack(one["command"]) if isinstance(one, dict) and "command" in one else [one])
    ]
