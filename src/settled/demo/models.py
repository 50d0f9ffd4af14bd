"""Chat models that need no network. They say that they are scripted, and decide only by what stands in the messages.

Owns three: `ScriptedModel` does what a careful assistant does; `StubbornModel` calls the same tool again and again, in
new words, whatever it hears; `OrderingModel` is that of a shop. `load_model` takes any LangChain chat model by name
instead.
"""

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable

from settled.state.errors import ContractError
from settled.tools.messages import language_of
from settled.tools.outcome import one_line

CREATE, READ, ORDER = "create_reimbursement_ticket", "get_invoice", "place_order"
_INVOICE = re.compile(r"INV-\d+")
_EMPLOYEE = re.compile(r"E-\w+")
_AMOUNT = re.compile(r"(?<![\w.-])\d+(?:\.\d+)?(?![\w-])")
_ORDER = re.compile(r"O-\w+")
_ITEM = re.compile(r"(?<![\w-])[A-Z]{4,}(?![\w-])", re.ASCII)
_COUPON = re.compile(r"[A-Z]+-\d+")
_WORDS = {
    "en": {
        "greet": "I am a scripted model: name an invoice (INV-102) and I file it.",
        "greet_customer": "I am a scripted model: name an article (KETTLE) and a coupon (SPRING-20) and I order it.",
        "memo": "as the user asked",
    },
    "zh": {
        "greet": "我是一个按脚本运行的模型：请告诉我发票号（INV-102），我来提交报销。",
        "greet_customer": "我是一个按脚本运行的模型：请告诉我商品（KETTLE）和优惠券（SPRING-20），我来下单。",
        "memo": "按用户的要求",
    },
}


class ScriptedModel(BaseChatModel):
    """Reads the invoice, files the ticket, and tells the user what the tools answered, in the user's language."""

    tool_names: tuple[str, ...] = ()
    greeting: str = "greet"

    @property
    def _llm_type(self) -> str:
        return "settled-scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """Return this model with the names of the tools that it may call."""
        names = tuple(getattr(tool, "name", None) or getattr(tool, "__name__", "") for tool in tools)
        return self.model_copy(update={"tool_names": names})

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        asked, answers = _turn(messages)
        call = self._next_call(messages, asked, answers)
        said = AIMessage("", tool_calls=[call]) if call else AIMessage(self._reply(asked, answers))
        return ChatResult(generations=[ChatGeneration(message=said)])

    def _next_call(self, messages: list[BaseMessage], asked: str, answers: list[ToolMessage]) -> ToolCall | None:
        """Return the next step of the script: read the invoice, then file it; None when there is nothing left to do."""
        wanted = _wanted(messages)
        if wanted is None or any(answer.name == CREATE for answer in answers):
            return None
        if (invoice := _invoice(messages, wanted)) is None:
            return self._call(READ, {"invoice_id": wanted}) if not answers else None
        arguments = {"employee_id": _employee(messages), "invoice_id": wanted}
        arguments |= {name: invoice[name] for name in ("amount", "over_limit")}
        return self._call(CREATE, {**arguments, **_corrections(asked), "memo": self._memo(asked, answers)})

    def _call(self, name: str, arguments: dict[str, Any]) -> ToolCall | None:
        return (
            ToolCall(name=name, args=arguments, id=f"call_{uuid.uuid4().hex[:12]}") if name in self.tool_names else None
        )

    def _memo(self, asked: str, answers: list[ToolMessage]) -> str:
        return _WORDS[language_of(asked)]["memo"]

    def _reply(self, asked: str, answers: list[ToolMessage]) -> str:
        """Read out the sentence of fact that the last tool answered."""
        if not answers:
            return _WORDS[language_of(asked)][self.greeting]
        return answers[-1].text.splitlines()[0]


class StubbornModel(ScriptedModel):
    """Files the same ticket `repeats` times, with a new memo each time, whatever it is told."""

    repeats: int = 6

    def _next_call(self, messages: list[BaseMessage], asked: str, answers: list[ToolMessage]) -> ToolCall | None:
        filed = [answer for answer in answers if answer.name == CREATE]
        others = [answer for answer in answers if answer.name != CREATE]
        return super()._next_call(messages, asked, others) if len(filed) < self.repeats else None

    def _memo(self, asked: str, answers: list[ToolMessage]) -> str:
        return f"{super()._memo(asked, answers)} #{uuid.uuid4().hex[:6]}"


class OrderingModel(ScriptedModel):
    """Orders the article that the user names, with the coupon that he names, for the order that the prompt names."""

    greeting: str = "greet_customer"

    def _next_call(self, messages: list[BaseMessage], asked: str, answers: list[ToolMessage]) -> ToolCall | None:
        order = next((m for message in messages for m in _ORDER.findall(message.text)), None)
        item, coupon = _ITEM.search(asked), _COUPON.search(asked)
        if answers or order is None or item is None or coupon is None:
            return None
        return self._call(ORDER, {"order_id": order, "item": item[0], "coupon": coupon[0]})


def load_model(name: str | None, scripted: BaseChatModel) -> BaseChatModel:
    """Return the scripted model, or the chat model called `name` (`provider:model`).

    Raises ContractError when `langchain`, which knows the providers, is not installed.
    """
    if name is None:
        return scripted
    try:
        from langchain.chat_models import init_chat_model
    except ModuleNotFoundError as missing:
        raise ContractError(
            f"--model {name} needs LangChain: pip install langchain, and the provider's package"
        ) from missing
    try:
        model: BaseChatModel = init_chat_model(name)
    except (ImportError, ValueError) as error:
        raise ContractError(f"--model {name}: {one_line(str(error), 200)}") from error
    return model


def _turn(messages: list[BaseMessage]) -> tuple[str, list[ToolMessage]]:
    """Return the user's last words and what the tools answered since."""
    last = max((i for i, message in enumerate(messages) if isinstance(message, HumanMessage)), default=-1)
    asked = messages[last].text if last >= 0 else ""
    return asked, [message for message in messages[last + 1 :] if isinstance(message, ToolMessage)]


def _wanted(messages: list[BaseMessage]) -> str | None:
    """Return the invoice that the user named last."""
    named = [m for message in messages if isinstance(message, HumanMessage) for m in _INVOICE.findall(message.text)]
    return named[-1] if named else None


def _employee(messages: list[BaseMessage]) -> str:
    """Return the employee that the system prompt names."""
    return next((m for message in messages for m in _EMPLOYEE.findall(message.text)), "")


def _invoice(messages: list[BaseMessage], wanted: str) -> Mapping[str, Any] | None:
    """Return the invoice as `get_invoice` showed it."""
    for message in messages:
        if isinstance(message, ToolMessage) and message.name == READ and wanted in message.text:
            return _json_in(message.text)
    return None


def _json_in(text: str) -> Mapping[str, Any] | None:
    for line in text.splitlines():
        start = line.find("{")
        if start >= 0:
            try:
                found, _ = json.JSONDecoder().raw_decode(line[start:])
            except ValueError:
                continue
            if isinstance(found, dict) and "amount" in found:
                return found
    return None


def _corrections(asked: str) -> dict[str, Any]:
    """Return the amount that the user names himself, if he names one."""
    named = _AMOUNT.findall(_EMPLOYEE.sub("", _INVOICE.sub("", asked)))
    return {"amount": float(named[0])} if named else {}
