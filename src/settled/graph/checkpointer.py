"""LangGraph's Postgres savers, opened on the ledger's own server.

Three things differ from a saver as it comes:

- No lock shared by all threads. The saver's one lock guards a single shared connection; ours takes one of its own
  from a pool for each call, so the lock only forbids what is safe. (LangGraph itself keeps the checkpoints of one
  thread in order.)
- A connection is asked whether it lives only when its socket has something to say: a server that ends one says so,
  and a question before each use would be a round trip more for every step.
- Set-up under a lock: of eight plain ones at the same instant, seven fail.

Its commits wait for the disk, as LangGraph's do. Asynchronous ones were tried (docs/decisions.md): a process that
outlives a crash of the *server* goes on from a checkpoint that is lost, and the thread has a hole.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any, NoReturn

from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

from settled.state.errors import ContractError
from settled.state.migrations import setup_lock
from settled.state.store import Ledger

MAX_CONNECTIONS = 8
"""A saver's call holds a connection for about a millisecond."""


class AsyncSaver(AsyncPostgresSaver):
    """A saver for `ainvoke`. `process` is the one that opened it: a forked child has none of its threads."""

    process: int


class SyncSaver(PostgresSaver):
    """A saver for `invoke`; under `ainvoke` it says at the first step what to open instead. `process` as above."""

    process: int

    async def aget_tuple(self, config: Any) -> NoReturn:
        """Refuse."""
        raise ContractError("this checkpointer is for invoke(); for ainvoke() open one with settled.aopen_checkpointer")


@contextmanager
def open_checkpointer(ledger: Ledger, *, max_connections: int = MAX_CONNECTIONS) -> Iterator[PostgresSaver]:
    """Open a saver for `invoke` on the ledger's server, with its tables."""
    _set_up(ledger)
    pool = ledger.pools.checkpoint(max_connections)
    with pool:
        saver = SyncSaver(pool)
        saver.process = os.getpid()
        saver.lock = nullcontext()  # type: ignore[assignment]
        yield saver


@asynccontextmanager
async def aopen_checkpointer(
    ledger: Ledger, *, max_connections: int = MAX_CONNECTIONS
) -> AsyncIterator[AsyncPostgresSaver]:
    """Open a saver for `ainvoke` on the ledger's server, with its tables. It belongs to the running event loop."""
    await asyncio.to_thread(_set_up, ledger)
    pool = ledger.pools.acheckpoint(max_connections)
    async with pool:
        saver = AsyncSaver(pool)
        saver.process = os.getpid()
        saver.lock = nullcontext()  # type: ignore[assignment]
        yield saver


def _set_up(ledger: Ledger) -> None:
    with setup_lock(ledger.url) as connection:
        PostgresSaver(connection).setup()
