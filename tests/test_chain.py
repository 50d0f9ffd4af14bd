"""A chain of steps: what later steps are given, what a run is the same as, what is refused, what is said of it."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

from acts import count, rows
from chain_shop import FORWARD, INPUT, Counter, kept, order_chain, raising, shop_tools
from settled import ContractError, Ended, Invalid, Ledger, Refused, Rejected, Unguarded
from settled.graph.chain import chain
from settled.tools.chains import step


async def run(order: Any, mode: str, ledger: Ledger, given: Any = None, thread_id: str = "t", **options: Any) -> Any:
    """Run a chain by one of its two drivers."""
    if mode == "async":
        return await order.arun(given or INPUT, ledger=ledger, thread_id=thread_id, **options)
    return order.run(given or INPUT, ledger=ledger, thread_id=thread_id, **options)


both = pytest.mark.parametrize("mode", ["sync", "async"])


@both
async def test_steps_are_done_in_order_and_later_ones_are_made_of_earlier_ones(ledger: Ledger, mode: str) -> None:
    """Each step once, with its own key; the coupon's worth comes from the step that looked it up."""
    far = Counter()
    end = await run(order_chain(far, asynchronous=mode == "async"), mode, ledger)
    assert (end.state, end.code, far.done) == ("succeeded", "succeeded", list(FORWARD))
    assert far.effects[0]["worth"] == 5
    assert len({effect["key"] for effect in far.effects}) == 3
    assert end.receipts == {"deduct_coupon": "R-1", "pay": "R-2", "ship": "R-3"}
    assert end["verify_coupon"].result == {"worth": 5}
    assert "R-1" in end.message
    assert "do not call order again" in end.message


@both
async def test_the_same_input_again_is_the_same_run_for_ever(ledger: Ledger, mode: str) -> None:
    """Nothing is done again, and the receipts are told; the answer says that nothing new was done."""
    far = Counter()
    order = order_chain(far, asynchronous=mode == "async")
    first, again = await run(order, mode, ledger), await run(order, mode, ledger)
    assert (again.code, again.chain_id, again.receipts) == ("duplicate", first.chain_id, first.receipts)
    assert again.message.startswith(first.message.split("\n")[0])
    assert "Nothing new was done" in again.message
    assert far.done == list(FORWARD)


def test_another_conversation_or_another_tenant_has_a_run_of_its_own(ledger: Ledger) -> None:
    """A run belongs to its conversation: the same input elsewhere is another order."""
    far = Counter()
    order = order_chain(far)
    ends = [
        order.run(INPUT, ledger=ledger, thread_id="t"),
        order.run(INPUT, ledger=ledger, thread_id="u"),
        order.run(INPUT, ledger=ledger, thread_id="t", tenant="acme"),
    ]
    assert len({end.chain_id for end in ends}) == 3
    assert far.done == [*FORWARD] * 3


def test_the_same_identity_with_another_input_clashes(ledger: Ledger) -> None:
    """One order is one run: with another coupon it is refused, and the earlier one is named."""
    far = Counter()
    order = order_chain(far, identity=("order",))
    first = order.run(INPUT, ledger=ledger, thread_id="t")
    other = order.run({**INPUT, "coupon": "C-2"}, ledger=ledger, thread_id="t")
    assert (other.state, other.code, other.chain_id) == (None, "conflict", first.chain_id)
    assert other.artifact["differing"] == {"coupon": ["C-1", "C-2"]}
    assert far.done == list(FORWARD)
    assert count(ledger.url, "settled.chains") == 1


def test_after_a_run_that_did_nothing_another_input_is_a_new_run(ledger: Ledger) -> None:
    """A coupon that was turned down has changed nothing: the order may be placed with another one."""
    far = Counter(faults={"deduct_coupon": raising(Ended(Rejected("used up")))})
    order = order_chain(far, identity=("order",))
    first = order.run(INPUT, ledger=ledger, thread_id="t")
    assert (first.state, first.code, far.done) == ("stopped", "rejected", [])
    assert "Nothing was changed" in first.message
    far.faults.clear()
    other = order.run({**INPUT, "coupon": "C-2"}, ledger=ledger, thread_id="t")
    assert (other.state, far.done) == ("succeeded", list(FORWARD))
    assert other.chain_id != first.chain_id
    assert order.run(INPUT, ledger=ledger, thread_id="t").code == "conflict"


def test_once_more_on_purpose_asks_a_person_first(ledger: Ledger) -> None:
    """`repeat_of` names the earlier run; its first effect waits for a person, and the other steps for that."""
    from settled import Approve, Desk

    far = Counter()
    order = order_chain(far)
    first = order.run(INPUT, ledger=ledger, thread_id="t")
    again = {**INPUT, "repeat_of": first.chain_id}
    waits = order.run(again, ledger=ledger, thread_id="t")
    assert (waits.state, waits.code, far.done) == ("waiting", "waiting_for_approval", list(FORWARD))
    assert waits.chain_id != first.chain_id
    action_id = waits.artifact["action_id"]
    Desk(ledger).decide(action_id, Approve(), by="mia", fingerprint=str(waits.fingerprint))
    done = order.run(again, ledger=ledger, thread_id="t")
    assert (done.state, far.done) == ("succeeded", [*FORWARD, *FORWARD])
    wrong = order.run({**INPUT, "order": "O-2", "repeat_of": first.chain_id}, ledger=ledger, thread_id="t")
    assert (wrong.code, wrong.state) == ("invalid", None)


@both
async def test_bad_input_begins_nothing(ledger: Ledger, mode: str) -> None:
    """A rule of the input that is broken is named, and no row is written."""
    far = Counter()
    end = await run(order_chain(far, asynchronous=mode == "async"), mode, ledger, {"coupon": "C-1"})
    assert (end.code, end.state, end.artifact["may_retry"]) == ("invalid", None, True)
    assert "order" in end.message
    assert (far.done, count(ledger.url, "settled.chains")) == ([], 0)


@pytest.mark.parametrize("given", [None, "O-1", ["C-1", "O-1"], 7])
def test_an_input_that_is_no_mapping_is_a_fault_of_the_code(ledger: Ledger, given: Any) -> None:
    order = order_chain(Counter())
    with pytest.raises(ContractError, match="a mapping of its fields"):
        order.run(given, ledger=ledger, thread_id="t")
    with pytest.raises(ContractError, match="begin it with"):
        order.graph(ledger).invoke({}, {"configurable": {"thread_id": "t"}})


def test_arguments_that_cannot_be_made_stop_the_run_until_the_code_is_mended(ledger: Ledger) -> None:
    """A function that raises is a step that did not begin; the next run, with better code, goes on there."""
    far = Counter()
    tools = shop_tools(far)

    def made(function: Any) -> Any:
        steps = [step("pay", tools["pay"]), step("ship", tools["ship"], arguments=function)]
        return chain("order", steps)

    broken = made(lambda so_far: {"order": so_far["pay"].result["no such field"]})
    stuck = broken.run({"order": "O-1"}, ledger=ledger, thread_id="t")
    assert (stuck.state, stuck.code, far.done) == ("stopped", "manual_review", ["pay"])
    assert (stuck["ship"].state, "KeyError" in str(stuck["ship"].reason)) == ("failed", True)
    mended = made(lambda so_far: {"order": so_far["pay"].result["order"]})
    assert mended.run({"order": "O-1"}, ledger=ledger, thread_id="t").state == "succeeded"
    assert far.done == ["pay", "ship"]


def test_arguments_are_made_once_and_kept(ledger: Ledger) -> None:
    """A function that answers otherwise each time cannot change what a step was begun with."""
    far, made = Counter(), []

    def arguments(so_far: Any) -> dict[str, str]:
        made.append(f"O-{len(made)}")
        return {"order": made[-1]}

    tools = shop_tools(far, contracts={"pay": {"query": None, "remote": "opaque"}})
    order = chain("order", [step("pay", tools["pay"], arguments=arguments), step("ship", tools["ship"])])
    far.faults["pay, answered"] = raising(TimeoutError())
    unknown = order.run({"order": "O"}, ledger=ledger, thread_id="t")
    assert (unknown.state, unknown.code) == ("unknown", "manual_review")
    order.run({"order": "O"}, ledger=ledger, thread_id="t")
    assert (made, [effect["order"] for effect in far.effects]) == (["O-0"], ["O-0"])


@both
async def test_a_lost_reply_of_the_second_step_never_runs_the_first_again(ledger: Ledger, mode: str) -> None:
    """The step is unknown, is found by asking, and the run goes on after it: each effect once."""
    far = Counter(faults={"pay, answered": raising(TimeoutError())})
    end = await run(order_chain(far, asynchronous=mode == "async"), mode, ledger)
    assert (end.state, far.done) == ("succeeded", list(FORWARD))


def test_a_step_that_nobody_can_ask_about_holds_the_run(ledger: Ledger) -> None:
    """Unknown is neither done nor failed: the run stands there, nothing is sent again, until a person says."""
    from settled import Desk, Happened

    far = Counter(faults={"pay, answered": raising(TimeoutError())})
    order = order_chain(far, on_failure="compensate", contracts={"pay": {"query": None, "remote": "opaque"}})
    stands = order.run(INPUT, ledger=ledger, thread_id="t")
    assert (stands.state, stands.code, stands["pay"].state) == ("unknown", "manual_review", "unknown")
    assert order.run(INPUT, ledger=ledger, thread_id="t").state == "unknown"
    assert far.done == ["deduct_coupon", "pay"]
    pay = ledger.action(str(stands["pay"].action_id))
    Desk(ledger).resolve(pay.id, Happened("R-77"), by="mia", fingerprint=pay.fingerprint)
    end = order.run(INPUT, ledger=ledger, thread_id="t")
    assert (end.state, end.receipts["pay"], far.done) == ("succeeded", "R-77", list(FORWARD))


def test_a_service_that_was_away_is_tried_again_by_a_later_run(database_url: str) -> None:
    """Unavailable did nothing: a run that comes a while later tries the step anew, under a key of its own."""
    from acts import opened
    from chain_shop import Clock

    clock, far = Clock(), Counter(faults={"pay": raising(Ended(Refused("busy")))})
    with opened(database_url, clock=clock) as ledger:
        order = order_chain(far)
        away = order.run(INPUT, ledger=ledger, thread_id="t", world=clock.world())
        assert (away.state, away["pay"].state, far.done) == ("stopped", "failed", ["deduct_coupon"])
        far.faults.clear()
        at_once = order.run(INPUT, ledger=ledger, thread_id="t", world=clock.world())
        assert (at_once.state, far.done) == ("stopped", ["deduct_coupon"])
        clock.sleep(30)
        later = order.run(INPUT, ledger=ledger, thread_id="t", world=clock.world())
        assert (later.state, far.done) == ("succeeded", list(FORWARD))
        assert kept(ledger, later.chain_id).of("pay").row.tries == 2


def test_what_the_first_step_does_not_take_may_be_corrected(ledger: Ledger) -> None:
    """An input that a step's own schema refuses: field and rule are named, nothing is sent, another input is taken."""
    far = Counter()
    take = step(
        "deduct_coupon", shop_tools(far)["deduct_coupon"], arguments=lambda so_far: {**so_far.input, "worth": 5}
    )

    class Order(BaseModel):
        coupon: str

    order = chain("order", [take], args_schema=Order)
    bad = order.run({"coupon": "C" * 30}, ledger=ledger, thread_id="t")
    assert (bad.state, bad.code, bad.artifact["may_retry"], far.done) == ("stopped", "invalid", True, [])
    assert "coupon" in str(bad["deduct_coupon"].reason)
    assert order.run({"coupon": "C-1"}, ledger=ledger, thread_id="t").state == "succeeded"


@pytest.mark.parametrize("error", [Rejected("no stock"), Invalid("no such order")])
def test_a_no_stands(ledger: Ledger, error: Any) -> None:
    """What the business turned down is not tried again, however often the chain is run."""
    far = Counter(faults={"pay": raising(Ended(error))})
    order = order_chain(far)
    first = order.run(INPUT, ledger=ledger, thread_id="t")
    far.faults.clear()
    again = order.run(INPUT, ledger=ledger, thread_id="t")
    assert (first.state, again.state, again.code) == ("stopped", "stopped", "manual_review")
    assert again.artifact["may_retry"] is False
    assert far.done == ["deduct_coupon"]


def test_what_is_held_by_another_conversation_fails_its_step(ledger: Ledger) -> None:
    """A business key that is taken: the step did not take place, and the chain says by which receipt it was done."""
    far = Counter()
    unique = {"pay": {"unique": ("order",)}}
    order_chain(far, contracts=unique).run(INPUT, ledger=ledger, thread_id="t")
    end = order_chain(far, contracts=unique).run(INPUT, ledger=ledger, thread_id="u")
    assert (end.state, end["pay"].state, end["pay"].reason) == ("stopped", "failed", "it was done already")
    assert end["pay"].receipt == "R-2"
    assert far.done.count("pay") == 1


@both
async def test_the_record_of_a_read_is_kept(ledger: Ledger, mode: str) -> None:
    """A read is asked once in a run: what later steps were made of does not change under them."""
    far, asked = Counter(faults={"ship": raising(Ended(Rejected("no")))}), []
    far.faults["verify_coupon"] = lambda: asked.append(1)
    order = order_chain(far, asynchronous=mode == "async")
    await run(order, mode, ledger)
    await run(order, mode, ledger)
    assert len(asked) == 1


def test_a_read_that_fails_stops_the_run_before_any_effect(ledger: Ledger) -> None:
    """A coupon that is not good: nothing is deducted, paid or shipped."""
    far = Counter(faults={"verify_coupon": raising(Ended(Rejected("expired")))})
    end = order_chain(far, on_failure="compensate").run(INPUT, ledger=ledger, thread_id="t")
    assert (end.state, end.code, far.done) == ("stopped", "rejected", [])
    assert "expired" in end.message


def test_what_cannot_be_undone_is_said_before_it_starts(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    """In the tool's description, in the run's row, in the log, and in the first thing that is streamed."""
    order = order_chain(Counter())
    assert "Cannot be undone once done: ship." in order.tool.description
    assert order.irreversible == ("ship",)
    caplog.set_level("INFO", "settled")
    graph = order.graph(ledger)
    first, *_ = graph.stream({"input": INPUT}, {"configurable": {"thread_id": "t"}}, stream_mode="updates")
    assert first["begin"]["outcome"]["irreversible"] == ["ship"]
    assert first["begin"]["outcome"]["state"] == "running"
    assert "steps without a way back: ship" in caplog.text
    assert rows(ledger.url, "SELECT irreversible FROM settled.chains") == [{"irreversible": ["ship"]}]


def test_the_graph_streams_each_step(ledger: Ledger) -> None:
    """One node per step, and an event for each state that the run comes to."""
    graph = order_chain(Counter()).graph(ledger)
    config: Any = {"configurable": {"thread_id": "t"}}
    seen = list(graph.stream({"input": INPUT}, config, stream_mode=["updates", "custom"]))
    assert [next(iter(one)) for kind, one in seen if kind == "updates"] == ["begin", "verify_coupon", *FORWARD]
    states = [one["settled"]["steps"]["pay"] for kind, one in seen if kind == "custom"]
    assert states == ["to_do", "to_do", "to_do", "done", "done"]
    last = next(one for kind, one in reversed(seen) if kind == "updates")["ship"]["outcome"]
    assert json.loads(json.dumps(last)) == last
    assert last["steps"][3]["receipt"] == "R-3"
    assert "result" not in last["steps"][3]


@both
async def test_a_run_is_carried_on_by_its_id(ledger: Ledger, mode: str) -> None:
    """A worker, or a person, needs no input: the run has it. Another tenant's, or another chain's, is not there."""
    from settled import NotFound
    from settled.tools.chain_desk import ChainDesk

    far = Counter(faults={"pay": raising(Ended(Rejected("no")))})
    order = order_chain(far, asynchronous=mode == "async")
    chain_id = str((await run(order, mode, ledger)).chain_id)
    ChainDesk(ledger).finish(chain_id, "pay", by="mia")
    if mode == "async":
        end = await order.ago_on(chain_id, ledger=ledger)
    else:
        end = order.go_on(chain_id, ledger=ledger)
    assert (end.state, far.done) == ("succeeded", ["deduct_coupon", "ship"])
    with pytest.raises(NotFound):
        order.go_on(chain_id, ledger=ledger, tenant="acme")
    with pytest.raises(NotFound):
        chain("other", [step("pay", shop_tools(far)["pay"])]).go_on(chain_id, ledger=ledger)


def test_a_chain_in_chinese(ledger: Ledger) -> None:
    """The sentences are in the language that was asked for."""
    end = order_chain(Counter()).run(INPUT, ledger=ledger, thread_id="t", language="zh")
    assert end.message.startswith("请求“order")
    assert "R-3" in end.message


def test_a_secret_of_the_input_is_sealed_and_never_told(database_url: str) -> None:
    """A card number travels to the step that needs it, and is in no row, no answer and no other step."""
    from typing import Annotated

    from cryptography.fernet import Fernet

    from settled import Secret, action, current_action

    got: list[str] = []

    @action(risk="non_idempotent_write", identity=("order",))
    def charge(order: str, card: Annotated[str, Secret()]) -> dict[str, str]:
        """Charge a card."""
        got.append(card)
        return {"receipt": current_action().action_id}

    with Ledger.connect(database_url, secret_key=Fernet.generate_key().decode()) as ledger:
        order = chain("order", [step("charge", charge)])
        end = order.run({"order": "O-1", "card": "4000-1234"}, ledger=ledger, thread_id="t")
        assert (end.state, got) == ("succeeded", ["4000-1234"])
        assert order.run({"order": "O-1", "card": "4000-1234"}, ledger=ledger, thread_id="t").code == "duplicate"
        tables = ("settled.chains", "settled.chain_steps", "settled.actions")
        stored = str([rows(database_url, f"SELECT * FROM {table}") for table in tables])
    assert "4000-1234" not in stored + end.message + str(end)


def _tools() -> dict[str, Any]:
    return shop_tools(Counter())


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda t: chain("order", []), "1 to 50 steps"),
        (lambda t: chain("order", [t["pay"]]), "takes a list of step"),
        (lambda t: chain("order", [step("pay", t["pay"]), step("pay", t["ship"])]), "two steps are named pay"),
        (lambda t: step("begin", t["pay"]), "not begin or compensate"),
        (lambda t: step("pay it", t["pay"]), "letters, digits"),
        (lambda t: step("pay", lambda order: order), "has no contract"),
        (lambda t: step("look", t["verify_coupon"], compensate=t["refund"]), "there is nothing to undo"),
        (lambda t: step("pay", t["pay"], compensate=t["verify_coupon"]), "that was declared with @action and writes"),
        (lambda t: step("pay", t["pay"], arguments={"order": 1}), "must be a function"),
        (lambda t: chain("order", [step("ship", t["ship"])], on_failure="compensate"), "no step has a way back"),
        (lambda t: chain("order", [step("ship", t["ship"])], on_failure="undo"), "is none of stop, compensate"),
        (lambda t: chain("order", [step("pay", t["pay"], arguments=dict)]), "describe the input by args_schema"),
        (lambda t: chain("order", [step("pay", t["pay"])], identity=("price",)), "is not an argument"),
        (lambda t: step("inner", chain("inner", [step("pay", t["pay"])]).tool), "a chain cannot be a step"),
    ],
)
def test_a_contradiction_is_refused_at_declaration(make: Any, sentence: str) -> None:
    """Each with a sentence that says what to change."""
    with pytest.raises(ContractError, match=sentence):
        make(_tools())


def test_the_input_may_be_described_by_a_model(ledger: Ledger) -> None:
    """Validators and all: what they make of the input is what the steps are given."""

    class Order(BaseModel):
        number: int

    far = Counter()
    pay = step("pay", shop_tools(far)["pay"], arguments=lambda so_far: {"order": f"O-{so_far.input['number']}"})
    end = chain("order", [pay], args_schema=Order).run({"number": "7"}, ledger=ledger, thread_id="t")
    assert (end.state, far.effects[0]["order"]) == ("succeeded", "O-7")


def test_the_tool_of_a_chain_refuses_to_be_called_by_itself() -> None:
    """A plain tool node that calls it would bypass the ledger."""
    with pytest.raises(Unguarded, match=r"order is a chain: run it with order\.run"):
        order_chain(Counter()).tool.invoke(INPUT)
