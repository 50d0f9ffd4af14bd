"""One process of an agent, for reimbursements or in a shop: `python -m settled.demo.agent`.

It says `ready`, is given tasks, each a line of JSON, carries the conversation on in a `Session`, and answers each with
a line of JSON: what the user and the model were told, and what waits for a person. It may be killed at any instant; the
next process is given the same task.
"""

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.checkpoint.base import BaseCheckpointSaver

from settled.demo.killing import killing
from settled.demo.models import CREATE, OrderingModel, ScriptedModel, StubbornModel, load_model
from settled.demo.orders import place_order
from settled.demo.records import order_of
from settled.demo.scenarios import TENANT
from settled.demo.tools import reimbursement_tools
from settled.graph.agent import Agent, build_agent
from settled.graph.checkpointer import open_checkpointer
from settled.graph.session import Session
from settled.graph.turn import Reply
from settled.state.errors import SettledError
from settled.state.store import Ledger
from settled.tools.chains import OnFailure
from settled.tools.contract import ActionTool
from settled.tools.runner import World

PROMPT = (
    "You file reimbursements for the employee {user}. Read the invoice first, then file the ticket with the"
    " amounts of the invoice, unless the user gives another amount. Tell the user what the tools answered."
)

SHOP_PROMPT = (
    "You take orders in a shop. The order of this conversation is {order_id}. Place it as the user says, and tell the"
    " user what the tool answered."
)

LOOK_AGAIN_S = 0.1
"""While a person is to decide: a demo is watched. (A host would be told by whoever takes the decision.)"""


@dataclass(frozen=True)
class Task:
    """What an agent process is to do. `message_ids` name the user's messages: a repeat of the task adds none.

    Without `turns` it continues the thread, and while that waits for a person, looks again for at most `wait_s`.
    `rewritten` replaces arguments of the call that waits, in the stored conversation: what an edited fork, or a bug,
    would do. With `chain` it is the agent of a shop, and `user` a customer; else he is an employee.
    """

    database_url: str
    service_url: str
    thread_id: str
    user: str
    turns: Sequence[str]
    message_ids: Sequence[str]
    queryable: bool = True
    stubborn: bool = False
    kill_at: str | None = None
    model: str | None = None
    approval_ttl_s: float | None = None
    daily_limit: int | None = None
    notifies: bool = False
    chain: OnFailure | None = None
    wait_s: float = 0.0
    rewritten: Mapping[str, Any] = field(default_factory=dict)


def main() -> None:
    """Carry out one task after the other."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    try:
        while True:
            print(json.dumps(run(Task(**json.loads(lines.get())))), flush=True)
    except SettledError as error:
        sys.exit(str(error))


def run(task: Task) -> dict[str, Any]:
    """Carry a task out and return what was said."""
    with Ledger.connect(task.database_url) as ledger, open_checkpointer(ledger) as checkpointer:
        agent = _agent(task, ledger, checkpointer)
        session = Session(agent, ledger=ledger, thread_id=task.thread_id, tenant=TENANT, requester=task.user)
        if task.rewritten:
            _rewrite(agent, session, task.rewritten)
        reply = _carried_on(session, task)
        state = agent.get_state(session.config)
        return {
            "reply": reply.text,
            "tool_messages": _tool_messages(state.values["messages"]),
            "waiting": [str(approval["action_id"]) for approval in reply.approvals],
        }


def _agent(task: Task, ledger: Ledger, checkpointer: BaseCheckpointSaver[Any]) -> Agent:
    if task.chain is not None:
        scripted: BaseChatModel = OrderingModel()
        tools: list[Any] = [place_order(task.service_url, on_failure=task.chain)]
        prompt = SHOP_PROMPT.format(order_id=order_of(task.user))
    else:
        scripted = StubbornModel() if task.stubborn else ScriptedModel()
        tools = list(_reimbursement(task))
        prompt = PROMPT.format(user=task.user)
    return build_agent(
        load_model(task.model, scripted),
        tools,
        ledger=ledger,
        checkpointer=checkpointer,
        system_prompt=prompt,
        world=World(watch=killing(task.kill_at) if task.kill_at else None),
    )


def _reimbursement(task: Task) -> list[ActionTool]:
    return reimbursement_tools(
        task.service_url,
        queryable=task.queryable,
        approval_ttl_s=task.approval_ttl_s,
        daily_limit=task.daily_limit,
        notifies=task.notifies,
    )


def _carried_on(session: Session, task: Task) -> Reply:
    """Send the user's messages; or, without one, continue until nothing waits for a person or the time is over."""
    replies = [session.send(text, message_id=of) for text, of in zip(task.turns, task.message_ids, strict=True)]
    if replies:
        return replies[-1]
    end = time.monotonic() + task.wait_s
    while True:
        reply = session.resume()
        if reply.is_finished or time.monotonic() >= end:
            return reply
        time.sleep(LOOK_AGAIN_S)


def _rewrite(agent: Agent, session: Session, arguments: Mapping[str, Any]) -> None:
    """Change the arguments of the call that the conversation ends with, behind everybody's back."""
    messages = agent.get_state(session.config).values["messages"]
    said = next(message for message in reversed(messages) if isinstance(message, AIMessage))
    calls = [
        {**call, "args": {**call["args"], **arguments}} if call["name"] == CREATE else call for call in said.tool_calls
    ]
    edited = AIMessage(said.content, id=said.id, tool_calls=calls)
    agent.update_state(session.config, {"messages": [edited]}, as_node="model")


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


def _listen(lines: "queue.SimpleQueue[str]") -> None:
    """Take the tasks; when the parent is gone, so is this process, whatever it is doing."""
    for line in sys.stdin:
        lines.put(line)
    os._exit(1)


if __name__ == "__main__":
    main()
