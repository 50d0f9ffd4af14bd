"""The database server itself dies in the middle of a turn, with what it had not yet flushed.

The agent's checkpoints commit without waiting for the disk. What led to an effect is durable all the same, because the
ledger's own commit, which does wait, stands before the effect in the same log.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from own_server import Server
from scripted import Remote, ScriptedModel, call, calling
from settled import (
    Absent,
    Found,
    Inquiry,
    Ledger,
    Session,
    SettledError,
    action,
    build_agent,
    current_action,
    open_checkpointer,
)

RETRIES = 3
"""As a client would: the same message under the same id."""


@pytest.mark.parametrize(
    "when", [pytest.param("the model thinks", marks=pytest.mark.deep), "the effect happens", "the model answers"]
)
def test_a_server_that_dies_in_a_turn_costs_no_effect_and_no_answer(
    server: Server, own_url: str, database_url: str, when: str
) -> None:
    """One effect, one receipt, and a complete history, wherever the crash was."""
    remote = Remote(database_url)
    crashes = [when]

    def crash_when(now: str) -> None:
        if now in crashes:
            crashes.remove(now)
            server.crash()

    def find(inquiry: Inquiry) -> Found | Absent:
        receipt = remote.find(inquiry.idempotency_key)
        return Found(receipt, {"receipt": receipt}) if receipt else Absent()

    @action(risk="non_idempotent_write", identity=("order",), remote="dedupes", query=find)
    def refund(order: str) -> dict[str, Any]:
        """Refund an order."""
        done = remote.act(current_action().idempotency_key)
        crash_when("the effect happens")
        return done

    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        answered = isinstance(messages[-1], ToolMessage)
        crash_when("the model answers" if answered else "the model thinks")
        return AIMessage(f"Done: {messages[-1].text}") if answered else calling(call("refund", order="A1"))

    with Ledger.connect(own_url) as ledger, open_checkpointer(ledger) as saver:
        agent = build_agent(ScriptedModel(script=script), [refund], ledger=ledger, checkpointer=saver)
        reply = _sent(Session(agent, ledger=ledger, thread_id="t"))
        history = agent.get_state(Session(agent, ledger=ledger, thread_id="t").config).values["messages"]
    assert crashes == []
    assert remote.count() == 1
    assert "R-1" in reply.text
    assert [message.type for message in history] == ["human", "ai", "tool", "ai"]


def _sent(session: Session) -> Any:
    for _ in range(RETRIES):
        try:
            return session.send("Please refund A1.", message_id="m-1")
        except (SettledError, OSError) as error:
            last: Exception = error
        except Exception as error:
            last = error
    raise last
