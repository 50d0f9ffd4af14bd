"""What the model is told about an action.

Owns the fifteen codes, the choice of language, and the composition of a text from facts; the words themselves are in
`texts_en` and `texts_zh`. It must not decide anything: words are not the guard, the ledger is.

A text is a sentence of fact that can be read out to the user as it stands, then one line for the model; a read is told
as its result alone. The subtle thing: a duplicate of a succeeded action repeats, byte for byte, the text which the
first success had, and says only after it that nothing new was done; and nothing that may have happened is given a word
of failure or of completion.
Values come from models, remote sides and people: they are put in as one line each, and never read as a template.
"""

import dataclasses
import json
import re
import string
from collections.abc import Mapping
from enum import StrEnum
from types import ModuleType
from typing import Literal

from settled.state.errors import ContractError
from settled.tools import rules, texts_en, texts_zh
from settled.tools.outcome import one_line, plain

# A value inside a sentence that is read out; more than this is not listened to.
MAX_VALUE_CHARS = 300
# A result goes into the model's context window whole or cut; about ten thousand tokens.
MAX_RESULT_CHARS = 40_000
# The arguments that differ are named in one sentence.
MAX_DIFFERING = 8
# A user's language shows in the first lines; the rest may be a pasted document.
MAX_LANGUAGE_CHARS = 4_000

Language = Literal["en", "zh"]
_TEXTS: Mapping[str, ModuleType] = {"en": texts_en, "zh": texts_zh}


class Code(StrEnum):
    """How an answer to the model is classed: fifteen ways, of which only `invalid` invites a corrected call."""

    SUCCEEDED = "succeeded"
    DUPLICATE = "duplicate"
    IN_PROGRESS = "in_progress"
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    DENIED = "denied"
    EXPIRED = "expired"
    CHANGED_BY_PERSON = "changed_by_person"
    UNKNOWN = "unknown"
    MANUAL_REVIEW = "manual_review"
    REJECTED = "rejected"
    INVALID = "invalid"
    FORBIDDEN = "forbidden"
    BUDGET_EXCEEDED = "budget_exceeded"
    CONFLICT = "conflict"
    UNAVAILABLE = "unavailable"


_ERRORS = frozenset(
    {
        Code.REJECTED,
        Code.INVALID,
        Code.FORBIDDEN,
        Code.BUDGET_EXCEEDED,
        Code.CONFLICT,
        Code.UNAVAILABLE,
        Code.DENIED,
        Code.EXPIRED,
    }
)
_NEXT = {
    Code.IN_PROGRESS: "wait",
    Code.WAITING_FOR_APPROVAL: "wait",
    Code.UNKNOWN: "wait",
    Code.MANUAL_REVIEW: "wait",
    Code.INVALID: "correct_arguments",
    Code.FORBIDDEN: "stop",
    Code.BUDGET_EXCEEDED: "stop",
    Code.CONFLICT: "ask_user",
}
# Which text answers a duplicate, by the state in which the earlier action was found.
_DUPLICATE_OF = {
    "planned": "waiting_for_approval",
    "approved": "in_progress",
    "running": "in_progress",
    "unknown": "unknown",
    "failed": "closed",
    "cancelled": "closed",
    "compensation_pending": "undoing",
    "compensated": "undone",
}
# A phrase is empty when the value it is about is absent.
_PHRASE_NEEDS = {
    "receipt_phrase": "receipt",
    "earlier_receipt_phrase": "receipt",
    "reason_phrase": "reason",
    "until_phrase": "until",
    "deadline_phrase": "until",
    "field_phrase": "field",
    "changes_phrase": "changes",
}
_VALUES = (
    *("summary", "action_id", "state", "receipt", "result", "reason", "field", "differing", "changes", "until"),
    *("approver", "earlier", "earlier_state", "attempts"),
)
# What an author's template may name.
FIELDS = frozenset({*_VALUES, *_PHRASE_NEEDS})


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is known about an action when the model is answered.

    `summary` names the request for a person ("refund of 25.00 for order A-1001"); for a replay it is the stored one, so
    that the text comes out the same. `state` is that of the action the answer is about: with a conflict, the earlier
    one's. `differing` maps an argument to (stored, sent). `until` is an ISO 8601 instant. `instead_of` is the summary
    of the request that a person changed into this one, and `supersedes` its action. `by_person`: a person's word is the
    evidence.
    """

    code: Code
    summary: str
    action_id: str
    state: str
    receipt: str | None = None
    result: object = None
    reason: str | None = None
    field: str | None = None
    differing: Mapping[str, tuple[object, object]] = dataclasses.field(default_factory=dict)
    until: str | None = None
    approver: str | None = None
    earlier_action_id: str | None = None
    attempts: int = 0
    replayed: bool = False
    instead_of: str | None = None
    supersedes: str | None = None
    is_withdrawn: bool = False
    by_person: bool = False
    is_stopped: bool = False


def status(code: Code) -> Literal["success", "error"]:
    """Return the status of the ToolMessage: "error" only where it is certain that nothing took place."""
    return "error" if code in _ERRORS else "success"


def artifact(facts: Facts) -> dict[str, object]:
    """Return the JSON record that goes with the text; only an invalid call may be made again, corrected."""
    record: dict[str, object] = {
        "code": str(facts.code if facts.instead_of is None else Code.CHANGED_BY_PERSON),
        "action_id": facts.action_id,
        "state": str(facts.state),
        "receipt": facts.receipt,
        "may_retry": facts.code is Code.INVALID,
        "next": _NEXT.get(facts.code, "tell_user"),
    }
    if facts.earlier_action_id is not None:
        record["earlier_action_id"] = facts.earlier_action_id
    if facts.differing:
        record["differing"] = {name: list(pair) for name, pair in facts.differing.items()}
    if facts.replayed:
        record["replayed"] = True
    if facts.instead_of is not None:
        record |= {"outcome": str(facts.code), "supersedes": facts.supersedes}
    return record


def tell(facts: Facts, language: str = "en", templates: Mapping[str, str] | None = None) -> str:
    """Return the text for the model, in `language` ("en", "zh", or a tag such as "zh-CN"; others get English).

    `templates` replaces the whole text of a code by the author's own; the one of "duplicate" replaces only the note
    after the first success. Raises ContractError for a template that is not plain named fields out of `FIELDS`.
    """
    texts = _TEXTS.get(re.split(r"[-_]", language.lower())[0], texts_en)
    own = templates or {}
    values = _values(facts, texts)
    if facts.instead_of is not None:
        return _of_change(facts, values, texts, own)
    if (key := _text_key(facts)) != "duplicate":
        return _text(key, values, texts, own)
    note = _own(own, "duplicate", values) or texts.LINES["duplicate"].format(**values)
    return f"{_text('succeeded', values, texts, own)}\n{note}"


def check_templates(templates: Mapping[str, str]) -> None:
    """Raise ContractError for a template of an unknown code, or one that is more than plain named fields."""
    for code, template in templates.items():
        if code not in set(Code):
            raise ContractError(f"messages: there is no code {code!r}; the codes are {', '.join(Code)}")
        _check_template(code, template)


def language_of(text: str) -> Language:
    """Return the language to answer `text` in: "zh" when it is mostly Chinese, else "en".

    A Chinese character weighs as much as a word in Latin letters. Kana or Hangul mean another language, which is
    answered in English.
    """
    head = text[:MAX_LANGUAGE_CHARS]
    if re.search(r"[\u3040-\u30ff\uac00-\ud7af]", head):
        return "en"
    han = len(re.findall(r"[\u3400-\u4dbf\u4e00-\u9fff]", head))
    return "zh" if han and han >= len(re.findall(r"[A-Za-z]+", head)) else "en"


def _text_key(facts: Facts) -> str:
    match facts.code:
        case Code.DUPLICATE:
            return _DUPLICATE_OF.get(facts.state, "duplicate")
        case Code.CONFLICT if not facts.earlier_action_id and not facts.differing:
            return "conflict" if facts.state != "failed" else "conflict_remote"
        case Code.DENIED if facts.is_withdrawn:
            return "withdrawn"
        case Code.UNAVAILABLE if facts.by_person:
            return "not_done"
        case Code.UNAVAILABLE if facts.is_stopped:
            return "stopped"
        case code:
            return str(code)


def _text(key: str, values: Mapping[str, str], texts: ModuleType, own: Mapping[str, str]) -> str:
    if (written := _own(own, key, values)) is not None:
        return written
    if key == "succeeded" and not values["action_id"]:  # a read: what it returned is not for reading out
        return values["result"] or str(texts.WORDS["no_result"])
    lines = [texts.SENTENCES[key].format(**values)]
    if key == "succeeded" and values["result"]:
        lines.append(texts.WORDS["result"].format(**values))
    lines.append(texts.LINES[key].format(**values))
    return "\n".join(lines)


def _of_change(facts: Facts, values: Mapping[str, str], texts: ModuleType, own: Mapping[str, str]) -> str:
    """Return that a person changed the request, and then what became of the changed one."""
    if (written := _own(own, Code.CHANGED_BY_PERSON, values)) is not None:
        return written
    key = _text_key(dataclasses.replace(facts, differing={}))
    changed = texts.SENTENCES["changed_by_person"].format(**{**values, "summary": _shown(facts.instead_of)})
    became = texts.SENTENCES["succeeded" if key == "duplicate" else key].format(**values)
    lines = [f"{changed}{texts.WORDS['sentence_separator']}{became}"]
    if facts.code in (Code.SUCCEEDED, Code.DUPLICATE) and values["result"]:
        lines.append(texts.WORDS["result"].format(**values))
    return "\n".join([*lines, texts.LINES["changed_by_person"].format(**values)])


def _own(own: Mapping[str, str], key: str, values: Mapping[str, str]) -> str | None:
    if (template := own.get(key)) is None:
        return None
    _check_template(key, template)
    return template.format(**values)


def _check_template(code: str, template: str) -> None:
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as exc:
        raise ContractError(f"template of {code}: {exc}; write a literal brace twice") from exc
    for _, name, spec, conversion in parsed:
        if name is not None and (name not in FIELDS or spec or conversion):
            raise ContractError(f"template of {code}: {{{name}}} must be a plain field, one of {sorted(FIELDS)}")


def _values(facts: Facts, texts: ModuleType) -> dict[str, str]:
    differing = _differing(facts.differing, texts)
    values = {
        "summary": _shown(facts.summary),
        "action_id": _shown(facts.action_id),
        "state": _shown(facts.state),
        "receipt": _shown(facts.receipt),
        "result": _result(facts.result),
        "reason": _reason(facts, texts).rstrip(".。;； "),
        "field": _shown(facts.field),
        "differing": differing or texts.WORDS["its_arguments"],
        "changes": differing,
        "until": _shown(facts.until),
        "approver": _approver(facts, texts),
        "earlier": _shown(facts.earlier_action_id or facts.action_id),
        "earlier_state": texts.STATES.get(facts.state, texts.WORDS["state_unclear"]),
        "attempts": str(facts.attempts),
    }
    phrases = {
        name: texts.PHRASES[name].format(**values) if values[needed] else "" for name, needed in _PHRASE_NEEDS.items()
    }
    return {**values, **phrases, **_absence(facts, values, texts)}


def _reason(facts: Facts, texts: ModuleType) -> str:
    reason = _shown(facts.reason)
    return rules.in_words(reason, texts.RULES) if facts.code in (Code.INVALID, Code.BUDGET_EXCEEDED) else reason


def _approver(facts: Facts, texts: ModuleType) -> str:
    if (facts.approver or "").split(":")[0] == "policy":
        return str(texts.WORDS["policy"])
    return _shown(facts.approver) or str(texts.WORDS["someone"])


def _absence(facts: Facts, values: Mapping[str, str], texts: ModuleType) -> dict[str, str]:
    """Return the phrases for an argument that is missing, or not one: there is no value that a rule could be about."""
    name = rules.known(facts.reason or "")
    if facts.code is not Code.INVALID or not facts.field or name not in (rules.MISSING, rules.NO_SUCH):
        return {}
    return {"field_phrase": texts.PHRASES[f"{name}_phrase"].format(**values), "reason_phrase": ""}


def _differing(differing: Mapping[str, tuple[object, object]], texts: ModuleType) -> str:
    shown = [
        texts.WORDS["before_now"].format(name=_shown(name), before=_argument(before, texts), now=_argument(now, texts))
        for name, (before, now) in list(differing.items())[:MAX_DIFFERING]
    ]
    return str(texts.WORDS["list_separator"]).join(shown)


def _argument(value: object, texts: ModuleType) -> str:
    if value is None:
        return str(texts.WORDS["absent"])
    return _shown(value if isinstance(value, str) else _json(value))


def _shown(value: str | None) -> str:
    return "" if value is None else one_line(value, MAX_VALUE_CHARS)


def _result(value: object) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else _json(value)
    lines = (plain(line) for line in text[:MAX_RESULT_CHARS].splitlines())
    return "\n".join(lines) + ("…" if len(text) > MAX_RESULT_CHARS else "")


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
