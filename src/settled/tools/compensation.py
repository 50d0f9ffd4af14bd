"""Undoing what succeeded, by an action of its own, as steps.

    succeeded ─▶ compensation_pending ─▶ compensated
                         └─▶ the manual queue, where the action that undoes it did nothing or cannot be found out

The action that undoes has a key, attempts, a policy, reconciliation and a place in the manual queue as any other one.
It begins in the statement that makes the first one wait for it; so a crash leaves either nothing begun, or both. The
subtle thing: what undoes it may be settled by anybody (a worker, a person); the statement that ends the undoing sees
by itself that it has succeeded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from settled.state import chains, ledger
from settled.state.errors import AlreadyDecided, ContractError, NotFound, NotPermitted
from settled.state.machine import State
from settled.state.model import Action
from settled.state.store import Ledger
from settled.tools import protocol
from settled.tools.after import Compensation
from settled.tools.approval import judged
from settled.tools.attempt import done_of, restored
from settled.tools.contract import Contract, contract_of
from settled.tools.effects import Steps, ask
from settled.tools.perform import Options, outcome, prepare, recalled, taken_up
from settled.tools.policy import Policy
from settled.tools.result import Outcome, readable
from settled.tools.standing import Call, claim_of

MAX_TRIES = 100
"""Of undoing one action: each is begun by a person or by whoever runs a chain, and more is no try any more."""


@dataclass(frozen=True)
class Undoing:
    """What is undone, by which contract, and who asked for that."""

    contract: Contract
    store: Ledger
    policies: Mapping[str, Policy]
    by: str | None = None
    note: str | None = None
    wait_s: float = 0.0
    language: str = "en"

    @property
    def how(self) -> Compensation:
        """How it is undone; ContractError for a tool that does not say."""
        if self.contract.compensate is None:
            raise ContractError(f"{self.contract.name} says no way to undo it: declare it with compensate=")
        return self.contract.compensate

    @property
    def undoer(self) -> Contract:
        """The contract of the action that undoes."""
        return contract_of(self.how.tool)


def compensate(undoing: Undoing, done: Action) -> Steps[Outcome]:
    """Undo an action that succeeded, or carry its undoing on; returns the outcome of the action that undoes it.

    Asked for twice, it is one undoing. Raises AlreadyDecided for an action that has not succeeded, or that a person has
    undone by hand in its chain; ContractError for a tool without `compensate`, or where an action of another tool is
    undoing it already; InvalidArguments where the arguments of the undoing cannot be made; NotPermitted where its
    policy denies it, or `done` undoes something itself; DuplicateAction where another action has its business key.
    Nothing was begun then.
    """
    _check_undoes_nothing(done)
    undo = yield from _begun(undoing, done)
    if undo.tool != undoing.undoer.name:  # begun by other code, or by a chain with a way back of its own
        return (yield from _by_another_tool(undoing, done, undo))
    options = replace(_options(undoing, done), is_orphan=_is_unknown, wait_s=undoing.wait_s)
    call, end = yield from protocol.perform(taken_up(undoing.undoer, undo, undoing.store, options))
    yield from conclude(done.tenant, done.id)
    return outcome(call, end)


def _check_undoes_nothing(done: Action) -> None:
    """What was undone stays so in the ledger, and its business key is free: to have it back is a new call."""
    if done.compensates is not None:
        raise NotPermitted(f"{done.id} undoes {done.compensates}: to have that back, call its tool anew")


def _check_not_by_hand(done: Action) -> Steps[None]:
    by_hand = yield from ask(chains.undone_by_hand(done.tenant, done.id))
    if by_hand is not None:
        raise AlreadyDecided(f"{done.id} was undone by hand, as {by_hand[1]} has said of its step in {by_hand[0]}")
    if done.state is State.COMPENSATED:  # its chain was forgotten since
        raise AlreadyDecided(f"{done.id} was undone by hand")


def _by_another_tool(undoing: Undoing, done: Action, undo: Action) -> Steps[Outcome]:
    """Tell of an undoing that this contract neither sends nor asks about: it was judged, and maybe sent, as another."""
    if undo.is_open:
        raise ContractError(
            f"{done.id} is being undone by {undo.id}, of the tool {undo.tool} and not {undoing.undoer.name}: carry "
            "that one on, with its tool"
        )
    yield from conclude(done.tenant, done.id)
    return recalled(undo, undoing.language)


def conclude(tenant: str, action_id: str) -> Steps[Action | None]:
    """Write down what came of an undoing, if anything has: undone, or a person's to decide. Returns the action."""
    done = yield from ask(ledger.load(tenant, action_id))
    if done is None or done.state is not State.COMPENSATION_PENDING or done.compensated_by is None:
        return done
    undo = yield from ask(ledger.load(tenant, done.compensated_by))
    if undo is None or undo.is_open:
        return done
    if undo.state is State.SUCCEEDED:
        return (yield from ask(ledger.compensated(tenant, action_id, receipt=undo.receipt))) or done
    if undo.state in (State.FAILED, State.CANCELLED):
        reason = f"it could not be undone by {undo.id}: {undo.reason or undo.code or undo.state}"
        detail = {"compensated_by": undo.id}
        return (yield from ask(ledger.escalate(claim_of(done, ""), reason=reason, detail=detail))) or done
    return done


def undone_by_hand(tenant: str, action_id: str, *, by: str, note: str | None) -> Steps[Action]:
    """Say that a person has undone by hand what an action could not; returns it.

    Raises NotFound, AlreadyDecided where nothing was to be undone, or its undoing may still act. May be said again.
    """
    moved = yield from ask(ledger.undone_by_hand(tenant, action_id, by=by, note=note))
    done = moved or (yield from ask(ledger.load(tenant, action_id)))
    if done is None:
        raise NotFound(f"there is no action {action_id!r}")
    if done.state is State.COMPENSATION_PENDING:
        raise AlreadyDecided(f"{done.id} may still be undone by {done.compensated_by}: resolve or withdraw it")
    if done.state is not State.COMPENSATED:
        raise AlreadyDecided(f"{done.id} is {done.state}: nobody has begun to undo it")
    return done


def _begun(undoing: Undoing, done: Action) -> Steps[Action]:
    """Return the action that undoes `done`, begun now or before."""
    for _ in range(MAX_TRIES):
        known = yield from _known(done)
        if known is not None and known.state not in (State.FAILED, State.CANCELLED):
            return known
        yield from _check_not_by_hand(done)
        call = yield from _judged(undoing, done)
        begin = ledger.compensate if known is None else ledger.compensate_again
        moved = yield from ask(begin(done, call.plan, by=undoing.by, note=undoing.note))
        if moved is not None:
            return moved
        done = (yield from ask(ledger.load(done.tenant, done.id))) or done  # somebody else was quicker
    raise AssertionError(f"{done.id}: its undoing neither began nor showed itself {MAX_TRIES} times")


def _known(done: Action) -> Steps[Action | None]:
    match done.state:
        case State.SUCCEEDED:
            return None
        case State.COMPENSATION_PENDING | State.COMPENSATED:
            return (yield from ask(ledger.load(done.tenant, done.compensated_by or "")))
        case _:
            raise AlreadyDecided(f"{done.id} is {done.state}: only what has succeeded can be undone")


def _judged(undoing: Undoing, done: Action) -> Steps[Call]:
    """Return the call that undoes, with the verdict of its policy. Each try of it is an intent of its own.

    It has no correlation id: whoever asks for the newest action of a request means what was done, not its undoing.
    """
    values = restored(undoing.contract, done, undoing.store)
    made = undoing.how.arguments_for(done_of(done, values, done.receipt, readable(done.result)))
    options = replace(_options(undoing, done), scope=f"undo\x1f{done.id}\x1f{done.compensated_by or ''}")
    call = yield from judged(prepare(undoing.undoer, made, options, undoing.store))
    if call.plan.denied is not None:
        raise NotPermitted(f"the policy denies {undoing.undoer.name}: {call.plan.denied[1]}")
    return replace(call, plan=replace(call.plan, compensates=done.id, is_claimed_later=True))


def _options(undoing: Undoing, done: Action) -> Options:
    return Options(
        done.thread_id,
        done.tenant,
        requester=done.requester,
        language=undoing.language,
        policies=undoing.policies,
    )


def _is_unknown(action: Action) -> bool:
    return action.state is State.UNKNOWN
