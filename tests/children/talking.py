"""What a child process of the tests of sessions can be asked to do: talk in a thread, and die at a chosen instant."""

import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from processes import freeze_here
from scripted import Remote
from settled import Approve, Ledger, Session, open_checkpointer, over
from talks import CALLS, OURS, agent_of, say

MAX_KILLS = 6


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def talk(*, database_url: str, kind: str, die_in: str, text: str = "please", message_id: str = "m1") -> None:
    """Send a message, and die: in the body of the last call, or when its result or the step's checkpoint is saved."""
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        far = Remote(database_url)
        acted: list[int] = []

        def during(n: int) -> None:
            acted.append(n)
            if die_in == "body" and n == CALLS - 1:
                _wait(lambda: far.count() >= CALLS)
                time.sleep(0.3)  # the results of the other two are saved by then
                die()
            if die_in == "freeze" and n == 0:
                freeze_here()

        _dying(saver, die_in, acted)
        say(agent_of(kind, ledger, saver, during), ledger, kind, text, message_id)


def _wait(is_there: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not is_there():
        assert time.monotonic() < end
        time.sleep(0.01)


def _dying(saver: Any, die_in: str, acted: list[int]) -> None:
    """Let a process die in the saver's `put_writes` or `put`, once all bodies have acted. LangGraph does not order the
    two: here the one in which nobody dies is the slower one, or has been carried out.
    """
    if die_in not in ("put_writes", "put"):
        return

    def dying(name: str, real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if len(acted) >= CALLS and name == "put":
                time.sleep(0.3 if die_in == "put" else 10)
            if len(acted) >= CALLS and name == die_in:
                die()
            return real(*args, **kwargs)

        return call

    for name in ("put_writes", "put"):
        setattr(saver, name, dying(name, getattr(saver, name)))


def survive(*, database_url: str, thread_id: str, turns: int, seed: int) -> int:
    """Hold a conversation in one process after the other, each of which dies at a random instant, but for the last;
    tells how many died.
    """
    chance = random.Random(seed)
    kills = 0
    for die_after_s in [*(chance.uniform(0, 0.09 * turns) for _ in range(chance.randint(2, MAX_KILLS))), None]:
        pid = os.fork()
        if pid == 0:
            _in_child(database_url, thread_id, turns, die_after_s)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status in (0, -signal.SIGKILL), status
        kills += status != 0
    assert status == 0
    return kills


def _in_child(database_url: str, thread_id: str, turns: int, die_after_s: float | None) -> None:
    if die_after_s is not None:
        dying = threading.Timer(die_after_s, die)
        dying.daemon = True
        dying.start()
    code = 1
    try:
        converse(database_url, thread_id, turns)
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def converse(database_url: str, thread_id: str, turns: int) -> None:
    """Say what a client says, from the first message on, wherever the thread stands; decide what waits."""
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        agent = agent_of(OURS, ledger, saver, approval=over("n", 1), timeout=0.5, settle_window=0.5)
        session = Session(agent, ledger=ledger, thread_id=thread_id)
        for turn in range(turns):
            reply = session.send(f"turn {turn}", message_id=f"m{turn}")
            for one in reply.approvals:
                reply = session.decide(one["action_id"], Approve(), by="sue", fingerprint=one["fingerprint"])
            if not reply.is_finished:
                reply = session.resume()
            assert reply.is_finished, reply
