"""The process dies after the effect, and what is started again is a newer version of the tool.

An old decision still meets its action: one effect, and nobody is told that nothing was carried out.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

import processes
from acts import Door, both_doors, rows, states, through_async, through_sync
from scripted import Remote, ScriptedModel, call, once
from settled import (
    Absent,
    Code,
    Found,
    Ledger,
    Session,
    action,
    aopen_checkpointer,
    build_agent,
    current_action,
    open_checkpointer,
    perform,
)
from settled.tools.contract import ActionTool

IDENTITIES: dict[str, Any] = {"all": "all", "order": ("order",)}
CALL = {"order": "A1", "amount": 5}
NOTHING_DONE = ("nothing was carried out", "nothing was done", "no tool of this name")


def contract(remote: Remote, identity: str) -> dict[str, Any]:
    def find(inquiry: Any) -> Any:
        receipt = remote.find(inquiry.idempotency_key)
        return Found(receipt) if receipt else Absent()

    return {
        "risk": "non_idempotent_write", "identity": IDENTITIES[identity], "remote": "dedupes", "query": find,
        "timeout": 0.5, "settle_window": 0.5, "lease": 1,
    }  # fmt: skip


def done(remote: Remote) -> dict[str, Any]:
    return remote.act(current_action().idempotency_key)


def old(remote: Remote, identity: str) -> ActionTool:
    """The version that is running when the process dies: it does it, and is killed before anything is saved."""

    @action(**contract(remote, identity))
    def refund(order: str, amount: int) -> dict[str, Any]:
        """Refund an order."""
        done(remote)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    return refund


def added(remote: Remote, identity: str) -> ActionTool:
    """The new version has one more argument, with a default."""

    @action(**contract(remote, identity))
    def refund(order: str, amount: int, currency: Literal["EUR", "USD"] = "EUR") -> dict[str, Any]:
        """Refund an order."""
        return done(remote)

    return refund


def renamed_argument(remote: Remote, identity: str) -> ActionTool:
    """The new version calls the amount `total`."""

    @action(**contract(remote, identity))
    def refund(order: str, total: int) -> dict[str, Any]:
        """Refund an order."""
        return done(remote)

    return refund


def renamed_tool(remote: Remote, identity: str) -> ActionTool:
    """The new version has another name."""

    @action(**contract(remote, identity))
    def refund_order(order: str, amount: int) -> dict[str, Any]:
        """Refund an order."""
        return done(remote)

    return refund_order


Version = Callable[[Remote, str], ActionTool]
any_two = pytest.mark.parametrize(
    ("identity", "door"),
    [
        pytest.param("all", through_sync, id="all-sync"),
        pytest.param("order", through_async, id="order-async"),
        pytest.param("all", through_async, id="all-async", marks=pytest.mark.deep),
        pytest.param("order", through_sync, id="order-sync", marks=pytest.mark.deep),
    ],
)


def die_in(url: str, how: str, identity: str) -> None:
    """Make the call with the old version in a process of its own, which is killed after the effect."""
    assert processes.start("test_deploys.die", url=url, how=how, identity=identity).status(60) == -signal.SIGKILL
    assert (states(url), Remote(url).count()) == (["running"], 1)


def ask_once(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
    return once(call("refund", **CALL))(messages, has_tools)


def send(url: str, tool: ActionTool) -> Sequence[BaseMessage]:
    """Send the message that the client sends again after a crash; return the thread's messages."""
    with Ledger.connect(url) as ledger, open_checkpointer(ledger) as saver:
        agent = build_agent(ScriptedModel(script=ask_once), [tool], ledger=ledger, checkpointer=saver)
        session = Session(agent, ledger=ledger, thread_id="t")
        session.send("please", message_id="m")
        messages: Sequence[BaseMessage] = agent.get_state(session.config).values["messages"]
        return messages


async def asend(url: str, tool: ActionTool) -> Sequence[BaseMessage]:
    """As `send`, in an event loop."""
    async with Ledger.connect(url) as ledger, aopen_checkpointer(ledger) as saver:
        agent = build_agent(ScriptedModel(script=ask_once), [tool], ledger=ledger, checkpointer=saver)
        session = Session(agent, ledger=ledger, thread_id="t")
        await session.asend("please", message_id="m")
        messages: Sequence[BaseMessage] = (await agent.aget_state(session.config)).values["messages"]
        return messages


def is_complete(messages: Sequence[BaseMessage]) -> ToolMessage:
    """Check that the thread's history is whole, and return its one answer of a tool."""
    assert [type(message) for message in messages] == [HumanMessage, AIMessage, ToolMessage, AIMessage]
    answer = messages[2]
    assert isinstance(answer, ToolMessage)
    for lie in NOTHING_DONE:
        assert lie not in str(answer.content).lower()
    return answer


@pytest.mark.parametrize(
    ("identity", "mode"),
    [
        ("all", "sync"),
        ("order", "async"),
        pytest.param("all", "async", marks=pytest.mark.deep),
        pytest.param("order", "sync", marks=pytest.mark.deep),
    ],
)
def test_an_agent_whose_tool_has_gained_an_optional_argument_finds_what_it_did(
    database_url: str, identity: str, mode: str
) -> None:
    """Killed after the effect, deployed with one more argument, and the message sent again: the receipt."""
    die_in(database_url, "agent", identity)
    tool = added(Remote(database_url), identity)
    messages = send(database_url, tool) if mode == "sync" else asyncio.run(asend(database_url, tool))
    answer = is_complete(messages)
    assert (answer.artifact["code"], answer.artifact["receipt"]) == ("succeeded", "R-1")
    assert (Remote(database_url).count(), states(database_url)) == (1, ["succeeded"])


@pytest.mark.parametrize(
    ("version", "identity", "mode"),
    [
        (renamed_argument, "order", "sync"),
        (renamed_tool, "all", "async"),
        pytest.param(renamed_argument, "all", "async", marks=pytest.mark.deep),
        pytest.param(renamed_tool, "order", "sync", marks=pytest.mark.deep),
    ],
)
def test_an_agent_whose_old_call_can_no_longer_be_read_tells_what_is_known(
    database_url: str, version: Version, identity: str, mode: str
) -> None:
    """The new version refuses the old arguments, or is not there: the answer names the action, which may be done."""
    die_in(database_url, "agent", identity)
    (known,) = rows(database_url, "SELECT id FROM settled.actions")
    tool = version(Remote(database_url), identity)
    messages = send(database_url, tool) if mode == "sync" else asyncio.run(asend(database_url, tool))
    answer = is_complete(messages)
    assert answer.artifact["action_id"] == known["id"]
    assert answer.artifact["code"] in ("unknown", "in_progress", "manual_review", "succeeded")
    assert answer.artifact["may_retry"] is False
    assert Remote(database_url).count() == 1
    assert len(states(database_url)) == 1


@any_two
async def test_a_decision_outlives_a_new_optional_argument(
    door: Door, ledger: Ledger, database_url: str, identity: str
) -> None:
    """The same for `perform`: the decision meets its action, which is found by its key."""
    die_in(database_url, "perform", identity)
    tool = added(Remote(database_url), identity)
    for _ in range(2):
        outcome = await door(tool, CALL, ledger=ledger, thread_id="t", decision="click")
        assert (outcome.code, outcome.receipt) == (Code.SUCCEEDED, "R-1")
    assert (Remote(database_url).count(), states(database_url)) == (1, ["succeeded"])


@both_doors
async def test_a_renamed_argument_meets_the_intent_and_sends_nothing(
    door: Door, ledger: Ledger, database_url: str
) -> None:
    """Where the identity is kept, the new words for the same thing are a conflict that names the earlier action."""
    die_in(database_url, "perform", "order")
    (known,) = rows(database_url, "SELECT id FROM settled.actions")
    tool = renamed_argument(Remote(database_url), "order")
    outcome = await door(tool, {"order": "A1", "total": 5}, ledger=ledger, thread_id="t", decision="click")
    assert (outcome.code, outcome.action_id) == (Code.CONFLICT, known["id"])
    assert (Remote(database_url).count(), len(states(database_url))) == (1, 1)


@any_two
async def test_a_fork_with_other_arguments_is_still_another_decision(
    door: Door, ledger: Ledger, database_url: str, identity: str
) -> None:
    """What was given decides: an edited fork of the old call, also one that gives the new argument, is not the old one.

    With the identity kept it is a conflict; where every argument is the identity, it is an action of its own.
    """
    die_in(database_url, "perform", identity)
    tool = added(Remote(database_url), identity)
    for number, edited in enumerate([{**CALL, "amount": 6}, {**CALL, "currency": "USD"}], start=2):
        outcome = await door(tool, edited, ledger=ledger, thread_id="t", decision="click")
        if identity == "all":
            assert (outcome.code, outcome.receipt) == (Code.SUCCEEDED, f"R-{number}")
        else:
            assert (outcome.code, Remote(database_url).count()) == (Code.CONFLICT, 1)
    same = await door(tool, CALL, ledger=ledger, thread_id="t", decision="click")
    assert (same.code, same.receipt) == (Code.SUCCEEDED, "R-1")


def die(*, url: str, how: str, identity: str) -> None:
    """Make the call with the old version, and die in it."""
    tool = old(Remote(url), identity)
    if how == "agent":
        send(url, tool)
    else:
        with Ledger.connect(url) as ledger:
            perform(tool, CALL, ledger=ledger, thread_id="t", decision="click")
