"""Who may have what done: policies, and the verdicts that they give.

A policy is a function of the planned action to `Allow`, `Ask` or `Deny`. It is asked once, when the action is planned;
its verdict is frozen in the ledger with the action. Owns the ready-made policies; what a verdict leads to is
`settled.tools.protocol`. The subtle thing: a policy that fails, or answers something else, permits nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias, cast

from settled.state import ledger
from settled.state.canonical import business_digest
from settled.state.errors import ContractError
from settled.state.model import Reservation
from settled.state.secrets import HIDDEN
from settled.tools.effects import Steps, ask

BY_POLICY = "policy"
"""The approver of what no person was asked about."""

DAY = timedelta(days=1)
FOR_EVER_S = timedelta(days=36_500).total_seconds()
MAX_TTL = timedelta(days=365)
"""A request that nobody has answered for a year is not about the same world."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedAction:
    """What a policy judges: the validated arguments, and on whose behalf the action is planned. Nothing of it comes
    from the model but the arguments.
    """

    tool: str
    risk: str
    arguments: Mapping[str, Any] = field(repr=False)
    tenant: str
    thread_id: str
    requester: str | None
    roles: frozenset[str]
    summary: str
    fingerprint: str
    repeat_of: str | None
    secrets: frozenset[str] = frozenset()

    def shown(self, name: str) -> str:
        """Return an argument as a reason may name it: a reason stands in the ledger, and a secret must not."""
        return HIDDEN if name in self.secrets else str(self.arguments[name])


@dataclass(frozen=True)
class Allow:
    """It may run; nobody is asked."""

    reason: str = ""


@dataclass(frozen=True)
class Ask:
    """A person is asked.

    `scope` names the authority that a decision takes ("refunds over the limit"), `approvers` who has it: names or
    roles; nobody named: anybody. With `four_eyes` it must be somebody other than the requester. `ttl` is how long the
    request waits for a decision, and how long a permission then waits to be used.
    """

    reason: str = ""
    scope: str = ""
    ttl: timedelta = DAY
    approvers: Sequence[str] = ()
    four_eyes: bool = False

    def __post_init__(self) -> None:
        if not is_span(self.ttl) or self.ttl > MAX_TTL:
            raise ContractError(f"Ask: ttl must be a timedelta of more than 0 and at most {MAX_TTL.days} days")
        if isinstance(self.approvers, str) or not are_names(self.approvers):
            raise ContractError('Ask: approvers must be names or roles, as in ("supervisor",)')
        object.__setattr__(self, "approvers", tuple(self.approvers))


@dataclass(frozen=True)
class Deny:
    """It may not run. `is_forbidden`: the requester lacks the permission, rather than the action being unwanted."""

    reason: str = ""
    is_forbidden: bool = False


Verdict: TypeAlias = Allow | Ask | Deny
Policy: TypeAlias = Callable[[PlannedAction], Verdict | Awaitable[Verdict]]


class Remembering(ABC):
    """A policy that looks into the ledger: it is weighed rather than called, and its claims leave a note there."""

    def __call__(self, planned: PlannedAction) -> Verdict:
        """Refuse to be called, as another policy would: there is no ledger at hand."""
        raise ContractError("this policy looks into the ledger: give it to approval= or policies=, alone or in a list")

    @abstractmethod
    def weigh(self, planned: PlannedAction) -> Steps[Verdict]:
        """Ask the ledger, and judge."""

    @abstractmethod
    def reservation(self, planned: PlannedAction) -> Reservation:
        """Return what a claim notes in the ledger."""


def always(planned: PlannedAction | None = None, /, **asking: Any) -> Any:
    """Ask a person about every call: `approval=always`, or `approval=always(approvers=("supervisor",), ttl=...)`."""
    return Ask("every call is approved by a person") if planned is not None else _Always(_asking("always", asking))


def over(name: str, limit: float | Decimal, /, **asking: Any) -> Policy:
    """Ask a person where the argument `name` is more than `limit`; what is no number is asked about as well."""
    if not are_names([name]):
        raise ContractError(f'over takes the name of an argument and a limit, as in over("amount", 100), not {name!r}')
    try:
        number = Decimal(str(limit))
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite():
        raise ContractError(f"over: the limit of {name} must be a number, not {limit!r}")
    return _Over(name, number, _asking("over", asking))


def first_time(*names: Any, **asking: Any) -> Any:
    """Ask a person until it was done once: for this requester, or with `first_time("payee")` for these values, whoever
    asks. What failed was not done; what is unknown counts.
    """
    if not are_names(names):
        raise ContractError('first_time takes names of arguments, as in first_time("payee")')
    return _FirstTime(tuple(names), _asking("first_time", asking))


def permitted(*roles: str) -> Policy:
    """Forbid a call whose requester has none of these roles; the others pass to the next policy."""
    if not roles or not are_names(roles):
        raise ContractError('permitted takes roles, as in permitted("clerk")')
    return _Permitted(frozenset(roles))


def as_policy(given: Policy) -> Policy:
    """Return a policy that was named bare, `approval=first_time`, with its defaults."""
    if given in (always, first_time):
        return cast("Callable[[], Policy]", given)()
    return given


def asked_before(asking: Mapping[str, Any]) -> Policy:
    """Return the policy that asks as a frozen verdict did."""
    ttl = timedelta(seconds=asking["ttl_s"])
    return _Always(Ask(asking["reason"], asking["scope"], ttl, asking["approvers"], asking["four_eyes"]))


@dataclass(frozen=True)
class _Always:
    asking: Ask

    def __call__(self, planned: PlannedAction) -> Verdict:
        return _because(self.asking, "every call is approved by a person")


@dataclass(frozen=True)
class _Over:
    name: str
    limit: Decimal
    asking: Ask

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def __call__(self, planned: PlannedAction) -> Verdict:
        try:
            number = Decimal(str(planned.arguments[self.name]))
            is_over = number > self.limit
        except InvalidOperation:  # None as well: where the amount of a refund is left out, all of it is meant
            return _because(self.asking, f"{self.name} is no number")
        shown = f"{self.name} {planned.shown(self.name)}"
        if is_over:
            return _because(self.asking, f"{shown} is over {self.limit}")
        return Allow(f"{shown} is not over {self.limit}")


@dataclass(frozen=True)
class _FirstTime(Remembering):
    names: tuple[str, ...]
    asking: Ask

    def weigh(self, planned: PlannedAction) -> Steps[Verdict]:
        """Ask the ledger whether it was done before."""
        note = self.reservation(planned)
        done = yield from ask(ledger.used(planned.tenant, note.budget, note.window_s))
        if done > 0:
            return Allow("it was done before")
        return _because(self.asking, f"the first time for {self._named(planned)}")

    def reservation(self, planned: PlannedAction) -> Reservation:
        """Return what a claim notes in the ledger, so that the next time is not the first."""
        values = {name: planned.arguments[name] for name in self.names} or {"requester": planned.requester}
        scope = {"tenant": planned.tenant, "tool": f"first_time {planned.tool}"}
        key = business_digest(**scope, fields=values, annotations={})
        return Reservation(key.hex(), Decimal(1), FOR_EVER_S)

    def _named(self, planned: PlannedAction) -> str:
        return ", ".join(f"{name} {planned.shown(name)}" for name in self.names) or "this requester"


@dataclass(frozen=True)
class _Permitted:
    roles: frozenset[str]

    def __call__(self, planned: PlannedAction) -> Verdict:
        if self.roles & planned.roles:
            return Allow(f"permitted to {', '.join(sorted(self.roles & planned.roles))}")
        return Deny(f"it takes the role {' or '.join(sorted(self.roles))}", is_forbidden=True)


def are_names(values: Iterable[object]) -> bool:
    """Whether all of these are texts that say something."""
    return all(isinstance(value, str) and value.strip() for value in values)


def is_span(value: object) -> bool:
    """Whether this is a timedelta of more than nothing."""
    return isinstance(value, timedelta) and value > timedelta(0)


def _asking(policy: str, options: Mapping[str, Any]) -> Ask:
    try:
        return Ask(**options)
    except TypeError:
        known = "reason, scope, ttl, approvers, four_eyes"
        raise ContractError(f"{policy} takes {known}, and was given {', '.join(options)}") from None


def _because(asking: Ask, reason: str) -> Ask:
    return replace(asking, reason=asking.reason or reason)
