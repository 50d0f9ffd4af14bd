"""Chains in the console: where each step stands, and what a person says that he did by hand."""

from collections.abc import Iterator
from typing import Any

import pytest

from browsing import Visitor, serving, token, visiting, words
from chain_shop import INPUT, Counter, order_chain, raising
from settled import Ended, Ledger, Rejected, action
from settled.state.tokens import Role
from settled.tools.chain_desk import ChainDesk
from settled.tools.chains import step


@pytest.fixture
def url(ledger: Ledger) -> Iterator[str]:
    with serving(ledger) as address:
        yield address


@pytest.fixture
def maria(ledger: Ledger, url: str) -> Iterator[Visitor]:
    with visiting(url, token(ledger)) as visitor:
        yield visitor


def stopped(ledger: Ledger, tenant: str = "default", thread_id: str = "order-1", **options: Any) -> str:
    """Run an order up to its payment, which is turned down; returns the run's id."""
    far = Counter(faults={"pay": raising(Ended(Rejected("the card <b>was</b> declined")))})
    outcome = order_chain(far, **options).run(INPUT, ledger=ledger, thread_id=thread_id, tenant=tenant)
    return str(outcome.chain_id)


def test_each_step_says_where_it_stands(ledger: Ledger, maria: Visitor) -> None:
    """What was done, what was not and why, what is still to do, and what has no way back."""
    chain_id = stopped(ledger)
    listed = words(maria.text("/chains"))
    assert "stopped" in listed
    assert "at pay" in listed
    page = maria.text(f"/chains/{chain_id}")
    told = words(page)
    for part in ("verify_coupon done", "deduct_coupon done", "pay failed", "the card <b>was</b> declined", "ship to do",
                 "no way back", "When a step fails stop"):  # fmt: skip
        assert part in told, part
    assert "<b>" not in page
    run = ChainDesk(ledger).show(chain_id)
    for one in run.steps:
        assert one.action is None or f"/actions/{one.action.id}" in page


def test_found_by_state_and_conversation(ledger: Ledger, maria: Visitor) -> None:
    """The filters narrow the list."""
    chain_id = stopped(ledger)
    expected = {"state=stopped": 1, "state=succeeded": 0, "thread=order-1": 1, "thread=order-2": 0}
    for query, found in {**expected, "state=stopped&thread=order-1": 1}.items():
        assert maria.text(f"/chains?{query}").count(f'href="/chains/{chain_id}"') == found, query


def test_done_by_hand(ledger: Ledger, maria: Visitor) -> None:
    """The step counts as done, with the receipt and in the name of whoever says so; the next one is to do."""
    chain_id = stopped(ledger)
    form = maria.form(f"/chains/{chain_id}", "/steps")
    assert (form.fields["step"], form.fields["what"]) == ("pay", "done")
    answer = maria.send(form, receipt="CASH-1", note="paid at the counter")
    told = words(answer.text)
    assert "pay done" in told
    assert "Receipt CASH-1" in told
    assert "done by maria" in told
    done = ChainDesk(ledger).show(chain_id).of("pay")
    assert done is not None
    assert (done.by, done.receipt) == ("maria", "CASH-1")
    assert maria.send(form).status_code == 409, "it is done"


def test_a_run_that_went_back_says_why(ledger: Ledger, maria: Visitor) -> None:
    """Since when and because of what; and each step that was undone, with the action that did it."""
    chain_id = stopped(ledger, on_failure="compensate")
    page = maria.text(f"/chains/{chain_id}")
    told = words(page)
    assert "Goes back since pay did not take place: the card" in told
    assert "deduct_coupon undone" in told
    undo = ChainDesk(ledger).show(chain_id).steps[1].undo
    assert undo is not None
    assert f"/actions/{undo.id}" in page
    assert "/steps" not in page, "nothing is left to be done by hand"


def test_undone_by_hand(ledger: Ledger, maria: Visitor) -> None:
    """What has no way back stays in effect until a person says that he has undone it, or lets it stand."""

    @action(risk="non_idempotent_write", identity="all")
    def notify(order: str) -> object:
        """Tell the customer."""
        raise Ended(Rejected("no address"))

    outcome = order_chain(Counter(), on_failure="compensate", more=[step("notify", notify)]).run(
        INPUT, ledger=ledger, thread_id="order-1"
    )
    path = f"/chains/{outcome.chain_id}"
    assert "partially undone" in words(maria.text(path))
    form = maria.form(path, "/steps")
    assert (form.fields["step"], form.fields["what"]) == ("ship", "undone")
    told = words(maria.send(form, note="the parcel was called back").text)
    assert "undone by maria" in told
    assert ChainDesk(ledger).show(str(outcome.chain_id)).state == "compensated"


def test_who_may_and_of_what(ledger: Ledger, url: str, maria: Visitor) -> None:
    """A viewer reads; another tenant's run does not exist; a run that was not shown is not changed."""
    chain_id, theirs = stopped(ledger), stopped(ledger, tenant="acme")
    with visiting(url, token(ledger, "eve", Role.APPROVER)) as eve:
        assert "/steps" not in eve.text(f"/chains/{chain_id}")
        data = {"csrf": eve.form("/chains", "/logout").fields["csrf"], "step": "pay", "what": "done"}
        assert eve.client.post(f"/chains/{chain_id}/steps", data=data).status_code == 403
    form = maria.form(f"/chains/{chain_id}", "/steps")
    assert maria.send(form, fingerprint="sha256:0").status_code == 409
    assert maria.send(form, what="both").status_code == 422
    assert maria.send(form, csrf="0").status_code == 403
    assert maria.send(form, step="ship").status_code == 422, "it is not its turn"
    assert theirs not in maria.text("/chains")
    for path in ("", "/arguments?name=coupon"):
        assert maria.get(f"/chains/{theirs}{path}").status_code == 404
    form.action = f"/chains/{theirs}/steps"
    assert maria.send(form).status_code == 404
    for path in ("/chains/chn-0", "/chains/..%2fx", "/chains/act-1"):
        assert maria.get(path).status_code == 404
    assert maria.get("/chains?state=lost").status_code == 422


def test_carried_on_after_a_step_by_hand(ledger: Ledger) -> None:
    """A server that has the chain goes on at the first step that is not done; what was done is not done again."""
    far = Counter(faults={"pay": raising(Ended(Rejected("the card was declined")))})
    order = order_chain(far)
    chain_id = order.run(INPUT, ledger=ledger, thread_id="order-1").chain_id
    with serving(ledger, chains={order.name: order}) as address, visiting(address, token(ledger)) as maria:
        maria.send(maria.form(f"/chains/{chain_id}", "/steps"), receipt="CASH-1")
        form = maria.form(f"/chains/{chain_id}", "/retry")
        assert maria.send(form, fingerprint="sha256:0").status_code == 409
        told = words(maria.send(form).text)
        assert "ship done" in told
        assert far.done == ["deduct_coupon", "ship"]
        assert "/retry" not in maria.text(f"/chains/{chain_id}"), "it is over"
    with serving(ledger) as address, visiting(address, token(ledger)) as maria:
        other = stopped(ledger, thread_id="order-2")
        assert "/retry" not in maria.text(f"/chains/{other}"), "this server does not have the chain"
        data = maria.form(f"/chains/{other}", "/steps").fields
        assert maria.client.post(f"/chains/{other}/retry", data=data).status_code == 409


def test_an_empty_list_says_so(maria: Visitor) -> None:
    """Before the first run, and where nothing fits."""
    assert "There are no such chains" in maria.text("/chains")
