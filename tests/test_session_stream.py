"""What a session does can be watched: LangGraph's stream modes with our transitions among them, under the lock."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from scripted import Remote, ScriptedModel, call, once
from settled import (
    Approve,
    ContractError,
    Desk,
    Ledger,
    Session,
    ThreadBusy,
    action,
    always,
    aopen_checkpointer,
    build_agent,
    current_action,
    open_checkpointer,
)
from test_graph_lock_lost import end_locks


class Shop:
    """A refund whose body a test may hold up, sync and async."""

    def __init__(self, ledger: Ledger, saver: Any, remote: Remote, **contract: Any) -> None:
        self.ledger = ledger
        self.remote = remote
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

        @action(risk="non_idempotent_write", identity=("order",), remote="opaque", **contract)
        def refund(order: str) -> dict[str, Any]:
            """Refund an order."""
            self.inside.set()
            self.go_on.wait(10)
            return remote.act(current_action().idempotency_key)

        @action(risk="non_idempotent_write", identity=("order",), remote="opaque", **contract)
        async def arefund(order: str) -> dict[str, Any]:
            """Refund an order."""
            self.inside.set()
            while not self.go_on.is_set():  # noqa: ASYNC110 - the test's other end is a thread
                await asyncio.sleep(0.01)
            return await asyncio.to_thread(remote.act, current_action().idempotency_key)

        self.serve(refund, saver)
        self.sync = self.agent
        self.serve(arefund, saver)
        self.awaited = self.agent

    def serve(self, tool: Any, saver: Any) -> None:
        model = ScriptedModel(script=once(call(tool.name, order="A1")))
        self.agent = build_agent(model, [tool], ledger=self.ledger, checkpointer=saver)

    def session(self, agent: Any = None, **options: Any) -> Session:
        return Session(agent or self.sync, ledger=self.ledger, **{"thread_id": "t", **options})


@pytest.fixture
def shop(database_url: str) -> Iterator[Shop]:
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        yield Shop(ledger, saver, Remote(database_url))


@pytest.fixture
async def ashop(ledger: Ledger, database_url: str) -> AsyncIterator[Shop]:
    async with aopen_checkpointer(ledger) as saver:
        yield Shop(ledger, saver, await asyncio.to_thread(Remote, database_url))


MODES: list[Any] = ["values", "updates", "messages", "custom", "checkpoints", "tasks", "debug"]


def test_every_mode_is_streamed_and_the_reply_is_that_of_send(shop: Shop) -> None:
    """The same turn without a listener, in another thread, ends in the same reply."""
    with shop.session().stream("please", message_id="m1", stream_mode=MODES) as stream:
        with pytest.raises(ContractError, match="not over"):
            _ = stream.reply
        chunks = list(stream)
    assert {mode for mode, _ in chunks} == set(MODES)
    states = [data["settled"]["state"] for mode, data in chunks if mode == "custom"]
    assert states == ["running", "succeeded"]
    assert [next(iter(data)) for mode, data in chunks if mode == "updates"] == ["model", "action", "model"]
    assert stream.reply.is_finished
    assert stream.reply.text == shop.session().send("please", message_id="m1").text
    assert shop.remote.count() == 1


def test_one_mode_has_its_chunks_alone_and_subgraphs_their_names(shop: Shop) -> None:
    chunks = list(shop.session().stream("please", stream_mode="custom"))
    assert [chunk["settled"]["state"] for chunk in chunks] == ["running", "succeeded"]
    named = list(shop.session().stream("more", stream_mode=["updates"], subgraphs=True))
    assert all(len(chunk) == 3 and isinstance(chunk[0], tuple) for chunk in named)
    typed = list(shop.session().stream("and more", stream_mode=["custom", "updates"], version="v2"))
    assert {chunk["type"] for chunk in typed} == {"custom", "updates"}


def test_a_message_that_was_answered_streams_nothing(shop: Shop) -> None:
    first = shop.session().send("please", message_id="m1")
    with shop.session().stream("please", message_id="m1") as stream:
        assert list(stream) == []
    assert stream.reply.text == first.text
    with shop.session().stream(None) as stream:
        assert list(stream) == []
    assert stream.reply.text == first.text


def test_what_was_open_is_streamed_before_the_new_message(shop: Shop) -> None:
    drained = shop.session()
    shop.go_on.clear()
    turn = threading.Thread(target=drained.send, args=("please",))
    turn.start()
    assert shop.inside.wait(10)
    drained.drain()
    shop.go_on.set()
    turn.join(10)
    with shop.session().stream("and now?") as stream:
        steps = [next(iter(chunk)) for chunk in stream]
    assert steps == ["model", "model", "action", "model"]
    assert shop.remote.count() == 1


def test_whoever_stops_listening_leaves_a_thread_that_goes_on(shop: Shop) -> None:
    """Left after the model's call: the lock is free at once, and nothing is done twice."""
    with shop.session().stream("please", message_id="m1") as stream:
        assert "model" in next(stream)
    reply = shop.session(wait_s=2).send("please", message_id="m1")
    assert "R-1" in reply.text
    assert shop.remote.count() == 1


def test_a_drain_ends_the_stream_and_a_later_session_goes_on(shop: Shop) -> None:
    session = shop.session()
    with session.stream("please", message_id="m1") as stream:
        for chunk in stream:
            if "model" in chunk:
                session.drain()
    assert not stream.reply.is_finished
    assert "R-1" in shop.session().send("please", message_id="m1").text
    assert shop.remote.count() == 1


def test_the_lock_is_held_while_it_streams(shop: Shop) -> None:
    with shop.session().stream("please") as stream:
        next(stream)
        with pytest.raises(ThreadBusy):
            shop.session(wait_s=0.1).send("hurry")
        list(stream)
    assert shop.session(wait_s=0.1).send("now").is_finished


def test_an_odd_mode_is_refused_before_anything_begins(shop: Shop) -> None:
    with pytest.raises(ContractError, match="stream_mode"):
        shop.session().stream("please", stream_mode=["all"])  # type: ignore[list-item]
    assert shop.session().resume().messages == []


def test_a_call_that_waits_ends_the_stream_with_its_request(database_url: str) -> None:
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        shop = Shop(ledger, saver, Remote(database_url), approval=always)
        with shop.session().stream("please", stream_mode=["updates", "custom"]) as stream:
            chunks = list(stream)
        (one,) = stream.reply.approvals
        assert not stream.reply.is_finished
        asked = next(data["__interrupt__"] for mode, data in chunks if mode == "updates" and "__interrupt__" in data)
        assert asked[0].value["action_requests"][0]["action_id"] == one["action_id"]
        assert [data["settled"]["state"] for mode, data in chunks if mode == "custom"] == ["planned"]
        Desk(ledger).decide(one["action_id"], Approve(), by="sue", fingerprint=one["fingerprint"])
        with shop.session().stream(None, stream_mode="custom") as resumed:
            assert [data["settled"]["state"] for data in resumed] == ["running", "succeeded"]
        assert "R-1" in resumed.reply.text


async def test_an_event_loop_streams_the_same(ashop: Shop) -> None:
    async with ashop.session(ashop.awaited).astream("please", message_id="m1", stream_mode=MODES) as stream:
        with pytest.raises(ContractError, match="not over"):
            _ = stream.reply
        chunks = [chunk async for chunk in stream]
    assert {mode for mode, _ in chunks} == set(MODES)
    assert [data["settled"]["state"] for mode, data in chunks if mode == "custom"] == ["running", "succeeded"]
    again = await ashop.session(ashop.awaited).asend("please", message_id="m1")
    assert stream.reply.text == again.text
    assert ashop.remote.count() == 1


async def test_a_client_that_goes_away_in_the_body_leaves_a_thread_that_goes_on(ashop: Shop) -> None:
    """The write is under way: it is unknown until its late reply settles it, and nothing is sent again."""
    ashop.go_on.clear()
    async with ashop.session(ashop.awaited).astream("please", message_id="m1") as stream:
        assert "model" in await anext(stream)
        listening = asyncio.ensure_future(anext(stream))
        assert await asyncio.to_thread(ashop.inside.wait, 10)
        listening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await listening
    (action,) = ashop.ledger.actions()
    assert action.state == "unknown"
    ashop.go_on.set()
    await settled_late(ashop)
    reply = await ashop.session(ashop.awaited, wait_s=2).asend("please", message_id="m1")
    assert "R-1" in reply.text
    assert ashop.remote.count() == 1


async def settled_late(shop: Shop) -> None:
    """Wait for the reply of a body that nobody waited for."""
    end = time.monotonic() + 5
    while shop.ledger.actions()[0].state != "succeeded":
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


async def test_a_sync_body_goes_on_after_its_client_has_gone(ashop: Shop) -> None:
    ashop.go_on.clear()
    session = ashop.session()
    stream = session.astream("please", message_id="m1")
    assert "model" in await anext(stream)
    listening = asyncio.ensure_future(anext(stream))
    assert await asyncio.to_thread(ashop.inside.wait, 10)
    listening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await listening
    await stream.aclose()
    ashop.go_on.set()
    await settled_late(ashop)
    reply = await ashop.session().asend("please", message_id="m1")
    assert "R-1" in reply.text
    assert ashop.remote.count() == 1


def test_what_the_model_raises_comes_out_of_the_stream_and_the_thread_is_free(shop: Shop) -> None:
    def down(messages: Any, has_tools: bool) -> Any:
        raise ConnectionError("down")

    saver: Any = shop.sync.checkpointer
    agent = build_agent(ScriptedModel(script=down), [], ledger=shop.ledger, checkpointer=saver)
    session = shop.session(agent, wait_s=0.2)
    stream = session.stream("please", message_id="m1")
    with pytest.raises(ConnectionError):
        list(stream)
    with pytest.raises(ContractError, match="not over"):
        _ = stream.reply
    assert "R-1" in shop.session(wait_s=0.2).send("and now?").text


def test_a_lock_that_is_lost_ends_the_stream(shop: Shop) -> None:
    stream = shop.session().stream("please", message_id="m1")
    next(stream)
    assert end_locks(shop.ledger.url) == 1
    with pytest.raises(ThreadBusy):
        list(stream)
    assert "R-1" in shop.session().send("please", message_id="m1").text
    assert shop.remote.count() == 1


async def test_a_loop_that_is_left_early_frees_the_thread_a_little_later(ashop: Shop) -> None:
    async for _ in ashop.session(ashop.awaited).astream("please", message_id="m1"):
        break
    reply = await ashop.session(ashop.awaited, wait_s=5).asend("please", message_id="m1")
    assert "R-1" in reply.text
    assert ashop.remote.count() == 1
