"""A tool-calling chat model for tests, that needs no network: it says what its script says.

A script is a list of what it says (texts, calls, whole messages) or a function of the conversation. The list is read by
what stands in the conversation, and not by a counter: after a crash the model goes on where the conversation does, as
a real one would. When the list is at its end, it reads out what the tools have answered.

The other functions make scripts of models that behave badly: `reworded`, `twice`, `lying`.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from pydantic import PrivateAttr

from settled.state.errors import ContractError

Said: TypeAlias = str | ToolCall | AIMessage
Script: TypeAlias = Sequence[Said] | Callable[[Sequence[BaseMessage]], Said]


class ScriptedModel(BaseChatModel):
    """Says what `script` says. `shown` is what it was given, one conversation for each call of it."""

    script: Any
    tool_names: tuple[str, ...] = ()
    _shown: list[list[BaseMessage]] = PrivateAttr(default_factory=list)

    def __init__(self, script: Script = (), **more: Any) -> None:
        if not callable(script) and (isinstance(script, str) or not isinstance(script, Sequence)):
            raise ContractError("ScriptedModel: the script is a list of what it says, or a function of the messages")
        super().__init__(**{"script": script, **more})

    @property
    def shown(self) -> list[list[BaseMessage]]:
        """What it was shown, oldest first."""
        return self._shown

    @property
    def _llm_type(self) -> str:
        return "settled-testing"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """Return this model with the names of the tools that it may call."""
        names = tuple(getattr(tool, "name", None) or getattr(tool, "__name__", "") for tool in tools)
        bound = self.model_copy(update={"tool_names": names})
        bound._shown = self._shown
        return bound

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        self._shown.append(messages)
        said = self.script(messages) if callable(self.script) else _read(self.script, messages)
        return ChatResult(generations=[ChatGeneration(message=_message(said))])


def call_tool(name: str, /, **arguments: Any) -> ToolCall:
    """Return a call of a tool; it gets an id of its own each time that it is said."""
    return ToolCall(name=name, args=arguments, id=None)


def calling(*calls: ToolCall) -> AIMessage:
    """Return one message with several calls."""
    return AIMessage("", tool_calls=list(calls))


def once(*calls: ToolCall) -> Callable[[Sequence[BaseMessage]], Said]:
    """In each turn: call these in one message, then read out what the last one answered."""
    return lambda messages: reading_out(messages) if _answers(messages) else calling(*calls)


def twice(call: ToolCall) -> Callable[[Sequence[BaseMessage]], Said]:
    """As `once`, with the same call two times in one message."""
    return once(call, call)


def reworded(call: ToolCall, *others: Mapping[str, Any], times: int = 3) -> Callable[[Sequence[BaseMessage]], Said]:
    """In each turn: make the call `times` times, one after the other, whatever it is told; then read out.

    `others` are the arguments that it words anew for the second call, the third and so on; the last ones stay.
    """

    def script(messages: Sequence[BaseMessage]) -> Said:
        made = len(_answers(messages))
        if made >= times:
            return reading_out(messages)
        changes = others[min(made, len(others)) - 1] if made and others else {}
        return ToolCall(name=call["name"], args={**call["args"], **changes}, id=None)

    return script


def lying(call: ToolCall, text: str) -> Callable[[Sequence[BaseMessage]], Said]:
    """In each turn: make the call, then say `text`, whatever the tool has answered."""
    return lambda messages: text if _answers(messages) else calling(call)


def reading_out(messages: Sequence[BaseMessage]) -> str:
    """Return the first line of what the last tool answered, which could be read out to the user as it stands."""
    answers = _answers(messages)
    return answers[-1].text.split("\n")[0] if answers else "I have nothing to say."


def _read(script: Sequence[Said], messages: Sequence[BaseMessage]) -> Said:
    """Return the line of a script that the conversation has come to."""
    said = sum(isinstance(message, AIMessage) for message in messages)
    return script[said] if said < len(script) else reading_out(messages)


def _answers(messages: Sequence[BaseMessage]) -> list[ToolMessage]:
    """Return what tools have answered since the user's last words."""
    last = max((i for i, message in enumerate(messages) if isinstance(message, HumanMessage)), default=-1)
    return [message for message in messages[last + 1 :] if isinstance(message, ToolMessage)]


def _message(said: object) -> AIMessage:
    """Return what the script says as a fresh message, whose calls have ids."""
    match said:
        case str():
            return AIMessage(said)
        case AIMessage():
            calls = [ToolCall(**{**call, "id": call["id"] or _new_id()}) for call in said.tool_calls]
            return said.model_copy(update={"tool_calls": calls})
        case {"name": str(name), "args": dict(arguments), "id": str() | None as id_}:
            return AIMessage("", tool_calls=[ToolCall(name=name, args=arguments, id=id_ or _new_id())])
        case _:
            raise ContractError(f"ScriptedModel: a script says texts, calls and AIMessages, not {type(said).__name__}")


def _new_id() -> str:
    return f"call_{uuid.uuid4().hex[:12]}"
