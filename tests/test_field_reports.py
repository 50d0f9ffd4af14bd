"""What has gone wrong for people who do this: each kind of public report that can be run here, through the agent.

Groups A (double execution), C (interrupt, resume, replay), D (cancellation, orphaned calls), E (concurrency, tenancy):

| report | kind | test |
|---|---|---|
| 1 | a retry middleware repeats ambiguous errors | test_middleware.py::test_a_retry_around_ours_meets_the_record |
| 2 | a long call is begun again by a second dispatcher | test_a_long_call_is_not_begun_again |
| 3 | result and checkpoint saved in no order | test_langgraph_facts_crash.py::test_killed_while_a_result_is_saved |
| 4 | the model calls again under a new id | test_a_call_made_again_under_a_new_id_is_the_same |
| 6 | a failing model makes the run begin anew | test_a_run_that_begins_anew_repeats_nothing |
| 8, 16 | node timeouts and retries | test_session_hosts.py |
| 9 | an approved effect is replayed after a crash | test_approval_kills.py::test_killed_while_it_carries_on |
| 10 | one retry path ignores the mark | all of them, by the ledger: test_session_hosts.py, test_middleware.py |
| 11, 12 | retries hide in the client below the tool | test_http.py, test_no_answer.py |
| 15 | doom loops, also of A, B, A, B | test_a_model_that_goes_in_circles_ends |
| 33 | answers reach the wrong one of two questions | test_each_question_gets_its_own_answer |
| 34 | what stands before a pause is repeated | test_langgraph_facts_runs.py::test_a_siblings_approval_repeats_nothing |
| 35 | cached tasks are run again in a subgraph | test_one_yes_in_a_nested_graph_answers_one_question |
| 36 | a pause that is swallowed | test_a_swallowed_pause_carries_nothing_out |
| 38 | replays that run again | test_session_time_travel.py |
| 39 | one yes for two questions | test_one_yes_in_a_nested_graph_answers_one_question |
| 40 | the functional style begins over at each resume | test_the_functional_style_repeats_nothing |
| 42 | the inbox does not list what waits | test_what_waits_is_listed_before_anybody_is_asked |
| 44, 46, 52 | a cancelled call has no answer | test_session_cancelled.py, test_session_stream.py |
| 47 | a tool's error leaves calls unanswered | test_langgraph_facts_crash.py::test_what_a_tool_raises_neither_… |
| 49 | a timeout is worded as a failure | test_messages.py, and as 51 |
| 50 | no contract for a worker that dies in a tool | test_graph_kills.py, under each durability |
| 51 | a transport that never answers | test_a_transport_that_never_answers_is_not_called_a_failure |
| 54, 56 | two resumes, a double click | test_langgraph_facts_runs.py, test_session_twice.py |
| 55 | two processes fork the thread | test_graph_lock_lost.py, test_frozen_worker.py |
| 58 | another tenant's thread id | test_session_tenants.py |
| 59 | context leaks between runs of one agent | test_runs_side_by_side_of_one_agent_never_mix |
"""

import asyncio
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.func import entrypoint
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, interrupt

from scripted import Remote, ScriptedModel, call, calling
from settled import (
    Absent,
    Approve,
    Desk,
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
from settled.graph.node import ActionNode
from talks import Chat

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class Shop:
    """A charge with a far side that counts, and a model that a test scripts."""

    def __init__(self, ledger: Ledger, saver: Any) -> None:
        self.ledger, self.saver = ledger, saver
        self.far = Remote(ledger.url)
        self.after: Any = lambda: None
        self.script: Any = None

    def find(self, inquiry: Any) -> Found | Absent:
        receipt = self.far.find(inquiry.idempotency_key)
        return Found(receipt, {"receipt": receipt}) if receipt else Absent()

    def charge(self, **contract: Any) -> Any:
        declared: dict[str, Any] = {"remote": "dedupes", "query": self.find, "identity": ("order",)}

        @action(risk="non_idempotent_write", name="charge", **{**declared, **contract})
        def charge(order: str) -> dict[str, Any]:
            """Charge for an order."""
            done = self.far.act(current_action().idempotency_key, order=order)
            self.after()
            return done

        return charge

    def plain_charge(self) -> Any:
        @tool
        def charge(order: str) -> str:
            """Charge for an order."""
            receipt = str(self.far.act("plain", order=order)["receipt"])
            self.after()
            return receipt

        return charge

    def model(self) -> ScriptedModel:
        return ScriptedModel(script=lambda messages, has_tools: self.script(messages, has_tools))

    def agent(self, *tools: Any, **options: Any) -> Any:
        options = {"checkpointer": self.saver, **options}
        return build_agent(self.model(), tools or [self.charge()], ledger=self.ledger, **options)

    def graph(self, node: Any) -> Any:
        """Somebody's graph around a tool node."""
        model = self.model()
        graph = StateGraph(Chat)
        graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
        graph.add_node("tools", node)
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition, {"tools": "tools", "__end__": END})
        graph.add_edge("tools", "model")
        return graph.compile(checkpointer=self.saver)

    def session(self, agent: Any, **options: Any) -> Session:
        return Session(agent, ledger=self.ledger, **{"thread_id": "t", **options})


@pytest.fixture
def shop(database_url: str) -> Iterator[Shop]:
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        yield Shop(ledger, saver)


def codes(messages: Sequence[BaseMessage]) -> list[str]:
    return [message.artifact["code"] for message in messages if isinstance(message, ToolMessage)]


def first(*calls: dict[str, Any]) -> Any:
    """Call these first, then talk."""

    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        if isinstance(messages[-1], HumanMessage):
            return calling(*calls)
        return AIMessage(str(messages[-1].content).split("\n")[0])

    return script


def test_a_long_call_is_not_begun_again(shop: Shop) -> None:
    """Report 2: a second dispatcher starts the thread from its checkpoint while the first still runs, and goes around
    every lock."""
    shop.script = first(call("charge", "c", order="A1"))
    inside, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        inside.set()
        go_on.wait(10)

    shop.after = slow
    agent = shop.agent(shop.charge(timeout=3.0, lease=3.5, settle_window=3.0, deadline=10.0))
    with ThreadPoolExecutor() as pool:
        running = pool.submit(agent.invoke, {"messages": "please"}, CONFIG, durability="sync")
        assert inside.wait(10)
        second = pool.submit(agent.invoke, None, CONFIG, durability="sync")
        time.sleep(1.0)
        go_on.set()
        assert running.result(20)["messages"][-1].text
        second.result(20)
    assert shop.far.count() == 1


def test_a_call_made_again_under_a_new_id_is_the_same(shop: Shop) -> None:
    """Report 4: the reply was lost, the model makes the call once more, under another tool-call id. A key that is made
    for each call charges twice."""
    ids = iter(range(100))

    def insists(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        told = [message for message in messages if isinstance(message, ToolMessage)]
        if len(told) < 2:
            return calling(call("charge", f"c{next(ids)}", order="A1"))
        return AIMessage(str(told[-1].content).split("\n")[0])

    def lost() -> None:
        raise TimeoutError

    shop.script, shop.after = insists, lost
    shop.graph(ToolNode([shop.plain_charge()], handle_tool_errors=True)).invoke(
        {"messages": "please"}, {"configurable": {"thread_id": "plain"}}
    )
    assert shop.far.count() == 2
    reply = shop.session(shop.agent()).send("please")
    assert codes(reply.messages) == ["succeeded", "duplicate"]
    assert "R-3" in reply.text
    assert shop.far.count() == 3


def test_a_run_that_begins_anew_repeats_nothing(shop: Shop) -> None:
    """Report 6: the charge succeeds, the next model call fails, and a retry around the whole run throws the result away
    and begins again."""
    fails = {"left": 2}

    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        if isinstance(messages[-1], ToolMessage) and fails["left"]:
            fails["left"] -= 1
            raise ConnectionError("500")
        said: AIMessage = first(call("charge", f"c{len(messages)}", order="A1"))(messages, has_tools)
        return said

    shop.script = script
    retry: dict[str, Any] = {"stop_after_attempt": 3, "wait_exponential_jitter": False}
    plain = shop.graph(ToolNode([shop.plain_charge()])).with_retry(**retry)
    plain.invoke({"messages": "please"}, {"configurable": {"thread_id": "plain"}})
    assert shop.far.count() == 3
    fails["left"] = 2
    messages = shop.agent().with_retry(**retry).invoke({"messages": "please"}, CONFIG)["messages"]
    assert "R-4" in messages[-1].text
    assert shop.far.count() == 4


@pytest.mark.parametrize("kind", ["A, B, A, B", "another order of the keys"])
def test_a_model_that_goes_in_circles_ends(shop: Shop, kind: str) -> None:
    """Report 15: it calls on and on, whatever the tools say, after successes too."""
    seen = iter(range(1000))

    @action(risk="non_idempotent_write", identity=("order", "note"), name="charge")
    def charge(order: str, note: dict[str, int]) -> dict[str, Any]:
        """Charge for an order."""
        return shop.far.act(current_action().idempotency_key, order=order)

    def circles(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        if not has_tools:
            return AIMessage("that is all")
        number = next(seen)
        order = "A1" if kind != "A, B, A, B" or number % 2 else "B1"
        keys = ["x", "y"] if number % 2 else ["y", "x"]
        return calling(call("charge", f"c{number}", order=order, note=dict.fromkeys(keys, 1)))

    shop.script = circles
    reply = shop.session(shop.agent(charge)).send("please")
    assert reply.text == "that is all"
    assert len(reply.tool_messages) <= 8
    assert shop.far.count() == (2 if kind == "A, B, A, B" else 1)


def test_each_question_gets_its_own_answer(shop: Shop) -> None:
    """Report 33: two calls of one message pause in a tool node, in whatever order they get there; the answers are given
    one yes and one no. Plain: their interrupts share one id, so that only one of them can be answered."""

    @tool
    def a(x: int) -> str:
        """Ask."""
        return f"a {interrupt('a?')}"

    @tool
    def b(x: int) -> str:
        """Ask."""
        return f"b {interrupt('b?')}"

    shop.script = first(call("a", x=1), call("b", x=1))
    plain = shop.graph(ToolNode([a, b]))
    asked = plain.invoke({"messages": "please"}, {"configurable": {"thread_id": "plain"}})["__interrupt__"]
    assert len({one.id for one in asked}) == 1
    chance = random.Random(7)
    declared: dict[str, Any] = {"risk": "non_idempotent_write", "identity": "all", "approval": always}

    @action(**declared)
    def pay(payee: str) -> dict[str, Any]:
        """Pay."""
        return shop.far.act(current_action().idempotency_key, pay=payee)

    @action(**declared)
    def mail(to: str) -> dict[str, Any]:
        """Write."""
        time.sleep(chance.uniform(0, 0.02))
        return shop.far.act(current_action().idempotency_key, mail=to)

    for number in range(8):
        where: Any = {"configurable": {"thread_id": f"t{number}"}}
        shop.script = first(call("pay", payee=f"p{number}"), call("mail", to=f"m{number}"))
        graph = shop.graph(ActionNode([pay, mail], ledger=shop.ledger))
        graph.invoke({"messages": "please"}, where)
        by_name = {one.value["name"]: one.id for one in graph.get_state(where).interrupts}
        answers = {by_name["pay"]: {"type": "approve"}, by_name["mail"]: {"type": "reject", "message": "no"}}
        done = graph.invoke(Command(resume=answers), where)
        told = {m.name: m.artifact["code"] for m in done["messages"] if isinstance(m, ToolMessage)}
        assert told == {"pay": "succeeded", "mail": "denied"}
        assert shop.far.count() == number + 1


def test_a_swallowed_pause_carries_nothing_out(shop: Shop) -> None:
    """Report 36: a layer above catches every exception, and goes on as if the call had been answered. The action stays
    planned, whoever asks finds it, and a decision carries it out once."""
    shop.script = first(call("charge", "c", order="A1"))
    inner = shop.agent(shop.charge(approval=always), checkpointer=None)

    def catches(state: Chat) -> Any:
        try:
            return inner.invoke(state)
        except Exception as error:
            return {"messages": [AIMessage(f"went wrong: {type(error).__name__}")]}

    graph = StateGraph(Chat)
    graph.add_node("helper", catches)
    graph.add_edge(START, "helper")
    host: Any = graph.compile(checkpointer=shop.saver)
    assert host.invoke({"messages": "please"}, CONFIG)["messages"][-1].text == "went wrong: GraphInterrupt"
    (asked,) = Desk(shop.ledger).approvals(thread_id="t")
    assert shop.far.count() == 0
    Desk(shop.ledger).decide(asked.action_id, Approve(), by="sue", fingerprint=asked.fingerprint)
    assert "R-1" in host.invoke({"messages": "and now?"}, CONFIG)["messages"][-1].text
    assert shop.far.count() == 1


def test_one_yes_in_a_nested_graph_answers_one_question(shop: Shop) -> None:
    """Reports 35, 39: two questions, one after the other, within a graph within a graph. One yes, without an id."""

    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        told = [message for message in messages if isinstance(message, ToolMessage)]
        if len(told) < 2:
            return calling(call("charge", f"c{len(told)}", order=f"A{len(told)}"))
        return AIMessage("done")

    shop.script = script
    agent: Any = shop.agent(shop.charge(approval=always), checkpointer=None)
    for name in ("inner", "outer"):
        graph = StateGraph(Chat)
        graph.add_node(name, agent)
        graph.add_edge(START, name)
        agent = graph.compile(checkpointer=shop.saver if name == "outer" else None)
    agent.invoke({"messages": "please"}, CONFIG)
    for paid in (1, 2):
        (asked,) = agent.get_state(CONFIG).interrupts
        assert asked.value["action_requests"][0]["args"] == {"order": f"A{paid - 1}"}
        agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), CONFIG)
        assert shop.far.count() == paid
    assert agent.get_state(CONFIG).tasks == ()


def test_the_functional_style_repeats_nothing(shop: Shop) -> None:
    """Report 40: the entry function begins over on each resume. What it calls before it pauses is met, not repeated."""
    shop.script = first(call("charge", "c", order="A1"))
    inner = shop.agent(checkpointer=None)
    passes: list[str] = []

    @entrypoint(checkpointer=shop.saver)
    def flow(text: str) -> str:
        said: str = inner.invoke({"messages": text}, CONFIG)["messages"][-1].text
        passes.append(said)
        return f"{said} {interrupt('more?')}"

    where: Any = {"configurable": {"thread_id": "flow"}}
    flow.invoke("please", where)
    assert str(flow.invoke(Command(resume="no"), where)).endswith(" no")
    assert len(passes) == 2
    assert all("R-1" in said for said in passes)
    assert shop.far.count() == 1


def test_what_waits_is_listed_before_anybody_is_asked(shop: Shop) -> None:
    """Report 42: an inbox that reads the thread's state may find nothing; the ledger's has the row before the pause is
    raised, here while another call still keeps the step open."""
    inside, go_on = threading.Event(), threading.Event()

    @action(risk="read")
    def look(order: str) -> str:
        """Look."""
        inside.set()
        go_on.wait(10)
        return "there"

    shop.script = first(call("charge", "c", order="A1"), call("look", "l", order="A1"))
    session = shop.session(shop.agent(shop.charge(approval=always), look))
    with ThreadPoolExecutor() as pool:
        turn = pool.submit(session.send, "please")
        assert inside.wait(10)
        end = time.monotonic() + 10
        while not (listed := Desk(shop.ledger).approvals()):
            assert time.monotonic() < end
            time.sleep(0.02)
        go_on.set()
        assert [one["action_id"] for one in turn.result(10).approvals] == [listed[0].action_id]


def test_a_transport_that_never_answers_is_not_called_a_failure(shop: Shop) -> None:
    """Reports 49, 51: the call ends at its own time, as unknown; the model is not told that it failed."""
    for_ever = threading.Event()
    shop.after = lambda: for_ever.wait(20)
    shop.script = first(call("charge", "c", order="A1"))
    charge = shop.charge(remote="opaque", query=None, timeout=0.3, settle_window=0.3)
    reply = shop.session(shop.agent(charge)).send("please")
    for_ever.set()
    (told,) = reply.tool_messages
    assert told.artifact["state"] == "unknown"
    assert not told.artifact["may_retry"]
    assert told.artifact["action_id"]
    assert not any(word in told.text.lower() for word in ("failed", "error", "try again", "timeout"))
    assert shop.far.count() == 1


async def test_runs_side_by_side_of_one_agent_never_mix(ledger: Ledger) -> None:
    """Report 59: one agent object, many threads of several tenants at once, in one event loop and in a thread pool.
    Each body sees its own thread, tenant and user; each answer is its own."""
    wrong: list[Any] = []

    def check(order: str) -> str:
        at = current_action()
        if order != f"{at.tenant}/{at.thread_id}":
            wrong.append((order, at))
        return order

    @action(risk="non_idempotent_write", identity="all")
    async def acharge(order: str) -> str:
        """Charge for an order."""
        await asyncio.sleep(random.uniform(0, 0.02))
        return check(order)

    @action(risk="non_idempotent_write", identity="all")
    def charge(order: str) -> str:
        """Charge for an order."""
        time.sleep(random.uniform(0, 0.02))
        return check(order)

    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        if isinstance(messages[-1], HumanMessage):
            return calling(*(call(name, f"{name}1", order=messages[-1].text) for name in ("charge", "acharge")))
        return AIMessage(messages[-2].text)

    whose = [(f"tenant{n % 3}", f"thread{n}") for n in range(12)]
    tools = [charge, acharge]
    with open_checkpointer(ledger) as saver:
        async with aopen_checkpointer(ledger) as asaver:
            model = ScriptedModel(script=script)
            agent = build_agent(model, tools, ledger=ledger, checkpointer=saver)
            aagent = build_agent(model, tools, ledger=ledger, checkpointer=asaver)

            def say(one: tuple[str, str]) -> str:
                tenant, thread_id = one
                return Session(agent, ledger=ledger, tenant=tenant, thread_id=thread_id).send("/".join(one)).text

            async def asay(one: tuple[str, str]) -> str:
                tenant, thread_id = one[0], f"a{one[1]}"
                session = Session(aagent, ledger=ledger, tenant=tenant, thread_id=thread_id)
                return (await session.asend(f"{tenant}/{thread_id}")).text

            told = await asyncio.gather(*(asyncio.to_thread(say, one) for one in whose))
            atold = await asyncio.gather(*(asay(one) for one in whose))
    assert wrong == []
    assert all("/".join(one) in text for one, text in zip(whose, told, strict=True))
    assert all(f"{one[0]}/a{one[1]}" in text for one, text in zip(whose, atold, strict=True))
