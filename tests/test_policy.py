"""A policy decides what may run and who is asked: one that fails permits nothing, and its verdict is frozen."""

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any

import pytest
from cryptography.fernet import Fernet

from acts import (
    Door,
    Remote,
    action_of,
    both_doors,
    count,
    events_of,
    opened,
    rows,
    states,
    through_async,
    through_sync,
)
from asked import ORDER, refund
from settled import (
    Allow,
    Approve,
    Ask,
    Code,
    ContractError,
    Deny,
    Desk,
    Ledger,
    LedgerUnavailable,
    Outcome,
    PlannedAction,
    Secret,
    State,
    action,
    always,
    first_time,
    over,
    permitted,
)
from settled.state.ledger import Query
from settled.tools.policy import Policy

WAITS = (Code.WAITING_FOR_APPROVAL, State.PLANNED)
RUNS = (Code.SUCCEEDED, State.SUCCEEDED)
DENIED = (Code.DENIED, State.CANCELLED)


def ended(outcome: Outcome) -> tuple[Code, State | None]:
    return outcome.code, outcome.state


class Judge:
    """A policy that counts how often it is asked, and says what it is told to say."""

    def __init__(self, verdict: Any = None) -> None:
        self.verdict = Ask("look at it") if verdict is None else verdict
        self.asked: list[PlannedAction] = []

    def __call__(self, planned: PlannedAction) -> Any:
        self.asked.append(planned)
        return self.verdict


def approve(ledger: Ledger, outcome: Outcome, by: str = "maria") -> None:
    found = action_of(ledger, outcome)
    Desk(ledger).decide(found.id, Approve(), by=by, fingerprint=found.fingerprint)


# What the ready-made policies say.


@both_doors
@pytest.mark.parametrize(
    ("amount", "reason"),
    [(99.99, None), (100, None), (100.01, "amount 100.01 is over 100"), (118.5, "amount 118.5 is over 100")],
)
async def test_over_asks_above_its_limit_and_not_at_it(
    door: Door, amount: float, reason: str | None, ledger: Ledger
) -> None:
    """At most the limit runs at once; more waits, and says why."""
    remote = Remote()
    tool = refund(remote, approval=over("amount", 100))
    outcome = await door(tool, ["A-1", amount], ledger=ledger)
    assert ended(outcome) == (RUNS if reason is None else WAITS)
    assert len(remote.effects) == (reason is None)
    found = action_of(ledger, outcome)
    assert (found.asking or {}).get("reason") == reason
    assert found.approver == (f"policy: amount {float(amount)} is not over 100" if reason is None else None)


@pytest.mark.parametrize(
    ("hint", "value", "waits"),
    [
        (Decimal, "100.0000000000000000001", True),
        (Decimal, "100.0000000000000000000", False),
        (float | None, None, True),
        (str, "about 5", True),
        (str, "99", False),
        (str, "NaN", True),
        (str, "Infinity", True),
        (list[int], [1, 2], True),
        (bool, True, True),
    ],
)
async def test_over_counts_as_people_do_and_asks_about_what_is_no_number(
    hint: Any, value: object, waits: bool, ledger: Ledger
) -> None:
    """An amount that is left out may mean all of it: it is no reason to ask nobody."""
    done: list[object] = []

    def pay(amount: object) -> None:
        done.append(amount)

    pay.__annotations__["amount"] = hint
    tool = action(risk="non_idempotent_write", remote="opaque", identity="all", approval=over("amount", 100))(pay)
    outcome = await through_sync(tool, [value], ledger=ledger)
    assert ended(outcome) == (WAITS if waits else RUNS)
    assert len(done) == (not waits)


@both_doors
@pytest.mark.parametrize("policy", [always, always(ttl=timedelta(hours=2))], ids=["bare", "called"])
async def test_always_asks(door: Door, policy: Policy, ledger: Ledger) -> None:
    """Whatever the arguments are."""
    remote = Remote()
    outcome = await door(refund(remote, approval=policy), ["A-1", 0.01], ledger=ledger)
    assert (ended(outcome), remote.effects) == (WAITS, [])
    assert (action_of(ledger, outcome).asking or {})["reason"] == "every call is approved by a person"


@both_doors
async def test_the_first_time_is_asked_about_and_the_second_is_not(door: Door, ledger: Ledger) -> None:
    """For these values, whoever asks; another value is a first time again."""
    remote = Remote()
    tool = refund(remote, approval=first_time("order_id"))
    first = await door(tool, ["A-1", 5], ledger=ledger)
    assert ended(first) == WAITS
    assert (action_of(ledger, first).asking or {})["reason"] == "the first time for order_id A-1"
    approve(ledger, first)
    assert ended(await door(tool, ["A-1", 5], ledger=ledger)) == RUNS
    assert ended(await door(tool, ["A-1", 7], ledger=ledger, thread_id="thread-2", requester="joe")) == RUNS
    assert ended(await door(tool, ["B-2", 5], ledger=ledger)) == WAITS
    assert ended(await door(tool, ["A-1", 5], ledger=ledger, tenant="theirs")) == WAITS
    assert len(remote.effects) == 2


@pytest.mark.parametrize("policy", [first_time, first_time()], ids=["bare", "called"])
async def test_the_first_time_of_a_requester(policy: Policy, ledger: Ledger) -> None:
    """Without names it is the requester who is new."""
    remote = Remote()
    tool = refund(remote, approval=policy)
    first = await through_sync(tool, ["A-1", 5], ledger=ledger, requester="ann")
    assert ended(first) == WAITS
    approve(ledger, first)
    await through_sync(tool, ["A-1", 5], ledger=ledger, requester="ann")
    assert ended(await through_sync(tool, ["A-2", 5], ledger=ledger, requester="ann")) == RUNS
    assert ended(await through_sync(tool, ["A-3", 5], ledger=ledger, requester="joe")) == WAITS


async def test_what_was_declined_was_not_done(ledger: Ledger) -> None:
    """After a failure the next time is the first one again."""
    from settled import Rejected

    @action(risk="non_idempotent_write", remote="opaque", identity="all", approval=first_time("payee"))
    def pay(payee: str, amount: int) -> object:
        return Rejected("no such account")

    first = await through_sync(pay, ["ann", 5], ledger=ledger)
    approve(ledger, first)
    assert (await through_sync(pay, ["ann", 5], ledger=ledger)).code == Code.REJECTED
    assert ended(await through_sync(pay, ["ann", 6], ledger=ledger)) == WAITS


@both_doors
async def test_who_lacks_the_role_is_forbidden(door: Door, ledger: Ledger) -> None:
    """Nothing is sent, whatever the next policy would say; with the role the next one is asked."""
    remote = Remote()
    tool = refund(remote, approval=[permitted("clerk", "chief"), over("amount", 100)])
    outcome = await door(tool, ["A-1", 5], ledger=ledger)
    assert ended(outcome) == (Code.FORBIDDEN, State.CANCELLED)
    assert outcome.message.split("\n")[0] == (
        "The request “refund (order_id A-1)” was not carried out: permission for it is missing "
        "(it takes the role chief or clerk)."
    )
    assert ended(await door(tool, ["A-1", 5], ledger=ledger, roles=("clerks",))) == (Code.FORBIDDEN, State.CANCELLED)
    assert remote.effects == []
    assert ended(await door(tool, ["A-1", 5], ledger=ledger, roles=("clerk",))) == RUNS
    assert ended(await door(tool, ["A-2", 500], ledger=ledger, roles=("clerk",))) == WAITS


@both_doors
async def test_roles_as_one_text_are_refused(door: Door, ledger: Ledger) -> None:
    """Its letters would be the roles."""
    remote = Remote()
    with pytest.raises(ContractError, match="roles must be several names"):
        await door(refund(remote), ["A-1", 5], ledger=ledger, roles="clerk")
    assert (count(ledger.url), remote.effects) == (0, [])


@both_doors
async def test_of_several_policies_the_first_that_does_not_allow_decides(door: Door, ledger: Ledger) -> None:
    """Those after it are not asked."""
    remote = Remote()
    judges = [Judge(Allow("fine")), Judge(Ask("second")), Judge(Deny("third"))]
    outcome = await door(refund(remote, approval=judges), ["A-1", 5], ledger=ledger)
    assert ended(outcome) == WAITS
    assert (action_of(ledger, outcome).asking or {})["reason"] == "second"
    assert [len(judge.asked) for judge in judges] == [1, 1, 0]
    assert remote.effects == []


@both_doors
async def test_several_that_allow_allow(door: Door, ledger: Ledger) -> None:
    """The last one's reason stands in the timeline."""
    remote = Remote()
    tool = refund(remote, approval=[Judge(Allow("one")), Judge(Allow("two"))])
    outcome = await door(tool, ["A-1", 5], ledger=ledger)
    assert ended(outcome) == RUNS
    assert action_of(ledger, outcome).approver == "policy: two"
    assert [(e.trigger, e.actor) for e in events_of(ledger, outcome)][:2] == [
        ("plan", None),
        ("approve", "policy: two"),
    ]


@both_doors
async def test_an_async_policy_is_awaited(door: Door, ledger: Ledger) -> None:
    """In the event loop, or in one of its own: also the async method of an object."""
    remote = Remote()

    async def judge(planned: PlannedAction) -> Ask | Allow:
        await asyncio.sleep(0)
        return Ask("async") if planned.arguments["amount"] > 10 else Allow()

    class Later:
        async def __call__(self, planned: PlannedAction) -> Ask | Allow:
            return await judge(planned)

    for n, policy in enumerate((judge, Later())):
        tool = refund(remote, approval=policy)
        assert ended(await door(tool, [f"A-{n}", 11], ledger=ledger)) == WAITS
        assert ended(await door(tool, [f"B-{n}", 10], ledger=ledger)) == RUNS
    assert len(remote.effects) == 2


@both_doors
async def test_what_a_policy_is_told(door: Door, ledger: Ledger) -> None:
    """The validated arguments, and on whose behalf; what it does to them changes nothing."""
    remote = Remote()
    seen: list[PlannedAction] = []

    def judge(planned: PlannedAction) -> Allow:
        seen.append(planned)
        planned.arguments["amount"] = 1  # type: ignore[index]
        return Allow()

    tool = refund(remote, approval=judge)
    arguments = {"order_id": "A-1", "amount": "118.5", "memo": "x"}
    outcome = await door(tool, arguments, ledger=ledger, tenant="ours", requester="ann", roles=("clerk", "night"))
    planned = seen[0]
    assert (planned.tool, planned.risk, planned.tenant, planned.thread_id) == (
        *("refund", "non_idempotent_write"),
        *("ours", "thread-1"),
    )
    assert (planned.requester, planned.roles) == ("ann", frozenset({"clerk", "night"}))
    assert planned.fingerprint == action_of(ledger, outcome, "ours").fingerprint
    assert (planned.summary, planned.repeat_of) == ("refund (order_id A-1)", None)
    assert remote.effects[0]["amount"] == 118.5


# What fails permits nothing.


def raises(planned: PlannedAction) -> Allow:
    raise RuntimeError("the directory is away: secret-of-the-host")


async def araises(planned: PlannedAction) -> Allow:
    raise KeyError("x")


def hangs(planned: PlannedAction) -> Allow:
    time.sleep(2)
    return Allow()


async def ahangs(planned: PlannedAction) -> Allow:
    await asyncio.sleep(2)
    return Allow()


BROKEN: dict[str, tuple[Policy, str]] = {
    "raises": (raises, "the policy could not be asked (RuntimeError)"),
    "raises async": (araises, "the policy could not be asked (KeyError)"),
    "hangs": (hangs, "the policy did not answer within its time"),
    "hangs async": (ahangs, "the policy did not answer within its time"),
    "true": (Judge(True), "the policy answered bool"),
    "nothing": (lambda planned: None, "the policy answered NoneType"),  # type: ignore[dict-item, return-value]
    "the class": (Judge(Allow), "the policy answered type"),
    "text": (Judge("allow"), "the policy answered str"),
    "takes nothing": (lambda: Allow(), "the policy could not be asked (TypeError)"),  # type: ignore[dict-item, misc]
}


@both_doors
@pytest.mark.parametrize(("policy", "reason"), BROKEN.values(), ids=BROKEN)
async def test_a_policy_that_fails_permits_nothing(door: Door, policy: Policy, reason: str, ledger: Ledger) -> None:
    """Raising, hanging or answering something else: denied, and no raw word of it is told."""
    remote = Remote()
    tool = refund(remote, approval=policy, timeout=0.3, settle_window=1)
    outcome = await door(tool, ORDER, ledger=ledger)
    assert (ended(outcome), remote.effects) == (DENIED, [])
    assert outcome.message.split("\n")[0] == (
        f"The request “refund (order_id INV-102)” was not approved by the rules for such requests ({reason}). "
        "Nothing was carried out."
    )
    assert "secret-of-the-host" not in str(rows(ledger.url, "SELECT a::text FROM settled.actions a"))
    assert count(ledger.url, "settled.approvals") == 0


@both_doors
async def test_a_failing_policy_behind_one_that_allows_permits_nothing(door: Door, ledger: Ledger) -> None:
    """And one behind a policy that looks into the ledger."""
    remote = Remote()
    tool = refund(remote, approval=[Judge(Allow()), raises])
    assert ended(await door(tool, ORDER, ledger=ledger)) == DENIED
    assert remote.effects == []


async def test_a_caller_that_is_cancelled_while_the_policy_thinks_has_begun_nothing(ledger: Ledger) -> None:
    """No row, no effect; the cancellation travels on."""
    remote, asked = Remote(), asyncio.Event()

    async def thinks(planned: PlannedAction) -> Allow:
        asked.set()
        await asyncio.sleep(5)
        return Allow()

    call = asyncio.create_task(through_async(refund(remote, approval=thinks), ORDER, ledger=ledger))
    await asked.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (count(ledger.url), remote.effects) == (0, [])


async def test_a_ledger_that_is_away_permits_nothing(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that looks back cannot: the call is unavailable, nothing was sent, and nothing was begun."""
    remote, run = Remote(), ledger.run

    def away(query: Query[Any]) -> Any:
        if query.name == "used":
            raise LedgerUnavailable("gone")
        return run(query)

    monkeypatch.setattr(ledger, "run", away)
    outcome = await through_sync(refund(remote, approval=first_time("order_id")), ORDER, ledger=ledger)
    assert (ended(outcome), remote.effects) == ((Code.UNAVAILABLE, None), [])
    monkeypatch.undo()
    assert count(ledger.url) == 0


# Defaults by risk, and what may be declared.


@both_doors
async def test_a_default_by_risk_is_for_tools_without_a_policy_of_their_own(door: Door, ledger: Ledger) -> None:
    """The tool's own goes before it, and it is for its own risk alone."""
    remote = Remote()
    strict: dict[str, Policy] = {"non_idempotent_write": always}
    assert ended(await door(refund(remote, approval=None), ["A-1", 5], ledger=ledger, policies=strict)) == WAITS
    own = refund(remote, approval=over("amount", 100))
    assert ended(await door(own, ["A-2", 5], ledger=ledger, policies=strict)) == RUNS
    mild = refund(remote, approval=None, risk="idempotent_write")
    assert ended(await door(mild, ["A-3", 5], ledger=ledger, policies=strict)) == RUNS
    lax: dict[str, Policy] = {"non_idempotent_write": Judge(Allow())}
    assert ended(await door(own, ["A-4", 500], ledger=ledger, policies=lax)) == WAITS
    assert ended(await door(refund(remote, approval=None), ["A-5", 5], ledger=ledger)) == RUNS


WRONG_DEFAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "no such risk": ({"dangerous": always}, "'dangerous' is no risk of a write"),
    "a read": ({"read": always}, "'read' is no risk of a write"),
    "no function": ({"non_idempotent_write": Ask()}, "must be a function of the planned action"),
    "several": ({"non_idempotent_write": [always]}, "must be a function of the planned action"),
    "an argument's": ({"non_idempotent_write": over("amount", 5)}, "name no argument"),
    "a value's": ({"idempotent_write": first_time("payee")}, "name no argument"),
}


@both_doors
@pytest.mark.parametrize(("policies", "sentence"), WRONG_DEFAULTS.values(), ids=WRONG_DEFAULTS)
async def test_a_default_that_cannot_be_right_is_refused(
    door: Door, policies: dict[str, Any], sentence: str, ledger: Ledger
) -> None:
    """Before anything is written, and also where the tool at hand would not need it."""
    remote = Remote()
    with pytest.raises(ContractError, match=sentence):
        await door(refund(remote), ["A-1", 5], ledger=ledger, policies=policies)
    with pytest.raises(ContractError, match=sentence):
        Desk(ledger, policies=policies)
    assert (count(ledger.url), remote.effects) == (0, [])


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "ttl of nothing": (lambda: Ask(ttl=timedelta(0)), "ttl must be a timedelta"),
    "ttl of the past": (lambda: Ask(ttl=timedelta(seconds=-1)), "ttl must be a timedelta"),
    "ttl of years": (lambda: Ask(ttl=timedelta(days=366)), "at most 365 days"),
    "ttl in seconds": (lambda: Ask(ttl=3600), "ttl must be a timedelta"),  # type: ignore[arg-type]
    "approvers as one text": (lambda: Ask(approvers="supervisor"), r'as in \("supervisor",\)'),
    "an approver without a name": (lambda: Ask(approvers=("",)), "approvers must be names"),
    "a blank approver": (lambda: Ask(approvers=("ann", " ")), "approvers must be names"),
    "an approver that is none": (lambda: Ask(approvers=(5,)), "approvers must be names"),  # type: ignore[arg-type]
    "over a word": (lambda: over("amount", "much"), "limit of amount must be a number"),  # type: ignore[arg-type]
    "over nothing": (lambda: over("amount", None), "limit of amount must be a number"),  # type: ignore[arg-type]
    "over a truth": (lambda: over("amount", True), "limit of amount must be a number"),
    "over no number": (lambda: over("amount", float("nan")), "limit of amount must be a number"),
    "over all": (lambda: over("amount", float("inf")), "limit of amount must be a number"),
    "over what": (lambda: over(5, 100), "name of an argument"),  # type: ignore[arg-type]
    "over, asking oddly": (lambda: over("amount", 5, aprovers=("ann",)), "over takes reason, scope, ttl.*aprovers"),
    "over, asking nobody": (lambda: over("amount", 5, approvers="ann"), "approvers must be names"),
    "always, asking oddly": (lambda: always(when="now"), "always takes reason, scope.*when"),
    "first_time, asking oddly": (lambda: first_time("payee", limit=5), "first_time takes reason.*limit"),
    "first_time of numbers": (lambda: first_time(5), "first_time takes names"),
    "permitted to nobody": (lambda: permitted(), "permitted takes roles"),
    "permitted to a blank": (lambda: permitted(" "), "permitted takes roles"),
}


@pytest.mark.parametrize(("make", "sentence"), WRONG.values(), ids=WRONG)
def test_a_policy_that_cannot_be_right_is_refused_when_it_is_made(make: Callable[[], object], sentence: str) -> None:
    """With a sentence that says how to write it."""
    with pytest.raises(ContractError, match=sentence):
        make()


async def test_what_an_ask_says_stands_in_the_ticket(ledger: Ledger) -> None:
    """Reason, scope, approvers, four eyes, and until when."""
    asking = Ask("large", "refunds over the limit", timedelta(hours=2), ["supervisor", "ann"], True)
    assert asking.approvers == ("supervisor", "ann")
    outcome = await through_sync(refund(Remote(), approval=Judge(asking)), ORDER, ledger=ledger, requester="joe")
    ticket = Desk(ledger).approval(str(outcome.action_id))
    assert (ticket.reason, ticket.scope, ticket.approvers, ticket.four_eyes) == (
        *("large", "refunds over the limit"),
        *(("supervisor", "ann"), True),
    )
    assert ticket.valid_until is not None
    assert ticket.valid_until - ticket.issued_at == timedelta(hours=2)
    assert (ticket.requester, ticket.tool, ticket.summary, ticket.round) == (
        *("joe", "refund"),
        *("refund (order_id INV-102)", 1),
    )
    assert (ticket.decision, ticket.decided_by, ticket.decided_at, ticket.spent_at) == (None,) * 4


async def test_a_secret_is_in_no_reason(database_url: str) -> None:
    """A reason stands in the ledger in plain: it names the argument, and not its value."""

    @action(
        risk="non_idempotent_write", remote="opaque", identity=("order",),
        approval=[over("pin", 9_999_999), first_time("iban")],
    )  # fmt: skip
    def pay(order: str, iban: Annotated[str, Secret()], pin: Annotated[int, Secret()]) -> None: ...

    with opened(database_url, secret_key=Fernet.generate_key().decode()) as ledger:
        first = await through_sync(pay, ["A-1", "DE02-1234", 4711], ledger=ledger)
        second = await through_sync(pay, ["A-2", "DE02-1234", 88_888_888], ledger=ledger)
        reasons = [(action_of(ledger, o).asking or {})["reason"] for o in (first, second)]
        told = [first.message, second.message, str(Desk(ledger).approvals())]
    assert reasons == ["the first time for iban •••", "pin ••• is over 9999999"]
    stored = [rows(database_url, f"SELECT t::text FROM settled.{t} t") for t in ("actions", "events", "approvals")]
    assert not [text for text in [*told, str(stored)] if "DE02" in text or "88888888" in text or "4711" in text]


# The verdict is frozen.


@both_doors
@pytest.mark.parametrize("now", [Allow("fine now"), Deny("not any more"), Ask("more strictly", approvers=("cfo",))])
@pytest.mark.parametrize("decision", ["click-1", None])
async def test_a_verdict_is_frozen_with_the_action(door: Door, decision: str | None, now: Any, ledger: Ledger) -> None:
    """It was asked at 118.5: that the policy would say something else today changes nothing, also after a restart."""
    remote, judge = Remote(), Judge(Ask("as of yesterday", approvers=("maria",)))
    first = await door(refund(remote, approval=judge), ORDER, ledger=ledger, decision=decision)
    judge.verdict = now
    again = await door(refund(remote, approval=judge), ORDER, ledger=ledger, decision=decision)
    with opened(ledger.url) as restarted:
        later = await door(refund(remote, approval=judge), ORDER, ledger=restarted, decision=decision)
        found = action_of(restarted, later)
        approve(restarted, later)
        done = await door(refund(remote, approval=judge), ORDER, ledger=restarted, decision=decision)
        await restarted.aclose()
    assert [ended(o) for o in (first, again, later, done)] == [WAITS, WAITS, WAITS, RUNS]
    assert len({o.action_id for o in (first, again, later, done)}) == 1
    assert ((found.asking or {})["reason"], len(remote.effects)) == ("as of yesterday", 1)
    if decision is not None:
        assert len(judge.asked) == 1


@both_doors
async def test_an_approved_action_runs_although_the_policy_denies_by_now(door: Door, ledger: Ledger) -> None:
    """A person has decided on it after the policy did."""
    remote, judge = Remote(), Judge()
    tool = refund(remote, approval=judge)
    first = await door(tool, ORDER, ledger=ledger, decision="click-1")
    approve(ledger, first)
    judge.verdict = Deny("closed today")
    assert ended(await door(tool, ORDER, ledger=ledger, decision="click-1")) == RUNS
    assert (len(judge.asked), len(remote.effects)) == (1, 1)


@both_doors
async def test_a_policys_no_binds_while_it_says_no(door: Door, ledger: Ledger) -> None:
    """A repeat is a replay of the same action, and the same decision stays denied; a new call finds the door open when
    the policy has changed its mind.
    """
    remote, judge = Remote(), Judge(Deny("the account is frozen"))
    tool = refund(remote, approval=judge)
    first = await door(tool, ORDER, ledger=ledger, decision="click-1")
    assert (ended(first), first.replayed, action_of(ledger, first).approver) == (DENIED, False, "policy")
    again = [await door(tool, ORDER, ledger=ledger, decision=d) for d in ("click-1", "click-2", None)]
    assert [(ended(o), o.replayed, o.action_id) for o in again] == [(DENIED, True, first.action_id)] * 3
    judge.verdict = Allow()
    assert ended(await door(tool, ORDER, ledger=ledger, decision="click-1")) == DENIED
    opened_now = await door(tool, ORDER, ledger=ledger, decision="click-3")
    assert (ended(opened_now), opened_now.action_id == first.action_id) == (RUNS, False)
    assert (states(ledger.url), len(remote.effects)) == (["cancelled", "succeeded"], 1)


@both_doors
async def test_what_a_policy_denies_holds_no_business_key(door: Door, ledger: Ledger) -> None:
    """Somebody else may have it."""
    remote = Remote()
    strict = refund(remote, unique=("order_id",), approval=permitted("clerk"))
    assert ended(await door(strict, ORDER, ledger=ledger)) == (Code.FORBIDDEN, State.CANCELLED)
    assert ended(await door(strict, ORDER, ledger=ledger, thread_id="thread-2", roles=("clerk",))) == RUNS


async def test_sixteen_callers_whose_policies_differ_begin_one_action(ledger: Ledger) -> None:
    """Whoever comes first decides whether it waits or runs: there is one action, and at most one effect."""
    for n in range(4):
        remote, lock, verdicts = Remote(), threading.Lock(), iter([Ask("a"), Allow("b")] * 8)

        def judge(planned: PlannedAction, lock: Any = lock, verdicts: Any = verdicts) -> Any:
            with lock:
                return next(verdicts)

        tool, order = refund(remote, approval=judge), {"order_id": f"A-{n}", "amount": 5}
        calls = (through_sync(tool, order, ledger=ledger, decision=f"click-{i}") for i in range(16))
        outcomes = await asyncio.gather(*calls)
        assert len({o.action_id for o in outcomes}) == 1
        state = action_of(ledger, outcomes[0]).state
        assert (state, len(remote.effects)) in {(State.PLANNED, 0), (State.SUCCEEDED, 1)}
        tickets = rows(ledger.url, "SELECT 1 FROM settled.approvals WHERE action_id = %s", outcomes[0].action_id)
        assert len(tickets) == (state is State.PLANNED)
