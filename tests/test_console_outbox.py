"""The outbox in the console: what waits and why, dead letters sent once more; and undoing an action."""

from collections.abc import Iterator

import pytest

from browsing import Visitor, begun, forms, serving, token, visiting, words
from chain_shop import Counter, shop_tools
from consumers import pay, paying
from settled import Ledger, Message, State
from settled.state.outbox import Posted
from settled.state.tokens import Role
from settled.tools.delivery import Delivery
from settled.tools.dispatcher import Dispatcher
from settled.tools.outbox import Outbox


def fails(_: Delivery) -> None:
    raise OSError("the till <b>is</b> closed")


@pytest.fixture
def url(ledger: Ledger) -> Iterator[str]:
    with serving(ledger) as address:
        yield address


@pytest.fixture
def maria(ledger: Ledger, url: str) -> Iterator[Visitor]:
    with visiting(url, token(ledger)) as visitor:
        yield visitor


def dead(ledger: Ledger, order: str = "O-1") -> Posted:
    """Make a dead letter with another message behind it; returns it."""
    messages = [Message("till", {"amount": 118.5, "text": "x" * 1000}), Message("behind", "later")]
    pay(ledger, order, paying(emits=lambda done: messages))
    Dispatcher(ledger, sinks={"till": fails}, max_attempts=1).run_once()
    return Outbox(ledger).messages(state="dead")[0]


def test_each_message_says_what_it_waits_for(ledger: Ledger, maria: Visitor) -> None:
    """A dead letter, the one behind it, and one that nobody delivers; on their page and on that of their action."""
    letter = dead(ledger)
    pay(ledger, "O-2", paying(emits=lambda done: Message("nobody", "x")))
    page = maria.text("/outbox")
    told = words(page)
    for part in ("dead letter", "OSError: the till <b>is</b> closed", "an earlier message of its action",
                 "waits for a dispatcher with a sink for its topic"):  # fmt: skip
        assert part in told, part
    assert "<b>" not in page
    assert '<span class="count" data-count="outbox">1</span>' in page
    assert letter.id in maria.text(f"/actions/{letter.action_id}")
    assert maria.text("/outbox?state=dead").count("<li>") == 1
    assert maria.text("/outbox?topic=behind&state=held").count("<li>") == 1
    assert "There are no such messages" in maria.text("/outbox?topic=other")


def test_a_payload_is_cut_and_can_be_seen_whole(ledger: Ledger, maria: Visitor) -> None:
    """The page of a message shows its beginning; one click the rest, as plain text."""
    letter = dead(ledger)
    page = maria.text(f"/outbox/{letter.id}")
    assert "show all" in page
    assert '{"amount": 118.5, "text": "xxx' in words(page)
    whole = maria.get(f"/outbox/{letter.id}/payload")
    assert whole.headers["content-type"].startswith("text/plain")
    assert "x" * 1000 in whole.text


def test_a_dead_letter_is_sent_once_more(ledger: Ledger, maria: Visitor) -> None:
    """It is due again, in the name of whoever asked; a second press finds no dead letter."""
    letter = dead(ledger)
    form = maria.form(f"/outbox/{letter.id}", "/outbox/redrive")
    assert "Due again" in maria.send(form).text
    assert Outbox(ledger).message(letter.id).state == "due"
    told = words(maria.text(f"/actions/{letter.action_id}"))
    assert "its message is sent again" in told
    assert "maria" in told
    assert maria.send(form).status_code == 409


def test_all_dead_letters_are_sent_once_more(ledger: Ledger, maria: Visitor) -> None:
    """One button for all of them."""
    for order in ("O-1", "O-2", "O-3"):
        dead(ledger, order)
    form = next(one for one in forms(maria.text("/outbox?state=dead")) if one.fields.get("ids") == "")
    maria.send(form)
    assert Outbox(ledger).messages(state="dead") == []


def test_who_may_and_of_what(ledger: Ledger, url: str, maria: Visitor) -> None:
    """An approver reads; a forged form, and another tenant, change nothing."""
    letter = dead(ledger)
    with visiting(url, token(ledger, "eve", Role.APPROVER)) as eve:
        assert "redrive" not in eve.text(f"/outbox/{letter.id}") + eve.text("/outbox?state=dead")
        data = {"csrf": eve.form("/outbox", "/logout").fields["csrf"], "ids": letter.id}
        assert eve.client.post("/outbox/redrive", data=data).status_code == 403
    assert maria.client.post("/outbox/redrive", data={"csrf": "0", "ids": letter.id}).status_code == 403
    with visiting(url, token(ledger, "acme", tenant="acme")) as other:
        assert letter.id not in other.text("/outbox")
        for path in ("", "/payload"):
            assert other.get(f"/outbox/{letter.id}{path}").status_code == 404
        data = {"csrf": other.form("/outbox", "/logout").fields["csrf"]}
        assert other.client.post("/outbox/redrive", data={**data, "ids": letter.id}).status_code == 409
        assert other.client.post("/outbox/redrive", data=data).status_code == 200
    assert Outbox(ledger).message(letter.id).state == "dead"
    for path in ("/outbox/msg-0", "/outbox/..%2f", "/outbox?state=lost", "/outbox?topic=%00"):
        assert maria.get(path).status_code in (404, 422), path


def test_undone_by_an_action_of_its_own(ledger: Ledger) -> None:
    """An operator undoes what succeeded, where its tool says how; each of the two names the other."""
    far = Counter()
    tools = shop_tools(far)
    done = begun(ledger, tools["pay"], {"order": "O-1"})
    with serving(ledger, tools=list(tools.values())) as address, visiting(address, token(ledger)) as maria:
        answer = maria.send(maria.form(f"/actions/{done.id}", "/compensate"), note="sent by mistake")
        now = ledger.action(done.id)
        assert now.state is State.COMPENSATED
        assert f"/actions/{now.compensated_by}" in answer.text
        assert f"/actions/{done.id}" in maria.text(f"/actions/{now.compensated_by}")
        assert far.done == ["pay", "refund"]
        shipped = begun(ledger, tools["ship"], {"order": "O-1"})
        assert "/compensate" not in maria.text(f"/actions/{shipped.id}"), "it has no way back"
    with serving(ledger) as address, visiting(address, token(ledger)) as maria:
        assert "/compensate" not in maria.text(f"/actions/{done.id}"), "this server does not have the tool"
