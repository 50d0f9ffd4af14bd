"""What one server is made of: console, chat and worker, each of which can be left away.

Owns the one place where each part is mounted or begun; what a part does is its own. N servers and N workers share one
database, so it does not matter which process has which parts.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter
from starlette.types import ASGIApp
from uvicorn import Config, Server

from settled.runtime.server.app import CONSOLE, Beside, build_app
from settled.runtime.server.site import Site
from settled.runtime.worker import Worker
from settled.runtime.working import dispatcher, entered
from settled.state.store import Ledger
from settled.tools.contract import ActionTool


@dataclass(frozen=True)
class Parts:
    """What a server is made of. `agents` and `dispatcher` are functions of the ledger that make them; `chains` are
    those that a person may carry on, by name.
    """

    tools: Sequence[ActionTool] = ()
    agents: Callable[[Ledger], Any] | None = None
    dispatcher: Callable[[Ledger], Any] | None = None
    console: bool = True
    chat: bool = False
    worker: bool = False
    trace_url: str | None = None
    hosts: Sequence[str] = ()
    chains: Mapping[str, Any] = field(default_factory=dict)


async def serve_parts(
    ledger: Ledger, parts: Parts, config: Callable[[ASGIApp], Config], listening: socket.socket
) -> None:
    """Serve until a signal ends it."""
    async with AsyncExitStack() as stack:
        agents = None if parts.agents is None else await entered(stack, parts.agents(ledger))
        if agents:
            agents = await _checkpointed(stack, ledger, agents)
        routers: list[APIRouter] = list(CONSOLE) if parts.console else []
        beside: list[Beside] = []
        if parts.worker:
            beside.append(_working(ledger, parts, agents))
        if parts.chat and agents:
            _add_chat(ledger, agents, routers, beside, carries_out=parts.worker)
        has_chat = bool(parts.chat and agents)
        site = Site(
            ledger, parts.tools, parts.trace_url, has_console=parts.console, has_chat=has_chat, chains=parts.chains
        )
        app = build_app(site, routers=routers, beside=beside, hosts=parts.hosts)
        await Server(config(app)).serve(sockets=[listening])


async def _checkpointed(stack: AsyncExitStack, ledger: Ledger, agents: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give agents that have no checkpointer one of this loop: chat and worker need it."""
    from settled.runtime.chat.carrying import checkpointed  # LangGraph takes seconds

    return await stack.enter_async_context(checkpointed(ledger, agents))


def _add_chat(
    ledger: Ledger, agents: Mapping[str, Any], routers: list[APIRouter], beside: list[Beside], *, carries_out: bool
) -> None:
    from settled.runtime.chat.router import router  # LangGraph takes seconds
    from settled.runtime.chat.serving import Chat

    chat = Chat(ledger, agents, carries_out=carries_out)
    routers.append(router(chat))
    beside.append(lambda _: chat.opened())


def _working(ledger: Ledger, parts: Parts, agents: Mapping[str, Any] | None) -> Beside:
    """Return a worker in the server's own event loop: it begins with the server, and drains at its end."""
    delivering = None if parts.dispatcher is None else dispatcher(parts.dispatcher(ledger))
    worker = Worker(ledger, tools=parts.tools, agents=agents, chains=list(parts.chains.values()), dispatcher=delivering)

    @asynccontextmanager
    async def working(_: Site) -> AsyncIterator[None]:
        running = asyncio.create_task(worker.arun())
        try:
            yield
        finally:
            worker.stop()
            await running

    return working
