"""Budgets: how often, or how much, within a sliding window.

Owns the declaration, and the entry of one call in the ledger's terms. Whether there is room is decided by the statement
that claims the action, under a lock of the budget (`settled.has_room`): what a claim reserves is kept while its outcome
is unknown, and given back when it is settled as not done.
"""

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from typing import Literal, get_args

from settled.state.canonical import business_digest
from settled.state.errors import ContractError, InvalidArguments
from settled.state.model import Reservation
from settled.tools.policy import DAY, FOR_EVER_S, PlannedAction, are_names, is_span

Per = Literal["thread", "user", "tenant"]

MAX_PLACES = 1000
"""Before and after the point: far more than any amount has, and few enough for Postgres to add up."""


@dataclass(frozen=True)
class Budget:
    """At most `limit` within `window`: calls, or the sum of the argument `of`; for each thread, user or the tenant.

    Tools that give a budget the same `name` share it, whatever the argument is called there that is counted; otherwise
    each tool has its own. Several windows over the same thing are several budgets, which count each call once. Calls
    without a requester count as those of one user.
    """

    limit: float | Decimal
    of: str | None = None
    per: Per = "tenant"
    window: timedelta = DAY
    name: str | None = None

    def __post_init__(self) -> None:
        try:
            good = _is_countable(limit := Decimal(str(self.limit))) and limit >= 0
        except InvalidOperation:
            good = False
        if not good:
            raise ContractError(f"Budget: limit must be a number of at least 0, not {self.limit!r}")
        if self.per not in get_args(Per):
            raise ContractError(f"Budget: per={self.per!r} is none of {', '.join(get_args(Per))}")
        if not is_span(self.window):
            raise ContractError("Budget: window must be a timedelta of more than 0, such as timedelta(days=1)")
        for part, value in (("of", self.of), ("name", self.name)):
            if value is not None and not are_names([value]):
                raise ContractError(f"Budget: {part} must be a text, not {value!r}")

    def reservation(self, planned: PlannedAction) -> Reservation:
        """Return what a claim of this action takes; InvalidArguments for an amount that cannot be counted."""
        counted = self.of if self.name is None else self.of is not None
        fields = {"of": counted, "per": self.per, "who": self._who(planned)}
        tool = f"budget {self.name}" if self.name else f"budget of {planned.tool}"
        key = business_digest(tenant=planned.tenant, tool=tool, fields=fields, annotations={})
        window_s = min(self.window.total_seconds(), FOR_EVER_S)
        return Reservation(key.hex(), self._amount(planned), window_s, Decimal(str(self.limit)))

    def _who(self, planned: PlannedAction) -> str | None:
        match self.per:
            case "thread":
                return planned.thread_id
            case "user":
                return planned.requester
            case "tenant":
                return None

    def _amount(self, planned: PlannedAction) -> Decimal:
        if self.of is None:
            return Decimal(1)
        value = planned.arguments[self.of]
        try:
            amount = Decimal(0) if value is None else Decimal(str(value))
        except InvalidOperation:
            raise InvalidArguments(self.of, "must be a number: it counts against a budget") from None
        if not _is_countable(amount):
            raise InvalidArguments(self.of, "must be a number that can be added up: it counts against a budget")
        if amount < 0:
            raise InvalidArguments(self.of, "must not be negative: it counts against a budget")
        return amount


def _is_countable(amount: Decimal) -> bool:
    exponent = amount.as_tuple().exponent  # a letter for NaN and the infinities
    return isinstance(exponent, int) and exponent >= -MAX_PLACES and amount.adjusted() <= MAX_PLACES
