"""Carries out the effects of the protocol: two drivers, sync and async, and no rules.

Both let a body go at its timeout and hand its late reply to the protocol; both finish what must be recorded when the
caller is cancelled, and raise the cancellation afterwards. A ledger query is never cut short: the answer to "is it
written?" must be known.
"""

import asyncio
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar, assert_never, cast

from settled.state.errors import InvalidArguments, SettledError
from settled.state.model import Action, Claim
from settled.state.store import Ledger
from settled.tools import bodies, tracing
from settled.tools.after import encoded
from settled.tools.attempt import (
    answer_of,
    context_of,
    done_of,
    inquiry_of,
    is_as_approved,
    is_control_flow,
    outcome_of_raise,
    outcome_of_return,
    restored,
    timeout_of,
)
from settled.tools.context import CURRENT, ActionContext, named_in_logs
from settled.tools.contract import Contract, Inquiry, QueryFunction
from settled.tools.effects import (
    Answer,
    Ask,
    Effect,
    Emit,
    Inconclusive,
    Invoke,
    Judge,
    Probe,
    Read,
    Sleep,
    Steps,
    Stopped,
)
from settled.tools.leases import keeper_of
from settled.tools.outcome import AttemptOutcome, Ended, Forbidden, Refused, Unknown, Unreadable
from settled.tools.policy import Deny, PlannedAction, Policy, Verdict
from settled.tools.protocol import late
from settled.tools.result import readable
from settled.tools.storable import storable

R = TypeVar("R")
AnyFuture: TypeAlias = "Future[Any] | asyncio.Future[Any]"
TIMED_OUT = Unknown("no answer within its time")
_NO_ANSWER = Inconclusive("the query did not answer within its time")
_BACKGROUND: set["asyncio.Task[None]"] = set()
"""Keeps the recorders of late replies alive: an event loop holds its tasks only weakly."""

_log = logging.getLogger("settled")


@dataclass(frozen=True)
class World:
    """Time as the drivers meet it, and a place to look on; a test passes its own.

    `watch(effect, when)` is called "before" and "after" each effect: the instants at which a process may die.
    """

    sleep: Callable[[float], None] = time.sleep
    asleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    monotonic: Callable[[], float] = time.monotonic
    watch: Callable[[Effect, str], None] | None = None


REAL = World()


@dataclass(frozen=True, slots=True)
class _Carried:
    """What came of an effect: an answer, or a fault to be thrown into the steps; and a signal that stops the call."""

    answer: Any = None
    fault: BaseException | None = None
    stop: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Ready:
    """What a body is called with, and for how long."""

    values: dict[str, Any]
    timeout_s: float


class _End(Generic[R]):
    """How far a run of steps has come: its first signal, and its result."""

    def __init__(self) -> None:
        self.stop: BaseException | None = None
        self._result: R | None = None

    def next_of(self, steps: Steps[R], carried: _Carried) -> Effect | None:
        """Hand the steps what came of their last effect; return the next one, or None at their end."""
        self.stop = self.stop or carried.stop
        try:
            return steps.send(carried.answer) if carried.fault is None else steps.throw(carried.fault)
        except StopIteration as end:
            self._result = end.value
            return None
        except Exception as error:
            if self.stop is not None:
                raise self.stop from error
            raise

    def result(self) -> R:
        """Return what the steps returned; or raise the signal, now that all is recorded."""
        if self.stop is not None:
            raise self.stop
        return cast("R", self._result)


def _failed(effect: Effect, error: BaseException) -> _Carried:
    """Return what an effect that raised means. A signal (cancellation, an interrupt) may have left a body under way."""
    if is_control_flow(error):
        return _Carried(Stopped(isinstance(effect, Invoke | Read)), stop=error)
    return _Carried(fault=error)


class Runner:
    """Carries out the steps of one call. `invoked` tells whether its body was ever called. Without a contract it can
    only ask the ledger.
    """

    def __init__(self, contract: Contract | None, store: Ledger, world: World = REAL) -> None:
        self._contract = contract
        self.store = store
        self.world = world
        self.invoked = False
        self._asked_at = world.monotonic()

    @property
    def contract(self) -> Contract:
        """The tool that is called; steps that only ask the ledger need none."""
        assert self._contract is not None, "only what asks the ledger runs without a contract"
        return self._contract

    def drive(self, steps: Steps[R]) -> R:
        """Carry steps out to their end in this thread."""
        end = _End[R]()
        step = end.next_of(steps, _Carried())
        while step is not None:
            carried = self._carry_out(step, stopped=end.stop is not None)
            step = end.next_of(steps, carried)
        return end.result()

    async def adrive(self, steps: Steps[R]) -> R:
        """Carry steps out to their end in this event loop."""
        end = _End[R]()
        step = end.next_of(steps, _Carried())
        while step is not None:
            carried = await self._acarry_out(step, stopped=end.stop is not None)
            step = end.next_of(steps, carried)
        return end.result()

    def _carry_out(self, effect: Effect, *, stopped: bool) -> _Carried:
        self._watch(effect, "before")
        try:
            carried = _Carried(Stopped(False) if stopped and not isinstance(effect, Ask) else self._perform(effect))
        except BaseException as error:  # noqa: BLE001 - an error is thrown into the steps, a signal stops them
            carried = _failed(effect, error)
            if isinstance(effect, Ask) and carried.stop is not None:
                carried = self._ask_again(effect, carried.stop)
        self._watch(effect, "after")
        return carried

    def _ask_again(self, effect: Ask[Any], stop: BaseException) -> _Carried:
        """A statement was interrupted: it may be done, and may be sent twice, so it is sent for its answer."""
        try:
            return _Carried(self._perform(effect), stop=stop)
        except SettledError as error:
            return _Carried(fault=error, stop=stop)

    async def _acarry_out(self, effect: Effect, *, stopped: bool) -> _Carried:
        self._watch(effect, "before")
        try:
            if isinstance(effect, Ask):
                carried = await self._ask_to_the_end(effect)
            else:
                carried = _Carried(Stopped(False) if stopped else await self._aperform(effect))
        except BaseException as error:  # noqa: BLE001 - as in _carry_out
            carried = _failed(effect, error)
        self._watch(effect, "after")
        return carried

    def _watch(self, effect: Effect, when: str) -> None:
        if self.world.watch is not None:
            self.world.watch(effect, when)

    def _perform(self, effect: Effect) -> Any:
        match effect:
            case Ask(query=query):
                self._asked_at = self.world.monotonic()
                return self.store.run(query)
            case Invoke(action=action, claim=claim):
                with tracing.attempt(action) as span:
                    return span.ended(self._invoke(action, claim))
            case Read(values=values):
                return self._read(dict(values))
            case Probe(action=action, values=values):
                with tracing.query(action) as span:
                    return span.ended(self._probe(action, values))
            case Judge(policy=policy, planned=planned):
                return self._judge(policy, planned)
            case Emit(action=action, receipt=receipt, result=result):
                return self._emit(action, receipt, result)
            case Sleep(seconds=seconds):
                return self.world.sleep(seconds)
            case _:
                assert_never(effect)

    async def _aperform(self, effect: Invoke | Read | Probe | Judge | Emit | Sleep) -> Any:
        match effect:
            case Invoke(action=action, claim=claim):
                with tracing.attempt(action) as span:
                    return span.ended(await self._ainvoke(action, claim))
            case Read(values=values):
                return await self._aread(dict(values))
            case Probe(action=action, values=values):
                with tracing.query(action) as span:
                    return span.ended(await self._aprobe(action, values))
            case Judge(policy=policy, planned=planned):
                return await self._ajudge(policy, planned)
            case Emit(action=action, receipt=receipt, result=result):
                return await self._aemit(action, receipt, result)
            case Sleep(seconds=seconds):
                return await self.world.asleep(seconds)
            case _:
                assert_never(effect)

    async def _ask_to_the_end(self, effect: Ask[Any]) -> _Carried:
        """Carry out a query although the caller is cancelled meanwhile: whether it is written must be known."""
        self._asked_at = self.world.monotonic()
        asking = asyncio.ensure_future(self.store.arun(effect.query))
        stop: BaseException | None = None
        while not asking.done():
            try:
                await asyncio.wait({asking})
            except asyncio.CancelledError as error:
                stop = error
        if asking.cancelled():  # the event loop itself is ending: nobody will hear the answer
            return _Carried(fault=asyncio.CancelledError())
        fault = asking.exception()
        return _Carried(asking.result() if fault is None else None, fault, stop)

    def _invoke(self, action: Action, claim: Claim) -> AttemptOutcome:
        ready = self._ready(action)
        if not isinstance(ready, _Ready):
            return ready
        with self._attempt(action, claim, ready.timeout_s) as context:
            body = bodies.start(self.contract.function, **ready.values)
            try:
                body.exception(ready.timeout_s)
            except FutureTimeout:
                if not body.done():
                    body.add_done_callback(lambda done: self._came_late(action, claim, done, context))
                    return TIMED_OUT
            except BaseException:
                body.add_done_callback(lambda done: self._came_late(action, claim, done, context))
                raise
        return self._ended(body, context)

    async def _ainvoke(self, action: Action, claim: Claim) -> AttemptOutcome:
        ready = self._ready(action)
        if not isinstance(ready, _Ready):
            return ready
        with self._attempt(action, claim, ready.timeout_s) as context:
            body = asyncio.ensure_future(bodies.astart(self.contract.function, **ready.values))
            try:
                await asyncio.wait({body}, timeout=ready.timeout_s)
            except asyncio.CancelledError:
                self._let_go(action, claim, body, context)
                raise
        if body.done():
            return self._ended(body, context)
        self._let_go(action, claim, body, context)
        return TIMED_OUT

    def _ready(self, action: Action) -> _Ready | Unknown | Refused | Forbidden:
        """Return what the body is called with; or the end of an attempt that cannot be made."""
        try:
            values = restored(self.contract, action, self.store)
            if action.asking is not None and not is_as_approved(self.contract, action, values):
                return Forbidden("its stored arguments are not those that were approved")
        except InvalidArguments as error:
            return _unreadable(error)
        timeout_s = self._time_left(action)
        return _Ready(values, timeout_s) if timeout_s > 0 else Refused("its time was over before it was called")

    def _time_left(self, action: Action) -> float:
        """Return the seconds that an attempt may still take. They run from its beginning, as its settle window does,
        and not from when this process gets round to it.
        """
        begins_s = (action.started_at - action.now).total_seconds() if action.started_at else 0.0
        return self._asked_at + begins_s + timeout_of(self.contract, action) - self.world.monotonic()

    @contextmanager
    def _attempt(self, action: Action, claim: Claim, timeout_s: float) -> Generator[ActionContext]:
        """Hold the lease and set the context while a body runs."""
        self.invoked = True
        # By the row and not by the contract: a refused attempt's lease spans the wait before the next one as well.
        left_s = (action.lease_until - action.now).total_seconds() if action.lease_until else 0.0
        context = context_of(action, claim, lease_ends=self._asked_at + left_s, timeout_s=timeout_s)
        with keeper_of(self.store).holding(claim, self.contract.lease_s, context), _current(context):
            yield context

    def _ended(self, body: AnyFuture, context: ActionContext | None) -> AttemptOutcome:
        """Read the end of a body that has ended; a signal travels on."""
        if body.cancelled():
            return Unknown("the body was cancelled")
        error = body.exception()
        if error is None:
            return outcome_of_return(self.contract, body.result())
        if is_control_flow(error):
            raise error
        outcome = outcome_of_raise(error, context)
        if isinstance(outcome, Unknown) and not isinstance(error, Ended):
            _report(self.contract.name, error, context)
        return outcome

    def _came_late(self, action: Action, claim: Claim, body: "Future[Any]", context: ActionContext) -> None:
        """Record a reply after the timeout, in the thread that brought it."""
        try:
            self.drive(late(self.contract, action, claim, self._ended(body, context)))
        except Exception:  # noqa: BLE001 - nobody waits for this thread; the action stays unknown and is reconciled
            _log.exception("the late reply of %s could not be recorded", claim.action_id)
        except BaseException as signal:  # noqa: BLE001 - a signal has nowhere to travel from here
            _log.info("the body of %s ended late with %s", claim.action_id, type(signal).__name__)

    def _let_go(self, action: Action, claim: Claim, body: "asyncio.Future[Any]", context: ActionContext) -> None:
        """Let an async body go on alone until its settle window is over, and record what it brings."""
        left_s = max(self.contract.settle_window_s - self.contract.timeout_s, 0.0)
        ending = asyncio.get_running_loop().call_later(left_s, body.cancel)

        async def record() -> None:
            try:
                await asyncio.wait({body})
                ending.cancel()
                await self.adrive(late(self.contract, action, claim, self._ended(body, context)))
            except Exception:  # noqa: BLE001 - as in _came_late
                _log.exception("the late reply of %s could not be recorded", claim.action_id)

        task = asyncio.ensure_future(record())
        _BACKGROUND.add(task)
        task.add_done_callback(_BACKGROUND.discard)

    def _read(self, values: dict[str, Any]) -> AttemptOutcome:
        body = bodies.start(self.contract.function, **values)
        wait([body], self.contract.timeout_s)
        return self._ended(body, None) if body.done() else TIMED_OUT

    async def _aread(self, values: dict[str, Any]) -> AttemptOutcome:
        body = asyncio.ensure_future(bodies.astart(self.contract.function, **values))
        await _within(body, self.contract.timeout_s)
        return self._ended(body, None) if body.done() else TIMED_OUT

    def _probe(self, action: Action, values: Mapping[str, object]) -> Answer:
        with self._asking(action, values) as inquiry:
            query = bodies.start(self._query, inquiry)
            wait([query], self.contract.timeout_s)
        return _answered(query) if query.done() else _NO_ANSWER

    async def _aprobe(self, action: Action, values: Mapping[str, object]) -> Answer:
        with self._asking(action, values) as inquiry:
            query = asyncio.ensure_future(bodies.astart(self._query, inquiry))
            await _within(query, self.contract.timeout_s)
        return _answered(query) if query.done() else _NO_ANSWER

    def _judge(self, policy: Policy, planned: PlannedAction) -> Verdict:
        judging = bodies.start(policy, planned)
        wait([judging], self.contract.timeout_s)
        return _verdict(judging)

    async def _ajudge(self, policy: Policy, planned: PlannedAction) -> Verdict:
        judging = asyncio.ensure_future(bodies.astart(policy, planned))
        await _within(judging, self.contract.timeout_s)
        return _verdict(judging)

    def _emit(self, action: Action, receipt: str | None, result: object) -> str | None:
        emitting = bodies.start(self._emits, action, receipt, result)
        wait([emitting], self.contract.timeout_s)
        return _made(self.contract.name, emitting)

    async def _aemit(self, action: Action, receipt: str | None, result: object) -> str | None:
        emitting = asyncio.ensure_future(bodies.astart(self._emits, action, receipt, result))
        await _within(emitting, self.contract.timeout_s)
        return _made(self.contract.name, emitting)

    def _emits(self, action: Action, receipt: str | None, result: object) -> str:
        """Make the messages as they would be made later: from what the ledger keeps."""
        emits, kept = self.contract.emits, json.loads(storable(result))
        assert emits is not None, "messages are made only where there are some"
        values = restored(self.contract, action, self.store)
        return encoded(emits(done_of(action, values, receipt, readable(kept))))

    @property
    def _query(self) -> QueryFunction:
        query = self.contract.query
        assert query is not None, "reconcile asks only where there is a query"
        return query

    @contextmanager
    def _asking(self, action: Action, values: Mapping[str, object]) -> Generator[Inquiry]:
        """Set the context of a query: its requests count for no attempt, and no lease bounds them."""
        claim = Claim(action.tenant, action.id, action.fencing_token, "")
        with _current(context_of(action, claim, lease_ends=math.inf, timeout_s=self.contract.timeout_s)):
            with suppress(InvalidArguments):  # the tool has changed since, or a secret's key is not here
                values = restored(self.contract, action, self.store)
            yield inquiry_of(action, values)


@contextmanager
def _current(context: ActionContext) -> Generator[None]:
    token = CURRENT.set(context)
    try:
        yield
    finally:
        CURRENT.reset(token)


async def _within(task: "asyncio.Future[Any]", timeout_s: float) -> None:
    """Wait for a task that nobody needs any longer than this, and cancel it then, or when the caller is cancelled."""
    try:
        await asyncio.wait({task}, timeout=timeout_s)
    finally:
        if not task.done():
            task.cancel()


def _unreadable(error: InvalidArguments) -> Unknown:
    """Return the end of an attempt that cannot be made here. It says nothing about the action: a person decides."""
    return Unknown(f"its stored arguments cannot be read here ({error})", cause=Unreadable)


def _report(tool: str, error: BaseException, context: ActionContext | None) -> None:
    """Tell the log what a body raised; the model hears no more than a class name. A broken connection is what the
    ledger is for, and takes a line; anything else may be a fault of the body, and shows where.
    """
    is_connection = isinstance(error, OSError) or type(error).__module__.startswith(("httpx", "httpcore"))
    said = "the body of %s raised %s: what became of it is not known yet"
    named = named_in_logs(context) if context else {}
    _log.warning(said, tool, type(error).__name__, exc_info=None if is_connection else error, extra=named)


def _verdict(judging: AnyFuture) -> Verdict:
    """Return what a policy said; one that fails, answers something else or nothing in its time permits nothing."""
    if not judging.done() or judging.cancelled():
        return Deny("the policy did not answer within its time")
    error = judging.exception()
    if error is None:
        found = judging.result()
        return found if isinstance(found, Verdict) else Deny(f"the policy answered {type(found).__name__}")
    if is_control_flow(error):
        raise error
    _log.error("a policy raised", exc_info=error)
    return Deny(f"the policy could not be asked ({type(error).__name__})")


def _made(tool: str, emitting: AnyFuture) -> str | None:
    """Return the messages that were made; None, said in the log, where the author's function did not make them. The
    success is written all the same, and they are made later.
    """
    if not emitting.done() or emitting.cancelled():
        _log.error("%s: emits did not end within its time; its messages are made later", tool)
        return None
    error = emitting.exception()
    if error is None:
        messages: str = emitting.result()
        return messages
    if is_control_flow(error):
        raise error
    _log.error("%s: emits raised; its messages are made later", tool, exc_info=error)
    return None


def _answered(query: AnyFuture) -> Answer:
    error = query.exception()
    if error is None:
        return answer_of(query.result())
    if is_control_flow(error):
        raise error
    _log.warning("a query raised", exc_info=error)
    return Inconclusive(f"the query did not answer ({type(error).__name__})")
