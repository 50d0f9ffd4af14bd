"""The manual queue: what a person is shown, what a person says became of it, and what everybody is told then."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any

import pytest
from cryptography.fernet import Fernet

from acts import (
    Clock,
    Door,
    Remote,
    action_of,
    both_doors,
    events_of,
    mainly_sync,
    opened,
    rows,
    through_async,
    triggers_of,
)
from settled import (
    Absent,
    Action,
    ActionTool,
    AlreadyDecided,
    Approve,
    AskAgain,
    Backoff,
    Code,
    ContractError,
    Desk,
    DidNotHappen,
    Found,
    Happened,
    Inconclusive,
    Inquiry,
    InvalidArguments,
    Ledger,
    ManualCase,
    NotFound,
    Outcome,
    Secret,
    SettledError,
    ShownOtherwise,
    State,
    Succeeded,
    Unknown,
    World,
    action,
    always,
    perform,
)
from settled.state import ledger as operations
from settled.state.ledger import Query
from settled.state.secrets import HIDDEN
from settled.tools.effects import Ask, Effect
from settled.tools.runner import REAL
from settled.tools.standing import claim_of

SECRET_KEY = Fernet.generate_key().decode()
WINDOW_S = 15.0
COOL_DOWN_S = 30.0
CARD = "4111-1111-1111-1111"
Resolution = Happened | DidNotHappen | AskAgain
RESOLUTIONS: tuple[Resolution, ...] = (Happened("R-1"), DidNotHappen(), AskAgain())


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def frozen(database_url: str, clock: Clock) -> AsyncIterator[Ledger]:
    """A ledger whose time passes only when a test says so, or sleeps."""
    ledger = Ledger.connect(database_url, clock=clock, secret_key=SECRET_KEY)
    try:
        yield ledger
    finally:
        await ledger.aclose()
        ledger.close()


Answer = Callable[[Inquiry], object]


class Far:
    """A far side that does it and loses its reply; it is asked by `answer`, which a test may change."""

    def __init__(self, clock: Clock, answer: Answer | None = None, **contract: Any) -> None:
        self.remote = Remote()
        self.answer = answer
        self.replies = 0
        self.world = World(sleep=clock.sleep, asleep=clock.asleep)
        declared: dict[str, Any] = {
            "remote": "opaque" if answer is None else "queryable",
            "query": None if answer is None else self._asked,
            "settle_window": WINDOW_S,
            **contract,
        }

        @action(risk="non_idempotent_write", identity=("order",), backoff=Backoff(jitter=0), **declared)
        def pay(order: str, amount: float = 25, card: Annotated[str, Secret()] = CARD) -> object:
            """Pay an order."""
            done = self.remote.do(order=order, amount=amount)
            return done if len(self.remote.effects) <= self.replies else Unknown("no answer")

        self.tool: ActionTool = pay

    def _asked(self, inquiry: Inquiry) -> Any:
        self.remote.asked += 1
        assert self.answer is not None
        return self.answer(inquiry)

    async def call(self, door: Door, ledger: Ledger, order: str = "A-1", **options: Any) -> Outcome:
        return await door(self.tool, {"order": order}, ledger=ledger, world=self.world, **options)


async def resolve(
    door: Door,
    ledger: Ledger,
    outcome: Outcome | Action,
    resolution: Resolution,
    *,
    by: str = "mia",
    note: str | None = None,
    fingerprint: str | None = None,
    tools: tuple[ActionTool, ...] = (),
    world: World = REAL,
) -> Action:
    """Resolve at the desk, through the door's own kind of it."""
    row = outcome if isinstance(outcome, Action) else action_of(ledger, outcome)
    desk = Desk(ledger, tools=tools, world=world)
    shown = fingerprint or row.fingerprint
    return await in_thread_or_loop(door, desk, row.id, resolution, by=by, note=note, fingerprint=shown)


async def in_thread_or_loop(door: Door, desk: Desk, action_id: str, resolution: Resolution, **said: Any) -> Action:
    if door is through_async:
        return await desk.aresolve(action_id, resolution, **said)
    return await asyncio.to_thread(desk.resolve, action_id, resolution, **said)


async def retry(door: Door, desk: Desk, action_id: str | None, **said: Any) -> Outcome:
    if door is through_async:
        return await desk.aretry(str(action_id), by="mia", **said)
    return await asyncio.to_thread(desk.retry, str(action_id), by="mia", **said)


def the_case(ledger: Ledger) -> ManualCase:
    (case,) = Desk(ledger).queue()
    return case


# What a person is shown


@mainly_sync
async def test_a_case_says_why_nobody_else_can_tell(door: Door, frozen: Ledger, clock: Clock) -> None:
    """A remote side that cannot be asked: the reason, the arguments with the secret sealed, and how long it waits."""
    far = Far(clock)
    end = await far.call(door, frozen)
    assert end.code == Code.MANUAL_REVIEW
    clock.elapsed_s += 90
    case = the_case(frozen)
    assert (case.action.id, case.action.state) == (end.action_id, State.UNKNOWN)
    assert (case.reason, case.asked) == ("the remote side cannot be asked", ())
    assert (case.meant, case.found, case.receipt) == (None, None, None)
    assert case.age == timedelta(seconds=90)
    assert {k: v for k, v in case.action.arguments.items() if k != "card"} == {"order": "A-1", "amount": 25}
    assert CARD not in repr(case)
    assert CARD not in str(rows(frozen.url, "SELECT arguments::text FROM settled.actions"))


@mainly_sync
async def test_a_case_holds_each_answer_of_the_remote_side(door: Door, frozen: Ledger, clock: Clock) -> None:
    """All that was asked, in order, and the last of it as the reason."""
    answers = iter([Absent(), Inconclusive("the index is down")])
    far = Far(clock, lambda _: next(answers, Inconclusive("two of them look alike")))
    await far.call(door, frozen)
    case = the_case(frozen)
    assert case.asked[:3] == (
        "absent",
        "inconclusive: the index is down",
        "inconclusive: two of them look alike",
    )
    assert len(case.asked) == far.remote.asked == case.action.queries == 6
    assert case.reason == "the remote side could not tell: two of them look alike"


@mainly_sync
async def test_a_case_shows_both_versions_and_hides_the_secret_in_both(
    door: Door, frozen: Ledger, clock: Clock
) -> None:
    """25 was meant and 250 is there; that the card differs is said, and neither card is."""
    far = Far(clock, lambda _: Found("R-7", fields={"order": "A-1", "amount": 250, "card": "5500-0000"}))
    await far.call(door, frozen)
    case = the_case(frozen)
    assert case.reason == "the remote side has other values"
    assert case.meant == {"amount": 25, "card": HIDDEN}
    assert case.found == {"amount": 250, "card": HIDDEN}
    assert case.receipt == "R-7"
    everything = repr(case) + str([dict(event.detail or {}) for event in frozen.timeline(case.action.id)])
    assert CARD not in everything
    assert "5500-0000" not in everything


@mainly_sync
async def test_a_case_shows_both_fingerprints(door: Door, frozen: Ledger, clock: Clock) -> None:
    """Something else under the key, of which no more is known than that."""
    other = "sha256:" + "ab" * 32
    far = Far(clock, lambda _: Found("R-7", fingerprint=other))
    await far.call(door, frozen)
    case = the_case(frozen)
    assert (case.meant, case.found, case.receipt) == (case.action.fingerprint, other, "R-7")


async def test_the_queue_is_oldest_first_bounded_and_one_tenants(frozen: Ledger, clock: Clock) -> None:
    """What has waited longest comes first; another tenant's desk sees nothing of it, by no way."""
    far = Far(clock)
    ends = []
    for number in range(3):
        ends.append(await far.call(through_async, frozen, f"A-{number}"))
        clock.elapsed_s += 10
    desk, other = Desk(frozen), Desk(frozen, tenant="other")
    assert [case.action.id for case in desk.queue()] == [end.action_id for end in ends]
    assert [case.action.id for case in desk.queue(most=2)] == [end.action_id for end in ends[:2]]
    assert [case.age.total_seconds() for case in desk.queue()] == [30, 20, 10]
    assert other.queue() == []
    row = action_of(frozen, ends[0])
    with pytest.raises(NotFound):
        other.case(row.id)
    for resolution in RESOLUTIONS:
        with pytest.raises(NotFound):
            other.resolve(row.id, resolution, by="eve", fingerprint=row.fingerprint)
    with pytest.raises(NotFound):
        Desk(frozen, tenant="other", tools=[far.tool]).retry(row.id, by="eve")
    assert action_of(frozen, ends[0]) == replace(row, now=action_of(frozen, ends[0]).now)


async def test_a_case_that_is_no_case(frozen: Ledger, clock: Clock) -> None:
    """An unknown id does not exist; what is settled has nothing to resolve, and a way to say so."""
    far = Far(clock)
    far.replies = 1
    done = await far.call(through_async, frozen)
    desk, row = Desk(frozen), action_of(frozen, done)
    with pytest.raises(NotFound):
        desk.case("act-nobody")
    with pytest.raises(AlreadyDecided, match="succeeded"):
        desk.case(row.id)
    for resolution in RESOLUTIONS:
        with pytest.raises(AlreadyDecided, match="succeeded"):
            desk.resolve(row.id, resolution, by="mia", fingerprint=row.fingerprint)
        with pytest.raises(NotFound):
            desk.resolve("act-nobody", resolution, by="mia", fingerprint=row.fingerprint)


# What a person says


@both_doors
async def test_happened_settles_it_with_the_receipt_and_who_said_so(door: Door, frozen: Ledger, clock: Clock) -> None:
    """Also before its time in flight is over: what is there is there. The next call is a duplicate with the receipt."""
    far = Far(clock)
    end = await far.call(door, frozen)
    moved = await resolve(door, frozen, end, Happened("R-55"), note="seen in their console")
    assert (moved.state, moved.receipt, moved.result, moved.evidence) == (
        *(State.SUCCEEDED, "R-55", {"receipt": "R-55"}, "person"),
    )
    event = events_of(frozen, end)[-1]
    assert (event.trigger, event.from_state, event.to_state, event.actor) == ("find", "unknown", "succeeded", "mia")
    assert event.detail == {"receipt": "R-55", "evidence": "person", "note": "seen in their console"}
    assert Desk(frozen).queue() == []
    again = await far.call(door, frozen)
    assert (again.code, again.receipt, again.result) == (Code.DUPLICATE, "R-55", {"receipt": "R-55"})
    assert "R-55" in again.message
    assert len(far.remote.effects) == 1


@mainly_sync
async def test_happened_takes_a_result_or_no_receipt(door: Door, frozen: Ledger, clock: Clock) -> None:
    """What the tool would have returned, where the person has it; a remote side without references has none."""
    far = Far(clock)
    with_result = await far.call(door, frozen, "A-1")
    await resolve(door, frozen, with_result, Happened("R-1", {"receipt": "R-1", "paid": [1, None]}))
    assert (await far.call(door, frozen, "A-1")).result == {"receipt": "R-1", "paid": [1, None]}
    without = await far.call(door, frozen, "A-2")
    await resolve(door, frozen, without, Happened())
    again = await far.call(door, frozen, "A-2")
    assert (again.code, again.receipt) == (Code.DUPLICATE, None)


@both_doors
async def test_did_not_happen_closes_it_and_a_later_call_is_a_new_one(door: Door, frozen: Ledger, clock: Clock) -> None:
    """Told as not carried out, by a person's word; when that has cooled, a call is carried out under another key."""
    far = Far(clock)
    end = await far.call(door, frozen)
    clock.elapsed_s += WINDOW_S
    moved = await resolve(door, frozen, end, DidNotHappen(), note="their log has no trace of it")
    assert (moved.state, moved.code, moved.may_change, moved.evidence) == (State.FAILED, "unavailable", True, "person")
    event = events_of(frozen, end)[-1]
    assert (event.trigger, event.actor) == ("fail", "mia")
    assert event.detail == {"code": "unavailable", "reason": "their log has no trace of it"}
    for language, fact in (("en", "a person has checked it. Nothing was changed"), ("zh", "已由人工核实")):
        again = await far.call(door, frozen, language=language)
        assert (again.code, again.action_id, again.replayed) == (Code.UNAVAILABLE, end.action_id, True)
        assert fact in again.message
        assert again.artifact["may_retry"] is False
    assert len(far.remote.effects) == 1
    clock.elapsed_s += COOL_DOWN_S + 1
    far.replies = 9
    later = await far.call(door, frozen)
    assert (later.code, later.action_id != end.action_id) == (Code.SUCCEEDED, True)
    assert len(set(far.remote.keys)) == 2


@mainly_sync
async def test_did_not_happen_is_refused_while_it_may_still_take_effect(
    door: Door, frozen: Ledger, clock: Clock
) -> None:
    """A request that is queued on the way may arrive until the settle window is over: a word for it is too early."""
    end = await Far(clock).call(door, frozen)
    clock.elapsed_s = WINDOW_S - 0.001
    with pytest.raises(InvalidArguments, match="may still take effect until 2026-01-05 12:00:15") as refused:
        await resolve(door, frozen, end, DidNotHappen())
    assert refused.value.field == "resolution"
    assert action_of(frozen, end).state is State.UNKNOWN
    clock.elapsed_s = WINDOW_S
    assert (await resolve(door, frozen, end, DidNotHappen())).state is State.FAILED


@both_doors
async def test_ask_again_sends_it_back_to_whoever_asks(door: Door, frozen: Ledger, clock: Clock) -> None:
    """Out of the queue, with who said so; the next call asks, and has the receipt."""
    far = Far(clock, lambda _: Inconclusive("the index is down"))
    end = await far.call(door, frozen)
    moved = await resolve(door, frozen, end, AskAgain(), note="their index is up")
    assert (moved.state, moved.escalated_at, Desk(frozen).queue()) == (State.UNKNOWN, None, [])
    event = events_of(frozen, end)[-1]
    assert (event.trigger, event.actor, event.detail) == ("ask_again", "mia", {"note": "their index is up"})
    far.answer = lambda _: Found("R-9", {"receipt": "R-9"})
    clock.elapsed_s += 3  # whoever reconciles has gone: the query is overdue
    again = await far.call(door, frozen)
    assert (again.state, again.receipt, again.action_id) == (State.SUCCEEDED, "R-9", end.action_id)
    assert len(far.remote.effects) == 1


@mainly_sync
async def test_ask_again_in_vain_is_a_case_again(door: Door, frozen: Ledger, clock: Clock) -> None:
    """With the newest reason, all the answers, and its age from now on; a remote side that cannot be asked as well."""
    answers: list[object] = [Inconclusive("the index is down")]
    far, opaque = Far(clock, lambda _: answers[-1]), Far(clock)
    for number, one in enumerate((far, opaque)):
        end = await one.call(door, frozen, f"A-{number}")
        await resolve(door, frozen, end, AskAgain())
        answers.append(Inconclusive("it is being built"))
        clock.elapsed_s += 3
        again = await one.call(door, frozen, f"A-{number}")
        assert (again.code, again.action_id) == (Code.MANUAL_REVIEW, end.action_id)
        assert [t for t in triggers_of(frozen, end) if t != "ask"] == [
            *("plan", "approve", "claim", "lose", "escalate", "ask_again", "escalate")
        ]
    first, second = Desk(frozen).queue()
    assert first.reason == "the remote side could not tell: it is being built"
    assert first.asked[0] == "inconclusive: the index is down"
    assert first.asked[-1] == "inconclusive: it is being built"
    assert (second.reason, second.age.total_seconds()) == ("the remote side cannot be asked", 0)


@mainly_sync
async def test_ask_again_twice_is_once(door: Door, frozen: Ledger, clock: Clock) -> None:
    """Two people send it back: no error, and one line in the timeline."""
    end = await Far(clock, lambda _: Inconclusive("the index is down")).call(door, frozen)
    for by in ("mia", "bob"):
        assert (await resolve(door, frozen, end, AskAgain(), by=by)).escalated_at is None
    assert triggers_of(frozen, end).count("ask_again") == 1


@mainly_sync
async def test_the_same_word_twice_is_once(door: Door, frozen: Ledger, clock: Clock) -> None:
    """A double click hears no error, and another word hears that it comes too late."""
    far = Far(clock)
    one, other = await far.call(door, frozen, "A-1"), await far.call(door, frozen, "A-2")
    clock.elapsed_s = WINDOW_S
    for _ in range(2):
        assert (await resolve(door, frozen, one, Happened("R-1"))).state is State.SUCCEEDED
        assert (await resolve(door, frozen, other, DidNotHappen())).state is State.FAILED
    assert (triggers_of(frozen, one).count("find"), triggers_of(frozen, other).count("fail")) == (1, 1)
    for end, word in ((one, Happened("R-2")), (one, DidNotHappen()), (other, Happened("R-1")), (other, AskAgain())):
        with pytest.raises(AlreadyDecided, match="there is nothing to resolve"):
            await resolve(door, frozen, end, word)


@mainly_sync
async def test_a_word_about_something_else_is_refused(door: Door, frozen: Ledger, clock: Clock) -> None:
    """The fingerprint that a person was shown is not the action's: nothing moves, whatever is said."""
    end = await Far(clock).call(door, frozen)
    row = action_of(frozen, end)
    clock.elapsed_s = WINDOW_S
    desk = Desk(frozen)
    others: list[Any] = ["sha256:" + "ab" * 32, "ab" * 32, row.fingerprint[:18], "", None, 5]
    for shown, resolution in itertools.product(others, RESOLUTIONS):
        with pytest.raises(ShownOtherwise):
            await in_thread_or_loop(door, desk, row.id, resolution, by="mia", fingerprint=shown, note=None)
    assert triggers_of(frozen, end)[-1] == "escalate"
    assert (await resolve(door, frozen, end, Happened("R-1"), fingerprint=row.fingerprint[:19])).receipt == "R-1"


async def test_a_word_without_a_name_is_refused(frozen: Ledger, clock: Clock) -> None:
    """Who said it stands in the timeline: somebody, and not what the ledger calls a policy."""
    end = await Far(clock).call(through_async, frozen)
    for by in ("", "  ", "a\nb", "policy", "Policy: x", "x" * 201):
        with pytest.raises(InvalidArguments) as refused:
            await resolve(through_async, frozen, end, Happened("R-1"), by=by)
        assert refused.value.field == "by"
    assert action_of(frozen, end).state is State.UNKNOWN


async def test_what_is_no_resolution_is_refused(frozen: Ledger, clock: Clock) -> None:
    """A decision of another kind, or a word, is a mistake in the caller's code."""
    end = await Far(clock).call(through_async, frozen)
    nothing: list[Any] = [None, "happened", Approve(), Happened]
    for resolution in nothing:
        with pytest.raises(ContractError, match="Happened"):
            await resolve(through_async, frozen, end, resolution)
    assert action_of(frozen, end).state is State.UNKNOWN


async def test_any_note_and_receipt_can_be_kept(frozen: Ledger, clock: Clock) -> None:
    """What a person pasted does not keep the word from being written."""
    far = Far(clock)
    for number, note in enumerate(("NUL \x00 and \ud800", "x" * 5000)):
        ends = [await far.call(through_async, frozen, f"A-{number}-{n}") for n in range(2)]
        happened = await resolve(through_async, frozen, ends[0], Happened(note), note=note)
        clock.elapsed_s += WINDOW_S
        not_so = await resolve(through_async, frozen, ends[1], DidNotHappen(), note=note)
        assert (happened.state, not_so.state) == (State.SUCCEEDED, State.FAILED)


def test_of_two_words_at_once_one_stands(database_url: str, clock: Clock) -> None:
    """Two people at two desks, at one instant: one event, and the other hears what became of it."""
    options: dict[str, Any] = {"clock": clock, "secret_key": SECRET_KEY}
    for turn in range(4):
        with opened(database_url, **options) as one, opened(database_url, **options) as two:
            far = Far(clock)
            end = perform(far.tool, {"order": f"A-{turn}"}, ledger=one, thread_id="t", world=far.world)
            row = action_of(one, end)
            clock.elapsed_s += WINDOW_S
            start = threading.Barrier(2)
            moved: list[Action] = []
            refused: list[SettledError] = []

            def say(desk: Desk, by: str, resolution: Resolution, row: Action = row) -> None:
                start.wait(10)  # noqa: B023 - joined in the same turn
                try:
                    moved.append(desk.resolve(row.id, resolution, by=by, fingerprint=row.fingerprint))  # noqa: B023
                except SettledError as error:
                    refused.append(error)  # noqa: B023

            threads = [
                threading.Thread(target=say, args=(Desk(one), "mia", Happened("R-1"))),
                threading.Thread(target=say, args=(Desk(two), "bob", DidNotHappen())),
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            assert len(moved) == len(refused) == 1
            assert isinstance(refused[0], AlreadyDecided)
            stands = action_of(one, end)
            assert stands.state is moved[0].state
            assert str(stands.state) in str(refused[0])
            assert len([t for t in triggers_of(one, end) if t in ("find", "fail")]) == 1


@mainly_sync
async def test_a_word_frees_the_business_key_or_keeps_it(door: Door, frozen: Ledger, clock: Clock) -> None:
    """Another conversation wants the same order paid: it waits while nobody knows, may when it did not happen, and
    hears the receipt when it did.
    """
    far = Far(clock, unique=("order",))
    ends = [await far.call(door, frozen, order) for order in ("A-1", "A-2")]
    far.replies = 9
    assert (await far.call(door, frozen, "A-1", thread_id="t-2", wait_s=0)).code == Code.IN_PROGRESS
    clock.elapsed_s += WINDOW_S
    await resolve(door, frozen, ends[0], DidNotHappen())
    await resolve(door, frozen, ends[1], Happened("R-2"))
    free = await far.call(door, frozen, "A-1", thread_id="t-2")
    kept = await far.call(door, frozen, "A-2", thread_id="t-2")
    assert (free.code, kept.code, kept.receipt) == (Code.SUCCEEDED, Code.REJECTED, "R-2")
    assert len(far.remote.effects) == 3


# What moves meanwhile


@mainly_sync
async def test_a_late_reply_that_was_first_makes_the_word_too_late(door: Door, frozen: Ledger, clock: Clock) -> None:
    """The original attempt answered between the page and the click: its receipt stands, the person hears so."""
    end = await Far(clock).call(door, frozen)
    row = action_of(frozen, end)
    reply = operations.succeed(claim_of(row, ""), row, receipt="R-1", result='{"receipt":"R-1"}')
    assert frozen.run(reply) is not None
    clock.elapsed_s = WINDOW_S
    with pytest.raises(AlreadyDecided, match="succeeded"):
        await resolve(door, frozen, row, DidNotHappen())
    after = action_of(frozen, end)
    assert (after.state, after.receipt, after.evidence) == (State.SUCCEEDED, "R-1", "reply")


def during(ledger: Ledger, name: str, query: Callable[[], Query[Any]]) -> World:
    """A world in which somebody else's statement comes in right before the first one called `name`."""
    done: list[object] = []

    def watch(effect: Effect, when: str) -> None:
        if when == "before" and not done and isinstance(effect, Ask) and effect.query.name == name:
            done.append(None)
            ledger.run(query())

    return World(watch=watch)


@both_doors
@pytest.mark.parametrize(
    ("resolution", "statement"), [(Happened("R-9"), "find"), (DidNotHappen(), "fail"), (AskAgain(), "ask_again")]
)
async def test_a_query_that_finds_it_at_that_moment_makes_the_word_too_late(
    door: Door, resolution: Resolution, statement: str, frozen: Ledger, clock: Clock
) -> None:
    """Another caller settles it between the desk's reading and its writing: nothing of the word is written."""
    end = await Far(clock, lambda _: Inconclusive("the index is down")).call(door, frozen)
    row = action_of(frozen, end)
    found = operations.find(claim_of(row, ""), receipt="R-1", result='{"receipt":"R-1"}', evidence="query")
    world = during(frozen, statement, lambda: found)
    with pytest.raises(AlreadyDecided, match="succeeded"):
        await resolve(door, frozen, row, resolution, world=world)
    after = action_of(frozen, end)
    assert (after.state, after.receipt, after.evidence) == (State.SUCCEEDED, "R-1", "query")
    assert {event.actor for event in events_of(frozen, end)} <= {None, "policy"}


@mainly_sync
async def test_a_call_asks_the_remote_side_while_a_person_thinks(door: Door, frozen: Ledger, clock: Clock) -> None:
    """A later call finds it; the person's word comes second."""
    far = Far(clock, lambda _: Inconclusive("the index is down"))
    end = await far.call(door, frozen)
    row = action_of(frozen, end)
    far.answer = lambda _: Found("R-9", {"receipt": "R-9"})
    assert (await far.call(door, frozen)).receipt == "R-9"
    with pytest.raises(AlreadyDecided, match="succeeded"):
        await resolve(door, frozen, row, Happened("R-other"))
    assert action_of(frozen, end).receipt == "R-9"


async def test_a_late_reply_after_it_did_not_happen_is_kept(ledger: Ledger) -> None:
    """The person was wrong: the row stands as decided, and the reply with its receipt is in the timeline."""
    answered = threading.Event()

    @action(
        risk="non_idempotent_write", remote="opaque", identity="all", timeout=0.2, lease=0.5, settle_window=0.3,
        deadline=1,
    )  # fmt: skip
    def pay(order: int) -> Succeeded:
        answered.wait(20)
        return Succeeded({"receipt": "R-1"}, "R-1")

    end = await asyncio.to_thread(perform, pay, [1], ledger=ledger, thread_id="t")
    assert end.code == Code.MANUAL_REVIEW
    await asyncio.sleep(0.2)
    moved = await asyncio.to_thread(
        Desk(ledger).resolve,
        str(end.action_id),
        DidNotHappen(),
        by="mia",
        fingerprint=action_of(ledger, end).fingerprint,
    )
    answered.set()
    for _ in range(200):
        if triggers_of(ledger, end)[-1] == "late":
            break
        await asyncio.sleep(0.02)
    kept = events_of(ledger, end)[-1]
    assert (kept.trigger, kept.detail) == ("late", {"wanted": "succeeded", "receipt": "R-1", "fencing_token": 1})
    after = action_of(ledger, end)
    assert (after.state, after.settled_at, after.receipt) == (State.FAILED, moved.settled_at, None)


# What is running


def begun(ledger: Ledger, tool: ActionTool, order: str = "A-1") -> Action:
    """An action whose owner has claimed it and was never seen again."""
    rows_: list[Action] = []

    def watch(effect: Effect, when: str) -> None:
        if type(effect).__name__ == "Invoke":
            raise KeyboardInterrupt

    def die() -> None:
        try:
            perform(tool, {"order": order}, ledger=ledger, thread_id="thread-1", world=World(watch=watch))
        except KeyboardInterrupt:
            rows_.extend(ledger.actions(states=["running"]))

    die()
    return rows_[0]


@both_doors
async def test_what_a_live_owner_runs_is_not_for_a_person(door: Door, frozen: Ledger, clock: Clock) -> None:
    """Its lease is not over: whatever is said is refused, and nothing is written."""
    row = begun(frozen, Far(clock).tool)
    clock.elapsed_s = 14.9
    for resolution in RESOLUTIONS:
        with pytest.raises(AlreadyDecided, match="is running: its outcome will be known, or its lease ends"):
            await resolve(door, frozen, row, resolution)
    assert [e.trigger for e in frozen.timeline(row.id)] == ["plan", "approve", "claim"]
    assert Desk(frozen).case(row.id).action.state is State.RUNNING


@both_doors
async def test_what_a_dead_owner_ran_is_for_a_person(door: Door, frozen: Ledger, clock: Clock) -> None:
    """Its lease is over: it becomes unknown and is settled, with both in the timeline."""
    far = Far(clock)
    row = begun(frozen, far.tool)
    clock.elapsed_s = 15.1
    moved = await resolve(door, frozen, row, Happened("R-1"))
    assert (moved.state, moved.receipt, moved.evidence) == (State.SUCCEEDED, "R-1", "person")
    events = frozen.timeline(row.id)
    assert [(e.trigger, e.actor) for e in events[-2:]] == [("lose", None), ("find", "mia")]
    assert (await far.call(door, frozen)).code == Code.DUPLICATE
    assert far.remote.effects == []


@mainly_sync
async def test_an_owner_that_wakes_at_that_moment_keeps_what_it_runs(door: Door, frozen: Ledger, clock: Clock) -> None:
    """A frozen process renews its lease between the desk's reading and its writing: the statement judges the lease."""
    row = begun(frozen, Far(clock).tool)
    clock.elapsed_s = 15.1
    renewal = operations.renew([(claim_of(row, ""), 60.0)])
    world = during(frozen, "lose", lambda: renewal)
    with pytest.raises(AlreadyDecided, match="is running"):
        await resolve(door, frozen, row, Happened("R-1"), world=world)
    assert frozen.action(row.id).state is State.RUNNING


@both_doors
async def test_a_dead_owners_request_may_take_effect_as_long_as_its_contract_says(
    door: Door, frozen: Ledger, clock: Clock
) -> None:
    """A desk that has the tool knows its settle window, and takes no "it did not happen" before the end of it."""
    far = Far(clock, settle_window=600.0)
    row = begun(frozen, far.tool)
    clock.elapsed_s = 60
    with pytest.raises(InvalidArguments, match="may still take effect until 2026-01-05 12:10:00"):
        await resolve(door, frozen, row, DidNotHappen(), tools=(far.tool,))
    clock.elapsed_s = 600
    assert (await resolve(door, frozen, row, DidNotHappen(), tools=(far.tool,))).state is State.FAILED


# What is carried on


@both_doors
async def test_retry_runs_what_is_approved(door: Door, frozen: Ledger, clock: Clock) -> None:
    """In this process, once; the conversation's own call then has the receipt."""
    far = Far(clock, approval=always)
    far.replies = 9
    waiting = await far.call(door, frozen)
    row = action_of(frozen, waiting)
    desk = Desk(frozen, tools=[far.tool], world=far.world)
    assert (await retry(door, desk, row.id)).code == Code.WAITING_FOR_APPROVAL
    assert far.remote.effects == []
    await desk.adecide(row.id, Approve(), by="bob", fingerprint=row.fingerprint)
    end = await retry(door, desk, row.id)
    assert (end.code, end.receipt, end.action_id) == (Code.SUCCEEDED, "RF-1", row.id)
    with pytest.raises(AlreadyDecided, match="succeeded"):
        await retry(door, desk, row.id)
    assert (await far.call(door, frozen)).code == Code.DUPLICATE
    assert len(far.remote.effects) == 1
    assert (await asyncio.to_thread(desk.approval, row.id)).spent_at is not None


def test_two_desks_that_retry_at_once_run_it_once(database_url: str, clock: Clock) -> None:
    """One claims; the other is told that it is in progress, or its outcome."""
    key = {"secret_key": SECRET_KEY}
    with opened(database_url, **key) as one, opened(database_url, **key) as two:
        far = Far(clock, approval=always)
        far.replies = 9
        row = action_of(one, perform(far.tool, {"order": "A"}, ledger=one, thread_id="t"))
        Desk(one).decide(row.id, Approve(), by="bob", fingerprint=row.fingerprint)
        start = threading.Barrier(8)
        ends: list[object] = []

        def carry_on(ledger: Ledger) -> None:
            start.wait(10)
            try:
                ends.append(str(Desk(ledger, tools=[far.tool]).retry(row.id, by="mia").code))
            except AlreadyDecided as error:
                ends.append(type(error).__name__)

        threads = [threading.Thread(target=carry_on, args=(ledger,)) for ledger in (one, two) * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert len(ends) == 8
        assert set(ends) <= {"succeeded", "in_progress", "AlreadyDecided"}
        assert "succeeded" in ends
        assert (len(far.remote.effects), triggers_of(one, perform_again(far, one)).count("claim")) == (1, 1)


def perform_again(far: Far, ledger: Ledger) -> Outcome:
    return perform(far.tool, {"order": "A"}, ledger=ledger, thread_id="t")


@both_doors
async def test_retry_asks_about_what_is_unknown(door: Door, frozen: Ledger, clock: Clock) -> None:
    """From the manual queue, with who wanted it; found, it is settled, and nothing is sent."""
    far = Far(clock, lambda _: Inconclusive("the index is down"))
    end = await far.call(door, frozen)
    far.answer = lambda _: Found("R-9", {"receipt": "R-9"})
    desk = Desk(frozen, tools=[far.tool], world=far.world)
    told = await retry(door, desk, end.action_id, note="it is up again")
    assert (told.code, told.receipt, len(far.remote.effects)) == (Code.SUCCEEDED, "R-9", 1)
    asked = next(e for e in events_of(frozen, end) if e.trigger == "ask_again")
    assert (asked.actor, asked.detail) == ("mia", {"note": "it is up again"})


@mainly_sync
@pytest.mark.parametrize(
    ("contract", "code", "sent"),
    [
        ({}, Code.MANUAL_REVIEW, 1),
        ({"remote": "dedupes"}, Code.SUCCEEDED, 2),
        ({"unique": ("order",), "resend_when_absent": True}, Code.SUCCEEDED, 2),
    ],
    ids=["queryable", "dedupes", "resend when absent"],
)
async def test_retry_sends_again_only_where_the_contract_allows_it(
    door: Door, contract: Mapping[str, Any], code: Code, sent: int, frozen: Ledger, clock: Clock
) -> None:
    """Absent, and proved so: under the same key where a repeat is recognised or allowed; else it stays a person's."""
    far = Far(clock, lambda _: Inconclusive("the index is down"), **contract)
    end = await far.call(door, frozen)
    far.answer = lambda _: Absent()
    far.replies = 9
    clock.elapsed_s += COOL_DOWN_S
    told = await retry(door, Desk(frozen, tools=[far.tool], world=far.world), end.action_id)
    assert (told.code, told.action_id, len(far.remote.effects)) == (code, end.action_id, sent)
    assert set(far.remote.keys) == {end.idempotency_key}


@mainly_sync
async def test_retry_of_what_cannot_be_asked_stays_with_the_person(door: Door, frozen: Ledger, clock: Clock) -> None:
    """Nothing is sent, nothing is asked, and it is still in the queue."""
    far = Far(clock)
    end = await far.call(door, frozen)
    told = await retry(door, Desk(frozen, tools=[far.tool], world=far.world), end.action_id)
    assert (told.code, len(far.remote.effects)) == (Code.MANUAL_REVIEW, 1)
    assert the_case(frozen).action.id == end.action_id


@mainly_sync
async def test_retry_leaves_what_a_live_owner_runs(door: Door, frozen: Ledger, clock: Clock) -> None:
    """In progress while its lease lasts; then it is unknown, and asked about."""
    far = Far(clock, lambda _: Found("R-9", {"receipt": "R-9"}))
    row = begun(frozen, far.tool)
    desk = Desk(frozen, tools=[far.tool], world=far.world)
    assert (await retry(door, desk, row.id)).code == Code.IN_PROGRESS
    clock.elapsed_s = 15.1
    told = await retry(door, desk, row.id)
    assert (told.code, told.receipt, far.remote.effects) == (Code.SUCCEEDED, "R-9", [])


@both_doors
async def test_retry_needs_the_tool(door: Door, frozen: Ledger, clock: Clock) -> None:
    """A desk without it says what to give it."""
    end = await Far(clock).call(door, frozen)
    with pytest.raises(ContractError, match=r"needs the tool pay: give it to the desk"):
        await retry(door, Desk(frozen), end.action_id)
    with pytest.raises(NotFound):
        await retry(door, Desk(frozen), "act-nobody")
