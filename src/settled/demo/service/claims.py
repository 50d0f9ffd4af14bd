"""One effect per key, as a service should do it: claim, commit with the answer, replay.

claim     one INSERT … ON CONFLICT DO NOTHING; whoever inserts acts
in flight the others wait a moment for the answer, then are told so (409)
other     the same key with another payload is refused (422)
done      the stored answer is given again, and marked as a replay
"""

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

from settled.demo.service import store
from settled.state.postgres import Database

WAIT_S = 2.0
"""How long a request waits for the one that is ahead of it: below every sensible client timeout."""

POLL_S = 0.02


async def claimed(database: Database, key: str, fingerprint: str) -> JSONResponse | None:
    """Claim `key` for a request; None when it is ours to act, else the answer for the one that came second."""
    claimant = secrets.token_hex(8)
    if await database.arun(store.claim_key(key, claimant, fingerprint)):
        return None
    known = await database.arun(store.load_key(key))
    if known is None or known.claimant == claimant:  # our own insert, whose reply was lost with a connection
        return None
    if known.fingerprint != fingerprint:
        return problem(422, "idempotency_key_reused", "this key was used with another payload")
    return await _first_answer(database, key)


async def _first_answer(database: Database, key: str) -> JSONResponse:
    for _ in range(round(WAIT_S / POLL_S)):
        known = await database.arun(store.load_key(key))
        if known is not None and known.status is not None:
            return JSONResponse(known.answer, known.status, {"Idempotency-Replayed": "true"})
        await asyncio.sleep(POLL_S)
    return problem(409, "idempotency_key_in_use", "the first request with this key is in progress")


def problem(status: int, code: str, message: str, **more: Any) -> JSONResponse:
    """Return an answer that says no."""
    return JSONResponse({"code": code, "message": message, **more}, status)


def invalid(field: str, message: str) -> JSONResponse:
    """Return the answer to a payload that breaks a rule."""
    return JSONResponse({"detail": [{"loc": ["body", field], "msg": message}]}, 422)


def in_the_way(earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is said when there is an open ticket for the same employee and invoice."""
    message = f"invoice {earlier['invoice_id']} was already reimbursed"
    return {"code": "already_reimbursed", "message": message, "receipt": earlier["receipt"]}
