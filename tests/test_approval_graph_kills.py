"""An agent that asks a person is killed at every effect: while it comes to wait, while a decision is taken, while the
thread goes on with it. The approval stays what it was, it is spent once, and the history is complete in the end."""

import asyncio
import os
import signal
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

import processes
from scripted import Remote, ScriptedModel, call, once
from settled import (
    Absent,
    Approve,
    Desk,
    Found,
    Inquiry,
    Ledger,
    Session,
    action,
    always,
    aopen_checkpointer,
    build_agent,
    current_action,
    open_checkpointer,
)
from settled.tools.effects import Effect
from settled.tools.runner import REAL, World

PHASES = {"waits": 4, "decides": 8, "goes on": 6}
"""Each with the least number of instants at which it is killed: before and after each statement, and the body."""

MOST_POINTS = 60
MARIA: dict[str, Any] = {"by": "maria", "roles": ["supervisor"]}


def tool_of(remote: Remote) -> Any:
    def find(inquiry: Inquiry) -> Found | Absent:
        receipt = remote.find(inquiry.idempotency_key)
        return Found(receipt) if receipt else Absent()

    @action(
        risk="non_idempotent_write",
        identity=("order",),
        remote="dedupes",
        query=find,
        approval=always(approvers=("supervisor",), four_eyes=True),
        timeout=2,
        settle_window=2,
        lease=60,
    )
    def refund(order: str, amount: float) -> dict[str, Any]:
        """Refund an order."""
        return remote.act(current_action().idempotency_key)

    return refund


def dying(point: int) -> World:
    seen = iter(range(1000))

    def watch(effect: Effect, when: str) -> None:
        if next(seen) == point:
            os.kill(os.getpid(), signal.SIGKILL)

    return World(watch=watch)


def session_of(ledger: Ledger, saver: Any, remote: Remote, thread_id: str, world: World = REAL) -> Session:
    model = ScriptedModel(script=once(call("refund", order="INV-102", amount=118.5)))
    agent = build_agent(model, [tool_of(remote)], ledger=ledger, checkpointer=saver, world=world)
    return Session(agent, ledger=ledger, thread_id=thread_id, requester="joe")


def run_and_die(url: str, phase: str, point: int) -> None:
    name = f"{phase}-{point}"
    with Ledger.connect(url) as ledger, open_checkpointer(ledger) as saver:
        mortal = session_of(ledger, saver, Remote(url), name, dying(point))
        if phase == "waits":
            mortal.send("please", message_id="m")
            return
        asked = session_of(ledger, saver, Remote(url), name).send("please", message_id="m").approvals[0]
        if phase == "decides":
            mortal.decide(asked["action_id"], Approve(), fingerprint=asked["fingerprint"], **MARIA)
            return
        Desk(ledger).decide(asked["action_id"], Approve(), fingerprint=asked["fingerprint"], **MARIA)
        mortal.resume()


async def arun_and_die(url: str, phase: str, point: int) -> None:
    name = f"{phase}-{point}"
    async with Ledger.connect(url) as ledger, aopen_checkpointer(ledger) as saver:
        mortal = session_of(ledger, saver, Remote(url), name, dying(point))
        if phase == "waits":
            await mortal.asend("please", message_id="m")
            return
        waiting = await session_of(ledger, saver, Remote(url), name).asend("please", message_id="m")
        asked = waiting.approvals[0]
        if phase == "decides":
            await mortal.adecide(asked["action_id"], Approve(), fingerprint=asked["fingerprint"], **MARIA)
            return
        await Desk(ledger).adecide(asked["action_id"], Approve(), fingerprint=asked["fingerprint"], **MARIA)
        await mortal.aresume()


@pytest.mark.parametrize("door", ["sync", pytest.param("async", marks=pytest.mark.deep)])
@pytest.mark.parametrize("phase", PHASES)
def test_a_kill_at_any_effect_leaves_the_approval_and_one_effect(database_url: str, phase: str, door: str) -> None:
    """Bound to INV-102 and 118.5 through all of it; what was approved before the kill is not asked about again."""
    killed = processes.start("test_approval_graph_kills.kill", url=database_url, phase=phase, door=door)
    points = killed.result(120)
    assert points >= PHASES[phase]
    remote = Remote(database_url)
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        for point in range(points):
            assert_it_goes_on(ledger, session_of(ledger, saver, remote, f"{phase}-{point}"), phase)
    assert remote.count() == points + (phase != "waits"), "and the one of the child that lived"


def assert_it_goes_on(ledger: Ledger, session: Session, phase: str) -> None:
    name = session._handle.thread_id
    reply = session.send("please", message_id="m")
    if reply.approvals:
        asked = reply.approvals[0]
        assert (asked["args"], phase != "goes on") == ({"order": "INV-102", "amount": 118.5}, True), name
        reply = session.decide(asked["action_id"], Approve(), fingerprint=asked["fingerprint"], **MARIA)
    assert (reply.is_finished, "R-" in reply.text) == (True, True), name
    messages = session._agent.get_state(session.config).values["messages"]
    assert [type(message) for message in messages] == [HumanMessage, AIMessage, ToolMessage, AIMessage], name
    assert messages[2].artifact["code"] == "succeeded", name
    (one,) = ledger.actions(thread_id=name)
    (ticket,) = Desk(ledger).history(one.id)
    assert (ticket.decision, ticket.decided_by, ticket.spent_at is not None) == ("approve", "maria", True), name
    assert [event.trigger for event in ledger.timeline(one.id)].count("approve") == 1, name


def kill(*, url: str, phase: str, door: str) -> int:
    """Fork a child for each point until one lives; return how many died."""
    for point in range(MOST_POINTS):
        child = os.fork()
        if not child:
            if door == "sync":
                run_and_die(url, phase, point)
            else:
                asyncio.run(arun_and_die(url, phase, point))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            assert os.WEXITSTATUS(status) == 0
            return point
    raise AssertionError(f"none of {MOST_POINTS} children lived")
