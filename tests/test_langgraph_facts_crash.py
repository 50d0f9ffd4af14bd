"""Where LangGraph runs things again after a crash (LANGGRAPH 1, 4, 9): the same sequence with ours has one effect of
each call, every answer, and a thread that goes on. Real processes die; plain LangGraph does the same beside it.

| fact | test |
|---|---|
| 1.1 what re-runs depends on durability | test_graph_kills.py (all three, at every effect) |
| 1.2 a task's own writes are not waited for | test_killed_while_a_result_is_saved |
| 1.3 (a) a plain answer is lost | test_approval_kills.py (the decision is in the ledger first) |
| 1.3 (b) a replay leaves no trace | test_session_time_travel.py::test_a_replay_before_the_tools_repeats_nothing |
| 1.4 resume of nothing raises | test_graph_session.py::test_resume_is_harmless |
| 1.5 `next == ()` does not mean finished | test_killed_while_the_steps_checkpoint_is_saved |
| 1.6 the same input again is no resume | test_the_same_message_after_a_crash_is_a_resume |
| 1.7 nothing in the runtime tells a repeat | test_graph_kills.py, by the ledger |
| 1.8 a renamed node drops its calls | test_calls_of_a_node_that_was_renamed_are_answered; ours never are |
| 1.9 a raising node re-runs alone | test_session_other_graphs.py, the plain tool that fails each time |
| 1.10 new input leaves the open step | test_a_new_message_after_a_crash_throws_no_answer_away |
| 4.1 a tool node runs all calls again | test_killed_in_the_last_of_three_calls |
| 4.2 a task per call repeats the last only | test_killed_in_the_last_of_three_calls |
| 4.4 an exception ends the run or invites | test_what_a_tool_raises_neither_ends_the_run_nor_invites_another_call |
| 9.1, 9.2, 9.3 a new message throws answers away | test_a_new_message_after_a_crash_throws_no_answer_away |
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from processes import start
from scripted import Remote, ScriptedModel, call, calling
from settled import Ledger, Session, action, build_agent, current_action, open_checkpointer
from settled.graph.node import ActionNode
from talks import CALLS, OURS, Chat, agent_of, say

CONFIG: Any = {"configurable": {"thread_id": "t"}}
KILLED = -9


@pytest.fixture
def opened(database_url: str) -> Iterator[tuple[Ledger, Any]]:
    Remote(database_url)
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        yield ledger, saver


def killed(url: str, kind: str, die_in: str) -> None:
    """Let a child process send the message and die."""
    assert start("talking.talk", database_url=url, kind=kind, die_in=die_in).status() == KILLED


def history(agent: Any) -> list[BaseMessage]:
    messages: list[BaseMessage] = agent.get_state(CONFIG).values["messages"]
    return messages


def kinds(messages: Sequence[BaseMessage]) -> str:
    return "".join(type(message).__name__[0] for message in messages)


def all_answered(messages: Sequence[BaseMessage]) -> bool:
    """Whether each message with calls is followed by their answers, as providers demand."""
    for index, message in enumerate(messages):
        if isinstance(message, AIMessage) and message.tool_calls:
            ids = [one["id"] for one in message.tool_calls]
            after = messages[index + 1 : index + 1 + len(ids)]
            if [one.tool_call_id for one in after if isinstance(one, ToolMessage)] != ids:
                return False
    return True


@pytest.mark.parametrize(("kind", "effects"), [("node", 2 * CALLS), ("sends", CALLS + 1), (OURS, CALLS)])
def test_killed_in_the_last_of_three_calls(opened: tuple[Ledger, Any], kind: str, effects: int) -> None:
    """After its effect. A tool node does all three again, a task per call the last one; ours finds it done."""
    ledger, saver = opened
    killed(ledger.url, kind, "body")
    agent = agent_of(kind, ledger, saver)
    if kind == OURS:
        reply = Session(agent, ledger=ledger, thread_id="t").resume()
        assert [message.artifact["state"] for message in reply.tool_messages] == ["succeeded"] * CALLS
    else:
        agent.invoke(None, CONFIG, durability="sync")
    assert kinds(history(agent)) == "HATTTA"
    assert Remote(ledger.url).count() == effects


@pytest.mark.parametrize("kind", ["node", "sends", OURS])
def test_killed_while_a_result_is_saved(opened: tuple[Ledger, Any], kind: str) -> None:
    """The call has returned, and its result has not reached the checkpoint: LangGraph runs it again."""
    ledger, saver = opened
    killed(ledger.url, kind, "put_writes")
    agent = agent_of(kind, ledger, saver)
    if kind == OURS:
        assert Session(agent, ledger=ledger, thread_id="t").resume().is_finished
    else:
        agent.invoke(None, CONFIG, durability="sync")
    assert kinds(history(agent)) == "HATTTA"
    assert (Remote(ledger.url).count() == CALLS) == (kind == OURS)


def test_killed_while_the_steps_checkpoint_is_saved(opened: tuple[Ledger, Any]) -> None:
    """All results are there and `next` is empty, though a model call is left (1.5): a resume goes on."""
    ledger, saver = opened
    killed(ledger.url, OURS, "put")
    agent = agent_of(OURS, ledger, saver)
    state = agent.get_state(CONFIG)
    assert state.next == ()
    assert len(state.tasks) == CALLS
    reply = Session(agent, ledger=ledger, thread_id="t").resume()
    assert reply.is_finished
    assert reply.text
    assert kinds(history(agent)) == "HATTTA"
    assert Remote(ledger.url).count() == CALLS


@pytest.mark.parametrize(("kind", "effects"), [("sends", 2 * CALLS), (OURS, CALLS)])
def test_the_same_message_after_a_crash_is_a_resume(opened: tuple[Ledger, Any], kind: str, effects: int) -> None:
    """What a client does who has got no answer. Plain LangGraph drops the step and begins anew: every call is made
    again."""
    ledger, saver = opened
    killed(ledger.url, kind, "body")
    agent = agent_of(kind, ledger, saver)
    say(agent, ledger, kind, "please", "m1" if kind == OURS else None)
    assert Remote(ledger.url).count() == effects
    if kind == OURS:
        assert kinds(history(agent)) == "HATTTA"


@pytest.mark.parametrize("kind", ["sends", OURS])
def test_a_new_message_after_a_crash_throws_no_answer_away(opened: tuple[Ledger, Any], kind: str) -> None:
    """Plain LangGraph: the effects are done, and the conversation knows of none of them; a provider refuses it."""
    ledger, saver = opened
    killed(ledger.url, kind, "body")
    agent = agent_of(kind, ledger, saver)
    say(agent, ledger, kind, "and now?", "m2")
    assert all_answered(history(agent)) == (kind == OURS)
    assert Remote(ledger.url).count() == 2 * CALLS
    if kind == OURS:
        assert kinds(history(agent)) == "HATTTAHATTTA"


def test_the_names_of_our_nodes_are_a_wire_format(opened: tuple[Ledger, Any]) -> None:
    """1.8: a checkpoint names the nodes of its open calls. Whoever renames one here loses those of running threads."""
    ledger, saver = opened
    agent = agent_of(OURS, ledger, saver)
    assert set(agent.builder.nodes) == {"model", "action", "approve", "late"}


def test_calls_of_a_node_that_was_renamed_are_answered(opened: tuple[Ledger, Any]) -> None:
    """In somebody's graph: LangGraph forgets the open step without a word; the session answers its calls from the
    ledger before a new message."""
    ledger, saver = opened
    far = Remote(ledger.url)
    model = ScriptedModel(
        script=lambda messages, has_tools: (
            calling(call("pay", "p", order="A1")) if len(messages) == 1 else AIMessage("understood")
        )
    )

    @action(risk="non_idempotent_write", identity="all", name="pay")
    def pay(order: str) -> dict[str, Any]:
        """Pay an order."""
        done = far.act(current_action().idempotency_key)
        if far.count() == 1:
            raise KeyboardInterrupt
        return done

    def graph_of(tools: str, node: Any) -> Any:
        graph = StateGraph(Chat)
        graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
        graph.add_node(tools, node)
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition, {"tools": tools, "__end__": END})
        graph.add_edge(tools, "model")
        return graph.compile(checkpointer=saver)

    first = graph_of("tools", ActionNode([pay], ledger=ledger))
    with pytest.raises(KeyboardInterrupt):
        Session(first, ledger=ledger, thread_id="t").send("please")
    plain = graph_of("acts", ToolNode([]))
    assert plain.invoke(None, CONFIG)["messages"][-1].tool_calls
    renamed = graph_of("acts", ActionNode([pay], ledger=ledger))
    reply = Session(renamed, ledger=ledger, thread_id="t").send("and now?")
    assert reply.text == "understood"
    assert all_answered(history(renamed))
    assert kinds(history(renamed)) == "HATHA"
    assert far.count() == 1


def test_what_a_tool_raises_neither_ends_the_run_nor_invites_another_call(opened: tuple[Ledger, Any]) -> None:
    """4.4: a tool node lets the exception end the run, or words it so that the model tries again."""
    ledger, saver = opened
    far = Remote(ledger.url)

    @action(risk="non_idempotent_write", identity="all", remote="opaque")
    def pay(order: str) -> dict[str, Any]:
        """Pay an order."""
        far.act(current_action().idempotency_key)
        raise ValueError("boom")

    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        if isinstance(messages[-1], HumanMessage):
            return calling(call("pay", order="A1"))
        return AIMessage(str(messages[-1].content))

    agent = build_agent(ScriptedModel(script=script), [pay], ledger=ledger, checkpointer=saver)
    reply = Session(agent, ledger=ledger, thread_id="t").send("please")
    (told,) = reply.tool_messages
    assert told.status == "success"
    assert not any(word in told.text.lower() for word in ("boom", "valueerror", "error", "failed", "try again", "fix"))
    assert far.count() == 1
