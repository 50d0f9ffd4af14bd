"""A chat model that follows a script, and tools whose effects are rows that a test can count. No network."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import PrivateAttr

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
    """A remote side in a table: an effect is a committed row, and it can be asked by key."""

    def __init__(self, url: str) -> None:
        self.url = url
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS effects (id serial, key text, detail text)")

    def act(self, key: str, **detail: Any) -> dict[str, Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            row = connection.execute(
                "INSERT INTO effects (key, detail) VALUES (%s, %s) RETURNING id", [key, json.dumps(detail)]
            ).fetchone()
        assert row
        return {"receipt": f"R-{row[0]}"}

    def find(self, key: str) -> str | None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            row = connection.execute("SELECT id FROM effects WHERE key = %s", [key]).fetchone()
        return f"R-{row[0]}" if row else None

    def count(self) -> int:
        with psycopg.connect(self.url, autocommit=True) as connection:
            row = connection.execute("SELECT count(*) FROM effects").fetchone()
        assert row
        return int(row[0])
