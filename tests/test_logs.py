"""A line of the log says which action it is about, the author's own lines too."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from acts import Door, Remote, both_doors
from settled import Ledger, action
from settled.runtime.logs import InAction, JsonLines


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.addFilter(InAction())
    handler.setFormatter(JsonLines())
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield written
    root.removeHandler(handler)
    root.setLevel(level)


@both_doors
async def test_a_body_and_its_end_are_logged_with_the_action(door: Door, ledger: Ledger, lines: io.StringIO) -> None:
    """What the body says while it runs, and what we say of how it ended, bear the same id."""
    remote = Remote()

    @action(risk="non_idempotent_write", remote="dedupes", identity=("order",), query=remote.find)
    def refund(order: str) -> object:
        logging.getLogger("shop").info("calling\nthe shop")
        remote.do(order=order)
        raise ConnectionResetError

    outcome = await door(refund, ["A-1"], ledger=ledger, correlation_id="call-7")
    said = [json.loads(line) for line in lines.getvalue().splitlines()]
    (body,) = [one for one in said if one["logger"] == "shop"]
    (end,) = [one for one in said if one["logger"] == "settled"]
    for one in (body, end):
        assert (one["action_id"], one["correlation_id"]) == (outcome.action_id, "call-7")
        assert (one["tenant"], one["thread_id"], one["tool"], one["attempt"]) == ("default", "thread-1", "refund", 1)
    assert body["message"] == "calling\nthe shop"
    assert "ConnectionResetError" in end["message"]


def test_a_line_outside_an_action_names_none(lines: io.StringIO) -> None:
    """And a traceback is one field of one line."""
    try:
        raise ValueError("not a number")
    except ValueError:
        logging.getLogger("shop").exception("odd")
    (line,) = lines.getvalue().splitlines()
    said = json.loads(line)
    assert said["level"] == "error"
    assert "action_id" not in said
    assert said["traceback"].endswith("ValueError: not a number")
