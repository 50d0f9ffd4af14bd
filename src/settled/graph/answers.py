"""The answers of a turn: tool messages out of outcomes, and how often the model has been given the same one.

Owns nothing that decides about actions: the ledger does. What it decides is when a turn stops calling tools.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NotRequired, TypedDict

from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage, ToolMessage

from settled.graph.calls import Request
from settled.state.model import Action
from settled.tools.messages import Code, Facts, artifact, language_of, status, tell
from settled.tools.perform import recalled
from settled.tools.result import Outcome

MAX_TOOL_NAME_CHARS = 64
"""A tool's name, as providers allow it; a model may invent a longer one."""


class Answer(TypedDict):
    """What a call ended in, as plain JSON; `fingerprint` is that of the action that waits for a person, `kept` what its
    result has for the graph.
    """

    code: str
    message: str
    artifact: dict[str, Any]
    fingerprint: NotRequired[str]
    kept: NotRequired[str]


def answer_of(outcome: Outcome) -> Answer:
    """Return the part of an outcome that the conversation keeps."""
    return Answer(code=str(outcome.code), message=outcome.message, artifact=_plain(outcome.artifact))


def _plain(record: Mapping[str, object]) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, StrEnum) else value for name, value in record.items()}


def refusal(request: Request, field: str, rule: str) -> Answer:
    """Return the answer to a call that never reached a tool: it names the field and the rule."""
    name = request["name"][:MAX_TOOL_NAME_CHARS].replace("_", " ") or "the call"
    facts = Facts(code=Code.INVALID, summary=name, action_id="", state="", reason=rule, field=field)
    return Answer(code=str(facts.code), message=tell(facts, request["language"]), artifact=artifact(facts))


def answer_from_ledger(request: Request, action: Action | None, instead_of: Action | None = None) -> Answer:
    """Return the answer to a call that nobody goes on with: what the ledger has of it, or that nothing was begun.
    `instead_of` is the action that it asked for, where a person has changed it.
    """
    if action is not None:
        return answer_of(recalled(action, request["language"], instead_of))
    return plain_answer(request, Code.UNAVAILABLE)


def plain_answer(request: Request, code: Code) -> Answer:
    """Return the answer to a call of which no action is known: no more than its code says."""
    name = request["name"][:MAX_TOOL_NAME_CHARS].replace("_", " ")
    facts = Facts(code=code, summary=name, action_id="", state="")
    return Answer(code=str(facts.code), message=tell(facts, request["language"]), artifact=_plain(artifact(facts)))


def tool_message(request: Request, answer: Answer) -> ToolMessage:
    """Return the message that answers a request; its id is made of the request's: a second one replaces the first."""
    return ToolMessage(
        content=answer["message"],
        artifact=answer["artifact"],
        status=status(Code(answer["code"])),
        name=request["name"][:MAX_TOOL_NAME_CHARS],
        tool_call_id=request["tool_call_id"],
        id=answer_id(request),
    )


def answer_id(request: Request) -> str:
    """Return the id of the message that answers a request."""
    return f"{request['message_id']}/{request['tool_call_id']}"


def turn_of(messages: Sequence[AnyMessage]) -> Sequence[AnyMessage]:
    """Return the messages since the last one of the user, without it."""
    for index in range(len(messages) - 1, -1, -1):
        if isinstance(messages[index], HumanMessage):
            return messages[index + 1 :]
    return messages


def repeated(messages: Sequence[AnyMessage], limit: int) -> list[ToolMessage]:
    """Return the last answer of each thing that the model has called for again `limit` times or more in this turn."""
    counts: Counter[str] = Counter()
    last: dict[str, ToolMessage] = {}
    for message in turn_of(messages):
        if isinstance(message, ToolMessage):
            thing = _thing(message)
            counts[thing] += thing in last or _is_replay(message)
            last[thing] = message
    return [last[thing] for thing, count in counts.items() if count >= limit and _is_binding(last[thing])]


def answers_of(messages: Sequence[AnyMessage]) -> list[ToolMessage]:
    """Return the answers that the model has been given in this turn."""
    return [message for message in turn_of(messages) if isinstance(message, ToolMessage)]


def recorded_facts(answers: Iterable[ToolMessage]) -> str:
    """Return the sentences of fact that these answers begin with: they can be read out to the user as they stand."""
    return "\n".join(dict.fromkeys(str(answer.content).split("\n", 1)[0] for answer in answers))


def _thing(message: ToolMessage) -> str:
    """Name what an answer speaks of: its action, or where there is none, the tool and the very words."""
    record = message.artifact if isinstance(message.artifact, dict) else {}
    return record.get("action_id") or f"{message.name}\n{message.content}"


def _is_replay(message: ToolMessage) -> bool:
    record = message.artifact if isinstance(message.artifact, dict) else {}
    return record.get("code") != Code.SUCCEEDED and bool(record.get("replayed") or record.get("earlier_action_id"))


def _is_binding(message: ToolMessage) -> bool:
    """Whether asking again can change nothing: not so for a read, which may be asked for as often as one likes."""
    record = message.artifact if isinstance(message.artifact, dict) else {}
    return bool(record.get("action_id")) or message.status == "error"


def spoken_in(messages: Sequence[BaseMessage]) -> str:
    """Return the language of the user's last message."""
    for message in reversed(messages):
        if isinstance(message, HumanMessage):
            return language_of(message.text)
    return "en"
