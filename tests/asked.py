"""What the tests of approvals share: a refund that asks above a limit, a clock, and people who decide."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any

from acts import Clock, Remote, action_of, opened
from settled import Action, Approve, Desk, Edit, Incidental, Ledger, Outcome, Reject, action, over
from settled.tools.contract import ActionTool

ORDER: dict[str, object] = {"order_id": "INV-102", "amount": 118.5}
HOUR_S = 3600.0
ASKING: dict[str, Any] = {"approvers": ("supervisor",), "four_eyes": True, "ttl": timedelta(hours=1)}
MARIA: dict[str, Any] = {"by": "maria", "roles": ("supervisor",)}
BOB: dict[str, Any] = {"by": "bob", "roles": ("supervisor",)}


def refund(remote: Remote, **contract: Any) -> ActionTool:
    """A refund that a supervisor other than the requester approves when it is over 100."""
    declared: dict[str, Any] = {
        "risk": "non_idempotent_write",
        "remote": "dedupes",
        "identity": ("order_id",),
        "query": remote.find,
        "approval": over("amount", 100, **ASKING),
    }

    @action(**{**declared, **contract})
    def refund(order_id: str, amount: float, memo: Annotated[str, Incidental()] = "") -> object:
        return remote.do(order_id=order_id, amount=amount)

    return refund


@dataclass
class Office:
    """One ledger by a clock that a test sets, a far side, a tool of it, and the desk."""

    ledger: Ledger
    clock: Clock
    remote: Remote = field(default_factory=Remote)
    tool: ActionTool = field(init=False)

    def __post_init__(self) -> None:
        self.tool = refund(self.remote)

    @property
    def desk(self) -> Desk:
        return Desk(self.ledger, tools=[self.tool])

    @property
    def amounts(self) -> list[object]:
        """What was carried out."""
        return [effect["amount"] for effect in self.remote.effects]

    def action(self, outcome: Outcome) -> Action:
        return action_of(self.ledger, outcome)

    def action_now(self, action: Action) -> Action:
        return self.ledger.action(action.id)

    def decide(self, one: Outcome | Action, decision: Approve | Reject | Edit, **who: Any) -> Action:
        """Let a person (Maria) decide on what stands in the ledger."""
        found = self.action(one) if isinstance(one, Outcome) else one
        return self.desk.decide(found.id, decision, fingerprint=found.fingerprint, **(who or MARIA))

    def approve(self, one: Outcome | Action) -> Action:
        return self.decide(one, Approve())


@contextmanager
def office(url: str) -> Iterator[Office]:
    """An office whose time stands still until a test lets it pass."""
    clock = Clock()
    with opened(url, clock=clock) as ledger:
        yield Office(ledger, clock)
