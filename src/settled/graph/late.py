"""What became of a call whose turn is over: found in the ledger, carried to its end, and told to the user.

A turn may end while a call of it still waits: its user has written something else, its outcome was not known. Its tool
message then says so, and that is true until the ledger says otherwise. Owns the finding of such messages and the node
that carries their actions on: the message is replaced in its place, and the recorded sentence of fact follows as the
agent's own, without a model. The subtle thing: two messages may speak of one action, and only the newest is looked at,
so that nothing is told twice.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, TypedDict
from uuid import uuid4

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolMessage
from langchain_core.runnables import Runnable, RunnableConfig

from settled.graph.answers import Answer, answer_id, recorded_facts, spoken_in, tool_message
from settled.graph.calls import Request, requests_of
from settled.graph.chain_recall import CHAIN, chains_moved
from settled.graph.engine import Engine
from settled.graph.identity import Handle, check_lock
from settled.state import ledger
from settled.state.machine import State
from settled.state.model import Action
from settled.tools.effects import Steps, ask
from settled.tools.messages import Code
from settled.tools.perform import recalled

NOT_FINAL = frozenset({Code.WAITING_FOR_APPROVAL, Code.IN_PROGRESS, Code.UNKNOWN, Code.MANUAL_REVIEW})
"""The codes of answers that are true for a while."""

MAX_LATE = 20
"""At once, the newest: each is carried to its end before the user's message is accepted."""

MAX_OPEN = 1000
"""Answers of a thread that are looked at, the newest: more than one conversation can have open."""

LATE = "late-"
"""What the ids of the messages begin with that tell it."""

Update = dict[str, list[AnyMessage]]


class Belated(TypedDict):
    """A call whose answer is no longer true, and the code of that answer."""

    request: Request
    code: str


class Batch(TypedDict):
    """What the node `late` is sent: plain JSON."""

    calls: list[Belated]


class Late(Runnable[Batch, Update]):
    """The node `late`."""

    def __init__(self, engine: Engine, handle: Callable[[RunnableConfig], Handle]) -> None:
        self.name = "late"
        self._engine = engine
        self._handle = handle

    def invoke(self, input: Batch, config: RunnableConfig | None = None, **kwargs: Any) -> Update:  # noqa: A002
        config = config or {}
        check_lock(config)
        handle = self._handle(config)
        answers = [self._engine.call(call["request"], handle, config) for call in input["calls"]]
        check_lock(config)
        return told(input["calls"], answers)

    async def ainvoke(
        self,
        input: Batch,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Update:
        config = config or {}
        check_lock(config)
        handle = self._handle(config)
        answers = [await self._engine.acall(call["request"], handle, config) for call in input["calls"]]
        check_lock(config)
        return told(input["calls"], answers)


def told(calls: Sequence[Belated], answers: Sequence[Answer]) -> Update:
    """Return the messages in the place of the old ones, and what the user is told of those that say something new.

    An answer that names no action says that the ledger was away, and changes nothing.
    """
    messages: list[AnyMessage] = []
    news: list[ToolMessage] = []
    for call, answer in zip(calls, answers, strict=True):
        if not answer["artifact"].get("action_id"):
            continue
        message = tool_message(call["request"], answer)
        messages.append(message)
        if _code(answer["artifact"]) != call["code"]:
            news.append(message)
    if news:
        messages.append(AIMessage(content=recorded_facts(news), id=f"{LATE}{uuid4()}"))
    return {"messages": messages}


def is_late(message: BaseMessage) -> bool:
    """Whether a message tells what came late."""
    return isinstance(message, AIMessage) and (message.id or "").startswith(LATE)


def belated(messages: Sequence[AnyMessage], handle: Handle, *, only_open: bool = False) -> Steps[list[Belated]]:
    """Return the calls whose answers are true no longer by the ledger. A conversation without such ones asks nothing.

    With `only_open`, those alone that somebody has to carry on, such as one that was approved since.
    """
    unsettled = _unsettled(messages)[-MAX_OPEN:]
    if not unsettled:
        return []
    spoken = handle.language or spoken_in(messages)
    actions = yield from ask(ledger.load_all(handle.tenant, [action_id for _, action_id, _ in unsettled]))
    moved = {one.id: one for one in actions if one.thread_id == handle.thread_id and (one.is_open or not only_open)}
    runs = [(name, code) for _, name, code in unsettled if name.startswith(CHAIN)][-MAX_LATE:]
    chains = yield from chains_moved(handle, runs, only_open=only_open)
    found = (
        Belated(request=request, code=code)
        for message, action_id, code in reversed(unsettled)
        if action_id in chains or (action_id in moved and _has_moved(moved[action_id], code, handle))
        if (request := _request_of(message, messages, spoken)) is not None
    )
    return list(islice(found, MAX_LATE))[::-1]


def _unsettled(messages: Sequence[AnyMessage]) -> list[tuple[ToolMessage, str, str]]:
    """Return the answers that were true for a while, with action and code, the oldest first."""
    seen: set[object] = set()
    found = []
    for message in reversed(messages):
        if not isinstance(message, ToolMessage) or not isinstance(message.artifact, dict):
            continue
        name, code = message.artifact.get("action_id"), _code(message.artifact)
        if name and name not in seen and code in NOT_FINAL:
            found.append((message, str(name), str(code)))
        seen |= {name, message.artifact.get("supersedes")}
    return found[::-1]


def _code(artifact: dict[str, Any]) -> object:
    """Return what became of the action; of one that a person has changed, what became of the changed one."""
    return artifact.get("outcome") or artifact.get("code")


def _has_moved(action: Action, code: str, handle: Handle) -> bool:
    match action.state:
        case State.PLANNED:
            return action.asking_is_over
        case State.APPROVED:
            return True
        case State.RUNNING:
            return action.lease_is_over or handle.is_orphan(action)
        case State.CANCELLED if action.superseded_by is not None:
            return True
        case _:
            return str(recalled(action, "en").code) != code


def _request_of(message: ToolMessage, messages: Sequence[BaseMessage], language: str) -> Request | None:
    """Return the call that a message answers; None where the message that made it is gone."""
    for said in messages:
        if isinstance(said, AIMessage) and f"{said.id}/{message.tool_call_id}" == message.id:
            return next((one for one in requests_of(said, language) if answer_id(one) == message.id), None)
    return None
