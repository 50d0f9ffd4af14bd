"""The database goes away in the middle of a run, or a listener does not listen: the run ends all the same."""

import asyncio
import socket
import time
from typing import Any

import psycopg
import pytest

from chats import Server, said, serving
from own_server import Server as Postgres
from scripted import Remote
from settled import Ledger
from settled.state.migrations import migrate


@pytest.mark.deep
async def test_a_restart_of_postgres_ends_no_run(server: Postgres) -> None:
    """In the body of a call, twice: one effect at most, one answer that says what is known, and every event once. (The
    remote side is a table on the same server: it may be away too, and then nobody can tell.)
    """
    migrate(server.url)
    with serving(server.url, slow_s=1.5, lease_s=3.0) as chat:
        async with chat.client() as client:
            thread_id = (await client.threads.create())["thread_id"]
            run = await client.runs.create(thread_id, "bank", input=said("slow A1", "m1"), stream_mode=["values"])
            await asyncio.sleep(0.7)
            await asyncio.to_thread(server.restart)
            await asyncio.sleep(0.7)
            await asyncio.to_thread(server.restart)
            values: Any = await client.runs.join(thread_id, run["run_id"])
            (action,) = Ledger.connect(server.url).actions()
            assert action.state in ("succeeded", "unknown")
            told = values["messages"][-1]["content"]
            assert ("R-1" if action.state == "succeeded" else "not known yet") in told
            assert (await client.runs.get(thread_id, run["run_id"]))["status"] == "success"
            parts = [part async for part in client.runs.join_stream(thread_id, run["run_id"])]
            assert [part.id for part in parts] == [str(number + 1) for number in range(len(parts))]
    assert Remote(server.url).count() <= 1


async def test_who_does_not_listen_is_dropped_and_may_come_back(database_url: str) -> None:
    """Nothing is kept in memory for him; others hear the same stream meanwhile."""
    with serving(database_url, send_s=1.0) as chat:
        async with chat.client() as client:
            thread_id = (await client.threads.create())["thread_id"]
            run = await client.runs.create(thread_id, "bank", input=said("words"))
            await client.runs.join(thread_id, run["run_id"])
            await asyncio.to_thread(_talk_much, database_url, run["run_id"])
            dropped_after = await asyncio.to_thread(_deaf, chat, f"/threads/{thread_id}/runs/{run['run_id']}/stream")
            assert dropped_after < 20_000_000
            last = client.runs.join_stream(thread_id, run["run_id"], last_event_id="105")
            assert [part.id for part in [part async for part in last]][:-1] == [
                str(number) for number in range(106, 141)
            ]


def _talk_much(url: str, run_id: str) -> None:
    """Let a run have said 20 MB more, as a long conversation's values are."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DELETE FROM settled.run_events WHERE event = 'end'")
        connection.execute(
            "INSERT INTO settled.run_events SELECT tenant, run_id, 100 + n, 'values', to_json(repeat('x', 500000))"
            " FROM settled.runs, generate_series(1, 40) AS n WHERE run_id = %s",
            [run_id],
        )


def _deaf(chat: Server, path: str) -> int:
    """Ask for a stream, take nothing for a while, and tell how much there was to take after that."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 10_000)
        client.connect(("127.0.0.1", chat.port))
        head = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {chat.secrets['anna']}\r\n\r\n"
        client.sendall(head.encode())
        client.settimeout(20)
        time.sleep(4)
        taken = 0
        while True:
            try:
                part = client.recv(1 << 20)
            except ConnectionResetError:
                return taken
            if not part:
                return taken
            taken += len(part)
