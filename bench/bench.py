"""What safety costs, as ratios from one interleaved run (`make bench`).

Shared machines are noisy and drift, so nothing here is an absolute claim: each contender takes its turn in every
round, and the figures are medians and their ratios. Uses SETTLED_DATABASE_URL, else a private Postgres with its
defaults (fsync on).

    call   perform, first and replayed, beside one autocommit INSERT of a row that holds the same things load
    perform from 16 threads, beside a bare two-commit ledger (INSERT, UPDATE) from 16 threads agent  build_agent
    beside the same agent with a plain ToolNode and LangGraph's saver, durability "sync", 1 and 16 at once memory the
    peak of a process that runs the reliable agent drain  a backlog drained by four workers, and what a past of 100,000
    settled actions costs them
"""

import argparse
import asyncio
import contextlib
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from draining import bench_drain
from settled import Absent, Inquiry, Ledger, action, aopen_checkpointer, build_agent, perform

AT_ONCE = 16
SCHEMA = """
CREATE SCHEMA IF NOT EXISTS bench;
CREATE TABLE IF NOT EXISTS bench.bare (
    id text PRIMARY KEY, key text NOT NULL UNIQUE, thread_id text NOT NULL, tool text NOT NULL, state text NOT NULL,
    arguments json NOT NULL, result json, at timestamptz NOT NULL DEFAULT now())
"""
INSERT = "INSERT INTO bench.bare (id, key, thread_id, tool, state, arguments) VALUES (%s, %s, %s, %s, 'running', %s)"
UPDATE = "UPDATE bench.bare SET state = 'succeeded', result = %s WHERE id = %s AND state = 'running'"


def find_ticket(_: Inquiry) -> Absent:
    """Asked for nothing here: no reply is lost."""
    return Absent()


@action(risk="non_idempotent_write", remote="dedupes", identity=("employee_id", "invoice_id"), query=find_ticket)
def create_ticket(employee_id: str, invoice_id: str, amount: float) -> dict[str, object]:
    """Create a reimbursement ticket."""
    return {"receipt": "R-55821", "amount": amount}


@action(risk="non_idempotent_write", remote="dedupes", identity=("employee_id", "invoice_id"), query=find_ticket)
async def acreate_ticket(employee_id: str, invoice_id: str, amount: float) -> dict[str, object]:
    """Create a reimbursement ticket."""
    return {"receipt": "R-55821", "amount": amount}


def main() -> None:
    """Run the parts that are asked for, and print one document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["call", "load", "agent", "memory", "drain"])
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each comparison (default 5)")
    parser.add_argument("--memory-child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    with Ledger.connect(max_connections=AT_ONCE + 2) as ledger:
        if options.memory_child:
            asyncio.run(peak_of_agent(ledger))
            return
        with psycopg.connect(ledger.url, autocommit=True) as connection:
            connection.execute(SCHEMA.encode())
        report = {part: PARTS[part](ledger, options.rounds) for part in options.parts}
    print(json.dumps(report, indent=2))


# -- one call ---------------------------------------------------------------------------------------------------


def bench_call(ledger: Ledger, rounds: int) -> dict[str, object]:
    """Perform, first and again, beside one INSERT: 100 of each in turn, a round."""
    thread_id = f"bench-{uuid.uuid4().hex[:8]}"
    times: dict[str, list[float]] = {"insert": [], "first": [], "replay": []}
    with psycopg.connect(ledger.url, autocommit=True) as connection:
        gc.collect()
        for n in range(100 * (rounds + 1)):
            call = {"employee_id": f"E-{n}", "invoice_id": "INV-102", "amount": 118.5}
            name = f"{thread_id}-{n}"
            row = (name, f"key-{name}", thread_id, "create_ticket", json.dumps(call))
            timed(times["insert"], lambda row=row: connection.execute(INSERT, row))
            for kind in ("first", "replay"):
                timed(times[kind], lambda call=call: perform(create_ticket, call, ledger=ledger, thread_id=thread_id))
    medians = {kind: statistics.median(values[100:]) for kind, values in times.items()}
    return {
        "median_ms": {kind: round(value * 1e3, 3) for kind, value in medians.items()},
        "first_to_insert": round(medians["first"] / medians["insert"], 2),
        "replay_to_insert": round(medians["replay"] / medians["insert"], 2),
    }


def timed(into: list[float], step: Callable[[], object]) -> None:
    """Append the seconds that a step takes."""
    begun = time.perf_counter()
    step()
    into.append(time.perf_counter() - begun)


# -- many at once -----------------------------------------------------------------------------------------------


def bench_load(ledger: Ledger, rounds: int) -> dict[str, object]:
    """Actions a second from 16 threads: perform beside a bare ledger of two commits, in turn."""
    with ConnectionPool(ledger.url, min_size=AT_ONCE, max_size=AT_ONCE, kwargs={"autocommit": True}) as pool:

        def bare(name: str) -> None:
            with pool.connection() as connection:
                connection.execute(INSERT, (name, f"key-{name}", "t", "create_ticket", json.dumps({"amount": 118.5})))
            with pool.connection() as connection:
                connection.execute(UPDATE, (json.dumps({"receipt": "R-55821"}), name))

        def reliable(name: str) -> None:
            call = {"employee_id": name, "invoice_id": "INV-102", "amount": 118.5}
            perform(create_ticket, call, ledger=ledger, thread_id="load")

        rates: dict[str, list[float]] = {"bare": [], "perform": []}
        for round_ in range(rounds + 1):
            for kind, step in (("bare", bare), ("perform", reliable)):
                rate = rate_of(step, 40)
                if round_:
                    rates[kind].append(rate)
    medians = {kind: statistics.median(values) for kind, values in rates.items()}
    return {
        "actions_per_s": {kind: round(value) for kind, value in medians.items()},
        "perform_to_bare": round(medians["perform"] / medians["bare"], 2),
    }


def rate_of(step: Callable[[str], None], each: int) -> float:
    """Return how many steps a second 16 threads make, `each` of them each."""
    start = threading.Barrier(AT_ONCE + 1)

    def work() -> None:
        start.wait()
        for _ in range(each):
            step(uuid.uuid4().hex)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        done = [threads.submit(work) for _ in range(AT_ONCE)]
        start.wait()
        begun = time.perf_counter()
        for future in done:
            future.result()
        return AT_ONCE * each / (time.perf_counter() - begun)


# -- the agent --------------------------------------------------------------------------------------------------


def scripted_model() -> Any:
    """Return a chat model that calls the tool once in a turn and then says a word. It is a script, not a model."""
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
    from langchain_core.outputs import ChatGeneration, ChatResult

    class Scripted(BaseChatModel):
        @property
        def _llm_type(self) -> str:
            return "scripted"

        def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> "Scripted":
            return self

        def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
            if isinstance(messages[-1], ToolMessage):
                said = AIMessage("Done.")
            else:
                args = {"employee_id": uuid.uuid4().hex, "invoice_id": "INV-102", "amount": 118.5}
                call = {"name": "acreate_ticket", "args": args, "id": f"call_{uuid.uuid4().hex[:12]}"}
                said = AIMessage("", tool_calls=[{**call, "type": "tool_call"}])
            return ChatResult(generations=[ChatGeneration(message=said)])

        async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
            return self._generate(messages)

    return Scripted()


@contextlib.asynccontextmanager
async def plain_agent(url: str) -> AsyncIterator[Any]:
    """The same agent as people write it: ToolNode, one Send per call, LangGraph's own saver over a pool."""
    from langchain_core.messages import AIMessage
    from langchain_core.tools import StructuredTool
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode
    from langgraph.types import Send

    contract = acreate_ticket.contract
    tool = StructuredTool.from_function(coroutine=contract.function, name=contract.name)
    model = scripted_model()

    async def ask(state: MessagesState) -> dict[str, list[Any]]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    def fan_out(state: MessagesState) -> list[Send] | str:
        last = state["messages"][-1]
        calls = last.tool_calls if isinstance(last, AIMessage) else []
        return [Send("tools", [call]) for call in calls] or END

    graph = StateGraph(MessagesState)
    graph.add_node("model", ask)
    graph.add_node("tools", ToolNode([tool]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", fan_out, ["tools", END])
    graph.add_edge("tools", "model")
    args = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(url, min_size=AT_ONCE, max_size=AT_ONCE, kwargs=args, open=False) as pool:
        saver = AsyncPostgresSaver(pool)
        await saver.setup()
        yield graph.compile(checkpointer=saver)


@contextlib.asynccontextmanager
async def reliable_agent(ledger: Ledger) -> AsyncIterator[Any]:
    """The reference agent, with its checkpointer."""
    async with aopen_checkpointer(ledger, max_connections=AT_ONCE) as saver:
        yield build_agent(scripted_model(), [acreate_ticket], ledger=ledger, checkpointer=saver)


async def turn(agent: Any) -> None:
    """One conversation of one turn with one tool call."""
    config = {"configurable": {"thread_id": uuid.uuid4().hex}}
    await agent.ainvoke({"messages": [("user", "Please reimburse INV-102.")]}, config, durability="sync")


async def seconds_of(agent: Any, at_once: int, turns: int) -> float:
    """Return the seconds that one turn takes on average, `at_once` at a time."""

    async def some() -> None:
        for _ in range(turns // at_once):
            await turn(agent)

    begun = time.perf_counter()
    await asyncio.gather(*(some() for _ in range(at_once)))
    return (time.perf_counter() - begun) / turns


async def compare_agents(ledger: Ledger, rounds: int) -> dict[str, object]:
    """Time both agents in turn, at 1 and at 16 at once."""
    times: dict[tuple[str, int], list[float]] = {}
    async with plain_agent(ledger.url) as plain, reliable_agent(ledger) as reliable:
        for round_ in range(rounds + 1):
            for at_once, turns in ((1, 40), (AT_ONCE, 160)):
                for kind, agent in (("plain", plain), ("reliable", reliable)):
                    seconds = await seconds_of(agent, at_once, turns)
                    if round_:
                        times.setdefault((kind, at_once), []).append(seconds)
        await ledger.aclose()
    medians = {key: statistics.median(values) for key, values in times.items()}
    return {
        f"at_{n}": {
            "median_ms_per_turn": {kind: round(medians[kind, n] * 1e3, 2) for kind in ("plain", "reliable")},
            "reliable_to_plain": round(medians["reliable", n] / medians["plain", n], 2),
        }
        for n in (1, AT_ONCE)
    }


def bench_agent(ledger: Ledger, rounds: int) -> dict[str, object]:
    """Turns of the reliable agent beside the plain one."""
    return asyncio.run(compare_agents(ledger, rounds))


# -- memory -----------------------------------------------------------------------------------------------------


async def peak_of_agent(ledger: Ledger) -> None:
    """Run a hundred turns, 16 at once, and print this process's peak memory in MB."""
    async with reliable_agent(ledger) as agent:
        await seconds_of(agent, AT_ONCE, 112)
        await ledger.aclose()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def bench_memory(ledger: Ledger, rounds: int) -> dict[str, object]:
    """The peak memory of a fresh process that runs the reliable agent."""
    child = [sys.executable, __file__, "--memory-child"]
    env = {"SETTLED_DATABASE_URL": ledger.url}
    done = subprocess.run(child, env={**os.environ, **env}, capture_output=True, text=True, check=True)
    return {"peak_mb": round(float(done.stdout.split()[-1]))}


PARTS: dict[str, Callable[[Ledger, int], dict[str, object]]] = {
    "call": bench_call,
    "load": bench_load,
    "agent": bench_agent,
    "memory": bench_memory,
    "drain": bench_drain,
}

if __name__ == "__main__":
    main()
