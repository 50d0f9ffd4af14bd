"""Tool calls with side effects, made safe: a Postgres ledger, committed before the call and settled after it.

The names below are the public ones. Each is loaded when it is first used, so that `import settled` is quick and
LangGraph is only imported where a graph is built.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from settled.graph.agent import build_agent
    from settled.graph.checkpointer import aopen_checkpointer, open_checkpointer
    from settled.graph.session import Session
    from settled.graph.turn import Reply
    from settled.state.canonical import Incidental, Ordered, Precision, Secret
    from settled.state.errors import (
        ContractError,
        IllegalTransition,
        InvalidArguments,
        LedgerFault,
        LedgerUnavailable,
        NotFound,
        NotYet,
        SettledError,
        ThreadBusy,
        Unguarded,
    )
    from settled.state.machine import State, Trigger
    from settled.state.model import Action, Event
    from settled.state.store import Ledger
    from settled.tools import http
    from settled.tools.backoff import Backoff
    from settled.tools.context import ActionContext, current_action
    from settled.tools.contract import ActionTool, Contract, ContractWarning, Inquiry, Remote, Risk, action
    from settled.tools.effects import Absent, Found, Inconclusive
    from settled.tools.messages import Code
    from settled.tools.outcome import Conflict, Ended, Forbidden, Invalid, Refused, Rejected, Succeeded, Unknown
    from settled.tools.perform import aperform, perform
    from settled.tools.result import Outcome
    from settled.tools.runner import World

_WHERE = {
    "settled.graph.agent": ("build_agent",),
    "settled.graph.checkpointer": ("aopen_checkpointer", "open_checkpointer"),
    "settled.graph.session": ("Session",),
    "settled.graph.turn": ("Reply",),
    "settled.state.canonical": ("Incidental", "Ordered", "Precision", "Secret"),
    "settled.state.errors": (
        *(
            "ContractError",
            "IllegalTransition",
            "InvalidArguments",
            "LedgerFault",
            "LedgerUnavailable",
            "NotFound",
            "NotYet",
        ),
        *("SettledError", "ThreadBusy", "Unguarded"),
    ),
    "settled.state.machine": ("State", "Trigger"),
    "settled.state.model": ("Action", "Event"),
    "settled.state.store": ("Ledger",),
    "settled.tools": ("http",),
    "settled.tools.backoff": ("Backoff",),
    "settled.tools.context": ("ActionContext", "current_action"),
    "settled.tools.contract": ("ActionTool", "Contract", "ContractWarning", "Inquiry", "Remote", "Risk", "action"),
    "settled.tools.effects": ("Absent", "Found", "Inconclusive"),
    "settled.tools.messages": ("Code",),
    "settled.tools.outcome": (
        *("Conflict", "Ended", "Forbidden", "Invalid", "Refused", "Rejected", "Succeeded", "Unknown"),
    ),
    "settled.tools.perform": ("aperform", "perform"),
    "settled.tools.result": ("Outcome",),
    "settled.tools.runner": ("World",),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "Absent",
    "Action",
    "ActionContext",
    "ActionTool",
    "Backoff",
    "Code",
    "Conflict",
    "Contract",
    "ContractError",
    "ContractWarning",
    "Ended",
    "Event",
    "Forbidden",
    "Found",
    "IllegalTransition",
    "Incidental",
    "Inconclusive",
    "Inquiry",
    "Invalid",
    "InvalidArguments",
    "Ledger",
    "LedgerFault",
    "LedgerUnavailable",
    "NotFound",
    "NotYet",
    "Ordered",
    "Outcome",
    "Precision",
    "Refused",
    "Rejected",
    "Remote",
    "Reply",
    "Risk",
    "Secret",
    "Session",
    "SettledError",
    "State",
    "Succeeded",
    "ThreadBusy",
    "Trigger",
    "Unguarded",
    "Unknown",
    "World",
    "action",
    "aopen_checkpointer",
    "aperform",
    "build_agent",
    "current_action",
    "http",
    "open_checkpointer",
    "perform",
]


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'settled' has no attribute {name!r}")
    if module == "settled.tools":
        return import_module(f"{module}.{name}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return [*globals(), *_MODULE_OF]
