"""How fast workers drain a backlog, what they need for it, and what a long past costs them (a part of `bench.py`).

A backlog of approved actions that their callers have left is drained by four worker processes. Then a scan, a claim and
a list are timed on the ledger as it is and with a past of settled actions, in turns, so that the ratio is of one run.
"""

import os
import resource
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg

from settled import Ledger, action
from settled.runtime.worker import Worker
from settled.state import ledger as operations
from settled.state import work
from settled.tools.perform import Options, prepare

WORKERS = 4
BACKLOG = 2000
PAST = 100_000
TIMES = 200

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from filled import fill  # noqa: E402 - the same past as the tests have


@action(risk="non_idempotent_write", remote="opaque", identity=("order",))
async def drained(order: str) -> dict[str, str]:
    """Do nothing, at once: what is measured is the rest."""
    return {"receipt": order}


def bench_drain(ledger: Ledger, rounds: int) -> dict[str, object]:
    """Drain a backlog; then time what workers ask of a short and of a long ledger."""
    with fresh(ledger.url) as url, fresh(ledger.url) as old_url:
        with Ledger.connect(url) as short:
            drained_in = drain(short)
        with Ledger.connect(url) as short, Ledger.connect(old_url) as long:
            fill(old_url, PAST)
            before, after = timed(short, long)
    return {
        "backlog": drained_in,
        "median_ms": {"short": rounded(before), f"with_{PAST}_settled": rounded(after)},
        "past_to_short": {name: round(after[name] / before[name], 2) for name in before},
    }


class fresh:  # noqa: N801 - a context manager, read as a word
    """A database of its own on the same server, so that the past of other parts does not count."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._name = f"settled_bench_{uuid.uuid4().hex[:8]}"

    def __enter__(self) -> str:
        self._execute(f"CREATE DATABASE {self._name}")
        return str(psycopg.conninfo.make_conninfo(self._url, dbname=self._name))

    def __exit__(self, *_: object) -> None:
        self._execute(f"DROP DATABASE {self._name} WITH (FORCE)")

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(statement.encode())


def drain(ledger: Ledger) -> dict[str, object]:
    """Return how a backlog is drained by several processes."""
    left_alone(ledger, BACKLOG)
    time.sleep(6)  # what is approved is left alone for five seconds
    environment = {**os.environ, "SETTLED_DATABASE_URL": ledger.url}
    command = [sys.executable, __file__]
    children = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in range(WORKERS)]
    first = until(ledger, lambda left: left < BACKLOG)
    last = until(ledger, lambda left: left == 0)
    for child in children:
        child.terminate()
    peaks = [float(child.communicate()[0].split()[-1]) for child in children]
    return {
        "actions": BACKLOG,
        "processes": WORKERS,
        "actions_per_s": round(BACKLOG / (last - first)),
        "peak_mb_of_one_process": round(max(peaks)),
    }


def left_alone(ledger: Ledger, many: int) -> list[str]:
    """Return the ids of new actions that are approved, and that nobody carries on."""
    ids = []
    for _ in range(many):
        call = prepare(drained.contract, [uuid.uuid4().hex], Options(uuid.uuid4().hex), ledger)
        ledger.run(operations.plan(replace(call.plan, is_claimed_later=True)))
        ids.append(call.plan.id)
    return ids


def until(ledger: Ledger, is_so: Callable[[int], bool]) -> float:
    """Return when the number of open actions is so."""
    with psycopg.connect(ledger.url, autocommit=True) as connection:
        while True:
            row = connection.execute(b"SELECT count(*) FROM settled.actions WHERE settled_at IS NULL").fetchone()
            if row and is_so(row[0]):
                return time.perf_counter()
            time.sleep(0.02)


def timed(*ledgers: Ledger) -> list[dict[str, float]]:
    """Return the median seconds of what a worker and an operator ask of each ledger, in turns."""
    steps = [steps_of(ledger) for ledger in ledgers]
    found: list[dict[str, list[float]]] = [{name: [] for name in one} for one in steps]
    for _ in range(TIMES):
        for one, times in zip(steps, found, strict=True):
            for name, step in one.items():
                begun = time.perf_counter()
                step()
                times[name].append(time.perf_counter() - begun)
    return [{name: statistics.median(values[10:]) for name, values in times.items()} for times in found]


def steps_of(ledger: Ledger) -> dict[str, Callable[[], Any]]:
    """Return what is timed, on a ledger whose statistics are as autovacuum leaves them."""
    reading = work.on(ledger)
    sweep = work.sweep("planned", most=1000, grace_s=2, most_s=60)
    due = work.due(tools=["drained"], most=100, lease_s=10)
    ids = iter(left_alone(ledger, TIMES))
    with psycopg.connect(ledger.url, autocommit=True) as connection:
        connection.execute(b"VACUUM ANALYZE settled.actions")
        connection.execute(b"UPDATE settled.frontiers SET at = now()")
    return {
        "scan": lambda: (reading.run(sweep), reading.run(due)),
        "claim": lambda: ledger.run(operations.claim("default", next(ids), owner="me", lease_s=10, deadline_s=30)),
        "list": lambda: ledger.actions(most=50),
    }


def rounded(seconds: dict[str, float]) -> dict[str, float]:
    """Return milliseconds."""
    return {name: round(value * 1e3, 3) for name, value in seconds.items()}


def be_a_worker() -> None:
    """Drain until SIGTERM, and print this process's peak memory in MB."""
    with Ledger.connect() as ledger:
        Worker(ledger, tools=[drained], scan_every_s=0.5, concurrency=16).run()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    be_a_worker()
