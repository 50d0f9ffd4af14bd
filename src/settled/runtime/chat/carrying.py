"""Executors in a process: one batch of runs, or as fast as they come, with a checkpointer of the running event loop.

For the server and for workers; any number of them may be at work on one database.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres import PostgresSaver

from settled.graph.agent import Agent
from settled.graph.checkpointer import aopen_checkpointer
from settled.graph.hosting import host_of
from settled.runtime.chat.executing import AT_ONCE, LEASE_S, Executor
from settled.state.errors import ContractError
from settled.state.store import Ledger


async def execute_due(
    ledger: Ledger, agents: Mapping[str, Agent], *, most: int = AT_ONCE, lease_s: float = LEASE_S
) -> Sequence[str]:
    """Take up at most `most` runs of these agents, carry them out in this process, and return their ids.

    For a worker's batch. The agents have a checkpointer of the running event loop; ContractError for one that has not.
    """
    for name, agent in agents.items():
        if not agent.checkpointer or isinstance(agent.checkpointer, PostgresSaver):
            raise ContractError(f"the agent {name} needs a checkpointer of this event loop: settled.aopen_checkpointer")
    return await Executor(ledger, agents, lease_s=lease_s).run_once(most)


@asynccontextmanager
async def carrying_out(
    ledger: Ledger, agents: Mapping[str, Agent], *, lease_s: float = LEASE_S, at_once: int = AT_ONCE
) -> AsyncIterator[Executor]:
    """Carry out what is due within the block, as fast as it comes; each agent with a checkpointer of this loop,
    whatever it was built with. At the end of the block what is under way is left to others, at its next step.
    """
    async with checkpointed(ledger, agents) as own:
        executor = Executor(ledger, own, lease_s=lease_s, at_once=at_once)
        async with working(executor):
            yield executor


@asynccontextmanager
async def checkpointed(ledger: Ledger, agents: Mapping[str, Agent]) -> AsyncIterator[dict[str, Agent]]:
    """Open a checkpointer for this event loop, and yield the agents with it, whatever they were built with."""
    async with aopen_checkpointer(ledger) as saver:
        yield {name: with_checkpointer(agent, saver) for name, agent in agents.items()}


@asynccontextmanager
async def working(executor: Executor) -> AsyncIterator[Executor]:
    """Let an executor work within the block."""
    task = asyncio.create_task(executor.run())
    try:
        yield executor
    finally:
        executor.stop()
        await task


def with_checkpointer(agent: Agent, saver: BaseCheckpointSaver[Any]) -> Agent:
    """Return an agent that keeps its threads with that checkpointer; ContractError for a graph without a door."""
    host_of(agent)
    return agent.copy({"checkpointer": saver})
