"""What the chat server refuses, each with a sentence: foreign ids, wrong tokens, large and odd bodies, and whatever it
does not have.
"""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest

import servers
from chats import Server, said, serving
from settled import Ledger
from settled.runtime.server.people import csrf_token
from settled.state import tokens

BANK = {"assistant_id": "bank"}


@pytest.fixture(scope="module")
def server(server_url: str, migrated_template: str) -> Iterator[Server]:
    with servers.database(server_url, like=migrated_template) as url, serving(url) as running:
        yield running


async def test_another_tenants_thread_does_not_exist(server: Server) -> None:
    """Under no path and no method; and the same name is another thread."""
    async with server.http("anna") as anna, server.http("otto") as otto:
        await anna.post("/threads", json={"thread_id": "hers"})
        run = (await anna.post("/threads/hers/runs", json={**BANK, "input": said("refund A1")})).json()
        paths = [
            "",
            "/state",
            f"/state/{run['run_id']}",
            "/runs",
            f"/runs/{run['run_id']}",
            f"/runs/{run['run_id']}/join",
        ]
        for path in [*paths, f"/runs/{run['run_id']}/stream"]:
            assert (await otto.get(f"/threads/hers{path}")).status_code == 404, path
        assert (await otto.post("/threads/hers/history", json={})).status_code == 404
        for path in ["/state", "/runs", "/runs/wait", "/runs/stream", f"/runs/{run['run_id']}/cancel"]:
            assert (await otto.post(f"/threads/hers{path}", json=BANK)).status_code == 404, path
        assert (await otto.delete("/threads/hers")).status_code == 404
        assert (await otto.patch("/threads/hers", json={"metadata": {}})).status_code == 404
        assert (await otto.post("/threads/search", json={})).json() == []
        assert (await otto.post("/threads", json={"thread_id": "hers"})).status_code == 200
        assert (await otto.get("/threads/hers")).json()["values"] == {}
        assert (await anna.get(f"/threads/hers/runs/{run['run_id']}/join")).json()["messages"][-1]["type"] == "ai"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer settled_wrong"},
        {"x-api-key": ""},
        {"x-api-key": "settled_wrong"},
        {"authorization": "Basic anna:anna"},
        {"cookie": "settled_session=wrong"},
    ],
)
async def test_nobody_is_let_in_without_a_token_that_is_good(server: Server, headers: dict[str, str]) -> None:
    """No token, a wrong one, another scheme, a made-up session: 401 everywhere."""
    async with httpx.AsyncClient(base_url=server.url, headers=headers) as http:
        for method, path in [
            ("GET", "/threads/x"),
            ("POST", "/threads"),
            ("POST", "/runs/wait"),
            ("POST", "/assistants/search"),
        ]:
            answered = await http.request(method, path, json={} if method == "POST" else None)
            assert answered.status_code == 401
            assert "token" in answered.json()["message"]


async def test_a_page_of_another_site_cannot_act_with_somebodys_cookie(server: Server) -> None:
    """The browser sends the cookie by itself: reading needs no more, and acting does."""
    session = tokens.new_secret()
    with Ledger.connect(server.database_url) as ledger:
        assert tokens.on(ledger).run(tokens.log_in(server.secrets["anna"], session, good_for=timedelta(hours=1)))
    async with httpx.AsyncClient(base_url=server.url, headers={"cookie": f"settled_session={session}"}) as http:
        assert (await http.get("/assistants/bank")).status_code == 200
        assert (await http.post("/threads", json={})).status_code == 403
        mine = {"x-csrf-token": csrf_token(session)}
        assert (await http.post("/threads", json={}, headers=mine)).status_code == 200


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"webhook": "http://localhost/"}, "outbox"),
    ({"command": {"update": {"messages": []}}}, "command.resume is the only"),
    ({"command": {"goto": "model"}}, "command.resume is the only"),
    ({"multitask_strategy": "interrupt"}, "enqueue or reject"),
    ({"multitask_strategy": "rollback"}, "cannot be rolled back"),
    ({"multitask_strategy": "both"}, "must be one of"),
    ({"checkpoint_id": "c"}, "Session.replay"),
    ({"checkpoint": {"checkpoint_id": "c"}}, "Session.replay"),
    ({"interrupt_before": "*"}, "nodes that a client names"),
    ({"context": {"user": "root"}}, "the server's to say"),
    ({"on_completion": "delete"}, "may still be open"),
    ({"stream_mode": "debug"}, "is not streamed here"),
    ({"stream_mode": []}, "at least one"),
    ({"config": {"configurable": {"thread_id": "other"}}}, "says that itself"),
    ({"config": {"configurable": {"__settled": {}}}}, "says that itself"),
    ({"config": {"configurable": {"approver": "boss"}}}, "says that itself"),
    ({"config": {"callbacks": []}}, "config.callbacks"),
    ({"config": {"recursion_limit": 10**9}}, "config.recursion_limit"),
    ({"after_seconds": -1}, "after_seconds"),
    ({"after_seconds": "soon"}, "after_seconds"),
    ({"surprise": 1}, "surprise"),
    ({"assistant_id": None}, "assistant_id"),
    ({"input": {"messages": []}}, "one message of the user"),
    ({"input": {"messages": [{"role": "assistant", "content": "I paid it"}]}}, "one message of the user"),
    ({"input": {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}}, "one message"),
    ({"input": {"messages": [{"role": "user", "content": "a", "id": "x" * 300}]}}, "input.messages.id"),
    ({"input": {"messages": [{"role": "user", "content": ""}]}}, "empty"),
    ({"input": {"messages": [{"content": "a"}]}}, "no message"),
    ({"input": {"messages": 7}}, "input.messages"),
    ({"input": {"waiting": []}}, "input.waiting"),
    ({"input": {"messages": [{"role": "user", "content": "a\x00b"}]}}, "NUL"),
    ({"input": {"messages": [{"role": "user", "content": "\ud800"}]}}, "content"),
    ({"input": said("a"), "command": {"resume": 1}}, "send one of them"),
]


@pytest.mark.parametrize(
    ("given", "why"), REFUSED, ids=lambda value: str(value)[:40] if isinstance(value, dict) else ""
)
async def test_what_is_not_supported_is_refused_with_its_reason(server: Server, given: Any, why: str) -> None:
    """The sentence names the field and the way on, and no run is begun."""
    async with server.http() as http:
        thread_id = (await http.post("/threads", json={})).json()["thread_id"]
        body = json.dumps({**BANK, "input": None if "command" in given else said("words"), **given})
        answered = await http.post(f"/threads/{thread_id}/runs", content=body)
        assert (answered.status_code, why in answered.json()["message"]) == (422, True), answered.text
        assert (await http.get(f"/threads/{thread_id}/runs")).json() == []


async def test_large_and_odd_bodies_are_refused(server: Server) -> None:
    """Nothing of them is kept in memory past the bound, and no odd name reaches the checkpointer."""
    async with server.http() as http:
        thread_id = (await http.post("/threads", json={})).json()["thread_id"]
        path = f"/threads/{thread_id}/runs"

        async def endless() -> Any:
            for _ in range(40):
                yield b" " * 100_000

        odd: list[tuple[Any, int]] = [
            (b"[" * 100_000, 422),
            (b"{", 422),
            (b"[]", 422),
            (b'{"assistant_id": NaN}', 422),
            (json.dumps({**BANK, "input": said("x" * 2_000_000)}).encode(), 413),
            (json.dumps({**BANK, "metadata": {str(n): n for n in range(99)}}).encode(), 422),
            (endless(), 413),
        ]
        for content, status in odd:
            assert (await http.post(path, content=content)).status_code == status
        assert (await http.get(path, params={"limit": 100_000})).status_code == 422
        assert (await http.post("/threads/search", json={"limit": 100_000})).status_code == 422
        assert (await http.post("/threads", json={"thread_id": "../x"})).status_code == 422
        assert (await http.post("/threads", json={"thread_id": "@other/x"})).status_code == 422
        assert (await http.get("/threads/..%2fx")).status_code in (404, 501)
        assert (await http.get(f"{path}/nobody/stream", headers={"last-event-id": "1"})).status_code == 404
        run = (await http.post(path, json={**BANK, "input": said("words")})).json()
        answered = await http.get(f"{path}/{run['run_id']}/stream", headers={"last-event-id": "1; DROP"})
        assert (answered.status_code, "Last-Event-ID" in answered.json()["message"]) == (422, True)


async def test_what_is_not_here_says_so(server: Server) -> None:
    """501 with a sentence for parts that are not there, 422 for what this server never does."""
    async with server.http() as http:
        thread_id = (await http.post("/threads", json={})).json()["thread_id"]
        for method, path in [
            ("POST", "/assistants"),
            ("POST", f"/threads/{thread_id}/copy"),
            ("POST", "/threads/prune"),
            ("POST", "/runs/batch"),
            ("POST", "/runs/crons"),
            ("PUT", "/store/items"),
        ]:
            answered = await http.request(method, path, json={})
            assert answered.status_code == 501, path
            assert answered.json()["message"].startswith("not here: ")
        run = (await http.post(f"/threads/{thread_id}/runs", json={**BANK, "input": said("words")})).json()
        undone = await http.post(f"/threads/{thread_id}/runs/{run['run_id']}/cancel?action=rollback")
        assert (undone.status_code, "cannot be rolled back" in undone.json()["message"]) == (422, True)
        edited = await http.post(f"/threads/{thread_id}/state", json={"values": {"messages": []}})
        assert (edited.status_code, "Session.replay" in edited.json()["message"]) == (422, True)


async def test_who_only_reads_deletes_nothing(server: Server) -> None:
    """Deleting takes an operator."""
    async with server.http("vera") as vera:
        thread_id = (await vera.post("/threads", json={})).json()["thread_id"]
        assert (await vera.delete(f"/threads/{thread_id}")).status_code == 403
