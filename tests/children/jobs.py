"""What a child process can be asked to do: calls of `remote.payment` through the library, told back as plain JSON."""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

import anyio._backends._asyncio  # noqa: F401 - these two would be imported by the first request of each child
import httpcore2  # noqa: F401

from processes import at_once, freeze_here
from remote import payment
from settled import ActionTool, Ledger, Outcome, aperform, perform
from settled.tools.effects import Effect
from settled.tools.runner import World

Watch = Callable[[Effect, str], None]


def told(outcome: Outcome) -> dict[str, Any]:
    return {"code": str(outcome.code), "receipt": outcome.receipt, "action_id": outcome.action_id}


def act(
    *,
    database_url: str,
    remote_url: str,
    thread_id: str,
    arguments: Mapping[str, object],
    mode: str,
    contract: Mapping[str, Any] | None = None,
    die_at: int | None = None,
    stop_at: tuple[str, str] | None = None,
    stop_in_body: bool = False,
) -> dict[str, Any]:
    """Make one call. Dies by SIGKILL at instant number `die_at`, or freezes once at the first instant that is
    `stop_at`: an effect's class name and "before" or "after"; with `stop_in_body` it freezes in its body, before it
    sends. Tells the instants that it met.
    """
    instants: list[list[str]] = []

    def watch(effect: Effect, when: str) -> None:
        instants.append([type(effect).__name__, when])
        if len(instants) - 1 == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if stop_at is not None and instants.count(list(stop_at)) == 1 and instants[-1] == list(stop_at):
            freeze_here()

    tool = payment(
        remote_url, asynchronous=mode == "async", before=freeze_here if stop_in_body else None, **(contract or {})
    )
    outcome = _call(mode, database_url, tool, thread_id, arguments, World(watch=watch))
    return {**told(outcome), "instants": instants}


def _call(
    mode: str, database_url: str, tool: ActionTool, thread_id: str, arguments: Mapping[str, object], world: World
) -> Outcome:
    if mode == "sync":
        with Ledger.connect(database_url) as ledger:
            return perform(tool, arguments, ledger=ledger, thread_id=thread_id, world=world)

    async def call() -> Outcome:
        async with Ledger.connect(database_url) as ledger:
            return await aperform(tool, arguments, ledger=ledger, thread_id=thread_id, world=world)

    return asyncio.run(call())


def rush(
    *,
    database_url: str,
    remote_url: str,
    thread_id: str,
    arguments: Mapping[str, object],
    threads: int,
    at: float,
    contract: Mapping[str, Any],
    wait_s: float,
) -> list[dict[str, Any]]:
    """Make the same call in several threads at the same instant: `at` by the wall clock."""
    tool = payment(remote_url, **contract)
    with Ledger.connect(database_url) as ledger:
        return [told(outcome) for outcome in at_once(ledger, tool, thread_id, arguments, threads, at, wait_s)]
