"""Calls an author's function, sync or async, and lets go of it when its time is up.

A thread cannot be ended from outside, and a request that was sent cannot be taken back: so a body that overruns its
timeout goes on alone, and its future tells when it ends. Each body gets a daemon thread (a hung one never keeps the
process from ending); idle threads are used again, and their number is bounded by the number of callers.
"""

import asyncio
import inspect
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any


def start(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
    """Call a function in another thread with this context; an async one gets an event loop of its own there."""
    future: Future[Any] = Future()
    call = partial(copy_context().run, _call, function, args, kwargs)
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
        worker.start()
    worker.jobs.put((future, call))
    return future


IDLE_S = 10.0
"""A thread that has had nothing to do for this long ends."""


class _Worker(threading.Thread):
    """A daemon thread that carries out one call after another. (An executor's threads would be waited for at exit.)"""

    def __init__(self) -> None:
        super().__init__(name="settled-body", daemon=True)
        self.jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()

    def run(self) -> None:
        while True:
            try:
                future, call = self.jobs.get(timeout=IDLE_S)
            except Empty:
                try:
                    _idle.remove(self)
                    return
                except ValueError:  # it was taken at this moment: a job is on its way
                    continue
            self._carry_out(future, call)
            del future, call
            _idle.append(self)

    @staticmethod
    def _carry_out(future: "Future[Any]", call: Callable[[], Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return  # let go before it began; from here on a caller who lets go cannot mark it as cancelled
        try:
            result = call()
        except StopIteration as error:  # a future cannot carry one
            future.set_exception(RuntimeError("the body raised StopIteration").with_traceback(error.__traceback__))
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller, who classifies it
            future.set_exception(error)
        else:
            future.set_result(result)


_idle: deque[_Worker] = deque()
if hasattr(os, "register_at_fork"):  # a forked child has the list, but none of its threads
    os.register_at_fork(after_in_child=_idle.clear)


async def astart(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function from an event loop: an async one in it, a sync one in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    return await asyncio.wrap_future(start(function, *args, **kwargs))


def in_own_thread() -> bool:
    """Whether this thread is one that carries out bodies: an event loop in it serves one of them alone."""
    return isinstance(threading.current_thread(), _Worker)


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    returned = function(*args, **kwargs)
    return asyncio.run(_await(returned)) if inspect.isawaitable(returned) else returned


async def _await(awaitable: Any) -> Any:
    return await awaitable
