"""Asking a person: the node `approve` for all that waits, and one call's own question (`approvals="per_call"`).

The decision goes into the ledger before anything runs: what an answer says is written down by the steps of
`settled.tools.decisions`, and the node `action` then asks the ledger, like any other visit, whether it may. The subtle
things: LangGraph keeps an answer once it is given, so nothing may be raised after `interrupt` has returned, or the
thread would fail with that answer for ever; a second question is asked by a new task, since a repeated answer to the
first one would be taken for its answer; and an answer is applied to what was shown, by its fingerprint, since somebody
else may have decided meanwhile.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphInterrupt
from langgraph.types import Command, Send, interrupt

from settled.graph.answers import Answer
from settled.graph.approvals import (
    Shown,
    Unusable,
    answer_schema,
    batched,
    decision_schema,
    read_answer,
    shown_of,
    shown_of_action,
    single,
)
from settled.graph.calls import Request
from settled.graph.channel import Conversation, Ticket, gone
from settled.graph.engine import Engine
from settled.graph.identity import Handle
from settled.graph.tickets import is_stale
from settled.state import ledger
from settled.state.errors import AlreadyDecided, ContractError, SettledError
from settled.state.machine import State
from settled.state.model import Action
from settled.tools.attempt import is_control_flow
from settled.tools.decisions import Decider, Decision, Edit, decide, edit, seen
from settled.tools.desk import edited
from settled.tools.effects import Steps, ask

_log = logging.getLogger("settled")

MAX_OPEN = 200
"""Of a thread, at a time: more than one conversation can have waiting; the rest is looked up one by one."""

SOMEBODY = "somebody"
"""Who decides where a run names nobody, and the request does not ask for anybody in particular."""

SCRATCHPAD_KEY = "__pregel_scratchpad"
"""LangGraph's own: what a task knows of its answers; those to its own interrupts stand in `resume` (1.2.24)."""

NOT_ADDRESSED = "an answer to one call of several names its interrupt: Command(resume={id: decision})"
NOT_RECORDED = "it could not be recorded; what was asked is still open"


@dataclass(frozen=True, slots=True)
class Person:
    """Who answers an interrupt: as the run's configuration says (`approver`, `approver_roles`), else the requester."""

    name: str | None
    roles: tuple[str, ...] = ()


def person_of(config: RunnableConfig, handle: Handle) -> Person:
    """Return who answers."""
    configurable: Mapping[str, Any] = config.get("configurable", {})
    name, roles = configurable.get("approver"), configurable.get("approver_roles")
    if isinstance(name, str) and name:
        return Person(name, tuple(str(role) for role in roles) if isinstance(roles, list | tuple) else ())
    return Person(handle.requester, handle.roles if handle.requester else ())


@dataclass(frozen=True, slots=True)
class Asking:
    """The questions of an agent. Its engine knows the tools, which an edit needs."""

    engine: Engine

    def batch(self, state: Conversation, handle: Handle, config: RunnableConfig) -> Steps[Command[Any]]:
        """Ask for all that waits in one interrupt, and send what is decided on; it is asked again for the rest."""
        stale = [ticket for ticket in state["waiting"] if is_stale(ticket, state["messages"])]
        tickets = [ticket for ticket in state["waiting"] if ticket not in stale]
        if not tickets:
            return Command(goto="model", update={"waiting": [gone(ticket) for ticket in stale]})
        shown = yield from waiting(handle, ids_of(tickets))
        problem: str | None = None
        if shown:
            try:
                answer = self._question(tickets, shown)
            except GraphInterrupt:
                if len(shown) == len(ids_of(tickets)):
                    raise
            else:
                problem = yield from self._apply(answer, tickets, shown, handle, person_of(config, handle))
                shown = yield from _or_all(waiting(handle, ids_of(tickets)), shown)
        ready = [ticket for ticket in tickets if ticket["action_id"] not in shown]
        again: list[Ticket] = [{**ticket, "problem": problem} for ticket in tickets if ticket not in ready]
        update = {"waiting": [*again, *map(gone, (*stale, *ready))]}
        goto: Any = [Send("action", ticket["request"]) for ticket in ready] or "approve"
        return Command(goto=goto, update=update)

    def _question(self, tickets: Sequence[Ticket], shown: Mapping[str, Shown]) -> Any:
        asked = [shown[name] for name in ids_of(tickets) if name in shown]
        problem = next((ticket["problem"] for ticket in tickets if ticket["problem"]), None)
        return interrupt(batched(asked, problem), response_schema=answer_schema(len(asked)))

    def _apply(
        self, answer: object, tickets: Sequence[Ticket], shown: Mapping[str, Shown], handle: Handle, person: Person
    ) -> Steps[str | None]:
        """Write down what an answer decides, by its place among all that was shown when it was asked for: a question
        stands only while nothing of it is decided. Return why some of it could not be.
        """
        asked = [shown.get(name) or _as_asked(tickets, name) for name in ids_of(tickets)]
        chosen = read_answer(answer, asked)
        if isinstance(chosen, Unusable):
            return chosen.problem
        problems: list[str] = []
        for one, choice in zip(asked, chosen, strict=True):
            if one.action_id in shown:
                problem = yield from self.decide(one, choice, handle, person)
                problems += [f"{one.tool}: {problem}"] if problem else []
        return "; ".join(problems) or None

    def single(
        self, request: Request, answer: Answer, handle: Handle, config: RunnableConfig, problem: str | None = None
    ) -> Steps[str | None]:
        """Ask for one call in its own task; return why its answer could not be used, as `problem` says of the last."""
        name = answer["artifact"]["action_id"]
        shown = yield from waiting(handle, [name])
        if name not in shown:
            return None
        is_for_it = request.get("is_alone", False) or _is_addressed(config)
        given = interrupt(single(shown[name], request["tool_call_id"], problem), response_schema=decision_schema())
        if not is_for_it:
            return NOT_ADDRESSED
        chosen = read_answer(given, [shown[name]])
        if isinstance(chosen, Unusable):
            return chosen.problem
        return (yield from self.decide(shown[name], chosen[0], handle, person_of(config, handle)))

    def decide(self, one: Shown, choice: Decision, handle: Handle, person: Person) -> Steps[str | None]:
        """Write a decision down; return why it could not be. It stands after an interrupt, and raises nothing."""
        if person.name is None and one.is_reserved:
            return "who decides is not known: name the approver in the run's configuration"
        try:
            who = Decider(by=person.name or SOMEBODY, roles=person.roles)
            yield from deciding(self.engine, handle, one.action_id, choice, who, one.fingerprint)
        except AlreadyDecided as error:  # what was decided first stands, and the call goes on with it
            _log.info("a second decision about %s: %s", one.action_id, error)
        except SettledError as error:
            return str(error)
        except Exception as error:
            if is_control_flow(error):
                raise
            _log.exception("a decision about %s", one.action_id)
            return NOT_RECORDED
        return None


def deciding(
    engine: Engine, handle: Handle, action_id: str, choice: Decision, who: Decider, fingerprint: str | None
) -> Steps[Action]:
    """Write a decision about an action of this thread into the ledger. Raises as `Desk.decide` does."""
    action = yield from seen(handle.tenant, action_id, fingerprint, thread_id=handle.thread_id)
    shown = fingerprint or action.fingerprint
    if not isinstance(choice, Edit):
        query = decide(handle.tenant, action_id, choice, who, fingerprint=shown, thread_id=handle.thread_id)
        return (yield from query)
    contract = engine.contract_named(action.tool)
    if contract is None:
        raise ContractError(f"an edit needs the tool {action.tool}, which this agent does not have")
    call = edited(contract, action, choice, engine.store, engine.policies)
    return (yield from edit(call, action, choice, who))


def waiting(handle: Handle, action_ids: Iterable[str]) -> Steps[dict[str, Shown]]:
    """Return what of these actions still waits for a person, by its id."""
    listed = yield from ask(ledger.open_approvals(handle.tenant, thread_id=handle.thread_id, most=MAX_OPEN))
    tickets = {approval.action_id: approval for approval in listed}
    shown: dict[str, Shown] = {}
    for name in action_ids:
        if name in tickets:
            shown[name] = shown_of(tickets[name])
            continue
        action = yield from ask(ledger.load(handle.tenant, name))
        if action is not None and action.state is State.PLANNED and not action.asking_is_over:
            shown[name] = shown_of_action(action)
    return shown


def _is_addressed(config: RunnableConfig) -> bool:
    """Whether the answer that a task has got was sent to its own interrupt, by id. One that was sent to whatever waits
    is taken by the first task that asks: that may be one whose question nobody has seen, since a crash came before it.
    """
    scratchpad = config.get("configurable", {}).get(SCRATCHPAD_KEY)
    return bool(getattr(scratchpad, "resume", ()))


def ids_of(tickets: Iterable[Ticket]) -> list[str]:
    """Return the actions of tickets, each once: two calls of one message may wait for the same one."""
    return list(dict.fromkeys(str(ticket["action_id"]) for ticket in tickets))


def _as_asked(tickets: Sequence[Ticket], action_id: str) -> Shown:
    """Return an action that is decided by now as far as its ticket tells: an answer still has a place for it."""
    ticket = next(ticket for ticket in tickets if ticket["action_id"] == action_id)
    request = ticket["request"]
    return Shown(action_id, ticket["fingerprint"], request["name"], request["args"], "", None)


def _or_all(looking: Steps[dict[str, Shown]], before: dict[str, Shown]) -> Steps[dict[str, Shown]]:
    """Look again; where the ledger is away, all of it is asked again, by a task that may fail."""
    try:
        return (yield from looking)
    except SettledError:
        return before
