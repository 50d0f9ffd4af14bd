"""How an unknown outcome ends: found, proved absent and sent again under the same key, or handed to a person."""

from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from acts import Clock, Door, Remote, action_of, both_doors, events_of, opened
from settled import Backoff, Code, Inquiry, Ledger, Outcome, State, action
from settled.tools.contract import ActionTool
from settled.tools.effects import Absent, Found, Inconclusive
from settled.tools.outcome import Unknown
from settled.tools.runner import World

WINDOW_S = 15.0
ARGUMENTS = ["A-1", 25]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def frozen(database_url: str, clock: Clock) -> Iterator[Ledger]:
    """A ledger whose time passes only by sleeping."""
    with opened(database_url, clock=clock) as ledger:
        yield ledger


class Far:
    """A far side that loses its first replies, and is asked by a function of the test."""

    def __init__(self, answer: Callable[[Inquiry], object] | None, *, lost: int = 1, **contract: Any) -> None:
        self.remote = Remote()
        self.asked_at: list[float] = []
        self.clock: Clock | None = None
        given: dict[str, Any] = {
            "risk": "non_idempotent_write",
            "remote": "queryable",
            "identity": ("order",),
            "settle_window": WINDOW_S,
            "backoff": Backoff(jitter=0),
            **contract,
        }

        def query(inquiry: Inquiry) -> Any:
            assert self.clock is not None
            self.asked_at.append(round(self.clock.elapsed_s, 2))
            assert answer is not None
            return answer(inquiry)

        @action(query=None if answer is None else query, **given)
        def pay(order: str, amount: int) -> object:
            done = self.remote.do(order=order, amount=amount)
            return Unknown("no answer") if len(self.remote.effects) <= lost else done

        self.tool: ActionTool = pay

    async def call(self, door: Door, ledger: Ledger, clock: Clock) -> Outcome:
        self.clock = clock
        outcome = await door(self.tool, ARGUMENTS, ledger=ledger, world=World(sleep=clock.sleep, asleep=clock.asleep))
        self.row = action_of(ledger, outcome)
        self.events = events_of(ledger, outcome)
        await ledger.aclose()
        return outcome

    @property
    def triggers(self) -> list[str]:
        return [e.trigger for e in self.events if e.trigger != "ask"]


def is_for_a_person(far: Far, outcome: Outcome, *, sent: int = 1) -> None:
    assert (outcome.code, outcome.state) == (Code.MANUAL_REVIEW, State.UNKNOWN)
    assert far.row.escalated_at is not None
    assert far.triggers[-1] == "escalate"
    assert len(far.remote.effects) == sent
    assert outcome.artifact["may_retry"] is False


@both_doors
async def test_absent_on_a_remote_that_dedupes_is_sent_again_under_the_same_key(
    door: Door, frozen: Ledger, clock: Clock
) -> None:
    """Only after the settle window, as attempt 2, with a higher fencing token."""
    far = Far(lambda _: Absent(), remote="dedupes")
    outcome = await far.call(door, frozen, clock)
    assert (outcome.code, outcome.receipt, outcome.attempts) == (Code.SUCCEEDED, "RF-2", 2)
    assert far.remote.keys == [outcome.idempotency_key] * 2
    assert far.triggers == ["plan", "approve", "claim", "lose", "release", "succeed"]
    released = next(e for e in far.events if e.trigger == "release")
    assert (released.at - clock.start).total_seconds() >= WINDOW_S
    assert far.row.fencing_token == 2


@both_doors
async def test_the_queries_wait_longer_each_time_and_one_falls_behind_the_window(
    door: Door, frozen: Ledger, clock: Clock
) -> None:
    """0, 0.5, 1.5, 3.5, 7.5, and then right behind 15.0: absence before that instant proves nothing."""
    far = Far(lambda _: Absent(), remote="dedupes")
    await far.call(door, frozen, clock)
    assert far.asked_at == [0.0, 0.5, 1.5, 3.5, 7.5, 15.01]


@both_doors
async def test_absent_where_a_repeat_is_not_recognised_is_for_a_person(
    door: Door, frozen: Ledger, clock: Clock
) -> None:
    """A queryable remote that does not dedupe: never sent again by itself."""
    far = Far(lambda _: Absent())
    outcome = await far.call(door, frozen, clock)
    is_for_a_person(far, outcome)
    assert clock.elapsed_s >= WINDOW_S


@both_doors
async def test_absent_where_the_author_allows_a_resend(door: Door, frozen: Ledger, clock: Clock) -> None:
    """`resend_when_absent`, under the lock of the business key: sent again once, the same key."""
    far = Far(lambda _: Absent(), unique=("order",), resend_when_absent=True)
    outcome = await far.call(door, frozen, clock)
    assert (outcome.code, outcome.attempts) == (Code.SUCCEEDED, 2)
    assert far.remote.keys == [outcome.idempotency_key] * 2


@both_doors
async def test_no_query_is_for_a_person_at_once(door: Door, frozen: Ledger, clock: Clock) -> None:
    """An opaque remote: no wait, no second send, and the model is told not to submit it again."""
    far = Far(None, remote="opaque")
    outcome = await far.call(door, frozen, clock)
    is_for_a_person(far, outcome)
    assert clock.elapsed_s == 0
    for word in ("fail", "error", "try again", "successful"):
        assert word not in outcome.message.lower()


@both_doors
async def test_a_remote_that_dedupes_without_a_query_is_for_a_person(door: Door, frozen: Ledger, clock: Clock) -> None:
    """A non-idempotent write is never sent again without having asked."""
    far = Far(None, remote="dedupes")
    is_for_a_person(far, await far.call(door, frozen, clock))


@both_doors
async def test_a_harmless_repeat_needs_no_query(door: Door, frozen: Ledger, clock: Clock) -> None:
    """An idempotent write is sent again under its key."""
    far = Far(None, risk="idempotent_write", remote="opaque")
    outcome = await far.call(door, frozen, clock)
    assert (outcome.code, outcome.attempts) == (Code.SUCCEEDED, 2)
    assert len(set(far.remote.keys)) == 1


@both_doors
@pytest.mark.parametrize(
    "answer",
    [lambda _: Inconclusive("two of them look alike"), lambda _: 1 / 0, lambda _: None, lambda _: {"found": True}],
    ids=["inconclusive", "raises", "none", "dict"],
)
async def test_a_query_that_cannot_tell_is_for_a_person_after_the_window(
    door: Door, answer: Callable[[Inquiry], object], frozen: Ledger, clock: Clock
) -> None:
    """Asked until the settle window is over, also where a resend would be recognised; then a person decides."""
    far = Far(answer, remote="dedupes")
    outcome = await far.call(door, frozen, clock)
    is_for_a_person(far, outcome)
    assert far.asked_at[-1] > WINDOW_S
    noted = [str((e.detail or {})["answer"]) for e in far.events if e.trigger == "ask"]
    assert len(noted) == len(far.asked_at)
    assert all(answer.startswith("inconclusive") for answer in noted)


@both_doors
async def test_a_query_that_fails_at_first_and_then_finds(door: Door, frozen: Ledger, clock: Clock) -> None:
    """An outage of the query is no end."""
    answers = iter([Inconclusive("503"), Absent(), Found("R-7", {"receipt": "R-7"})])
    far = Far(lambda _: next(answers))
    outcome = await far.call(door, frozen, clock)
    assert (outcome.code, outcome.receipt, len(far.remote.effects)) == (Code.SUCCEEDED, "R-7", 1)
    assert far.row.evidence == "query"


@both_doors
async def test_something_else_under_the_key_is_for_a_person(door: Door, frozen: Ledger, clock: Clock) -> None:
    """A found object with another fingerprint is not taken; both are in the event."""
    other = "sha256:" + "ab" * 32
    far = Far(lambda _: Found("R-7", fingerprint=other))
    outcome = await far.call(door, frozen, clock)
    is_for_a_person(far, outcome)
    detail = far.events[-1].detail or {}
    assert (detail["meant"], detail["found"], detail["receipt"]) == (far.row.fingerprint, other, "R-7")
    assert far.row.receipt is None


@both_doors
async def test_other_values_are_for_a_person_who_sees_both(door: Door, frozen: Ledger, clock: Clock) -> None:
    """The fields that the author compares differ: 25 was meant, 250 is there."""
    far = Far(lambda _: Found("R-7", {"amount": 250}, fields={"order": "A-1", "amount": 250}))
    outcome = await far.call(door, frozen, clock)
    is_for_a_person(far, outcome)
    detail = far.events[-1].detail or {}
    assert (detail["meant"], detail["found"], detail["receipt"]) == ({"amount": 25}, {"amount": 250}, "R-7")


@both_doors
@pytest.mark.parametrize("fields", [{"amount": 25.0}, {"amount": 25, "order": "A-1"}, {}])
async def test_the_same_values_in_another_dress_are_found(
    door: Door, fields: dict[str, object], frozen: Ledger, clock: Clock
) -> None:
    """25.0 is 25: what is compared is the value."""
    far = Far(lambda i: Found("R-7", fingerprint=i.fingerprint, fields=fields))
    outcome = await far.call(door, frozen, clock)
    assert (outcome.code, outcome.state, outcome.receipt) == (Code.SUCCEEDED, State.SUCCEEDED, "R-7")


@both_doors
async def test_a_query_knows_the_key_and_the_arguments(door: Door, frozen: Ledger, clock: Clock) -> None:
    """A remote without a query by key can be asked by the arguments."""
    inquiries: list[Inquiry] = []

    def answer(inquiry: Inquiry) -> Found:
        inquiries.append(inquiry)
        return Found("R-7")

    outcome = await (far := Far(answer)).call(door, frozen, clock)
    asked = inquiries[0]
    assert (asked.action_id, asked.idempotency_key) == (outcome.action_id, outcome.idempotency_key)
    assert dict(asked.arguments) == {"order": "A-1", "amount": 25}
    assert (asked.attempt, asked.thread_id, asked.fingerprint) == (1, "thread-1", far.row.fingerprint)


@both_doors
async def test_attempts_and_deadline_bound_the_resends(door: Door, frozen: Ledger, clock: Clock) -> None:
    """A remote that loses every reply and shows nothing ends with a person, not in a loop."""
    far = Far(lambda _: Absent(), remote="dedupes", lost=99, max_attempts=3, deadline=1000)
    outcome = await far.call(door, frozen, clock)
    is_for_a_person(far, outcome, sent=3)
    assert "attempts are used up" in str(far.row.reason)
    far = Far(lambda _: Absent(), remote="dedupes", lost=99, max_attempts=9, deadline=20, name="other")
    is_for_a_person(far, await far.call(door, frozen, clock), sent=2)
    assert "deadline" in str(far.row.reason)


@both_doors
async def test_a_repeat_of_what_a_person_must_decide_sends_nothing(door: Door, frozen: Ledger, clock: Clock) -> None:
    """Five repeats of a manual-queue action: the same answer, no query, no send."""
    far = Far(None, remote="opaque")
    first = await far.call(door, frozen, clock)
    for _ in range(5):
        again = await far.call(door, frozen, clock)
        assert (again.code, again.action_id) == (Code.MANUAL_REVIEW, first.action_id)
    assert len(far.remote.effects) == 1


@both_doors
async def test_a_query_that_hangs_is_left_after_its_timeout(door: Door, ledger: Ledger) -> None:
    """A query that never comes back counts as one that could not tell."""
    import threading
    import time

    over, begun = threading.Event(), time.monotonic()

    @action(
        risk="non_idempotent_write", remote="queryable", identity="all", query=lambda _: over.wait(20), timeout=0.2,
        settle_window=0.3, deadline=2,
    )  # fmt: skip
    def pay(order: str) -> object:
        return Unknown("no answer")

    outcome = await door(pay, ["A-1"], ledger=ledger)
    over.set()
    assert (outcome.code, outcome.state) == (Code.MANUAL_REVIEW, State.UNKNOWN)
    assert time.monotonic() - begun < 5


@both_doors
async def test_money_and_lists_are_compared_as_the_schema_reads_them(door: Door, frozen: Ledger, clock: Clock) -> None:
    """A Decimal that a query answers as a number, and a list in another order, are what was meant."""
    theirs = {"amount": 118.5, "lines": ["b", "a"], "on": "2026-01-05T13:00:00+01:00"}

    @action(
        risk="non_idempotent_write", remote="queryable", identity="all",
        query=lambda _: Found("R-7", fields=theirs), settle_window=WINDOW_S,
    )  # fmt: skip
    def pay(amount: Decimal, lines: list[str], on: datetime) -> object:
        return Unknown("no answer")

    meant = {"amount": "118.50", "lines": ["a", "b"], "on": "2026-01-05T12:00:00Z"}
    outcome = await door(pay, meant, ledger=frozen, world=World(sleep=clock.sleep, asleep=clock.asleep))
    await frozen.aclose()
    assert (outcome.code, outcome.receipt) == (Code.SUCCEEDED, "R-7")


@both_doors
@pytest.mark.parametrize("found", [Decimal("118.5"), 250, "250", "a lot", float("nan"), None, {"a": {1}}], ids=repr)
async def test_money_that_differs_is_shown_to_a_person(door: Door, found: object, frozen: Ledger, clock: Clock) -> None:
    """Whatever the remote side has in place of 25.00: the timeline holds both, and the call is answered."""

    @action(
        risk="non_idempotent_write", remote="queryable", identity="all",
        query=lambda _: Found("R-7", fields={"amount": found}), settle_window=WINDOW_S,
    )  # fmt: skip
    def pay(amount: Decimal) -> object:
        return Unknown("no answer")

    outcome = await door(pay, ["25.00"], ledger=frozen, world=World(sleep=clock.sleep, asleep=clock.asleep))
    detail = events_of(frozen, outcome)[-1].detail or {}
    await frozen.aclose()
    assert (outcome.code, outcome.state) == (Code.MANUAL_REVIEW, State.UNKNOWN)
    assert detail["receipt"] == "R-7"


@both_doors
async def test_a_query_that_can_tell_later_settles_what_was_in_the_manual_queue(
    door: Door, frozen: Ledger, clock: Clock
) -> None:
    """The search index was down, a person was called; a later call asks once, and has the receipt."""
    answers: list[object] = [Inconclusive("the index is down")]
    far = Far(lambda _: answers[-1])
    first = await far.call(door, frozen, clock)
    is_for_a_person(far, first)
    asked = len(far.asked_at)
    answers.append(Found("R-7", {"receipt": "R-7"}))
    later = await far.call(door, frozen, clock)
    assert (later.state, later.receipt, later.action_id) == (State.SUCCEEDED, "R-7", first.action_id)
    assert later.code in (Code.SUCCEEDED, Code.DUPLICATE)
    assert len(far.asked_at) == asked + 1
    assert (far.row.state, far.row.evidence, far.triggers[-1]) == (State.SUCCEEDED, "query", "find")
    again = await far.call(door, frozen, clock)
    assert (again.code, again.receipt, len(far.asked_at)) == (Code.DUPLICATE, "R-7", asked + 1)
    assert len(far.remote.effects) == 1


@both_doors
@pytest.mark.parametrize(
    "answer",
    [Inconclusive("still down"), Absent(), Found("R-7", fields={"amount": 250}), None],
    ids=["inconclusive", "absent", "other values", "nothing"],
)
async def test_a_query_that_still_cannot_tell_leaves_it_to_the_person(
    door: Door, answer: object, frozen: Ledger, clock: Clock
) -> None:
    """Each later call asks once and waits for nothing: manual review again, no second escalation, nothing sent."""
    answers: list[object] = [Inconclusive("the index is down")]
    far = Far(lambda _: answers[-1], remote="dedupes")
    first = await far.call(door, frozen, clock)
    is_for_a_person(far, first)
    asked, escalated_at, passed_s = len(far.asked_at), far.row.escalated_at, clock.elapsed_s
    answers.append(answer)
    for number in (1, 2):
        later = await far.call(door, frozen, clock)
        is_for_a_person(far, later)
        assert (later.action_id, far.row.escalated_at) == (first.action_id, escalated_at)
        assert len(far.asked_at) == asked + number
    assert clock.elapsed_s == passed_s
    assert far.triggers.count("escalate") == 1


@both_doors
@pytest.mark.parametrize("fields", [["order", "amount"], "order", 5], ids=repr)
async def test_found_fields_that_are_no_mapping_are_for_a_person(
    door: Door, fields: object, frozen: Ledger, clock: Clock
) -> None:
    """A fault in the author's query is no reason to take what was found, nor to lose the call."""
    far = Far(lambda _: Found("R-7", fields=fields))  # type: ignore[arg-type]
    outcome = await far.call(door, frozen, clock)
    is_for_a_person(far, outcome)
    assert (far.events[-1].detail or {})["receipt"] == "R-7"
    assert far.row.receipt is None
