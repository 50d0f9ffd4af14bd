"""Plays the scenario of the outbox: dispatchers that are processes of their own, all but the last of which are killed
after their message has arrived, and before they could write that down.
"""

import signal
import time
from collections.abc import Sequence

from settled.demo.approving import Stage
from settled.demo.processes import RUN_S, Child, DemoFailed
from settled.demo.scenarios import TENANT
from settled.state import ledger as operations
from settled.state.outbox import Posted
from settled.tools.outbox import Outbox

BEFORE_THE_MARK = "before deliver"

MOST_BATCHES = 5
"""One is enough, unless messages of an earlier play are in the way."""


def play_posting(stage: Stage, dispatchers: Sequence[Child]) -> None:
    """Let one dispatcher after the other deliver what is due."""
    order = {"url": f"{stage.task['service_url']}/hooks"}
    *killed, last = enumerate(dispatchers, 1)
    for number, dispatcher in killed:
        stage.mark(f"dispatcher {number} starts")
        dispatcher.tell({**order, "kill_at": BEFORE_THE_MARK})
        if dispatcher.hear(RUN_S) is not None or dispatcher.process.returncode != -signal.SIGKILL:
            raise DemoFailed(f"dispatcher {number} should have been killed before the mark, but was not")
        at = dispatcher.ended_at or time.time()
        stage.mark(f"dispatcher {number} dies (SIGKILL)", _left(stage), at=at)
    number, dispatcher = last
    stage.mark(f"dispatcher {number} takes over")
    done = 0
    for _ in range(MOST_BATCHES):
        dispatcher.tell(order)
        done += dispatcher.answer(RUN_S)["delivered"]
        if all(message.state == "delivered" for message in _messages(stage)):
            break
    stage.mark(f"dispatcher {number} is done", f"delivered, and marked: {done}")


def _left(stage: Stage) -> str:
    """Say what the ledger knows of the messages."""
    return ", ".join(f"the message is {one.state}, attempt {one.attempt}" for one in _messages(stage))


def _messages(stage: Stage) -> list[Posted]:
    actions = stage.ledger.run(operations.actions(TENANT, thread_id=stage.task["thread_id"]))
    outbox = Outbox(stage.ledger, tenant=TENANT)
    return [one for action in actions for one in outbox.messages(action_id=action.id)]
