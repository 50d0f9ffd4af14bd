"""The tools of the reimbursement agent, declared as an author would declare them for a service of somebody else.

`reimbursement_tools(url)` is the normal set. With `queryable=False` the contract says that the service neither
recognises a repeat nor can be asked: then a lost reply is a person's to decide. With `approval_ttl_s` a supervisor is
asked about what is over the limit, with `daily_limit` an employee has a budget, and where it `notifies`, a supervisor
is sent a message about what was filed.
"""

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import AfterValidator, Field

from settled.state.canonical import Incidental, Precision
from settled.tools import http
from settled.tools.after import Done, Emits, Message
from settled.tools.backoff import Backoff
from settled.tools.budget import Budget
from settled.tools.contract import ActionTool, Inquiry, action
from settled.tools.effects import Absent, Answer, Found, Inconclusive
from settled.tools.policy import Policy, over

if TYPE_CHECKING:
    import httpx2

CENT = Decimal("0.01")


def _to_cents(amount: Decimal) -> Decimal:
    return amount.quantize(CENT)


Money: TypeAlias = Annotated[Decimal, Field(ge=0, lt=10**12), AfterValidator(_to_cents), Precision(2)]
"""An amount with two decimals; 118.5, "118.50" and 118.500 are the same one."""

Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=64)]
Memo: TypeAlias = Annotated[str, Incidental(), Field(max_length=500)]
"""Free text that a model words anew each time: no part of what makes two calls the same."""

# The service answers in milliseconds, and a person is watching: short spans, but well above what the service needs.
TIMEOUT_S, DEADLINE_S, SETTLE_WINDOW_S = 2.0, 20.0, 3.0
BACKOFF = Backoff(first=0.25, cap=2.0, jitter=0.1)
SUMMARY = {
    "en": "reimbursement of {amount} to {employee_id} for invoice {invoice_id}",
    "zh": "为员工 {employee_id} 报销发票 {invoice_id}，金额 {amount}",
}


LIMIT = 80
"""Of every invoice of the demo's service."""

SUPERVISOR = "supervisor"
"""The role that decides on what is over the limit."""

TOPIC = "settled.demo.notify_supervisor"
"""Dispatchers go by topic, whatever the tenant: this one is nobody else's."""


def reimbursement_tools(
    url: str,
    *,
    queryable: bool = True,
    approval_ttl_s: float | None = None,
    daily_limit: int | None = None,
    notifies: bool = False,
) -> list[ActionTool]:
    """Return the tools for the ticket service at `url`: `get_invoice` and `create_reimbursement_ticket`."""
    client = http.client(base_url=url, timeout=TIMEOUT_S)
    approval = () if approval_ttl_s is None else over_the_limit(timedelta(seconds=approval_ttl_s))
    budgets = () if daily_limit is None else (Budget(daily_limit, of="amount", per="user", window=timedelta(days=1)),)
    emits = notify_supervisor if notifies else None
    create = _create_ticket(client, queryable=queryable, approval=approval, budgets=budgets, emits=emits)
    return [_get_invoice(client), create]


def notify_supervisor(filed: Done) -> Message:
    """Return the message about a ticket that was filed."""
    fields = {name: str(filed.arguments[name]) for name in ("employee_id", "invoice_id", "amount")}
    return Message(TOPIC, {**fields, "ticket": filed.receipt})


def over_the_limit(ttl: timedelta) -> tuple[Policy, ...]:
    """Return the policies that ask a supervisor other than the employee about what is over the limit.

    Two of them: the amount is what is paid, and `over_limit` is what the model fills in.
    """
    asking: dict[str, Any] = {"scope": "over the limit", "ttl": ttl, "approvers": (SUPERVISOR,), "four_eyes": True}
    return over("amount", LIMIT, **asking), over("over_limit", 0, **asking)


def _get_invoice(client: "httpx2.Client") -> ActionTool:
    @action(risk="read", timeout=TIMEOUT_S, deadline=DEADLINE_S, backoff=BACKOFF)
    def get_invoice(invoice_id: Name) -> dict[str, Any]:
        """Read an invoice: its amount, and how far it is over the limit."""
        answer = client.get(f"/invoices/{invoice_id}")
        answer.raise_for_status()
        return dict(answer.json())

    return get_invoice


def _create_ticket(
    client: "httpx2.Client",
    *,
    queryable: bool,
    approval: Sequence[Policy],
    budgets: Sequence[Budget],
    emits: Emits | None,
) -> ActionTool:
    def find_ticket(inquiry: Inquiry) -> Answer:
        """Ask the service for the ticket with this action's key, and compare it with what was meant."""
        answer = client.get("/tickets", params={"idempotency_key": inquiry.idempotency_key})
        if answer.status_code != 200:
            return Inconclusive(f"the service answered {answer.status_code}")
        if not (found := answer.json()):
            return Absent()
        return Found(found[0]["receipt"], found[0], fields=_compared(found[0]))

    @action(
        risk="non_idempotent_write",
        remote="dedupes" if queryable else "opaque",
        identity=("employee_id", "invoice_id"),
        unique=("employee_id", "invoice_id"),
        query=find_ticket if queryable else None,
        timeout=TIMEOUT_S,
        deadline=DEADLINE_S,
        backoff=BACKOFF,
        settle_window=SETTLE_WINDOW_S,
        summary=SUMMARY,
        approval=approval,
        budgets=budgets,
        emits=emits,
    )
    def create_reimbursement_ticket(
        employee_id: Name, invoice_id: Name, amount: Money, over_limit: Money, memo: Memo = ""
    ) -> dict[str, Any]:
        """File a reimbursement ticket for an employee's invoice. Returns the ticket with its receipt."""
        return _post(
            client, employee_id=employee_id, invoice_id=invoice_id, amount=amount, over_limit=over_limit, memo=memo
        )

    return create_reimbursement_ticket


def _post(client: "httpx2.Client", *, amount: Decimal, over_limit: Decimal, **texts: str) -> dict[str, Any]:
    """Send the request; the client adds the key and ends the attempt if the answer is not a success."""
    body = {**texts, "amount": str(amount), "over_limit": str(over_limit)}
    return dict(client.post("/tickets", json=body).json())


def _compared(ticket: dict[str, Any]) -> dict[str, object]:
    """Return the fields of a found ticket that must be what was meant, in the form that the ledger keeps them."""
    amounts = {name: str(_to_cents(Decimal(str(ticket[name])))) for name in ("amount", "over_limit")}
    return {"employee_id": ticket["employee_id"], "invoice_id": ticket["invoice_id"], **amounts}
