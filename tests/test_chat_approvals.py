"""An approval over the wire: what waits is shown, who decides is the token, and nothing is decided twice."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import ConflictError, PermissionDeniedError, UnprocessableEntityError

import servers
from chats import Server, said, serving
from settled import Desk, Ledger, Reject


@pytest.fixture(scope="module")
def server(server_url: str, migrated_template: str) -> Iterator[Server]:
    with servers.database(server_url, like=migrated_template) as url, serving(url) as running:
        yield running


async def asked(client: LangGraphClient, amount: float, agent: str = "bank") -> tuple[str, dict[str, Any]]:
    """Ask for a payment in a new thread; return the thread and what waits in it."""
    thread_id = (await client.threads.create())["thread_id"]
    values: Any = await client.runs.wait(thread_id, agent, input=said(f"pay {amount}"))
    (interrupt,) = values["__interrupt__"]
    return thread_id, interrupt


async def test_a_run_stops_at_an_approval_and_goes_on_when_it_is_given(server: Server) -> None:
    """Nothing is sent before; the timeline names who asked and who approved, by their tokens."""
    async with server.client("vera") as vera, server.client("anna") as anna:
        before = server.remote.count()
        thread_id, interrupt = await asked(vera, 5)
        (request,) = interrupt["value"]["action_requests"]
        assert (request["name"], request["args"]) == ("pay", {"payee": "Ann", "amount": 5.0})
        thread = await anna.threads.get(thread_id)
        assert thread["status"] == "interrupted"
        assert [one["id"] for many in thread["interrupts"].values() for one in many] == [interrupt["id"]]
        state = await anna.threads.get_state(thread_id)
        assert state["next"] == ["approve"]
        assert state["tasks"][0]["interrupts"][0]["id"] == interrupt["id"]
        assert server.remote.count() == before

        command: Any = {"resume": {"decisions": [{"type": "approve", "action_id": request["action_id"]}]}}
        values: Any = await anna.runs.wait(thread_id, "bank", command=command)
        assert f"R-{before + 1}" in values["messages"][-1]["content"]
        assert "__interrupt__" not in values
        with Ledger.connect(server.database_url) as ledger:
            (approved,) = [one for one in ledger.timeline(request["action_id"]) if one.trigger == "approve"]
            assert approved.actor == "anna"
            assert ledger.action(request["action_id"]).requester == "vera"
        assert server.remote.count() == before + 1


FORMS: list[Any] = [
    {"type": "approve"},
    {"decisions": [{"type": "approve"}]},
    [{"type": "accept", "args": None}],
]


@pytest.mark.parametrize("answer", FORMS, ids=["bare", "decisions", "older list"])
async def test_an_answer_is_taken_in_every_form(server: Server, answer: Any) -> None:
    """Addressed by its interrupt or not, and in the forms of LangChain's older interfaces."""
    async with server.client() as client:
        before = server.remote.count()
        thread_id, interrupt = await asked(client, 6)
        resume = {interrupt["id"]: answer}
        values: Any = await client.runs.wait(thread_id, "bank", command={"resume": resume})
        assert f"R-{before + 1}" in values["messages"][-1]["content"]
        thread_id, _ = await asked(client, 7)
        await client.runs.wait(thread_id, "bank", command={"resume": answer})
        assert server.remote.count() == before + 2


async def test_what_a_person_has_changed_is_asked_about_anew_and_a_rejection_ends_it(server: Server) -> None:
    """80 in the place of 8 is another question; rejected, nothing is ever sent."""
    async with server.client() as client:
        before = server.remote.count()
        thread_id, _ = await asked(client, 8)
        edit = {"type": "edit", "edited_action": {"name": "pay", "args": {"payee": "Ann", "amount": 80}}}
        values: Any = await client.runs.wait(thread_id, "bank", command={"resume": edit})
        (interrupt,) = values["__interrupt__"]
        assert interrupt["value"]["action_requests"][0]["args"]["amount"] == 80
        reject = {"type": "reject", "message": "too much"}
        values = await client.runs.wait(thread_id, "bank", command={"resume": reject})
        assert "__interrupt__" not in values
        assert values["messages"][2]["artifact"]["state"] == "cancelled"
        assert server.remote.count() == before


async def test_who_may_not_decide_decides_nothing(server: Server) -> None:
    """Not by his token, and not by what he writes into the request."""
    async with server.client("vera") as vera:
        before = server.remote.count()
        thread_id, interrupt = await asked(vera, 9)
        with pytest.raises(PermissionDeniedError, match="approver"):
            await vera.runs.create(thread_id, "bank", command={"resume": {"type": "approve"}})
        with pytest.raises(UnprocessableEntityError, match="approver: the server says that itself"):
            await vera.runs.create(thread_id, "bank", input=None, config={"configurable": {"approver": "anna"}})
        values: Any = await vera.runs.wait(thread_id, "bank", input=None)
        assert values["__interrupt__"][0]["id"] == interrupt["id"]
        assert server.remote.count() == before


async def test_an_answer_that_means_nothing_is_refused_and_the_question_stands(server: Server) -> None:
    """It begins no run, says what is wrong with it, and the next answer counts."""
    async with server.client() as client:
        before = server.remote.count()
        thread_id, _ = await asked(client, 10)
        odd: list[tuple[Any, int, str]] = [
            ({"decisions": []}, 422, "1 needed, 0 given"),
            ("yes", 422, "decisions"),
            ({"type": "approve", "action_id": "act-other"}, 422, "not of what was shown"),
            ({"0" * 32: {"type": "approve"}}, 409, "does not wait"),
            (None, 422, "decisions"),
        ]
        async with server.http() as http:
            for answer, status, why in odd:
                body = {"assistant_id": "bank", "command": {"resume": answer}}
                answered = await http.post(f"/threads/{thread_id}/runs/wait", json=body)
                assert (answered.status_code, why in answered.json()["message"]) == (status, True), answered.text
        assert len(await client.runs.list(thread_id)) == 1
        values: Any = await client.runs.wait(thread_id, "bank", command={"resume": {"type": "approve"}})
        assert f"R-{before + 1}" in values["messages"][-1]["content"]


async def test_two_people_who_approve_at_one_instant_pay_once(server: Server) -> None:
    """Each of the four requests hears the receipt, or that nothing waits any more."""
    async with server.client("anna") as anna, server.client("olga") as olga:
        before = server.remote.count()
        thread_id, interrupt = await asked(anna, 11)
        command: Any = {"resume": {interrupt["id"]: {"type": "approve"}}}
        answers = await asyncio.gather(
            *(client.runs.wait(thread_id, "bank", command=command) for client in (anna, olga, anna, olga)),
            return_exceptions=True,
        )
        told = [one for one in answers if not isinstance(one, BaseException)]
        refused = [one for one in answers if isinstance(one, BaseException)]
        assert told
        assert all(isinstance(one, httpx.HTTPStatusError) and one.response.status_code == 409 for one in refused)
        assert all(f"R-{before + 1}" in one["messages"][-1]["content"] for one in told if isinstance(one, dict))
        assert server.remote.count() == before + 1


async def test_the_opposite_of_what_was_decided_is_refused_with_what_stands(server: Server) -> None:
    """The first decision is final, and the second person hears who made it."""
    async with server.client("anna") as anna:
        before = server.remote.count()
        thread_id, interrupt = await asked(anna, 12)
        with Ledger.connect(server.database_url) as ledger:
            request = interrupt["value"]["action_requests"][0]
            Desk(ledger).decide(request["action_id"], Reject(), by="sue", fingerprint=request["fingerprint"])
        with pytest.raises(ConflictError, match="sue"):
            await anna.runs.create(thread_id, "bank", command={"resume": {"type": "approve"}})
        values: Any = await anna.runs.wait(thread_id, "bank", input=None)
        assert values["messages"][2]["artifact"]["code"] == "denied"
        with pytest.raises(ConflictError, match="nothing of this thread waits"):
            await anna.runs.create(thread_id, "bank", command={"resume": {"type": "approve"}})
        assert server.remote.count() == before


async def test_a_thread_whose_request_is_open_is_not_deleted(server: Server) -> None:
    """Once it is decided it may go; its action stays in the ledger, and the name begins empty again."""
    async with server.client("olga") as olga:
        thread_id, _ = await asked(olga, 13)
        with pytest.raises(ConflictError, match="still open"):
            await olga.threads.delete(thread_id)
        await olga.runs.wait(thread_id, "bank", command={"resume": {"type": "reject"}})
        await olga.threads.delete(thread_id)
        assert thread_id not in [one["thread_id"] for one in await olga.threads.search(limit=100)]
        with Ledger.connect(server.database_url) as ledger:
            assert [one.state for one in ledger.actions(thread_id=thread_id)] == ["cancelled"]
        again = await olga.threads.create(thread_id=thread_id)
        assert (await olga.threads.get(again["thread_id"]))["values"] == {}


async def test_an_agent_of_langchain_is_served_like_ours(server: Server) -> None:
    """With our middleware: it waits for the same answer, and its transitions are streamed."""
    async with server.client() as client:
        before = server.remote.count()
        thread_id, _ = await asked(client, 14, "chain")
        resume: Any = {"resume": {"type": "approve"}}
        parts = client.runs.stream(thread_id, "chain", command=resume, stream_mode=["custom", "values"])
        heard = [part async for part in parts]
        states = [part.data["settled"]["state"] for part in heard if part.event == "custom"]
        assert states[-1] == "succeeded"
        assert (
            f"R-{before + 1}" in [part.data for part in heard if part.event == "values"][-1]["messages"][-1]["content"]
        )
        assert server.remote.count() == before + 1
