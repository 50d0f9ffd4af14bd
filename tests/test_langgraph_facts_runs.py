"""Interrupts, two runs on one thread, sync and async (LANGGRAPH 2, 5.6, 6, 7, 8, 10): the same sequence with ours.

| fact | test |
|---|---|
| 2.1 a node runs again for its sibling's resume | test_a_siblings_approval_repeats_nothing |
| 2.2 a plain answer while several wait | test_approval_graph_per_call.py, answers without an id |
| 2.3, 2.5, 3.6 what is listed as waiting | test_approval_graph_session.py::test_a_reply_shows_what_waits |
| 2.4 an answer is not stored until the node ends | test_approval_kills.py::test_killed_while_it_approves |
| 2.6 two interrupts of one node | test_approval_graph.py::test_an_old_answer_by_id_is_not_taken_for_the_next_question |
| 2.7 an unknown id is accepted | test_approval_graph.py::test_an_answer_for_an_unknown_id_decides_nothing |
| 2.8, 2.9 a bad answer bricks the thread | test_approval_graph.py (malformed answers), test_session_unstick.py |
| 2.10 falsy answers | test_approval_graph.py::test_a_malformed_answer_does_nothing_and_is_asked_for_again |
| 2.12 new input drops an approval | test_new_input_while_an_approval_is_open_drops_nothing |
| 2.13 expiry is ours | test_approval_graph_session.py::test_expiry_while_it_waits_is_told_at_the_next_resume |
| 2.14 an answer while a sibling still runs | test_an_answer_while_a_sibling_still_runs_repeats_nothing |
| 2.15 two answers at once leave the thread half done | test_approval_graph_session.py::test_three_are_decided_at_once |
| 2.16 a swallowed interrupt | test_middleware.py, test_action_node.py |
| 3.3, 3.5 the subgraph's checkpoints, the barrier | ours has none; test_graph_engine.py |
| 4.1 approval of one call repeats its siblings | test_a_siblings_approval_repeats_nothing |
| 4.3 to 4.11 the doors | test_middleware.py, test_action_node.py |
| 5.6 a policy is judged again | test_policy.py: its verdict is frozen with the action |
| 6.1, 6.2, 6.4 replay, fork, copy | test_session_time_travel.py |
| 6.3 ids are repeated by providers | test_graph_agent.py::test_same_id_in_a_later_turn_is_another_decision |
| 7.1, 7.2 two inputs at once lose a message | test_two_messages_at_once_are_both_answered |
| 7.3 two resumers do it twice | test_two_resumers_have_one_effect |
| 7.3 an approval that is delivered twice | test_a_double_click_on_an_answer_has_one_effect |
| 7.4 a message while a tool runs | test_a_message_while_a_tool_runs_is_answered_after_it |
| 7.5 a lock that the host bypasses | test_an_answer_while_a_sibling_still_runs_repeats_nothing |
| 8.1 to 8.4, 8.6, 4.12 what a host sets | test_session_hosts.py |
| 8.7 a drain | test_graph_session.py::test_sigterm_drains_and_a_later_session_continues |
| 8.8 growth | test_graph_agent.py::test_a_turn_costs_the_same_as_the_thread_grows |
| 8.9 types that the serializer loses | test_state_is_plain_json, test_odd_bodies.py |
| 9.4, 10.4 a cancelled run | test_session_cancelled.py |
| 10.1 sync and async | test_an_async_tool_works_under_send |
| 10.2 the wrong saver | test_graph_agent.py::test_a_sync_saver_under_ainvoke_says_what_to_open |
"""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, interrupt

from processes import start
from scripted import Remote, ScriptedModel, call, calling
from settled import (
    Approve,
    Ledger,
    Session,
    action,
    always,
    build_agent,
    current_action,
    open_checkpointer,
)
from talks import CALLS, OURS, Chat, agent_of

CONFIG: Any = {"configurable": {"thread_id": "p"}}


class House:
    """Two calls in one message: a read-like mail that asks nobody, and a payment that asks. Ours, and plain."""

    def __init__(self, ledger: Ledger, saver: Any) -> None:
        self.ledger, self.saver = ledger, saver
        self.far = Remote(ledger.url)
        self.during: dict[str, Any] = {}
        self.calls = [call("mail", "m", to="ben"), call("pay", "p", payee="ann")]
        self.model = ScriptedModel(script=self._script)

    def _script(self, messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        if isinstance(messages[-1], HumanMessage) and messages[-1].content == "please":
            return calling(*self.calls)
        return AIMessage(f"about {messages[-1].text}")

    def _act(self, name: str, key: str) -> str:
        receipt = str(self.far.act(key, tool=name)["receipt"])
        self.during.get(name, lambda: None)()
        return receipt

    def ours(self, **options: Any) -> Any:
        @action(risk="non_idempotent_write", identity="all", remote="opaque")
        def mail(to: str) -> str:
            """Write to somebody."""
            return self._act("mail", current_action().idempotency_key)

        @action(risk="non_idempotent_write", identity="all", remote="opaque", approval=always)
        def pay(payee: str) -> str:
            """Pay somebody."""
            return self._act("pay", current_action().idempotency_key)

        return build_agent(self.model, [mail, pay], ledger=self.ledger, checkpointer=self.saver, **options)

    def plain(self, kind: str = "node") -> Any:
        @tool
        def mail(to: str) -> str:
            """Write to somebody."""
            return self._act("mail", "plain")

        @tool
        def pay(payee: str) -> str:
            """Pay somebody."""
            if interrupt("sure?") != "yes":
                return "no"
            return self._act("pay", "plain")

        if kind == "sends":
            from langchain.agents import create_agent

            return create_agent(self.model, [mail, pay], checkpointer=self.saver)
        graph = StateGraph(Chat)
        graph.add_node("model", lambda state: {"messages": [self.model.invoke(state["messages"])]})
        graph.add_node("tools", ToolNode([mail, pay]))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition, {"tools": "tools", "__end__": END})
        graph.add_edge("tools", "model")
        return graph.compile(checkpointer=self.saver)

    def session(self, agent: Any, **options: Any) -> Session:
        return Session(agent, ledger=self.ledger, **{"thread_id": "t", **options})

    def wait_for_effects(self, count: int) -> None:
        """Wait until there are so many since the last count."""
        end = time.monotonic() + 10
        while self.far.count() - getattr(self, "_counted", 0) < count:
            assert time.monotonic() < end
            time.sleep(0.02)

    def effects(self) -> int:
        """Return how many there are by now, and begin a new count."""
        before, self._counted = getattr(self, "_counted", 0), self.far.count()
        return self._counted - before


@pytest.fixture
def house(database_url: str) -> Iterator[House]:
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        yield House(ledger, saver)


def send(agent: Any, text: str) -> Any:
    return agent.invoke({"messages": [HumanMessage(text)]}, CONFIG, durability="sync")


def kinds(messages: Sequence[BaseMessage]) -> str:
    return "".join(type(message).__name__[0] for message in messages)


def history(agent: Any, config: Any = CONFIG) -> list[BaseMessage]:
    messages: list[BaseMessage] = agent.get_state(config).values["messages"]
    return messages


def test_a_siblings_approval_repeats_nothing(house: House) -> None:
    """The failure that this library exists for: in a tool node an approval of one call sends the mail once more."""
    plain = house.plain()
    send(plain, "please")
    plain.invoke(Command(resume="yes"), CONFIG, durability="sync")
    assert house.effects() == 3
    session = house.session(house.ours())
    (one,) = session.send("please").approvals
    assert house.effects() == 1
    assert session.decide(one["action_id"], Approve(), by="sue").is_finished
    assert house.effects() == 1


def test_new_input_while_an_approval_is_open_drops_nothing(house: House) -> None:
    """Plain: the question is gone, its old answer finds nothing, and the call has no answer in the conversation."""
    plain = house.plain("sends")
    send(plain, "please")
    send(plain, "and now?")
    assert plain.get_state(CONFIG).interrupts == ()
    assert kinds(history(plain)) == "HAHA"
    house.effects()
    agent = house.ours()
    session = house.session(agent)
    (one,) = session.send("please").approvals
    assert session.send("and now?").text == "about and now?"
    assert kinds(history(agent, session.config)) == "HATTHA"
    assert session.decide(one["action_id"], Approve(), by="sue").is_finished
    assert house.effects() == 2


class Gate:
    """Holds a body up, so that a test can do something meanwhile."""

    def __init__(self) -> None:
        self.inside, self.go_on = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.inside.set()
        self.go_on.wait(10)


def test_an_answer_while_a_sibling_still_runs_repeats_nothing(house: House) -> None:
    """The question of one call can be seen while another still runs. Answered by another process at that moment, plain
    LangGraph begins the running one again. Ours too when the host goes around the session: the ledger holds it."""
    for agent, config, answer in (
        (house.plain("sends"), CONFIG, "yes"),
        (house.ours(approvals="per_call"), {"configurable": {"thread_id": "t"}}, {"type": "approve"}),
    ):
        house.effects()
        house.during["mail"] = gate = Gate()
        with ThreadPoolExecutor() as pool:
            first = pool.submit(agent.invoke, {"messages": [HumanMessage("please")]}, config, durability="sync")
            assert gate.inside.wait(10)
            asked = _interrupt_of(agent, config)
            resumed = pool.submit(agent.invoke, Command(resume={asked.id: answer}), config, durability="sync")
            if config is CONFIG:
                house.wait_for_effects(2)  # the mail has gone out twice by now
            else:
                time.sleep(0.5)
            gate.go_on.set()
            first.result(20)
            resumed.result(20)
        house.during.clear()
        if config is not CONFIG:
            house.session(agent).resume()
        assert house.effects() == (3 if config is CONFIG else 2)


def _interrupt_of(agent: Any, config: Any) -> Any:
    end = time.monotonic() + 10
    while not (found := agent.get_state(config).interrupts):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found[0]


def test_a_decision_while_a_sibling_still_runs_waits_for_the_thread(house: House) -> None:
    """Through sessions: it is recorded at once, and carried out after the turn that runs."""
    house.during["mail"] = gate = Gate()
    agent = house.ours()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(house.session(agent).send, "please")
        assert gate.inside.wait(10)
        end = time.monotonic() + 10
        while not (waiting := [one for one in house.ledger.actions() if one.state == "planned"]):
            assert time.monotonic() < end
            time.sleep(0.02)
        decided = pool.submit(house.session(agent).decide, waiting[0].id, Approve(), by="sue")
        time.sleep(0.3)
        assert house.ledger.action(waiting[0].id).state == "approved"
        gate.go_on.set()
        first.result(20)
        assert decided.result(20).is_finished
    assert house.effects() == 2


def test_two_messages_at_once_are_both_answered(house: House) -> None:
    """Plain: both runs succeed, and one user's message with its answer is gone from the thread."""
    house.calls = [call("mail", "m", to="ben")]
    barrier = threading.Barrier(2, timeout=10)
    waits = True

    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        if waits:
            barrier.wait()
        return AIMessage(f"about {messages[-1].text}")

    house.model.script = script
    plain = house.plain()
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda text: send(plain, text), ("one", "two")))
    assert kinds(history(plain)) == "HA"
    waits = False
    agent = house.ours()
    with ThreadPoolExecutor() as pool:
        replies = list(pool.map(lambda text: house.session(agent).send(text).text, ("one", "two")))
    assert replies == ["about one", "about two"]
    assert kinds(history(agent, house.session(agent).config)) == "HAHA"


@pytest.mark.parametrize("kind", ["sends", OURS])
def test_two_resumers_have_one_effect(house: House, kind: str) -> None:
    """Of a thread whose process was killed in the last of three calls."""
    assert start("talking.talk", database_url=house.ledger.url, kind=kind, die_in="body").status() == -9
    both = threading.Barrier(2, timeout=10)

    def during(n: int) -> None:
        if kind == "sends":
            both.wait()

    agents = [agent_of(kind, house.ledger, house.saver, during) for _ in range(2)]
    config: Any = {"configurable": {"thread_id": "t"}}
    with ThreadPoolExecutor() as pool:
        if kind == OURS:
            replies = list(pool.map(lambda agent: house.session(agent).resume().text, agents))
            assert replies[0] == replies[1] != ""
        else:
            list(pool.map(lambda agent: agent.invoke(None, config, durability="sync"), agents))
    assert house.effects() == (CALLS if kind == OURS else CALLS + 2)
    assert kinds(history(agents[0], config)) == "HATTTA"


def test_a_double_click_on_an_answer_has_one_effect(house: House) -> None:
    """Plain: an approval that is delivered twice pays twice. Ours, also when the host goes around the session."""
    house.calls = [call("pay", "p", payee="ann")]
    both = threading.Barrier(2, timeout=10)
    plain, agent = house.plain("sends"), house.ours()
    config: Any = {"configurable": {"thread_id": "t"}}
    for one, where, answer in ((plain, CONFIG, "yes"), (agent, config, {"type": "approve"})):
        house.effects()
        one.invoke({"messages": [HumanMessage("please")]}, where, durability="sync")
        (asked,) = one.get_state(where).interrupts
        house.during["pay"] = both.wait if one is plain else lambda: time.sleep(0.2)

        def click(_: int, one: Any = one, where: Any = where, answer: Any = answer, name: str = asked.id) -> None:
            one.invoke(Command(resume={name: answer}), where, durability="sync")

        with ThreadPoolExecutor() as pool:
            list(pool.map(click, range(2)))
        assert house.effects() == (2 if one is plain else 1)
    assert house.session(agent).resume().is_finished


def test_a_message_while_a_tool_runs_is_answered_after_it(house: House) -> None:
    """Plain: its run sees a call without an answer, and its message is lost when the first run ends."""
    house.calls = [call("mail", "m", to="ben")]
    plain, agent = house.plain(), house.ours()
    seen = house.model._shown
    for one in (plain, agent):
        house.during["mail"] = gate = Gate()

        def say(text: str, one: Any = one) -> Any:
            return send(plain, text) if one is plain else house.session(agent).send(text)

        with ThreadPoolExecutor() as pool:
            first = pool.submit(say, "please")
            assert gate.inside.wait(10)
            second = pool.submit(say, "hello?")
            if one is plain:
                second.result(20)
            else:
                time.sleep(0.4)
            gate.go_on.set()
            first.result(20)
            second.result(20)
        texts = [m.text for m in history(one, CONFIG if one is plain else house.session(agent).config)]
        assert ("hello?" in texts) == (one is agent)
        dangling = [shown for shown in seen if kinds(shown) == "HAH"]
        assert len(dangling) == 1, "plain only"


def test_state_is_plain_json(house: House) -> None:
    """8.9, 8.10: nothing in a checkpoint that another version of a class could lose. (Secrets are hidden in it:
    test_approval_graph.py::test_secrets_are_not_shown.)"""

    @action(risk="non_idempotent_write", identity="all", approval=always)
    def wire(payee: str, amount: Decimal) -> str:
        """Send money."""
        return f"sent {amount}"

    house.calls = [call("wire", "w", payee="ann", amount=10)]
    agent = build_agent(house.model, [wire], ledger=house.ledger, checkpointer=house.saver)
    session = house.session(agent)
    session.send("please")
    state = agent.get_state(session.config)
    assert json.loads(json.dumps(state.values["waiting"])) == state.values["waiting"]
    assert json.loads(json.dumps(state.interrupts[0].value)) == state.interrupts[0].value
    done = session.decide(state.values["waiting"][0]["action_id"], Approve(), by="sue")
    for message in done.messages:
        if isinstance(message, ToolMessage):
            assert json.loads(json.dumps(message.artifact)) == message.artifact


def test_an_async_tool_works_under_send(house: House) -> None:
    @action(risk="non_idempotent_write", identity="all", remote="opaque")
    async def mail(to: str) -> str:
        """Write to somebody."""
        return house._act("mail", current_action().idempotency_key)

    house.calls = [call("mail", "m", to="ben")]
    agent = build_agent(house.model, [mail], ledger=house.ledger, checkpointer=house.saver)
    assert house.session(agent).send("please").is_finished
    assert house.effects() == 1
