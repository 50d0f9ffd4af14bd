"""`settled demo X`, as a document and as a page: real processes, real kills, real lost replies, and one effect."""

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

import demos
import servers
from demos import COMMAND, KEYS, Play, about_writes, demo
from settled.demo.scenarios import SCENARIOS
from settled.runtime.cli import app

PLAYED_ALONE = [name for name, one in SCENARIOS.items() if not (one.approval_ttl_s or one.daily_limit or one.divided)]


@pytest.fixture(scope="module")
def played(server_url: str) -> Iterator[Play]:
    """Play a scenario once for the whole module, and return its document."""
    with servers.database(server_url) as url:
        yield Play(url)


def triggers(document: Mapping[str, Any]) -> list[str]:
    (action,) = document["actions"]
    return demos.triggers(action)


@pytest.mark.parametrize("name", PLAYED_ALONE)
def test_every_scenario_ends_with_one_effect_and_one_document(played: Play, name: str) -> None:
    document = played(name)
    assert list(document) == KEYS
    assert (document["scenario"], document["effects"], document["expected_effects"]) == (name, 1, 1)
    assert document["approvals"] == []
    (action,) = document["actions"]
    wanted = ("action_id", "tool", "state", "idempotency_key", "fingerprint", "receipt", "attempts", "events")
    assert tuple(action) == wanted
    assert action["fingerprint"].startswith("sha256:")
    for event in action["events"]:
        assert list(event) == ["at", "from", "to", "trigger", "detail"]
    if name != "no-query":
        assert action["state"] == "succeeded"
        assert action["receipt"].startswith("R-")
        assert action["receipt"] in document["reply"]


def test_a_lost_reply_becomes_unknown_and_is_found_by_asking(played: Play) -> None:
    assert triggers(played("lost-reply")) == ["plan", "approve", "claim", "lose", "find"]
    assert played("lost-reply")["actions"][0]["attempts"] == 1


def test_a_kill_before_the_intent_leaves_nothing_and_the_next_process_plans_it(played: Play) -> None:
    assert triggers(played("crash-before-intent")) == ["plan", "approve", "claim", "succeed"]


def test_a_kill_after_the_effect_is_reconciled_and_not_sent_again(played: Play) -> None:
    document = played("crash-after-effect")
    assert triggers(document) == ["plan", "approve", "claim", "lose", "find"]
    assert len(about_writes(document)) == 1


def test_a_double_click_gets_the_same_receipt_twice(played: Play) -> None:
    first, second = about_writes(played("double-click"))
    assert (first["artifact"]["code"], second["artifact"]["code"]) == ("succeeded", "duplicate")
    assert first["artifact"]["receipt"] == second["artifact"]["receipt"]
    assert second["content"].startswith(first["content"])


def test_another_amount_is_a_conflict_that_sends_nothing(played: Play) -> None:
    document = played("same-key-other-amount")
    _, conflict = about_writes(document)
    assert conflict["artifact"]["code"] == "conflict"
    assert conflict["artifact"]["differing"] == {"amount": ["118.50", "180.00"]}
    assert document["actions"][0]["attempts"] == 1


def test_the_page_names_the_refused_amount_and_the_users_own_list_stays_clean(played: Play) -> None:
    """What was refused has no row in the ledger; the demo's rows have a tenant of their own."""
    page = played.page("same-key-other-amount")
    assert "refused, and nothing sent: amount 180.00 instead of 118.50" in page
    assert "settled actions list --tenant demo" in page
    environment = {"SETTLED_DATABASE_URL": played.url}
    mine = CliRunner().invoke(app, ["actions", "list"], env=environment)
    demos = CliRunner().invoke(app, ["actions", "list", "--tenant", "demo", "--json"], env=environment)
    assert mine.stdout == "there are no such actions\n"
    (action,) = played("same-key-other-amount")["actions"]
    assert action["action_id"] in [one["action_id"] for one in json.loads(demos.stdout)]


def test_a_busy_service_is_called_again_under_the_same_key_and_not_too_soon(played: Play) -> None:
    document = played("retry-after")
    assert triggers(document) == ["plan", "approve", "claim", "refuse", "refuse", "succeed"]
    waits = [event["detail"]["delay_s"] for event in document["actions"][0]["events"] if event["trigger"] == "refuse"]
    assert 0.25 <= waits[0] <= 0.35
    assert waits[1] >= 2
    assert document["actions"][0]["attempts"] == 3


def test_a_stubborn_model_is_given_the_same_receipt_until_the_agent_answers_for_it(played: Play) -> None:
    told = about_writes(played("stubborn-model"))
    assert [one["artifact"]["code"] for one in told] == ["succeeded", "duplicate", "duplicate", "duplicate"]
    assert len({one["artifact"]["receipt"] for one in told}) == 1


def test_a_service_that_cannot_be_asked_leaves_the_decision_to_a_person(played: Play) -> None:
    document = played("no-query")
    assert document["actions"][0]["state"] == "unknown"
    assert triggers(document)[-2:] == ["lose", "escalate"]
    (told,) = about_writes(document)
    said = {name: told["artifact"][name] for name in ("code", "receipt", "may_retry", "next")}
    assert said == {"code": "manual_review", "receipt": None, "may_retry": False, "next": "wait"}
    assert "not known yet" in document["reply"]
    assert "do not submit" not in document["reply"]


def test_the_user_is_answered_in_his_language(database_url: str) -> None:
    """Started as a user starts it."""
    document = json.loads(demo(database_url, "lost-reply", "--language", "zh", "--json").stdout)
    assert document["effects"] == 1
    assert document["actions"][0]["receipt"] in document["reply"]
    assert document["reply"].startswith("请求")


def test_the_page_shows_the_timeline_and_what_everybody_was_told(played: Play) -> None:
    page = played.page("crash-after-effect")
    for part in ("SIGKILL", "claimed, and sent", "found by asking", "model was told", "user was told", "1 ticket"):
        assert part in page


def test_a_wrong_count_of_effects_exits_with_1(played: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    two = replace(SCENARIOS["lost-reply"], expected_effects=2)
    monkeypatch.setattr("settled.demo.scenarios.SCENARIOS", {two.name: two})
    monkeypatch.setattr("settled.demo.play.play", played.once)
    result = CliRunner().invoke(app, ["demo", "--json"], env={"SETTLED_DATABASE_URL": played.url})
    assert result.exit_code == 1
    assert json.loads(result.stdout)["effects"] == 1


def test_a_model_that_is_not_there_is_said_in_one_line(database_url: str) -> None:
    environment = {**os.environ, "SETTLED_DATABASE_URL": database_url}
    command = [*COMMAND, "--model", "nobody:nothing"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "--model nobody:nothing" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "processes", "after_s"),
    [("two-approvers", 4, 0.1), ("retry-after", 2, 1)],
)
@pytest.mark.deep
def test_no_process_is_left_when_the_demo_is_killed(
    database_url: str, name: str, processes: int, after_s: float
) -> None:
    environment = {**os.environ, "SETTLED_DATABASE_URL": database_url}
    with subprocess.Popen([*COMMAND, name], env=environment, stdout=subprocess.PIPE) as parent:
        deadline = time.monotonic() + 30
        while len(children := psutil.Process(parent.pid).children()) < processes and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(after_s)
        parent.kill()
    assert len(children) == processes
    # One that is still importing sees it when it has done so: on a machine with much to do that takes a while.
    _, alive = psutil.wait_procs(children, timeout=60)
    # A container's first process may not reap what it inherits: a zombie has ended.
    assert [child for child in alive if child.status() != psutil.STATUS_ZOMBIE] == []
