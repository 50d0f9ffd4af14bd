"""Plays the scenario of the workers: a process leaves many actions open, and two `settled worker` processes look after
them, of which one is frozen and woken, and the other one killed.

This module only says when, and looks into the ledger for that; the workers hear nothing of it.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

from settled.demo.processes import Child, DemoFailed, Service
from settled.demo.refunds import SERVICE_URL
from settled.demo.scenarios import TENANT
from settled.demo.story import Mark, Story, Worked, is_left_open
from settled.state import ledger as operations
from settled.state.machine import State
from settled.state.model import Action
from settled.state.store import Ledger

OPTIONS = (
    *("--tools", "settled.demo.refunds:tools", "--scan-every", "0.2", "--concurrency", "4"),
    *("--no-queue", "--json"),
)
"""Few looks at once, so that neither worker takes up all that there is; the scan alone finds what is open."""

PATIENCE_S = 90.0
"""A quiet machine needs ten seconds."""

LOOK_AGAIN_S = 0.03

SETTLED_DOWN_S = 0.1
"""What a frozen worker has sent to the ledger is written down by then."""


@dataclass(frozen=True)
class Crew:
    """Who plays: the process that leaves everything, and the workers."""

    story: Story
    ledger: Ledger
    service: Service
    leaver: Child
    workers: Sequence[Child]
    order: Mapping[str, Any]

    @classmethod
    def hired(
        cls,
        stack: ExitStack,
        story: Story,
        ledger: Ledger,
        service: Service,
        environment: Mapping[str, str],
        *,
        thread_id: str,
        user: str,
    ) -> Self:
        """Start the processes; each is ready when this returns."""
        at = {**environment, SERVICE_URL: service.url}
        count = story.scenario.workers
        workers = [stack.enter_context(Child("settled.demo.worker", *OPTIONS, environment=at)) for _ in range(count)]
        leaver = stack.enter_context(Child("settled.demo.leaving", environment=at))
        for child in (*workers, leaver):
            child.expect()
        left = story.scenario.left_open
        order = {"service_url": service.url, "thread_id": thread_id, "user": user, "count": left}
        return cls(story, ledger, service, leaver, workers, order)

    def mark(self, text: str, detail: str = "") -> None:
        """Write down what somebody does or suffers, and how the actions stand then."""
        standing = Counter(str(action.state) for action in self.actions())
        counts = ", ".join(f"{count} {state}" for state, count in sorted(standing.items()))
        self.story.marks.append(Mark(time.time(), text, f"{detail}: {counts}" if detail else counts))

    def actions(self) -> Sequence[Action]:
        """Return the actions as they stand now."""
        return self.ledger.run(operations.actions(TENANT, thread_id=self.order["thread_id"]))

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        """Look until something is so; DemoFailed when it does not come about."""
        end = time.monotonic() + PATIENCE_S
        while not is_so():
            if time.monotonic() > end:
                raise DemoFailed(f"waited {PATIENCE_S:g} s in vain: {what}")
            time.sleep(LOOK_AGAIN_S)


def play_crew(crew: Crew) -> None:
    """Leave everything open, and let the workers look after it; each is called by the number that it is hired as."""
    names = {worker: f"worker {number}" for number, worker in enumerate(crew.workers, 1)}
    _leave(crew)
    frozen, held = _frozen(crew)
    frozen_at = time.monotonic()
    crew.mark(f"{names[frozen]} is frozen (SIGSTOP)", f"with {len(held)} in its hands")
    (other,) = (worker for worker in crew.workers if worker is not frozen)
    crew.wait_until(lambda: held > _in_hand(crew, frozen), f"{names[other]} took nothing over")
    other.die()
    crew.mark(f"{names[other]} dies (SIGKILL)", "while it takes that over")
    frozen.wake()
    frozen_s = time.monotonic() - frozen_at
    crew.mark(f"{names[frozen]} is woken (SIGCONT)")
    crew.wait_until(lambda: not any(map(is_left_open, crew.actions())), "something was left open")
    crew.mark("nothing is open any more")
    ends = {
        frozen: Worked(names[frozen], "ended when it was asked to", round(frozen_s, 3), json.loads(frozen.end())),
        other: Worked(names[other], "killed"),
    }
    crew.story.workers = [ends[worker] for worker in crew.workers]


def _frozen(crew: Crew) -> tuple[Child, set[str]]:
    """Freeze a worker that is sending something, and return it with the actions that it has in its hands."""
    while True:
        crew.wait_until(lambda: any(_in_hand(crew, worker) for worker in crew.workers), "no worker sent anything")
        worker = max(crew.workers, key=lambda one: len(_in_hand(crew, one)))
        worker.freeze()
        time.sleep(SETTLED_DOWN_S)
        if held := _in_hand(crew, worker):
            return worker, held
        worker.wake()


def _leave(crew: Crew) -> None:
    """Let a process begin all actions, and kill it when each request has come to the service."""
    count = crew.story.scenario.left_open
    crew.leaver.tell(crew.order)
    crew.story.marks.append(Mark(time.time(), f"a process begins {count} refunds"))
    crew.wait_until(lambda: _sent(crew) >= count, "not every refund was sent")
    crew.leaver.die()
    crew.mark("it dies (SIGKILL)")


def _in_hand(crew: Crew, worker: Child) -> set[str]:
    """Return the actions that a worker is sending: their owner's name begins with the id of its process."""
    mine = f"{worker.process.pid}-"
    return {one.id for one in crew.actions() if one.state is State.RUNNING and (one.owner or "").startswith(mine)}


def _sent(crew: Crew) -> int:
    return sum(seen["method"] == "POST" for seen in crew.service.log())
