"""The fault switches: what goes wrong, and when.

Owns the reading of `PUT /faults`; acts on nothing. `next` is consumed one per write request, `always` holds for those
after it, and the other switches stand until they are changed.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What happens to one write request."""

    NONE = "none"
    COMMIT_AND_DROP = "commit_and_drop"  # the effect takes place, the connection closes without a reply
    COMMIT_AND_DELAY = "commit_and_delay"  # … the reply comes `seconds` later
    COMMIT_AND_500 = "commit_and_500"  # … the reply says that something went wrong
    TRUNCATE = "truncate"  # … half of the reply arrives
    REFUSE_503 = "refuse_503"  # nothing takes place; `retry_after` adds the header
    REFUSE_429 = "refuse_429"
    DELAY_BEFORE_COMMIT = "delay_before_commit"  # the effect takes place `seconds` later, also if the client left
    FREEZE = "freeze"  # neither an effect nor a reply, ever


@dataclass(frozen=True)
class Fault:
    """One fault with its measure."""

    kind: Kind = Kind.NONE
    seconds: float = 0.0
    retry_after: float | None = None


NO_FAULT = Fault()


@dataclass
class Switches:
    """All switches of one process.

    `lag_s`: a query does not show what is younger. `no_query`: the status that every query is answered with instead.
    `forget_keys`: the service does not recognise a repeat, nor an earlier ticket for the same invoice.
    """

    next: deque[Fault] = field(default_factory=deque)
    always: Fault = NO_FAULT
    lag_s: float = 0.0
    no_query: int | None = None
    forget_keys: bool = False

    def take(self) -> Fault:
        """Return the fault of the write request that has just arrived."""
        return self.next.popleft() if self.next else self.always

    def shown(self) -> dict[str, Any]:
        """Return the switches as JSON."""
        return {**asdict(self), "next": [asdict(fault) for fault in self.next]}


def switches(sent: object) -> Switches:
    """Read switches from JSON: a list of faults for the next requests, or an object with any of the switches.

    A fault is its name, an object (`{"kind": "commit_and_delay", "seconds": 3}`) or null for none. Raises ValueError.
    """
    if isinstance(sent, list):
        sent = {"next": sent}
    if not isinstance(sent, Mapping):
        raise ValueError("faults must be a list or an object")
    known = {switch.name for switch in fields(Switches)}
    if unknown := set(sent) - known:
        raise ValueError(f"there is no switch {sorted(unknown)}; there are {sorted(known)}")
    no_query = sent.get("no_query")
    return Switches(
        next=deque(fault(one) for one in sent.get("next", [])),
        always=fault(sent.get("always")),
        lag_s=float(sent.get("lag_s", 0)),
        no_query=501 if no_query is True else int(no_query) if no_query else None,
        forget_keys=bool(sent.get("forget_keys", False)),
    )


def fault(sent: object) -> Fault:
    """Read one fault from JSON; ValueError for one that does not exist."""
    match sent:
        case None:
            return NO_FAULT
        case str():
            return Fault(Kind(sent))
        case {"kind": str(kind), **rest} if set(rest) <= {"seconds", "retry_after"}:
            after = rest.get("retry_after")
            seconds = float(str(rest.get("seconds", 0)))
            return Fault(Kind(kind), seconds, None if after is None else float(str(after)))
        case _:
            raise ValueError('a fault is a name, {"kind": …, "seconds": …, "retry_after": …}, or null')
