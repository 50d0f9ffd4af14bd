"""Calls that nobody has answered: each gets its message, in its place, with what the ledger knows of it.

A crash, a cancellation or a new message of the user leaves calls without answers; providers refuse such a conversation,
or the model makes the call again. Owns the finding of such calls and the text for what the ledger has never heard of.
"""

from collections.abc import Callable, Sequence

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage

from settled.graph.answers import answer_from_ledger, spoken_in
from settled.graph.calls import Request, decision_of
from settled.graph.chain_recall import chain_recalled
from settled.graph.door import answer_to, request_of
from settled.graph.identity import Handle, correlation_of
from settled.state import ledger
from settled.state.model import Action
from settled.tools.effects import Steps, ask

IsAction = Callable[[str], bool]

UNTOLD = {
    "en": "This call was interrupted, and its result was not kept. Whether it was carried out is not known.",
    "zh": "此调用被中断，其结果没有保存。它是否已执行尚不清楚。",
}
"""Of a tool that is no action: nothing was written down before it ran."""


def repaired(
    messages: Sequence[AnyMessage], handle: Handle, is_action: IsAction, *, only_known: bool = False
) -> Steps[list[AnyMessage] | None]:
    """Return the conversation with an answer after each call that has none; None where none is missing, or, with
    `only_known`, where one is of a tool of which nothing is known.
    """
    spoken = handle.language or spoken_in(messages)
    whole: list[AnyMessage] = []
    is_changed = False
    for place, message in enumerate(messages):
        whole.append(message)
        if not isinstance(message, AIMessage) or not message.tool_calls:
            continue
        given = _answers_after(messages, place)
        missing = [call for call in message.tool_calls if call["id"] not in {one.tool_call_id for one in given}]
        if not missing:
            continue
        is_changed = True
        for call in missing:
            answer = yield from _answer(request_of(call, [message], spoken), handle, is_action)
            if answer.artifact is None and only_known:
                return None
            whole.append(answer)
    return whole if is_changed else None


def _answers_after(messages: Sequence[AnyMessage], place: int) -> list[ToolMessage]:
    """Return the answers that follow a message with calls, up to the next one of the model's."""
    found: list[ToolMessage] = []
    for message in messages[place + 1 :]:
        if isinstance(message, AIMessage):
            break
        if isinstance(message, ToolMessage):
            found.append(message)
    return found


def _answer(request: Request, handle: Handle, is_action: IsAction) -> Steps[ToolMessage]:
    name = correlation_of(decision_of(request))
    action: Action | None = yield from ask(ledger.recall(handle.tenant, handle.thread_id, name))
    if action is None and not is_action(request["name"]):
        text = UNTOLD["zh" if request["language"].startswith("zh") else "en"]
        return ToolMessage(
            text, tool_call_id=request["tool_call_id"], name=request["name"], id=f"{name}/untold", status="error"
        )
    of_chain = yield from chain_recalled(request, handle, action)
    return answer_to(request, of_chain or answer_from_ledger(request, action))
