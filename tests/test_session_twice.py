"""A message that is sent twice is answered once: whoever sends it again gets the first answer, whatever has happened
since, and also while the first still runs in another process.
"""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from processes import start
from scripted import Remote, bank, call
from settled import Approve, Desk, Ledger, Session, ThreadBusy, always, open_checkpointer
from talks import CALLS, OURS, agent_of
from test_approval_graph_session import first_turn

ONE_TURN = [HumanMessage, AIMessage, *[ToolMessage] * CALLS, AIMessage]


@pytest.fixture
def here(database_url: str) -> Iterator[tuple[Session, Any]]:
    """A session of this process on the thread of the others."""
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        Remote(database_url)
        agent = agent_of(OURS, ledger, saver)
        yield Session(agent, ledger=ledger, thread_id="t"), agent


def kinds(session: Session, agent: Any) -> list[type]:
    return [type(message) for message in agent.get_state(session.config).values["messages"]]


def test_a_second_send_waits_for_the_first_in_another_process(here: tuple[Session, Any], database_url: str) -> None:
    session, agent = here
    other = start("talking.talk", database_url=database_url, kind=OURS, die_in="freeze")
    other.wait_until_frozen()
    replies: list[str] = []
    second = threading.Thread(target=lambda: replies.append(session.send("please", message_id="m1").text))
    second.start()
    second.join(0.3)
    assert replies == []
    other.thaw()
    other.result()
    second.join(15)
    assert "R-1" in replies[0]
    assert session.send("please", message_id="m1").text == replies[0]
    assert kinds(session, agent) == ONE_TURN
    assert Remote(database_url).count() == CALLS


def test_a_second_send_takes_over_from_one_that_was_killed(here: tuple[Session, Any], database_url: str) -> None:
    """Its lock dies with it, so nobody waits for a lease."""
    session, agent = here
    assert start("talking.talk", database_url=database_url, kind=OURS, die_in="body").status() == -9
    reply = session.send("please", message_id="m1")
    assert [message.artifact["state"] for message in reply.tool_messages] == ["succeeded"] * CALLS
    assert kinds(session, agent) == ONE_TURN
    assert Remote(database_url).count() == CALLS


def test_a_second_send_that_cannot_wait_says_so_and_adds_nothing(here: tuple[Session, Any], database_url: str) -> None:
    session, agent = here
    other = start("talking.talk", database_url=database_url, kind=OURS, die_in="freeze")
    other.wait_until_frozen()
    hurried = Session(agent, ledger=session._ledger, thread_id="t", wait_s=0.2)
    with pytest.raises(ThreadBusy):
        hurried.send("please", message_id="m1")
    other.kill()
    other.thaw()
    assert other.status() == -9
    assert session.send("please", message_id="m1").is_finished
    assert kinds(session, agent) == ONE_TURN
    assert Remote(database_url).count() == CALLS


async def test_the_first_answer_stays_the_first(database_url: str) -> None:
    """Something that comes late stands after it; the message sent again has its own answer, not the news."""
    async with bank("sync", database_url) as shop:
        shop.serve(first_turn(call("pay", "p", payee="ann", amount=100)), always)
        (one,) = (await shop.send("please", message_id="m1")).approvals
        first = await shop.send("and now?", message_id="m2")
        told = await shop.decide(one["action_id"], Approve())
        assert "R-1" in told.text
        again = await shop.send("and now?", message_id="m2")
        assert again.text == first.text
        assert [message.id for message in again.messages] == [message.id for message in first.messages]
        assert (await shop.resume()).text == told.text
        assert shop.remote.count() == 1


async def test_news_that_a_second_send_is_the_first_to_meet_goes_before_the_answer(database_url: str) -> None:
    async with bank("sync", database_url) as shop:
        shop.serve(first_turn(call("pay", "p", payee="ann", amount=100)), always)
        (one,) = (await shop.send("please", message_id="m1")).approvals
        first = await shop.send("and now?", message_id="m2")
        Desk(shop.ledger).decide(one["action_id"], Approve(), by="sue", fingerprint=one["fingerprint"])
        again = await shop.send("and now?", message_id="m2")
        assert again.text == first.text
        assert "R-1" in str(again.messages[0].content)
        assert shop.remote.count() == 1
