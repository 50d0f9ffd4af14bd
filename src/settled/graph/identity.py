"""Whose call it is, and which: the configuration of a run and the place in the conversation become the names of the
ledger.

Owns the private configuration key under which a `Session` travels with a run, and the decision of a call. The model
has no say in any of it: tenant, thread and requester come from the configuration, never from a message.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from langchain_core.runnables import RunnableConfig

from settled.state.errors import ContractError
from settled.state.model import Action
from settled.tools.perform import MAX_NAME_CHARS, Options
from settled.tools.policy import Policy

SESSION_KEY = "__settled"
"""LangGraph keeps configuration keys that begin with `__` out of the metadata of checkpoints."""

CHECKPOINTER_KEY = "__pregel_checkpointer"
"""LangGraph's own: the checkpointer of a task's run, None where it has none (1.2.24)."""

OF_A_SESSION = re.compile(r"@[^/@]+/.")
"""What `thread_name` makes of a thread of some tenant: without its session it would be another conversation of another
tenant, whose ledger knows nothing of what was done. (A name that only begins with @ is anybody's.)
"""

SESSION_OWNER = "s:"
"""What the owners of a session's claims begin with: they were made under their thread's lock, so whoever holds it now
knows that they are over. The claims of anybody else (`perform`, an agent that is run without a session) say nothing of
the lock, and are waited for.
"""


@dataclass(frozen=True, slots=True)
class Handle:
    """What a session tells its runs.

    `is_orphan` says whether a running action's owner is known to be dead; `check_lock` raises ThreadBusy when the
    thread is the session's no more.
    """

    tenant: str
    thread_id: str
    requester: str | None = None
    language: str | None = None
    is_orphan: Callable[[Action], bool] = lambda _: False
    owner_prefix: str = ""
    check_lock: Callable[[], None] = lambda: None
    roles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """Where in the conversation a call was decided: the same after a crash, a retry, a sibling's resume or a replay.

    `occurrence` counts equal tool-call ids within the message, since providers repeat them. A call of no message is no
    decision: what it is the same as, its intent alone tells.
    """

    message_id: str
    tool_call_id: str
    occurrence: int = 0

    @property
    def parts(self) -> tuple[str, str, str]:
        """What the ledger hashes, together with tenant, thread, tool and fingerprint."""
        return self.message_id, self.tool_call_id, str(self.occurrence)


def handle_of(config: RunnableConfig, *, tenant: str, language: str | None) -> Handle:
    """Return the session of a run; a run without one belongs to the agent's own tenant and to the configured thread."""
    configurable: Mapping[str, Any] = config.get("configurable", {})
    handle = configurable.get(SESSION_KEY)
    if isinstance(handle, Handle):
        return handle
    thread_id = configurable.get("thread_id")
    if not isinstance(thread_id, str) or not thread_id:
        raise ContractError(
            "an agent with actions needs a thread: run it through a Session, or pass "
            '{"configurable": {"thread_id": "..."}}'
        )
    if OF_A_SESSION.match(thread_id):
        raise ContractError(
            f"the thread {thread_id!r} has the name of a tenant's: only a Session runs it, which knows whose it is"
        )
    return Handle(tenant, thread_id, language=language)


def check_lock(config: RunnableConfig) -> None:
    """Raise ThreadBusy when a session runs this, and its lock is lost. A node asks when it begins and before it ends.

    A node that raises leaves no checkpoint. One that returned would: as the thread's newest, it would hide everything
    that another session has written meanwhile.
    """
    handle = config.get("configurable", {}).get(SESSION_KEY)
    if isinstance(handle, Handle):
        handle.check_lock()


def can_pause(config: RunnableConfig) -> bool:
    """Whether a run can wait for a person and go on later: only with a checkpointer."""
    return bool(config.get("configurable", {}).get(CHECKPOINTER_KEY))


def options_of(
    handle: Handle, decision: Decision, language: str, policies: Mapping[str, Policy] = MappingProxyType({})
) -> Options:
    """Return who calls, and how, for the ledger."""
    return Options(
        thread_id=handle.thread_id,
        tenant=handle.tenant,
        decision=decision.parts if decision.message_id else None,
        requester=handle.requester,
        correlation_id=correlation_of(decision),
        language=language,
        is_orphan=handle.is_orphan,
        owner_prefix=handle.owner_prefix,
        roles=handle.roles,
        policies=policies,
    )


def correlation_of(decision: Decision) -> str:
    """Return by which name an action's row speaks of the call that began it."""
    return f"{decision.message_id}/{decision.tool_call_id}"


def thread_name(tenant: str, thread_id: str) -> str:
    """Return a thread's name for the checkpointer, which knows no tenants: no two tenants' threads share one."""
    for field, value in (("tenant", tenant), ("thread_id", thread_id)):
        if not 0 < len(value) <= MAX_NAME_CHARS or not value.isprintable():
            raise ContractError(f"{field} must be 1 to {MAX_NAME_CHARS} printable characters")
    if tenant == "default" and not thread_id.startswith("@"):
        return thread_id
    return f"@{quote(tenant, safe='')}/{thread_id}"
