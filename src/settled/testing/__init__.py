"""The fault kit: for users who test their own tools as hard as this project tests itself.

The names below are the public ones, each loaded when it is first used: pytest imports the plugin in every run of
whoever has `settled` installed, also where nothing of it is used. The page is docs/testing.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from settled.testing.clock import FastClock
    from settled.testing.databases import Databases, open_databases
    from settled.testing.faults import (
        ABSENT,
        COMMIT_AND_500,
        COMMIT_AND_DROP,
        DROP_BEFORE_COMMIT,
        FINE,
        TRUNCATE,
        Fault,
        commit_and_delay,
        commit_later,
        delay_before_commit,
        refuse,
        wrong,
    )
    from settled.testing.matrix import crash_matrix
    from settled.testing.models import ScriptedModel, call_tool, calling, lying, once, reworded, twice
    from settled.testing.remote import FaultyRemote, Seen
    from settled.testing.report import Crash, CrashReport, CrashRow
    from settled.testing.requests import Reply, Request
    from settled.testing.scene import Scene, crash_point
    from settled.testing.store import RemoteEffect

_WHERE = {
    "clock": ("FastClock",),
    "databases": ("Databases", "open_databases"),
    "faults": (
        "ABSENT", "COMMIT_AND_500", "COMMIT_AND_DROP", "DROP_BEFORE_COMMIT", "FINE", "TRUNCATE", "Fault",
        "commit_and_delay", "commit_later", "delay_before_commit", "refuse", "wrong",
    ),
    "matrix": ("crash_matrix",),
    "models": ("ScriptedModel", "call_tool", "calling", "lying", "once", "reworded", "twice"),
    "remote": ("FaultyRemote", "Seen"),
    "report": ("Crash", "CrashReport", "CrashRow"),
    "requests": ("Reply", "Request"),
    "scene": ("Scene", "crash_point"),
    "store": ("RemoteEffect",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "ABSENT",
    "COMMIT_AND_500",
    "COMMIT_AND_DROP",
    "DROP_BEFORE_COMMIT",
    "FINE",
    "TRUNCATE",
    "Crash",
    "CrashReport",
    "CrashRow",
    "Databases",
    "FastClock",
    "Fault",
    "FaultyRemote",
    "RemoteEffect",
    "Reply",
    "Request",
    "Scene",
    "ScriptedModel",
    "Seen",
    "call_tool",
    "calling",
    "commit_and_delay",
    "commit_later",
    "crash_matrix",
    "crash_point",
    "delay_before_commit",
    "lying",
    "once",
    "open_databases",
    "refuse",
    "reworded",
    "twice",
    "wrong",
]


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'settled.testing' has no attribute {name!r}")
    return getattr(import_module(f"settled.testing.{module}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_MODULE_OF]
