"""Plays a scenario with real processes and a real Postgres, and reads afterwards what happened.

The agent's processes are started first, because they take longest to load; each waits for its task. The effects are
counted in the service's database, the actions come from the ledger, the words from the agent's thread.
"""

import secrets
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any

from settled.demo.approving import Stage, play_asking
from settled.demo.crew import Crew, play_crew
from settled.demo.posting import play_posting
from settled.demo.processes import RUN_S, Child, DemoFailed, Service
from settled.demo.records import order_of
from settled.demo.scenarios import TENANT, Scenario
from settled.demo.service import SECRET, store
from settled.demo.story import Mark, Story, Told
from settled.state import ledger as operations
from settled.state.errors import ContractError
from settled.state.ledger import Query
from settled.state.model import Action, Event
from settled.state.postgres import Database
from settled.state.store import Ledger
from settled.tools.chain_desk import ChainDesk
from settled.tools.outbox import Outbox
from settled.tools.sinks.signature import new_secret


def play(scenario: Scenario, url: str | None, *, language: str = "en", model: str | None = None) -> Story:
    """Play a scenario on the Postgres at `url` (None: the private one); DemoFailed when a process fails at its part."""
    if find_spec("uvicorn") is None or find_spec("starlette") is None:
        raise ContractError("the demo's service needs two more packages: pip install 'settled[demo]'")
    turns = [words[language] for words in scenario.turns]
    name = secrets.token_hex(3)
    user, thread_id = f"E-{name}", f"demo-{scenario.name}-{name}"
    story = Story(scenario, turns)
    task = _task(scenario, turns, thread_id, user, model)
    with ExitStack() as stack:
        agents = [stack.enter_context(Child(AGENT)) for _ in range(_agents(scenario))]
        ledger = stack.enter_context(Ledger.connect(url))
        secret = new_secret()
        service = stack.enter_context(Service(ledger.url, scenario.faults, secret=secret))
        at = {"SETTLED_DATABASE_URL": ledger.url, SECRET: secret}
        if scenario.left_open:
            play_crew(Crew.hired(stack, story, ledger, service, at, thread_id=thread_id, user=user))
        else:
            _play_agents(stack, story, ledger, service, agents, task, at)
        _read(story, ledger, service, thread_id=thread_id, user=user)
    return story


AGENT, SUPERVISOR, DISPATCHER = "settled.demo.agent", "settled.demo.supervisor", "settled.demo.dispatcher"


def _play_agents(
    stack: ExitStack,
    story: Story,
    ledger: Ledger,
    service: Service,
    agents: Sequence[Child],
    task: Mapping[str, Any],
    at: Mapping[str, str],
) -> None:
    """Let the agents talk with their user, with the people and dispatchers that the scenario has."""
    scenario = story.scenario
    people = {by: stack.enter_context(Child(SUPERVISOR, environment=at)) for by in scenario.supervisors}
    dispatchers = [stack.enter_context(Child(DISPATCHER, environment=at)) for _ in range(scenario.dispatchers)]
    addresses = {"service_url": service.url, "database_url": ledger.url}
    for child in (*agents, *people.values(), *dispatchers):
        child.expect()
    stage = Stage(story, ledger, agents, people, {**task, **addresses})
    story.told = _played(stage)
    if dispatchers:
        play_posting(stage, dispatchers)


def _agents(scenario: Scenario) -> int:
    """Return how many processes of the agent there are."""
    if scenario.left_open:
        return 0
    return 2 if scenario.kill_at or scenario.dies_waiting else scenario.clicks


def _task(scenario: Scenario, turns: Sequence[str], thread_id: str, user: str, model: str | None) -> dict[str, Any]:
    return {
        "thread_id": thread_id,
        "user": user,
        "turns": turns,
        "message_ids": [f"msg-{secrets.token_hex(6)}" for _ in turns],
        "queryable": scenario.queryable,
        "stubborn": scenario.stubborn,
        "approval_ttl_s": scenario.approval_ttl_s,
        "daily_limit": scenario.daily_limit,
        "notifies": scenario.dispatchers > 0,
        "chain": scenario.chain,
        "model": model,
    }


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
    left = _left(ledger, task["thread_id"])
    story.marks.append(Mark(first.ended_at or time.time(), "process 1 dies (SIGKILL)", left))
    story.marks.append(Mark(time.time(), "process 2 takes over"))
    second.tell(task)
    return Told(**second.answer(RUN_S))


def _left(ledger: Ledger, thread_id: str) -> str:
    """Say what a process has left in the ledger."""
    if runs := ChainDesk(ledger, tenant=TENANT).runs(thread_id=thread_id):
        steps = [(step.name, str(step.state)) for step in runs[0].steps]
        return ", ".join(f"{name}: {state}".replace("_", " ") for name, state in steps)
    rows = ledger.run(operations.actions(TENANT, thread_id=thread_id))
    return f"the action is {rows[0].state}" if rows else "the ledger has no row"


def _read(story: Story, ledger: Ledger, service: Service, *, thread_id: str, user: str) -> None:
    """Read what happened from those who know it."""
    actions = ledger.run(operations.actions(TENANT, thread_id=thread_id))
    story.actions = [(one, _timeline(ledger, one)) for one in reversed(actions)]
    tickets = [ledger.run(operations.approvals_of(TENANT, action.id)) for action, _ in story.actions]
    story.approvals = [ticket for of_action in tickets for ticket in of_action]
    story.chains = ChainDesk(ledger, tenant=TENANT).runs(thread_id=thread_id)
    outbox = Outbox(ledger, tenant=TENANT)
    story.messages = [one for action, _ in story.actions for one in outbox.messages(action_id=action.id)]
    if actions:
        skew_s = actions[0].now.timestamp() - time.time()
        story.skew_s = skew_s if abs(skew_s) > 1 else 0.0
    with _database(ledger.url) as database:
        story.counted = {kind: database.run(_count(kind, user)) for kind in story.scenario.expected}
    story.requests = service.log()


def _count(kind: str, user: str) -> Query[int]:
    """Count the effects of a kind that are of this user, or of his order."""
    match kind:
        case "tickets":
            return store.count_tickets(user)
        case "refunds":
            return store.count_records(kind, field="customer_id", value=user)
        case "notifications":
            return store.count_records(kind, field="employee_id", value=user)
        case _:
            return store.count_records(kind, field="order_id", value=order_of(user))


def _timeline(ledger: Ledger, action: Action) -> list[Event]:
    return ledger.run(operations.timeline(action.tenant, action.id))


@contextmanager
def _database(url: str) -> Iterator[Database]:
    database = store.open_database(url)
    try:
        yield database
    finally:
        database.close()
