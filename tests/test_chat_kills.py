"""A server that dies in the middle of a run: another one goes on with it, and so does whoever was listening."""

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from chats import Server, said, serving
from processes import start
from settled import Ledger

HERE = Path(__file__).parent


async def test_a_killed_server_is_followed_by_one_that_ends_its_run(database_url: str) -> None:
    """Killed after the effect and before anybody knew: one effect, and the answer has its receipt."""
    with serving(database_url, trouble="die") as server:
        async with server.client() as client:
            thread_id = (await client.threads.create())["thread_id"]
            run = await client.runs.create(thread_id, "bank", input=said("refund A1", "m1"), stream_mode=["custom"])
            assert server.child is not None
            await asyncio.to_thread(server.child.status)
            await asyncio.to_thread(server.start)
            values: Any = await client.runs.join(thread_id, run["run_id"])
            assert "R-1" in values["messages"][-1]["content"]
            assert [one["type"] for one in values["messages"]] == ["human", "ai", "tool", "ai"]
            parts = [part async for part in client.runs.join_stream(thread_id, run["run_id"])]
            assert [part.id for part in parts] == [str(number + 1) for number in range(len(parts))]
            assert [part.data["attempt"] for part in parts if part.event == "metadata"] == [1, 2]
            states = [part.data["settled"]["state"] for part in parts if part.event == "custom"]
            assert states[-2:] == ["unknown", "succeeded"]
            assert (await client.runs.get(thread_id, run["run_id"]))["status"] == "success"
    assert server.remote.count() == 1


async def test_the_client_rides_over_the_kill_by_itself(database_url: str) -> None:
    """The stream is gone on with after the last id that was heard: every id once, to the end."""
    with serving(database_url, trouble="die", word_s=0.05) as server:
        async with server.client() as client:
            thread_id = (await client.threads.create())["thread_id"]
            given = said("refund A1", "m1")
            parts = client.runs.stream(thread_id, "bank", input=given, stream_mode=["values", "updates"])
            restarting = asyncio.ensure_future(_restarted(server))
            heard: list[Any] = [part async for part in parts]
            await restarting
    assert [part.id for part in heard] == [str(number + 1) for number in range(len(heard))]
    assert heard[-1].event == "end"
    assert "R-1" in [part.data for part in heard if part.event == "values"][-1]["messages"][-1]["content"]
    assert server.remote.count() == 1


async def _restarted(server: Server) -> None:
    assert server.child is not None
    await asyncio.to_thread(server.child.status)
    await asyncio.to_thread(server.start)


async def test_a_frozen_server_that_wakes_up_writes_nothing_more(database_url: str) -> None:
    """Its lease is over, and another server waits for its thread: one effect, one end, no event twice."""
    with serving(database_url, trouble="freeze") as frozen:
        async with frozen.client() as client:
            thread_id = (await client.threads.create())["thread_id"]
            run = await client.runs.create(thread_id, "bank", input=said("refund A1", "m1"), stream_mode=["values"])
            assert frozen.child is not None
            await asyncio.to_thread(frozen.child.wait_until_frozen)
        with serving(database_url) as other:
            await asyncio.sleep(2.5)  # the lease is over by then, and the thread's lock is not
            frozen.child.thaw()
            async with other.client() as client:
                values: Any = await client.runs.join(thread_id, run["run_id"])
                assert "R-1" in values["messages"][-1]["content"]
                parts = [part async for part in client.runs.join_stream(thread_id, run["run_id"])]
        assert [part.id for part in parts] == [str(number + 1) for number in range(len(parts))]
        assert [part.event for part in parts].count("end") == 1
    assert frozen.remote.count() == 1


async def test_a_server_that_is_asked_to_end_leaves_its_run_to_the_next(database_url: str) -> None:
    """The call that is under way ends and is recorded; the next process says the rest."""
    with serving(database_url, slow_s=1.0, lease_s=30.0) as server:
        async with server.client() as client:
            thread_id = (await client.threads.create())["thread_id"]
            run = await client.runs.create(thread_id, "bank", input=said("slow A1", "m1"), stream_mode="custom")
            async for part in client.runs.join_stream(thread_id, run["run_id"]):
                if part.event == "custom":
                    break
            assert server.child is not None
            os.kill(server.child.pid, signal.SIGTERM)
            await asyncio.to_thread(server.child.status)
            assert server.remote.count() == 1
            await asyncio.to_thread(server.start)
            values: Any = await client.runs.join(thread_id, run["run_id"])
            assert "R-1" in values["messages"][-1]["content"]
    assert server.remote.count() == 1


async def test_a_worker_carries_out_what_a_server_only_takes_in(database_url: str) -> None:
    """And a run whose process dies under it again and again is given up, and says so."""
    with serving(database_url, carries_out=False) as server:
        async with server.client() as client:
            thread_id = (await client.threads.create())["thread_id"]
            run = await client.runs.create(thread_id, "bank", input=said("refund A1", "m1"))
            await asyncio.sleep(0.5)
            assert (await client.runs.get(thread_id, run["run_id"]))["status"] == "pending"
            child = start("chatting.carry_out", database_url=database_url)
            assert await asyncio.to_thread(child.result) == [run["run_id"]]
            values: Any = await client.runs.join(thread_id, run["run_id"])
            assert "R-1" in values["messages"][-1]["content"]
            doomed = await client.runs.create(thread_id, "bank", input=said("refund A2", "m2"))
            for _ in range(5):
                child = start("chatting.take_and_die", database_url=database_url)
                assert await asyncio.to_thread(child.status) == -9
            child = start("chatting.carry_out", database_url=database_url)
            assert await asyncio.to_thread(child.result) == [doomed["run_id"]]
            said_last: Any = await client.runs.join(thread_id, doomed["run_id"])
            assert "given up" in said_last["__error__"]["message"]
    with Ledger.connect(database_url) as ledger:
        assert len(ledger.actions()) == 1


async def test_a_worker_process_hears_of_each_run_by_the_queue(database_url: str) -> None:
    """The server only takes in; a worker that looks by itself once a minute has the run done in seconds, twice."""
    words = ["worker", "--agents", "chatting:patient_agents", "--database-url", database_url]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE / "children"), str(HERE)])}
    with serving(database_url, carries_out=False) as server:
        command = [sys.executable, "-m", "settled.runtime.cli", *words]
        worker = await asyncio.create_subprocess_exec(*command, env=environment)
        try:
            async with server.client() as client:
                thread_id = (await client.threads.create())["thread_id"]
                for order in ("A1", "A2"):
                    run = await client.runs.create(thread_id, "bank", input=said(f"refund {order}", order))
                    values: Any = await asyncio.wait_for(client.runs.join(thread_id, run["run_id"]), 45)
                    assert "R-" in values["messages"][-1]["content"]
        finally:
            worker.terminate()
            assert await asyncio.wait_for(worker.wait(), 30) == 0
        assert server.remote.count() == 2


async def test_two_servers_carry_out_the_runs_of_a_thread_in_order(database_url: str) -> None:
    """Whoever takes them up: one after the other, each message once, and each effect once."""
    with serving(database_url) as one, serving(database_url) as two:
        async with one.client() as client, two.client() as other:
            threads = [(await client.threads.create())["thread_id"] for _ in range(3)]
            asked = [(thread_id, f"refund {thread_id[:4]}-{n}") for n in range(4) for thread_id in threads]
            last = {}
            for place, (thread_id, text) in enumerate(asked):
                by = client if place % 2 else other
                last[thread_id] = await by.runs.create(thread_id, "bank", input=said(text, text))
            for thread_id, run in last.items():
                values: Any = await other.runs.join(thread_id, run["run_id"])
                heard = [message["content"] for message in values["messages"] if message["type"] == "human"]
                assert heard == [text for of, text in asked if of == thread_id]
        assert one.remote.count() == len(asked)


@pytest.mark.deep
async def test_servers_that_are_killed_all_the_time_answer_everything_once(database_url: str) -> None:
    """Two servers, one of which dies every second; clients that send again until they have heard the end."""
    with serving(database_url) as one, serving(database_url) as two:
        is_over = asyncio.Event()

        async def killing() -> int:
            for kills, victim in enumerate(itertools.cycle((one, two))):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(is_over.wait(), 1.0)
                    return kills
                await asyncio.to_thread(victim.kill)
                await asyncio.to_thread(victim.start)
            raise AssertionError

        async def asking(thread_id: str, text: str) -> Any:
            for server in itertools.cycle((one, two)):
                body = {"assistant_id": "bank", "input": said(text, text), "if_not_exists": "create"}
                with contextlib.suppress(httpx.HTTPError):
                    async with server.http() as http:
                        answer = await http.post(f"/threads/{thread_id}/runs/wait", json=body)
                        if answer.status_code == 200 and "__error__" not in answer.json():
                            return answer.json()
                await asyncio.sleep(0.2)
            raise AssertionError

        texts = [(f"t{n % 5}", f"refund S{n}") for n in range(40)]
        killer = asyncio.ensure_future(killing())
        answers = await asyncio.gather(*(asking(*one) for one in texts))
        is_over.set()
        assert await killer > 0
    assert all("R-" in answer["messages"][-1]["content"] for answer in answers)
    with Ledger.connect(database_url) as ledger:
        assert {one.state for one in ledger.actions(most=200)} == {"succeeded"}
    assert one.remote.count() == len(texts)
