"""Budgets: what claims take of a window, who shares it, what is kept and what is given back, and what is told."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any
from urllib.parse import urlsplit

import psycopg
import pytest

import processes
from acts import Clock, Door, Remote, both_doors, mainly_sync, opened, rows, through_sync, triggers_of
from remote import Remote as HttpRemote
from remote import busy, payment
from settled import (
    Absent,
    ActionTool,
    Approve,
    Backoff,
    Budget,
    Code,
    ContractError,
    Desk,
    DidNotHappen,
    Edit,
    Happened,
    Incidental,
    Inconclusive,
    Inquiry,
    Ledger,
    Outcome,
    Rejected,
    Secret,
    State,
    Unknown,
    World,
    action,
    over,
    perform,
)
from settled.tools.messages import status

DAY_S = 86_400.0
COOL_DOWN_S = 30.0
"""The deadline of a contract that names none."""


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def frozen(database_url: str, clock: Clock) -> AsyncIterator[Ledger]:
    """A ledger whose time passes only when a test says so."""
    opened = Ledger.connect(database_url, clock=clock)
    try:
        yield opened
    finally:
        await opened.aclose()
        opened.close()


def refund(
    far: Remote, *budgets: Budget, ends: Mapping[str, object] | None = None, name: str = "refund", **contract: Any
) -> ActionTool:
    """A tool that refunds an order; `ends` says how the attempts of some orders end instead, after the effect."""
    declared = {"remote": "dedupes", "query": far.find, **contract}

    @action(risk="non_idempotent_write", identity=("order",), name=name, budgets=budgets, **declared)
    def refund(order: str, amount: float | None = 1) -> object:
        end = (ends or {}).get(order)
        if isinstance(end, Rejected):
            return end
        done = far.do(order=order, amount=amount)
        return done if end is None else end

    return refund


def taken(url: str) -> float:
    """What stands in the ledger as taken, of all budgets."""
    return float(rows(url, "SELECT coalesce(sum(amount), 0) AS n FROM settled.reservations")[0]["n"])


def codes(outcomes: list[Outcome]) -> Counter[str]:
    return Counter(str(outcome.code) for outcome in outcomes)


@both_doors
async def test_the_call_that_would_exceed_a_count_is_not_sent(door: Door, frozen: Ledger) -> None:
    """Two of two are done; the third ends as cancelled, and nothing of it reaches the remote side."""
    remote = Remote()
    tool = refund(remote, Budget(2))
    ends = [await door(tool, [f"A-{n}", 5], ledger=frozen) for n in range(3)]
    assert [(o.code, o.state) for o in ends] == [
        *[(Code.SUCCEEDED, State.SUCCEEDED)] * 2,
        (Code.BUDGET_EXCEEDED, State.CANCELLED),
    ]
    assert [e["order"] for e in remote.effects] == ["A-0", "A-1"]
    assert (ends[2].receipt, ends[2].attempts, remote.asked) == (None, 0, 0)
    assert triggers_of(frozen, ends[2]) == ["plan", "approve", "withdraw"]
    assert ends[2].artifact["may_retry"] is False
    assert ends[2].artifact["next"] == "stop"
    assert status(ends[2].code) == "error"


@mainly_sync
@pytest.mark.parametrize(
    ("language", "numbers", "fact"),
    [
        ("en", "(90 of 100 are used, and 10.5 more would be needed)", "was not carried out"),
        ("zh", "已用 90，限额 100，这次还需要 10.5", "没有执行"),
    ],
)
async def test_the_answer_says_how_much_is_used_and_how_much_it_would_take(
    door: Door, language: str, numbers: str, fact: str, frozen: Ledger
) -> None:
    """Plain numbers, in the user's language, and the same text when it is asked for again."""
    tool = refund(Remote(), Budget(100, of="amount"))
    await door(tool, ["A-1", 90], ledger=frozen)
    ends = [await door(tool, ["A-2", 10.5], ledger=frozen, language=language) for _ in range(2)]
    for end in ends:
        assert end.code == Code.BUDGET_EXCEEDED
        sentence, line = end.message.split("\n")
        assert numbers in sentence
        assert fact in sentence
        assert line
    assert ends[0].message == ends[1].message
    assert (ends[0].replayed, ends[1].replayed) == (False, True)


@mainly_sync
async def test_amounts_are_summed_as_written(door: Door, frozen: Ledger, database_url: str) -> None:
    """Ten times 0.1 fill a budget of 1, and not one thousandth more; what still fits is let in after a refusal."""
    tool = refund(Remote(), Budget(1, of="amount"))
    ends = [await door(tool, [f"A-{n}", 0.1], ledger=frozen) for n in range(9)]
    ends += [await door(tool, ["B", 0.101], ledger=frozen), await door(tool, ["C", 0.1], ledger=frozen)]
    ends += [await door(tool, ["D", 0.001], ledger=frozen), await door(tool, ["E", 0], ledger=frozen)]
    assert [o.code for o in ends[9:]] == [
        Code.BUDGET_EXCEEDED,
        Code.SUCCEEDED,
        Code.BUDGET_EXCEEDED,
        Code.SUCCEEDED,  # nothing more is needed for nothing
    ]
    assert taken(database_url) == 1


WHO = {
    "same": {"thread_id": "t-1", "requester": "ann"},
    "other thread": {"thread_id": "t-2", "requester": "ann"},
    "other user": {"thread_id": "t-1", "requester": "bob"},
}
SHARING = {
    "thread": {"same", "other user"},
    "user": {"same", "other thread"},
    "tenant": set(WHO),
}


@both_doors
@pytest.mark.parametrize("per", SHARING)
async def test_a_budget_is_shared_by_its_thread_user_or_tenant(door: Door, per: Any, frozen: Ledger) -> None:
    """What one caller has used up is used up for those that share it, and for nobody else; another tenant has its
    own.
    """
    tool = refund(Remote(), Budget(1, per=per))
    assert (await door(tool, ["A"], ledger=frozen, **WHO["same"])).code == Code.SUCCEEDED
    refused = {
        who for who, scope in WHO.items()
        if (await door(tool, [f"B {who}"], ledger=frozen, **scope)).code == Code.BUDGET_EXCEEDED
    }  # fmt: skip
    assert refused == SHARING[per]
    assert (await door(tool, ["C"], ledger=frozen, tenant="other", **WHO["same"])).code == Code.SUCCEEDED
    assert (await door(tool, ["D"], ledger=frozen, tenant="other", **WHO["same"])).code == Code.BUDGET_EXCEEDED


@mainly_sync
async def test_calls_without_a_requester_are_those_of_one_user(door: Door, frozen: Ledger) -> None:
    """Leaving the name out opens no new budget; nor is nobody the user called None."""
    tool = refund(Remote(), Budget(1, per="user"))
    ends = [
        await door(tool, [f"A-{n}"], ledger=frozen, thread_id=f"t-{n}", requester=who)
        for n, who in enumerate([None, None, "None"])
    ]
    assert [o.code for o in ends] == [Code.SUCCEEDED, Code.BUDGET_EXCEEDED, Code.SUCCEEDED]


@mainly_sync
async def test_tools_share_a_budget_by_its_name_alone(door: Door, frozen: Ledger) -> None:
    """Without a name each tool has its own; with one, whatever the argument is called that is counted."""
    remote = Remote()
    own = [refund(remote, Budget(100, of="amount"), name=name) for name in ("one", "two")]
    for tool in own:
        assert (await door(tool, ["A", 90], ledger=frozen)).code == Code.SUCCEEDED
    shared = refund(remote, Budget(100, of="amount", name="money"), name="three")

    @action(
        risk="non_idempotent_write", identity="all", remote="opaque", budgets=[Budget(100, of="total", name="money")]
    )
    def order(total: float) -> object:
        return remote.do(total=total)

    assert (await door(shared, ["A", 90], ledger=frozen)).code == Code.SUCCEEDED
    end = await door(order, [20], ledger=frozen)
    assert (end.code, end.told.facts.reason) == (
        Code.BUDGET_EXCEEDED,
        "90 of 100 are used, and 20 more would be needed",
    )
    counted = refund(remote, Budget(1, name="money"), name="four")  # a count is no sum of money
    assert (await door(counted, ["A", 90], ledger=frozen)).code == Code.SUCCEEDED


def test_one_name_for_two_arguments_of_one_tool_is_refused() -> None:
    """Which of the two would a claim take? The declaration says so at once."""
    with pytest.raises(ContractError, match="money"):

        @action(
            risk="non_idempotent_write", identity="all", remote="opaque",
            budgets=[Budget(100, of="net", name="money"), Budget(100, of="tax", name="money")],
        )  # fmt: skip
        def order(net: float, tax: float) -> None: ...


def test_what_cannot_be_counted_is_refused_at_the_declaration() -> None:
    """An incidental amount may be another one in each call; a secret one would be told in the answer."""
    for marker, rule in ((Incidental(), "incidental"), (Secret(), "secret")):
        with pytest.raises(ContractError, match=rule):

            @action(risk="non_idempotent_write", identity=("order",), budgets=[Budget(100, of="amount")])
            def pay(order: int, amount: Annotated[float, marker]) -> None: ...


@pytest.mark.parametrize("limit", [-1, "ten", "NaN", float("inf"), "1e999999", True, None, -0.01], ids=repr)
def test_a_limit_that_is_no_number_is_refused(limit: Any) -> None:
    """Also one that Postgres could not hold; nothing is a limit, and so is more digits than a float has."""
    with pytest.raises(ContractError, match="limit must be a number"):
        Budget(limit)
    assert [Budget(good).limit for good in (0, Decimal("123456789.123456789"))] == [0, Decimal("123456789.123456789")]


@mainly_sync
async def test_a_budget_for_ever(door: Door, frozen: Ledger, clock: Clock) -> None:
    """The longest window that can be written down is a window, and no fault in the ledger."""
    tool = refund(Remote(), Budget(1, window=timedelta.max))
    assert (await door(tool, ["A"], ledger=frozen)).code == Code.SUCCEEDED
    clock.elapsed_s = 1000 * DAY_S
    assert (await door(tool, ["B"], ledger=frozen)).code == Code.BUDGET_EXCEEDED


@mainly_sync
async def test_it_counts_for_who_asked_and_not_for_who_carries_it_on(door: Door, frozen: Ledger) -> None:
    """Ann's request is approved, and a colleague's turn in the same conversation runs it: Ann's budget is used up."""
    tool = refund(Remote(), Budget(100, of="amount", per="user"), approval=over("amount", 50))
    waiting = await door(tool, ["A", 100], ledger=frozen, requester="ann")
    row = frozen.action(str(waiting.action_id))
    await Desk(frozen).adecide(row.id, Approve(), by="mia", fingerprint=row.fingerprint)
    assert (await door(tool, ["A", 100], ledger=frozen, requester="bob")).state == State.SUCCEEDED
    ends = [await door(tool, [f"B {who}", 1], ledger=frozen, requester=who) for who in ("ann", "bob")]
    assert [o.code for o in ends] == [Code.BUDGET_EXCEEDED, Code.SUCCEEDED]


@mainly_sync
async def test_an_edited_request_is_judged_by_what_it_is_now(door: Door, frozen: Ledger, database_url: str) -> None:
    """A person lowers or raises what was asked for: the changed amount is what is taken, or what has no room."""
    remote = Remote()
    tool = refund(remote, Budget(100, of="amount"), approval=over("amount", 50))
    desk = Desk(frozen, tools=[tool])

    async def edited(order: str, amount: float, to: float) -> Outcome:
        row = frozen.action(str((await door(tool, [order, amount], ledger=frozen)).action_id))
        new = await desk.adecide(row.id, Edit({"amount": to}), by="mia", fingerprint=row.fingerprint)
        if new.state is State.PLANNED:
            await desk.adecide(new.id, Approve(), by="mia", fingerprint=new.fingerprint)
        return await door(tool, [order, amount], ledger=frozen)

    ends = [await edited("A", 200, 40), await edited("B", 60, 61), await edited("C", 200, 60)]
    assert [o.artifact["outcome"] for o in ends] == ["succeeded", "budget_exceeded", "succeeded"]
    assert {o.code for o in ends} == {Code.CHANGED_BY_PERSON}
    assert "40 of 100 are used, and 61 more would be needed" in ends[1].message
    assert ([e["amount"] for e in remote.effects], taken(database_url)) == ([40, 60], 100)


@mainly_sync
async def test_the_window_slides(door: Door, frozen: Ledger, clock: Clock) -> None:
    """60 at noon and 40 an hour later: on the next day the 60 come free at noon, and the 40 an hour later."""
    tool = refund(Remote(), Budget(100, of="amount", window=timedelta(days=1)))

    async def at(elapsed_s: float, amount: float) -> Code:
        clock.elapsed_s = elapsed_s
        return (await door(tool, [f"{elapsed_s}-{amount}", amount], ledger=frozen)).code

    assert await at(0, 60) == Code.SUCCEEDED
    assert await at(3600, 40) == Code.SUCCEEDED
    assert await at(DAY_S - 1, 1) == Code.BUDGET_EXCEEDED
    assert await at(DAY_S, 61) == Code.BUDGET_EXCEEDED
    assert await at(DAY_S, 60) == Code.SUCCEEDED
    assert await at(DAY_S + 3599, 1) == Code.BUDGET_EXCEEDED
    assert await at(DAY_S + 3600, 40) == Code.SUCCEEDED


@mainly_sync
async def test_two_windows_over_the_same_amount(door: Door, frozen: Ledger, clock: Clock) -> None:
    """At most 100 a day and 150 in ten days: the tighter one decides, and a claim is counted once."""
    day, ten_days = (Budget(most, of="amount", window=timedelta(days=days)) for most, days in ((100, 1), (150, 10)))
    tool = refund(Remote(), day, ten_days)
    first = await door(tool, ["A", 90], ledger=frozen)
    second = await door(tool, ["B", 20], ledger=frozen)
    clock.elapsed_s = DAY_S
    third, fourth = await door(tool, ["C", 61], ledger=frozen), await door(tool, ["D", 60], ledger=frozen)
    assert [o.code for o in (first, second, third, fourth)] == [
        *(Code.SUCCEEDED, Code.BUDGET_EXCEEDED, Code.BUDGET_EXCEEDED, Code.SUCCEEDED)
    ]
    assert second.told.facts.reason == "90 of 100 are used, and 20 more would be needed"
    assert third.told.facts.reason == "90 of 150 are used, and 61 more would be needed"
    assert "90 of 150" in third.message


def test_sixteen_claims_at_once_fill_a_budget_and_no_more(ledger: Ledger, database_url: str) -> None:
    """Threads with different amounts: never over it, and whoever was refused would not have fitted in the end."""
    remote = Remote()
    tool = refund(remote, Budget(100, of="amount"))
    amounts = [5 + 3 * n for n in range(16)]
    ended: dict[int, Outcome] = {}
    start = threading.Barrier(16)

    def one(amount: int) -> None:
        start.wait(20)
        ended[amount] = perform(tool, [f"A-{amount}", amount], ledger=ledger, thread_id=f"t-{amount}")

    threads = [threading.Thread(target=one, args=(amount,)) for amount in amounts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert set(codes(list(ended.values()))) == {"succeeded", "budget_exceeded"}
    spent = sum(amount for amount, end in ended.items() if end.code == Code.SUCCEEDED)
    assert len(ended) == 16
    assert spent <= 100
    assert all(spent + amount > 100 for amount, end in ended.items() if end.code == Code.BUDGET_EXCEEDED)
    assert sum(int(str(e["amount"]).removesuffix(".0")) for e in remote.effects) == spent == taken(database_url)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_sixteen_claims_at_once_in_a_database_with_another_isolation(database_url: str, level: str) -> None:
    """Its default is not read committed: the ledger's own connections are; and where a pooler forgets that, nothing is
    sent rather than too much.
    """
    with psycopg.connect(database_url, autocommit=True) as connection:
        name = psycopg.sql.Identifier(urlsplit(database_url).path.lstrip("/"))
        set_level = psycopg.sql.SQL("ALTER DATABASE {} SET default_transaction_isolation TO {}")
        connection.execute(set_level.format(name, psycopg.sql.Literal(level)))
    remote = Remote()
    tool = refund(remote, Budget(100, of="amount"))
    with opened(database_url) as ledger, opened(database_url, prepare=False) as forgetful:
        for one, number in ((ledger, 16), (forgetful, 4)):
            before = len(remote.effects)
            with ThreadPoolExecutor(number) as pool:
                ends = list(
                    pool.map(
                        lambda n, one=one: perform(tool, [f"{id(one)}-{n}", 30], ledger=one, thread_id="t"),
                        range(number),
                    )
                )
            if one is forgetful and level == "repeatable read":
                assert codes(ends) == {"unavailable": 4}
            assert len(remote.effects) - before == codes(ends)["succeeded"]
    assert (len(remote.effects), taken(database_url)) == (3, 90)


def test_four_processes_with_four_claims_each_fill_a_budget_and_no_more(database_url: str) -> None:
    """At most 3 of 16 have room, on whichever process."""
    with HttpRemote(database_url) as remote:
        at = time.time() + 0.8
        children = [
            processes.start(
                "approving.spend",
                database_url=database_url,
                remote_url=remote.url,
                orders=[f"O-{n}-{m}" for m in range(4)],
                at=at,
            )
            for n in range(4)
        ]
        ends = Counter(code for child in children for code in child.result())
        assert ends == {"succeeded": 3, "budget_exceeded": 13}
        assert (remote.count(), remote.posts()) == (3, 3)
    assert taken(database_url) == 90


@both_doors
async def test_it_is_kept_while_unknown_and_given_back_when_it_did_not_happen(
    door: Door, frozen: Ledger, clock: Clock, database_url: str
) -> None:
    """100 are in flight with nobody knowing: no room. A person says that it did not happen: there is."""
    tool = refund(Remote(), Budget(100, of="amount"), ends={"A": Unknown("no answer")}, remote="opaque", query=None)
    lost = await door(tool, ["A", 100], ledger=frozen)
    assert (lost.code, lost.state) == (Code.MANUAL_REVIEW, State.UNKNOWN)
    assert (await door(tool, ["B", 1], ledger=frozen)).code == Code.BUDGET_EXCEEDED
    assert taken(database_url) == 100
    clock.elapsed_s = 100
    row = frozen.action(str(lost.action_id))
    desk = Desk(frozen)
    moved = await asyncio.to_thread(desk.resolve, row.id, DidNotHappen(), by="mia", fingerprint=row.fingerprint)
    assert (moved.state, taken(database_url)) == (State.FAILED, 0)
    assert (await door(tool, ["C", 100], ledger=frozen)).code == Code.SUCCEEDED


@mainly_sync
async def test_what_is_unknown_counts_however_old_it_is_and_from_its_settling_on(
    door: Door, frozen: Ledger, clock: Clock
) -> None:
    """Its effect may come this minute. Once it is known that it happened, the window begins."""
    budget = Budget(100, of="amount", window=timedelta(seconds=60))
    tool = refund(Remote(), budget, ends={"A": Unknown("no answer")}, remote="opaque", query=None)
    lost = await door(tool, ["A", 100], ledger=frozen)
    clock.elapsed_s = 600
    over = await door(tool, ["B", 100], ledger=frozen)
    assert (over.code, "100 of 100 are used" in over.message) == (Code.BUDGET_EXCEEDED, True)
    row = frozen.action(str(lost.action_id))
    await asyncio.to_thread(Desk(frozen).resolve, row.id, Happened("R-1"), by="mia", fingerprint=row.fingerprint)
    clock.elapsed_s = 659
    assert (await door(tool, ["C", 1], ledger=frozen)).code == Code.BUDGET_EXCEEDED
    clock.elapsed_s = 661
    assert (await door(tool, ["D", 100], ledger=frozen)).code == Code.SUCCEEDED


@mainly_sync
async def test_it_stays_taken_when_a_person_says_that_it_happened(
    door: Door, frozen: Ledger, database_url: str
) -> None:
    """Found by a person, as by a reply: it was spent."""
    tool = refund(Remote(), Budget(100, of="amount"), ends={"A": Unknown("no answer")}, remote="opaque", query=None)
    lost = await door(tool, ["A", 100], ledger=frozen)
    row = frozen.action(str(lost.action_id))
    await Desk(frozen).aresolve(row.id, Happened("R-7"), by="mia", fingerprint=row.fingerprint)
    assert taken(database_url) == 100
    assert (await door(tool, ["B", 1], ledger=frozen)).code == Code.BUDGET_EXCEEDED


@mainly_sync
async def test_a_no_of_the_business_gives_it_back(door: Door, frozen: Ledger, database_url: str) -> None:
    """Rejected is not done: the same budget has room for the next."""
    tool = refund(Remote(), Budget(1), ends={"A": Rejected("refunded before")})
    assert (await door(tool, ["A"], ledger=frozen)).code == Code.REJECTED
    assert taken(database_url) == 0
    assert [(await door(tool, [o], ledger=frozen)).code for o in "BC"] == [Code.SUCCEEDED, Code.BUDGET_EXCEEDED]


@both_doors
async def test_a_service_that_stays_away_gives_it_back(door: Door, ledger: Ledger, database_url: str) -> None:
    """Refused until it gave up: nothing was done. Refused and then done: taken once."""
    contract: dict[str, Any] = {"budgets": [Budget(118, of="amount")], "max_attempts": 2}
    with HttpRemote(database_url) as remote:
        tool = payment(remote.url, **contract)
        remote.next(busy(), busy(), busy())
        gone = await door(tool, ["O-1", 118], ledger=ledger)
        assert (gone.code, gone.attempts, taken(database_url)) == (Code.UNAVAILABLE, 2, 0)
        done = await door(tool, ["O-2", 118], ledger=ledger)
        assert (done.code, done.attempts, taken(database_url)) == (Code.SUCCEEDED, 2, 118)
        assert (await door(tool, ["O-3", 1], ledger=ledger)).code == Code.BUDGET_EXCEEDED
        assert (remote.count(), remote.posts()) == (1, 4)


@both_doors
async def test_a_resend_under_the_same_key_takes_nothing_more(
    door: Door, frozen: Ledger, clock: Clock, database_url: str
) -> None:
    """Lost, proved absent, released, done: two attempts of one action, counted once."""
    sent: list[str] = []

    @action(
        risk="non_idempotent_write", remote="dedupes", identity=("order",), query=lambda _: Absent(),
        backoff=Backoff(jitter=0), budgets=[Budget(30, of="amount")],
    )  # fmt: skip
    def pay(order: str, amount: float) -> object:
        sent.append(order)
        return Unknown("no answer") if len(sent) == 1 else {"receipt": "R-1"}

    world = World(sleep=clock.sleep, asleep=clock.asleep)
    end = await door(pay, ["A", 20], ledger=frozen, world=world)
    assert (end.code, end.attempts, sent, taken(database_url)) == (Code.SUCCEEDED, 2, ["A", "A"], 20)
    assert "release" in triggers_of(frozen, end)
    assert [(await door(pay, list(a), ledger=frozen, world=world)).code for a in (("B", 11), ("C", 10))] == [
        *(Code.BUDGET_EXCEEDED, Code.SUCCEEDED)
    ]


@mainly_sync
async def test_replays_and_duplicates_take_nothing(door: Door, frozen: Ledger, database_url: str) -> None:
    """The same decision, the same intent, a conflict: what stands in the ledger is answered, and counted once."""
    remote = Remote()
    tool = refund(remote, Budget(2))
    for decision in ("d-1", "d-1", "d-2", None):
        end = await door(tool, ["A", 5], ledger=frozen, decision=decision)
        assert end.code in (Code.SUCCEEDED, Code.DUPLICATE)
    assert (await door(tool, ["A", 6], ledger=frozen)).code == Code.CONFLICT
    assert (len(remote.effects), taken(database_url)) == (1, 1)
    assert [(await door(tool, [o], ledger=frozen)).code for o in "BC"] == [Code.SUCCEEDED, Code.BUDGET_EXCEEDED]


@mainly_sync
async def test_it_is_replayed_until_it_has_cooled_and_then_asked_anew(door: Door, frozen: Ledger, clock: Clock) -> None:
    """A model that calls again at once hears the same; half a minute later room is looked for again."""
    remote = Remote()
    tool = refund(remote, Budget(1, window=timedelta(seconds=10)))
    await door(tool, ["A"], ledger=frozen)
    first = await door(tool, ["B"], ledger=frozen, decision="d-1")
    clock.elapsed_s = COOL_DOWN_S
    again = await door(tool, ["B"], ledger=frozen)
    assert (again.code, again.action_id, again.replayed) == (Code.BUDGET_EXCEEDED, first.action_id, True)
    clock.elapsed_s = COOL_DOWN_S + 1
    same_decision = await door(tool, ["B"], ledger=frozen, decision="d-1")
    assert (same_decision.code, same_decision.action_id) == (Code.BUDGET_EXCEEDED, first.action_id)
    anew = await door(tool, ["B"], ledger=frozen, decision="d-2")
    assert (anew.code, anew.action_id != first.action_id) == (Code.SUCCEEDED, True)
    assert [e["order"] for e in remote.effects] == ["A", "B"]


@mainly_sync
async def test_a_changed_call_is_another_call(door: Door, frozen: Ledger) -> None:
    """Less of it may fit: what was stopped did nothing, so a smaller amount is no conflict with it."""
    tool = refund(Remote(), Budget(100, of="amount"))
    assert (await door(tool, ["A", 101], ledger=frozen)).code == Code.BUDGET_EXCEEDED
    assert (await door(tool, ["A", 100], ledger=frozen)).code == Code.SUCCEEDED


@both_doors
async def test_what_waits_for_a_person_takes_nothing_and_may_find_no_room(
    door: Door, frozen: Ledger, clock: Clock, database_url: str
) -> None:
    """Approved, and then there is no room: nothing is sent, the ticket is not spent, and it is no pass for later."""
    remote = Remote()
    tool = refund(remote, Budget(150, of="amount"), approval=over("amount", 100))
    waiting = await door(tool, ["A", 120], ledger=frozen, decision="d-1")
    assert (waiting.code, taken(database_url)) == (Code.WAITING_FOR_APPROVAL, 0)
    assert (await door(tool, ["B", 60], ledger=frozen)).code == Code.SUCCEEDED
    desk, row = Desk(frozen), frozen.action(str(waiting.action_id))
    await desk.adecide(row.id, Approve(), by="mia", fingerprint=row.fingerprint)
    assert taken(database_url) == 60
    end = await door(tool, ["A", 120], ledger=frozen, decision="d-1")
    assert (end.code, end.state, end.action_id) == (Code.BUDGET_EXCEEDED, State.CANCELLED, row.id)
    assert "60 of 150 are used, and 120 more would be needed" in end.message
    assert triggers_of(frozen, end) == ["plan", "approve", "withdraw"]
    ticket = await asyncio.to_thread(desk.approval, row.id)
    assert (ticket.decision, ticket.decided_by, ticket.spent_at) == ("approve", "mia", None)
    clock.elapsed_s = DAY_S
    anew = await door(tool, ["A", 120], ledger=frozen, decision="d-2")
    assert (anew.code, anew.action_id != row.id) == (Code.WAITING_FOR_APPROVAL, True)
    assert [e["order"] for e in remote.effects] == ["B"]


@mainly_sync
async def test_an_approved_one_with_room_takes_its_part_once(door: Door, frozen: Ledger, database_url: str) -> None:
    """Reserved by the claim that spends the ticket."""
    tool = refund(Remote(), Budget(150, of="amount"), approval=over("amount", 100))
    waiting = await door(tool, ["A", 120], ledger=frozen)
    row = frozen.action(str(waiting.action_id))
    await Desk(frozen).adecide(row.id, Approve(), by="mia", fingerprint=row.fingerprint)
    ends = [await door(tool, ["A", 120], ledger=frozen) for _ in range(2)]
    assert [o.code for o in ends] == [Code.SUCCEEDED, Code.DUPLICATE]
    assert taken(database_url) == 120


@mainly_sync
async def test_an_amount_below_nothing_is_a_bad_call(door: Door, frozen: Ledger, database_url: str) -> None:
    """A negative amount would make room for others: the field and the rule are named, nothing is written."""
    remote = Remote()
    tool = refund(remote, Budget(100, of="amount"))
    end = await door(tool, ["A", -50], ledger=frozen)
    assert (end.code, end.action_id, end.told.facts.field) == (Code.INVALID, None, "amount")
    assert "negative" in str(end.told.facts.reason)
    assert (remote.effects, taken(database_url)) == ([], 0)
    assert rows(database_url, "SELECT count(*) AS n FROM settled.actions")[0]["n"] == 0


@mainly_sync
async def test_no_amount_counts_as_nothing(door: Door, frozen: Ledger, database_url: str) -> None:
    """None is a value of an optional amount; the call is made even when the budget is full."""
    tool = refund(Remote(), Budget(100, of="amount"))
    assert [(await door(tool, [o, amount], ledger=frozen)).code for o, amount in (("A", 100), ("B", None))] == [
        Code.SUCCEEDED
    ] * 2
    assert taken(database_url) == 100


@mainly_sync
async def test_an_amount_that_cannot_be_counted_is_a_bad_call(door: Door, frozen: Ledger) -> None:
    """Whatever text stands in its place: an answer that names the field, no exception, and nothing sent."""
    sent: list[str] = []

    @action(risk="non_idempotent_write", remote="opaque", identity="all", budgets=[Budget(10, of="amount")])
    def pay(amount: str) -> None:
        sent.append(amount)

    for amount in ("ten", "", "NaN", "sNaN", "Infinity", "-Infinity", "1e999999", "1e-999999", "0x10"):
        end = await door(pay, [amount], ledger=frozen)
        assert (end.code, end.told.facts.field, sent) == (Code.INVALID, "amount", []), amount
    assert (await door(pay, ["10.0"], ledger=frozen)).code == Code.SUCCEEDED


@mainly_sync
async def test_of_two_budgets_all_are_taken_or_none(door: Door, frozen: Ledger, database_url: str) -> None:
    """The second one is full: nothing is taken of the first either."""
    remote = Remote()
    count, money = Budget(2), Budget(100, of="amount")
    for number, budgets in enumerate(((count, money), (money, count))):
        tool = refund(remote, *budgets, name=f"refund_{number}")
        before = taken(database_url)
        ends = [await door(tool, [order, amount], ledger=frozen) for order, amount in (("A", 99), ("B", 2), ("C", 1))]
        assert [o.code for o in ends] == [Code.SUCCEEDED, Code.BUDGET_EXCEEDED, Code.SUCCEEDED]
        assert taken(database_url) - before == 2 + 100
        last = await door(tool, ["D", 0], ledger=frozen)
        assert (last.code, last.told.facts.reason) == (
            Code.BUDGET_EXCEEDED,
            "2 of 2 are used, and 1 more would be needed",
        )


def test_two_budgets_in_opposite_orders_do_not_lock_each_other_out(ledger: Ledger, database_url: str) -> None:
    """Two tools that name the same two budgets the other way round, from 16 threads: all come to an end, and soon."""
    remote = Remote()
    one, two = Budget(20, name="one"), Budget(20, name="two")
    tools = [refund(remote, one, two, name="a"), refund(remote, two, one, name="b")]
    ended: list[Outcome] = []
    start = threading.Barrier(16)

    def calls(number: int) -> None:
        start.wait(20)
        for turn in range(3):
            order = f"{number}-{turn}"
            ended.append(perform(tools[number % 2], [order], ledger=ledger, thread_id=order))

    begun = time.monotonic()
    threads = [threading.Thread(target=calls, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert codes(ended) == {"succeeded": 20, "budget_exceeded": 28}
    assert (len(remote.effects), taken(database_url)) == (20, 40)
    assert time.monotonic() - begun < 15


def test_a_crowd_with_one_key_takes_once(ledger: Ledger, database_url: str) -> None:
    """Sixteen equal calls at one instant: one of them claims, and the others get its receipt; 5 are taken. It has
    succeeded for the one that began it and for the one that claimed it, and the others are duplicates.
    """
    remote = Remote()
    tool = refund(remote, Budget(9, of="amount"))
    ends = processes.at_once(ledger, tool, "t", {"order": "A", "amount": 5}, 16, time.time() + 0.1, 20)
    assert {o.receipt for o in ends} == {"RF-1"}
    assert codes(ends) in ({"succeeded": 1, "duplicate": 15}, {"succeeded": 2, "duplicate": 14})
    assert (len(remote.effects), taken(database_url)) == (1, 5)


def test_a_limit_that_was_raised_makes_room_at_once(ledger: Ledger) -> None:
    """A deploy with a higher limit counts what was taken under the lower one."""
    remote = Remote()
    codes_ = [
        perform(refund(remote, Budget(limit, of="amount")), [order, 60], ledger=ledger, thread_id="t").code
        for limit, order in ((100, "A"), (100, "B"), (120, "C"), (120, "D"))
    ]
    assert codes_ == [Code.SUCCEEDED, Code.BUDGET_EXCEEDED, Code.SUCCEEDED, Code.BUDGET_EXCEEDED]


def test_kills_between_claim_and_settle_leave_the_reservation(database_url: str) -> None:
    """Three processes die with their claim in hand: what they took stays taken, until each is known to be done; then
    it is still taken, once.
    """
    contract: dict[str, Any] = {"budgets": [Budget(354, of="amount")]}
    with Ledger.connect(database_url) as ledger, HttpRemote(database_url) as remote:
        args = {"database_url": database_url, "remote_url": remote.url, "limit": 354}
        children = [
            processes.start("approving.pay", **args, order_id=f"O-{n}", thread_id=f"t-{n}", die_at=die_at)
            for n, die_at in enumerate((3, 4, 5))  # after the claim, before the body, after it
        ]
        assert [child.status() for child in children] == [-9] * 3
        tool = payment(remote.url, **contract)
        full = perform(tool, ["O-9", 1], ledger=ledger, thread_id="t-9")
        assert (full.code, taken(database_url)) == (Code.BUDGET_EXCEEDED, 354)
        with ThreadPoolExecutor(3) as pool:
            calls = [
                pool.submit(perform, tool, [f"O-{n}", 118], ledger=ledger, thread_id=f"t-{n}", wait_s=20)
                for n in range(3)
            ]
            ends = [call.result() for call in calls]
        assert codes(ends) == {"succeeded": 3}
        assert (remote.count(), taken(database_url)) == (3, 354)


def test_a_kill_before_the_claim_takes_nothing(database_url: str) -> None:
    """The process died between planning and claiming: the room is free for others, and may be gone when it is made
    again.
    """
    contract: dict[str, Any] = {"budgets": [Budget(236, of="amount")]}
    with Ledger.connect(database_url) as ledger, HttpRemote(database_url) as remote:
        args = {"database_url": database_url, "remote_url": remote.url, "limit": 236}
        for die_at in (1, 2):  # after the plan, before the claim
            name = f"O-{die_at}"
            assert processes.start("approving.pay", **args, order_id=name, thread_id=name, die_at=die_at).status() == -9
        assert ([str(a.state) for a in ledger.actions()], taken(database_url)) == (["approved"] * 2, 0)
        tool = payment(remote.url, **contract)
        ends = [perform(tool, [o, 118], ledger=ledger, thread_id=o) for o in ("O-9", "O-1", "O-2")]
        assert [o.code for o in ends] == [Code.SUCCEEDED, Code.SUCCEEDED, Code.BUDGET_EXCEEDED]
        assert (remote.count(), taken(database_url)) == (2, 236)


async def test_a_query_that_cannot_tell_keeps_it(frozen: Ledger, clock: Clock, database_url: str) -> None:
    """Asked in vain, handed to a person, asked again in vain: it stays taken all the while."""
    remote = Remote()

    def query(_: Inquiry) -> Inconclusive:
        return Inconclusive("the index is down")

    tool = refund(remote, Budget(5), ends={"A": Unknown("no answer")}, query=query)
    world = World(sleep=clock.sleep, asleep=clock.asleep)
    for _ in range(3):
        end = await through_sync(tool, ["A"], ledger=frozen, world=world)
        assert (end.code, taken(database_url)) == (Code.MANUAL_REVIEW, 1)
