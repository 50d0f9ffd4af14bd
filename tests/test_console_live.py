"""What is open in a browser follows what happens: counts, lists, one action; and ends with its session."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from acts import rows
from browsing import REFUND, SUPERVISOR, TOOLS, Visitor, begun, refund, serving, token, visiting
from settled import Approve, Desk, Ledger
from settled.runtime.server.pages import live
from settled.state import tokens


@pytest.fixture
def url(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(live, "PULSE_S", 0.05)
    with serving(ledger, tools=TOOLS) as address:
        yield address


@pytest.fixture
def maria(ledger: Ledger, url: str) -> Iterator[Visitor]:
    with visiting(url, token(ledger, **SUPERVISOR)) as visitor:
        yield visitor


@contextmanager
def following(visitor: Visitor, path: str = "/live") -> Iterator[Iterator[tuple[str, Any]]]:
    """Open a stream; yields its events, each a name and what it carries."""
    with visitor.client.stream("GET", path, headers={"accept": "text/event-stream"}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield _events(answer.iter_lines())


def _events(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: ") or "null")


def test_counts_and_marks_change_with_the_ledger(ledger: Ledger, maria: Visitor) -> None:
    """A new request, its decision: each is told once, and what has not changed keeps its mark."""
    with following(maria) as heard:
        name, first = next(heard)
        assert (name, first["approvals"], first["queue"]) == ("pulse", 0, 0)
        action = begun(ledger, refund, REFUND)
        _, second = next(heard)
        assert second["approvals"] == 1
        assert second["approvals_mark"] != first["approvals_mark"]
        assert second["queue_mark"] == first["queue_mark"]
        who: dict[str, Any] = {"by": "bob", "roles": ("supervisor",)}
        Desk(ledger).decide(action.id, Approve(), fingerprint=action.fingerprint, **who)
        _, third = next(heard)
        assert third["approvals"] == 0
        begun(ledger, refund, REFUND, tenant="acme")
        begun(ledger, refund, {**REFUND, "order_id": "A-2"})
        _, fourth = next(heard)
        assert fourth["approvals"] == 1, "what another tenant does is not heard"


def test_one_action_is_followed(ledger: Ledger, maria: Visitor) -> None:
    """Its mark changes with each event, also where its state does not; another tenant's action has none."""
    action, theirs = begun(ledger, refund, REFUND), begun(ledger, refund, REFUND, tenant="acme")
    with following(maria, f"/live?one={theirs.id}") as heard:
        assert next(heard)[1]["one_mark"] is None
    with following(maria, f"/live?one={action.id}") as heard:
        first = next(heard)[1]["one_mark"]
        Desk(ledger).withdraw(action.id, by="bob")
        assert next(heard)[1]["one_mark"] != first is not None


def test_the_stream_ends_with_the_session(ledger: Ledger, maria: Visitor) -> None:
    """Whoever is logged out elsewhere, or whose token is revoked, hears no more."""
    with following(maria) as heard:
        next(heard)
        token_id = rows(ledger.url, "SELECT id FROM settled.tokens")[0]["id"]
        tokens.on(ledger).run(tokens.revoke(token_id))
        assert next(heard) == ("ended", None)
        assert next(heard, None) is None
    answer = maria.client.get("/live", headers={"accept": "text/event-stream"}, follow_redirects=False)
    assert answer.status_code == 401


def test_streams_have_a_bound(maria: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """One page too many is told so, and the place of a page that was closed is free again."""
    monkeypatch.setattr(live, "MAX_STREAMS", 1)
    with following(maria) as heard:
        next(heard)
        assert maria.get("/live").status_code == 503
    for _ in range(100):
        if not live._open:
            break
        threading.Event().wait(0.05)
    with following(maria) as heard:
        assert next(heard)[0] == "pulse"


def test_a_strange_action_is_refused(maria: Visitor) -> None:
    """Only an id can be followed."""
    assert maria.get("/live?one=x%00").status_code == 422
