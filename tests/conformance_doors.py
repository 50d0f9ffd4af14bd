"""The four doors, sync and async, as the scenarios of `conformance` go through them; and what was seen on the way.

A `Stage` is what a door stands on: a database of its own, a ledger whose clock is a test's, a saver. So the same
thread, the same calls and the same far side meet each door, and what they leave can be laid side by side.
"""

import asyncio
import json
import os
import re
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from acts import Clock
from conformance import (
    FIRST,
    NEVER,
    Call,
    Decided,
    Fault,
    Passed,
    Resolved,
    Resumed,
    Scenario,
    Status,
    Step,
    Turn,
)
from scripted import Remote, ScriptedModel
from settled import (
    Absent,
    Action,
    ActionMiddleware,
    ActionNode,
    ActionTool,
    Approval,
    Backoff,
    Code,
    Desk,
    Ended,
    Found,
    Incidental,
    Inquiry,
    Ledger,
    LedgerUnavailable,
    NotPermitted,
    Outcome,
    Secret,
    Session,
    Succeeded,
    World,
    action,
    aopen_checkpointer,
    aperform,
    build_agent,
    current_action,
    open_checkpointer,
    perform,
)
from settled.state.machine import BIRTH, Trigger
from settled.tools.effects import Effect
from settled.tools.messages import language_of, status
from settled.tools.outcome import from_status
from tool_doors import around

SECRET_KEY = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
PATIENCE_S = 20.0
"""For something that happens in another task or thread."""


class Away(Ledger):
    """A ledger that is away when a test says so."""

    is_away = False

    def run(self, query: Any) -> Any:
        self._check()
        return super().run(query)

    async def arun(self, query: Any) -> Any:
        self._check()
        return await super().arun(query)

    def _check(self) -> None:
        if self.is_away:
            raise LedgerUnavailable("it is away")


class FarSide:
    """Refunds orders, remembers by which key, and has the faults of a scenario. Its memory is a table where it has to
    survive its caller.
    """

    def __init__(self, faults: Sequence[Fault], ledger: Ledger, clock: Clock, table: Remote | None = None) -> None:
        self.effects: dict[str, str] = {}
        self.sent: list[str] = []
        self.begun = threading.Event()
        self.may_end = threading.Event()
        self._faults = iter(faults)
        self._ledger = ledger
        self._clock = clock
        self._table = table
        self._lock = threading.Lock()

    def act(self, order: str) -> object:
        """Carry out one attempt of the action that runs."""
        key = current_action().idempotency_key
        fault = self._begin(key)
        if isinstance(fault, str) and fault != NEVER:
            self._commit(key, order)
        self.begun.set()
        match fault:
            case "lost" | "never":
                raise TimeoutError("no reply")
            case "hangs":
                self.may_end.wait(PATIENCE_S)
                raise TimeoutError("no reply")
            case "meets":
                wait_until(partial(self._is_repeated, current_action().action_id))
            case "kills":
                os.kill(os.getpid(), signal.SIGKILL)
            case Status(code=code, headers=headers):
                raise Ended(from_status(code, headers, b"", self._clock()))
        return self._reply(key) if isinstance(fault, str) else fault

    def find(self, inquiry: Inquiry) -> Found | Absent:
        """Answer a query by key."""
        key = inquiry.idempotency_key
        receipt = self.effects.get(key) if self._table is None else self._table.find(key)
        return Absent() if receipt is None else Found(receipt, {"receipt": receipt})

    def _is_repeated(self, action_id: str) -> bool:
        return any(event.trigger == "repeat" for event in self._ledger.timeline(action_id))

    def _begin(self, key: str) -> Fault:
        with self._lock:
            self.sent.append(key)
            return next(self._faults, "")

    def _commit(self, key: str, order: str) -> None:
        if self._table is not None:
            self._table.act(key, order=order)
        with self._lock:
            number = sum(receipt.startswith(f"RF-{order}-") for receipt in self.effects.values()) + 1
            self.effects.setdefault(key, f"RF-{order}-{number}")

    def _reply(self, key: str) -> Succeeded:
        return Succeeded({"receipt": self.effects[key]}, self.effects[key])


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for what happens in another thread or task."""
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def tools_of(scenario: Scenario, far: FarSide, *, is_async: bool) -> list[ActionTool]:
    """Return a refund and a charge by the scenario's contract, and a look that is no write."""
    declared: dict[str, Any] = {
        "risk": "non_idempotent_write",
        "remote": "dedupes",
        "identity": ("order_id",),
        "query": far.find,
        "backoff": Backoff(jitter=0),
        "summary": {"en": "refund of {amount} for {order_id}", "zh": "{order_id} 退款 {amount}"},
    }

    def refund(order_id: str, amount: float, memo: Annotated[str, Incidental()] = "") -> object:
        """Refund an order."""
        return far.act(order_id)

    async def arefund(order_id: str, amount: float, memo: Annotated[str, Incidental()] = "") -> object:
        """Refund an order."""
        return await asyncio.to_thread(far.act, order_id)

    def charge(order_id: str, amount: float, card: Annotated[str, Secret()]) -> object:
        """Refund an order to a card."""
        return far.act(order_id)

    async def acharge(order_id: str, amount: float, card: Annotated[str, Secret()]) -> object:
        """Refund an order to a card."""
        return await asyncio.to_thread(far.act, order_id)

    def look(order_id: str) -> dict[str, str]:
        """Look an order up."""
        return {"order": order_id, "status": "delivered"}

    async def alook(order_id: str) -> dict[str, str]:
        """Look an order up."""
        return look(order_id)

    write = {**declared, **scenario.contract}
    bodies: list[Any] = [arefund, acharge, alook] if is_async else [refund, charge, look]
    risks = [write, write, {"risk": "read"}]
    names = ["refund", "charge", "look"]
    return [action(**{**risk, "name": name})(body) for risk, name, body in zip(risks, names, bodies, strict=True)]


@dataclass
class Stage:
    """What one door stands on, sync or async; for as many scenarios as one likes."""

    door: str
    is_async: bool
    ledger: Away
    clock: Clock
    saver: Any
    watch: Callable[[Effect, str], None] | None = None

    @property
    def world(self) -> World:
        """A wait takes its time on the ledger's clock, and next to none on ours."""

        def sleep(seconds: float) -> None:
            self.clock.sleep(seconds)
            time.sleep(0.01)

        async def asleep(seconds: float) -> None:
            self.clock.sleep(seconds)
            await asyncio.sleep(0.01)

        return World(sleep=sleep, asleep=asleep, watch=self.watch)

    async def blocking(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        return await asyncio.to_thread(function, *args, **options)


@asynccontextmanager
async def stage(url: str, door: str, mode: str) -> AsyncIterator[Stage]:
    """Open a stage on a database of its own."""
    clock = Clock()
    ledger = await asyncio.to_thread(Away.connect, url, clock=clock, secret_key=SECRET_KEY)
    try:
        if mode == "async":
            async with aopen_checkpointer(ledger) as saver:
                yield Stage(door, True, ledger, clock, saver)
        else:
            with open_checkpointer(ledger) as saver:
                yield Stage(door, False, ledger, clock, saver)
    finally:
        await ledger.aclose()
        ledger.close()


@dataclass(frozen=True)
class Told:
    """What the model was told in answer to one call."""

    tool: str
    text: str
    artifact: Mapping[str, Any]
    status: str

    @property
    def code(self) -> str:
        return str(self.artifact["code"])


@dataclass
class Seen:
    """What a scenario has left."""

    told: list[Told]
    actions: list[dict[str, Any]]
    effects: list[str]
    sent: list[str]
    asked: list[str]

    @property
    def events(self) -> list[str]:
        """The triggers of each action that moved it; what was only noted (a repeat, a question) is left out."""
        moves = {BIRTH, *Trigger}
        return [" ".join(event[0] for event in one["events"] if event[0] in moves) for one in self.actions]


class Play:
    """One scenario on one stage. What a door adds: `turn`, `go_on`, `decide`, and what was told."""

    def __init__(self, stage: Stage, scenario: Scenario, table: Remote | None = None) -> None:
        self.stage = stage
        self.scenario = scenario
        self.far = FarSide(scenario.faults, stage.ledger, stage.clock, table)
        self.tools = tools_of(scenario, self.far, is_async=stage.is_async)
        self.asked: list[str] = []
        self.number = 0

    def build(self) -> None:
        """Make what is called."""

    async def play(self) -> Seen:
        """Carry out the steps, and return what was seen."""
        self.build()
        try:
            for step in self.scenario.steps:
                await self._step(step)
        finally:
            self.far.may_end.set()
        return await self.seen()

    async def seen(self) -> Seen:
        """Return what there is to see by now."""
        told = await self.told()
        return Seen(told, await self.actions(), sorted(self.far.effects), self.far.sent, self.asked)

    async def _step(self, step: Step) -> None:
        match step:
            case Turn(meanwhile="cancelled"):
                self.number += 1
                await self._cancelled(step)
            case Turn():
                self.number += 1
                await self.turn(step)
                self.stage.ledger.is_away = False
            case Decided(refused=True):
                with pytest.raises(NotPermitted):
                    await self._decided(step)
            case Decided():
                await self._decided(step)
            case Resolved():
                await self._resolved(step)
            case Passed(seconds=seconds):
                self.stage.clock.sleep(seconds)
            case Resumed():
                await self.go_on()

    async def _cancelled(self, turn: Turn) -> None:
        call = asyncio.create_task(self.turn(turn))
        assert await asyncio.to_thread(self.far.begun.wait, PATIENCE_S)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        (left,) = await self.actions()
        assert left["state"] == "unknown"

    async def _decided(self, step: Decided) -> None:
        desk = Desk(self.stage.ledger, tools=self.tools)
        waits = await self.stage.blocking(desk.approvals, thread_id=self.scenario.name)
        self.asked.extend(str(one) for one in waits)
        (approval,) = [one for one in waits if one.arguments["order_id"] == step.order]
        await self.decide(approval, step)

    async def _resolved(self, step: Resolved) -> None:
        desk = Desk(self.stage.ledger, tools=self.tools)
        first = (await self._rows())[0]
        await self.stage.blocking(desk.resolve, first.id, step.resolution, by="sue", fingerprint=first.fingerprint)

    async def actions(self) -> list[dict[str, Any]]:
        """Return what the ledger has of the thread, by order and occurrence."""
        rows = sorted(await self._rows(), key=lambda one: (str(one.arguments["order_id"]), one.planned_at, one.id))
        return [await self.stage.blocking(self._record, row) for row in rows]

    async def _rows(self) -> list[Action]:
        """Return the thread's actions, oldest first."""
        found: list[Action] = await self.stage.blocking(self.stage.ledger.actions, thread_id=self.scenario.name)
        return found[::-1]

    def _record(self, row: Action) -> dict[str, Any]:
        events = self.stage.ledger.timeline(row.id)
        names = ("state", "code", "reason", "receipt", "result", "evidence", "attempt", "occurrence", "summary")
        return {
            **{name: getattr(row, name) for name in names},
            "idempotency_key": row.idempotency_key,
            "fingerprint": row.fingerprint,
            "requester": row.requester,
            "correlation_id": row.correlation_id,
            "events": [(event.trigger, event.from_state, event.to_state, event.attempt) for event in events],
        }

    def calls(self, turn: int, message: int) -> list[dict[str, Any]]:
        """Return what the model calls, as it says so."""
        calls = self.scenario.turns[turn - 1].says[message]
        return [
            {"name": one.tool, "args": self._filled(one), "id": f"call-{turn}-{message}-{n}", "type": "tool_call"}
            for n, one in enumerate(calls)
        ]

    def _filled(self, call: Call) -> dict[str, Any]:
        """Return a call's arguments, with the id of the first action where it is meant."""
        return {name: self._first() if value == FIRST else value for name, value in call.arguments.items()}

    def _first(self) -> str:
        return self.stage.ledger.actions(thread_id=self.scenario.name)[-1].id

    async def turn(self, turn: Turn) -> None:
        raise NotImplementedError

    async def go_on(self) -> None:
        raise NotImplementedError

    async def decide(self, approval: Approval, step: Decided) -> None:
        raise NotImplementedError

    async def told(self) -> list[Told]:
        raise NotImplementedError


class Performed(Play):
    """`perform`: who calls it does what an agent would, and calls again what waits."""

    def __init__(self, stage: Stage, scenario: Scenario, table: Remote | None = None) -> None:
        super().__init__(stage, scenario, table)
        self._by_name = {tool.name: tool for tool in self.tools}
        self._told: dict[str, tuple[str, Outcome]] = {}
        self._text = ""

    async def turn(self, turn: Turn) -> None:
        if self.number > 1:
            await self._carry_on(self.number - 1)  # what is open goes first
        self._text = turn.text
        self.stage.ledger.is_away = turn.meanwhile == "away"
        await self.go_on()

    async def go_on(self) -> None:
        await self._carry_on(self.number)

    async def _carry_on(self, turn: int) -> None:
        for message in range(len(self.scenario.turns[turn - 1].says)):
            calls = [one for one in self.calls(turn, message) if not self._is_answered(one)]
            outcomes = await asyncio.gather(*(self._call(f"ai-{turn}-{message}", one) for one in calls))
            self._told |= {one["id"]: (one["name"], out) for one, out in zip(calls, outcomes, strict=True)}
            if not all(self._is_answered(one) for one in calls):
                return

    def _is_answered(self, call: Mapping[str, Any]) -> bool:
        told = self._told.get(call["id"])
        return told is not None and told[1].code is not Code.WAITING_FOR_APPROVAL

    async def _call(self, said: str, call: Mapping[str, Any]) -> Outcome:
        options: dict[str, Any] = {
            "ledger": self.stage.ledger,
            "thread_id": self.scenario.name,
            "decision": (said, call["id"], "0"),
            "correlation_id": f"{said}/{call['id']}",
            "requester": self.scenario.requester,
            "roles": self.scenario.roles,
            "language": language_of(self._text),
            "world": self.stage.world,
        }
        tool = self._by_name[call["name"]]
        if self.stage.is_async:
            return await aperform(tool, call["args"], **options)
        return await asyncio.to_thread(perform, tool, call["args"], **options)

    async def decide(self, approval: Approval, step: Decided) -> None:
        desk = Desk(self.stage.ledger, tools=self.tools)
        who = {"by": step.by, "roles": step.roles, "fingerprint": approval.fingerprint}
        if self.stage.is_async:
            await desk.adecide(approval.action_id, step.decision, **who)
        else:
            await asyncio.to_thread(desk.decide, approval.action_id, step.decision, **who)
        await self.go_on()

    async def told(self) -> list[Told]:
        return [
            Told(name, outcome.message, _plain(outcome.artifact), status(outcome.code))
            for name, outcome in self._told.values()
        ]


class Talked(Play):
    """An agent, run through sessions."""

    def __init__(self, stage: Stage, scenario: Scenario, table: Remote | None = None) -> None:
        super().__init__(stage, scenario, table)
        self._told: dict[str, ToolMessage] = {}
        self.agent: Any = None

    def build(self) -> None:
        """Make the agent."""
        self.agent = AGENTS[self.stage.door](self, ScriptedModel(script=self._script))

    def _script(self, messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        turn = sum(isinstance(message, HumanMessage) for message in messages)
        last = max(i for i, message in enumerate(messages) if isinstance(message, HumanMessage))
        said = sum(bool(getattr(message, "tool_calls", None)) for message in messages[last:])
        wanted = self.scenario.turns[turn - 1]
        if said >= len(wanted.says):
            return AIMessage("that is all", id=f"end-{turn}")
        calls = self.calls(turn, said)
        self.stage.ledger.is_away = wanted.meanwhile == "away"
        return AIMessage("", id=f"ai-{turn}-{said}", tool_calls=calls)

    @property
    def session(self) -> Session:
        scenario = self.scenario
        who: dict[str, Any] = {"requester": scenario.requester, "roles": scenario.roles}
        return Session(self.agent, ledger=self.stage.ledger, thread_id=scenario.name, **who)

    async def turn(self, turn: Turn) -> None:
        await self._do("send", turn.text, message_id=f"user-{self.number}")

    async def go_on(self) -> None:
        await self._do("resume")

    async def decide(self, approval: Approval, step: Decided) -> None:
        who = {"by": step.by, "roles": step.roles, "fingerprint": approval.fingerprint}
        await self._do("decide", approval.action_id, step.decision, **who)

    async def _do(self, what: str, /, *args: Any, **options: Any) -> None:
        if self.stage.is_async:
            reply = await getattr(self.session, f"a{what}")(*args, **options)
        else:
            reply = await asyncio.to_thread(getattr(self.session, what), *args, **options)
        self.asked.extend(str(one) for one in reply.approvals)
        self.stage.ledger.is_away = False
        messages = await self.messages()
        now = f"call-{self.number}-"
        for one in messages:
            if isinstance(one, ToolMessage) and (
                one.tool_call_id.startswith(now) or one.tool_call_id not in self._told
            ):
                self._told[one.tool_call_id] = one

    async def messages(self) -> Sequence[BaseMessage]:
        if self.stage.is_async:
            state = await self.agent.aget_state(self.session.config)
        else:
            state = await asyncio.to_thread(self.agent.get_state, self.session.config)
        messages: Sequence[BaseMessage] = state.values["messages"]
        return messages

    async def told(self) -> list[Told]:
        """Return what was told in each turn by its end, by call; at the end each call has one answer, in its place."""
        self._check_places(await self.messages())
        return [
            Told(str(one.name), str(one.content), _plain(one.artifact), one.status)
            for _, one in sorted(self._told.items())
        ]

    def _check_places(self, messages: Sequence[BaseMessage]) -> None:
        """Check that the answers follow their message, one for each call, in the order of the calls."""
        for place, message in enumerate(messages):
            calls = [one["id"] for one in getattr(message, "tool_calls", [])]
            answers = messages[place + 1 : place + 1 + len(calls)]
            assert [getattr(one, "tool_call_id", None) for one in answers] == calls
        assert sum(isinstance(one, ToolMessage) for one in messages) == sum(
            len(getattr(one, "tool_calls", [])) for one in messages
        )


def _plain(artifact: Mapping[str, object]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(artifact))
    return plain


def _built(play: Play, model: ScriptedModel, **options: Any) -> Any:
    stage = play.stage
    return build_agent(model, play.tools, ledger=stage.ledger, checkpointer=stage.saver, world=stage.world, **options)


def _created(play: Play, model: ScriptedModel) -> Any:
    stage = play.stage
    middleware = ActionMiddleware(ledger=stage.ledger, world=stage.world)
    return create_agent(model, play.tools, middleware=[middleware], checkpointer=stage.saver)


def _made(play: Play, model: ScriptedModel) -> Any:
    stage = play.stage
    return around(ActionNode(play.tools, ledger=stage.ledger, world=stage.world), model, stage.saver)


AGENTS: Mapping[str, Callable[[Play, ScriptedModel], Any]] = {
    "build_agent": _built,
    "middleware": _created,
    "node": _made,
    "per_call": partial(_built, approvals="per_call"),
}
DOORS = ("perform", "build_agent", "middleware", "node")
ASKING_DOORS = ("per_call",)
"""The same doors again, for what people decide."""


def play_of(stage: Stage, scenario: Scenario, table: Remote | None = None) -> Play:
    """Return a scenario as it is played on a stage."""
    return (Performed if stage.door == "perform" else Talked)(stage, scenario, table)


_ACTION = re.compile(r"act-[0-9a-z]{16}")
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:\+00:00|Z)")


def alike(told: Sequence[Told]) -> list[Told]:
    """Return what was told without what no two runs have in common: the ids of actions, and instants.

    That a call waits is read from the ledger by a session that closes its turn, and found out anew by `perform`.
    """
    names: dict[str, str] = {}

    def one(text: str) -> str:
        named = _ACTION.sub(lambda found: names.setdefault(found[0], f"act-{len(names) + 1}"), text)
        return _INSTANT.sub("<instant>", named)

    def record(each: Told) -> dict[str, Any]:
        plain: dict[str, Any] = json.loads(one(json.dumps(each.artifact, sort_keys=True)))
        return {k: v for k, v in plain.items() if k != "replayed" or each.code != Code.WAITING_FOR_APPROVAL}

    return [replace(each, text=one(each.text), artifact=record(each)) for each in told]
