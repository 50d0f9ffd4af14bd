"""One effect per idempotency key, for people who own the endpoint.

Owns the rules: who may act, who waits, what is answered again, and what becomes of a key whose handler died. It knows
no HTTP: a request is whatever the caller passes to his own `reconcile`. The rules are a generator that yields effects
(`claiming`); a sync and an async driver carry them out.

The subtle thing: time frees nothing. A lease that is over says that a handler was not heard of, not that it did
nothing. So a lapsed key is taken up under a new fencing token (the former owner can write nothing from then on) and the
author's `reconcile` says what became of it; without one, and while he cannot tell, nobody acts.
"""

import re
import secrets
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar, assert_never

from settled.state import endpoint
from settled.state.closing import AsyncClosing, Closing
from settled.state.endpoint import Held, Record
from settled.state.errors import ClaimLost, ContractError, InvalidArguments
from settled.state.ledger import Query, digest_of
from settled.state.store import Ledger
from settled.tools import bodies
from settled.tools.effects import Ask, Inconclusive, Sleep
from settled.tools.outcome import MAX_REASON_CHARS, one_line
from settled.tools.resolutions import DidNotHappen
from settled.tools.runner import REAL, World

T = TypeVar("T")
R = TypeVar("R")

LEASE_S = 30.0
"""How long a key is held without a word of its owner; the middleware renews it at each third."""

WAIT_S = 2.0
"""How long a request waits for the one that is ahead of it: below every sensible client timeout."""

POLLS_S = (0.01, 0.02, 0.05, 0.1)
"""Between looks at a key in flight; the last one stays. Most handlers take tens of milliseconds."""

ASK_AGAIN_S = 1.0
"""After an inconclusive answer: a crowd of repeats asks the author's `reconcile` once a second at most."""

KEEP = timedelta(days=1)
"""The retention of a done key: longer than anybody's retries go on."""

MAX_ANSWER_BYTES = 1024 * 1024
"""The body of an answer that is kept; of a larger one it is kept that it was given."""

MAX_KEY_CHARS = 255
"""What payment APIs accept; a UUID has 36."""

MAX_RACES = 100
"""Looks at a key that moved while it was looked at; each takes somebody else's commit in between."""


@dataclass(frozen=True)
class StoredAnswer:
    """What a request was answered with. `headers` are the ones that are given again; `body` None: it was too large."""

    status: int
    body: bytes | None = b""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Claimed:
    """The key is yours: act, then `finish`. `reconciled`: an earlier handler died and surely did nothing."""

    held: Held
    reconciled: bool = False


@dataclass(frozen=True)
class Done:
    """It was done before; this is the answer."""

    answer: StoredAnswer


@dataclass(frozen=True)
class InFlight:
    """Somebody is at it; ask again later."""

    retry_after_s: float


@dataclass(frozen=True)
class OtherPayload:
    """The key was used with another request."""


@dataclass(frozen=True)
class Unresolved:
    """Its handler did not come to an end, and nobody can tell what it did."""

    reason: str
    retry_after_s: float


Met: TypeAlias = Claimed | Done | InFlight | OtherPayload | Unresolved
Finding: TypeAlias = StoredAnswer | DidNotHappen | Inconclusive
Reconcile: TypeAlias = Callable[[str, Any], Finding | Awaitable[Finding]]
"""Says what became of a key whose handler did not come to an end: `reconcile(key, request)`, sync or async.

`StoredAnswer`: it was done, and this is the answer. `DidNotHappen`: it was not done, and what the former handler began
can take no effect any more. `Inconclusive`: nobody can tell now. `request` is the repeat that asks (it has the
fingerprint of the first).
"""


@dataclass(frozen=True, slots=True)
class Consult:
    """Ask the author's `reconcile`. Answered by a Finding."""

    key: str
    request: object


Steps: TypeAlias = Generator["Ask[Any] | Sleep | Consult", Any, R]
NOBODY_SAYS = Inconclusive("the request that came first did not come to an end, and nothing can tell what it did")


@dataclass(frozen=True)
class Terms:
    """What a store was told at its making."""

    scope: str
    reconcile: Reconcile | None = None
    lease_s: float = LEASE_S
    wait_s: float = WAIT_S
    keep: timedelta = KEEP
    max_answer_bytes: int = MAX_ANSWER_BYTES

    def __post_init__(self) -> None:
        check_name("scope", self.scope)
        if self.lease_s <= 0 or self.wait_s < 0 or self.keep <= timedelta() or self.max_answer_bytes < 0:
            raise ContractError("lease_s and keep must be above 0, wait_s and max_answer_bytes not below")


def claiming(
    terms: Terms, tenant: str, key: str, fingerprint: str, request: object, *, owner: str, wait_s: float
) -> Steps[Met]:
    """Claim a key, or find out what to tell; waits for at most `wait_s` for the one that is ahead."""
    claim = endpoint.claim(
        terms.scope, tenant, key, fingerprint=digest_of(fingerprint), owner=owner, lease_s=terms.lease_s
    )
    waited, looks, races = 0.0, 0, 0
    while races < MAX_RACES:
        record = yield from _ask(claim)
        if record is None:
            races += 1
            continue
        met = standing(record, owner, fingerprint)
        if met is not None and not isinstance(met, InFlight):
            return met
        if met is not None:
            pause = min(POLLS_S[min(looks, len(POLLS_S) - 1)], wait_s - waited)
            if pause <= 0:
                return met
            yield Sleep(pause)
            waited, looks = waited + pause, looks + 1
            continue
        settled = yield from _reconciling(terms, record, request, owner)
        if settled is not None:
            return settled
        races += 1
    return InFlight(ASK_AGAIN_S)


def standing(record: Record, owner: str, fingerprint: str) -> Met | None:
    """Say what a key means to `owner`, who wants to act; None: its lease is over, and it must be reconciled."""
    if record.fingerprint != fingerprint:
        return OtherPayload()
    if record.state == "running" and record.owner == owner:
        return Claimed(_held(record))
    if record.state == "done":
        return Done(answer_of(record))
    if record.lease_until <= record.now:
        return None
    left_s = (record.lease_until - record.now).total_seconds()
    if record.state == "unknown":
        return Unresolved(NOBODY_SAYS.reason, left_s)
    return InFlight(min(left_s, ASK_AGAIN_S))


def _reconciling(terms: Terms, seen: Record, request: object, owner: str) -> Steps[Met | None]:
    """Take a lapsed key up and find out what became of it; None: somebody else was faster, look again."""
    taken = yield from _ask(endpoint.take_up(seen, owner=owner, lease_s=terms.lease_s))
    if taken is None:
        return None
    held = _held(taken)
    finding: Finding = NOBODY_SAYS if terms.reconcile is None else (yield Consult(seen.key, request))
    match finding:
        case StoredAnswer():
            done = yield from _ask(finish(terms, held, finding))
            return None if done is None else Done(answer_of(done))
        case DidNotHappen():
            running = yield from _ask(endpoint.run_again(held, lease_s=terms.lease_s))
            return None if running is None else Claimed(held, reconciled=True)
        case Inconclusive():
            unknown = yield from _ask(endpoint.mark_unknown(held, pause_s=ASK_AGAIN_S))
            return None if unknown is None else Unresolved(finding.reason, ASK_AGAIN_S)
        case _:
            assert_never(finding)


def finish(terms: Terms, held: Held, answer: StoredAnswer) -> Query[Record | None]:
    """Record an answer; what is too large is left out, and that it was done is kept."""
    body = answer.body if answer.body is not None and len(answer.body) <= terms.max_answer_bytes else None
    return endpoint.finish(held, status=answer.status, headers=answer.headers, body=body, keep=terms.keep)


def answer_of(record: Record) -> StoredAnswer:
    """Return the answer of a key that is done."""
    assert record.status is not None
    headers = tuple((name, value) for name, value in record.headers or ())
    return StoredAnswer(record.status, None if record.body is None else bytes(record.body), headers)


def _held(record: Record) -> Held:
    return Held(record.scope, record.tenant, record.key, record.owner, record.fencing_token)


def _ask(query: Query[T]) -> Steps[T]:
    answer: T = yield Ask(query)
    return answer


class IdempotencyStore(Closing, AsyncClosing):
    """What an endpoint has under the idempotency keys of its callers.

    `claim` a key with the fingerprint of its request; whoever gets `Claimed` acts, and then says how it ended:
    `finish` with the answer, `release` when surely nothing was done, `mark_unknown` when nobody can tell. (Under ASGI
    the `IdempotencyMiddleware` does all that.) A handler that is longer at it than `lease_s` must `renew` meanwhile.

    Effect and record, one commit: where the effect is work in this same Postgres, `finish(…, connection=connection)`
    within the author's own transaction records the answer together with it. Both are there or neither is, and the
    transaction of a handler that was taken for dead fails with ClaimLost, so it may answer "it did not happen" to
    whatever is not recorded. Anything else (another database, a call to somebody) is recorded after it took place: a
    handler that dies in between leaves an effect without a record. That is what `reconcile` is for, and why a key is
    never free by the passing of time.
    """

    def __init__(
        self,
        ledger: Ledger | str | None = None,
        *,
        scope: str,
        reconcile: Reconcile | None = None,
        lease_s: float = LEASE_S,
        wait_s: float = WAIT_S,
        keep: timedelta = KEEP,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        world: World = REAL,
    ) -> None:
        """Open the store on a ledger, or on one that is opened at a URL (None: as `Ledger.connect`), which it closes.

        `scope` names the application: two of them never share a key. `wait_s`: how long a claim waits for the one that
        is ahead of it. `keep`: how long an answer is kept before `purge` may forget it; a key that was purged is new.
        """
        self.terms = Terms(scope, reconcile, lease_s, wait_s, keep, max_answer_bytes)
        self._own = None if isinstance(ledger, Ledger) else Ledger.connect(ledger)
        self._database = endpoint.on(ledger if isinstance(ledger, Ledger) else self._opened())
        self._world = world

    def claim(
        self,
        key: str,
        fingerprint: str,
        *,
        tenant: str = "default",
        request: object = None,
        wait_s: float | None = None,
    ) -> Met:
        """Claim a key for a request. `fingerprint` is "sha256:" and 64 hex digits; `tenant` is whose key it is.

        Raises InvalidArguments for a key or a tenant that cannot be stored, LedgerUnavailable (nothing may be done).
        """
        return self._drive(self._claiming(key, fingerprint, tenant, request, wait_s))

    async def aclaim(
        self,
        key: str,
        fingerprint: str,
        *,
        tenant: str = "default",
        request: object = None,
        wait_s: float | None = None,
    ) -> Met:
        """As `claim`, in an event loop."""
        return await self._adrive(self._claiming(key, fingerprint, tenant, request, wait_s))

    def finish(self, claimed: Claimed, answer: StoredAnswer, *, connection: object = None) -> None:
        """Record that it is done, with its answer; given a psycopg connection, within its open transaction.

        Raises ClaimLost when the key was taken up by somebody else: nothing was written, and an open transaction must
        be rolled back (`connection.transaction()` does so when the error leaves it).
        """
        query = finish(self.terms, claimed.held, answer)
        _check_written(self._database.run(query) if connection is None else endpoint.within(connection, query))

    async def afinish(self, claimed: Claimed, answer: StoredAnswer, *, connection: object = None) -> None:
        """As `finish`, in an event loop, with an AsyncConnection."""
        query = finish(self.terms, claimed.held, answer)
        done = await (self._database.arun(query) if connection is None else endpoint.awithin(connection, query))
        _check_written(done)

    def release(self, claimed: Claimed) -> bool:
        """Give a key back: surely nothing was done. False when it is somebody else's by now, or done."""
        return self._database.run(endpoint.release(claimed.held))

    async def arelease(self, claimed: Claimed) -> bool:
        """As `release`, in an event loop."""
        return await self._database.arun(endpoint.release(claimed.held))

    def mark_unknown(self, claimed: Claimed) -> bool:
        """Say that the handler is through and cannot tell: the next request with this key is reconciled at once."""
        return self._database.run(endpoint.mark_unknown(claimed.held, pause_s=0)) is not None

    async def amark_unknown(self, claimed: Claimed) -> bool:
        """As `mark_unknown`, in an event loop."""
        return await self._database.arun(endpoint.mark_unknown(claimed.held, pause_s=0)) is not None

    def renew(self, claimed: Claimed) -> bool:
        """Prolong the lease; False when the key is somebody else's by now, or done."""
        return self._database.run(endpoint.renew(claimed.held, lease_s=self.terms.lease_s))

    async def arenew(self, claimed: Claimed) -> bool:
        """As `renew`, in an event loop."""
        return await self._database.arun(endpoint.renew(claimed.held, lease_s=self.terms.lease_s))

    def record(self, key: str, *, tenant: str = "default") -> Record | None:
        """Return what is known under a key."""
        return self._database.run(endpoint.load(self.terms.scope, tenant, key))

    async def arecord(self, key: str, *, tenant: str = "default") -> Record | None:
        """As `record`, in an event loop."""
        return await self._database.arun(endpoint.load(self.terms.scope, tenant, key))

    def purge(self, *, most: int = 1000) -> int:
        """Forget at most `most` done keys whose retention is over, and return how many; others are never forgotten."""
        return self._database.run(endpoint.purge(self.terms.scope, most=most))

    async def apurge(self, *, most: int = 1000) -> int:
        """As `purge`, in an event loop."""
        return await self._database.arun(endpoint.purge(self.terms.scope, most=most))

    def close(self) -> None:
        """Close the ledger that this store has opened."""
        if self._own is not None:
            self._own.close()

    async def aclose(self) -> None:
        """Close the async connections of the running loop, and the ledger, where this store has opened it."""
        if self._own is not None:
            await self._own.aclose()
            self._own.close()

    def _opened(self) -> Ledger:
        assert self._own is not None
        return self._own

    def _claiming(self, key: str, fingerprint: str, tenant: str, request: object, wait_s: float | None) -> Steps[Met]:
        check_name("key", key)
        check_name("tenant", tenant)
        if not re.fullmatch("sha256:[0-9a-f]{64}", fingerprint):
            raise InvalidArguments("fingerprint", 'must be "sha256:" and 64 hex digits')
        wait = self.terms.wait_s if wait_s is None else wait_s
        owner = secrets.token_hex(16)
        return claiming(self.terms, tenant, key, fingerprint, request, owner=owner, wait_s=wait)

    def _drive(self, steps: Steps[R]) -> R:
        answer: Any = None
        while True:
            try:
                effect = steps.send(answer)
            except StopIteration as end:
                result: R = end.value
                return result
            match effect:
                case Ask():
                    answer = self._database.run(effect.query)
                case Sleep():
                    self._world.sleep(effect.seconds)
                    answer = None
                case Consult():
                    answer = self._consulted(effect)

    async def _adrive(self, steps: Steps[R]) -> R:
        answer: Any = None
        while True:
            try:
                effect = steps.send(answer)
            except StopIteration as end:
                result: R = end.value
                return result
            match effect:
                case Ask():
                    answer = await self._database.arun(effect.query)
                case Sleep():
                    await self._world.asleep(effect.seconds)
                    answer = None
                case Consult():
                    answer = await self._aconsulted(effect)

    def _consulted(self, effect: Consult) -> Finding:
        assert self.terms.reconcile is not None
        try:
            return _finding(bodies.start(self.terms.reconcile, effect.key, effect.request).result())
        except Exception as error:  # noqa: BLE001 - the author's: whatever it is, nobody can tell now
            return _failed(error)

    async def _aconsulted(self, effect: Consult) -> Finding:
        assert self.terms.reconcile is not None
        try:
            return _finding(await bodies.astart(self.terms.reconcile, effect.key, effect.request))
        except Exception as error:  # noqa: BLE001 - as in _consulted
            return _failed(error)


def _finding(said: object) -> Finding:
    match said:
        case StoredAnswer() | DidNotHappen():
            return said
        case Inconclusive():
            return Inconclusive(one_line(said.reason, MAX_REASON_CHARS))
        case _:
            return Inconclusive(f"reconcile answered {type(said).__name__}, which says nothing")


def _failed(error: Exception) -> Inconclusive:
    return Inconclusive(f"nothing can tell what the request that came first did ({type(error).__name__})")


def _check_written(record: Record | None) -> None:
    if record is None:
        raise ClaimLost("this key was taken up by somebody else; nothing was written")


def check_name(field: str, value: object) -> None:
    """Refuse what cannot stand in the row's key: it must be a printable text of 1 to MAX_KEY_CHARS characters."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_KEY_CHARS or not value.isprintable():
        raise InvalidArguments(field, f"must be a printable text of 1 to {MAX_KEY_CHARS} characters")
