"""Time travel (LANGGRAPH 6): whichever way a thread is run again, what was decided before has its recorded outcome.

Each test replays plain LangGraph's agent beside ours, to show that the way repeats effects where nothing guards them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.types import StateSnapshot

from scripted import Remote, ScriptedModel, call
from settled import (
    Approve,
    ContractError,
    Ledger,
    NotFound,
    Session,
    action,
    aopen_checkpointer,
    build_agent,
    current_action,
    open_checkpointer,
    over,
)
from talks import CALLS, OURS, agent_of, say

ORDER = {"order": "A1", "amount": 25}


@pytest.fixture
def opened(database_url: str) -> Iterator[tuple[Ledger, Any]]:
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        yield ledger, saver


class Shop:
    """Ours: a refund above 50 asks a person."""

    def __init__(self, opened: tuple[Ledger, Any], **contract: Any) -> None:
        self.ledger, saver = opened
        self.remote = Remote(self.ledger.url)

        @action(risk="non_idempotent_write", identity=("order", "amount"), approval=over("amount", 50), **contract)
        def refund(order: str, amount: float) -> dict[str, Any]:
            """Refund an order."""
            return self.remote.act(current_action().idempotency_key, order=order, amount=amount)

        self.calls = [call("refund", "c1", **ORDER)]
        self.model = ScriptedModel(script=self._script)
        self.agent = build_agent(self.model, [refund], ledger=self.ledger, checkpointer=saver)

    def _script(self, messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        if isinstance(messages[-1], ToolMessage):
            return AIMessage(str(messages[-1].content).split("\n")[0])
        return AIMessage("", tool_calls=self.calls)

    def session(self, **options: Any) -> Session:
        return Session(self.agent, ledger=self.ledger, **{"thread_id": "t", **options})

    def before(self, node: str) -> str:
        """Return the checkpoint before a node ran first."""
        return id_of(before(self.agent, self.session().config, node))


def before(agent: Any, config: Any, node: str) -> StateSnapshot:
    """Return the oldest state whose next node is this."""
    found: StateSnapshot = [one for one in agent.get_state_history(config) if one.next and one.next[0] == node][-1]
    return found


def id_of(snapshot: StateSnapshot) -> str:
    return str(snapshot.config["configurable"]["checkpoint_id"])


def codes(messages: Sequence[AnyMessage]) -> list[str]:
    return [message.artifact["code"] for message in messages if isinstance(message, ToolMessage)]


def test_a_replay_before_the_tools_repeats_nothing(opened: tuple[Ledger, Any]) -> None:
    """LANGGRAPH 6.1: plain LangGraph runs the tools again, every time."""
    ledger, saver = opened
    far = Remote(ledger.url)
    plain = agent_of("sends", ledger, saver)
    config: Any = {"configurable": {"thread_id": "t"}}
    say(plain, ledger, "sends", "please")
    for _ in range(2):
        plain.invoke(None, before(plain, config, "tools").config, durability="sync")
    assert far.count() == 3 * CALLS
    shop = Shop(opened)
    first = shop.session(thread_id="ours").send("please")
    session = shop.session(thread_id="ours")
    place = id_of(before(shop.agent, session.config, "action"))
    for _ in range(2):
        again = session.replay(place)
        assert again.text == first.text
        assert codes(again.messages) == ["succeeded"]
    assert far.count() == 3 * CALLS + 1


def test_a_replay_before_the_model_has_a_new_decision_and_the_same_intent(opened: tuple[Ledger, Any]) -> None:
    """The model says it anew, under a new message id: the intent is met, and the recorded outcome comes back."""
    shop = Shop(opened)
    first = shop.session().send("please")
    again = shop.session().replay(shop.before("model"))
    assert codes(again.messages) == ["duplicate"]
    assert again.messages[0].id != first.messages[0].id
    assert "R-1" in again.text
    assert shop.remote.count() == 1


def test_an_update_without_a_change_repeats_nothing(opened: tuple[Ledger, Any]) -> None:
    shop = Shop(opened)
    shop.session().send("please")
    again = shop.session().replay(shop.before("action"), {"messages": []}, as_node="model")
    assert codes(again.messages) == ["succeeded"]
    assert shop.remote.count() == 1


def test_a_fork_with_an_edited_call_is_a_new_action_with_its_own_approval(opened: tuple[Ledger, Any]) -> None:
    """LANGGRAPH 6.2: all ids are the same, only the arguments differ. It never gets the first one's result, and its own
    policy asks."""
    shop = Shop(opened)
    session = shop.session()
    session.send("please")
    place = before(shop.agent, session.config, "action")
    said = place.values["messages"][-1]
    edited = said.model_copy(update={"tool_calls": [{**said.tool_calls[0], "args": {"order": "A1", "amount": 80}}]})
    reply = session.replay(id_of(place), {"messages": [edited]}, as_node="model")
    (one,) = reply.approvals
    assert one["args"]["amount"] == 80
    assert shop.remote.count() == 1
    done = session.decide(one["action_id"], Approve(), by="sue")
    assert codes(done.messages) == ["succeeded"]
    assert shop.remote.count() == 2


def test_a_replay_of_a_pause_asks_for_the_same_and_runs_once(opened: tuple[Ledger, Any]) -> None:
    shop = Shop(opened)
    shop.calls = [call("refund", "c1", order="A1", amount=80)]
    session = shop.session()
    (one,) = session.send("please").approvals
    (again,) = session.replay(shop.before("action")).approvals
    assert again["action_id"] == one["action_id"]
    assert session.decide(one["action_id"], Approve(), by="sue").is_finished
    assert session.replay(shop.before("action")).is_finished
    assert shop.remote.count() == 1


def test_the_thread_goes_on_from_its_branch(opened: tuple[Ledger, Any]) -> None:
    shop = Shop(opened)
    session = shop.session()
    session.send("please")
    shop.calls = [call("refund", "c2", order="A2", amount=1)]
    session.send("and the other")
    session.replay(id_of(before(shop.agent, session.config, "action")))
    shop.calls = [call("refund", "c3", order="A3", amount=1)]
    assert codes(session.send("and a third").messages) == ["succeeded"]
    messages = shop.agent.get_state(session.config).values["messages"]
    assert [m.content for m in messages if isinstance(m, HumanMessage)] == ["please", "and a third"]
    assert shop.remote.count() == 3


def test_a_checkpoint_that_is_not_there_is_not_found(opened: tuple[Ledger, Any]) -> None:
    shop = Shop(opened)
    shop.session(thread_id="other").send("please")
    place = id_of(before(shop.agent, shop.session(thread_id="other").config, "action"))
    for name in (place, "1f0"):
        with pytest.raises(NotFound):
            shop.session().replay(name)
    assert shop.remote.count() == 1


def test_a_copied_thread_meets_a_business_key(opened: tuple[Ledger, Any]) -> None:
    """LANGGRAPH 6.4: a copy has another thread id, and so other intents; what must not be done twice for the same
    object says so with `unique`. What is in its history is done, and is not run again."""
    shop = Shop(opened, unique=("order",))
    first = shop.session().send("please")
    copy_thread(shop.ledger.url, "t", "copy")
    copied = shop.session(thread_id="copy")
    assert copied.resume().text == first.text
    for again in (copied.send("once more"), copied.replay(id_of(before(shop.agent, copied.config, "action")))):
        assert codes(again.messages) == ["rejected"]
        assert "R-1" in again.text
    assert shop.remote.count() == 1


def copy_thread(url: str, one: str, other: str) -> None:
    """Copy a thread's rows, as LangGraph's server does for `threads.copy`."""
    tables = {
        "checkpoints": "checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata",
        "checkpoint_blobs": "checkpoint_ns, channel, version, type, blob",
        "checkpoint_writes": "checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob, task_path",
    }
    with psycopg.connect(url, autocommit=True) as connection:
        for table, columns in tables.items():
            copied = (
                f"INSERT INTO {table} (thread_id, {columns}) SELECT %s, {columns} FROM {table} WHERE thread_id = %s"
            )
            connection.execute(copied.encode(), [other, one])


async def test_an_event_loop_replays_the_same(ledger: Ledger) -> None:
    async with aopen_checkpointer(ledger) as saver:
        shop = Shop((ledger, saver))
        session = shop.session()
        first = await session.asend("please")
        found = [one async for one in shop.agent.aget_state_history(session.config) if one.next == ("action",)]
        again = await session.areplay(id_of(found[-1]))
        assert again.text == first.text
        with pytest.raises(NotFound):
            await session.areplay("1f0")
        assert shop.remote.count() == 1


def test_a_tenants_thread_is_not_run_without_its_session(opened: tuple[Ledger, Any]) -> None:
    """Its name in the checkpointer would be another conversation of another tenant: the replay would pay again."""
    shop = Shop(opened)
    session = shop.session(tenant="acme")
    session.send("please")
    place = before(shop.agent, session.config, "action")
    with pytest.raises(ContractError, match="only a Session"):
        shop.agent.invoke(None, place.config, durability="sync")
    with pytest.raises(ContractError, match="only a Session"):
        shop.agent.invoke({"messages": "please"}, {"configurable": {"thread_id": "@acme/t"}})
    assert session.replay(id_of(place)).is_finished
    assert shop.remote.count() == 1


def test_ours_is_the_kind_that_talks_compares(opened: tuple[Ledger, Any]) -> None:
    """The agent of `talks` that the other tests use for ours, replayed as above."""
    ledger, saver = opened
    far = Remote(ledger.url)
    agent = agent_of(OURS, ledger, saver)
    say(agent, ledger, OURS, "please")
    session = Session(agent, ledger=ledger, thread_id="t")
    session.replay(id_of(before(agent, session.config, "action")))
    assert far.count() == CALLS
