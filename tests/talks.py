"""The same agent in three kinds: ours through a `Session`, and two of plain LangGraph for comparison.

"node" is a `ToolNode` under a plain edge, "sends" is `create_agent`, which makes a task of each call.
What is dangerous happens in `act`, whose effects are rows of the test's own table. For tests in one process and, with
`children/talking.py`, for processes that die.
"""

import uuid
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition

from scripted import Remote, ScriptedModel, call, calling
from settled import (
    Absent,
    Found,
    Ledger,
    Session,
    action,
    build_agent,
    current_action,
)

CALLS = 3
OURS = "ours"
During = Callable[[int], None]


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
    """Call `act` three times in each turn, and then say what came of it."""
    if isinstance(messages[-1], HumanMessage):
        turn = sum(isinstance(message, HumanMessage) for message in messages)
        return calling(*(call("act", f"c{turn}-{n}", turn=turn, n=n) for n in range(CALLS)))
    told = [message for message in messages if isinstance(message, ToolMessage)]
    return AIMessage(content="; ".join(str(one.content).split("\n")[0] for one in told[-CALLS:]))


def acting(kind: str, far: Remote, during: During, **contract: Any) -> Any:
    """Return the tool, guarded or not. `during(n)` runs in the body after its effect."""
    if kind != OURS:

        @tool
        def act(turn: int, n: int) -> str:
            """Do something."""
            done = far.act(f"plain-{uuid.uuid4()}", turn=turn, n=n)
            during(n)
            return str(done["receipt"])

        return act

    def find(inquiry: Any) -> Found | Absent:
        receipt = far.find(inquiry.idempotency_key)
        return Found(receipt, {"receipt": receipt}) if receipt else Absent()

    declared: dict[str, Any] = {"remote": "dedupes", "query": find, "timeout": 3.0, "settle_window": 3.0}

    @action(risk="non_idempotent_write", identity=("turn", "n"), name="act", **{**declared, **contract})
    def guarded(turn: int, n: int) -> dict[str, Any]:
        """Do something."""
        done = far.act(current_action().idempotency_key, turn=turn, n=n)
        during(n)
        return done

    return guarded


def nothing(n: int) -> None:
    """Do nothing in the body."""


def agent_of(kind: str, ledger: Ledger, saver: Any, during: During = nothing, **contract: Any) -> Any:
    """Return an agent of a kind."""
    model = ScriptedModel(script=script)
    act = acting(kind, Remote(ledger.url), during, **contract)
    if kind == OURS:
        return build_agent(model, [act], ledger=ledger, checkpointer=saver)
    if kind == "sends":
        from langchain.agents import create_agent

        return create_agent(model, [act], checkpointer=saver)
    bound = model.bind_tools([act])
    graph = StateGraph(Chat)
    graph.add_node("model", lambda state: {"messages": [bound.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([act]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition, {"tools": "tools", "__end__": END})
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=saver)


def say(agent: Any, ledger: Ledger, kind: str, text: str, message_id: str | None = "m1") -> None:
    """Send one message, as a program of that kind does."""
    if kind == OURS:
        Session(agent, ledger=ledger, thread_id="t").send(text, message_id=message_id)
    else:
        config = {"configurable": {"thread_id": "t"}}
        agent.invoke({"messages": [HumanMessage(text, id=message_id)]}, config, durability="sync")
