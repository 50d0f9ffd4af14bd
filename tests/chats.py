"""A chat server in another process, and clients of it that show a token."""

import contextlib
import queue
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import httpx
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from processes import Child, start
from scripted import Remote
from settled import Ledger
from settled.state import tokens
from settled.state.tokens import Role

PEOPLE = {"vera": Role.VIEWER, "anna": Role.APPROVER, "olga": Role.OPERATOR, "otto": Role.OPERATOR}
"""Otto is of another tenant."""


class Server:
    """A server, and the people who may ask it: `secrets` by the name of a person."""

    def __init__(self, database_url: str, **options: Any) -> None:
        self.database_url = database_url
        self.port = _free_port()
        self.remote = Remote(database_url)
        self.secrets: dict[str, str] = {}
        self.child: Child | None = None
        with Ledger.connect(database_url) as ledger:
            self._admit(ledger)
        self.start(**options)

    def _admit(self, ledger: Ledger) -> None:
        for name, role in PEOPLE.items():
            self.secrets[name] = tokens.new_secret()
            tenant = "other" if name == "otto" else "default"
            made = tokens.create(self.secrets[name], name=name, role=role, tenant=tenant)
            assert tokens.on(ledger).run(made)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, **options: Any) -> None:
        self.child = start("chatting.serve", database_url=self.database_url, port=self.port, **options)
        end = time.monotonic() + 60
        while True:
            try:
                httpx.get(f"{self.url}/ok").raise_for_status()
                return
            except httpx.HTTPError:
                assert time.monotonic() < end
            with contextlib.suppress(queue.Empty):
                self.child.status(0.05)
                raise AssertionError(self.child.failed)

    def kill(self) -> None:
        assert self.child is not None
        self.child.kill()
        self.child.status()

    def client(self, name: str = "anna") -> LangGraphClient:
        return get_client(url=self.url, api_key=self.secrets[name])

    def http(self, name: str = "anna") -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {self.secrets[name]}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=30)


@contextmanager
def serving(database_url: str, **options: Any) -> Iterator[Server]:
    server = Server(database_url, **options)
    try:
        yield server
    finally:
        assert server.child is not None
        server.child.kill()


def said(text: str, message_id: str | None = None) -> dict[str, Any]:
    """The input of a run: one message of the user."""
    return {"messages": [{"role": "user", "content": text, **({"id": message_id} if message_id else {})}]}


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
