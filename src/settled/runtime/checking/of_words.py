"""What the model reads of a tool: its description, its arguments' descriptions, the author's templates and reasons.

The patterns look for invitations and for claims, in English and Chinese; a sentence that forbids ("do not try again")
is none. `invalid` is the one code that may invite a corrected call.
"""

import ast
import re
from collections.abc import Iterable, Iterator

from settled.runtime.checking.calls import calls_in, dotted, last
from settled.runtime.checking.catalogue import Finding, Place, found
from settled.runtime.checking.declared import Declared
from settled.runtime.checking.reach import Part
from settled.tools.arguments import REPEAT_OF
from settled.tools.messages import Code
from settled.tools.outcome import one_line

_INVITES = re.compile(
    r"\b(?:try|call|invoke|submit|send|run|use|repeat|do|attempt)\s+(?:(?:it|this|that|them|the)\b\s*)?(?:\w+\s+){0,2}again\b"
    r"|\bcall(?:ed|ing)?\s+(?:\w+\s+){0,2}(?:repeatedly|until|(?:multiple|several)\s+times|more\s+than\s+once)"
    r"|\bkeep\s+(?:trying|calling|retrying)"
    r"|(?:please|then|and|can|may|should|must|safe\s+to|could|simply|just)\s+(?:be\s+)?(?:retry|retried|re-?submit\w*|"
    r"repeat(?:ed)?)|\bretry\s+(?:if|when|on|until|later|in|after|the\s+(?:call|request|tool)|this|it|with)\b"
    r"|again\s+later|re-?submit|fix\s+your\s+mistakes?|重试|再试|再次(?:调用|提交|尝试)|重新(?:提交|调用|尝试)",
    re.IGNORECASE,
)
_RETRY = re.compile(r"\bretry\b", re.IGNORECASE)
"""In an answer the bare word is an invitation; a description may be that of a tool which retries a job."""

_FORBIDS = re.compile(
    r"\b(?:not|never|cannot|without|no\s+need\s+to|nobody)\b|n't\b|不要|请勿|切勿|不得|勿|无需|不能|别", re.IGNORECASE
)
_CLAIMS = re.compile(
    r"\b(?:fail(?:ed|ure)?|error|unsuccessful|declined|rejected|success(?:ful|fully)?|succeeded|completed|went\s+through"
    r"|(?:was|were|has\s+been|have\s+been)\s+(?:done|made|paid|refunded|created|booked|carried\s+out))\b"
    r"|失败|错误|成功|已完成",
    re.IGNORECASE,
)
_DOUBTS = re.compile(r"\b(?:not|n't|whether|if|unknown|nothing)\b|n't\b|是否|不|未|没有", re.IGNORECASE)

_OPEN = (Code.IN_PROGRESS, Code.UNKNOWN, Code.MANUAL_REVIEW, Code.WAITING_FOR_APPROVAL)
_REASONS = frozenset(
    {"Rejected", "Refused", "Forbidden", "Conflict", "Unknown", "Ended", "ToolException", "Inconclusive", "ToolMessage"}
)


def of_words(tool: Declared) -> Iterator[Finding]:
    """Yield the words of a write that invite a second call, or claim what nobody knows."""
    if tool.contract.is_read:
        return
    yield from _described(tool)
    yield from _templates(tool)
    for part in tool.body:
        yield from _reasons(tool, part)


def invitation(text: str) -> str:
    """Return the words that invite another call, or an empty text."""
    return _unless(_INVITES, _FORBIDS, text)


def invitation_in_answer(text: str) -> str:
    """Return the words of an answer that invite another call, or an empty text."""
    return invitation(text) or _unless(_RETRY, _FORBIDS, text)


def claim(text: str) -> str:
    """Return the words that claim an outcome, or an empty text."""
    return _unless(_CLAIMS, _DOUBTS, text)


def _unless(pattern: re.Pattern[str], excuse: re.Pattern[str], text: str) -> str:
    for match in pattern.finditer(text):
        clause = re.split(r"[.,;:!?。，；：！？]", text[: match.end()])[-1]
        if not excuse.search(clause):
            return one_line(match.group(), 60)
    return ""


def _described(tool: Declared) -> Iterator[Finding]:
    if words := invitation(tool.tool.description):
        line = tool.at("description") if "description" in tool.written else tool.place
        yield found("invites-retry", line, tool.name, f"its description says “{words}”")
    for name, info in tool.contract.schema.model_fields.items():
        if name != REPEAT_OF and (words := invitation(info.description or "")):
            yield found("invites-retry", tool.at(name), tool.name, f"the description of {name} says “{words}”")


def _templates(tool: Declared) -> Iterator[Finding]:
    lines = _template_lines(tool)
    for code, template in tool.contract.messages.items():
        place = lines.get(code, tool.at("messages"))
        if code != Code.INVALID and (words := invitation_in_answer(template)):
            yield found("invites-retry", place, tool.name, f"its text for {code} says “{words}”")
        if code in _OPEN and (words := claim(template)):
            yield found("claims-outcome", place, tool.name, f"its text for {code} says “{words}”")


def _template_lines(tool: Declared) -> dict[str, Place]:
    written = tool.written.get("messages")
    if not isinstance(written, ast.Dict) or tool.place is None:
        return {}
    return {
        str(key.value): Place(tool.place.file, value.lineno)
        for key, value in zip(written.keys, written.values, strict=True)
        if isinstance(key, ast.Constant)
    }


def _reasons(tool: Declared, part: Part) -> Iterator[Finding]:
    """The reasons that a body gives: in the outcomes that it raises or returns, and in the texts that it returns."""
    reasons = [call for call in calls_in(part.node) if last(dotted(call.func, part.file)) in _REASONS]
    returned = [node.value for node in ast.walk(part.node) if isinstance(node, ast.Return) and node.value]
    seen: set[int] = set()
    for text in _texts([*reasons, *(value for value in returned if not isinstance(value, ast.Call))]):
        if text.lineno not in seen and (words := invitation_in_answer(str(text.value))):
            seen.add(text.lineno)
            yield found("invites-retry", part.place(text), tool.name, f"what it answers says “{words}”")


def _texts(nodes: Iterable[ast.expr]) -> Iterator[ast.Constant]:
    for node in nodes:
        for one in ast.walk(node):
            if isinstance(one, ast.Constant) and isinstance(one.value, str):
                yield one
