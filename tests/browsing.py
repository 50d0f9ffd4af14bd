"""What the tests of the server share: a server on a socket, tools whose calls wait for people, and visitors with a
cookie jar who fill in its forms.
"""

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser
from typing import Annotated, Any

import httpx
import uvicorn

from settled import (
    Action,
    Incidental,
    Ledger,
    Outcome,
    Secret,
    action,
    always,
    over,
    perform,
)
from settled.runtime.serve import config, listen
from settled.runtime.server.app import build_app
from settled.runtime.server.site import Site
from settled.state import tokens
from settled.state.tokens import Role
from unknowing import mail, pay

FERNET = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="


@action(
    risk="non_idempotent_write",
    identity=("order_id",),
    summary="refund of {amount} for order {order_id}",
    approval=over("amount", 100, approvers=("supervisor",), four_eyes=True),
)
def refund(order_id: str, amount: float, memo: Annotated[str, Incidental()] = "") -> dict[str, Any]:
    """Refund an order; above 100 a supervisor other than the requester approves it."""
    return {"receipt": f"RF-{order_id}"}


@action(risk="non_idempotent_write", identity=("card",), summary="charge a card", approval=always)
def charge(card: Annotated[str, Secret()], amount: int) -> dict[str, Any]:
    """Charge a card; anybody approves it."""
    return {"receipt": "C-1"}


TOOLS = (refund, charge, pay, mail)
REFUND: dict[str, Any] = {"order_id": "A-1001", "amount": 118.5}
SUPERVISOR: dict[str, Any] = {"extra_roles": ("supervisor",)}


def begun(ledger: Ledger, tool: object, arguments: Mapping[str, Any], **options: Any) -> Action:
    """Call a tool as an agent does; returns the action that came of it."""
    given: dict[str, Any] = {"thread_id": "chat-7", "requester": "jo", **options}
    outcome: Outcome = perform(tool, arguments, ledger=ledger, **given)
    assert outcome.action_id is not None
    return ledger.action(outcome.action_id, tenant=given.get("tenant", "default"))


SITE = ("tools", "trace_url", "has_console", "has_chat", "chains")


@contextmanager
def serving(ledger: Ledger, *, port: int = 0, abruptly: bool = False, **options: Any) -> Iterator[str]:
    """Serve the console of a ledger on a socket, in a thread; yields its address. It waits for nobody at its end, if
    that is to be abrupt.
    """
    site = Site(ledger, **{k: options.pop(k) for k in SITE if k in options})
    server = uvicorn.Server(config(build_app(site, **options)))
    listening = listen("127.0.0.1", port)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit, server.force_exit = True, abruptly
        thread.join(10)
        listening.close()


def token(ledger: Ledger, name: str = "maria", role: Role = Role.OPERATOR, **options: Any) -> str:
    """Make a token; returns its secret."""
    secret = tokens.new_secret()
    tokens.on(ledger).run(tokens.create(secret, name=name, role=role, **options))
    return secret


@dataclass
class Visitor:
    """A browser without scripts: it follows redirects, keeps cookies, and sends the forms that it was shown."""

    client: httpx.Client

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.client.get(path, **options)

    def text(self, path: str) -> str:
        """Return the page at a path, which must be there."""
        answer = self.get(path)
        assert answer.status_code == 200, f"{path}: {answer.status_code}"
        return answer.text

    def form(self, path: str, action: str) -> "Shown":
        """Return the form of a page that is sent to an address that ends with `action`."""
        for form in forms(self.text(path)):
            if form.action.endswith(action):
                return form
        raise AssertionError(f"{path} has no form for {action}")

    def send(self, form: "Shown", **fields: str) -> httpx.Response:
        """Send a form as it was shown, with some fields filled in."""
        return self.client.post(form.action, data={**form.fields, **fields})

    def log_in(self, secret: str) -> httpx.Response:
        return self.send(self.form("/login", "/login"), token=secret)


@contextmanager
def visiting(url: str, secret: str | None = None, headers: Mapping[str, str] | None = None) -> Iterator[Visitor]:
    """Open a visitor, logged in with a token if one is given."""
    own = {"accept": "text/html", "accept-language": "en", **(headers or {})}
    with httpx.Client(base_url=url, follow_redirects=True, headers=own, timeout=30) as client:
        visitor = Visitor(client)
        if secret is not None:
            assert visitor.log_in(secret).status_code == 200
        yield visitor


@dataclass
class Shown:
    """One form of a page: where it is sent, and the fields that it has from the start."""

    action: str
    fields: dict[str, str] = field(default_factory=dict)


class _Forms(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Shown] = []
        self._area: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.found.append(Shown(given.get("action", "")))
        elif tag == "input" and self.found and "name" in given:
            self.found[-1].fields[given["name"]] = given.get("value", "")
        elif tag == "textarea" and self.found:
            self._area = given["name"]
            self.found[-1].fields[self._area] = ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self._area = None

    def handle_data(self, data: str) -> None:
        if self._area is not None:
            self.found[-1].fields[self._area] += data.removeprefix("\n")


def forms(html: str) -> list[Shown]:
    """Return the forms of a page, in order."""
    parser = _Forms()
    parser.feed(html)
    return parser.found


def words(html: str) -> str:
    """Return what a reader sees of a page, with single blanks."""
    body = re.sub(r"(?s)<(head|script|style).*?</\1>", " ", html)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", body)).split())
