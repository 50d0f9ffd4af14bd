"""What a child process of the tests of workers can be asked to do: be a worker, and die, freeze or drain when told."""

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import talking

import scripted
from processes import freeze_here
from remote import payment
from settled import Ledger, Session, open_checkpointer
from settled.runtime.jobs import set_up
from settled.runtime.worker import Worker
from settled.tools.effects import Effect
from settled.tools.runner import World
from talks import CALLS, OURS, agent_of


def work(
    *,
    database_url: str,
    remote_url: str,
    contract: Mapping[str, Any] | None = None,
    asynchronous: bool = False,
    ahead_s: float = 0.0,
    stop_at: tuple[str, str] | None = None,
    die_at: int | None = None,
    **options: Any,
) -> dict[str, int]:
    """Be a worker until SIGTERM, and tell what was done. `ahead_s`: by this much its ledger's clock is ahead of time.

    It freezes once at the first instant that is `stop_at`, an effect's class name and "before" or "after"; it dies by
    SIGKILL at instant number `die_at`.
    """
    instants: list[tuple[str, str]] = []

    def watch(effect: Effect, when: str) -> None:
        instants.append((type(effect).__name__, when))
        if len(instants) - 1 == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if stop_at is not None and instants[-1] == tuple(stop_at) and instants.count(instants[-1]) == 1:
            freeze_here()

    def clock() -> datetime:
        return datetime.now(UTC) + timedelta(seconds=ahead_s)

    tool = payment(remote_url, asynchronous=asynchronous, **(contract or {}))
    with Ledger.connect(database_url, clock=clock if ahead_s else None) as ledger:
        given = {"scan_every_s": 0.2, "concurrency": 4, **options}
        return asdict(Worker(ledger, tools=[tool], world=World(watch=watch), **given).run())


def set_up_queue(*, database_url: str, at: float) -> bool:
    """Make the queue's tables, at an instant of the wall clock."""
    with Ledger.connect(database_url) as ledger:
        time.sleep(max(at - time.time(), 0))
        return set_up(ledger)


def leave(*, database_url: str, die_in: str) -> None:
    """Begin a turn of three calls in a session that workers know, and die in it: in the last body, or when its result
    or the step's checkpoint is saved.
    """
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        far = scripted.Remote(database_url)
        acted: list[int] = []

        def during(n: int) -> None:
            acted.append(n)
            if die_in == "body" and n == CALLS - 1:
                talking.die()

        talking._dying(saver, die_in, acted)
        assert far.count() == 0
        session = Session(agent_of(OURS, ledger, saver, during), ledger=ledger, thread_id="t", agent_name="desk")
        session.send("please", message_id="m1")
