"""The child's side of a crash matrix: carries out a scenario in a process of its own, and dies where it is told to.

Runs in a process that a fork server made (`multiprocessing`), so that a start costs milliseconds. It looks on at every
runner of the process, whichever `World` its caller passed, so a scenario needs no change for it.
"""

import asyncio
import inspect
import os
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from typing import Any

from settled.state.errors import ContractError
from settled.state.store import Ledger
from settled.tools.effects import Ask, Effect, Invoke, Probe
from settled.tools.runner import Runner

MAX_WORDS = 4000
"""The end of a traceback says why; the rest is not needed in a table."""


@dataclass(frozen=True)
class Scene:
    """Where a scenario takes place: what it is given.

    `name` is another one for each crash point and the same when it is restarted. Nobody else uses the database or the
    remote side. SETTLED_DATABASE_URL is the same database, for programs that open their ledger by themselves.
    """

    name: str
    database_url: str
    remote_url: str
    later_s: float = 0.0

    def ledger(self, **options: Any) -> Ledger:
        """Open the ledger, as `Ledger.connect` does. After a crash its clock is ahead of the real one, by as much as is
        left of the dead process's lease: nobody has to wait for that.
        """
        ahead = timedelta(seconds=self.later_s)
        return Ledger.connect(self.database_url, **{"clock": lambda: datetime.now(UTC) + ahead, **options})


Scenario = Callable[[Scene], object]


@dataclass(frozen=True)
class Died:
    """Told before the death: the crash point."""

    point: str


@dataclass(frozen=True)
class Finished:
    """Told at the end: what the scenario returned (its text, where it cannot be sent), and the instants it met."""

    said: Any
    points: tuple[str, ...]


@dataclass(frozen=True)
class Raised:
    """Told at an end by an exception: the end of its traceback."""

    words: str

    @property
    def reason(self) -> str:
        """The line that says what was raised."""
        return self.words.strip().splitlines()[-1]


@dataclass
class Instants:
    """Counts the instants that the process meets, and ends it at number `die_at`, however many threads there are."""

    die_at: int | None
    told: Connection
    points: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def meet(self, name: str) -> None:
        """Note an instant, or die at it. One that comes again gets a number."""
        with self.lock:
            self.points.append(numbered(name, self.seen))
            if len(self.points) - 1 == self.die_at:
                self.told.send(Died(self.points[-1]))
                os.kill(os.getpid(), signal.SIGKILL)
                signal.pause()


_instants: Instants | None = None
"""Those of this process, where it is a child of a crash matrix."""


def crash_point(name: str) -> None:
    """Name an instant of your own code at which the crash matrix kills the process too; elsewhere nothing happens."""
    if _instants is not None:
        _instants.meet(f"at {name}")


def numbered(name: str, seen: Counter[str]) -> str:
    """Return a name that nobody has had yet: `before sleep`, `before sleep (2)`."""
    seen[name] += 1
    return name if seen[name] == 1 else f"{name} ({seen[name]})"


def name_of(effect: Effect) -> str:
    """Return what an effect is called in a report: a statement of the ledger, or what is called and of which tool."""
    match effect:
        case Ask(query=query):
            return query.name
        case Invoke(action=action) | Probe(action=action):
            return f"{type(effect).__name__.lower()} {action.tool}"
        case _:
            return type(effect).__name__.lower()


def play(
    scenario: Scenario, scene: Scene, die_at: int | None, environment: Mapping[str, str], told: Connection
) -> None:
    """Carry out a scenario and tell what came of it; the process ends here, by SIGKILL at instant number `die_at`."""
    global _instants
    os.environ.clear()
    os.environ.update(environment, SETTLED_DATABASE_URL=scene.database_url)
    _instants = instants = Instants(die_at, told)
    _look_on(lambda effect, when: instants.meet(f"{when} {name_of(effect)}"))
    try:
        _tell(told, Finished(_carried_out(scenario, scene), tuple(instants.points)))
    except BaseException:  # noqa: BLE001 - whatever ends a process is told to the one that waits for it
        told.send(Raised(traceback.format_exc()[-MAX_WORDS:]))
    os._exit(0)  # bodies that are still under way die with it, as in any process that ends


def _carried_out(scenario: Scenario, scene: Scene) -> object:
    returned = scenario(scene)
    if inspect.iscoroutine(returned):
        return asyncio.run(returned)
    if inspect.isawaitable(returned) or inspect.isgenerator(returned):
        raise ContractError(f"the scenario returned a {type(returned).__name__}, which had not run")
    return returned


def _tell(told: Connection, end: Finished) -> None:
    try:
        told.send(end)
    except Exception:  # noqa: BLE001 - pickling calls foreign code, which may raise anything
        told.send(Finished(repr(end.said), end.points))


def _look_on(meet: Callable[[Effect, str], None]) -> None:
    """Let `meet` see every effect of this process, before whoever looks on for the caller."""
    look = Runner._watch

    def both(self: Runner, effect: Effect, when: str) -> None:
        meet(effect, when)
        look(self, effect, when)

    Runner._watch = both  # type: ignore[method-assign]
