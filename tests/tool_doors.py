"""What the tests of `ActionMiddleware` and `ActionNode` share: agents of LangChain and LangGraph, ours and plain ones.

A `Shop` is a ledger, a saver and a far side; `door` says how the agent is run. Both kinds of agent call the tools that
a script says, so that a test can put the plain one beside ours.
"""

import warnings
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from scripted import Bank, Remote, ScriptedModel, bank
from settled import Absent, ActionMiddleware, ActionNode, Found, Inquiry, action, current_action

PLAIN, OURS = "plain", "ours"
KINDS = ("create_agent", "tools node")
QUICK: dict[str, Any] = {"timeout": 1.5, "lease": 2.0, "settle_window": 1.5}


def refund_of(far: Remote, then: Callable[[str], None] = lambda order: None, **contract: Any) -> Any:
    """A refund that can be asked about; `then` happens after its effect and before its answer."""

    def find(inquiry: Inquiry) -> Found | Absent:
        receipt = far.find(inquiry.idempotency_key)
        return Found(receipt) if receipt else Absent()

    declared: dict[str, Any] = {"risk": "non_idempotent_write", "identity": ("order",), "remote": "dedupes"}

    @action(**{**declared, "query": find, **contract})
    def refund(order: str) -> dict[str, Any]:
        """Refund an order."""
        done = far.act(current_action().idempotency_key, order=order)
        then(order)
        return done

    return refund


def plain_refund(far: Remote, then: Callable[[str], None] = lambda order: None) -> BaseTool:
    """The same without a ledger."""

    @tool
    def refund(order: str) -> str:
        """Refund an order."""
        done = far.act("", order=order)
        then(order)
        return str(done)

    return refund


def looking(orders: list[str]) -> BaseTool:
    """A tool of somebody else's, that is no action; it keeps what it was asked."""

    @tool
    def look(order: str) -> str:
        """Look an order up."""
        orders.append(order)
        return f"{order} was delivered"

    return look


def agent_of(
    kind: str,
    shop: Bank,
    script: Any,
    tools: Sequence[Any],
    *,
    whose: str = OURS,
    before: Sequence[Any] = (),
    after: Sequence[Any] = (),
    node: Any = None,
    retry_policy: Any = None,
    **options: Any,
) -> Any:
    """Return an agent: that of `create_agent`, with middlewares before and after ours, or a hand-made graph."""
    model = ScriptedModel(script=script)
    if kind == "create_agent":
        ours = [ActionMiddleware(ledger=shop.ledger, **options)] if whose == OURS else []
        return create_agent(model, list(tools), middleware=[*before, *ours, *after], checkpointer=shop.saver)
    if node is None:
        node = ActionNode(tools, ledger=shop.ledger, **options) if whose == OURS else ToolNode(tools, **options)
    return around(node, model, shop.saver, retry_policy=retry_policy)


def around(node: Any, model: Any, saver: Any, *, schema: Any = MessagesState, retry_policy: Any = None) -> Any:
    """Return the usual graph: a model, a tools node, and plain edges."""

    def say(state: Any) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(schema)
    graph.add_node("model", say)
    graph.add_node("tools", node, retry_policy=retry_policy)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", _to_tools, ["tools", END])
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=saver)


def _to_tools(state: Any) -> str:
    return "tools" if getattr(state["messages"][-1], "tool_calls", None) else END


def told(messages: Sequence[Any]) -> list[ToolMessage]:
    return [message for message in messages if isinstance(message, ToolMessage)]


def assert_all_answered(messages: Sequence[Any]) -> None:
    """Each call has one answer, in its place."""
    asked = [call["id"] for message in messages for call in getattr(message, "tool_calls", [])]
    assert [message.tool_call_id for message in told(messages)] == asked


@asynccontextmanager
async def shop_of(door: str, url: str) -> AsyncIterator[Bank]:
    async with bank(door, url) as opened:
        yield opened


def quietly() -> Any:
    """Hear nothing of what LangGraph has deprecated."""
    caught = warnings.catch_warnings()
    caught.__enter__()
    warnings.simplefilter("ignore")
    return caught
