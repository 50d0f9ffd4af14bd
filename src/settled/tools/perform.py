"""The door without LangGraph: one call of a tool, from its arguments to its `Outcome`.

Owns the making of a `Call` (validation, identity, keys) and of the `Outcome` (what the caller and the model are
told). What happens between them is `settled.tools.protocol`.
"""

import json
import logging
import os
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, assert_never

from pydantic import BaseModel

from settled.state import canonical
from settled.state.canonical import differing
from settled.state.errors import LEDGER_IS_GONE, ContractError, InvalidArguments
from settled.state.machine import State
from settled.state.model import Action, Plan
from settled.state.secrets import is_sealed
from settled.state.store import Ledger
from settled.tools import arguments as args
from settled.tools import protocol, tracing
from settled.tools.attempt import restored
from settled.tools.contract import Contract, Risk, contract_of
from settled.tools.effects import Steps
from settled.tools.injected import check_runs_alone
from settled.tools.messages import Code, Facts
from settled.tools.policy import BY_POLICY, PlannedAction, Policy, as_policy
from settled.tools.reading import ReadEnd, read
from settled.tools.result import Outcome, Told, readable
from settled.tools.runner import REAL, Runner, World
from settled.tools.standing import WITHDRAWN, Answered, Call, Waiting, closed_code, json_values, was_stopped

Arguments: TypeAlias = Mapping[str, object] | Sequence[object]
Decision: TypeAlias = str | Sequence[str]

WAIT_S = 10.0
"""How long a call waits for another caller that has the same action in flight: as long as an attempt may take by
default.
"""


@dataclass(frozen=True, slots=True)
class Options:
    """Who calls, and how: everything about a call that is not its tool and arguments.

    `scope` stands for the conversation in what makes two calls the same intent: a step of a chain, or an undoing, is
    the same as no call that a conversation makes by itself.
    """

    thread_id: str
    tenant: str = "default"
    decision: Decision | None = None
    requester: str | None = None
    correlation_id: str | None = None
    language: str = "en"
    wait_s: float = WAIT_S
    is_orphan: Callable[[Action], bool] = lambda _: False
    owner_prefix: str = ""
    roles: Sequence[str] = ()
    policies: Mapping[str, Policy] = field(default_factory=dict)
    scope: str | None = None
    random: Callable[[], float] = random.random


def perform(
    tool: object,
    arguments: Arguments,
    *,
    ledger: Ledger,
    thread_id: str,
    tenant: str = "default",
    decision: Decision | None = None,
    requester: str | None = None,
    roles: Sequence[str] = (),
    policies: Mapping[str, Policy] | None = None,
    correlation_id: str | None = None,
    language: str = "en",
    wait_s: float = WAIT_S,
    world: World = REAL,
    random: Callable[[], float] = random.random,
) -> Outcome:
    """Call a tool that was declared with @action, with at most one effect for its intent.

    `arguments` is a mapping, or the values in order. `thread_id` is the conversation that the intent belongs to;
    `decision` names the request (a message id, a click), so that a repeat of it meets the same action for ever and not
    only within the window. `requester` is on whose behalf it is called, and `roles` what they may do; `policies` are by
    risk, for tools that declare no `approval` of their own. `wait_s` bounds the wait for another caller that has the
    same action in flight. Where a person is asked, the outcome says so, and the same call later carries the action on.

    Bad arguments, a refusal, an unknown outcome and a ledger that is away are answers, not exceptions. Raises
    ContractError for a tool without a contract.
    """
    given = Options(
        thread_id, tenant, decision, requester, correlation_id, language, wait_s, roles=roles, random=random
    )
    contract = contract_of(tool)
    with tracing.execution(contract.name):
        visit = _begin(contract, arguments, given, policies, ledger, world)
        return visit if isinstance(visit, Outcome) else visit.runner.drive(_carried(visit))


async def aperform(
    tool: object,
    arguments: Arguments,
    *,
    ledger: Ledger,
    thread_id: str,
    tenant: str = "default",
    decision: Decision | None = None,
    requester: str | None = None,
    roles: Sequence[str] = (),
    policies: Mapping[str, Policy] | None = None,
    correlation_id: str | None = None,
    language: str = "en",
    wait_s: float = WAIT_S,
    world: World = REAL,
    random: Callable[[], float] = random.random,
) -> Outcome:
    """As `perform`, in an event loop. When it is cancelled, what is known is recorded before the cancellation goes
    on.
    """
    given = Options(
        thread_id, tenant, decision, requester, correlation_id, language, wait_s, roles=roles, random=random
    )
    contract = contract_of(tool)
    with tracing.execution(contract.name):
        visit = _begin(contract, arguments, given, policies, ledger, world)
        return visit if isinstance(visit, Outcome) else await visit.runner.adrive(_carried(visit))


@dataclass(frozen=True, slots=True)
class _Visit:
    call: Call
    runner: Runner


def _begin(
    contract: Contract,
    arguments: Arguments,
    given: Options,
    policies: Mapping[str, Policy] | None,
    store: Ledger,
    world: World,
) -> _Visit | Outcome:
    options = replace(given, language=given.language or "en", policies=check_policies(policies))
    check_runs_alone(contract.name, contract.injected)
    try:
        return _Visit(prepare(contract, arguments, options, store), Runner(contract, store, world))
    except InvalidArguments as error:
        return invalid(contract, error, options.language)


def _carried(visit: _Visit) -> Steps[Outcome]:
    """Carry a call to its outcome; a ledger that goes away is an answer too."""
    call, runner = visit.call, visit.runner
    try:
        if call.contract.is_read:
            return of_read(call.contract, (yield from read(call)), call)
        call, end = yield from protocol.perform(call)
        tracing.met(end.action, _code_word(end))
        return outcome(call, end)
    except InvalidArguments as error:
        return unrecorded(call, invoked=True) if runner.invoked else invalid(call.contract, error, call.language)
    except LEDGER_IS_GONE:
        return unrecorded(call, invoked=runner.invoked)


def prepare(contract: Contract, arguments: Arguments, options: Options, store: Ledger) -> Call:
    """Validate a call and give it its identity; InvalidArguments where it breaks a rule. Nothing is written."""
    model = args.validate(contract.schema, arguments)
    values = args.values_of(model)
    fingerprint = canonical.fingerprint_of(canonical.arguments_bytes(values, contract.annotations))
    _check_caller(options)
    stored = args.plain_json(model)
    if not contract.is_read:
        args.check_read_back(model, stored, contract.annotations)
    planned = _planned(contract, model, values, fingerprint, options)
    text = args.sealed_json(stored, contract.secrets, store.vault)
    plan = _plan(contract, planned, text, _decision(options, contract, model, planned.repeat_of), options)
    for budget in contract.budgets:
        budget.reservation(planned)  # an amount that cannot be counted is a bad call
    return Call(
        contract,
        values,
        plan,
        options.wait_s,
        options.language,
        options.random,
        planned,
        partial(_taken_up, store),
        options.is_orphan,
        policies_of(contract, options.policies),
    )


def _check_caller(options: Options) -> None:
    _check_names(tenant=options.tenant, thread_id=options.thread_id)
    if isinstance(options.roles, str):
        raise ContractError('roles must be several names, as in ("clerk",)')
    _check_names(**{k: v for k in ("requester", "correlation_id") if (v := getattr(options, k)) is not None})


def _planned(
    contract: Contract, model: BaseModel, values: Mapping[str, object], fingerprint: str, options: Options
) -> PlannedAction:
    """Return what a policy judges."""
    return PlannedAction(
        tool=contract.name,
        risk=contract.risk,
        arguments=values,
        tenant=options.tenant,
        thread_id=options.thread_id,
        requester=options.requester,
        roles=frozenset(options.roles),
        summary=contract.summarize(values, options.language)[:MAX_SUMMARY_CHARS],
        fingerprint=fingerprint,
        repeat_of=getattr(model, args.REPEAT_OF, None) or None,  # a model that fills every field in sends ""
        secrets=contract.secrets,
    )


def _plan(contract: Contract, planned: PlannedAction, text: str, decision: bytes | None, options: Options) -> Plan:
    """Return what the ledger is given: the arguments as JSON text, and the names by which the same is known again."""
    scope, hints = {"tenant": planned.tenant, "tool": planned.tool}, contract.annotations
    identity, unique = ({k: planned.arguments[k] for k in names} for names in (contract.identity, contract.unique))
    thread_id = options.scope or planned.thread_id
    intent = canonical.intent_digest(**scope, thread_id=thread_id, identity=identity, annotations=hints)
    return Plan(
        tenant=planned.tenant,
        id=new_id(),
        thread_id=planned.thread_id,
        tool=planned.tool,
        contract_version=contract.version,
        intent=intent,
        occurrence=0,
        idempotency_key=canonical.idempotency_key(intent, 0),
        fingerprint=planned.fingerprint,
        business_key=canonical.business_digest(**scope, fields=unique, annotations=hints) if unique else None,
        decision=decision,
        arguments=text,
        summary=planned.summary,
        requester=planned.requester,
        correlation_id=options.correlation_id,
        trace_context=tracing.current(),
        repeat_of=planned.repeat_of,
        approver=BY_POLICY,
        owner=f"{options.owner_prefix}{os.getpid()}-{secrets.token_hex(5)}",
        window_s=contract.window_s,
        lease_s=contract.lease_s,
        deadline_s=contract.deadline_s,
        settle_window_s=contract.settle_window_s,
        is_claimed_later=bool(contract.budgets),
        emits=contract.emits is not None,
    )


def taken_up(contract: Contract, action: Action, store: Ledger, options: Options) -> Call:
    """Return the call of an action that stands in the ledger, made from its row; InvalidArguments where its stored
    arguments cannot be read any more.
    """
    call = prepare(contract, restored(contract, action, store), options, store)
    return _taken_up(store, call, action)


def _taken_up(store: Ledger, call: Call, action: Action) -> Call:
    values = restored(call.contract, action, store)
    plan = replace(
        call.plan,
        id=action.id,
        fingerprint=action.fingerprint,
        arguments=json.dumps(action.arguments),
        summary=action.summary,
        occurrence=action.occurrence,
        idempotency_key=action.idempotency_key,
        repeat_of=action.repeat_of,
        decision=None,
    )
    planned = replace(call.planned, arguments=values, summary=action.summary, fingerprint=action.fingerprint)
    return replace(call, values=values, plan=plan, planned=planned, taken_up=action)


def policies_of(contract: Contract, by_risk: Mapping[str, Policy]) -> tuple[Policy, ...]:
    """Return what judges a call: the tool's own policies, else the caller's for its risk."""
    if contract.approval or contract.is_read:
        return contract.approval
    default = by_risk.get(contract.risk)
    return () if default is None else (default,)


def _is_general(policy: object) -> bool:
    return callable(policy) and not getattr(policy, "names", ())


def check_policies(given: Mapping[str, Policy] | None) -> Mapping[str, Policy]:
    """Return policies by risk; ContractError for a risk that there is not, and for what is no policy."""
    writes = [str(risk) for risk in Risk if risk is not Risk.READ]
    for risk, policy in (given or {}).items():
        if risk not in writes:
            raise ContractError(f"policies: {risk!r} is no risk of a write, which are {', '.join(writes)}")
        if not _is_general(policy):
            raise ContractError(
                f"policies: that of {risk} must be a function of the planned action, and name no argument"
            )
    return {str(risk): as_policy(policy) for risk, policy in (given or {}).items()}


MAX_SUMMARY_CHARS = 500
"""A summary is a line that people read; the arguments stand beside it in full."""


def new_id() -> str:
    """Return a fresh action id: `act-` and 16 characters, of which the first nine rise with time (an index stays
    compact).
    """
    value = time.time_ns() // 1_000_000 << 36 | secrets.randbits(36)
    return "act-" + "".join(_CROCKFORD[value >> shift & 31] for shift in range(75, -1, -5))


_log = logging.getLogger("settled")
_CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"


def outcome(call: Call, end: Answered | Waiting) -> Outcome:
    """Return what the caller is given for the end of a call."""
    if isinstance(end, Waiting):
        return _waiting(call, end.action)
    action = end.action
    is_of_earlier = (end.code in (Code.CONFLICT, Code.DUPLICATE, Code.REJECTED) and end.replayed) or end.differing
    facts = _facts(
        end.code,
        action,
        summary=call.plan.summary if end.code is Code.CONFLICT else action.summary,
        reason=end.reason,
        field=end.field,
        earlier_action_id=action.id if is_of_earlier else None,
        replayed=end.replayed,
        **({"differing": end.differing} | _of_call(call)),
    )
    return _told_of(action, facts, call.language, call.contract.messages)


def _code_word(end: Answered | Waiting) -> str:
    return str(Code.WAITING_FOR_APPROVAL if isinstance(end, Waiting) else end.code)


def _waiting(call: Call, action: Action) -> Outcome:
    facts = _facts(Code.WAITING_FOR_APPROVAL, action)
    return _told_of(action, facts, call.language, call.contract.messages)


def _of_call(call: Call) -> dict[str, Any]:
    """Return what there is to tell of a person's change of what a call asked for, if there was one."""
    if call.instead_of is None:
        return {}
    return _of_change(call.instead_of, json_values(call.plan.arguments), call.contract.secrets)


def _of_change(
    original: Action, arguments: Mapping[str, object], secret: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Return what there is to tell of a person's change: which request it was, and what is different now."""
    old, new = (
        {k: v for k, v in one.items() if k not in secret and not is_sealed(v)}
        for one in (original.arguments, arguments)
    )
    return {"instead_of": original.summary, "supersedes": original.id, "differing": differing(old, new)}


def invalid(contract: Contract, error: InvalidArguments, language: str) -> Outcome:
    """Return the answer to a call that breaks a rule: nothing was sent and no row was written."""
    named = contract.name.replace("_", " ")
    facts = Facts(code=Code.INVALID, summary=named, action_id="", state="", reason=error.rule, field=error.field)
    return _told(facts, language, contract.messages)


def unrecorded(call: Call, *, invoked: bool) -> Outcome:
    """Return the answer for a ledger that went away: before the body was called nothing happened; after it nobody
    knows. (The traceback goes to the log: a model cannot cure it.)
    """
    _log.error("the ledger did not answer for %s", call.plan.id, exc_info=True)
    plan, language, messages = call.plan, call.language, call.contract.messages
    if not invoked:
        return _told(Facts(Code.UNAVAILABLE, plan.summary, action_id="", state=""), language, messages)
    told = _told(Facts(Code.UNKNOWN, plan.summary, action_id=plan.id, state=State.UNKNOWN), language, messages)
    return replace(told, state=State.UNKNOWN, idempotency_key=plan.idempotency_key)


def recalled(action: Action, language: str, instead_of: Action | None = None) -> Outcome:
    """Return what is known of an action whose own call can no longer be carried on: its tool was renamed or changed
    since, or nobody goes on with it. `instead_of` is the one that the call asked for, where a person has changed it.

    Of an action that was changed itself, no more is known than that another one goes on in its place.
    """
    more: dict[str, Any] = {} if instead_of is None else _of_change(instead_of, action.arguments)
    if action.superseded_by is not None:
        more |= {"action_id": action.superseded_by, "state": ""}
    return _told_of(action, _facts(_code_of(action), action, replayed=True, **more), language, {})


def _code_of(action: Action) -> Code:
    if action.superseded_by is not None:
        return Code.IN_PROGRESS
    match action.state:
        case State.PLANNED:
            return Code.WAITING_FOR_APPROVAL
        case State.APPROVED | State.RUNNING:
            return Code.IN_PROGRESS
        case State.UNKNOWN:
            return Code.MANUAL_REVIEW if action.escalated_at else Code.UNKNOWN
        case State.SUCCEEDED:
            return Code.SUCCEEDED
        case State.COMPENSATION_PENDING | State.COMPENSATED:
            return Code.DUPLICATE
        case State.FAILED | State.CANCELLED:
            return closed_code(action)
        case _:
            assert_never(action.state)


def _facts(code: Code, action: Action, **more: Any) -> Facts:
    return Facts(
        code=code,
        **{
            "summary": action.summary,
            "action_id": action.id,
            "state": action.state,
            "receipt": action.receipt,
            "result": readable(action.result),
            "attempts": action.attempt,
            "reason": action.reason,
            "is_withdrawn": action.code == WITHDRAWN,
            "by_person": action.evidence == "person",
            "is_stopped": was_stopped(action),
            **_deciding(action),
            **more,
        },
    )


def _deciding(action: Action) -> dict[str, Any]:
    """Return who decides or decided, and until when: of an action that waits, whom its policy names."""
    until = action.asked_until.isoformat(timespec="seconds") if action.asked_until else None
    if action.state is State.CANCELLED and action.code != Code.EXPIRED:
        return {"approver": action.approver, "until": until}
    named: Any = (action.asking or {}).get("approvers", ())
    return {"approver": ", ".join(map(str, named)) or None, "until": until}


def of_read(contract: Contract, end: ReadEnd, call: Call) -> Outcome:
    """Return what the caller of a read is given."""
    facts = Facts(
        code=end.code, summary=call.plan.summary, action_id="", state="", result=readable(end.result),
        reason=end.reason, attempts=end.attempts,
    )  # fmt: skip
    return _told(facts, call.language, contract.messages)


def _told_of(action: Action, facts: Facts, language: str, templates: Mapping[str, str]) -> Outcome:
    told = _told(facts, language, templates)
    return replace(told, state=action.state, idempotency_key=action.idempotency_key)


def _told(facts: Facts, language: str, templates: Mapping[str, str]) -> Outcome:
    return Outcome(
        state=None,
        code=Code.CHANGED_BY_PERSON if facts.instead_of is not None else facts.code,
        action_id=facts.action_id or None,
        idempotency_key=None,
        receipt=facts.receipt,
        result=facts.result,
        replayed=facts.replayed,
        attempts=facts.attempts,
        told=Told(facts, language, templates),
    )


def _decision(options: Options, contract: Contract, model: BaseModel, repeat_of: str | None) -> bytes | None:
    """Return the digest of a decision with the arguments that were given for it. Defaults take no part: a tool that has
    got a new optional argument since must still meet the action of an old message.
    """
    if options.decision is None:
        return None
    parts: object = [options.decision] if isinstance(options.decision, str) else options.decision
    if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
        raise InvalidArguments("decision", "must be a text, or several")
    if repeat_of is not None:  # the same tool call with `repeat_of` put in asks for something else
        parts = [*parts, "repeat_of", repeat_of]
    given = {name: value for name, value in args.values_of(model).items() if name in model.model_fields_set}
    fingerprint = canonical.fingerprint_of(canonical.arguments_bytes(given, contract.annotations))
    return canonical.decision_digest(options.tenant, [options.thread_id, contract.name, *parts], fingerprint)


MAX_NAME_CHARS = 512
"""Tenants, threads, requesters and correlation ids are names in every row and index."""


def _check_names(**names: object) -> None:
    for name, value in names.items():
        if not isinstance(value, str) or not value:
            raise InvalidArguments(name, "must be a text that is not empty")
        if len(value) > MAX_NAME_CHARS or not value.isprintable():
            raise InvalidArguments(name, f"must be at most {MAX_NAME_CHARS} printable characters")
