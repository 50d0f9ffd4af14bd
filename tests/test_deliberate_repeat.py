"""A second refund of the same amount is possible, and never silent: `repeat_of` asks a person about a new action."""

import asyncio

import pytest

from acts import Clock, Door, Remote, action_of, both_doors, count, events_of, opened, states, through_sync, triggers_of
from settled import Code, Desk, Ledger, Outcome, State, action, perform
from settled.state import ledger as ledger_queries
from settled.state.machine import Trigger
from settled.tools.contract import ActionTool

ARGUMENTS: dict[str, object] = {"order_id": "A-1", "amount": 25}


def refund(remote: Remote, *, unique: tuple[str, ...] = ()) -> ActionTool:
    @action(risk="non_idempotent_write", remote="opaque", identity=("order_id",), unique=unique)
    def refund(order_id: str, amount: float) -> object:
        return remote.do(order_id=order_id, amount=amount)

    return refund


def approve(ledger: Ledger, outcome: Outcome, *, valid_for_s: float | None = None) -> None:
    action = action_of(ledger, outcome)
    query = ledger_queries.approve(
        "default", action.id, fingerprint=action.fingerprint, approver="sam", valid_for_s=valid_for_s
    )
    assert ledger.run(query) is not None


@both_doors
async def test_a_repeat_waits_for_a_person_and_then_runs_under_its_own_key(door: Door, ledger: Ledger) -> None:
    """Nothing is sent before the approval; after it the repeat runs once, with another key."""
    remote = Remote()
    tool = refund(remote)
    first = await door(tool, ARGUMENTS, ledger=ledger)
    repeat = {**ARGUMENTS, "repeat_of": first.action_id}

    waiting = [await door(tool, repeat, ledger=ledger) for _ in range(2)]
    assert [(o.code, o.state) for o in waiting] == [(Code.WAITING_FOR_APPROVAL, State.PLANNED)] * 2
    assert waiting[0].action_id == waiting[1].action_id != first.action_id
    assert len(remote.effects) == 1

    approve(ledger, waiting[0])
    done = await door(tool, repeat, ledger=ledger)
    assert (done.code, done.state, done.receipt) == (Code.SUCCEEDED, State.SUCCEEDED, "RF-2")
    assert done.action_id == waiting[0].action_id
    assert done.idempotency_key != first.idempotency_key
    assert remote.keys == [first.idempotency_key, done.idempotency_key]
    assert triggers_of(ledger, done) == ["plan", "approve", "claim", "succeed"]
    assert events_of(ledger, done)[1].actor == "sam"

    again = await door(tool, repeat, ledger=ledger)
    assert (again.code, again.receipt, len(remote.effects)) == (Code.DUPLICATE, "RF-2", 2)


@both_doors
async def test_one_more_with_another_amount_is_a_way_on_from_a_conflict(door: Door, ledger: Ledger) -> None:
    """The conflict's own advice works: `repeat_of` with another amount asks a person, and meets no conflict again."""
    remote = Remote()
    tool = refund(remote)
    first = await door(tool, ARGUMENTS, ledger=ledger)
    other = {"order_id": "A-1", "amount": 40}
    conflict = await door(tool, other, ledger=ledger)
    assert conflict.code == Code.CONFLICT
    repeat = {**other, "repeat_of": conflict.artifact["earlier_action_id"]}
    waiting = await door(tool, repeat, ledger=ledger)
    assert (waiting.code, waiting.state) == (Code.WAITING_FOR_APPROVAL, State.PLANNED)
    assert waiting.action_id != first.action_id
    approve(ledger, waiting)
    done = await door(tool, repeat, ledger=ledger)
    assert (done.code, done.action_id) == (Code.SUCCEEDED, waiting.action_id)
    assert [e["amount"] for e in remote.effects] == [25, 40]


@both_doors
@pytest.mark.parametrize("named", ["act-0000000000000000", "nonsense", " "])
async def test_a_repeat_of_nothing_is_invalid(door: Door, named: str, ledger: Ledger) -> None:
    """An id that names no earlier action is refused by field and rule; nothing is planned."""
    remote = Remote()
    outcome = await door(refund(remote), {**ARGUMENTS, "repeat_of": named}, ledger=ledger)
    assert (outcome.code, outcome.state, outcome.action_id) == (Code.INVALID, None, None)
    assert "repeat_of" in outcome.message
    assert (count(ledger.url), remote.effects) == (0, [])


@both_doors
async def test_an_empty_repeat_of_names_none(door: Door, ledger: Ledger) -> None:
    """A model that fills every field in sends "": that is the plain call, and a second one its repeat."""
    remote = Remote()
    tool = refund(remote)
    outcomes = [await door(tool, {**ARGUMENTS, "repeat_of": ""}, ledger=ledger) for _ in range(2)]
    assert [(o.code, o.receipt) for o in outcomes] == [(Code.SUCCEEDED, "RF-1"), (Code.DUPLICATE, "RF-1")]
    assert (count(ledger.url), len(remote.effects)) == (1, 1)


async def test_a_repeat_of_another_tenants_action_does_not_exist(ledger: Ledger) -> None:
    """Ids of another tenant name nothing."""
    remote = Remote()
    tool = refund(remote)
    theirs = await through_sync(tool, ARGUMENTS, ledger=ledger, tenant="theirs")
    ours = await through_sync(tool, {**ARGUMENTS, "repeat_of": theirs.action_id}, ledger=ledger, tenant="ours")
    assert ours.code == Code.INVALID
    assert (count(ledger.url), len(remote.effects)) == (1, 1)


@both_doors
async def test_an_approval_that_has_ended_runs_nothing(door: Door, ledger: Ledger) -> None:
    """The end of an approval is judged at the claim, by the database's clock."""
    remote = Remote()
    tool = refund(remote)
    first = await door(tool, ARGUMENTS, ledger=ledger)
    repeat = {**ARGUMENTS, "repeat_of": first.action_id}
    waiting = await door(tool, repeat, ledger=ledger)
    approve(ledger, waiting, valid_for_s=0)
    late = await door(tool, repeat, ledger=ledger)
    assert late.code == Code.WAITING_FOR_APPROVAL
    assert len(remote.effects) == 1


async def test_an_approval_of_other_arguments_approves_nothing(ledger: Ledger) -> None:
    """An approval names a fingerprint; for another one it moves nothing."""
    remote = Remote()
    tool = refund(remote)
    first = await through_sync(tool, ARGUMENTS, ledger=ledger)
    waiting = await through_sync(tool, {**ARGUMENTS, "repeat_of": first.action_id}, ledger=ledger)
    query = ledger_queries.approve(
        "default", str(waiting.action_id), fingerprint="sha256:" + "0" * 64, approver="sam", valid_for_s=None
    )
    assert ledger.run(query) is None
    assert action_of(ledger, waiting).state == State.PLANNED


@both_doors
async def test_a_business_key_allows_no_repeat_while_it_is_held(door: Door, ledger: Ledger) -> None:
    """`unique` outranks `repeat_of`: the answer is the first one's state and receipt."""
    remote = Remote()
    tool = refund(remote, unique=("order_id",))
    first = await door(tool, ARGUMENTS, ledger=ledger)
    repeat = await door(tool, {**ARGUMENTS, "repeat_of": first.action_id}, ledger=ledger)
    assert (repeat.code, repeat.receipt, repeat.action_id) == (Code.REJECTED, "RF-1", first.action_id)
    assert (count(ledger.url), len(remote.effects)) == (1, 1)


@both_doors
async def test_a_repeat_with_a_decision_is_planned_and_remembered(door: Door, ledger: Ledger) -> None:
    """In an agent each call has a decision: the repeat's own one meets the repeat, before and after the approval."""
    remote = Remote()
    tool = refund(remote)
    first = await door(tool, ARGUMENTS, ledger=ledger, decision="click-1")
    repeat = {**ARGUMENTS, "repeat_of": first.action_id}
    waiting = await door(tool, repeat, ledger=ledger, decision="click-2")
    assert (waiting.code, waiting.state) == (Code.WAITING_FOR_APPROVAL, State.PLANNED)
    approve(ledger, waiting)
    done = [await door(tool, repeat, ledger=ledger, decision="click-2") for _ in range(2)]
    assert [(o.code, o.receipt, o.action_id) for o in done] == [(Code.SUCCEEDED, "RF-2", waiting.action_id)] * 2
    assert len(remote.effects) == 2


@both_doors
async def test_a_decision_that_gains_a_repeat_of_is_another_decision(door: Door, ledger: Ledger) -> None:
    """An edited fork of one decision that now says `repeat_of` asks a person."""
    remote = Remote()
    tool = refund(remote)
    first = await door(tool, ARGUMENTS, ledger=ledger, decision="click-1")
    forked = await door(tool, {**ARGUMENTS, "repeat_of": first.action_id}, ledger=ledger, decision="click-1")
    assert (forked.code, forked.state) == (Code.WAITING_FOR_APPROVAL, State.PLANNED)
    assert len(remote.effects) == 1


async def test_an_approval_is_spent_once(ledger: Ledger) -> None:
    """Sixteen callers find the approved repeat at the same instant: one runs it, and all get its receipt."""
    remote = Remote()
    tool = refund(remote)
    first = await through_sync(tool, ARGUMENTS, ledger=ledger)
    repeat = {**ARGUMENTS, "repeat_of": first.action_id}
    waiting = await through_sync(tool, repeat, ledger=ledger)
    approve(ledger, waiting)
    outcomes = await asyncio.gather(*(through_sync(tool, repeat, ledger=ledger) for _ in range(16)))
    assert len(remote.effects) == 2
    assert {(o.action_id, o.receipt) for o in outcomes} == {(waiting.action_id, "RF-2")}
    assert triggers_of(ledger, waiting).count("claim") == 1


async def test_two_repeats_at_once_ask_one_person_once(ledger: Ledger) -> None:
    """A double click on the repeat plans one action, whatever its decisions are."""
    remote = Remote()
    tool = refund(remote)
    first = await through_sync(tool, ARGUMENTS, ledger=ledger)
    repeat = {**ARGUMENTS, "repeat_of": first.action_id}
    outcomes = await asyncio.gather(
        *(through_sync(tool, repeat, ledger=ledger, decision=f"click-{n}") for n in range(16))
    )
    assert {o.code for o in outcomes} == {Code.WAITING_FOR_APPROVAL}
    assert len({o.action_id for o in outcomes}) == 1
    assert (count(ledger.url), len(remote.effects)) == (2, 1)


@both_doors
async def test_a_repeat_that_waits_does_not_hide_what_was_done(door: Door, ledger: Ledger) -> None:
    """A plain repeat of the first call is answered with the first receipt, before and after a person says no."""
    remote = Remote()
    tool = refund(remote)
    first = await door(tool, ARGUMENTS, ledger=ledger)
    waiting = await door(tool, {**ARGUMENTS, "repeat_of": first.action_id}, ledger=ledger)
    plain = [await door(tool, ARGUMENTS, ledger=ledger), await door(tool, ARGUMENTS, ledger=ledger, decision="click")]
    assert [(o.code, o.receipt, o.action_id) for o in plain] == [(Code.DUPLICATE, "RF-1", first.action_id)] * 2
    conflict = await door(tool, {"order_id": "A-1", "amount": 40}, ledger=ledger)
    assert (conflict.code, conflict.artifact["earlier_action_id"]) == (Code.CONFLICT, first.action_id)
    query = ledger_queries.cancel(
        "default", str(waiting.action_id), trigger=Trigger.DENY, code="denied", reason="no", actor="sam"
    )
    assert ledger.run(query) is not None
    after = await door(tool, ARGUMENTS, ledger=ledger)
    assert (after.code, after.receipt, after.action_id) == (Code.DUPLICATE, "RF-1", first.action_id)
    assert (count(ledger.url), len(remote.effects)) == (2, 1)


@both_doors
async def test_a_repeat_that_waits_hides_nothing_once_it_has_run(door: Door, ledger: Ledger) -> None:
    """When the repeat was carried out, it is the newest: a plain call gets its receipt."""
    remote = Remote()
    tool = refund(remote)
    first = await door(tool, ARGUMENTS, ledger=ledger)
    repeat = {**ARGUMENTS, "repeat_of": first.action_id}
    approve(ledger, await door(tool, repeat, ledger=ledger))
    done = await door(tool, repeat, ledger=ledger)
    plain = await door(tool, ARGUMENTS, ledger=ledger)
    assert (plain.code, plain.receipt, plain.action_id) == (Code.DUPLICATE, "RF-2", done.action_id)


@both_doors
async def test_a_repeat_that_waits_does_not_stand_in_the_way_of_a_later_day(door: Door, database_url: str) -> None:
    """Its window over, the plain call is a new intent beside the repeat that still waits: one effect, its own key."""
    clock, remote = Clock(), Remote()
    with opened(database_url, clock=clock) as ledger:
        tool = refund(remote)
        first = await door(tool, ARGUMENTS, ledger=ledger)
        repeat = {**ARGUMENTS, "repeat_of": first.action_id}
        waiting = await door(tool, repeat, ledger=ledger)
        clock.sleep(25 * 3600)
        plain = [await door(tool, ARGUMENTS, ledger=ledger) for _ in range(2)]
        assert [(o.code, o.receipt) for o in plain] == [(Code.SUCCEEDED, "RF-2"), (Code.DUPLICATE, "RF-2")]
        assert states(database_url) == ["succeeded", "planned", "succeeded"]
        assert action_of(ledger, waiting).state == State.PLANNED
        assert len(set(remote.keys)) == 2
        await ledger.aclose()


@both_doors
async def test_an_approved_repeat_runs_though_something_newer_was_done_meanwhile(door: Door, database_url: str) -> None:
    """An open action never leaves the window: who asks for the repeat again meets it, and its approval is spent."""
    clock, remote = Clock(), Remote()
    with opened(database_url, clock=clock) as ledger:
        tool = refund(remote)
        first = await door(tool, ARGUMENTS, ledger=ledger)
        repeat = {**ARGUMENTS, "repeat_of": first.action_id}
        clock.sleep(2 * 3600)
        waiting = await door(tool, repeat, ledger=ledger)
        clock.sleep(23 * 3600)
        await door(tool, ARGUMENTS, ledger=ledger)
        approve(ledger, waiting)
        done = await door(tool, repeat, ledger=ledger)
        await ledger.aclose()
        assert (done.code, done.receipt, done.action_id) == (Code.SUCCEEDED, "RF-3", waiting.action_id)


async def test_a_waiting_repeat_makes_no_room_for_two_of_the_next_call(database_url: str) -> None:
    """The first is out of its window and a repeat waits at the next place: of six calls at once, one has an effect."""
    for n in range(5):
        remote, clock = Remote(), Clock()
        order = {"order_id": f"A-{n}", "amount": 25}
        tool = refund(remote)
        with opened(database_url, clock=clock) as ledger:
            first = await through_sync(tool, order, ledger=ledger)
            await through_sync(tool, {**order, "repeat_of": first.action_id}, ledger=ledger)
            clock.sleep(25 * 3600)
            ends = await asyncio.gather(*(through_sync(tool, order, ledger=ledger) for _ in range(6)))
        assert len(remote.effects) == 2, [end.code for end in ends]
        assert len({end.action_id for end in ends}) == 1


def test_any_number_of_repeats_that_were_taken_back_is_no_obstacle(database_url: str) -> None:
    """Each has a place of the intent which a plain call may not meet: behind them it begins all the same."""
    remote, clock = Remote(), Clock()
    with opened(database_url, clock=clock) as ledger:
        tool = refund(remote)
        first = perform(tool, ARGUMENTS, ledger=ledger, thread_id="thread-1")
        for number in range(12):
            repeat = {**ARGUMENTS, "repeat_of": first.action_id}
            waiting = perform(tool, repeat, ledger=ledger, thread_id="thread-1", decision=f"d{number}")
            Desk(ledger).withdraw(str(waiting.action_id), by="joe")
        clock.sleep(25 * 3600)
        assert perform(tool, ARGUMENTS, ledger=ledger, thread_id="thread-1").receipt == "RF-2"


def test_a_repeat_is_of_the_same_thing(database_url: str) -> None:
    """An action of another order, or of another tool, is nothing to repeat: no person is asked about it."""
    remote = Remote()
    with opened(database_url) as ledger:
        tool = refund(remote)
        first = perform(tool, ARGUMENTS, ledger=ledger, thread_id="thread-1")
        other = {"order_id": "B-2", "amount": 25, "repeat_of": first.action_id}
        told = perform(tool, other, ledger=ledger, thread_id="thread-1")
        assert (told.code, told.told.facts.field) == (Code.INVALID, "repeat_of")
        assert len(remote.effects) == 1
