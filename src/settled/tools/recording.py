"""Writing down how an attempt ended, with what to do when the write finds that the action is no longer this claim's.

The parts of the protocol that touch no rule of its order: which statement settles which outcome, what zero rows mean,
and the answer for what stands there in the end.
"""

from typing import Any, assert_never

from settled.state import ledger
from settled.state.ledger import Query
from settled.state.machine import State
from settled.state.model import Action, Claim
from settled.tools.contract import Contract
from settled.tools.effects import Steps, ask, emit
from settled.tools.messages import Code
from settled.tools.outcome import Conflict, Forbidden, Invalid, Rejected, Succeeded
from settled.tools.standing import Answered, closed_code
from settled.tools.storable import storable


def settlement(
    contract: Contract, action: Action, claim: Claim, outcome: Succeeded | Rejected | Invalid | Forbidden | Conflict
) -> Steps[tuple[Query[Action | None], State, Code]]:
    """Return the statement that settles an outcome, the state that it leads to, and the code that tells of it. A
    success is written together with its messages.
    """
    match outcome:
        case Succeeded(result=result, receipt=receipt):
            messages = yield from messages_of(contract, action, receipt, result)
            said: dict[str, Any] = {} if contract.emits is None else {"messages": messages, "posts": True}
            query = ledger.succeed(claim, action, receipt=receipt, result=storable(result), **said)
            return query, State.SUCCEEDED, Code.SUCCEEDED
        case Rejected(reason=reason, receipt=receipt):
            query = ledger.fail(claim, code=Code.REJECTED, reason=reason, may_change=True, receipt=receipt)
            return query, State.FAILED, Code.REJECTED
        case Invalid(reason=reason):
            return ledger.fail(claim, code=Code.INVALID, reason=reason, may_change=True), State.FAILED, Code.INVALID
        case Forbidden(reason=reason):
            return (
                ledger.fail(claim, code=Code.FORBIDDEN, reason=reason, may_change=False),
                State.FAILED,
                Code.FORBIDDEN,
            )
        case Conflict(reason=reason):
            return ledger.fail(claim, code=Code.CONFLICT, reason=reason, may_change=False), State.FAILED, Code.CONFLICT
        case _:
            assert_never(outcome)


def messages_of(contract: Contract, action: Action, receipt: str | None, result: object) -> Steps[str | None]:
    """Make the messages of a success; None where there are none, or they are still to be made."""
    return None if contract.emits is None else (yield from emit(action, receipt, result))


def write(
    claim: Claim, query: Query[Action | None], wanted: State, *, evidence: str | None = None
) -> Steps[tuple[Action, bool]]:
    """Carry out a transition; answer the action as it stands, and whether this claim's write is what made it so.

    Zero rows are either our own write whose answer was lost with a connection, or somebody else's newer claim: then
    what we wanted to write is kept as evidence.
    """
    moved = yield from ask(query)
    if moved is not None:
        return moved, True
    action = yield from load(claim)
    if action.fencing_token == claim.token and action.state is wanted:
        return action, True
    params = query.params
    detail = {"wanted": str(wanted), "receipt": params.get("receipt"), "reason": evidence or params.get("reason")}
    yield from ask(ledger.keep_late(claim, detail={k: v for k, v in detail.items() if v is not None}))
    return action, False


def answer(code: Code, action: Action, mine: bool, reason: str | None, field: str | None = None) -> Answered:
    """Answer for what was just written, or for what stands there instead."""
    if mine:
        return Answered(code, action, reason=reason, field=field)
    match action.state:
        case State.SUCCEEDED:
            return Answered(Code.SUCCEEDED, action, replayed=True)
        case State.COMPENSATION_PENDING | State.COMPENSATED:
            return Answered(Code.DUPLICATE, action, replayed=True)
        case State.FAILED | State.CANCELLED:
            return Answered(closed_code(action), action, replayed=True, reason=action.reason)
        case _:
            return Answered(Code.UNKNOWN, action, replayed=True, reason=action.reason)


def load(claim: Claim) -> Steps[Action]:
    """Read the action of a claim."""
    action = yield from ask(ledger.load(claim.tenant, claim.action_id))
    if action is None:
        raise AssertionError(f"{claim.action_id} is gone from the ledger")
    return action
