"""What a host may set on our nodes and give to our runs: none of it repeats an effect or hides an answer (LANGGRAPH 8).

A retry policy, a cache policy and a timeout, on a node or as the graph's defaults; callbacks, tags, metadata, limits.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.cache.memory import InMemoryCache
from langgraph.errors import GraphRecursionError, NodeTimeoutError
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.runtime import Runtime
from langgraph.types import CachePolicy, RetryPolicy

from acts import states
from scripted import Remote, ScriptedModel, call, calling, once
from settled import (
    Absent,
    Approve,
    Found,
    Ledger,
    Session,
    action,
    always,
    aopen_checkpointer,
    build_agent,
    current_action,
    open_checkpointer,
)

RETRIES: Any = RetryPolicy(initial_interval=0.01, max_interval=0.02, max_attempts=3, jitter=False)


class Shop:
    """A refund whose reply may be lost or late, in an agent whose host sets what he likes."""

    def __init__(self, ledger: Ledger, saver: Any) -> None:
        self.ledger, self.saver = ledger, saver
        self.remote = Remote(ledger.url)
        self.after: Any = lambda: None
        self.late_s = 0.0
        self.script: Any = once(call("refund", "r", order="A1"))
        self.down = 0
        self.asked = 0

    def find(self, inquiry: Any) -> Found | Absent:
        receipt = self.remote.find(inquiry.idempotency_key)
        return Found(receipt, {"receipt": receipt}) if receipt else Absent()

    def _said(self, messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        self.asked += 1
        if self.down:
            self.down -= 1
            raise ConnectionError("down")
        said: AIMessage = self.script(messages, has_tools)
        return said

    def agent(self, *, approval: Any = None, slow: bool = False, **defaults: Any) -> Any:
        declared: dict[str, Any] = {
            "identity": ("order",),
            "remote": "queryable",
            "query": self.find,
            "approval": approval,
            "name": "refund",
        }

        @action(risk="non_idempotent_write", **declared)
        def refund(order: str) -> dict[str, Any]:
            """Refund an order."""
            done = self.remote.act(current_action().idempotency_key, order=order)
            self.after()
            return done

        @action(risk="non_idempotent_write", **declared)
        async def arefund(order: str) -> dict[str, Any]:
            """Refund an order."""
            done = await asyncio.to_thread(self.remote.act, current_action().idempotency_key, order=order)
            await asyncio.sleep(self.late_s)
            return done

        model = ScriptedModel(script=self._said)
        agent = build_agent(model, [arefund if slow else refund], ledger=self.ledger, checkpointer=self.saver)
        if not defaults:
            return agent
        cache = defaults.pop("cache", None)
        agent.builder.set_node_defaults(**defaults)
        return agent.builder.compile(checkpointer=self.saver, cache=cache)

    def session(self, agent: Any, **options: Any) -> Session:
        return Session(agent, ledger=self.ledger, **{"thread_id": "t", **options})


@pytest.fixture
def shop(database_url: str) -> Iterator[Shop]:
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        yield Shop(ledger, saver)


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class Lost(Exception):
    """The connection broke after the request was sent."""


def lose() -> None:
    raise Lost


def codes(messages: Sequence[BaseMessage]) -> list[str]:
    return [message.artifact["code"] for message in messages if isinstance(message, ToolMessage)]


def plain(far: Remote, after: Any = lose, **node: Any) -> StateGraph[Any]:
    """The same with LangGraph's own tool node."""

    @tool
    def refund(order: str) -> str:
        """Refund an order."""
        receipt = str(far.act("plain", order=order)["receipt"])
        after()
        return receipt

    model = ScriptedModel(script=once(call("refund", "r", order="A1")))
    graph = StateGraph(Chat)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([refund]), **node)
    graph.add_edge(START, "model")
    graph.add_edge("model", "tools")
    graph.add_edge("tools", END)
    return graph


def test_a_retry_policy_on_our_nodes_repeats_no_effect(shop: Shop) -> None:
    """LANGGRAPH 8.1, as a default of all nodes. Plain LangGraph: three effects for one lost reply."""
    far = Remote(shop.ledger.url)
    with pytest.raises(Lost):
        plain(far, retry_policy=RETRIES).compile().invoke({"messages": "please"})
    assert far.count() == 3
    shop.after = lose
    reply = shop.session(shop.agent(retry_policy=RETRIES)).send("please")
    assert codes(reply.messages) == ["succeeded"]
    assert far.count() == 4


def test_a_retry_policy_on_the_model_asks_the_model_again_and_nothing_else(shop: Shop) -> None:
    agent = shop.agent(retry_policy=RETRIES)

    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        if isinstance(messages[-1], ToolMessage) and shop.asked < 4:
            raise ConnectionError("down")
        return once(call("refund", "r", order="A1"))(messages, has_tools)

    shop.script = script
    reply = shop.session(agent).send("please")
    assert "R-1" in reply.text
    assert shop.asked == 4
    assert shop.remote.count() == 1


def test_a_retry_policy_on_a_node_that_holds_our_agent_begins_it_anew(shop: Shop) -> None:
    """LANGGRAPH 8.2: the whole inner graph from its first node. The model's new call meets the same intent."""
    inner = shop.agent()
    graph = StateGraph(Chat)
    graph.add_node("helper", inner, retry_policy=RETRIES)
    graph.add_edge(START, "helper")
    host = graph.compile(checkpointer=shop.saver)
    fails = iter([True, True])

    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        if isinstance(messages[-1], ToolMessage) and next(fails, False):
            raise ConnectionError("down")
        return once(call("refund", f"r{shop.asked}", order="A1"))(messages, has_tools)

    shop.script = script
    reply = shop.session(host).send("please")
    assert reply.is_finished
    assert "R-1" in reply.text
    assert shop.asked > 3
    assert shop.remote.count() == 1


def test_a_retry_policy_asks_a_person_once(shop: Shop) -> None:
    """LANGGRAPH 8.2: it would ask again and run again."""
    agent = shop.agent(approval=always, retry_policy=RETRIES)
    shop.after = lose
    session = shop.session(agent)
    (one,) = session.send("please").approvals
    assert session.decide(one["action_id"], Approve(), by="sue").is_finished
    assert shop.remote.count() == 1


def test_a_cache_policy_hides_no_call_of_another_thread(shop: Shop) -> None:
    """LANGGRAPH 8.3: its key has no thread in it. Plain: the second thread's refund never happens, and it is told of
    the first one's. (Some providers count their messages' ids from zero.)"""
    policy: Any = CachePolicy()
    far = Remote(shop.ledger.url)
    known = AIMessage("", id="ai-0", tool_calls=[call("refund", "r", order="A1")])
    graph = plain(far, lambda: None, cache_policy=policy)
    host = graph.compile(checkpointer=shop.saver, cache=InMemoryCache())
    for thread_id in ("p1", "p2"):
        messages = [HumanMessage("please", id="h"), known]
        place = host.update_state({"configurable": {"thread_id": thread_id}}, {"messages": messages}, as_node="model")
        host.invoke(None, place)
    assert far.count() == 1

    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        return known if isinstance(messages[-1], HumanMessage) else AIMessage(messages[-1].text, id="ai-1")

    shop.script = script
    agent = shop.agent(cache_policy=policy, cache=InMemoryCache())
    for number, tenant in enumerate(("acme", "other"), 2):
        reply = shop.session(agent, tenant=tenant).send("please", message_id="h")
        assert codes(reply.messages) == ["succeeded"]
        assert f"R-{number}" in reply.text
    assert shop.remote.count() == 3


def test_a_cache_policy_does_not_keep_an_approval_from_being_carried_out(shop: Shop) -> None:
    """The node is asked the same again after the decision: a cached answer would be that it waits, for ever."""
    agent = shop.agent(approval=always, cache_policy=CachePolicy(), cache=InMemoryCache())
    session = shop.session(agent, config={"recursion_limit": 30})
    (one,) = session.send("please").approvals
    assert session.decide(one["action_id"], Approve(), by="sue").is_finished
    assert shop.remote.count() == 1
    assert agent.nodes["action"].cache_policy is not None


async def test_a_timeout_on_our_nodes_leaves_unknown_and_the_thread_goes_on(ledger: Ledger) -> None:
    """LANGGRAPH 8.4, with retries beside it: plain LangGraph has three effects. Ours: one, found or late."""
    far = await asyncio.to_thread(Remote, ledger.url)

    async def slow(state: Chat) -> Any:
        await asyncio.to_thread(far.act, "plain")
        await asyncio.sleep(5)

    graph = StateGraph(Chat)
    graph.add_node("slow", slow, timeout=0.3, retry_policy=RETRIES)
    graph.add_edge(START, "slow")
    with pytest.raises(NodeTimeoutError):
        await graph.compile().ainvoke(Chat(messages=[HumanMessage("please")]))
    assert await asyncio.to_thread(far.count) == 3
    async with aopen_checkpointer(ledger) as saver:
        shop = Shop(ledger, saver)
        shop.late_s = 1.0
        session = shop.session(shop.agent(slow=True, timeout=0.5, retry_policy=RETRIES))
        try:
            await session.asend("please", message_id="m1")
        except NodeTimeoutError:
            await asyncio.sleep(1.0)
        reply = await session.asend("please", message_id="m1")
        assert reply.is_finished
        assert "R-4" in reply.text
        assert await asyncio.to_thread(far.count) == 4


def test_a_timeout_that_langgraph_refuses_is_refused_before_anything_is_sent(shop: Shop) -> None:
    with pytest.raises(ValueError, match="timeout"):
        shop.session(shop.agent(timeout=5)).send("please")
    assert shop.remote.count() == 0
    assert states(shop.ledger.url) == []
    assert shop.session(shop.agent()).send("again").is_finished


class Heard(BaseCallbackHandler):
    """Notes which runs it was told of."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.tags: set[str] = set()
        self.metadata: dict[str, Any] = {}

    def on_chain_start(self, serialized: Any, inputs: Any, **kwargs: Any) -> None:
        self.names.append(kwargs.get("name") or "")
        self.tags |= set(kwargs.get("tags") or [])
        self.metadata |= kwargs.get("metadata") or {}


def test_the_hosts_configuration_reaches_the_run(shop: Shop) -> None:
    """Of the session and of one call: callbacks, tags, metadata."""
    always_heard, heard = Heard(), Heard()
    base: Any = {"callbacks": [always_heard], "tags": ["shop"], "metadata": {"user": "ann"}}
    more: Any = {"callbacks": [heard], "tags": ["once"], "metadata": {"request": "17"}}
    session = shop.session(shop.agent(), config=base)
    session.send("please", config=more)
    assert {"agent", "model", "action"} <= set(heard.names)
    assert {"shop", "once"} <= heard.tags
    assert {"user": "ann", "request": "17"}.items() <= heard.metadata.items()
    session.send("more")
    assert len(always_heard.names) > len(heard.names)
    assert "__settled" not in heard.metadata


@pytest.mark.parametrize("place", ["metadata", "configurable"])
def test_a_run_id_of_the_host_drops_no_message(shop: Shop, place: str) -> None:
    """LANGGRAPH 1.6: a second run of the same id is taken for a resume of the first. Plain: its message is gone."""
    named: Any = {place: {"run_id": "r1"}}
    shop.script = lambda messages, has_tools: AIMessage(f"about {messages[-1].text}")
    agent = shop.agent()
    where = {**named, "configurable": {**named.get("configurable", {}), "thread_id": "plain"}}
    for text in ("one", "two"):
        agent.invoke({"messages": [HumanMessage(text)]}, where, durability="sync")
    assert [message.text for message in agent.get_state(where).values["messages"]] == ["one", "about one"]
    session = shop.session(agent, config=named)
    assert [session.send(text).text for text in ("one", "two")] == ["about one", "about two"]


def test_a_recursion_limit_stops_a_turn_that_goes_on_later(shop: Shop) -> None:
    """LANGGRAPH 4.12."""
    session = shop.session(shop.agent(), config={"recursion_limit": 2})
    with pytest.raises(GraphRecursionError):
        session.send("please", message_id="m1")
    reply = shop.session(shop.agent()).send("please", message_id="m1")
    assert "R-1" in reply.text
    assert shop.remote.count() == 1


def test_the_context_of_a_run_and_what_nodes_read_of_the_configuration_are_given_to_each(shop: Shop) -> None:
    """LangGraph stores neither (LANGGRAPH 8.6): a resume without them would run the host's nodes without."""
    seen: list[Any] = []

    class Context(TypedDict):
        user: str

    def look(state: Chat, config: RunnableConfig, runtime: Runtime[Context]) -> dict[str, Any]:
        seen.append((runtime.context, config["configurable"]["theme"]))
        return {}

    graph: Any = StateGraph(Chat, context_schema=Context)
    graph.add_node("before", look)
    graph.add_node("helper", shop.agent(approval=always))
    graph.add_node("after", look)
    graph.add_edge(START, "before")
    graph.add_edge("before", "helper")
    graph.add_edge("helper", "after")
    themed: Any = {"configurable": {"theme": "x"}}
    session = shop.session(graph.compile(checkpointer=shop.saver), context={"user": "ann"}, config=themed)
    (one,) = session.send("please").approvals
    assert session.decide(one["action_id"], Approve(), by="sue").is_finished
    assert seen == [({"user": "ann"}, "x")] * 2
    assert shop.remote.count() == 1


def test_two_calls_at_once_are_bounded_as_the_host_says(shop: Shop) -> None:
    """LANGGRAPH 3.4."""
    running: list[int] = [0]
    most: list[int] = []

    def during() -> None:
        running[0] += 1
        most.append(running[0])
        time.sleep(0.1)
        running[0] -= 1

    shop.after = during
    shop.script = lambda messages, has_tools: (
        calling(*(call("refund", f"r{n}", order=f"A{n}") for n in range(3)))
        if isinstance(messages[-1], HumanMessage)
        else AIMessage("done")
    )
    shop.session(shop.agent(), config={"max_concurrency": 1}).send("please")
    assert max(most) == 1
    assert shop.remote.count() == 3
