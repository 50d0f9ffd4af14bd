"""The service ends with the process that started it, and after a maximum life: no run leaves one behind."""

import asyncio
import os

POLL_S = 0.25


async def end(parent: int, max_life_s: float) -> None:
    """Return when the parent process has died or the life is over; a parent of 0 is not watched.

    A process whose parent died is given another one, so its parent's id changes.
    """
    loop = asyncio.get_running_loop()
    last = loop.time() + max_life_s
    while loop.time() < last and parent in (0, os.getppid()):  # noqa: ASYNC110  (no event tells of a parent's death)
        await asyncio.sleep(POLL_S)
