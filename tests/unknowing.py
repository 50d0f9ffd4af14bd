"""Two tools of which nobody knows what became: what a person decides about, in the console and at a terminal."""

from settled import Absent, Found, Inquiry, Unknown, action


def found_otherwise(_: Inquiry) -> Found | Absent:
    return Found("R-9", {"receipt": "R-9"}, fields={"amount": 180})


@action(
    risk="non_idempotent_write", remote="queryable", query=found_otherwise, identity=("order_id",), timeout=0.2,
    settle_window=0.3, summary="payment of {amount} for {order_id}",
)  # fmt: skip
def pay(order_id: str, amount: float) -> object:
    """Pay, on a service that loses its replies, and then has another amount."""
    return Unknown("no answer came back")


@action(risk="non_idempotent_write", identity=("to",), timeout=0.2, settle_window=0.2, summary="mail to {to}")
def mail(to: str) -> object:
    """Send a mail, on a service that cannot be asked."""
    return Unknown("no answer came back")
