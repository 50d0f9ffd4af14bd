"""A chat model that follows a script, and tools whose effects are rows that a test can count. No network.

And `Bank`: an agent whose tools ask a person, the same for both doors.
"""

import asyncio
import json
import os
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, LiteralString

import psycopg
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.types import Command
from pydantic import PrivateAttr

from settled import (
    Ledger,
    Reply,
    Session,
    action,
    always,
    aopen_checkpointer,
    build_agent,
    current_action,
    open_checkpointer,
)
from settled.tools.decisions import Decision

Script = Callable[[Sequence[BaseMessage], bool], AIMessage]


class ScriptedModel(BaseChatModel):
    """Says what `script(messages, has_tools)` returns; keeps what it was shown."""

    script: Any
    has_tools: bool = False
    _shown: list[list[BaseMessage]] = PrivateAttr(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self.bind(tools=[tool.name for tool in tools])

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        self._shown.append(messages)
        said = self.script(messages, bool(kwargs.get("tools")))
        return ChatResult(generations=[ChatGeneration(message=said)])


def call(name: str, tool_call_id: str | None = None, /, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args, "id": tool_call_id or f"call_{name}", "type": "tool_call"}


def calling(*calls: dict[str, Any]) -> AIMessage:
    return AIMessage(content="", tool_calls=list(calls))


def once(*calls: dict[str, Any]) -> Script:
    """Call these in each turn, then say what the tools answered."""

    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        if isinstance(messages[-1], HumanMessage):
            return calling(*calls)
        told = [message for message in messages if isinstance(message, ToolMessage)]
        return AIMessage(content=str(told[-1].content).split("\n")[0])

    return script


class Remote:
    """A remote side in a table: an effect is a committed row, and it can be asked by key. It keeps its connection,
    which several threads may use; a forked child opens one of its own.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._pid = -1
        self._execute("CREATE TABLE IF NOT EXISTS effects (id serial, key text, detail text)")

    def act(self, key: str, **detail: Any) -> dict[str, Any]:
        done = self._execute("INSERT INTO effects (key, detail) VALUES (%s, %s) RETURNING id", key, json.dumps(detail))
        return {"receipt": f"R-{done[0]}"}

    def find(self, key: str) -> str | None:
        found = self._execute("SELECT min(id) FROM effects WHERE key = %s", key)
        return f"R-{found[0]}" if found[0] is not None else None

    def count(self) -> int:
        return int(self._execute("SELECT count(*) FROM effects")[0])

    def _execute(self, statement: LiteralString, *params: str) -> Sequence[Any]:
        """Execute a statement, and return its first row."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._connection = psycopg.connect(self.url, autocommit=True)
            weakref.finalize(self, _close, self._connection, self._pid).atexit = False
        cursor = self._connection.execute(statement, params)
        return (cursor.fetchone() if cursor.description else None) or ()


_INHERITED: list[object] = []
"""A parent's connections: to close one in a forked child would say goodbye on the parent's socket."""


def _close(connection: "psycopg.Connection[Any]", pid: int) -> None:
    if os.getpid() == pid:
        connection.close()
    else:
        _INHERITED.append(connection)


def tools_that_ask(far: Remote, approval: Any, /, **contract: Any) -> list[Any]:
    """A payment that asks as `approval` says, a mail that always asks, and a look that asks nobody."""

    @action(
        risk="non_idempotent_write",
        identity="all",
        approval=approval,
        summary="payment of {amount} to {payee}",
        **contract,
    )
    def pay(payee: str, amount: float) -> dict[str, Any]:
        """Pay somebody."""
        return far.act(current_action().idempotency_key, payee=payee, amount=amount)

    @action(risk="non_idempotent_write", identity="all", approval=always, summary="mail to {to}")
    def mail(to: str) -> dict[str, Any]:
        """Write to somebody."""
        return far.act(current_action().idempotency_key, to=to)

    @action(risk="read")
    def look(payee: str) -> str:
        """Look somebody up."""
        return f"{payee} is known"

    return [pay, mail, look]


class Bank:
    """An agent whose payments ask a person, run through LangGraph itself or through sessions, sync or async."""

    def __init__(self, door: str, ledger: Ledger, saver: Any, remote: Remote) -> None:
        self.door = door
        self.ledger = ledger
        self.saver = saver
        self.remote = remote
        self.agent: Any = None

    def serve(
        self, script: Script, approval: Any, *, contract: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        """Build the agent (anew: as another process would)."""
        tools = tools_that_ask(self.remote, approval, **(contract or {}))
        self.model = ScriptedModel(script=script)
        options = {"ledger": self.ledger, "checkpointer": self.saver, **options}
        self.agent = build_agent(self.model, tools, **options)

    def config(self, thread_id: str = "t", **configurable: Any) -> dict[str, Any]:
        return {"configurable": {"thread_id": thread_id, **configurable}}

    async def run(self, given: Any, **configurable: Any) -> Any:
        """Run the graph by itself."""
        if isinstance(given, str):
            given = {"messages": [HumanMessage(given)]}
        if self.door == "async":
            return await self.agent.ainvoke(given, self.config(**configurable), durability="sync")
        return await asyncio.to_thread(self.agent.invoke, given, self.config(**configurable), durability="sync")

    async def answer(self, answer: Any, **configurable: Any) -> Any:
        """Answer the interrupt."""
        return await self.run(Command(resume=answer), **configurable)

    async def state(self, **configurable: Any) -> Any:
        if self.door == "async":
            return await self.agent.aget_state(self.config(**configurable))
        return await asyncio.to_thread(self.agent.get_state, self.config(**configurable))

    async def asked(self) -> list[dict[str, Any]]:
        """Return the payloads of the thread's open interrupts."""
        return [interrupt.value for interrupt in (await self.state()).interrupts]

    async def messages(self) -> list[BaseMessage]:
        messages: list[BaseMessage] = (await self.state()).values["messages"]
        return messages

    async def codes(self) -> list[str]:
        """Return what the model was told, by code."""
        return [m.artifact["code"] for m in await self.messages() if isinstance(m, ToolMessage)]

    def session(self, **options: Any) -> Session:
        return Session(self.agent, ledger=self.ledger, **{"thread_id": "t", **options})

    async def send(self, text: str, **options: Any) -> Reply:
        message = {"message_id": options.pop("message_id", None)}
        session = self.session(**options)
        if self.door == "async":
            return await session.asend(text, **message)
        return await asyncio.to_thread(session.send, text, **message)

    async def resume(self, **options: Any) -> Reply:
        session = self.session(**options)
        return await (session.aresume() if self.door == "async" else asyncio.to_thread(session.resume))

    async def decide(self, action_id: str, decision: Decision, *, by: str = "sam", **options: Any) -> Reply:
        session = self.session()
        if self.door == "async":
            return await session.adecide(action_id, decision, by=by, **options)
        return await asyncio.to_thread(session.decide, action_id, decision, by=by, **options)


@asynccontextmanager
async def bank(door: str, url: str) -> AsyncIterator[Bank]:
    """Open a bank on a database."""
    with Ledger.connect(url) as ledger:
        remote = await asyncio.to_thread(Remote, url)
        if door == "async":
            async with aopen_checkpointer(ledger) as saver:
                yield Bank(door, ledger, saver, remote)
            await ledger.aclose()
        else:
            with open_checkpointer(ledger) as saver:
                yield Bank(door, ledger, saver, remote)
