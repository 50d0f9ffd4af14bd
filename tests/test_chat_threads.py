"""Threads over the wire: made, found, changed, looked into at each of their checkpoints, and forgotten."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import ConflictError, NotFoundError, UnprocessableEntityError

import servers
from chats import Server, said, serving


@pytest.fixture(scope="module")
def server(server_url: str, migrated_template: str) -> Iterator[Server]:
    with servers.database(server_url, like=migrated_template) as url, serving(url) as running:
        yield running


@pytest.fixture
async def client(server: Server) -> AsyncIterator[LangGraphClient]:
    async with server.client("olga") as opened:
        yield opened


async def test_a_thread_is_begun_once(client: LangGraphClient) -> None:
    """The second one of a name is refused, or met as it is where that is asked for."""
    made = await client.threads.create(thread_id="once", metadata={"a": 1})
    with pytest.raises(ConflictError, match="already"):
        await client.threads.create(thread_id="once")
    again = await client.threads.create(thread_id="once", metadata={"a": 2}, if_exists="do_nothing")
    assert again == made
    assert (made["thread_id"], made["metadata"], made["status"], made["values"]) == ("once", {"a": 1}, "idle", None)


async def test_threads_are_found_by_what_they_are(client: LangGraphClient) -> None:
    """By metadata, status and ids, in pages, and counted the same way."""
    one = await client.threads.create(metadata={"team": "x", "n": 1}, graph_id="bank")
    two = await client.threads.create(metadata={"team": "x", "n": 2})
    await client.runs.wait(one["thread_id"], "bank", input=said("pay 3"))
    found = await client.threads.search(metadata={"team": "x"})
    assert [thread["thread_id"] for thread in found] == [one["thread_id"], two["thread_id"]]
    assert [
        thread["thread_id"] for thread in await client.threads.search(metadata={"team": "x"}, limit=1, offset=1)
    ] == [two["thread_id"]]
    assert [t["thread_id"] for t in await client.threads.search(status="interrupted")] == [one["thread_id"]]
    assert [t["thread_id"] for t in await client.threads.search(ids=[two["thread_id"]])] == [two["thread_id"]]
    assert await client.threads.count(metadata={"team": "x"}) == 2
    assert await client.threads.count(metadata={"team": "x"}, status="idle") == 1
    (whole,) = await client.threads.search(ids=[one["thread_id"]], select=["thread_id", "values", "interrupts"])
    assert set(whole) == {"thread_id", "values", "interrupts"}
    assert whole["values"]["messages"][0]["content"] == "pay 3"
    changed = await client.threads.update(two["thread_id"], metadata={"n": 3})
    assert changed["metadata"] == {"team": "x", "n": 3}


async def test_the_history_of_a_thread_is_read_checkpoint_by_checkpoint(client: LangGraphClient) -> None:
    """Newest first, in pages, and each state again by its checkpoint's id."""
    thread_id = (await client.threads.create())["thread_id"]
    await client.runs.wait(thread_id, "bank", input=said("refund H1", "m1"))
    states = await client.threads.get_history(thread_id, limit=100)
    assert [len(state["values"].get("messages", [])) for state in states] == [4, 3, 2, 1, 0]
    assert states[0]["next"] == []
    assert states[1]["next"] == ["model"]
    assert [state["parent_checkpoint"] for state in states[:-1]] == [state["checkpoint"] for state in states[1:]]
    assert all(state["checkpoint"]["thread_id"] == thread_id for state in states)
    rest = await client.threads.get_history(thread_id, limit=2, before=states[1]["checkpoint"])
    assert [state["checkpoint"] for state in rest] == [state["checkpoint"] for state in states[2:4]]
    for state in states:
        name = state["checkpoint"]["checkpoint_id"]
        assert await client.threads.get_state(thread_id, checkpoint_id=name) == state
        assert await client.threads.get_state(thread_id, checkpoint=state["checkpoint"]) == state
    assert await client.threads.get_state(thread_id) == states[0]
    with pytest.raises(NotFoundError, match="no checkpoint"):
        await client.threads.get_state(thread_id, checkpoint_id="nothing")
    with pytest.raises(UnprocessableEntityError, match="messages and decisions"):
        await client.threads.update_state(thread_id, {"messages": []})


async def test_a_thread_is_forgotten_with_what_was_said_and_its_actions_stay(
    server: Server, client: LangGraphClient
) -> None:
    """A busy one is not. One of the same name begins empty, and its calls still meet the ledger."""
    thread_id = (await client.threads.create())["thread_id"]
    before = server.remote.count()
    values: Any = await client.runs.wait(thread_id, "bank", input=said("refund F1"))
    run = await client.runs.create(thread_id, "bank", input=said("words"), after_seconds=60)
    with pytest.raises(ConflictError, match="still open"):
        await client.threads.delete(thread_id)
    with pytest.raises(ConflictError, match="cancel it first"):
        await client.runs.delete(thread_id, run["run_id"])
    await client.runs.cancel(thread_id, run["run_id"])
    await client.runs.delete(thread_id, run["run_id"])
    await client.threads.delete(thread_id)
    with pytest.raises(NotFoundError):
        await client.threads.get(thread_id)
    await client.threads.create(thread_id=thread_id)
    again: Any = await client.runs.wait(thread_id, "bank", input=said("refund F1"))
    assert [message["type"] for message in again["messages"]] == ["human", "ai", "tool", "ai"]
    assert again["messages"][2]["artifact"]["receipt"] == values["messages"][2]["artifact"]["receipt"]
    assert server.remote.count() == before + 1


async def test_assistants_are_the_agents_of_the_server(client: LangGraphClient) -> None:
    """With their graph and schemas; any other name is told what there is."""
    assert [one["assistant_id"] for one in await client.assistants.search()] == ["bank", "chain"]
    (found,) = await client.assistants.search(graph_id="bank")
    assert found == await client.assistants.get("bank")
    assert found["graph_id"] == "bank"
    assert await client.assistants.search(graph_id="other") == []
    assert await client.assistants.count(graph_id="bank") == 1
    assert "model" in [node["id"] for node in (await client.assistants.get_graph("bank"))["nodes"]]
    assert (await client.assistants.get_schemas("bank"))["graph_id"] == "bank"
    with pytest.raises(NotFoundError, match="there is bank, chain"):
        await client.assistants.get("shop")
