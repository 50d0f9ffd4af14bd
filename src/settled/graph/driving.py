"""The two drivers of a turn, sync and async: they carry out its effects on a graph, and hold no rules.

A driver that streams yields what LangGraph yields; one that does not yields nothing. The subtle thing: whoever stops
listening ends the graph's own stream, so that its calls are ended and recorded before the thread's lock is given back.
"""

from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END
from langgraph.types import Command, Send

from settled.graph.agent import Agent
from settled.graph.channel import gone
from settled.graph.hosting import Host
from settled.graph.identity import Handle
from settled.graph.moves import WRITES, Carry, Catch, Effect, Fill, Forget, Fork, Go, Look, Rest, Tell, Thread
from settled.graph.turn import Reply, Turn
from settled.state.store import Ledger
from settled.tools.effects import Ask

COPY = "__copy__"
"""LangGraph's own: an update by this name copies a checkpoint, without what its tasks have written (1.2.24)."""


@dataclass(frozen=True, slots=True)
class Driver:
    """What carries a turn out. `how` goes to each run of the graph; `listening` too, if it is to be streamed."""

    host: Host
    ledger: Ledger
    thread: Thread
    config: RunnableConfig
    how: Mapping[str, Any]
    listening: Mapping[str, Any] | None = None

    @property
    def agent(self) -> Agent:
        """The graph."""
        return self.host.agent

    @property
    def handle(self) -> Handle:
        """Whose run it is."""
        return self.thread.handle

    def drive(self, turn: Turn) -> Generator[Any, None, Reply]:
        """Carry a turn out in this thread."""
        answer: Any = None
        raised: Exception | None = None
        while True:
            try:
                effect = turn.throw(raised) if raised else turn.send(answer)
            except StopIteration as end:
                reply: Reply = end.value
                return reply
            raised = None
            try:
                answer = yield from self._carry_out(effect)
            except Exception as error:  # noqa: BLE001 - the turn decides; what it does not want it raises again
                raised = error

    async def adrive(self, turn: Turn) -> AsyncGenerator[Any, None]:
        """Carry a turn out in this event loop; the last thing that comes is its Reply."""
        answer: Any = None
        raised: Exception | None = None
        while True:
            try:
                effect = turn.throw(raised) if raised else turn.send(answer)
            except StopIteration as end:
                yield end.value
                return
            raised = answer = None
            try:
                if self.listening is not None and isinstance(effect, Go | Catch):
                    self.thread.check()
                    async with aclosing(self._astreamed(effect)) as chunks:
                        async for chunk in chunks:
                            yield chunk
                else:
                    answer = await self._acarry_out(effect)
            except Exception as error:  # noqa: BLE001 - as in drive
                raised = error

    def _carry_out(self, effect: Effect) -> Generator[Any, None, Any]:
        if isinstance(effect, WRITES):
            self.thread.check()
        match effect:
            case Look(at=at):
                return self.agent.get_state(self._at(at))
            case Go() | Catch() if self.listening is not None:
                given, config = self._given(effect)
                yield from self.agent.stream(given, config, **self.how, **self.listening)
            case Go() | Catch():
                given, config = self._given(effect)
                return self.agent.invoke(given, config, **self.how)
            case Carry(request=request) if not self.host.engine.needs_graph(request):
                return self.host.engine.call(request, self.handle, self.config)
            case Tell() | Rest() | Fill() | Forget() | Fork():
                return self.agent.update_state(*self._update(effect))
            case Ask(query=query):
                return self.ledger.run(query)
        return None

    async def _acarry_out(self, effect: Effect) -> Any:
        if isinstance(effect, WRITES):
            self.thread.check()
        match effect:
            case Look(at=at):
                return await self.agent.aget_state(self._at(at))
            case Go() | Catch():
                given, config = self._given(effect)
                return await self.agent.ainvoke(given, config, **self.how)
            case Carry(request=request) if not self.host.engine.needs_graph(request):
                return await self.host.engine.acall(request, self.handle, self.config)
            case Tell() | Rest() | Fill() | Forget() | Fork():
                return await self.agent.aupdate_state(*self._update(effect))
            case Ask(query=query):
                return await self.ledger.arun(query)
        return None

    async def _astreamed(self, effect: Go | Catch) -> AsyncGenerator[Any, None]:
        given, config = self._given(effect)
        stream: Any = self.agent.astream(given, config, **self.how, **(self.listening or {}))
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                yield chunk

    def _given(self, effect: Go | Catch) -> tuple[Any, RunnableConfig]:
        """Return the input of a run, and its configuration."""
        match effect:
            case Go(message=None, at=at):
                return None, self._at(at)
            case Go(message=message):
                return {self.host.shape.messages: [message]}, self.config
            case Catch(calls=calls):
                return Command(goto=Send("late", {"calls": list(calls)})), self.config

    def _update(self, effect: Tell | Rest | Fill | Forget | Fork) -> tuple[RunnableConfig, Any, str | None]:
        """Return an update of the state: where, what, and by which node."""
        match effect:
            case Fill(messages=messages, tickets=tickets, node=node):
                filled: dict[str, Any] = {self.host.shape.messages: list(messages)}
                if self.host.shape.is_ours:
                    filled["waiting"] = [gone(ticket) for ticket in tickets]
                return self.config, filled, node or self.host.shape.answers
            case Tell(messages=messages, node=node):
                return self.config, {self.host.shape.messages: list(messages)}, node
            case Rest():
                return self.config, None, END
            case Forget():
                return self.config, None, COPY
            case Fork(at=at, values=values, as_node=as_node):
                return self._at(at), dict(values), as_node

    def _at(self, checkpoint_id: str | None) -> RunnableConfig:
        if checkpoint_id is None:
            return self.config
        return {**self.config, "configurable": {**self.config["configurable"], "checkpoint_id": checkpoint_id}}
