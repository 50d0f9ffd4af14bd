"""One process of the reimbursement agent: `python -m settled.demo.agent`.

It says `ready`, is given one task as a line of JSON, carries the conversation on in a `Session`, and answers with one
line of JSON: what the user and the model were told. It may be killed at any instant; the next process is given the same
task.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage

from settled.demo.models import load_model
from settled.demo.scenarios import TENANT
from settled.demo.tools import reimbursement_tools
from settled.graph.agent import build_agent
from settled.graph.checkpointer import open_checkpointer
from settled.graph.session import Session
from settled.state.errors import SettledError
from settled.state.store import Ledger
from settled.tools.effects import Ask, Effect
from settled.tools.runner import World

PROMPT = (
    "You file reimbursements for the employee {employee_id}. Read the invoice first, then file the ticket with the"
    " amounts of the invoice, unless the user gives another amount. Tell the user what the tools answered."
)


@dataclass(frozen=True)
class Task:
    """What an agent process is to do. `message_ids` name the user's messages: a repeat of the task adds none."""

    database_url: str
    service_url: str
    thread_id: str
    employee_id: str
    turns: Sequence[str]
    message_ids: Sequence[str]
    queryable: bool = True
    stubborn: bool = False
    kill_at: str | None = None
    model: str | None = None


def main() -> None:
    """Wait for the task and carry it out."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    line = sys.stdin.readline()
    if not line:
        return
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        print(json.dumps(run(Task(**json.loads(line)))), flush=True)
    except SettledError as error:
        sys.exit(str(error))


def run(task: Task) -> dict[str, Any]:
    """Carry a task out and return what was said."""
    with Ledger.connect(task.database_url) as ledger, open_checkpointer(ledger) as checkpointer:
        agent = build_agent(
            load_model(task.model, stubborn=task.stubborn),
            reimbursement_tools(task.service_url, queryable=task.queryable),
            ledger=ledger,
            checkpointer=checkpointer,
            system_prompt=PROMPT.format(employee_id=task.employee_id),
            world=World(watch=killing(task.kill_at) if task.kill_at else None),
        )
        session = Session(agent, ledger=ledger, thread_id=task.thread_id, tenant=TENANT, requester=task.employee_id)
        reply = ""
        for text, message_id in zip(task.turns, task.message_ids, strict=True):
            reply = session.send(text, message_id=message_id).text
        state = agent.get_state(session.config)
        return {"reply": reply, "tool_messages": _tool_messages(state.values["messages"])}


def killing(point: str) -> Callable[[Effect, str], None]:
    """Return a watch that kills this process at `point`: `before plan`, `after invoke`, `before succeed` …

    A statement is known by the beginning of its name, for the ledger has more than one for some steps.
    """

    def watch(effect: Effect, when: str) -> None:
        name = effect.query.name if isinstance(effect, Ask) else type(effect).__name__.lower()
        if f"{when} {name}".startswith(point):
            os.kill(os.getpid(), signal.SIGKILL)

    return watch


def _tool_messages(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    return [
        {
            "tool_call_id": message.tool_call_id,
            "name": message.name,
            "status": message.status,
            "content": message.text,
            "artifact": message.artifact,
        }
        for message in messages
        if isinstance(message, ToolMessage)
    ]


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
