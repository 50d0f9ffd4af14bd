"""One kind of records of the service (coupons, shipments, refunds …), as the tools of the demo make and find them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from settled.tools.contract import Inquiry
from settled.tools.effects import Absent, Answer, Found, Inconclusive

if TYPE_CHECKING:
    import httpx2


@dataclass(frozen=True)
class Records:
    """The records of a kind, through a client of `settled.http`, which adds the key and reads each answer."""

    client: "httpx2.Client"
    kind: str

    def make(self, **body: Any) -> dict[str, Any]:
        """Make a record; its `receipt` is in it."""
        return dict(self.client.post(f"/{self.kind}", json=body).json())

    def find(self, inquiry: Inquiry) -> Answer:
        """Ask the service for the record with this action's key, and compare it with what was meant."""
        answer = self.client.get(f"/{self.kind}", params={"idempotency_key": inquiry.idempotency_key})
        if answer.status_code != 200:
            return Inconclusive(f"the service answered {answer.status_code}")
        if not (found := answer.json()):
            return Absent()
        made = found[0]
        return Found(made["receipt"], made, fields={name: made[name] for name in inquiry.arguments if name in made})


def order_of(user: str) -> str:
    """Return the order that a customer of the demo is about to place."""
    return f"O-{user.partition('-')[2]}"
