"""One delivery of a message: what a sink is given, and how it says that it did not deliver.

A sink is a function of a `Delivery`, sync or async. What it returns means acknowledged, whatever it is; what it raises
means not delivered. The subtle thing: a message may come twice (its acknowledgement was lost, or came too late), always
under the same id. Whoever acts on it uses an `Inbox`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

from settled.state.errors import SettledError


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message on its way. `id` is the same whenever it comes; `payload` is plain JSON."""

    id: str
    topic: str
    payload: Any = field(repr=False)
    action_id: str
    tenant: str
    created_at: datetime


class Undelivered(SettledError):
    """Raised by a sink: the message was not delivered. It is tried again, after `retry_after_s` seconds where that is
    given; not so if it `is_final`, for who will never take it: then it is a dead letter at once.
    """

    def __init__(self, reason: str, *, retry_after_s: float | None = None, is_final: bool = False) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s
        self.is_final = is_final


Sink: TypeAlias = Callable[[Delivery], object | Awaitable[object]]
