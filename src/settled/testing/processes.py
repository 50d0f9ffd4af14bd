"""One run of a scenario in a process of its own, which dies where it is told to.

A process dies by its own hand at an instant of the protocol (`settled.testing.scene`), or by this one's at the moment
when the remote side carries out one of its writes: in the middle of a tool's body.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any, Literal

from settled.testing.remote import FaultyRemote
from settled.testing.requests import Request
from settled.testing.scene import Died, Finished, Raised, Scenario, Scene, play

END_S = 5.0
"""A process that has told its end exits in milliseconds."""

End = Died | Finished | Raised


@dataclass(frozen=True)
class Point:
    """Where a process dies: at its instant number `number`, or before or after its write number `number` is carried
    out at the remote side.
    """

    name: str
    number: int
    write: Literal["before", "after"] | None = None


def run(scenario: Scenario, scene: Scene, far: FaultyRemote, point: Point | None, timeout_s: float) -> End:
    """Carry out a scenario in a process of its own, and return what came of it; one that hangs is killed."""
    heard, told = multiprocessing.Pipe(duplex=False)
    die_at = point.number if point is not None and point.write is None else None
    process = _process(scenario, scene, die_at, dict(os.environ), told)
    with _dying_in_a_write(process, far, point) as started:
        process.start()
        started()
        told.close()
        try:
            ended = _heard(heard, timeout_s)
            if not isinstance(ended, Raised):
                process.join(END_S)
        finally:
            process.kill()
            process.join()
            heard.close()
    return ended or _without_a_word(process, point)


def _heard(heard: Connection, timeout_s: float) -> End | None:
    """Return what a process has told; None for one that ended without a word."""
    if not heard.poll(timeout_s):
        return Raised(f"it was not over after {timeout_s:g} s")
    try:
        ended: End = heard.recv()
    except EOFError:
        return None
    return ended


def _without_a_word(process: ForkServerProcess, point: Point | None) -> End:
    """Return what it means that a process told nothing: it was killed in a write, or ended in a way of its own."""
    if point is not None and point.write is not None and process.exitcode == -signal.SIGKILL:
        return Died(point.name)
    return Raised(f"its process ended by itself, with {process.exitcode}")


def _process(*args: Any) -> ForkServerProcess:
    """Return a process of the fork server, which has imported the library once. It has one thread and no connection,
    so a fork of it is as good as a fresh interpreter.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "settled.testing.preloaded"])
    return context.Process(target=play, args=args)


@contextmanager
def _dying_in_a_write(
    process: ForkServerProcess, far: FaultyRemote, point: Point | None
) -> Generator[Callable[[], None]]:
    """Let a process die when the remote side carries out the write that the point names; yields what to call once the
    process has its number.
    """
    has_started = threading.Event()

    def watch(request: Request, when: str) -> None:
        if point is not None and request.method != "GET" and (request.number, when) == (point.number, point.write):
            has_started.wait(END_S)
            assert process.pid is not None, "it has sent a request, so it has been started"
            with suppress(ProcessLookupError):  # it did not wait for the answer, and has ended meanwhile
                os.kill(process.pid, signal.SIGKILL)

    far.watch = watch
    try:
        yield has_started.set
    finally:
        far.watch = None
