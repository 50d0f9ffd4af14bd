"""Starts the demo's processes, talks to them by lines, and ends them.

A child gets nothing by its command line that others should not see: the database's URL goes through the environment or
the pipe. Every child ends when this process dies, whatever kills it: the pipe closes, or its parent's id changes.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from settled.demo.service import SECRET
from settled.state.errors import SettledError

START_S = 60.0
"""A process of the demo is up in two seconds; a loaded machine is given time."""


RUN_S = 120.0
"""A scenario takes seconds; a chat model over the network may take a minute."""


class DemoFailed(SettledError):
    """A process of the demo did not do its part; the sentence holds its last words."""


class Child:
    """One process of the demo: `python -m module`. Use it in a `with`."""

    def __init__(self, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self.name = module
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed in __exit__; a pipe that nobody reads would fill)
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.ended_at: float | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self.process.stdout.close()
        self.process.wait()
        self.ended_at = time.time()
        self._lines.put(None)

    def tell(self, value: object) -> None:
        """Send one line of JSON."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def hear(self, timeout_s: float = START_S) -> str | None:
        """Return the next line; None when the process has ended. Raises DemoFailed when nothing comes."""
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise DemoFailed(f"{self.name} said nothing for {timeout_s:g} s") from None
        return None if line is None else line.rstrip("\n")

    def expect(self, timeout_s: float = START_S) -> str:
        """Return the next line; DemoFailed, with the process's last words, when it has ended instead."""
        line = self.hear(timeout_s)
        if line is None:
            raise DemoFailed(f"{self.name} ended by itself ({self.process.returncode}): {self.last_words()}")
        return line

    def die(self) -> None:
        """End it by SIGKILL, and wait until it is gone."""
        self.process.kill()
        while self.hear() is not None:
            pass

    def freeze(self) -> None:
        """Stop it in the middle of what it does (SIGSTOP)."""
        self.process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Let it go on where it was frozen (SIGCONT)."""
        self.process.send_signal(signal.SIGCONT)

    def end(self, timeout_s: float = START_S) -> str:
        """Ask it to end (SIGTERM), and return what it said until then."""
        self.process.terminate()
        said = []
        while (line := self.hear(timeout_s)) is not None:
            said.append(line)
        return "\n".join(said)

    def answer(self, timeout_s: float = START_S) -> Any:
        """Return the next line as JSON."""
        return json.loads(self.expect(timeout_s))

    def last_words(self) -> str:
        """Return the line of its standard error that says why it ended; the place in the code does not."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        telling = [line for line in lines if line.strip() and not line.startswith((" ", "During "))]
        return telling[-1] if telling else "without a word"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        self.wake()  # one that is frozen ends when it is woken
        try:
            self.process.wait(timeout=3)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self._errors):
            if stream is not None:
                stream.close()


class Service(Child):
    """The ticket service on a free port; `url` is where it answers."""

    def __init__(self, database_url: str, faults: Mapping[str, Any], *, secret: str | None = None) -> None:
        """Whoever has the `secret` may send it webhooks."""
        arguments = ("--port", "0", "--parent", str(os.getpid()), "--faults", json.dumps(faults))
        environment = {"SETTLED_DATABASE_URL": database_url, **({SECRET: secret} if secret else {})}
        super().__init__("settled.demo.service", *arguments, environment=environment)

    def log(self) -> Sequence[Mapping[str, Any]]:
        """Return the requests that it has seen."""
        with urllib.request.urlopen(f"{self.url}/log", timeout=10) as answer:
            seen: Sequence[Mapping[str, Any]] = json.load(answer)
        return seen

    @property
    def url(self) -> str:
        """Wait until it listens, and return its address."""
        if not hasattr(self, "_url"):
            self._url = self.expect().rpartition(" ")[2]
        return self._url
