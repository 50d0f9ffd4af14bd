"""The switches of a `FaultyRemote`: what happens to one request, as a value.

Owns the words; acts on nothing. The same words name the same faults in the demo's ticket service.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Fault:
    """What happens to one request: it waits `before_s`, is carried out (or not), waits `after_s`, and is answered.

    `commits` False: a write does nothing (and is answered with 503 unless `status` says otherwise), a query sees
    nothing. `status` replaces that of the answer, `changes` some fields in its body. `reply`: the answer arrives, is
    never sent, is cut off by a reset, or arrives in half. `hangs_up`: the caller's connection is closed at once, and
    the rest happens without it.
    """

    commits: bool = True
    status: int | None = None
    reply: Literal["answer", "drop", "reset", "truncate"] = "answer"
    before_s: float = 0.0
    after_s: float = 0.0
    headers: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, object] = field(default_factory=dict)
    hangs_up: bool = False


FINE = Fault()
"""Nothing goes wrong: for the requests between two faults."""

COMMIT_AND_DROP = Fault(reply="drop")
"""The effect takes place, and the connection closes without a reply."""

COMMIT_AND_500 = Fault(status=500)
"""The effect takes place, and the reply says that something went wrong."""

TRUNCATE = Fault(reply="truncate")
"""The effect takes place, and half of the reply arrives."""

DROP_BEFORE_COMMIT = Fault(commits=False, reply="drop")
"""Nothing takes place, and the connection closes without a reply: to the caller the same as `COMMIT_AND_DROP`."""

ABSENT = Fault(commits=False)
"""For a query: it sees nothing, as on a replica that lags."""


def commit_and_delay(seconds: float) -> Fault:
    """Do it at once, and answer this much later: past the deadline, if it is long enough."""
    return Fault(after_s=seconds)


def delay_before_commit(seconds: float) -> Fault:
    """Do it this much later, also if the caller has left meanwhile."""
    return Fault(before_s=seconds)


def commit_later(seconds: float) -> Fault:
    """Hang up at once, and do it this much later: a request that waits in a queue on its way."""
    return Fault(before_s=seconds, hangs_up=True)


def refuse(status: int = 503, *, retry_after: float | str | None = None) -> Fault:
    """Do nothing, and say so: 503 or 429, with `Retry-After` if given."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return Fault(commits=False, status=status, headers=headers)


def wrong(**changes: object) -> Fault:
    """Answer with other values in these fields: what is told is not what was done."""
    return Fault(changes=changes)
