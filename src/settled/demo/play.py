"""Plays a scenario with real processes and a real Postgres, and reads afterwards what happened.

The agent's processes are started first, because they take longest to load; each waits for its task. The effects are
counted in the service's database, the actions come from the ledger, the words from the agent's thread.
"""

import json
import secrets
import signal
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any

from settled.demo.approving import Stage, play_asking
from settled.demo.processes import RUN_S, Child, DemoFailed, Service
from settled.demo.scenarios import TENANT, Scenario
from settled.demo.service import store
from settled.demo.story import Mark, Story, Told
from settled.state import ledger as operations
from settled.state.errors import ContractError
from settled.state.model import Action, Event
from settled.state.postgres import Database
from settled.state.store import Ledger


def play(scenario: Scenario, url: str | None, *, language: str = "en", model: str | None = None) -> Story:
    """Play a scenario on the Postgres at `url` (None: the private one); DemoFailed when a process fails at its part."""
    if find_spec("uvicorn") is None or find_spec("starlette") is None:
        raise ContractError("the demo's service needs two more packages: pip install 'settled[demo]'")
    turns = [words[language] for words in scenario.turns]
    name = secrets.token_hex(3)
    task: dict[str, Any] = {
        "thread_id": f"demo-{scenario.name}-{name}",
        "employee_id": f"E-{name}",
        "turns": turns,
        "message_ids": [f"msg-{secrets.token_hex(6)}" for _ in turns],
        "queryable": scenario.queryable,
        "stubborn": scenario.stubborn,
        "approval_ttl_s": scenario.approval_ttl_s,
        "daily_limit": scenario.daily_limit,
        "model": model,
    }
    story = Story(scenario, turns)
    with ExitStack() as stack:
        count = 2 if scenario.kill_at or scenario.dies_waiting else scenario.clicks
        agents = [stack.enter_context(Child("settled.demo.agent")) for _ in range(count)]
        ledger = stack.enter_context(Ledger.connect(url))
        service = stack.enter_context(Service(ledger.url, scenario.faults))
        at = {"SETTLED_DATABASE_URL": ledger.url}
        names = scenario.supervisors
        people = {by: stack.enter_context(Child("settled.demo.supervisor", environment=at)) for by in names}
        task |= {"service_url": service.url, "database_url": ledger.url}
        for child in (*agents, *people.values()):
            child.expect()
        story.told = _played(Stage(story, ledger, agents, people, task))
        _read(story, ledger, service.url, task)
    return story


def _played(stage: Stage) -> Told:
    scenario = stage.story.scenario
    if scenario.approval_ttl_s is not None:
        return play_asking(stage)
    if scenario.kill_at:
        return _restarted(stage.story, stage.ledger, stage.agents, stage.task)
    return _clicked(stage.story, stage.agents, stage.task)


def _clicked(story: Story, agents: Sequence[Child], task: Mapping[str, Any]) -> Told:
    """Send the words to every process at once; the one with the longest thread saw it all."""
    for number, agent in enumerate(agents, 1):
        own = {"message_ids": [f"{one}-{number}" for one in task["message_ids"]]}
        story.marks.append(Mark(time.time(), f"process {number} starts"))
        agent.tell({**task, **own})
    told = [Told(**agent.answer(RUN_S)) for agent in agents]
    return max(told, key=lambda one: len(one.tool_messages))


def _restarted(story: Story, ledger: Ledger, agents: Sequence[Child], task: Mapping[str, Any]) -> Told:
    """Let the first process die on its way, and give the same task to the second."""
    first, second = agents
    story.marks.append(Mark(time.time(), "process 1 starts"))
    first.tell({**task, "kill_at": story.scenario.kill_at})
    if first.hear(RUN_S) is not None or first.process.returncode != -signal.SIGKILL:
        raise DemoFailed(
            f"the agent should have been killed {story.scenario.kill_at}, but was not: {first.last_words()}"
        )
    rows = ledger.run(operations.actions(TENANT, thread_id=task["thread_id"]))
    left = f"the action is {rows[0].state}" if rows else "the ledger has no row"
    story.marks.append(Mark(first.ended_at or time.time(), "process 1 dies (SIGKILL)", left))
    story.marks.append(Mark(time.time(), "process 2 takes over"))
    second.tell(task)
    return Told(**second.answer(RUN_S))


def _read(story: Story, ledger: Ledger, service_url: str, task: Mapping[str, Any]) -> None:
    """Read what happened from those who know it."""
    actions = ledger.run(operations.actions(TENANT, thread_id=task["thread_id"]))
    story.actions = [(one, _timeline(ledger, one)) for one in reversed(actions)]
    tickets = [ledger.run(operations.approvals_of(TENANT, action.id)) for action, _ in story.actions]
    story.approvals = [ticket for of_action in tickets for ticket in of_action]
    if actions:
        skew_s = actions[0].now.timestamp() - time.time()
        story.skew_s = skew_s if abs(skew_s) > 1 else 0.0
    with _database(ledger.url) as database:
        story.effects = database.run(store.count_tickets(task["employee_id"]))
    with urllib.request.urlopen(f"{service_url}/log", timeout=10) as answer:
        story.requests = json.load(answer)


def _timeline(ledger: Ledger, action: Action) -> list[Event]:
    return ledger.run(operations.timeline(action.tenant, action.id))


@contextmanager
def _database(url: str) -> Iterator[Database]:
    database = store.open_database(url)
    try:
        yield database
    finally:
        database.close()
