"""What the body of a tool may know about the action it carries out.

Owns one context variable, set by the runner around each attempt and each query. It is passed by context and never read
from module globals, so that two threads or tasks never see each other's action.
"""

from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime

from settled.state.errors import Unguarded


@dataclass(slots=True)
class ActionContext:
    """The action that the running code belongs to.

    Instants are aware datetimes of the database's clock; `*_monotonic` are this process's `time.monotonic()` seconds.
    `sent` collects the write requests that went out in this attempt (the HTTP helper appends to it), and
    `lease_monotonic` moves when the lease is renewed; the rest is for reading.
    """

    action_id: str
    tool: str
    idempotency_key: str
    fingerprint: str
    attempt: int
    deadline_at: datetime
    correlation_id: str | None
    tenant: str
    thread_id: str
    lease_monotonic: float
    deadline_monotonic: float
    sent: list[str] = field(default_factory=list)


LOGGED = ("action_id", "correlation_id", "tenant", "thread_id", "tool", "attempt")
"""What a line of the log says of the action that it is about."""


def named_in_logs(context: ActionContext | None) -> dict[str, object]:
    """Return what a log record is given (`extra=`), or None for each where there is no action."""
    return {name: getattr(context, name, None) for name in LOGGED}


CURRENT: ContextVar[ActionContext | None] = ContextVar("settled_action", default=None)


def current_action() -> ActionContext:
    """Return the action that this code runs in; raise Unguarded outside one."""
    context = CURRENT.get()
    if context is None:
        raise Unguarded(
            "current_action() was called outside an action: only the body or the query of an @action has one"
        )
    return context
