"""A real MCP server over stdio: a bank whose payments are lines of a file, with a switch for each way to lose one.

Each call of a client starts a process of its own, so what it knows is on disk: `SETTLED_MCP_FOLDER` holds `effects`,
one JSON object a line, and `switch`, the fault of the next payment (taken away by it).
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from mcp.server.fastmcp import Context, FastMCP
from mcp.types import ToolAnnotations

FOLDER = Path(os.environ["SETTLED_MCP_FOLDER"])
EFFECTS, SWITCH = FOLDER / "effects", FOLDER / "switch"
SLOW_S = float(os.environ.get("SETTLED_MCP_SLOW_S", "6"))

server = FastMCP("bank", log_level="ERROR")


def effects() -> list[dict[str, Any]]:
    """Return what was done so far, oldest first."""
    return [json.loads(line) for line in EFFECTS.read_text().splitlines()] if EFFECTS.exists() else []


def key_of(context: "Context[Any, Any, Any]") -> str | None:
    """Return the idempotency key that came with a request."""
    meta = context.request_context.meta
    return (meta.model_extra or {}).get("idempotencyKey") if meta is not None else None


def commit(context: "Context[Any, Any, Any]", **what: Any) -> dict[str, Any]:
    """Do something for good; its receipt is its number."""
    effect = {"receipt": f"P-{len(effects()) + 1}", "key": key_of(context), **what}
    with EFFECTS.open("a") as file:
        file.write(json.dumps(effect) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return {"receipt": effect["receipt"]}


def fault() -> str:
    """Return the fault that is switched on, and switch it off."""
    if not SWITCH.exists():
        return ""
    name = SWITCH.read_text()
    SWITCH.unlink()
    return name


@server.tool()
def pay(
    context: "Context[Any, Any, Any]", invoice: str, amount: float, note: str = "", purpose: str | None = None
) -> dict[str, Any]:
    """Pay an invoice."""
    payment = {"invoice": invoice, "amount": amount, "note": note}
    match fault():
        case "no":
            raise ValueError(f"invoice {invoice} is paid already")
        case "upstream":
            commit(context, **payment)
            raise TimeoutError("Read timed out")
        case "drop":
            commit(context, **payment)
            os._exit(1)
        case "drop before":
            os._exit(1)
        case "slow":
            done = commit(context, **payment)
            time.sleep(SLOW_S)
            return done
    return commit(context, **payment)


@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
def find_payment(context: "Context[Any, Any, Any]", invoice: str) -> dict[str, Any]:
    """Find the payment of an invoice."""
    if (key := key_of(context)) is not None:
        raise ValueError(f"a question came with the key {key} of something else")
    found = [effect for effect in effects() if effect.get("invoice") == invoice]
    return found[0] if found else {"receipt": None}


@server.tool(annotations=ToolAnnotations(idempotentHint=True, destructiveHint=False))
def set_limit(context: "Context[Any, Any, Any]", account: str, limit: int) -> str:
    """Set the limit of an account."""
    if fault() == "drop":
        commit(context, account=account, limit=limit)
        os._exit(1)
    commit(context, account=account, limit=limit)
    return f"the limit of {account} is {limit}"


@server.tool(annotations=ToolAnnotations(destructiveHint=True))
def close_account(context: "Context[Any, Any, Any]", account: str, idempotency_key: str = "") -> str:
    """Close an account."""
    commit(context, account=account, argument=idempotency_key)
    return "closed"


if __name__ == "__main__":
    server.run("stdio")
