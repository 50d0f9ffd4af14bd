"""The rules of dispatching: what is taken, what is called for it, and what is written down of its end.

    due ─claim▶ under way ─acknowledged▶ delivered ─▶ the next message of its action is due
                    ├─ not acknowledged ─▶ due again after a growing wait, in the end a dead letter
                    └─ nobody says ─▶ due again when the lease is over

Steps that yield effects: a query, a call to begin, a wait for calls to end. Nothing is called within a transaction, and
a message is marked after its acknowledgement: a crash in between delivers it again. The subtle thing is the attempt: it
is counted when the message is taken, so a message that kills whoever delivers it is given up like any other.

Each lane (a topic, the rest, messages that must still be made) has a bound of its own on calls under way, and goes on
taking while another one waits: a slow sink holds back nobody else's messages.
"""

import inspect
import logging
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from settled.state import outbox
from settled.state.ledger import Query
from settled.state.outbox import Failed, Taken
from settled.state.store import Ledger
from settled.tools.after import encoded
from settled.tools.attempt import done_of, restored
from settled.tools.backoff import Backoff
from settled.tools.contract import Contract
from settled.tools.delivery import Delivery, Sink, Undelivered
from settled.tools.effects import Ask
from settled.tools.flights import Begin, Calls, Gather, Landed
from settled.tools.outcome import one_line
from settled.tools.result import readable

T = TypeVar("T")
R = TypeVar("R")
Steps: TypeAlias = Generator["Ask[Any] | Begin | Gather", Any, R]

REST = "*"
"""In the place of a topic: any that has no sink of its own."""

POLL_S = 0.5
"""Between looks for new messages while calls are under way."""

MAX_REASON_CHARS = 500
"""Of what a sink raised: it is read in a table, by whoever redrives the message."""

NO_END = "no attempt to deliver it came to an end"

_log = logging.getLogger("settled")


@dataclass(frozen=True, slots=True)
class Terms:
    """What a dispatcher was told at its making, and where its time and chance come from."""

    lease_s: float
    delivery_timeout_s: float
    max_attempts: int
    backoff: Backoff
    batch: int
    random: Callable[[], float]
    monotonic: Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatched:
    """What one batch did. `taken` is how many messages it took, the rest what became of them.

    `made`: their messages were still to be made, and are due now. `deferred`: not acknowledged, and due again later.
    `dead`: given up. `lost`: marked too late, somebody else has them.
    """

    taken: int = 0
    delivered: int = 0
    made: int = 0
    deferred: int = 0
    dead: int = 0
    lost: int = 0

    def __add__(self, other: "Dispatched") -> "Dispatched":
        return Dispatched(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})


@dataclass(frozen=True, slots=True)
class Lane:
    """One kind of messages: how they are taken, and what is called for each of them."""

    claim: Callable[..., Query[list[Taken]]]
    call: Callable[[Taken], Callable[[], Any]]
    calls: Calls


def topic_lane(topic: str, sink: Sink, *, at_once: int, named: Collection[str]) -> Lane:
    """Return the lane of a topic; `*` is any topic but the named ones."""
    claim = partial(outbox.claim_rest, named) if topic == REST else partial(outbox.claim, topic)
    return Lane(claim, partial(_delivering, _routine(sink)), Calls(at_once))


def making_lane(contracts: Mapping[str, Contract], store: Ledger, *, at_once: int) -> Lane:
    """Return the lane of actions whose messages could not be made when they succeeded, or whose success was written
    where the tool was not at hand.
    """
    return Lane(partial(outbox.claim_unmade, contracts.keys()), partial(_making, contracts, store), Calls(at_once))


def dispatching(
    terms: Terms, lanes: Sequence[Lane], *, owner: str, is_draining: Callable[[], bool]
) -> Steps[Dispatched]:
    """Take messages and deliver them until nothing is due, `batch` of them were taken, or the time of one delivery is
    over; what is under way then is waited for.
    """
    stops_at = terms.monotonic() + terms.delivery_timeout_s
    total, under_way = Dispatched(), 0
    while True:
        for lane in lanes:
            most = min(terms.batch - total.taken, lane.calls.room)
            if most > 0 and not is_draining() and terms.monotonic() < stops_at:
                begun, did = yield from _begun(terms, lane, most, owner)
                under_way, total = under_way + begun, total + did
        if not under_way:
            return total
        landed: list[Landed] = yield Gather(POLL_S)
        under_way -= len(landed)
        total += yield from _marked(terms, landed, owner)


def _begun(terms: Terms, lane: Lane, most: int, owner: str) -> Steps[tuple[int, Dispatched]]:
    """Take messages of a lane and begin to deliver them; answers how many, and what was done."""
    taken = yield from _ask(lane.claim(owner=owner, lease_s=terms.lease_s, most=most))
    fit = [one for one in taken if one.attempt <= terms.max_attempts]
    for one in fit:
        yield Begin(one, lane.calls, lane.call(one))
    spent = [Failed(one, NO_END, None) for one in taken if one.attempt > terms.max_attempts]
    return len(fit), Dispatched(taken=len(taken)) + (yield from _deferred(spent, owner))


def _marked(terms: Terms, landed: Sequence[Landed], owner: str) -> Steps[Dispatched]:
    """Write down what became of messages whose calls have ended."""
    ended = [_ended(one) for one in landed]
    well = [one for one in ended if one.error is None]
    total = yield from _delivered([one.taken for one in well if one.taken.topic is not None], owner)
    for note in (one for one in well if one.taken.topic is None):
        is_mine = yield from _ask(outbox.make(note.taken, note.value))
        total += Dispatched(made=1) if is_mine else Dispatched(lost=1)
    failed = [_failed(terms, one.taken, one.error) for one in ended if one.error is not None]
    return total + (yield from _deferred(failed, owner))


def _delivered(acknowledged: Sequence[Taken], owner: str) -> Steps[Dispatched]:
    if not acknowledged:
        return Dispatched()
    mine = yield from _ask(outbox.deliver(acknowledged, owner=owner))
    return Dispatched(delivered=len(mine), lost=len(acknowledged) - len(mine))


def _deferred(failed: Sequence[Failed], owner: str) -> Steps[Dispatched]:
    if not failed:
        return Dispatched()
    mine = yield from _ask(outbox.defer(failed, owner=owner))
    dead = [one for one in failed if one.pause_s is None and (one.taken.tenant, one.taken.id) in mine]
    for one in dead:
        _log.error("%s (%s) is a dead letter: %s", one.taken.id, one.taken.topic or "to be made", one.reason)
    return Dispatched(dead=len(dead), deferred=len(mine) - len(dead), lost=len(failed) - len(mine))


def _ended(landed: Landed) -> Landed:
    """A sink that returned a generator has not run."""
    if inspect.isgenerator(landed.value) or inspect.isasyncgen(landed.value):
        return replace(landed, error=Undelivered("the sink returned a generator, which had not run"))
    return landed


def _failed(terms: Terms, taken: Taken, error: BaseException) -> Failed:
    """Return what becomes of a message whose call ended with an error."""
    said = error if isinstance(error, Undelivered) else None
    reason = _text_of(error) if said else f"{type(error).__name__}: {_text_of(error)}"
    if taken.attempt >= terms.max_attempts or (said and said.is_final):
        return Failed(taken, one_line(reason, MAX_REASON_CHARS), None)
    pause_s = _pause_s(terms, taken, said.retry_after_s if said else None)
    return Failed(taken, one_line(reason, MAX_REASON_CHARS), pause_s)


def _text_of(error: BaseException) -> str:
    """Return what an error says; one that cannot even say it is an end like any other."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - it is the sink's own class
        return "it does not say why"


def _pause_s(terms: Terms, taken: Taken, retry_after_s: float | None) -> float:
    """Return the wait before the next attempt: never less than the formula, since somebody who always asks for nothing
    would use up all attempts within a second.
    """
    retry = taken.attempt - 1
    grown_s = terms.backoff.next_delay(retry, random=terms.random)
    return max(grown_s, terms.backoff.next_delay(retry, random=terms.random, retry_after_s=retry_after_s or 0.0))


def _delivering(sink: Sink, taken: Taken) -> Callable[[], Any]:
    assert taken.topic is not None, "a note that messages are to be made has a lane of its own"
    return partial(
        sink, Delivery(taken.id, taken.topic, taken.payload, taken.action_id, taken.tenant, taken.created_at)
    )


def _making(contracts: Mapping[str, Contract], store: Ledger, note: Taken) -> Callable[[], str]:
    return partial(_messages, contracts, store, note)


def _messages(contracts: Mapping[str, Contract], store: Ledger, note: Taken) -> str:
    """Make the messages of an action from what the ledger has of it."""
    action = store.action(note.action_id, tenant=note.tenant)
    contract = contracts[action.tool]
    if contract.emits is None:
        raise Undelivered(f"{action.tool} makes no messages any more: declare it with emits= as it was")
    done = done_of(action, restored(contract, action, store), action.receipt, readable(action.result))
    return encoded(contract.emits(done))


def _routine(sink: Sink) -> Sink:
    """Return what can be asked whether it is async: an object with an async `__call__` does not say so itself."""
    call: Sink = sink.__call__  # type: ignore[operator]
    return call if inspect.iscoroutinefunction(call) else sink


def _ask(query: Query[T]) -> Steps[T]:
    answer: T = yield Ask(query)
    return answer
