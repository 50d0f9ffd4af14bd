"""Plays `settled demo` for the tests of its scenarios: as a user starts it, or once for all that look at it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from typer.testing import CliRunner

from settled.demo.play import play
from settled.demo.scenarios import Scenario
from settled.demo.story import Story
from settled.runtime.cli import app

COMMAND = [sys.executable, "-m", "settled.runtime.cli", "demo"]
KEYS = [
    *("scenario", "effects", "expected_effects", "actions", "tool_messages", "reply", "approvals"),
    *("counted", "chains", "messages", "workers"),
]
WIDTH = "300"
"""Of a page: wide enough for one line of the timeline to stay one."""


def demo(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Start the command as a user does."""
    environment = {**os.environ, "SETTLED_DATABASE_URL": url, "COLUMNS": WIDTH}
    done = subprocess.run([*COMMAND, *arguments], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


@dataclass(frozen=True)
class Play:
    """Plays each scenario once on the database at `url`, with all its processes, and shows it as the command does:
    as a document and as a page. The command itself runs in this process; those of the scenario are real. The user
    speaks English, unless `languages` says otherwise of a scenario or a test asks for another.
    """

    url: str
    languages: Mapping[str, str] = field(default_factory=dict)
    stories: dict[tuple[str, str], Story] = field(default_factory=dict)

    def __call__(self, name: str, language: str | None = None) -> dict[str, Any]:
        """Return the document of a scenario."""
        document: dict[str, Any] = json.loads(self._shown(name, language, "--json"))
        return document

    def page(self, name: str) -> str:
        """Return the page of a scenario."""
        return self._shown(name)

    def _shown(self, name: str, language: str | None = None, *options: str) -> str:
        spoken = language or self.languages.get(name, "en")
        environment = {"SETTLED_DATABASE_URL": self.url, "COLUMNS": WIDTH}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("settled.demo.play.play", self.once)
            shown = CliRunner().invoke(app, ["demo", name, "--language", spoken, *options], env=environment)
        assert shown.exit_code == 0, shown.output
        return shown.stdout

    def once(self, scenario: Scenario, url: str | None, *, language: str = "en", model: str | None = None) -> Story:
        """Play a scenario that was not played yet in this language."""
        key = (scenario.name, language)
        if key not in self.stories:
            self.stories[key] = play(scenario, url, language=language, model=model)
        return replace(self.stories[key], scenario=scenario)


def triggers(action: Mapping[str, Any]) -> list[str]:
    return [event["trigger"] for event in action["events"]]


def about_writes(document: Mapping[str, Any]) -> list[Any]:
    return [told for told in document["tool_messages"] if told["name"] == "create_reimbursement_ticket"]
