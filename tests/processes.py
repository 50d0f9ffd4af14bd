"""Child processes of tests: started by a fork server (`children/forker.py`), so that each costs milliseconds."""

import atexit
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from settled import Ledger, Outcome, perform

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src"


def freeze_here() -> None:
    """Stop this process by SIGSTOP before the calling thread does anything more: a signal to the process as a whole
    may be taken by another thread while this one goes on.
    """
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


class Child:
    """One child process. `pid` is real: freeze it, kill it; `status` is its exit code, negative for a signal."""

    def __init__(self, job: int) -> None:
        self.job = job
        self.lines: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.pid = 0
        self.said: Any = None
        self.failed: str | None = None
        self._status: int | None = None

    def started(self, timeout_s: float = 30.0) -> "Child":
        self.pid = self.lines.get(timeout=timeout_s)["pid"]
        return self

    def says(self, timeout_s: float = 30.0) -> Any:
        """Wait for what it says before its end."""
        line = self.lines.get(timeout=timeout_s)
        assert "said" in line, f"it ended: {line}"
        return line["said"]

    def status(self, timeout_s: float = 30.0) -> int:
        """Wait for its end and return its exit code, negative for a signal."""
        while self._status is None:
            line = self.lines.get(timeout=timeout_s)
            self.said = line.get("said", self.said)
            self.failed = line.get("failed", self.failed)
            self._status = line.get("status")
        return self._status

    def result(self, timeout_s: float = 30.0) -> Any:
        """Wait for its end and return what it said."""
        status = self.status(timeout_s)
        assert status == 0, self.failed or f"the child ended with {status}"
        return self.said

    def wait_until_frozen(self, timeout_s: float = 20.0) -> None:
        """Wait until it has stopped itself by SIGSTOP."""
        end = time.monotonic() + timeout_s
        while _state(self.pid) != "T":
            assert time.monotonic() < end, f"the child is {_state(self.pid)!r}, not frozen"
            time.sleep(0.01)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        self.wait_until_frozen()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


class Forker:
    """The fork server's client."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (HERE / "children", HERE, SOURCE)))}
        command = [sys.executable, str(HERE / "children" / "forker.py")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self._children: list[Child] = []
        self._lock = threading.Lock()
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()

    def start(self, function: str, /, **args: Any) -> Child:
        """Start `jobs.<function>(**args)` in a new process."""
        assert self._process.stdin is not None
        with self._lock:
            child = Child(len(self._children))
            self._children.append(child)
            line = {"job": child.job, "function": function, "args": args}
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()
        return child.started()

    def close(self) -> None:
        for child in self._children:
            if child.pid and _state(child.pid) == "T":
                os.kill(child.pid, signal.SIGKILL)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
        assert self._process.stdout is not None
        self._hearing.join(10)
        self._process.stdout.close()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            heard = json.loads(line)
            self._children[heard["job"]].lines.put(heard)


def start(function: str, /, **args: Any) -> Child:
    """Start `jobs.<function>(**args)` in a new process; the fork server is started by the first one."""
    return _forker().start(function, **args)


@cache
def _forker() -> Forker:
    opened = Forker()
    atexit.register(opened.close)
    return opened


def at_once(
    ledger: Ledger,
    tool: object,
    thread_id: str,
    arguments: Mapping[str, object],
    threads: int,
    at: float,
    wait_s: float,
) -> list[Outcome]:
    """Make one call in several threads at one instant and return their outcomes; a thread that raised is missing."""
    ended: list[Outcome] = []
    start = threading.Barrier(threads)

    def one() -> None:
        start.wait(30)
        time.sleep(max(at - time.time(), 0))
        ended.append(perform(tool, arguments, ledger=ledger, thread_id=thread_id, wait_s=wait_s))

    callers = [threading.Thread(target=one) for _ in range(threads)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    return ended


def _state(pid: int) -> str:
    """The letter of a process's state, as ps shows it; empty for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return ""
