"""What the protocol asks of the outside world.

The protocol is a generator that yields these values and is sent the answers; `settled.tools.runner` has the two
drivers that carry them out. Each yield is an instant at which a process may die, and a test can close the generator
there.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from settled.state.ledger import Query
from settled.state.model import Action, Claim
from settled.tools.outcome import AttemptOutcome

if TYPE_CHECKING:
    from settled.tools.policy import PlannedAction, Policy, Verdict

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Ask(Generic[T]):
    """Carry out a ledger query. Runs to its end even when the caller is cancelled meanwhile."""

    query: Query[T]


@dataclass(frozen=True, slots=True)
class Invoke:
    """Call the tool's body for the attempt that `claim` holds. Answered by an AttemptOutcome, or Stopped."""

    action: Action
    claim: Claim


@dataclass(frozen=True, slots=True)
class Read:
    """Call the body of a read: nothing is written down, so it may be called again. Answered as Invoke is."""

    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask the remote side what became of an action, through the author's query. Answered by an Answer, or Stopped.

    `values` are the arguments of the call that asks, which is for the same thing: for where the stored ones cannot be
    read.
    """

    action: Action
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Judge:
    """Ask an author's policy about a planned action. Answered by its verdict (a denial where it fails), or Stopped."""

    policy: "Policy"
    planned: "PlannedAction"


@dataclass(frozen=True, slots=True)
class Emit:
    """Make the messages of an action that succeeded with this result. Answered by their JSON text, or by None where
    they cannot be made now: then they are made later, from what the ledger has.
    """

    action: Action
    receipt: str | None
    result: object


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait. Answered by None, or Stopped."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Stopped:
    """The caller was cancelled. `begun`: the body had been called, so its effect may still come."""

    begun: bool


@dataclass(frozen=True, slots=True)
class Found:
    """The remote side has it. What is found must be what was meant: give `fingerprint`, or the `fields` to compare
    with the arguments; with neither, the author's query vouches for it.
    """

    receipt: str | None = None
    result: object = None
    fingerprint: str | None = None
    fields: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Absent:
    """The remote side has no trace of it, as of now."""


@dataclass(frozen=True, slots=True)
class Inconclusive:
    """The remote side cannot tell, or could not be asked."""

    reason: str


Answer = Found | Absent | Inconclusive
Effect = Ask[Any] | Invoke | Read | Probe | Judge | Emit | Sleep
Steps = Generator[Effect, Any, R]


def ask(query: Query[T]) -> Steps[T]:
    """Carry out a ledger query, typed: `moved = yield from ask(ledger.claim(...))`."""
    answer: T = yield Ask(query)
    return answer


def invoke(action: Action, claim: Claim) -> Steps[AttemptOutcome | Stopped]:
    """Call the body once, typed."""
    outcome: AttemptOutcome | Stopped = yield Invoke(action, claim)
    return outcome


def read(values: Mapping[str, object]) -> Steps[AttemptOutcome | Stopped]:
    """Call the body of a read once, typed."""
    outcome: AttemptOutcome | Stopped = yield Read(values)
    return outcome


def probe(action: Action, values: Mapping[str, object]) -> Steps[Answer | Stopped]:
    """Ask the remote side once, typed."""
    answer: Answer | Stopped = yield Probe(action, values)
    return answer


def judge(policy: "Policy", planned: "PlannedAction") -> Steps["Verdict | Stopped"]:
    """Ask a policy once, typed."""
    verdict: Verdict | Stopped = yield Judge(policy, planned)
    return verdict


def emit(action: Action, receipt: str | None, result: object) -> Steps[str | None]:
    """Make an action's messages once, typed."""
    messages: str | Stopped | None = yield Emit(action, receipt, result)
    return None if isinstance(messages, Stopped) else messages


def sleep(seconds: float) -> Steps[Stopped | None]:
    """Wait, typed."""
    stopped: Stopped | None = yield Sleep(seconds)
    return stopped
