"""A chat server in a process of its own, which a test may kill, stop and start again on the same port."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from fastapi import FastAPI
from langchain.agents import create_agent

from chat_agents import Talker, tools
from scripted import Remote
from settled import ActionMiddleware, Ledger, aopen_checkpointer, build_agent
from settled.runtime.chat import executing
from settled.runtime.chat import runs as routes
from settled.runtime.chat.executing import Executor
from settled.runtime.chat.router import router
from settled.runtime.chat.serving import Chat
from settled.state import runs


def patient_agents(ledger: Ledger) -> dict[str, Any]:
    """The agents, for a worker that looks for runs once a minute only: what is quicker, the queue has told."""
    executing.LOOK_S = 60.0
    return agents_of(ledger, None, 0.0, 0.0)


def serve(
    *,
    database_url: str,
    port: int,
    trouble: str | None = None,
    slow_s: float = 1.0,
    word_s: float = 0.0,
    lease_s: float = 1.0,
    carries_out: bool = True,
    send_s: float = routes.SEND_S,
) -> None:
    """Serve until SIGTERM, or the end that `trouble` ("freeze", "die") brings."""
    routes.SEND_S = send_s
    with Ledger.connect(database_url) as ledger:
        chat = Chat(ledger, agents_of(ledger, trouble, slow_s, word_s), lease_s=lease_s, carries_out=carries_out)
        uvicorn.run(application(chat), port=port, log_level="warning", timeout_graceful_shutdown=5)


def agents_of(ledger: Ledger, trouble: str | None, slow_s: float, word_s: float) -> dict[str, Any]:
    """Return the agents: one of ours, and one of LangChain with our middleware."""
    model, acting = Talker(slow_s=word_s), tools(Remote(ledger.url), trouble, slow_s)
    return {
        "bank": build_agent(model, acting, ledger=ledger),
        "chain": create_agent(model, acting, middleware=[ActionMiddleware(ledger=ledger)]),
    }


def application(chat: Chat) -> FastAPI:
    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with chat.opened():
            yield

    app = FastAPI(lifespan=lifespan)
    app.include_router(router(chat, has_page=False))
    return app


def carry_out(*, database_url: str) -> list[str]:
    """Carry out what is due, once, as a worker does; tell the runs."""
    return asyncio.run(_carry_out(database_url))


async def _carry_out(database_url: str) -> list[str]:
    with Ledger.connect(database_url) as ledger:
        async with aopen_checkpointer(ledger) as saver:
            tooling = tools(await asyncio.to_thread(Remote, database_url), None, 0.0)
            agent = build_agent(Talker(), tooling, ledger=ledger, checkpointer=saver)
            done = await Executor(ledger, {"bank": agent}).run_once()
        await ledger.aclose()
        return done


def take_and_die(*, database_url: str) -> None:
    """Take a run up, for no time at all, and die."""
    with Ledger.connect(database_url) as ledger:
        assert runs.on(ledger).run(runs.take("doomed", agents=["bank"], most=1, lease_s=0.0))
        os.kill(os.getpid(), signal.SIGKILL)
