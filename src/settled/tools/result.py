"""What a caller is given for a call: its `Outcome`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from settled.state.machine import State
from settled.tools.messages import Code, Facts, artifact, tell


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
