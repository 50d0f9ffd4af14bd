"""What Prometheus reads: counts and ages of open actions, by SQL at each scrape.

    settled_open_actions{tenant, tool, state}                 what is not over yet
    settled_open_actions_oldest_seconds{tenant, tool, state}
    settled_manual_queue{tenant, tool}                        what only a person can decide
    settled_manual_queue_oldest_seconds{tenant, tool}
    settled_recent_actions{tenant, tool, state}               planned in the last five minutes, by where they stand now
    settled_recent_attempts{tenant, tool, state}              … and the attempts that they took
    settled_open_approvals{tenant}, settled_open_approvals_oldest_seconds{tenant}
    settled_outbox_waiting{tenant, topic}, settled_outbox_oldest_seconds{tenant, topic}
    settled_dead_letters{tenant, topic}
    settled_watched_actions, settled_watched_due, settled_watched_oldest_due_seconds, settled_ledger_behind_seconds
    settled_up                                                whether the ledger answered this scrape

The numbers are the ledger's and not this process's: any one process may be scraped, and they survive restarts. The
subtle thing: a scrape of a ledger that is away answers all the same, with `settled_up 0`, and so tells it from a
process that is away.
"""

import logging
from collections.abc import Iterable, Iterator
from typing import TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from settled.state import metrics
from settled.state.errors import LEDGER_IS_GONE
from settled.state.postgres import Database

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The text format of Prometheus, which every scraper takes."""

RECENT_S = 300.0
"""Long enough for a scrape each minute to miss nothing, short enough to be read in milliseconds."""

R = TypeVar("R", metrics.OpenActions, metrics.RecentActions, metrics.OpenApprovals, metrics.OpenMessages)

_log = logging.getLogger("settled")


def page(database: Database, tenant: str | None = None) -> bytes:
    """Return the page that a scraper is given, of one tenant or of all; blocks for five short statements."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(LedgerCollector(database, tenant))
    return generate_latest(registry)


class LedgerCollector(Collector):
    """The metrics of one ledger, for a registry of your own; of one tenant, or of all."""

    def __init__(self, database: Database, tenant: str | None = None) -> None:
        self._database = metrics.on(database)
        self._tenant = tenant

    def collect(self) -> Iterable[Metric]:
        """Read them now; without the ledger only `settled_up`, which is 0 then."""
        up = GaugeMetricFamily("settled_up", "Whether the ledger answered this scrape.")
        try:
            found = list(self._read())
        except LEDGER_IS_GONE:
            _log.warning("a scrape found no ledger", exc_info=True)
            found = []
        up.add_metric((), float(bool(found)))
        return [up, *found]

    def _read(self) -> Iterator[Metric]:
        run = self._database.run
        yield from _actions(self._own(run(metrics.open_actions())))
        yield from _recent(self._own(run(metrics.recent_actions(RECENT_S))))
        yield from _approvals(self._own(run(metrics.open_approvals())))
        yield from _messages(self._own(run(metrics.open_messages())))
        yield from _backlog(run(metrics.backlog()))

    def _own(self, rows: list[R]) -> list[R]:
        return [row for row in rows if self._tenant in (None, row.tenant)]


def _actions(rows: list[metrics.OpenActions]) -> list[Metric]:
    labels = ("tenant", "tool", "state")
    count = _gauge("settled_open_actions", "Actions that are not over yet.", labels)
    oldest = _gauge("settled_open_actions_oldest_seconds", "The age of the oldest of them.", labels)
    queue = _gauge("settled_manual_queue", "Actions that only a person can decide.", labels[:2])
    waiting = _gauge("settled_manual_queue_oldest_seconds", "How long the oldest of them has been waiting.", labels[:2])
    for row in rows:
        count.add_metric((row.tenant, row.tool, row.state), row.count)
        oldest.add_metric((row.tenant, row.tool, row.state), row.oldest_s)
        if row.escalated:
            queue.add_metric((row.tenant, row.tool), row.escalated)
            waiting.add_metric((row.tenant, row.tool), row.escalated_oldest_s)
    return [count, oldest, queue, waiting]


def _recent(rows: list[metrics.RecentActions]) -> list[Metric]:
    labels = ("tenant", "tool", "state")
    minutes = f"{RECENT_S / 60:g} minutes"
    count = _gauge("settled_recent_actions", f"Actions of the last {minutes}, by where they stand.", labels)
    attempts = _gauge("settled_recent_attempts", f"Attempts that the actions of the last {minutes} took.", labels)
    for row in rows:
        count.add_metric((row.tenant, row.tool, row.state), row.count)
        attempts.add_metric((row.tenant, row.tool, row.state), row.attempts)
    return [count, attempts]


def _approvals(rows: list[metrics.OpenApprovals]) -> list[Metric]:
    count = _gauge("settled_open_approvals", "Requests that a person may still decide.", ("tenant",))
    oldest = _gauge("settled_open_approvals_oldest_seconds", "How long the oldest has been waiting.", ("tenant",))
    for row in rows:
        count.add_metric((row.tenant,), row.count)
        oldest.add_metric((row.tenant,), row.oldest_s)
    return [count, oldest]


def _messages(rows: list[metrics.OpenMessages]) -> list[Metric]:
    labels = ("tenant", "topic")
    waiting = _gauge("settled_outbox_waiting", "Messages that are not delivered yet.", labels)
    oldest = _gauge("settled_outbox_oldest_seconds", "The age of the oldest of them.", labels)
    dead = _gauge("settled_dead_letters", "Messages that could not be delivered.", labels)
    for row in rows:
        waiting.add_metric((row.tenant, row.topic), row.waiting)
        oldest.add_metric((row.tenant, row.topic), row.oldest_s)
        dead.add_metric((row.tenant, row.topic), row.dead)
    return [waiting, oldest, dead]


def _backlog(row: metrics.Backlog) -> list[Metric]:
    found = [
        _single("settled_watched_actions", "Open actions that workers watch.", row.watched),
        _single("settled_watched_due", "Those of them that are due.", row.due),
        _single("settled_watched_oldest_due_seconds", "For how long the oldest has been due.", row.oldest_due_s),
    ]
    if row.behind_s is not None:
        behind = "How far behind the clock the ledger has been read by workers (a minute is normal)."
        found.append(_single("settled_ledger_behind_seconds", behind, row.behind_s))
    return found


def _gauge(name: str, says: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, says, labels=labels)


def _single(name: str, says: str, value: float) -> Metric:
    return GaugeMetricFamily(name, says, value=value)
