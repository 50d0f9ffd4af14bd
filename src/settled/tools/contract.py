"""What an author declares about a tool, once: everything else follows from it.

Owns the `Contract`, its checks at decoration (a contradiction is refused with a sentence that says how to fix it),
and the LangChain tool that carries it. Knows nothing of LangGraph. The subtle thing: the LangChain tool's own
`invoke` refuses an action, because a plain tool node that calls it would bypass the ledger.
"""

import hashlib
import inspect
import sys
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import cached_property, wraps
from typing import Any, Literal, TypeAlias, TypeVar

from langchain_core.tools import BaseTool
from pydantic import BaseModel, PrivateAttr, TypeAdapter, ValidationError

from settled.state.canonical import Incidental, marked
from settled.state.errors import ContractError, Unguarded
from settled.state.secrets import HIDDEN
from settled.tools import arguments
from settled.tools.after import Compensation, Emits, as_compensation
from settled.tools.backoff import Backoff
from settled.tools.budget import Budget
from settled.tools.context import CURRENT
from settled.tools.declared import check_summary, check_types, name_of
from settled.tools.effects import Answer
from settled.tools.injected import injected_of, kind_of
from settled.tools.messages import check_templates
from settled.tools.policy import Policy, as_policy
from settled.tools.relay import RELAY, Relay


class Risk(StrEnum):
    """What a repeat of the call would do."""

    READ = "read"
    IDEMPOTENT_WRITE = "idempotent_write"
    NON_IDEMPOTENT_WRITE = "non_idempotent_write"


class Remote(StrEnum):
    """What the far side guarantees: it recognises a repeated key, it can be asked, or neither."""

    DEDUPES = "dedupes"
    QUERYABLE = "queryable"
    OPAQUE = "opaque"


class ContractWarning(UserWarning):
    """A declaration that works but will surprise: it says what to change."""


@dataclass(frozen=True)
class Inquiry:
    """What the author's query is given: the action whose outcome nobody knows, with its arguments, secrets too."""

    action_id: str
    idempotency_key: str
    fingerprint: str
    tenant: str
    thread_id: str
    attempt: int
    arguments: Mapping[str, Any] = field(repr=False)


QueryFunction: TypeAlias = Callable[[Inquiry], Answer | Awaitable[Answer]]
ReceiptOf: TypeAlias = str | Callable[[Any], str | None]

LEASE_MARGIN_S = 5.0
"""The default lease outlives the timeout by this, so that an attempt that timed out is recorded by its own owner."""


@dataclass(frozen=True, kw_only=True)
class Contract:
    """One tool's declaration. Spans are seconds; `action` says what each part means."""

    name: str
    function: Callable[..., Any]
    schema: type[BaseModel]
    risk: Risk
    remote: Remote
    identity: tuple[str, ...]
    unique: tuple[str, ...]
    query: QueryFunction | None
    resend_when_absent: bool
    timeout_s: float
    deadline_s: float
    lease_s: float
    max_attempts: int
    backoff: Backoff
    settle_window_s: float
    window_s: float
    receipt: ReceiptOf
    summary: str | Mapping[str, str] | None
    messages: Mapping[str, str]
    annotations: Mapping[str, Any] = field(repr=False)
    secrets: frozenset[str]
    approval: tuple[Policy, ...] = ()
    budgets: tuple[Budget, ...] = ()
    compensate: Compensation | None = None
    emits: Emits | None = None
    injected: Mapping[str, object] = field(default_factory=dict, repr=False)

    @property
    def is_read(self) -> bool:
        """Whether the tool has no side effect, and so needs no ledger row."""
        return self.risk is Risk.READ

    @cached_property
    def version(self) -> str:
        """A short digest of what an action's stored arguments and keys depend on."""
        parts = [
            self.name,
            self.risk,
            self.remote,
            *self.identity,
            "/",
            *self.unique,
            str(sorted(self.schema.model_fields)),
        ]
        return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:8]

    def as_argument(self, field: str, value: object) -> object:
        """Return a value from elsewhere (a found object) as this field would hold it; as it is, where it does not
        fit.
        """
        if field not in self.annotations:
            return value
        try:
            return self._adapters[field].validate_python(value)
        except ValidationError:
            return value

    @cached_property
    def _adapters(self) -> dict[str, TypeAdapter[Any]]:
        return {name: TypeAdapter(hint) for name, hint in self.annotations.items()}

    def summarize(self, values: Mapping[str, object], language: str) -> str:
        """Return what a person reads as the name of this call: the author's `summary`, or the identity arguments where
        there is none, or where it does not suit a value (`{amount:.2f}` and None).
        """
        given = {k: v for k, v in values.items() if not isinstance(v, arguments.LeftOut)}
        shown = {k: HIDDEN if k in self.secrets else v for k, v in given.items()}
        template = (
            self.summary
            if isinstance(self.summary, str | None)
            else self.summary.get(language) or self.summary.get("en")
        )
        if template is not None:
            with suppress(
                Exception
            ):  # any type may have its own way to refuse a format, and a name must not stop a call
                return template.format_map(shown)
        named = ", ".join(f"{k} {shown[k]}" for k in self.identity if k in shown)
        return f"{self.name.replace('_', ' ')} ({named})" if named else self.name.replace("_", " ")


class ActionTool(BaseTool):
    """A LangChain tool (name, description, schema, usable with `bind_tools`) that carries a contract."""

    _contract: Contract = PrivateAttr()

    @property
    def contract(self) -> Contract:
        """What the author declared."""
        return self._contract

    @property
    def func(self) -> Callable[..., Any]:
        """The function of a read with injected parameters, as LangGraph's own tool node looks for them."""
        if not (self._contract.is_read and self._contract.injected):
            raise AttributeError("func")
        return self._contract.function

    @cached_property
    def _injected_args_keys(self) -> frozenset[str]:  # LangChain's own: what is kept from those who listen
        return frozenset(self._contract.injected)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if (relay := self._relay) is not None:
            return relay.run()
        if not self._contract.is_read:
            raise Unguarded(self._how_to_run())
        return self._contract.function(*args, **kwargs)

    async def _arun(self, *args: Any, **kwargs: Any) -> Any:
        if (relay := self._relay) is not None:
            return await relay.arun()
        returned = self._run(*args, **kwargs)
        return await returned if inspect.isawaitable(returned) else returned

    @property
    def _relay(self) -> Relay | None:
        """The attempt that this call is part of, where it was called by way of a tool node."""
        relay = RELAY.get()
        return relay if relay is not None and relay.tool == self._contract.name else None

    def _to_args_and_kwargs(
        self, tool_input: str | dict[str, Any], tool_call_id: str | None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:  # LangChain's own: what `_run` is called with
        if self._relay is not None:  # the attempt has its arguments from the ledger
            return (), {}
        hidden = self._contract.injected
        if not hidden or isinstance(tool_input, str):
            return super()._to_args_and_kwargs(tool_input, tool_call_id)
        model_given = {name: value for name, value in tool_input.items() if name not in hidden}
        args, kwargs = super()._to_args_and_kwargs(model_given, tool_call_id)
        kwargs |= {name: value for name, value in tool_input.items() if name in hidden}
        return args, kwargs | {n: tool_call_id for n, mark in hidden.items() if kind_of(mark) == "InjectedToolCallId"}

    def _how_to_run(self) -> str:
        return (
            f"{self.name} is an action: run it with settled.perform, or in an agent: settled.build_agent, "
            "settled.ActionMiddleware in create_agent, settled.ActionNode in place of a ToolNode"
        )


def action(
    *,
    risk: Literal["read", "idempotent_write", "non_idempotent_write"],
    remote: Literal["dedupes", "queryable", "opaque"] = "opaque",
    identity: Sequence[str] | Literal["all"] | None = None,
    unique: Sequence[str] | None = None,
    query: QueryFunction | None = None,
    resend_when_absent: bool = False,
    compensate: ActionTool | Compensation | None = None,
    approval: Policy | Sequence[Policy] | None = None,
    budgets: Sequence[Budget] = (),
    emits: Emits | None = None,
    timeout: float = 10.0,
    deadline: float = 30.0,
    lease: float | None = None,
    max_attempts: int = 6,
    backoff: Backoff | None = None,
    settle_window: float | None = None,
    window: timedelta = timedelta(hours=24),
    receipt: ReceiptOf = "receipt",
    summary: str | Mapping[str, str] | None = None,
    messages: Mapping[str, str] | None = None,
    name: str | None = None,
    description: str | None = None,
    args_schema: type[BaseModel] | None = None,
) -> Callable[[Callable[..., Any]], ActionTool]:
    """Declare a tool and what a call of it does; the result is a LangChain tool.

    `risk` says what a repeat would do, `remote` what the far side guarantees. A non-idempotent write names its
    `identity`: the fields that make two calls the same intent, or "all". `unique` is a business key: one open or
    succeeded action per tenant. `query(inquiry) -> Found | Absent | Inconclusive` asks the remote side what happened.
    `resend_when_absent` allows a resend on a remote side that does not dedupe, after absence is proved and under the
    lock of the business key. `timeout` and `deadline` are seconds of one attempt and of the whole; `lease` (default:
    timeout + 5) is how long a silent owner keeps the action; `settle_window` (default: 15, or the timeout + 5 if that
    is more) is how long a request may still take effect after it was begun. `receipt` is a field of the result or a
    function of it, `summary` a template over the arguments (`"refund of {amount} for {order}"`, or one per language),
    `messages` replaces what the model is told, by code. `approval` is a policy, or several, of which the first that
    does not allow decides (`settled.tools.policy`); `budgets` bound how often or how much. `args_schema` describes the
    arguments, with its validators, instead of the function's signature. `window` is how long an equal call of a
    conversation is the same one (what is open never leaves it); `max_attempts` and `backoff` bound and space what is
    refused; `name` and `description` are by default the function's own.

    `compensate` is the action that undoes this one (or a `Compensation`, which says with what arguments), and
    `emits(done) -> Message | [Message, ...] | None` makes messages that are committed with the success (both in
    `settled.tools.after`).

    Raises ContractError for a contradiction.
    """

    def declare(function: Callable[..., Any]) -> ActionTool:
        tool_name = name_of(function, name)
        check_types(
            tool_name, identity=identity, unique=unique, query=query, resend_when_absent=resend_when_absent,
            timeout=timeout, deadline=deadline, lease=lease, max_attempts=max_attempts, backoff=backoff,
            settle_window=settle_window, window=window, receipt=receipt, summary=summary, messages=messages,
            description=description, approval=approval, budgets=budgets, args_schema=args_schema, emits=emits,
        )  # fmt: skip
        kind = _member(Risk, risk, tool_name, "risk")
        schema = arguments.schema_for(function, args_schema, tool_name, repeatable=kind is not Risk.READ)
        hints = arguments.annotations_of(schema)
        contract = Contract(
            name=tool_name,
            function=function if kind is Risk.READ else _guarded(function, tool_name),
            schema=schema,
            risk=kind,
            remote=_member(Remote, remote, tool_name, "remote"),
            identity=_identity(identity, hints),
            unique=tuple(unique or ()),
            query=query,
            resend_when_absent=resend_when_absent,
            timeout_s=timeout,
            deadline_s=deadline,
            lease_s=timeout + LEASE_MARGIN_S if lease is None else lease,
            max_attempts=max_attempts,
            backoff=backoff or Backoff(),
            settle_window_s=max(15.0, timeout + LEASE_MARGIN_S) if settle_window is None else settle_window,
            window_s=window.total_seconds(),
            receipt=receipt,
            summary=summary,
            messages=dict(messages or {}),
            annotations=hints,
            secrets=arguments.secret_fields(hints),
            approval=_policies(approval),
            budgets=tuple(budgets),
            compensate=as_compensation(compensate),
            emits=emits,
            injected=injected_of(function, tool_name),
        )
        check_summary(tool_name, summary, list(hints))
        check_templates(contract.messages)
        check(contract, identity_given=identity is not None)
        tool = ActionTool(
            name=tool_name, description=description or inspect.getdoc(function) or tool_name, args_schema=schema
        )
        tool._contract = contract
        return tool

    return declare


def _guarded(function: Callable[..., Any], tool_name: str) -> Callable[..., Any]:
    """Return the body with a guard: it runs as an attempt of its own action, and for nobody else. (A body that calls
    the body of another tool would act past the ledger, and past whoever has to approve it.)
    """

    def check() -> None:
        context = CURRENT.get()
        if context is None or context.tool != tool_name:
            raise Unguarded(f"the body of {tool_name} was called outside its action: run it with settled.perform")

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        check()
        return function(*args, **kwargs)

    @wraps(function)
    async def aguarded(*args: Any, **kwargs: Any) -> Any:
        check()
        return await function(*args, **kwargs)

    return aguarded if inspect.iscoroutinefunction(function) else guarded


def _policies(given: Policy | Sequence[Policy] | None) -> tuple[Policy, ...]:
    if given is None:
        return ()
    return tuple(as_policy(one) for one in (given if isinstance(given, Sequence) else [given]))


def contract_of(tool: object) -> Contract:
    """Return a tool's contract; ContractError for a tool that was not declared with @action."""
    if isinstance(tool, ActionTool):
        return tool.contract
    named = getattr(tool, "name", None) or getattr(tool, "__name__", None) or repr(tool)
    raise ContractError(
        f'{named} has no contract: declare it with @action(risk=...); a tool without side effects is risk="read"'
    )


def check(c: Contract, *, identity_given: bool) -> None:
    """Refuse a contract that contradicts itself; warn about one that will surprise."""
    for wrong, how_to_fix in _contradictions(c, identity_given):
        if wrong:
            raise ContractError(f"{c.name}: {how_to_fix}")
    for surprise in _surprises(c):
        warnings.warn(f"{c.name}: {surprise}", ContractWarning, stacklevel=_declared_at())


_OURS = ("settled.tools.", "settled.graph.chain")
"""Where a declaration passes through on its way here."""


def _declared_at() -> int:
    """Return how many calls away the declaration is: that of `@action`, of a tool that was wrapped, or of a chain."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        frame, level = frame.f_back, level + 1
    return level


def _contradictions(c: Contract, identity_given: bool) -> list[tuple[bool, str]]:
    known = set(c.annotations)
    lost = [f for f in (*c.identity, *c.unique) if f not in known]
    incidental = [f for f in (*c.identity, *c.unique) if f in known and marked(c.annotations[f], Incidental)]
    write = not c.is_read
    weighed = [*(b.of for b in c.budgets if b.of), *(n for p in c.approval for n in getattr(p, "names", ()))]
    unnamed = [name for name in weighed if name not in known]
    counted = {b.name: b.of for b in c.budgets if b.of}
    uncounted = [f for f in counted.values() if f in known and marked(c.annotations[f], Incidental)]
    told = [f for f in counted.values() if f in c.secrets]
    torn = [b.name for b in c.budgets if b.of and b.name and counted[b.name] != b.of]
    return [
        (bool(lost), f"identity and unique name {lost}, which is not an argument; it takes {sorted(known)}"),
        (bool(incidental), f"{incidental} cannot be both incidental and part of identity or unique: drop one"),
        (
            c.risk is Risk.NON_IDEMPOTENT_WRITE and not identity_given,
            'a non-idempotent write must say what makes two calls the same: identity=("field", ...) or identity="all"',
        ),
        (
            write and c.remote is Remote.QUERYABLE and c.query is None,
            'remote="queryable" needs query=: a function that asks the remote side; or say remote="opaque"',
        ),
        (
            c.is_read and bool(c.query or c.unique or c.resend_when_absent or identity_given),
            "a read has no identity, unique, query or resend: it may be called again freely; drop them",
        ),
        (
            c.resend_when_absent and not (c.remote is Remote.QUERYABLE and c.unique),
            'resend_when_absent needs remote="queryable" and unique=(...): it resends under the lock of that key',
        ),
        (
            c.is_read and bool(c.approval or c.budgets),
            "a read has no side effect, and so no approval and no budget: drop them, or declare it a write",
        ),
        (
            c.is_read and bool(c.compensate or c.emits),
            "a read has no side effect: there is nothing to compensate and nothing to emit; drop them",
        ),
        (bool(unnamed), f"approval and budgets name {unnamed}, which is not an argument; it takes {sorted(known)}"),
        (bool(uncounted), f"a budget cannot count {uncounted}: an incidental argument does not tell two calls apart"),
        (bool(told), f"a budget cannot count {told}: how much of it is used is told, and a secret must not be"),
        (bool(torn), f"the budget {torn[:1]} counts two different arguments of it: give each a name of its own"),
        (c.max_attempts < 1, "max_attempts must be at least 1"),
        (not c.timeout_s > 0, "timeout must be more than 0 seconds"),
        (not c.deadline_s >= c.timeout_s, "deadline must not be below timeout: it spans all attempts"),
        (not c.timeout_s < c.lease_s, "timeout must be below lease: the owner must be able to record that it gave up"),
        (
            not c.settle_window_s >= c.timeout_s,
            "settle_window must not be below timeout: a request takes effect until then",
        ),
        (not c.window_s > 0, "window must be more than 0"),
    ]


def _surprises(c: Contract) -> list[str]:
    loose = [
        f"the text {text!r} is part of the fingerprint, and a model words it anew each time: mark it "
        "Annotated[str, Incidental()] (a wrapped tool takes markers=), constrain it, or name it in identity"
        for text in _loose_texts(c)
    ]
    nobody_asks = c.risk is Risk.NON_IDEMPOTENT_WRITE and c.remote is Remote.DEDUPES and c.query is None
    return [*loose, *([_NOBODY_ASKS] if nobody_asks else [])]


_NOBODY_ASKS = (
    "a lost reply goes to a person: nothing is sent again before the remote side was asked. Give it query=, a function "
    'that asks; or say remote="opaque" if it is to be like that'
)


def _loose_texts(c: Contract) -> list[str]:
    if c.risk is not Risk.NON_IDEMPOTENT_WRITE:
        return []
    return [
        name
        for name, info in c.schema.model_fields.items()
        if info.annotation is str and not info.metadata and name not in (*c.identity, arguments.REPEAT_OF)
    ]


def _identity(given: Sequence[str] | Literal["all"] | None, hints: Mapping[str, Any]) -> tuple[str, ...]:
    if given is None or given == "all":
        return tuple(name for name, hint in hints.items() if not marked(hint, Incidental))
    if not given:
        raise ContractError(
            'identity=() makes all calls one and the same: name the fields that tell them apart, or "all"'
        )
    return tuple(given)


E_ = TypeVar("E_", bound=StrEnum)


def _member(kind: type[E_], value: str, tool: str, parameter: str) -> E_:
    try:
        return kind(value)
    except ValueError:
        raise ContractError(f"{tool}: {parameter}={value!r} is none of {', '.join(kind)}") from None
