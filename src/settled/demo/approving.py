"""Plays the scenarios in which a person is asked: agents that wait, and supervisors that are processes of their own.

The agents look into the ledger while they wait, and the supervisors write into it: nothing goes from one to the other.
This module only says when. A supervisor always looks first, and approves what was shown.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from settled.demo.processes import RUN_S, Child, DemoFailed
from settled.demo.scenarios import TENANT
from settled.demo.story import Mark, Story, Told
from settled.state.store import Ledger

WAIT_S = 60.0
"""How long an agent waits for a decision; a demo's comes at once."""

SETTLED_DOWN_S = 0.3
"""After this an agent that was told to wait is in the middle of it."""

FINGERPRINT = re.compile(r"(sha256:[0-9a-f]{12})[0-9a-f]+")
"""Twelve digits are enough to tell two apart."""


@dataclass(frozen=True)
class Stage:
    """Who plays: the processes, and the task that every agent is given."""

    story: Story
    ledger: Ledger
    agents: Sequence[Child]
    supervisors: Mapping[str, Child]
    task: Mapping[str, Any]

    def mark(self, text: str, detail: str = "", *, who: str = "process", at: float | None = None) -> None:
        """Write down what somebody does."""
        self.story.marks.append(Mark(at or time.time(), text, detail, who))

    def carry_on(self, agent: Child, **own: Any) -> Told:
        """Give an agent the task, or another one of the same thread, and return what it answers."""
        agent.tell({**self.task, **own})
        return Told(**agent.answer(RUN_S))

    def send(self, agent: Child, turn: int, **own: Any) -> Told:
        """Give an agent the user's words of one turn."""
        ids = self.task["message_ids"]
        return self.carry_on(agent, turns=[self.story.turns[turn]], message_ids=[ids[turn]], **own)

    def wait(self, agent: Child) -> None:
        """Let an agent wait for the decision and go on with it; it answers when that is done."""
        agent.tell({**self.task, "turns": [], "message_ids": [], "wait_s": WAIT_S})


def play_asking(stage: Stage) -> Told:
    """Play a scenario in which a person is asked; a model that asks for nothing ends it at once."""
    agent, scenario = stage.agents[0], stage.story.scenario
    stage.mark("process 1 starts")
    told = stage.send(agent, 0)
    if told.waiting and scenario.rewritten:
        told = _changed(stage, agent)
    if not told.waiting:
        return told
    stage.mark("process 1 waits")
    stage.wait(agent)
    if scenario.dies_waiting:
        agent = _killed(stage, agent, told.waiting[0])
    if scenario.supervisors:
        _click(stage, _seen(stage))
    return Told(**agent.answer(RUN_S))


def _killed(stage: Stage, agent: Child, action_id: str) -> Child:
    """Kill the agent in the middle of its waiting, and let another process take the thread over."""
    time.sleep(SETTLED_DOWN_S)
    agent.die()
    action = stage.ledger.action(action_id, tenant=TENANT)
    asked = f"the action is {action.state}: {_page_of(action.summary, action.fingerprint)}"
    stage.mark("process 1 dies (SIGKILL)", asked, at=agent.ended_at)
    stage.mark("process 2 takes over")
    other = stage.agents[1]
    told = stage.send(other, 0)
    if told.waiting == [action_id]:
        stage.mark("process 2 waits", "for the decision on the same action")
    stage.wait(other)
    return other


def _changed(stage: Stage, agent: Child) -> Told:
    """Let the first request be approved, and go on with another one in its place."""
    rewritten = stage.story.scenario.rewritten
    first = _seen(stage)
    _click(stage, first)
    changes = ", ".join(f"{name} becomes {value}" for name, value in rewritten.items())
    stage.mark("the call is changed", f"in the stored conversation: {changes}; and it goes on")
    told = stage.carry_on(agent, turns=[], message_ids=[], rewritten=dict(rewritten))
    if told.waiting:
        old_page = {**first, "action_id": told.waiting[0]}
        _click(stage, old_page, "clicks on the old page")
    return told


def _seen(stage: Stage) -> Mapping[str, Any]:
    """Let every supervisor look, and return what they see: the newest request of the thread."""
    seen: Mapping[str, Any] = {}
    for by, supervisor in stage.supervisors.items():
        supervisor.tell({"by": by, "thread_id": stage.task["thread_id"]})
        answer = supervisor.answer()
        if not answer["shown"]:
            raise DemoFailed(f"{by} was shown nothing to decide on")
        seen = answer["shown"][-1]
        stage.mark("sees the request", _page_of(seen["summary"], seen["fingerprint"]), who=by, at=answer["at"])
    return seen


def _click(stage: Stage, shown: Mapping[str, Any], text: str = "clicks approve") -> None:
    """Let all supervisors approve what was shown, at the same instant."""
    for by, supervisor in stage.supervisors.items():
        supervisor.tell({"by": by, "action_id": shown["action_id"], "fingerprint": shown["fingerprint"]})
    for by, supervisor in stage.supervisors.items():
        answer = supervisor.answer()
        heard = f"refused: {_short(answer['refused'])}" if answer["refused"] else "recorded"
        stage.mark(text, heard, who=by, at=answer["at"])


def _page_of(summary: str, fingerprint: str) -> str:
    return f"{summary} · {_short(fingerprint)}"


def _short(sentence: str) -> str:
    """Return a sentence with the beginnings of the fingerprints in it."""
    return FINGERPRINT.sub(r"\1…", sentence)
