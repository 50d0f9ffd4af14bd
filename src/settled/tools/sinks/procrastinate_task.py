"""A sink that hands each message to a task of procrastinate, which need not be installed for anybody else.

The subtle thing: a job that is waiting under the message's id is the message, so deferring it again is no error; but a
job that has run is forgotten, and a repeat of the message is a new job then. So the task, too, uses an `Inbox`.
"""

import asyncio
from dataclasses import asdict
from typing import Any

from settled.state.errors import ContractError
from settled.tools.delivery import Delivery


class ProcrastinateTask:
    """`ProcrastinateTask(task)`: defers `task(message={"id": …, "topic": …, "payload": …, …})` for each message.

    The app's connector must be open, for sync or for async use. `message` has the fields of a `Delivery`, the instant
    as text.
    """

    def __init__(self, task: Any) -> None:
        """Raises ContractError for what is no task."""
        if not callable(getattr(task, "configure", None)):
            raise ContractError(f"ProcrastinateTask takes a task of procrastinate, not {type(task).__name__}")
        self._task = task

    def __repr__(self) -> str:
        return f"ProcrastinateTask({getattr(self._task, 'name', '?')!r})"

    async def __call__(self, delivery: Delivery) -> None:
        """Defer one message; whatever procrastinate raises means that it was not delivered."""
        from procrastinate import exceptions

        job = self._task.configure(queueing_lock=delivery.id)
        message = {**asdict(delivery), "created_at": delivery.created_at.isoformat()}
        try:
            try:
                await job.defer_async(message=message)
            except (exceptions.AppNotOpen, exceptions.SyncConnectorConfigurationError):
                await asyncio.to_thread(job.defer, message=message)
        except exceptions.AlreadyEnqueued:
            return
