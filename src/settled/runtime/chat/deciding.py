"""What is sent to a thread that waits (`command.resume`), as decisions in the ledger.

Who decides is whoever the token names; what was decided on is what the thread's interrupt shows, by its fingerprint.
The decision is written down before a run begins, so that a run that is lost, repeated or put off can neither lose it
nor give it to another question.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from langgraph.types import Interrupt

from settled.graph.agent import Agent
from settled.graph.approvals import Shown, Unusable, read_answer, requests_in
from settled.graph.approve import deciding
from settled.graph.hosting import host_of
from settled.graph.identity import Handle
from settled.graph.session import Session
from settled.runtime.chat.refusals import Refused
from settled.runtime.chat.who import Who, check_role
from settled.runtime.chat.wire import interrupts_of
from settled.state.errors import AlreadyDecided
from settled.tools.decisions import Decider, Decision

_AN_ID = re.compile(r"[0-9a-f]{32}")

NOTHING_WAITS = "nothing of this thread waits for an answer: what was asked is decided, or over"


async def decide(agent: Agent, session: Session, who: Who, thread_id: str, answer: Any) -> None:
    """Write down what an answer decides. Refused for an answer that decides nothing, and for a role that may not
    decide; raises what `Desk.decide` does. A repeat of what stands there is none.
    """
    check_role(who, "approver", "decide")
    state = await agent.aget_state(session.config)
    chosen = list(_decided(answer, interrupts_of(state)))
    engine, handle = host_of(agent).engine, Handle(who.tenant, thread_id)
    person = Decider(by=who.name, roles=who.roles)
    late: list[AlreadyDecided] = []
    for shown, decision in chosen:
        steps = deciding(engine, handle, shown.action_id, decision, person, shown.fingerprint)
        try:
            await engine.runner().adrive(steps)
        except AlreadyDecided as error:  # the others of the answer still count
            late.append(error)
    if late and len(late) == len(chosen):
        raise late[0]


def _decided(answer: Any, waiting: list[Interrupt]) -> Iterator[tuple[Shown, Decision]]:
    """Yield what an answer says about each action that waits."""
    if not waiting:
        raise Refused(409, NOTHING_WAITS)
    for interrupt, part in _addressed(answer, waiting):
        shown = [_shown(request) for request in requests_in(interrupt.value)]
        if not shown:
            raise Refused(422, "command.resume: what waits is no request of an action, and is not answered here")
        read = read_answer(part, shown)
        if isinstance(read, Unusable):
            raise Refused(422, f"command.resume: {read.problem}")
        yield from zip(shown, read, strict=True)


def _addressed(answer: Any, waiting: list[Interrupt]) -> list[tuple[Interrupt, Any]]:
    """Return which interrupt gets which part of an answer."""
    if isinstance(answer, Mapping) and answer and all(_AN_ID.fullmatch(str(key)) for key in answer):
        known = {interrupt.id: interrupt for interrupt in waiting}
        if unknown := [key for key in answer if key not in known]:
            raise Refused(409, f"the interrupt {unknown[0]} does not wait: {NOTHING_WAITS}")
        return [(known[key], part) for key, part in answer.items()]
    if len(waiting) > 1:
        raise Refused(422, "command.resume: several things wait; name each by its interrupt: {id: decision}")
    return [(waiting[0], answer)]


def _shown(request: Mapping[str, Any]) -> Shown:
    return Shown(
        action_id=str(request["action_id"]),
        fingerprint=str(request["fingerprint"]),
        tool=str(request["name"]),
        arguments=request["args"],
        description=str(request.get("description") or ""),
        expires_at=request.get("expires_at"),
        round=request.get("round"),
    )
