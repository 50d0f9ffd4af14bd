"""A chain whose code has changed while a run was open: it goes on where that is safe, and is refused where not."""

from typing import Any

import pytest

from acts import rows
from chain_shop import FORWARD, INPUT, Counter, order_chain, raising, shop_tools
from settled import ContractError, Ended, IllegalTransition, Ledger, Refused, action
from settled.graph.chain import chain
from settled.tools.chains import ChainChanged, step

AWAY = raising(Ended(Refused("busy")))
ONCE: dict[str, Any] = {"pay": {"max_attempts": 1, "deadline": 5.0}}


def stopped_at_pay(ledger: Ledger, far: Counter, **options: Any) -> Any:
    """Run a chain that stands before its payment."""
    far.faults["pay"] = AWAY
    end = order_chain(far, contracts=ONCE, **options).run(INPUT, ledger=ledger, thread_id="t")
    assert (end.state, far.done) == ("stopped", ["deduct_coupon"])
    far.faults.clear()
    return end


def telling(far: Counter) -> Any:
    """A step more, which takes something of the input that older runs do not have."""

    def tell(order: str, whom: str = "the customer") -> Any:
        """Tell somebody."""
        return far.do("tell", order=order, whom=whom)

    return step("tell", action(risk="non_idempotent_write", identity="all", name="tell")(tell))


def test_a_run_goes_on_after_the_code_got_a_new_step(ledger: Ledger) -> None:
    """New steps at the end are carried out too, in runs that were begun without them; new input has its default."""
    from settled.tools.chain_desk import ChainDesk

    far = Counter()
    stopped = stopped_at_pay(ledger, far)
    ChainDesk(ledger).finish(str(stopped.chain_id), "pay", by="mia", receipt="CASH-1")
    newer = order_chain(far, contracts=ONCE, more=[telling(far)])
    end = newer.run(INPUT, ledger=ledger, thread_id="t")
    assert (end.state, end.chain_id) == ("succeeded", stopped.chain_id)
    assert far.done == ["deduct_coupon", "ship", "tell"]
    assert far.effects[-1]["whom"] == "the customer"
    assert newer.run(INPUT, ledger=ledger, thread_id="t")["tell"].state == "done"


def test_a_run_that_is_over_does_not_begin_a_step_that_came_later(ledger: Ledger) -> None:
    """Its end was recorded: the same input answers with it."""
    far = Counter()
    order_chain(far).run(INPUT, ledger=ledger, thread_id="t")
    again = order_chain(far, more=[telling(far)]).run(INPUT, ledger=ledger, thread_id="t")
    assert (again.code, far.done, len(again.steps)) == ("duplicate", list(FORWARD), 4)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"names": {"deduct_coupon": "take_coupon"}}, "deduct_coupon .*gone from order, or has another name now"),
        ({"without": ("deduct_coupon",)}, "deduct_coupon .*gone from order"),
        ({"without": ("verify_coupon", "deduct_coupon")}, "verify_coupon .*gone from order"),
    ],
)
def test_a_done_step_that_was_removed_or_renamed_is_refused_by_name(
    ledger: Ledger, change: dict[str, Any], sentence: str
) -> None:
    """Nothing is done by code that does not know what was done: the error names the step and says the way on."""
    far = Counter()
    stopped_at_pay(ledger, far)
    if change.get("without") == ("deduct_coupon",):
        tools = shop_tools(far)
        other = chain("order", [step("verify_coupon", tools["verify_coupon"]), step("pay", tools["pay"])])
    else:
        other = order_chain(far, contracts=ONCE, **change)
    given = INPUT
    with pytest.raises(ChainChanged, match=sentence):
        other.go_on(str(_only_chain(ledger)), ledger=ledger)
    assert (far.done, issubclass(ChainChanged, ContractError)) == (["deduct_coupon"], True)
    assert order_chain(far, contracts=ONCE).run(given, ledger=ledger, thread_id="t").chain_id == _only_chain(ledger)


def _only_chain(ledger: Ledger) -> object:
    (row,) = rows(ledger.url, "SELECT id FROM settled.chains")
    return row["id"]


def test_a_step_that_was_moved_or_has_another_tool_is_refused(ledger: Ledger) -> None:
    """The same name elsewhere, or over another tool, is not the step that was begun."""
    far = Counter()
    stopped_at_pay(ledger, far)
    tools, chain_id = shop_tools(far), str(_only_chain(ledger))
    verify, pay = step("verify_coupon", tools["verify_coupon"]), step("pay", tools["pay"])
    moved = chain("order", [verify, pay, step("deduct_coupon", tools["ship"])])
    with pytest.raises(ChainChanged, match=r"deduct_coupon .*it is number 3 now"):
        moved.go_on(chain_id, ledger=ledger)
    swapped = chain("order", [verify, step("deduct_coupon", tools["ship"]), pay])
    with pytest.raises(ChainChanged, match=r"deduct_coupon .*its tool is ship now"):
        swapped.go_on(chain_id, ledger=ledger)
    assert far.done == ["deduct_coupon"]


def test_steps_that_were_not_begun_may_be_put_in_otherwise(ledger: Ledger) -> None:
    """What is still to do is the code's: only what was begun is bound."""
    from settled.tools.chain_desk import ChainDesk

    far = Counter()
    stopped = stopped_at_pay(ledger, far)
    ChainDesk(ledger).finish(str(stopped.chain_id), "pay", by="mia")
    end = order_chain(far, contracts=ONCE, without=("ship",), more=[telling(far)]).go_on(
        str(stopped.chain_id), ledger=ledger
    )
    assert (end.state, far.done) == ("succeeded", ["deduct_coupon", "tell"])


def test_the_database_guards_what_a_run_is(ledger: Ledger) -> None:
    """Whoever bypasses the library changes neither an input nor what a step was, and deletes nothing that is open."""
    import psycopg

    far = Counter()
    stopped_at_pay(ledger, far)
    statements = [
        "UPDATE settled.chains SET input = '{}', version = version + 1",
        "UPDATE settled.chains SET on_failure = 'compensate', version = version + 1",
        "UPDATE settled.chains SET reason = 'x'",
        "DELETE FROM settled.chains",
        "TRUNCATE settled.chains",
        "UPDATE settled.chain_steps SET tool = 'x'",
        "UPDATE settled.chain_steps SET action_id = 'act-other' WHERE name = 'deduct_coupon'",
        "UPDATE settled.chain_steps SET result = '1' WHERE name = 'verify_coupon'",
        "DELETE FROM settled.chain_steps",
    ]
    with psycopg.connect(ledger.url, autocommit=True) as connection:
        for statement in statements:
            with pytest.raises(psycopg.Error) as refused:
                connection.execute(statement)
            assert refused.value.sqlstate == "ST001", statement
    assert issubclass(IllegalTransition, Exception)
