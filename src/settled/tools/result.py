"""What a caller is given for a call: its `Outcome`; and what of a result is for the eyes of callers and models.

A graph may keep more with a result than is shown (the state updates of a LangGraph command): a `keeping` record.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from settled.state.machine import State
from settled.tools.messages import Code, Facts, artifact, tell

_KEPT, _SHOWN = "__settled_kept", "shown"


def keeping(kept: str, shown: object) -> dict[str, object]:
    """Return a result of which `shown` is read, and `kept` stays with the action."""
    return {_KEPT: kept, _SHOWN: shown}


def readable(result: object) -> object:
    """Return what is shown of a result."""
    return result[_SHOWN] if isinstance(result, dict) and result.keys() == {_KEPT, _SHOWN} else result


def kept_with(result: object) -> str | None:
    """Return what was kept with a result, if anything was."""
    return str(result[_KEPT]) if isinstance(result, dict) and result.keys() == {_KEPT, _SHOWN} else None


@dataclass(frozen=True, slots=True)
class Told:
    """What an outcome's message is made of."""

    facts: Facts
    language: str
    templates: Mapping[str, str]


@dataclass(frozen=True)
class Outcome:
    """How a call ended.

    `state` is the action's state (None where no action was begun: an invalid call, a read), `code` how
    the answer is classed, `result` the tool's result as plain JSON, `replayed` whether it was answered from the ledger,
    `attempts` how many were begun.
    """

    state: State | None
    code: Code
    action_id: str | None
    idempotency_key: str | None
    receipt: str | None
    result: object
    replayed: bool
    attempts: int
    told: Told = field(repr=False)

    @cached_property
    def message(self) -> str:
        """What a model is told; made when it is asked for, since a script seldom does."""
        return tell(self.told.facts, self.told.language, self.told.templates)

    @cached_property
    def artifact(self) -> Mapping[str, object]:
        """The JSON record beside the message."""
        return artifact(self.told.facts)
