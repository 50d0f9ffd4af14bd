"""A call that reaches a tool node, from the request to its answer: for `ActionMiddleware` and `ActionNode`.

Owns what the two doors share: which call it is, the person who is asked by an interrupt of the call's own task, and
that every call gets an answer. A tool node turns an exception into an invitation to try again, or lets it end the run:
so none of ours reaches it, but for what a developer has to mend (ContractError) or what ends the run (ThreadBusy).
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.messages import AIMessage, AnyMessage, ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphBubbleUp
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command

from settled.graph.answers import Answer, plain_answer, spoken_in, tool_message
from settled.graph.approve import Asking
from settled.graph.calls import Request
from settled.graph.commands import answered, unpack
from settled.graph.engine import Engine
from settled.graph.identity import Handle, can_pause, check_lock, handle_of
from settled.graph.inside import Inside, Question, apart, inner
from settled.graph.passage import Handler, Passage
from settled.graph.tickets import is_waiting
from settled.state.errors import ContractError, ThreadBusy
from settled.state.store import Ledger
from settled.tools.contract import ActionTool
from settled.tools.messages import Code
from settled.tools.perform import check_policies
from settled.tools.policy import Policy
from settled.tools.runner import World

_log = logging.getLogger("settled")

MAX_QUESTIONS = 20
"""Of one call in one run: more edits that wait again are answered as waiting."""

Result = ToolMessage | Command[Any]


class Door:
    """Carries the calls of a tool node."""

    def __init__(
        self,
        ledger: Ledger,
        tools: Iterable[ActionTool],
        *,
        tenant: str | None,
        language: str | None,
        policies: Mapping[str, Policy] | None,
        messages_key: str,
        world: World,
    ) -> None:
        self.engine = Engine({}, ledger, world, check_policies(policies))
        self.learn(tools)
        self.inner = inner(Asking(self.engine), self.handle)
        self._tenant = tenant or "default"
        self._language = language
        self._messages_key = messages_key

    def handle(self, config: RunnableConfig) -> Handle:
        """Return whose run this is; ContractError for one without a thread."""
        return handle_of(config, tenant=self._tenant, language=self._language)

    def knows(self, name: str) -> bool:
        """Whether a tool is an action, as far as this door has seen it."""
        return name in self.engine.contracts

    def learn(self, tools: Iterable[object]) -> None:
        """Take note of the actions among an agent's tools: an edit needs them. (Other threads may be reading.)"""
        known = self.engine.contracts
        new = {tool.name: tool.contract for tool in tools if isinstance(tool, ActionTool)}
        if any(known.get(name) is not contract for name, contract in new.items()):
            self.engine.contracts = {**known, **new}

    def carry(self, asked: ToolCallRequest, tool: ActionTool, handler: Handler) -> Result:
        """Carry a call to the message that answers it."""
        visit = self._visit(asked, Passage(tool, asked, handler))
        if visit.known is not None:
            return visit.known
        try:
            answer = self.engine.call(visit.request, visit.handle, visit.config, visit.via)
            for _ in range(MAX_QUESTIONS):
                if not visit.asks(answer):
                    break
                self.inner.invoke(visit.question(answer), visit.asking)
                answer = self.engine.call(visit.request, visit.handle, visit.config, visit.via)
        except Exception as error:  # noqa: BLE001 - what may travel on, `instead_of` raises again
            answer = visit.instead_of(error)
        check_lock(visit.config)
        return self._told(visit, answer)

    async def acarry(self, asked: ToolCallRequest, tool: ActionTool, handler: Handler) -> Result:
        """As `carry`, in an event loop."""
        visit = self._visit(asked, Passage(tool, asked, handler, is_async=True))
        if visit.known is not None:
            return visit.known
        try:
            answer = await self.engine.acall(visit.request, visit.handle, visit.config, visit.via)
            for _ in range(MAX_QUESTIONS):
                if not visit.asks(answer):
                    break
                await self.inner.ainvoke(visit.question(answer), visit.asking)
                answer = await self.engine.acall(visit.request, visit.handle, visit.config, visit.via)
        except Exception as error:  # noqa: BLE001 - as above
            answer = visit.instead_of(error)
        check_lock(visit.config)
        return self._told(visit, answer)

    def _visit(self, asked: ToolCallRequest, via: Passage) -> "_Visit":
        config = asked.runtime.config
        check_lock(config)
        handle = self.handle(config)
        messages = messages_of(asked.state, self._messages_key)
        request = request_of(asked.tool_call, messages, handle.language or spoken_in(messages))
        self.learn([via.tool])
        return _Visit(request, handle, config, via, apart(config, request), answer_in(messages, asked.tool_call))

    def _told(self, visit: "_Visit", answer: Answer) -> Result:
        message = answer_to(visit.request, answer)
        commands = unpack(answer["kept"]) if "kept" in answer else []
        if not commands:
            return message
        is_list = isinstance(visit.via.runtime.state, list)
        told = answered(commands, message, self._messages_key, is_list=is_list)
        return cast("Result", told[0] if len(told) == 1 else told)  # a tool node takes a list too


@dataclass(frozen=True, slots=True)
class _Visit:
    """One call at the door; it asks under the configuration `asking`, and `known` is the answer that the conversation
    has for it already.
    """

    request: Request
    handle: Handle
    config: RunnableConfig
    via: Passage
    asking: RunnableConfig
    known: ToolMessage | None

    def asks(self, answer: Answer) -> bool:
        """Whether a person is to be asked now."""
        return is_waiting(answer) and can_pause(self.config)

    def question(self, answer: Answer) -> Inside:
        """Return what he is asked."""
        return {"question": Question(request=self.request, answer=answer)}

    def instead_of(self, error: Exception) -> Answer:
        """Return the answer where there should have been one: nothing happened, or nobody knows. Some errors travel
        on.
        """
        if isinstance(error, GraphBubbleUp | ContractError | ThreadBusy):
            raise error
        _log.exception("a call of %s was not carried to its end", self.request["name"], exc_info=error)
        return plain_answer(self.request, Code.UNKNOWN if self.via.is_begun else Code.UNAVAILABLE)


def messages_of(state: Any, messages_key: str) -> Sequence[AnyMessage]:
    """Return the messages of a state of any kind."""
    if isinstance(state, list):
        return state
    found = state.get(messages_key) if isinstance(state, Mapping) else getattr(state, messages_key, None)
    return found if isinstance(found, list) else []


def request_of(call: ToolCall, messages: Sequence[AnyMessage], language: str) -> Request:
    """Return which call of which message a tool call is. Of equal ids in one message the arguments tell; equal ones
    are one call.
    """
    said = _said(messages, call)
    calls = [] if said is None else said.tool_calls
    same = [one for one in calls if one["id"] == call["id"]]
    alike = (i for i, one in enumerate(same) if (one["name"], one["args"]) == (call["name"], call["args"]))
    return Request(
        name=call["name"],
        args=call["args"],
        tool_call_id=call["id"] or "",
        message_id=(said.id if said is not None else None) or "",
        occurrence=next(alike, 0),
        language=language,
        error=None,
        is_alone=said is not None and len(calls) + len(said.invalid_tool_calls) == 1,
    )


def answer_in(messages: Sequence[AnyMessage], call: ToolCall) -> ToolMessage | None:
    """Return the answer that a call has already: a router that sends it to its tool once more (after a rejection by
    somebody else's gate, say) gets that, and nothing runs.
    """
    said = _said(messages, call)
    if said is None:
        return None
    after = messages[next(i for i, one in enumerate(messages) if one is said) + 1 :]
    return next((one for one in after if isinstance(one, ToolMessage) and one.tool_call_id == call["id"]), None)


def _said(messages: Sequence[AnyMessage], call: ToolCall) -> AIMessage | None:
    """Return the last message that makes a call of this id."""
    for message in reversed(messages):
        if isinstance(message, AIMessage) and any(one["id"] == call["id"] for one in message.tool_calls):
            return message
    return None


def answer_to(request: Request, answer: Answer) -> ToolMessage:
    """Return the message that answers a call; its id is unlike that of any other call's answer."""
    message = tool_message(request, answer)
    if not request["message_id"]:
        message.id = None
    elif request["occurrence"]:
        message.id = f"{message.id}/{request['occurrence']}"
    return message
