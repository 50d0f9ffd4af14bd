"""How far one intent reaches: conversations, tenants, business keys, and time."""

import asyncio
from datetime import timedelta

import psycopg
import pytest

from acts import Clock, Door, Remote, action_of, both_doors, count, opened, states, through_async, through_sync
from settled import Code, Ledger, NotFound, State, action
from settled.tools.contract import ActionTool
from settled.tools.outcome import Refused, Rejected, Unknown

ARGUMENTS = ["E-7", "INV-102", 118.5]


def ticket(remote: Remote, *, ends: object = None, unique: bool = True, hours: float = 24) -> ActionTool:
    @action(
        risk="non_idempotent_write", remote="opaque", identity=("employee", "invoice"), max_attempts=1, deadline=30,
        unique=("employee", "invoice") if unique else None, window=timedelta(hours=hours),
    )  # fmt: skip
    def ticket(employee: str, invoice: str, amount: float) -> object:
        done = remote.do(invoice=invoice)
        return ends or done

    return ticket


@both_doors
async def test_a_business_key_has_one_effect_across_conversations(door: Door, ledger: Ledger) -> None:
    """A second conversation is refused with the first one's state and receipt."""
    remote = Remote()
    tool = ticket(remote)
    first = await door(tool, ARGUMENTS, ledger=ledger, thread_id="monday")
    second = await door(tool, ARGUMENTS, ledger=ledger, thread_id="tuesday")
    other_amount = await door(tool, ["E-7", "INV-102", 1], ledger=ledger, thread_id="wednesday")
    assert first.code == Code.SUCCEEDED
    for refused in (second, other_amount):
        assert (refused.code, refused.state, refused.receipt) == (Code.REJECTED, State.SUCCEEDED, "RF-1")
        assert refused.action_id == first.action_id
        assert refused.artifact["earlier_action_id"] == first.action_id
    assert (count(ledger.url), len(remote.effects)) == (1, 1)


@both_doors
async def test_an_unknown_action_holds_its_business_key(door: Door, ledger: Ledger) -> None:
    """While nobody knows, another conversation may not do it again."""
    remote = Remote()
    tool = ticket(remote, ends=Unknown("no answer"))
    first = await door(tool, ARGUMENTS, ledger=ledger, thread_id="monday")
    second = await door(tool, ARGUMENTS, ledger=ledger, thread_id="tuesday")
    assert (first.code, first.state) == (Code.MANUAL_REVIEW, State.UNKNOWN)
    assert (second.state, second.action_id) == (State.UNKNOWN, first.action_id)
    assert second.code in (Code.IN_PROGRESS, Code.UNKNOWN, Code.MANUAL_REVIEW)
    assert (count(ledger.url), len(remote.effects)) == (1, 1)


@both_doors
async def test_a_failed_action_gives_its_business_key_back(door: Door, ledger: Ledger) -> None:
    """What did not take place stands in nobody's way."""
    remote = Remote()
    failed = await door(ticket(remote, ends=Rejected("closed today")), ARGUMENTS, ledger=ledger, thread_id="monday")
    second = await door(ticket(remote), ARGUMENTS, ledger=ledger, thread_id="tuesday")
    assert (failed.code, second.code) == (Code.REJECTED, Code.SUCCEEDED)
    assert states(ledger.url) == ["failed", "succeeded"]


async def test_a_business_key_has_one_effect_at_the_same_instant(ledger: Ledger) -> None:
    """Sixteen conversations at once: one effect, and nobody is told that theirs is done anew."""
    remote = Remote()
    tool = ticket(remote)
    outcomes = await asyncio.gather(
        *(through_sync(tool, ARGUMENTS, ledger=ledger, thread_id=f"thread-{n}") for n in range(16))
    )
    assert len(remote.effects) == 1
    assert sorted(o.code for o in outcomes).count(Code.SUCCEEDED) == 1
    assert {o.code for o in outcomes} <= {Code.SUCCEEDED, Code.REJECTED, Code.IN_PROGRESS}
    assert len({o.action_id for o in outcomes}) == 1


@both_doors
async def test_tenants_never_meet(door: Door, ledger: Ledger) -> None:
    """The same thread, call, decision and business key of two tenants are two effects under two keys."""
    remote = Remote()
    tool = ticket(remote)
    outcomes = [await door(tool, ARGUMENTS, ledger=ledger, tenant=t, decision="click-1") for t in ("ours", "theirs")]
    assert [o.code for o in outcomes] == [Code.SUCCEEDED] * 2
    assert len({o.action_id for o in outcomes}) == len({o.idempotency_key for o in outcomes}) == 2
    assert len(remote.effects) == 2
    assert action_of(ledger, outcomes[0], "ours").tenant == "ours"
    with pytest.raises(AssertionError):
        action_of(ledger, outcomes[0], "theirs")


@both_doors
async def test_two_conversations_are_two_intents(door: Door, ledger: Ledger) -> None:
    """Without a business key each conversation has its own intent."""
    remote = Remote()
    tool = ticket(remote, unique=False)
    keys = [(await door(tool, ARGUMENTS, ledger=ledger, thread_id=t)).idempotency_key for t in ("monday", "tuesday")]
    assert remote.keys == keys
    assert len(set(keys)) == 2


@both_doors
async def test_after_its_window_the_same_call_is_a_new_action(door: Door, database_url: str) -> None:
    """Within 24 h a replay, after it a new occurrence with another key."""
    clock, remote = Clock(), Remote()
    tool = ticket(remote, unique=False)
    with opened(database_url, clock=clock) as ledger:
        first = await door(tool, ARGUMENTS, ledger=ledger)
        clock.sleep(24 * 3600 - 1)
        within = await door(tool, ARGUMENTS, ledger=ledger)
        clock.sleep(2)
        after = await door(tool, ARGUMENTS, ledger=ledger)
        again = await door(tool, ARGUMENTS, ledger=ledger)
        changed = await door(tool, ["E-7", "INV-102", 5], ledger=ledger)
        await ledger.aclose()
    assert [o.code for o in (first, within, after, again, changed)] == [
        *(Code.SUCCEEDED, Code.DUPLICATE, Code.SUCCEEDED, Code.DUPLICATE, Code.CONFLICT)
    ]
    assert first.action_id == within.action_id
    assert after.action_id == again.action_id == changed.action_id != first.action_id
    assert remote.keys == [first.idempotency_key, after.idempotency_key]
    assert first.idempotency_key != after.idempotency_key


@both_doors
async def test_an_open_action_never_leaves_the_window(door: Door, database_url: str) -> None:
    """A month later an unknown action still is the intent's action."""
    clock, remote = Clock(), Remote()
    tool = ticket(remote, ends=Unknown("no answer"), unique=False)
    with opened(database_url, clock=clock) as ledger:
        first = await door(tool, ARGUMENTS, ledger=ledger)
        clock.sleep(30 * 24 * 3600)
        later = await door(tool, ARGUMENTS, ledger=ledger)
        changed = await door(tool, ["E-7", "INV-102", 5], ledger=ledger)
        await ledger.aclose()
    assert [o.code for o in (first, later, changed)] == [Code.MANUAL_REVIEW, Code.MANUAL_REVIEW, Code.CONFLICT]
    assert {o.action_id for o in (first, later, changed)} == {first.action_id}
    assert len(remote.effects) == 1


@both_doors
async def test_a_business_key_outlives_the_window(door: Door, database_url: str) -> None:
    """A succeeded action keeps its business key however old it is, and the call is answered, not looped."""
    clock, remote = Clock(), Remote()
    tool = ticket(remote)
    with opened(database_url, clock=clock) as ledger:
        first = await door(tool, ARGUMENTS, ledger=ledger)
        clock.sleep(48 * 3600)
        same = await door(tool, ARGUMENTS, ledger=ledger)
        elsewhere = await door(tool, ARGUMENTS, ledger=ledger, thread_id="thread-2")
        await ledger.aclose()
    for later in (same, elsewhere):
        assert (later.code, later.receipt, later.action_id) == (Code.REJECTED, "RF-1", first.action_id)
    assert len(remote.effects) == 1


@both_doors
async def test_a_decision_is_remembered_beyond_the_window(door: Door, database_url: str) -> None:
    """A replayed decision returns the recorded outcome, however late."""
    clock, remote = Clock(), Remote()
    tool = ticket(remote, unique=False)
    with opened(database_url, clock=clock) as ledger:
        first = await door(tool, ARGUMENTS, ledger=ledger, decision="click-1")
        clock.sleep(48 * 3600)
        replay = await door(tool, ARGUMENTS, ledger=ledger, decision="click-1")
        await ledger.aclose()
    assert (replay.code, replay.replayed, replay.action_id) == (Code.SUCCEEDED, True, first.action_id)
    assert len(remote.effects) == 1


@both_doors
async def test_an_unavailable_service_is_asked_again_later_and_not_at_once(door: Door, database_url: str) -> None:
    """Within the deadline a repeat gets the same `unavailable`; after it the call is tried again under another key."""
    clock = Clock()
    away, back = Remote(), Remote()
    with opened(database_url, clock=clock) as ledger:
        first = await door(ticket(away, ends=Refused("503")), ARGUMENTS, ledger=ledger)
        at_once = await door(ticket(back), ARGUMENTS, ledger=ledger)
        clock.sleep(31)
        later = await door(ticket(back), ARGUMENTS, ledger=ledger)
        await ledger.aclose()
    assert [o.code for o in (first, at_once, later)] == [Code.UNAVAILABLE, Code.UNAVAILABLE, Code.SUCCEEDED]
    assert (first.replayed, at_once.replayed, later.replayed) == (False, True, False)
    assert at_once.action_id == first.action_id
    assert back.keys == [later.idempotency_key]
    assert later.idempotency_key != first.idempotency_key


async def test_the_window_is_judged_by_the_database_clock(database_url: str) -> None:
    """Two processes whose ledgers agree on the time agree on the window, whatever this process's clock says."""
    clock, remote = Clock(), Remote()
    tool = ticket(remote, hours=0.001, unique=False)
    with opened(database_url, clock=clock) as one, opened(database_url, clock=clock) as two:
        first = await through_sync(tool, ARGUMENTS, ledger=one)
        same = await through_sync(tool, ARGUMENTS, ledger=two)
        clock.sleep(4)
        after = await through_async(tool, ARGUMENTS, ledger=two)
        await two.aclose()
    assert same.action_id == first.action_id != after.action_id


@both_doors
@pytest.mark.parametrize("decision", [None, "click"])
async def test_a_changed_call_meets_a_business_key_that_was_taken_meanwhile(
    door: Door, decision: str | None, ledger: Ledger
) -> None:
    """Monday's call failed, Tuesday's did it: Monday's changed call gets Tuesday's receipt, and is not sent."""
    remote = Remote()
    click = [None if decision is None else f"{decision}-{n}" for n in range(3)]
    failed = await door(
        ticket(remote, ends=Rejected("closed")), ARGUMENTS, ledger=ledger, thread_id="monday", decision=click[0]
    )
    tool = ticket(remote)
    done = await door(tool, ARGUMENTS, ledger=ledger, thread_id="tuesday", decision=click[1])
    changed = await door(tool, ["E-7", "INV-102", 99], ledger=ledger, thread_id="monday", decision=click[2])
    assert (failed.code, done.code) == (Code.REJECTED, Code.SUCCEEDED)
    assert (changed.code, changed.action_id, changed.receipt) == (Code.REJECTED, done.action_id, done.receipt)
    assert len(remote.effects) == 2


@both_doors
async def test_a_decision_whose_action_was_purged_begins_nothing(door: Door, ledger: Ledger) -> None:
    """An old checkpoint is replayed after a purge: it is said that the record is gone, and nothing is sent again."""
    remote = Remote()
    tool = ticket(remote)
    await door(tool, ARGUMENTS, ledger=ledger, decision="message-1")
    with psycopg.connect(ledger.url, autocommit=True) as connection:
        connection.execute("DELETE FROM settled.actions")
    with pytest.raises(NotFound, match="purged"):
        await door(tool, ARGUMENTS, ledger=ledger, decision="message-1")
    assert len(remote.effects) == 1
