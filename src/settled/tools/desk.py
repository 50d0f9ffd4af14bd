"""The desk: what people do about actions. The command line and the console are made of it.

Lists what waits for a person, shows what is known, and carries decisions and resolutions into the ledger. It runs no
action but in `retry`: a decided action is carried on by whoever runs its conversation. Deciding needs no tools; `Edit`
and `retry` need the tool's contract, so give the desk the tools then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from settled.state import ledger as operations
from settled.state.errors import AlreadyDecided, ContractError, NotFound
from settled.state.machine import State
from settled.state.model import Action, Approval
from settled.state.secrets import HIDDEN
from settled.state.store import Ledger
from settled.tools import protocol
from settled.tools.attempt import restored
from settled.tools.compensation import Undoing, compensate, conclude, undone_by_hand
from settled.tools.contract import Contract, contract_of
from settled.tools.decisions import (
    Decider,
    Decision,
    Edit,
    check_decision,
    check_shown,
    decide,
    edit,
    seen,
    withdraw,
)
from settled.tools.effects import Steps, ask
from settled.tools.injected import check_runs_alone
from settled.tools.messages import language_of
from settled.tools.perform import Options, check_policies, outcome, prepare, taken_up
from settled.tools.policy import Policy, asked_before
from settled.tools.resolutions import Resolution, check_resolution, resolve
from settled.tools.result import Outcome
from settled.tools.runner import REAL, Runner, World
from settled.tools.standing import Call, claim_of


@dataclass(frozen=True, slots=True)
class ManualCase:
    """An action that only a person can decide: why, what the remote side answered to each question, and where it has
    something else, both versions (of the arguments that differ, or of the fingerprint).
    """

    action: Action
    reason: str
    asked: tuple[str, ...]
    meant: object
    found: object
    receipt: str | None

    @property
    def age(self) -> timedelta:
        """How long it has been waiting for a person; since it became unknown, where it was not handed to one yet."""
        return self.action.now - (self.action.escalated_at or self.action.started_at or self.action.planned_at)


class Desk:
    """The desk of one tenant. Everything that is decided here is decided by somebody, whose name is in the timeline."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        tools: Sequence[object] = (),
        tenant: str = "default",
        policies: Mapping[str, Policy] | None = None,
        world: World = REAL,
    ) -> None:
        self._ledger = ledger
        self._contracts = {contract.name: contract for contract in map(contract_of, tools)}
        self._tenant = tenant
        self._policies = check_policies(policies)
        self._world = world

    def approvals(self, *, thread_id: str | None = None, most: int = 100) -> list[Approval]:
        """Return what a person may still decide, of one thread if given; what ends first comes first."""
        return self._ledger.run(operations.open_approvals(self._tenant, thread_id=thread_id, most=most))

    def approval(self, action_id: str) -> Approval:
        """Return the newest ticket of an action; NotFound where no person was ever asked."""
        found = self.history(action_id)
        if not found:
            raise NotFound(f"there is no approval of an action {action_id!r}")
        return found[-1]

    def history(self, action_id: str) -> list[Approval]:
        """Return all tickets of an action, in order."""
        return self._ledger.run(operations.approvals_of(self._tenant, action_id))

    def queue(self, *, most: int = 100) -> list[ManualCase]:
        """Return the manual queue, oldest first."""
        actions = self._ledger.run(operations.manual_queue(self._tenant, most=most))
        facts = self._ledger.run(operations.findings(self._tenant, [action.id for action in actions]))
        return [_case(action, facts.get(action.id, [])) for action in actions]

    def case(self, action_id: str) -> ManualCase:
        """Return what is known of an action whose outcome is unknown; NotFound, AlreadyDecided where it is known."""
        action = self._ledger.action(action_id, tenant=self._tenant)
        if action.state not in (State.UNKNOWN, State.RUNNING):
            raise AlreadyDecided(f"{action.id} is {action.state}: there is nothing to resolve")
        facts = self._ledger.run(operations.findings(self._tenant, [action_id]))
        return _case(action, facts.get(action_id, []))

    def decide(
        self, action_id: str, decision: Decision, *, by: str, roles: Sequence[str] = (), fingerprint: str
    ) -> Action:
        """Decide on an action that waits for a person; returns it as it stands then, for an `Edit` the new action.

        `fingerprint` is the one that was shown to the person. Raises AlreadyDecided (the first decision is final; a
        repeat of it is none), NotPermitted, ShownOtherwise, NotFound; for an `Edit` also InvalidArguments,
        DuplicateAction, and ContractError when the desk does not have the tool.
        """
        who = Decider(by=by, roles=roles)
        if isinstance(check_decision(decision), Edit):
            return self._runner(self._contract(action_id)).drive(self._deciding(action_id, decision, who, fingerprint))
        return self._runner(None).drive(self._deciding(action_id, decision, who, fingerprint))

    async def adecide(
        self, action_id: str, decision: Decision, *, by: str, roles: Sequence[str] = (), fingerprint: str
    ) -> Action:
        """As `decide`, in an event loop."""
        who = Decider(by=by, roles=roles)
        contract = None
        if isinstance(check_decision(decision), Edit):
            action = await self._ledger.arun(operations.load(self._tenant, action_id))
            contract = None if action is None else self._contract_named(action.tool)
        return await self._runner(contract).adrive(self._deciding(action_id, decision, who, fingerprint))

    def withdraw(self, action_id: str, *, by: str, note: str | None = None) -> Action:
        """Take back an action that has not run, approved or not; returns it."""
        return self._runner(None).drive(withdraw(self._tenant, action_id, Decider(by=by), note=note))

    async def awithdraw(self, action_id: str, *, by: str, note: str | None = None) -> Action:
        """As `withdraw`, in an event loop."""
        return await self._runner(None).adrive(withdraw(self._tenant, action_id, Decider(by=by), note=note))

    def resolve(
        self, action_id: str, resolution: Resolution, *, by: str, fingerprint: str, note: str | None = None
    ) -> Action:
        """Say what became of an action whose outcome is unknown; returns it as it stands then.

        Raises AlreadyDecided where its outcome is known, ShownOtherwise, NotFound, InvalidArguments for "it did not
        happen" while it may still take effect.
        """
        return self._runner(None).drive(self._resolving(action_id, resolution, Decider(by=by), fingerprint, note))

    async def aresolve(
        self, action_id: str, resolution: Resolution, *, by: str, fingerprint: str, note: str | None = None
    ) -> Action:
        """As `resolve`, in an event loop."""
        steps = self._resolving(action_id, resolution, Decider(by=by), fingerprint, note)
        return await self._runner(None).adrive(steps)

    def retry(self, action_id: str, *, by: str, note: str | None = None) -> Outcome:
        """Carry an action on from where it stands, in this process: what is approved is run, what is unknown is asked
        about, and sent again only where its contract allows that. Raises AlreadyDecided where there is nothing to carry
        on, ContractError when the desk does not have the tool.
        """
        contract = self._contract(action_id)
        return self._runner(contract).drive(self._retrying(contract, action_id, Decider(by=by), note))

    async def aretry(self, action_id: str, *, by: str, note: str | None = None) -> Outcome:
        """As `retry`, in an event loop."""
        action = await self._ledger.arun(operations.load(self._tenant, action_id))
        if action is None:
            raise NotFound(f"there is no action {action_id!r}")
        contract = self._contract_named(action.tool)
        return await self._runner(contract).adrive(self._retrying(contract, action_id, Decider(by=by), note))

    def compensate(self, action_id: str, *, by: str, note: str | None = None) -> Outcome:
        """Undo an action that succeeded, or carry its undoing on, in this process; returns the outcome of the action
        that undoes it. A second request is the same undoing; one that did nothing is begun anew.

        Raises as `settled.tools.compensation.compensate` does, and ContractError when the desk does not have the tool.
        """
        undoing = self._undoing(self._contract(action_id), Decider(by=by), note)
        return self._runner(undoing.undoer).drive(self._compensating(undoing, action_id))

    async def acompensate(self, action_id: str, *, by: str, note: str | None = None) -> Outcome:
        """As `compensate`, in an event loop."""
        action = await self._ledger.arun(operations.load(self._tenant, action_id))
        if action is None:
            raise NotFound(f"there is no action {action_id!r}")
        undoing = self._undoing(self._contract_named(action.tool), Decider(by=by), note)
        return await self._runner(undoing.undoer).adrive(self._compensating(undoing, action_id))

    def undone(self, action_id: str, *, by: str, note: str | None = None) -> Action:
        """Say that a person has undone by hand what an action could not: it leaves the manual queue, and its business
        key is free. Raises NotFound, AlreadyDecided while the action that is to undo it may still act.
        """
        return self._runner(None).drive(undone_by_hand(self._tenant, action_id, by=Decider(by=by).by, note=note))

    async def aundone(self, action_id: str, *, by: str, note: str | None = None) -> Action:
        """As `undone`, in an event loop."""
        said = undone_by_hand(self._tenant, action_id, by=Decider(by=by).by, note=note)
        return await self._runner(None).adrive(said)

    def _undoing(self, contract: Contract, who: Decider, note: str | None) -> Undoing:
        undoing = Undoing(contract, self._ledger, self._policies, who.by, note)
        check_runs_alone(undoing.undoer.name, undoing.undoer.injected)
        return undoing

    def _compensating(self, undoing: Undoing, action_id: str) -> Steps[Outcome]:
        return (yield from compensate(undoing, (yield from seen(self._tenant, action_id))))

    def _deciding(self, action_id: str, decision: Decision, who: Decider, fingerprint: str) -> Steps[Action]:
        if not isinstance(decision, Edit):
            return (yield from decide(self._tenant, action_id, decision, who, fingerprint=fingerprint))
        check_shown(fingerprint)
        action = yield from seen(self._tenant, action_id, fingerprint)
        call = edited(self._contract_named(action.tool), action, decision, self._ledger, self._policies)
        return (yield from edit(call, action, decision, who))

    def _resolving(
        self, action_id: str, resolution: Resolution, who: Decider, fingerprint: str, note: str | None
    ) -> Steps[Action]:
        said = check_resolution(resolution)
        return resolve(self._tenant, action_id, said, who, fingerprint=fingerprint, note=note)

    def _retrying(self, contract: Contract, action_id: str, who: Decider, note: str | None) -> Steps[Outcome]:
        check_runs_alone(contract.name, contract.injected)
        action = yield from seen(self._tenant, action_id)
        if action.state not in (State.PLANNED, State.APPROVED, State.RUNNING, State.UNKNOWN):
            raise AlreadyDecided(f"{action.id} is {action.state}: there is nothing to carry on")
        if action.escalated_at is not None and contract.query is not None:
            held = claim_of(action, "")
            action = (yield from ask(operations.ask_again(held, actor=who.by, note=note))) or action
        options = replace(_asked_by(action, self._policies), is_orphan=_is_unknown, wait_s=0.0)
        call, end = yield from protocol.perform(taken_up(contract, action, self._ledger, options))
        if action.compensates is not None:
            yield from conclude(self._tenant, action.compensates)
        return outcome(call, end)

    def _contract(self, action_id: str) -> Contract:
        return self._contract_named(self._ledger.action(action_id, tenant=self._tenant).tool)

    def _contract_named(self, tool: str) -> Contract:
        if tool not in self._contracts:
            raise ContractError(f"this needs the tool {tool}: give it to the desk, Desk(ledger, tools=[...])")
        return self._contracts[tool]

    def _runner(self, contract: Contract | None) -> Runner:
        return Runner(contract, self._ledger, self._world)


def edited(contract: Contract, action: Action, decision: Edit, store: Ledger, policies: Mapping[str, Policy]) -> Call:
    """Return the call of an edited action: its stored arguments with those that the person gives; a secret that was
    only shown hidden stays as it is. Where no policy is at hand, the one that asked about it is taken to ask again.
    """
    given = {k: v for k, v in decision.arguments.items() if not (k in contract.secrets and v == HIDDEN)}
    roles: Any = (action.asking or {}).get("roles", ())
    options = replace(_asked_by(action, policies), language=language_of(action.summary), roles=tuple(roles))
    merged = {**restored(contract, action, store), **given, "repeat_of": action.repeat_of}
    call = prepare(contract, merged, options, store)
    if call.policies or action.asking is None:
        return call
    return replace(call, policies=(asked_before(action.asking),))


def _asked_by(action: Action, policies: Mapping[str, Policy]) -> Options:
    """Return on whose behalf an action stands in the ledger."""
    return Options(
        action.thread_id,
        action.tenant,
        requester=action.requester,
        correlation_id=action.correlation_id,
        policies=policies,
    )


def _is_unknown(action: Action) -> bool:
    return action.state is State.UNKNOWN


def _case(action: Action, facts: Sequence[tuple[str, Mapping[str, Any]]]) -> ManualCase:
    asked = tuple(str(detail.get("answer")) for trigger, detail in facts if trigger == "ask")
    last: Mapping[str, Any] = next((detail for trigger, detail in reversed(facts) if trigger == "escalate"), {})
    why = str(last.get("reason") or action.reason or "")
    return ManualCase(action, why, asked, last.get("meant"), last.get("found"), last.get("receipt"))
