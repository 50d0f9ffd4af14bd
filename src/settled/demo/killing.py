"""Dying at an exact instant of the protocol, or of a dispatcher."""

import os
import signal
from collections.abc import Callable

from settled.tools.effects import Ask


def killing(point: str) -> Callable[[object, str], None]:
    """Return a watch that kills this process at `point`: `before plan`, `after invoke`, `before succeed` …

    A statement is known by the beginning of its name, for the ledger has more than one for some steps.
    """

    def watch(effect: object, when: str) -> None:
        name = effect.query.name if isinstance(effect, Ask) else type(effect).__name__.lower()
        if f"{when} {name}".startswith(point):
            os.kill(os.getpid(), signal.SIGKILL)

    return watch
