"""A reimbursement that a supervisor has to approve, filed at a real remote side: for tests that kill processes."""

import asyncio
from datetime import timedelta
from typing import Any

from remote import SHORT, _context, asking
from settled import ActionTool, Ledger, Outcome, World, action, aperform, http, over, perform

AMOUNT = 118.5
LIMIT = 100
SUPERVISOR: dict[str, Any] = {"by": "mia", "roles": ("supervisor",)}
TTL_S = 3600.0
PATIENT = {
    "sync": {**SHORT, "timeout": 1.5, "lease": 2.0, "settle_window": 1.5},
    "async": {**SHORT, "timeout": 6.0, "lease": 6.5, "settle_window": 6.0},
}
"""Many processes at once on a busy machine: a request that takes its time must not look like one without an answer.
(The async ones run in the deep tests, which may take theirs.)
"""


def reimbursement(url: str, *, asynchronous: bool = False) -> ActionTool:
    """The tool. Its remote side is `remote.Remote`, which dedupes; a request waits an hour for a decision, and a
    permission as long to be used.
    """
    ask = over("amount", LIMIT, approvers=("supervisor",), four_eyes=True, ttl=timedelta(seconds=TTL_S))
    contract = {
        **PATIENT["async" if asynchronous else "sync"],
        "approval": ask,
        "query": asking(url),
        "remote": "dedupes",
        "name": "reimburse",
    }
    declare = action(risk="non_idempotent_write", identity=("order_id",), **contract)
    if asynchronous:

        async def areimburse(order_id: str, amount: float) -> dict[str, Any]:
            """Reimburse an invoice."""
            async with http.async_client(verify=_context(), timeout=30) as client:
                reply = await client.post(url, json={"order_id": order_id, "amount": amount})
            answer: dict[str, Any] = reply.json()
            return answer

        return declare(areimburse)

    def reimburse(order_id: str, amount: float) -> dict[str, Any]:
        """Reimburse an invoice."""
        with http.client(verify=_context(), timeout=30) as client:
            answer: dict[str, Any] = client.post(url, json={"order_id": order_id, "amount": amount}).json()
        return answer

    return declare(reimburse)


def call(
    ledger: Ledger, url: str, invoice: str, *, amount: float = AMOUNT, mode: str = "sync", world: World | None = None
) -> Outcome:
    """File an invoice on behalf of an employee, by one and the same decision of a model however often it is made."""
    arguments = {"order_id": invoice, "amount": amount}
    options: dict[str, Any] = {
        "thread_id": f"t-{invoice}",
        "decision": f"d-{invoice}",
        "requester": "ann",
        "wait_s": 20,
    }
    options |= {} if world is None else {"world": world}
    tool = reimbursement(url, asynchronous=mode == "async")
    if mode == "sync":
        return perform(tool, arguments, ledger=ledger, **options)

    async def acall() -> Outcome:
        try:
            return await aperform(tool, arguments, ledger=ledger, **options)
        finally:
            await ledger.aclose()

    return asyncio.run(acall())
