"""An agent's process is killed at every effect of the protocol, under each of LangGraph's durability modes: one effect,
and a complete history after the client has sent its message again."""

import asyncio
import os
import signal
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

import processes
from scripted import Remote, ScriptedModel, call, once
from settled import (
    Absent,
    Found,
    Ledger,
    Session,
    action,
    aopen_checkpointer,
    build_agent,
    current_action,
    open_checkpointer,
)
from settled.tools.effects import Effect
from settled.tools.runner import REAL, World

EFFECTS = {"sync": 3, "async": 3, "lost reply": 5}
"""Plan, the body, settle; or plan, the body, lose, the query, settle."""

MODEL = "second model call"


def points(how: str) -> list[int | str]:
    """Before and after each effect, and in the model when it reads the answer."""
    return [*range(2 * EFFECTS[how]), MODEL]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def tool_of(remote: Remote, how: str) -> Any:
    def find(inquiry: Any) -> Any:
        receipt = remote.find(inquiry.idempotency_key)
        return Found(receipt) if receipt else Absent()

    @action(
        risk="non_idempotent_write",
        identity=("order",),
        remote="dedupes",
        query=find,
        timeout=0.4,
        settle_window=0.5,
        lease=60,
    )
    def refund(order: str) -> dict[str, Any]:
        """Refund an order."""
        done = remote.act(current_action().idempotency_key)
        if how == "lost reply":
            raise TimeoutError
        return done

    return refund


def dying_world(point: object) -> World:
    seen = iter(range(100))

    def watch(effect: Effect, when: str) -> None:
        if next(seen, None) == point:
            die()

    return World(watch=watch)


def dying_script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
    if isinstance(messages[-1], ToolMessage):
        die()
    return SCRIPT(messages, has_tools)


SCRIPT = once(call("refund", order="A1"))


def agent_of(ledger: Ledger, saver: Any, remote: Remote, how: str = "", point: object = None) -> Any:
    model = ScriptedModel(script=dying_script if point == MODEL else SCRIPT)
    world = REAL if point is None else dying_world(point)
    return build_agent(model, [tool_of(remote, how)], ledger=ledger, checkpointer=saver, world=world)


def session_of(agent: Any, ledger: Ledger, durability: Any, point: object) -> Session:
    return Session(agent, ledger=ledger, thread_id=f"{point}", durability=durability)


def run_and_die(url: str, durability: str, how: str, point: object) -> None:
    with Ledger.connect(url) as ledger, open_checkpointer(ledger) as saver:
        agent = agent_of(ledger, saver, Remote(url), how, point)
        session_of(agent, ledger, durability, point).send("please", message_id="m")


async def arun_and_die(url: str, durability: str, how: str, point: object) -> None:
    async with Ledger.connect(url) as ledger, aopen_checkpointer(ledger) as saver:
        agent = agent_of(ledger, saver, Remote(url), how, point)
        await session_of(agent, ledger, durability, point).asend("please", message_id="m")


@pytest.mark.parametrize(
    ("how", "durability"),
    [
        *(("sync", "sync"), ("async", "async"), ("lost reply", "exit")),
        *(
            pytest.param(*case, marks=pytest.mark.deep)
            for case in [
                *(("sync", "async"), ("sync", "exit"), ("async", "sync")),
                *(("async", "exit"), ("lost reply", "sync"), ("lost reply", "async")),
            ]
        ),
    ],
)
def test_a_kill_at_any_effect_leaves_one_effect_and_a_complete_history(
    database_url: str, how: str, durability: str
) -> None:
    processes.start("test_graph_kills.kill", url=database_url, durability=durability, how=how).result(120)
    remote = Remote(database_url)
    assert remote.count() == len(points(how)) - 3, "killed before the body: no effect yet"
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        for point in points(how):
            agent = agent_of(ledger, saver, remote)
            session = session_of(agent, ledger, durability, point)
            reply = session.send("please", message_id="m")
            messages = agent.get_state(session.config).values["messages"]
            kinds = [type(message) for message in messages]
            assert kinds == [HumanMessage, AIMessage, ToolMessage, AIMessage], point
            assert messages[2].tool_call_id == messages[1].tool_calls[0]["id"]
            assert messages[2].artifact["code"] in ("succeeded", "duplicate"), point
            assert "R-" in reply.text, point
    assert remote.count() == len(points(how))


def kill(*, url: str, durability: str, how: str) -> None:
    """Fork a child for each point; each has to die by SIGKILL."""
    for point in points(how):
        child = os.fork()
        if not child:
            if how != "async":
                run_and_die(url, durability, how, point)
            else:
                asyncio.run(arun_and_die(url, durability, how, point))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"{point}: the child lived on"
        assert os.WTERMSIG(status) == signal.SIGKILL
