"""What a child process of the tests of chains can be asked to do."""

from typing import Any

from approving import dying

from chain_shop import real_chain
from scripted import ScriptedModel, call, once
from settled import Approve, Desk, Ledger, Session, always, build_agent, open_checkpointer


def order(
    *,
    database_url: str,
    remote_url: str,
    order: str,
    on_failure: str = "stop",
    asks: bool = False,
    die_at: int | None = None,
    wait_s: float = 10.0,
) -> dict[str, Any]:
    """Run an order to where it comes; dies by SIGKILL at instant number `die_at`. To compensate, shipping is turned
    down.
    """
    instants: list[list[str]] = []
    made = real_chain(
        remote_url,
        on_failure=on_failure,
        approval=always if asks else None,
        refused="ship" if on_failure == "compensate" else None,
    )
    with Ledger.connect(database_url) as ledger:
        end = made.run({"order": order}, ledger=ledger, thread_id=order, world=dying(die_at, instants), wait_s=wait_s)
    return {
        "state": str(end.state),
        "code": str(end.code),
        "chain_id": end.chain_id,
        "receipts": end.receipts,
        "action_id": end.artifact["action_id"],
        "fingerprint": end.fingerprint,
        "instants": instants,
    }


def talk(
    *, database_url: str, remote_url: str, order: str, asks: bool = False, die_at: int | None = None
) -> dict[str, Any]:
    """Ask an agent for an order, and approve what waits; dies by SIGKILL at instant number `die_at`."""
    instants: list[list[str]] = []
    made = real_chain(remote_url, approval=always if asks else None)
    model = ScriptedModel(script=once(call("order", order=order)))
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        agent = build_agent(model, [made], ledger=ledger, checkpointer=saver, world=dying(die_at, instants))
        session = Session(agent, ledger=ledger, thread_id=order)
        reply = session.send("please order", message_id="m1")
        for asked in reply.approvals:
            Desk(ledger).decide(asked["action_id"], Approve(), by="mia", fingerprint=asked["fingerprint"])
            reply = session.resume()
        state = agent.get_state({"configurable": {"thread_id": order}})
    answers = [one for one in state.values["messages"] if one.type == "tool"]
    return {"codes": [one.artifact["code"] for one in answers], "text": reply.text, "instants": len(instants)}
