"""Agents of the chat server's tests, whose model does what the user's message says.

"refund A1" calls `refund` once, "slow A1" lets its body take a while, "pay 5" asks a person, "die" raises in the model,
and anything else is answered in pieces. Their effects are rows that a test counts.
"""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from processes import freeze_here
from scripted import Remote, call, calling
from settled import Absent, Found, action, always, current_action

WAIT_S = 4.0
"""Below the timeout of a body."""

WORDS = ["The ", "answer ", "comes ", "in ", "pieces."]


class Talker(BaseChatModel):
    """Calls what the user's message names; speaks in pieces."""

    slow_s: float = 0.0

    @property
    def _llm_type(self) -> str:
        return "talker"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._said(messages))])

    async def _astream(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        said = self._said(messages)
        if said.tool_calls:
            yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_calls=said.tool_calls))
            return
        for piece in WORDS if said.content == "".join(WORDS) else [said.content]:
            await asyncio.sleep(self.slow_s)
            yield ChatGenerationChunk(message=AIMessageChunk(content=piece))

    def _said(self, messages: Sequence[BaseMessage]) -> AIMessage:
        last = messages[-1]
        if isinstance(last, ToolMessage):
            return AIMessage(str(last.content).split("\n")[0])
        assert isinstance(last, HumanMessage)
        verb, _, rest = str(last.content).partition(" ")
        match verb:
            case "refund" | "slow":
                return calling(call(verb, order=rest))
            case "pay":
                return calling(call("pay", payee="Ann", amount=float(rest)))
            case "die":
                raise ConnectionError("the password is swordfish")
        return AIMessage("".join(WORDS))


def tools(remote: Remote, trouble: str | None, slow_s: float, *, may_go_on: threading.Event | None = None) -> list[Any]:
    """Return the tools; with `trouble` ("freeze", "die") the process does so after the first effect of all. `slow`
    waits for `may_go_on`, if given: its test looks at it meanwhile.
    """

    def find(inquiry: Any) -> Found | Absent:
        receipt = remote.find(inquiry.idempotency_key)
        return Found(receipt, {"receipt": receipt}) if receipt else Absent()

    def effect(**detail: Any) -> dict[str, Any]:
        done = remote.act(current_action().idempotency_key, **detail)
        if trouble is not None and remote.count() == 1:
            freeze_here() if trouble == "freeze" else os.kill(os.getpid(), signal.SIGKILL)
        return done

    declared: dict[str, Any] = {"remote": "dedupes", "query": find, "timeout": 5.0, "settle_window": 5.0}

    @action(risk="non_idempotent_write", identity=("order",), **declared)
    def refund(order: str) -> dict[str, Any]:
        """Refund an order."""
        return effect(order=order)

    @action(risk="non_idempotent_write", identity=("order",), **declared)
    async def slow(order: str) -> dict[str, Any]:
        """Refund an order, slowly."""
        await asyncio.sleep(slow_s)
        if may_go_on is not None:
            await asyncio.to_thread(may_go_on.wait, WAIT_S)
        return await asyncio.to_thread(effect, order=order)

    @action(risk="non_idempotent_write", identity="all", approval=always, summary="payment of {amount} to {payee}")
    def pay(payee: str, amount: float) -> dict[str, Any]:
        """Pay somebody."""
        return effect(payee=payee, amount=amount)

    return [refund, slow, pay]
