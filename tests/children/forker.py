"""Starts child processes quickly: imports what they need once, then forks for each job that a line of JSON asks for.

It has one thread and no connection, so a fork of it is as good as a fresh interpreter. Run by `tests/processes.py`:
stdin takes `{"job", "function", "args"}`, the function one of `jobs` or "module.function"; stdout tells
`{"job", "pid"}`, `{"job", "said"}` and `{"job", "status"}`.
"""

import contextlib
import importlib
import json
import os
import select
import sys
import traceback
from collections.abc import Callable

from telling import is_job, say, tell


def found(function: str) -> Callable[..., object]:
    module, _, name = function.rpartition(".")
    wanted: Callable[..., object] = getattr(importlib.import_module(module or "jobs"), name)
    return wanted


def carry_out(job: int, function: str, args: dict[str, object]) -> None:
    code = 1
    try:
        is_job(job)
        say(found(function)(**args))
        code = 0
    except BaseException:
        tell(job=job, failed=traceback.format_exc()[-3000:])
    os._exit(code)


def main() -> None:
    running: dict[int, int] = {}
    unread = b""
    while True:
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            tell(job=running.pop(pid), status=os.waitstatus_to_exitcode(status))
        ready, _, _ = select.select([0], [], [], 0.02)
        if not ready:
            continue
        read = os.read(0, 65536)
        if not read:
            return
        *lines, unread = (unread + read).split(b"\n")
        for line in map(json.loads, lines):
            with contextlib.suppress(Exception):  # the child tells what is wrong with it
                found(line["function"])
            pid = os.fork()
            if pid == 0:
                carry_out(line["job"], line["function"], line["args"])
            running[pid] = line["job"]
            tell(job=line["job"], pid=pid)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        main()
    sys.exit(0)
