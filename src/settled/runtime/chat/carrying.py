"""What an executor needs in a process: agents with a checkpointer of the running event loop, and a task to work in.

For the server and for workers; any number of them may be at work on one database.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from settled.graph.agent import Agent
from settled.graph.checkpointer import aopen_checkpointer
from settled.graph.hosting import host_of
from settled.runtime.chat.executing import Executor
from settled.state.store import Ledger


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
