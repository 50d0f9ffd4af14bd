"""The dispatcher: delivers the messages of the outbox to sinks.

Owns the making and checking of its terms, and the two drivers of `settled.tools.dispatching`, which holds the rules.
Any number of dispatchers may run on one ledger.
"""

import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from settled.state import outbox
from settled.state.errors import ContractError
from settled.state.store import Ledger
from settled.tools.after import Message
from settled.tools.backoff import Backoff
from settled.tools.contract import contract_of
from settled.tools.delivery import Sink
from settled.tools.dispatching import REST, Dispatched, Lane, Steps, Terms, dispatching, making_lane, topic_lane
from settled.tools.effects import Ask
from settled.tools.flights import Begin, Flights, Gather

LEASE_S = 60.0
"""How long a message of a dispatcher that died stays in its hands."""

DELIVERY_TIMEOUT_S = 15.0
"""Of one delivery: what webhook senders commonly wait; well below the lease, so that the mark comes within it."""

MAX_ATTEMPTS = 16
BACKOFF = Backoff(first=2.0, cap=3600.0, jitter=2.0)
"""With 16 attempts a consumer may be away for five hours before its messages are dead letters."""

BATCH, AT_ONCE = 100, 8
"""Messages in one batch, and deliveries of one topic at once: a burst of messages is no burst of requests."""

Watch = Callable[[Ask[Any] | Begin | Gather, str], None]


class Dispatcher:
    """Takes due messages, hands each to the sink of its topic, and marks it after the acknowledgement.

    At least once: a dispatcher that dies between the acknowledgement and the mark has delivered a message that comes
    again. The messages of one action come in their order, each after the one before it was acknowledged; those of other
    actions do not wait for it. A message whose last attempt failed is a dead letter (`Outbox.redrive`).
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        sinks: Mapping[str, Sink],
        tools: Sequence[object] = (),
        lease_s: float = LEASE_S,
        delivery_timeout_s: float = DELIVERY_TIMEOUT_S,
        max_attempts: int = MAX_ATTEMPTS,
        backoff: Backoff = BACKOFF,
        batch: int = BATCH,
        at_once: int = AT_ONCE,
        random: Callable[[], float] = random.random,
        watch: Watch | None = None,
    ) -> None:
        """`sinks` by topic; `"*"` is for every topic that has none of its own, and what has no sink is left alone.
        `tools`: those whose messages may have to be made here (see `@action(emits=)`). `at_once`: deliveries of one
        topic. `watch(effect, when)` is called "before" and "after" each effect, for tests.

        Raises ContractError for terms that cannot be right: a delivery that may outlast its lease, nothing to do.
        """
        check_sinks(sinks)
        contracts = {contract.name: contract for contract in map(contract_of, tools)}
        self.terms = Terms(lease_s, delivery_timeout_s, max_attempts, backoff, batch, random, time.monotonic)
        check_terms(self.terms, at_once)
        if not sinks and not contracts:
            raise ContractError("a Dispatcher needs sinks= (by topic), or tools= whose messages it makes")
        named = sinks.keys() - {REST}
        self._lanes: list[Lane] = [
            topic_lane(topic, sink, at_once=at_once, named=named) for topic, sink in sinks.items()
        ]
        if contracts:
            self._lanes.insert(0, making_lane(contracts, ledger, at_once=at_once))
        self._database = outbox.on(ledger)
        self._watch = watch
        self._is_draining = False

    def run_once(self) -> Dispatched:
        """Deliver one batch: until nothing is due, `batch` messages were taken, or the time of one delivery is over,
        and what is under way then has ended. Raises LedgerUnavailable; what was delivered and not marked comes again.
        """
        flights = Flights(self.terms.delivery_timeout_s)
        steps = self._steps()
        answer: Any = None
        try:
            while True:
                effect = steps.send(answer)
                self._look(effect, "before")
                match effect:
                    case Ask():
                        answer = self._database.run(effect.query)
                    case Begin():
                        answer = None
                        flights.begin(effect)
                    case Gather():
                        answer = flights.gather(effect.seconds)
                self._look(effect, "after")
        except StopIteration as end:
            return _result(end)
        finally:
            flights.let_go()

    async def arun_once(self) -> Dispatched:
        """As `run_once`, in an event loop; an async sink runs in it, and is cancelled when its time is over."""
        flights = Flights(self.terms.delivery_timeout_s)
        steps = self._steps()
        answer: Any = None
        try:
            while True:
                effect = steps.send(answer)
                self._look(effect, "before")
                match effect:
                    case Ask():
                        answer = await self._database.arun(effect.query)
                    case Begin():
                        answer = None
                        flights.abegin(effect)
                    case Gather():
                        answer = await flights.agather(effect.seconds)
                self._look(effect, "after")
        except StopIteration as end:
            return _result(end)
        finally:
            flights.let_go()

    def drain(self) -> None:
        """Take nothing any more: a batch that is under way ends with what it has, and later ones do nothing."""
        self._is_draining = True

    def _steps(self) -> Steps[Dispatched]:
        owner = secrets.token_hex(8)
        return dispatching(self.terms, self._lanes, owner=owner, is_draining=lambda: self._is_draining)

    def _look(self, effect: Ask[Any] | Begin | Gather, when: str) -> None:
        if self._watch is not None:
            self._watch(effect, when)


def _result(end: StopIteration) -> Dispatched:
    dispatched: Dispatched = end.value
    return dispatched


def check_sinks(sinks: Mapping[str, Sink]) -> None:
    """Refuse a topic that no message can have, and a sink that cannot be called."""
    for topic, sink in sinks.items():
        Message(topic)
        if not callable(sink):
            raise ContractError(f"the sink of {topic} must be a function of a Delivery, not {type(sink).__name__}")


def check_terms(terms: Terms, at_once: int) -> None:
    """Refuse terms that cannot be right."""
    if not 0 < terms.delivery_timeout_s < terms.lease_s:
        raise ContractError(
            f"delivery_timeout_s ({terms.delivery_timeout_s:g}) must be above 0 and below lease_s ({terms.lease_s:g}): "
            "a delivery that outlasts its lease is begun again while it runs"
        )
    for name, value in (("max_attempts", terms.max_attempts), ("batch", terms.batch), ("at_once", at_once)):
        if type(value) is not int or not 0 < value <= MOST:
            raise ContractError(f"{name} must be a whole number from 1 to {MOST}")


MOST = 10_000
"""Of attempts, of messages in a batch and of deliveries at once: more is a mistake."""
