"""Threads that sessions with an `agent_name` run, as operations: whose turn has not ended, and who may go on with it.

Owns the rows of `settled.threads` and the statements of `threads.sql`. Knows nothing of LangGraph. Who may really go
on is decided by the lock of the thread; the subtle thing is a thread that is woken in the middle of a turn: the end of
that turn leaves it due, since what moved may not have been told in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from settled.state.ledger import MAX_TEXT_CHARS, Query, Rows
from settled.state.postgres import LEDGER_FILES, Database

D = TypeVar("D", bound=Database)

LEFT_S = 300.0
"""A worker that has a thread's agent takes it up within seconds of its time, or puts it off and says why."""


@dataclass(frozen=True, slots=True)
class OpenThread:
    """A thread that somebody may go on with: by which agent, and on whose behalf. `tries` have failed in a row."""

    tenant: str
    thread_id: str
    agent: str
    requester: str | None
    roles: tuple[str, ...]
    language: str | None
    tries: int


@dataclass(frozen=True, slots=True)
class StuckThread:
    """A thread that is left to a person: it failed each time that a worker tried it, or no worker has its agent, whose
    name may have changed.
    """

    tenant: str
    thread_id: str
    agent: str
    tries: int
    reason: str | None
    open_since: datetime | None
    last_at: datetime


def on(database: D) -> D:
    """Return `database` as one that speaks these statements as well; the two share their connections."""
    return database.speaking(*LEDGER_FILES, "sql/threads.sql")


def open_turn(
    tenant: str,
    thread_id: str,
    *,
    agent: str,
    requester: str | None,
    roles: Sequence[str],
    language: str | None,
    pause_s: float,
) -> Query[datetime]:
    """Note that a turn begins; answers its name for `end_turn`. If it has not ended after `pause_s`, workers try the
    thread's lock.
    """
    who = {"tenant": tenant, "thread_id": thread_id, "agent": agent, "requester": requester, "roles": list(roles)}
    params = {**who, "language": language, "pause": timedelta(seconds=pause_s)}
    return Query("open_turn", params, _instant)


def _instant(rows: Rows) -> datetime:
    begun: datetime = rows[0][0]
    return begun


def end_turn(tenant: str, thread_id: str, open_since: datetime) -> Query[None]:
    """Note that a turn has ended; one that another has followed says nothing."""
    return Query("end_turn", {"tenant": tenant, "thread_id": thread_id, "open_since": open_since}, _nothing)


def due(*, agents: Sequence[str], most: int, lease_s: float) -> Query[list[OpenThread]]:
    """Take up at most `most` threads of these agents whose time has come."""
    return Query("due_threads", {"agents": list(agents), "most": most, "lease": timedelta(seconds=lease_s)}, _threads)


def put_off(thread: OpenThread, *, pause_s: float | None, tries: int, reason: str | None) -> Query[None]:
    """Go on with a thread later; None: not before something happens in it."""
    pause = None if pause_s is None else timedelta(seconds=pause_s)
    said = None if reason is None else reason[:MAX_TEXT_CHARS].replace("\x00", "\ufffd")
    this = {"tenant": thread.tenant, "thread_id": thread.thread_id}
    return Query("put_off", {**this, "pause": pause, "tries": tries, "reason": said}, _nothing)


def wake(threads: Sequence[tuple[str, str]]) -> Query[None]:
    """Let somebody go on with these threads (tenant and id), of which actions have moved; unknown ones are none."""
    params = {"tenants": [tenant for tenant, _ in threads], "ids": [thread_id for _, thread_id in threads]}
    return Query("wake", params, _nothing)


def stuck(*, most: int = 100) -> Query[list[StuckThread]]:
    """Read the threads that failed each time and are tried no longer, and those that nobody takes up, newest first."""
    return Query(
        "stuck_threads",
        {"most": most, "left": timedelta(seconds=LEFT_S)},
        lambda rows: [StuckThread(*row) for row in rows],
    )


def _threads(rows: Rows) -> list[OpenThread]:
    return [OpenThread(row[0], row[1], row[2], row[3], tuple(row[4]), row[5], row[6]) for row in rows]


def _nothing(_: Rows) -> None:
    return None
