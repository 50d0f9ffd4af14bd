"""An edit from a terminal: `--set name=JSON` and the stored arguments become the new ones, judged by the tool itself.

Secrets stay sealed where they are not set anew, and no new value of one is printed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from settled.runtime.plain_json import parsed
from settled.state.errors import InvalidArguments
from settled.state.secrets import HIDDEN

if TYPE_CHECKING:
    from settled.runtime.stepping import Counter
    from settled.state.model import Action
    from settled.tools.contract import ActionTool, Contract
    from settled.tools.decisions import Edit
    from settled.tools.policy import Policy

HINT = "--set"


@dataclass(frozen=True)
class Change:
    """An edit before it is made; each argument that differs is a line "name: old → new"."""

    decision: "Edit"
    summary: str
    lines: list[str]
    secrets: frozenset[str]


def strict() -> "Mapping[str, Policy]":
    """Return what judges an edited action whose tool has no policy of its own: a person is asked.

    The agent that planned it may have policies by risk, and this process does not know them.
    """
    from settled.tools.contract import Risk
    from settled.tools.policy import always

    return {str(risk): always for risk in Risk if risk is not Risk.READ}


def values_of(settings: Sequence[str]) -> dict[str, object]:
    """Return `name=JSON` settings as values; a wrong use names the argument and the rule."""
    values: dict[str, object] = {}
    for setting in settings:
        name, equals, written = setting.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{setting!r} must be name=JSON", param_hint=HINT)
        if name in values:
            raise typer.BadParameter(f"{name} is given twice", param_hint=HINT)
        values[name] = _json(name, written)
    return values


def _json(name: str, written: str) -> object:
    if written == HIDDEN:
        raise typer.BadParameter(f"{name} is hidden here: put its value in again", param_hint=HINT)
    try:
        return parsed(written)
    except ValueError:
        rule = f"is no JSON; a text needs quotes of its own: --set '{name}=\"text\"'"
        raise typer.BadParameter(f"{name}: {rule}", param_hint=HINT) from None


def change(
    at: "Counter", action: "Action", tools: "Sequence[ActionTool]", values: Mapping[str, object], note: str | None
) -> Change:
    """Return what an edit of an action changes, validated by its tool; InvalidArguments names field and rule."""
    from settled.tools.decisions import Edit
    from settled.tools.desk import edited
    from settled.tools.standing import json_values

    contract = _contract_of(action, tools)
    decision = Edit(values, note)
    call = edited(contract, action, decision, at.ledger, {})
    if call.plan.fingerprint == action.fingerprint:
        raise InvalidArguments(HINT, "changes nothing: approve it as it is, or set another value")
    lines = _lines(action.arguments, json_values(call.plan.arguments), contract, values)
    return Change(decision, call.plan.summary, lines, contract.secrets)


def _contract_of(action: "Action", tools: "Sequence[ActionTool]") -> "Contract":
    for tool in tools:
        if tool.contract.name == action.tool:
            return tool.contract
    there = ", ".join(tool.contract.name for tool in tools)
    raise typer.BadParameter(
        f"has no tool {action.tool}, which {action.id} is of; it has {there}", param_hint="--tools"
    )


def _lines(
    old: Mapping[str, object], new: Mapping[str, object], contract: "Contract", given: Mapping[str, object]
) -> list[str]:
    """Return what differs; of a secret, whose stored form is new each time, that it was given anew."""
    from settled.runtime.desk_pages import visible
    from settled.state.canonical import differing

    before, after = ({k: v for k, v in one.items() if k not in contract.secrets} for one in (old, new))
    changed = differing(before, after)
    lines = [f"{name}: {visible(old.get(name))} → {visible(new.get(name))}" for name in changed]
    return [*lines, *(f"{name}: {HIDDEN} → {HIDDEN}" for name in sorted(contract.secrets & given.keys()))]
