"""One `settled worker` process of the demo: `python -m settled.demo.worker OPTION…`, with the options of the command.

It is the command itself, and adds two things: it says `ready`, and it ends when its parent is gone, also while it is
frozen.
"""

import ctypes
import os
import signal
import sys
import threading

from settled.demo import refunds
from settled.runtime.cli import app


def main() -> None:
    """Be the worker that the command line asks for."""
    _end_with_parent()
    print("ready", flush=True)
    app(["worker", "--lease", str(refunds.LEASE_S), *sys.argv[1:]])  # ten seconds are long for whoever is watching


def _end_with_parent() -> None:
    """By the pipe; and by a signal where the system can send one, since who is frozen hears nothing of a pipe."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
    threading.Thread(target=_listen, daemon=True).start()


PARENT_DEATH_SIGNAL = 1
"""prctl(2), PR_SET_PDEATHSIG."""


def _listen() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
