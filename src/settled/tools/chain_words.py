"""What a model is told of a run of a chain: the text is chosen by where the run stands, and filled in with its steps.

Pure. Every value that a model, a remote side or a person has made is put in as one line, and never read as a template.
"""

from collections.abc import Mapping
from typing import Any

from settled.state.model import Action
from settled.tools.chain_standing import ChainState, Standing, StepStanding, StepState
from settled.tools.chain_texts import EN, ZH
from settled.tools.messages import MAX_VALUE_CHARS, Code
from settled.tools.outcome import one_line


def tell(
    now: Standing, step: StepStanding | None, about: Action | None, code: Code, language: str, *, replayed: bool
) -> str:
    """Return the text about a run that stands at `step`, which waits for `about`."""
    texts, chain = texts_of(language), now.chain
    done = [one for one in now.steps if one.is_in_effect]
    undone = [one for one in now.steps if one.state is StepState.UNDONE]
    values = {
        "summary": shown(chain.summary),
        "name": chain.name,
        "chain_id": chain.id,
        "step": _named(step.name if step else "", texts),
        "failed": _named(chain.failed_step or (step.name if step else ""), texts),
        "done": _listed(
            done if not now.is_all_done else [one for one in now.steps if one.receipt or one in done], texts
        ),
        "undone": _listed(undone, texts),
        "left": _listed(list(now.in_effect), texts),
        "reason": shown(chain.reason if chain.turned_at else (step.reason if step else None)).rstrip(".。;； "),
        "approver": _approver(about, texts),
        "until": _until(about),
    }
    phrases = {
        f"{name}_phrase": texts[f"{name}_phrase"].format(**values) if values[name] else ""
        for name in ("done", "undone", "left", "reason", "until")
    }
    sentence = texts[_key(now, code)].format(**values, **phrases)
    if code is Code.INVALID:
        return f"{sentence}\n{texts['invalid_line'].format(**values)}"
    return f"{sentence}\n{texts['duplicate_line' if replayed else 'line'].format(**values)}"


def _key(now: Standing, code: Code) -> str:
    match now.state:
        case ChainState.STOPPED:
            return "stopped" if now.in_effect else "nothing"
        case ChainState.UNKNOWN:
            return "manual" if code is Code.MANUAL_REVIEW else "unknown"
        case ChainState.COMPENSATING:
            return "waiting_to_undo" if code is Code.WAITING_FOR_APPROVAL else "compensating"
        case ChainState.COMPENSATED | ChainState.PARTIALLY_COMPENSATED if now.chain.turned_at is None:
            return "undone_since"
        case ChainState.PARTIALLY_COMPENSATED:
            return "partially"
        case state:
            return str(state)


def _listed(steps: list[StepStanding], texts: Mapping[str, str]) -> str:
    return texts["list"].join(_with_receipt(one, texts) for one in steps)


def _with_receipt(step: StepStanding, texts: Mapping[str, str]) -> str:
    name = shown(step.name.replace("_", " "))
    if step.receipt:
        return texts["with_receipt"].format(step=name, receipt=shown(step.receipt))
    return texts["by_hand"].format(step=name) if step.by else name


def _named(name: str, texts: Mapping[str, str]) -> str:
    return texts["step"].format(name=shown(name.replace("_", " ")))


def _approver(action: Action | None, texts: Mapping[str, str]) -> str:
    named: Any = ((action.asking if action is not None else None) or {}).get("approvers", ())
    return ", ".join(shown(one) for one in named) or texts["someone"]


def _until(action: Action | None) -> str:
    return action.asked_until.isoformat(timespec="seconds") if action is not None and action.asked_until else ""


def texts_of(language: str) -> Mapping[str, str]:
    """Return the texts of a language; English for any that there are not."""
    return ZH if language.lower().startswith("zh") else EN


def shown(value: object) -> str:
    """Return a value as one line of a sentence."""
    return "" if value is None else one_line(str(value), MAX_VALUE_CHARS)
