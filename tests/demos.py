"""Plays `settled demo`, as a user starts it, for the tests of its scenarios."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

COMMAND = [sys.executable, "-m", "settled.runtime.cli", "demo"]
KEYS = ["scenario", "effects", "expected_effects", "actions", "tool_messages", "reply", "approvals"]
WIDTH = "300"
"""Of a page: wide enough for one line of the timeline to stay one."""


def demo(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SETTLED_DATABASE_URL": url, "COLUMNS": WIDTH}
    done = subprocess.run([*COMMAND, *arguments], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


@dataclass(frozen=True)
class Play:
    """Plays each scenario once on the database at `url`, and keeps its document."""

    url: str
    documents: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict)

    def __call__(self, *arguments: str) -> dict[str, Any]:
        if arguments not in self.documents:
            self.documents[arguments] = json.loads(demo(self.url, *arguments, "--json").stdout)
        return self.documents[arguments]


def triggers(action: Mapping[str, Any]) -> list[str]:
    return [event["trigger"] for event in action["events"]]


def about_writes(document: Mapping[str, Any]) -> list[Any]:
    return [told for told in document["tool_messages"] if told["name"] == "create_reimbursement_ticket"]
