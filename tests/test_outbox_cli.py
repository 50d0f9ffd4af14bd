"""`settled outbox`: what waits and why, and dead letters made due again."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from consumers import pay, paying
from settled import Desk, Ledger, Message
from settled.runtime.cli import app
from settled.tools.delivery import Delivery
from settled.tools.dispatcher import Dispatcher


def run(*arguments: str, url: str) -> Result:
    return CliRunner().invoke(app, ["outbox", *arguments], env={"SETTLED_DATABASE_URL": url, "COLUMNS": "240"})


def as_json(*arguments: str, url: str) -> Any:
    result = run(*arguments, "--json", url=url)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def fails(delivery: Delivery) -> None:
    raise OSError("the till \x1b[31mis closed")


@pytest.fixture
def posted(ledger: Ledger) -> Ledger:
    """One dead letter and the one behind it, one that waits for its next attempt, one delivered, one due, one to be
    made.
    """
    for topic in ("dead", "waits", "done"):
        messages = [Message(topic, topic)] + ([Message("behind", {"amount": 118.5})] if topic == "dead" else [])
        pay(ledger, topic, paying(emits=lambda done, messages=messages: messages))
        max_attempts = 1 if topic == "dead" else 9
        sinks = {topic: print if topic == "done" else fails}
        Dispatcher(ledger, sinks=sinks, max_attempts=max_attempts).run_once()
    pay(ledger, "due", paying(emits=lambda done: Message("due", "x" * 500)))
    pay(ledger, "unmade", paying(emits=lambda done: 1 / 0))
    return ledger


def test_each_message_says_what_it_waits_for(posted: Ledger) -> None:
    found = {one["topic"]: one for one in as_json("list", url=posted.url)}
    assert {topic: one["state"] for topic, one in found.items()} == {
        "dead": "dead",
        "behind": "held",
        "waits": "due",
        "done": "delivered",
        "due": "due",
        None: "due",
    }
    assert found["dead"]["reason"] == "OSError: the till [31mis closed"
    assert found["waits"]["waits"].startswith("its next attempt, in ")
    assert found["behind"]["waits"] == "an earlier message of its action was not delivered yet"
    assert found["due"]["waits"] == "a dispatcher with a sink for its topic"
    assert found[None]["waits"] == "a dispatcher that has the tool pay, to make the messages"
    assert (found["done"]["waits"], found["done"]["attempts"], found["done"]["payload"]) == (None, 1, '"done"')


def test_the_list_can_be_narrowed(posted: Ledger) -> None:
    for state, topics in {"dead": ["dead"], "held": ["behind"], "delivered": ["done"]}.items():
        assert [one["topic"] for one in as_json("list", "--state", state, url=posted.url)] == topics
    assert len(as_json("list", "--state", "due", url=posted.url)) == 3
    assert len(as_json("list", "--limit", "2", url=posted.url)) == 2
    (dead,) = as_json("list", "--topic", "dead", url=posted.url)
    assert len(as_json("list", "--action", dead["action_id"], url=posted.url)) == 2
    assert as_json("list", "--tenant", "acme", url=posted.url) == []
    assert run("list", "--tenant", "acme", url=posted.url).stdout == "there are no such messages\n"
    wrong = run("list", "--state", "lost", url=posted.url)
    assert (wrong.exit_code, "due, held, dead, delivered" in wrong.output) == (2, True)


def test_a_table_shows_them_to_a_person(posted: Ledger) -> None:
    table = run("list", url=posted.url).stdout
    for part in ("to be made", "behind", "its next attempt", "OSError: the till", '{"amount":118.5}', "xxx…"):
        assert part in table
    assert "\x1b" not in table


def test_a_dead_letter_is_redriven_by_somebody(posted: Ledger) -> None:
    (dead,) = as_json("list", "--state", "dead", url=posted.url)
    said = run("redrive", dead["message_id"], "--by", "mia", "--note", "mended", url=posted.url)
    assert (said.exit_code, said.stdout) == (0, f"{dead['message_id']} is due again\n")
    (due,) = as_json("list", "--topic", "dead", url=posted.url)
    assert (due["state"], due["attempts"]) == ("due", 0)
    event = posted.timeline(dead["action_id"])[-1]
    assert (event.trigger, event.actor) == ("redrive", "mia")
    again = run("redrive", dead["message_id"], "--by", "mia", url=posted.url)
    assert (again.exit_code, again.stdout) == (1, f"{dead['message_id']} is no dead letter here\n")


def test_all_dead_letters_are_redriven(posted: Ledger) -> None:
    assert as_json("redrive", "--all-dead", "--topic", "other", "--by", "mia", url=posted.url)["redriven"] == []
    assert len(as_json("redrive", "--all-dead", "--by", "mia", url=posted.url)["redriven"]) == 1
    assert run("redrive", "--all-dead", "--by", "mia", url=posted.url).stdout == "there are no dead letters\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("redrive", "--by", "mia"),
        ("redrive", "msg-1", "--all-dead", "--by", "mia"),
        ("redrive", "msg-1", "--topic", "t", "--by", "mia"),
        ("redrive", "msg-1"),
        ("redrive", "msg-1", "--by", " "),
        ("redrive", "msg\x1b", "--by", "mia"),
        ("redrive", "msg-1", "--by", "mia", "--note", "a\nb"),
        ("list", "--limit", "0"),
        ("list", "--topic", "a\nb"),
    ],
    ids=" ".join,
)
def test_a_wrong_use_is_refused(database_url: str, arguments: tuple[str, ...]) -> None:
    assert run(*arguments, url=database_url).exit_code == 2


def test_the_timeline_of_an_action_shows_who_redrove_its_message(posted: Ledger) -> None:
    (dead,) = as_json("list", "--state", "dead", url=posted.url)
    run("redrive", dead["message_id"], "--by", "mia", "--note", "mended", url=posted.url)
    shown = CliRunner().invoke(
        app, ["actions", "show", dead["action_id"]], env={"SETTLED_DATABASE_URL": posted.url, "COLUMNS": "200"}
    )
    assert "by mia" in shown.stdout
    assert "mended" in shown.stdout
    assert Desk(posted).history(dead["action_id"]) == []
