"""Runs over the wire, with LangGraph's own client: a message is answered once, and a stream can be gone on with."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import APIStatusError, ConflictError, NotFoundError, UnprocessableEntityError

import servers
from chats import Server, said, serving
from settled import Ledger
from settled.state import runs


@pytest.fixture(scope="module")
def server(server_url: str, migrated_template: str) -> Iterator[Server]:
    with servers.database(server_url, like=migrated_template) as url, serving(url, slow_s=0.5) as running:
        yield running


@pytest.fixture
async def client(server: Server) -> AsyncIterator[LangGraphClient]:
    async with server.client() as opened:
        yield opened


async def test_a_run_is_waited_for_and_its_values_come_back(server: Server, client: LangGraphClient) -> None:
    """The receipt is in the answer, and the thread has the same values."""
    thread = await client.threads.create(metadata={"of": "a test"})
    before = server.remote.count()
    values: Any = await client.runs.wait(thread["thread_id"], "bank", input=said("refund A1", "m1"))
    assert [message["type"] for message in values["messages"]] == ["human", "ai", "tool", "ai"]
    assert values["messages"][2]["artifact"]["receipt"] == f"R-{before + 1}"
    (run,) = await client.runs.list(thread["thread_id"])
    assert run["status"] == "success"
    found = await client.threads.get(thread["thread_id"])
    assert (found["status"], found["metadata"]) == ("idle", {"of": "a test", "title": "refund A1"})
    assert found["values"] == values
    assert server.remote.count() == before + 1


async def test_every_mode_is_streamed_in_the_clients_form(client: LangGraphClient) -> None:
    """Pieces, growing messages, values and updates, numbered without a gap, with an end."""
    thread = await client.threads.create()
    parts = client.runs.stream(
        thread["thread_id"],
        "bank",
        input=said("words"),
        stream_mode=["values", "updates", "messages", "messages-tuple", "custom"],
    )
    heard = [part async for part in parts]
    assert heard[0].event == "metadata"
    assert heard[-1].event == "end"
    assert [part.id for part in heard] == [str(number + 1) for number in range(len(heard))]
    pieces = [part.data[0]["content"] for part in heard if part.event == "messages"]
    assert "".join(pieces) == "The answer comes in pieces."
    assert len(pieces) > 4
    partial = [part.data[0]["content"] for part in heard if part.event == "messages/partial"]
    assert partial[0] == "The "
    assert partial[2] == "The answer comes "
    (whole,) = [part.data for part in heard if part.event == "messages/complete"]
    assert whole[0]["content"] == "The answer comes in pieces."
    last = [part.data for part in heard if part.event == "values"][-1]
    assert last["messages"][-1]["content"] == "The answer comes in pieces."
    assert [list(part.data) for part in heard if part.event == "updates"] == [["model"]]


async def test_the_transitions_of_an_action_are_streamed(client: LangGraphClient) -> None:
    """Each state once, as a custom event."""
    thread = await client.threads.create()
    parts = client.runs.stream(thread["thread_id"], "bank", input=said("refund A7"), stream_mode="custom")
    states = [part.data["settled"]["state"] async for part in parts if part.event == "custom"]
    assert states == ["running", "succeeded"]


async def test_a_stream_is_gone_on_with_after_the_last_event_that_was_heard(client: LangGraphClient) -> None:
    """Whatever the place: nothing is lost and nothing comes twice."""
    thread = await client.threads.create()
    parts = client.runs.stream(
        thread["thread_id"], "bank", input=said("words"), stream_mode=["messages-tuple", "values"]
    )
    whole = [(part.id, part.event, part.data) async for part in parts]
    (run,) = await client.runs.list(thread["thread_id"])
    for heard in range(len(whole) + 1):
        last = whole[heard - 1][0] if heard else None
        rest = client.runs.join_stream(thread["thread_id"], run["run_id"], last_event_id=last)
        again = [(part.id, part.event, part.data) async for part in rest]
        assert whole[:heard] + again == (whole if heard < len(whole) else [*whole, again[0]])
    narrowed = client.runs.join_stream(thread["thread_id"], run["run_id"], stream_mode=["values"])
    assert {part.event async for part in narrowed} == {"metadata", "values", "end"}


async def test_a_message_that_is_sent_twice_is_one_run(server: Server, client: LangGraphClient) -> None:
    """Before its end and after it; another message under the same id is refused."""
    thread = await client.threads.create()
    before = server.remote.count()
    first = await client.runs.create(thread["thread_id"], "bank", input=said("refund A2", "m1"))
    second = await client.runs.create(thread["thread_id"], "bank", input=said("refund A2", "m1"))
    assert second["run_id"] == first["run_id"]
    values: Any = await client.runs.join(thread["thread_id"], first["run_id"])
    again: Any = await client.runs.wait(thread["thread_id"], "bank", input=said("refund A2", "m1"))
    assert again == values
    assert len(await client.runs.list(thread["thread_id"])) == 1
    with pytest.raises(UnprocessableEntityError, match="used for another"):
        await client.runs.create(thread["thread_id"], "bank", input=said("refund A3", "m1"))
    assert server.remote.count() == before + 1


async def test_a_request_with_a_key_is_one_run_whatever_it_holds(client: LangGraphClient) -> None:
    """Another request under the same key is refused."""
    thread = await client.threads.create()
    key = {"Idempotency-Key": "k1"}
    first = await client.runs.create(thread["thread_id"], "bank", input=said("words"), headers=key)
    second = await client.runs.create(thread["thread_id"], "bank", input=said("words"), headers=key)
    assert second["run_id"] == first["run_id"]
    with pytest.raises(UnprocessableEntityError, match="Idempotency-Key"):
        await client.runs.create(thread["thread_id"], "bank", input=said("refund A9"), headers=key)


async def test_a_second_run_waits_for_the_first_or_is_refused(client: LangGraphClient) -> None:
    """`enqueue` in the order of asking, `reject` as a conflict; each ends with its own values."""
    thread = await client.threads.create()
    one = await client.runs.create(thread["thread_id"], "bank", input=said("slow B1"))
    assert (await client.threads.get(thread["thread_id"]))["status"] == "busy"
    with pytest.raises(ConflictError, match="busy"):
        await client.runs.create(thread["thread_id"], "bank", input=said("words"), multitask_strategy="reject")
    two = await client.runs.create(thread["thread_id"], "bank", input=said("words"), multitask_strategy="enqueue")
    three = await client.runs.create(thread["thread_id"], "bank", input=said("refund B2"))
    values: Any = await client.runs.join(thread["thread_id"], three["run_id"])
    asked = [message["content"] for message in values["messages"] if message["type"] == "human"]
    assert asked == ["slow B1", "words", "refund B2"]
    first: Any = await client.runs.join(thread["thread_id"], one["run_id"])
    assert [m["content"] for m in first["messages"] if m["type"] == "human"] == ["slow B1"]
    assert [run["run_id"] for run in await client.runs.list(thread["thread_id"])] == [
        run["run_id"] for run in (three, two, one)
    ]


async def test_a_run_is_cancelled_at_its_next_step_and_what_was_sent_is_recorded(
    server: Server, client: LangGraphClient
) -> None:
    """The same message again tells what became of it, and sends nothing."""
    thread = await client.threads.create()
    before = server.remote.count()
    run = await client.runs.create(thread["thread_id"], "bank", input=said("slow C1", "m1"), stream_mode="custom")
    async for part in client.runs.join_stream(thread["thread_id"], run["run_id"]):
        if part.event == "custom":
            await client.runs.cancel(thread["thread_id"], run["run_id"], wait=True)
            break
    ended = await client.runs.get(thread["thread_id"], run["run_id"])
    assert (ended["status"], ended["cancel_reason"]) == ("interrupted", "cancelled by anna")
    assert server.remote.count() == before + 1
    values: Any = await client.runs.wait(thread["thread_id"], "bank", input=said("slow C1", "m1"))
    assert f"R-{before + 1}" in values["messages"][-1]["content"]
    assert server.remote.count() == before + 1


async def test_a_run_that_nobody_has_begun_is_cancelled_at_once(client: LangGraphClient) -> None:
    """It says nothing but its end."""
    thread = await client.threads.create()
    run = await client.runs.create(thread["thread_id"], "bank", input=said("refund C2"), after_seconds=60)
    await client.runs.cancel(thread["thread_id"], run["run_id"])
    assert (await client.runs.get(thread["thread_id"], run["run_id"]))["status"] == "interrupted"
    parts = client.runs.join_stream(thread["thread_id"], run["run_id"])
    assert [part.event async for part in parts] == ["end"]


async def test_an_agent_that_fails_says_so_and_not_why_and_the_message_may_be_sent_again(
    client: LangGraphClient,
) -> None:
    """What the exception says stays in the server's log; a second sending is a second run."""
    thread = await client.threads.create()
    with pytest.raises(Exception, match="ConnectionError: the agent has failed") as raised:
        await client.runs.wait(thread["thread_id"], "bank", input=said("die", "m1"))
    assert "swordfish" not in str(raised.value)
    parts = [part async for part in client.runs.stream(thread["thread_id"], "bank", input=said("die", "m1"))]
    assert [part.event for part in parts][-2:] == ["error", "end"]
    assert [run["status"] for run in await client.runs.list(thread["thread_id"])] == ["error", "error"]
    assert (await client.threads.get(thread["thread_id"]))["status"] == "error"


async def test_a_run_without_a_thread_gets_one_that_stays(server: Server, client: LangGraphClient) -> None:
    """And what names the request names the thread: sent again it is the same run."""
    values: Any = await client.runs.wait(None, "bank", input=said("words"))
    assert values["messages"][-1]["content"] == "The answer comes in pieces."
    (thread,) = await client.threads.search(metadata={"is_alone": True})
    assert (await client.threads.get_state(thread["thread_id"]))["values"] == values
    before = server.remote.count()
    for named in (
        {"input": said("refund G1", "m1")},
        {"input": said("refund G2"), "headers": {"Idempotency-Key": "k"}},
    ):
        first, second = [await client.runs.wait(None, "bank", **named) for _ in range(2)]
        assert first == second
    assert server.remote.count() == before + 2


async def test_a_thread_is_made_by_a_run_only_where_it_asks_for_that(client: LangGraphClient) -> None:
    """Nor is a thread made for an agent that is not there."""
    with pytest.raises(NotFoundError):
        await client.runs.create("new-thread", "bank", input=said("words"))
    await client.runs.wait("new-thread", "bank", input=said("words"), if_not_exists="create")
    assert (await client.threads.get("new-thread"))["status"] == "idle"
    with pytest.raises(NotFoundError, match="there is bank, chain"):
        await client.runs.create("new-thread", "shop", input=said("words"))


async def test_one_message_at_one_instant_from_many_is_one_run(server: Server, client: LangGraphClient) -> None:
    """And each that asked gets its answer."""
    thread = await client.threads.create()
    before = server.remote.count()
    asked = (client.runs.wait(thread["thread_id"], "bank", input=said("slow D1", "m1")) for _ in range(8))
    answers: Any = await asyncio.gather(*asked)
    assert all(answer == answers[0] for answer in answers)
    assert len(await client.runs.list(thread["thread_id"])) == 1
    assert server.remote.count() == before + 1


async def test_of_many_that_want_to_be_alone_one_is(client: LangGraphClient) -> None:
    """Eight at one instant: one run, and seven conflicts."""
    thread = await client.threads.create()
    asked = (
        client.runs.create(thread["thread_id"], "bank", input=said(f"slow E{n}"), multitask_strategy="reject")
        for n in range(8)
    )
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert sorted(type(one) is ConflictError for one in answers) == [False, *[True] * 7]


async def test_who_goes_away_cancels_his_run_only_if_he_said_so(server: Server) -> None:
    """A connection that breaks in the middle: the run goes on, or stops at its next step; what was sent is recorded."""
    for how, status in (("continue", "success"), ("cancel", "interrupted")):
        async with server.http() as http:
            thread_id = (await http.post("/threads", json={})).json()["thread_id"]
            body = {
                "assistant_id": "bank",
                "input": said(f"slow F-{how}"),
                "stream_mode": "custom",
                "on_disconnect": how,
            }
            async with http.stream("POST", f"/threads/{thread_id}/runs/stream", json=body) as answer:
                async for line in answer.aiter_lines():
                    if line == "event: custom":
                        break
            (run,) = (await http.get(f"/threads/{thread_id}/runs")).json()
            await http.get(f"/threads/{thread_id}/runs/{run['run_id']}/join")
            (run,) = (await http.get(f"/threads/{thread_id}/runs")).json()
            assert run["status"] == status


async def test_what_a_run_said_long_ago_is_forgotten_and_says_so(server: Server, client: LangGraphClient) -> None:
    """Its values are still there, and its message still meets it."""
    thread = await client.threads.create()
    run = await client.runs.create(thread["thread_id"], "bank", input=said("words", "m1"))
    values: Any = await client.runs.join(thread["thread_id"], run["run_id"])
    with Ledger.connect(server.database_url) as ledger:
        assert runs.on(ledger).run(runs.forget_events(kept=timedelta(0), most=1000)) > 0
    with pytest.raises(APIStatusError, match="not kept any more"):
        _ = [part async for part in client.runs.join_stream(thread["thread_id"], run["run_id"])]
    assert await client.runs.join(thread["thread_id"], run["run_id"]) == values
    assert (await client.runs.create(thread["thread_id"], "bank", input=said("words", "m1")))["run_id"] == run["run_id"]
