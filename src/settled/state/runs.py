"""Threads and runs of the chat server, as operations.

Owns the statements of `runs.sql`. Knows nothing of HTTP or LangGraph. Who runs a run holds it by owner and fencing
token, for the time of a lease; whatever he writes is compared with that, and answers None for "not yours, nothing was
written". All of them may be sent again after a lost connection. The subtle thing: what a run has said is numbered by
whoever says it, so that a statement that is sent twice says nothing twice; a new owner goes on after the last number.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from settled.state.ledger import Query, Rows
from settled.state.postgres import Database

Status = Literal["pending", "running", "success", "error", "interrupted", "timeout"]
LIVE = ("pending", "running")
Strategy = Literal["enqueue", "reject"]

MOST_COUNTED = 10_000
"""Threads are counted up to this: nobody reads a greater number otherwise."""


MOST_LIVE = 100
"""Runs of one thread that have not ended: nobody waits for more, one after the other."""


@dataclass(frozen=True, slots=True)
class ChatThread:
    """A thread as the clients of the chat server know it. `status`: "idle", "busy", "interrupted" or "error"."""

    thread_id: str
    created_at: datetime
    updated_at: datetime
    title: str | None
    metadata: Mapping[str, Any]
    status: str


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a thread. `requester` is who asked for it, and `roles` what he was then; `request` is what he wants,
    as `begin` was given it. A run that ended by `cancel` is "interrupted", as one is that waits for a person.
    """

    tenant: str
    run_id: str
    thread_id: str
    agent: str
    created_at: datetime
    updated_at: datetime
    status: Status
    multitask_strategy: Strategy
    requester: str
    roles: Sequence[str]
    request: Mapping[str, Any]
    metadata: Mapping[str, Any]
    fingerprint: bytes
    fencing_token: int
    tries: int
    cancel_asked_at: datetime | None
    cancelled_by: str | None
    checkpoint_id: str | None
    error: Mapping[str, Any] | None
    has_events: bool

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.status not in LIVE

    @property
    def has_failed(self) -> bool:
        """Whether it ended without an answer, and nobody is asked for one: it may be tried again."""
        return self.is_over and (self.status in ("error", "timeout") or self.cancel_asked_at is not None)


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One thing that a run has said: `data` is JSON text."""

    number: int
    event: str
    data: str


@dataclass(frozen=True, slots=True)
class HeldRun:
    """The hold of one owner on a run: what each of its writes is compared with."""

    tenant: str
    run_id: str
    owner: str
    fencing_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """What a run is begun with. `request_key` is the same in every sending of one request; None: it is never repeated.

    `fingerprint` (32 bytes) tells two requests of one key apart.
    """

    run_id: str
    agent: str
    requester: str
    roles: Sequence[str]
    strategy: Strategy
    request_key: str | None
    fingerprint: bytes
    request: Mapping[str, Any]
    metadata: Mapping[str, Any]
    title: str | None = None
    after_s: float = 0.0


def begin_thread(tenant: str, thread_id: str, metadata: Mapping[str, Any]) -> Query[bool]:
    """Begin a thread; False: there is one of that name."""
    params = {**_thread_of(tenant, thread_id), "metadata": json.dumps(metadata)}
    return Query("begin_thread", params, bool)


def thread(tenant: str, thread_id: str) -> Query[ChatThread | None]:
    """Read one thread."""
    return Query("thread", _thread_of(tenant, thread_id), _maybe_thread)


def threads(
    tenant: str,
    *,
    metadata: Mapping[str, Any] | None = None,
    ids: Sequence[str] | None = None,
    status: str | None = None,
    most: int = 10,
    skipped: int = 0,
) -> Query[list[ChatThread]]:
    """Read threads, by their last change: those whose metadata holds these values, if given."""
    params: dict[str, object] = {"tenant": tenant, "metadata": json.dumps(metadata or {}), "status": status}
    params |= {"ids": None if ids is None else list(ids), "most": most, "skipped": skipped}
    return Query("threads", params, lambda rows: [ChatThread(*row) for row in rows])


def count_threads(tenant: str, *, metadata: Mapping[str, Any] | None = None, status: str | None = None) -> Query[int]:
    """Count threads, up to `MOST_COUNTED`."""
    params = {"tenant": tenant, "metadata": json.dumps(metadata or {}), "status": status, "most": MOST_COUNTED}
    return Query("count_threads", params, lambda rows: int(rows[0][0]))


def change_thread(tenant: str, thread_id: str, metadata: Mapping[str, Any]) -> Query[ChatThread | None]:
    """Put values into a thread's metadata."""
    params = {**_thread_of(tenant, thread_id), "metadata": json.dumps(metadata)}
    return Query("change_thread", params, _maybe_thread)


def drop_thread(tenant: str, thread_id: str) -> Query[bool]:
    """Remove a thread with its runs; False: there is none, or one of its runs has not ended."""
    return Query("drop_thread", _thread_of(tenant, thread_id), bool)


def begin(tenant: str, thread_id: str, new: NewRun) -> Query[Run | None]:
    """Begin a run; None: the request was made before, the run would not be alone, `MOST_LIVE` of its thread have not
    ended, or there is no such thread.
    """
    params: dict[str, object] = {**_thread_of(tenant, thread_id), "run_id": new.run_id, "agent": new.agent}
    params |= {"requester": new.requester, "roles": list(new.roles), "strategy": new.strategy, "title": new.title}
    params |= {"request_key": new.request_key, "fingerprint": new.fingerprint}
    params |= {"request": json.dumps(new.request), "metadata": json.dumps(new.metadata)}
    return Query("begin_run", params | {"pause": timedelta(seconds=new.after_s), "most": MOST_LIVE}, _maybe_run)


def run_of_request(tenant: str, thread_id: str, request_key: str) -> Query[Run | None]:
    """Read the run that a request has begun."""
    return Query("run_of_request", {**_thread_of(tenant, thread_id), "request_key": request_key}, _maybe_run)


def run(tenant: str, thread_id: str, run_id: str) -> Query[Run | None]:
    """Read one run of a thread."""
    return Query("run", {**_thread_of(tenant, thread_id), "run_id": run_id}, _maybe_run)


def runs(
    tenant: str, thread_id: str, *, status: str | None = None, most: int = 10, skipped: int = 0
) -> Query[list[Run]]:
    """Read the runs of a thread, newest first."""
    params = {**_thread_of(tenant, thread_id), "status": status, "most": most, "skipped": skipped}
    return Query("runs", params, _runs)


def drop_run(tenant: str, thread_id: str, run_id: str) -> Query[bool]:
    """Remove a run that has ended; False: there is none, or it has not."""
    return Query("drop_run", {**_thread_of(tenant, thread_id), "run_id": run_id}, bool)


def take(owner: str, *, agents: Sequence[str], most: int, lease_s: float) -> Query[list[Run]]:
    """Take up at most `most` runs of these agents whose time has come, for the time of a lease."""
    params = {"owner": owner, "agents": list(agents), "most": most, "lease": timedelta(seconds=lease_s)}
    return Query("take", params, _runs)


def last_event(held: HeldRun) -> Query[RunEvent | None]:
    """Read the last thing that a run has said; None: it has said nothing."""
    return Query("last_event", _mine(held), lambda rows: RunEvent(*rows[0]) if rows else None)


def append(held: HeldRun, said: Sequence[tuple[str, str]], *, first: int, lease_s: float) -> Query[bool | None]:
    """Write down what a run says (name and JSON text, numbered from `first`), and prolong its lease; answers whether
    it is to be cancelled.
    """
    params = {**_mine(held), **_said(said, first), "lease": timedelta(seconds=lease_s)}
    return Query("append", params, lambda rows: bool(rows[0][0]) if rows else None)


def finish(
    held: HeldRun,
    status: Status,
    said: Sequence[tuple[str, str]],
    *,
    first: int,
    checkpoint_id: str | None = None,
    error: Mapping[str, Any] | None = None,
) -> Query[bool]:
    """End a run, with the last that it says; False: it is not the owner's any more."""
    ended = {"status": status, "checkpoint_id": checkpoint_id, "error": None if error is None else json.dumps(error)}
    return Query("finish", {**_mine(held), **_said(said, first), **ended}, bool)


def put_back(held: HeldRun, *, pause_s: float, counts: bool) -> Query[bool]:
    """Leave a run to whoever takes it up after a pause; `counts`: as one of its tries."""
    params = {**_mine(held), "pause": timedelta(seconds=pause_s), "uncounted": 0 if counts else 1}
    return Query("put_back", params, bool)


def cancel(tenant: str, thread_id: str, run_id: str, *, by: str) -> Query[Run | None]:
    """Ask for a run's end; one that nobody has begun has its end at once. None: there is none that has not ended."""
    return Query("cancel", {**_thread_of(tenant, thread_id), "run_id": run_id, "by": by}, _maybe_run)


def events(run: Run, *, after: int, most: int) -> Query[list[RunEvent]]:
    """Read what a run has said after a number."""
    params = {"tenant": run.tenant, "run_id": run.run_id, "after": after, "most": most}
    return Query("events", params, lambda rows: [RunEvent(*row) for row in rows])


def forget_events(*, kept: timedelta, most: int) -> Query[int]:
    """Forget what at most `most` runs have said that ended long ago; answers how many."""
    return Query("forget_events", {"kept": kept, "most": most}, len)


def on(database: Database) -> Database:
    """Return `database` as one that speaks these statements; the two share their connections."""
    return database.speaking("sql/runs.sql")


def held_by(owner: str, run: Run) -> HeldRun:
    """Return the hold on a run that was just taken up."""
    return HeldRun(run.tenant, run.run_id, owner, run.fencing_token)


def _thread_of(tenant: str, thread_id: str) -> dict[str, object]:
    return {"tenant": tenant, "thread_id": thread_id}


def _mine(held: HeldRun) -> dict[str, object]:
    return {"tenant": held.tenant, "run_id": held.run_id, "owner": held.owner, "token": held.fencing_token}


def _said(said: Sequence[tuple[str, str]], first: int) -> dict[str, object]:
    return {"events": [event for event, _ in said], "data": [data for _, data in said], "first": first}


def _maybe_thread(rows: Rows) -> ChatThread | None:
    return ChatThread(*rows[0]) if rows else None


def _maybe_run(rows: Rows) -> Run | None:
    found = _runs(rows)
    return found[0] if found else None


def _runs(rows: Rows) -> list[Run]:
    return [Run(*row) for row in rows]
