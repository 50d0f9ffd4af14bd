"""Kills a scenario's process at every instant at which the protocol acts, restarts it, and counts effects.

Owns the order of one crash point: a fresh database and remote side, a real child process, SIGKILL, what the ledger
holds then, restarts until nothing is open, and the judgement. The scenario and the tool need not know of it.

The subtle thing is time. A restarted process would wait for the lease of the dead one; here the restart's ledger clock
is moved ahead by that much instead (`Scene.ledger`), and the remote side with it. That is only sound once nothing is
under way at the remote side any more, so that is waited for. A scenario that opens its ledger by itself goes by the
real clock, and its leases are waited for.
"""

import importlib
import pickle
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from settled.state.errors import ContractError
from settled.state.model import Action
from settled.state.store import Ledger
from settled.testing.databases import Databases, open_databases
from settled.testing.judging import Check, Judge, waits_for_person
from settled.testing.processes import End, Point, run
from settled.testing.remote import FaultyRemote
from settled.testing.report import Crash, CrashReport, CrashRow, states
from settled.testing.scene import Died, Finished, Raised, Scenario, Scene, numbered

MAX_POINTS = 400
"""A scenario of two calls meets about twenty; one that meets more than this should be cut into several."""

MAX_RESTARTS = 5
"""A call that is made again ends by the first restart, or the second; more only wait for a real clock."""

MAX_REAL_WAIT_S = 60.0
"""For a lease, where the scenario goes by the real clock: the default one is 15 s."""

_MARGIN_S = 0.05


def crash_matrix(
    scenario: Scenario | str,
    check: Check | None = None,
    *,
    effects: int = 1,
    manual: bool = False,
    remote: Callable[[], FaultyRemote] = FaultyRemote,
    count: Callable[[Scene], int] | None = None,
    only: str = "",
    tenant: str = "default",
    workers: int = 4,
    timeout_s: float = 60.0,
    databases: Databases | None = None,
) -> CrashReport:
    """Kill a scenario at every crash point, restart it, and see that its effects are as many as meant.

    `scenario(scene)` is a top-level function, sync or async, or "module:function"; it is run from its beginning, in a
    process of its own, with a database and a remote side of its own (`remote()` makes it, with faults if you like). The
    crash points are before and after each effect of the protocol, at each `crash_point(name)` of yours, and before and
    after each write at the remote side.

    In the end there must be `effects` effects and no open action. `manual`: the manual queue is an end too, where a
    remote side can neither be asked nor recognise a repeat; an effect may then be missing. `count(scene)` counts
    effects where the remote side is another one than ours, `check(crash)` raises AssertionError for what else must be
    true. `only` tries the points that have this in their name, `tenant` is whose actions are looked at, `workers`
    points are tried at once, `timeout_s` bounds one run.

    Raises AssertionError, with a table of all points, when a row is wrong, and ContractError for a scenario that cannot
    be run in another process or that carries out nothing.
    """
    played = _resolved(scenario)
    with nullcontext(databases) if databases is not None else open_databases() as given:
        stage = _Stage(played, remote, given, Judge(effects, manual, check), count, tenant, timeout_s)
        first, points = stage.run_through()
        with ThreadPoolExecutor(max_workers=workers) as pool:
            rows = list(pool.map(stage.row, _chosen(points, only)))
    report = CrashReport(_name_of(played), (first, *rows))
    report.check()
    return report


@dataclass(frozen=True)
class _Stage:
    """Where the crash points of one scenario are tried, each by itself."""

    scenario: Scenario
    remote: Callable[[], FaultyRemote]
    databases: Databases
    judge: Judge
    count: Callable[[Scene], int] | None
    tenant: str
    timeout_s: float

    def run_through(self) -> tuple[CrashRow, list[Point]]:
        """Run the scenario without a crash: its row, and the crash points that it meets."""
        with self._scene("no-crash") as (scene, far), Ledger.connect(scene.database_url) as ledger:
            ended = run(self.scenario, scene, far, None, self.timeout_s)
            if not isinstance(ended, Finished):
                words = ended.words if isinstance(ended, Raised) else "it died"
                raise AssertionError(f"the scenario fails without any crash:\n{words}")
            row = self._judged("no crash", scene, far, ledger, "none", ended, restarts=0)
            return row, _points(ended, far)

    def row(self, point: Point) -> CrashRow:
        """Kill the scenario at one point, restart it to its end, and judge it."""
        name = f"{point.write or 'instant'}-{point.number}"
        with self._scene(name) as (scene, far), Ledger.connect(scene.database_url) as ledger:
            ended = run(self.scenario, scene, far, point, self.timeout_s)
            # Threads may come in another order than in the first run: the point is the one where it died.
            met = ended.point if isinstance(ended, Died) else f"{point.name} (not met)"
            found = states(self._actions(ledger))
            ended, restarts = self._restarted(scene, far, ledger, ended)
            return self._judged(met, scene, far, ledger, found, ended, restarts)

    def _restarted(self, scene: Scene, far: FaultyRemote, ledger: Ledger, ended: End) -> tuple[End, int]:
        """Run the scenario again until nothing is open that a restart could close, or the second one closed nothing."""
        restarts, before = 0, None
        while restarts < MAX_RESTARTS:
            left = _left(self._actions(ledger))
            if not isinstance(ended, Died) and (not left or (left == before and restarts > 1)):
                break
            scene = self._later(ledger, scene, far, goes_by_real_clock=restarts > 0)
            ended = run(self.scenario, scene, far, None, self.timeout_s)
            restarts, before = restarts + 1, left
        return ended, restarts

    def _later(self, ledger: Ledger, scene: Scene, far: FaultyRemote, *, goes_by_real_clock: bool) -> Scene:
        """Return the scene at the instant at which a restart may take over: leases are over, and what the dead process
        had under way has come to its end.
        """
        far.wait_until_idle()
        left_s = _ends_in_s(self._actions(ledger))
        if goes_by_real_clock:
            time.sleep(min(max(left_s, 0.0), MAX_REAL_WAIT_S))
            return scene
        later_s = max(scene.later_s, left_s + _MARGIN_S)
        far.pass_time(later_s - scene.later_s)
        return replace(scene, later_s=later_s)

    def _judged(
        self, point: str, scene: Scene, far: FaultyRemote, ledger: Ledger, found: str, ended: End, restarts: int
    ) -> CrashRow:
        far.wait_until_idle()
        said = ended.said if isinstance(ended, Finished) else None
        effects = far.count() if self.count is None else self.count(scene)
        crash = Crash(point, scene, ledger, far, self._actions(ledger), effects, said)
        problem = self.judge.problem(crash, ended)
        return CrashRow(point, found, restarts, effects, states(crash.actions), said, problem)

    def _actions(self, ledger: Ledger) -> list[Action]:
        """Return the actions of a scenario, oldest first."""
        return ledger.actions(tenant=self.tenant, most=MAX_POINTS)[::-1]

    @contextmanager
    def _scene(self, name: str) -> Generator[tuple[Scene, FaultyRemote]]:
        with self.databases.fresh() as url, self.remote() as far:
            yield Scene(name, url, far.url), far


def _points(ended: Finished, far: FaultyRemote) -> list[Point]:
    """Return the crash points of a run that nobody killed; ContractError where there are none, or far too many."""
    points = [Point(name, number) for number, name in enumerate(ended.points)]
    if not points:
        raise ContractError("crash_matrix: the scenario carried out no action, so there is no instant to kill it at")
    met = Counter[str]()
    for number, seen in enumerate(seen for seen in far.requests if seen.method != "GET"):
        named = f"{seen.method} {seen.path} is done"
        points += [Point(numbered(f"{when} {named}", met), number, when) for when in ("before", "after")]
    if len(points) > MAX_POINTS:
        raise ContractError(
            f"crash_matrix: the scenario meets {len(points)} crash points, and {MAX_POINTS} are the limit: cut it"
        )
    return points


def _chosen(points: Sequence[Point], only: str) -> list[Point]:
    chosen = [point for point in points if only in point.name]
    if not chosen:
        raise ContractError(f"crash_matrix: no crash point has {only!r} in it: {', '.join(p.name for p in points)}")
    return chosen


def _resolved(scenario: Scenario | str) -> Scenario:
    """Return the scenario as a function that another process can import; ContractError where it cannot."""
    function = _imported(scenario) if isinstance(scenario, str) else scenario
    if not callable(function):
        raise ContractError(f"crash_matrix: {scenario!r} is no function")
    try:
        pickle.dumps(function)
    except Exception as error:
        raise ContractError(
            f"crash_matrix: another process cannot import {_name_of(function)}: the scenario must be a function at the "
            "top level of a module"
        ) from error
    return function


def _imported(reference: str) -> Any:
    module, colon, name = reference.partition(":")
    if not colon:
        raise ContractError(f"crash_matrix: a scenario is named as module:function, not {reference!r}")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ContractError(f"crash_matrix: there is no {reference!r}: {error}") from error


def _name_of(function: object) -> str:
    """Return a function's name; of a partial one, that of what it is made of."""
    function = getattr(function, "func", function)
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', repr(function))}"


def _left(actions: Sequence[Action]) -> list[tuple[object, ...]]:
    """Return what is open that a restart could close, so that two looks at it can be compared."""
    left = [action for action in actions if action.is_open and not waits_for_person(action)]
    return [(action.id, action.state, action.fencing_token, action.attempt, action.queries) for action in left]


def _ends_in_s(actions: Sequence[Action]) -> float:
    """Return the seconds until every lease is over, and everything sent has arrived; 0 or less: it is so."""
    ends = [end for action in actions for end in (action.lease_until, action.in_flight_until, action.next_query_at)]
    now = datetime.now(UTC)
    return max(((end - now).total_seconds() for end in ends if end is not None), default=0.0)
