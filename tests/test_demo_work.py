"""`settled demo coupon-chain`, `compensation`, `outbox` and `two-workers`: what was begun is brought to its end by
somebody, once, whoever dies on the way.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import dropwhile
from typing import Any

import httpx2
import psutil
import pytest

import servers
from demos import COMMAND, KEYS, triggers
from settled.demo import play, render
from settled.demo.processes import Service
from settled.demo.scenarios import LEFT_OPEN, SCENARIOS
from settled.demo.service import store
from settled.demo.story import Story
from settled.runtime.tables import console
from settled.state.model import Event
from settled.tools.sinks.signature import new_secret, signed
from settled.tools.standing import ORPHANED

NAMES = [name for name, one in SCENARIOS.items() if one.divided]
Played = Callable[[str], Story]


@pytest.fixture(scope="module")
def played(server_url: str) -> Iterator[Played]:
    """Play a scenario once for the whole module."""
    with servers.database(server_url) as url:
        yield cache(lambda name: play.play(SCENARIOS[name], url))


def document(story: Story) -> dict[str, Any]:
    """Return what `--json` prints."""
    found: dict[str, Any] = json.loads(json.dumps(render.document(story), default=str))
    return found


def page(story: Story) -> str:
    """Return what is printed without it."""
    out = console()
    out.width = 300
    with out.capture() as captured:
        out.print(render.page(story))
    return captured.get()


def posts(story: Story, path: str) -> list[str]:
    """Return what became of the requests that asked for an effect."""
    return [str(seen["outcome"]) for seen in story.requests if (seen["method"], seen["path"]) == ("POST", path)]


def test_there_are_four() -> None:
    assert NAMES == ["coupon-chain", "compensation", "outbox", "two-workers"]


@pytest.mark.parametrize("name", NAMES)
def test_every_scenario_comes_out_and_its_document_says_of_what(played: Played, name: str) -> None:
    story = played(name)
    shown = document(story)
    assert list(shown) == KEYS
    assert shown["counted"] == SCENARIOS[name].divided
    assert shown["effects"] == shown["expected_effects"] == sum(SCENARIOS[name].divided.values())
    assert story.came_out


def test_the_chain_goes_on_at_the_first_step_that_is_not_done(played: Played) -> None:
    """Killed when the service has deducted the coupon and nobody has written that down: it is found, not repeated."""
    story = played("coupon-chain")
    (killed,) = [mark for mark in story.marks if "SIGKILL" in mark.text]
    assert killed.detail == "verify coupon: done, deduct coupon: running, ship: to do"
    assert posts(story, "/coupons") == ["201"]
    assert posts(story, "/shipments") == ["201"]
    shown = document(story)
    deducted, shipped = shown["actions"]
    assert triggers(deducted) == ["plan", "approve", "claim", "lose", "find"]
    assert triggers(shipped) == ["plan", "approve", "claim", "succeed"]
    (run,) = shown["chains"]
    assert (run["state"], run["irreversible"]) == ("succeeded", ["ship"])
    steps = [(step["name"], step["state"], step["receipt"]) for step in run["steps"]]
    assert steps == [
        ("verify_coupon", "done", None),
        ("deduct_coupon", "done", deducted["receipt"]),
        ("ship", "done", shipped["receipt"]),
    ]
    assert deducted["receipt"] in shown["reply"]
    assert shipped["receipt"] in shown["reply"]


def test_a_coupon_is_given_back_by_an_action_of_its_own(played: Played) -> None:
    """Its reply is lost, so it is unknown and then found; and the chain says "undone" only then."""
    story = played("compensation")
    shown = document(story)
    deducted, refused, given_back = shown["actions"]
    assert triggers(deducted) == ["plan", "approve", "claim", "succeed", "compensate", "compensated"]
    assert (refused["state"], refused["receipt"]) == ("failed", None)
    assert triggers(given_back) == ["plan", "approve", "claim", "lose", "find"]
    assert posts(story, "/returns") == ["committed, and the reply was lost"]
    (run,) = shown["chains"]
    assert (run["state"], run["failed_step"], run["reason"]) == ("compensated", "ship", "TEAPOT is out of stock")
    assert [step["state"] for step in run["steps"]] == ["done", "undone", "failed"]
    assert run["steps"][1]["undone_by"] == given_back["action_id"]


def test_the_user_is_told_that_it_was_undone_and_why(played: Played) -> None:
    shown = document(played("compensation"))
    assert "TEAPOT is out of stock" in shown["reply"]
    assert "has been undone: deduct coupon" in shown["reply"]
    (told,) = shown["tool_messages"]
    said = {name: told["artifact"][name] for name in ("code", "state", "may_retry")}
    assert said == {"code": "rejected", "state": "compensated", "may_retry": False}


@pytest.mark.parametrize("name", ["coupon-chain", "compensation"])
def test_the_page_says_where_each_step_stands(played: Played, name: str) -> None:
    shown = page(played(name))
    for step in played(name).chains[0].steps:
        (row,) = [line for line in shown.splitlines() if line.startswith(step.name) and str(step.state) in line]
        assert step.action is None or step.action.id in row


def test_a_message_that_comes_twice_is_one_notification(played: Played) -> None:
    """The first dispatcher dies between the acknowledgement and the mark; the second delivers it again."""
    story = played("outbox")
    assert posts(story, "/hooks") == ["201", "200, replayed"]
    (message,) = document(story)["messages"]
    assert (message["state"], message["attempts"]) == ("delivered", 2)
    keys = {seen["key"] for seen in story.requests if seen["path"] == "/hooks"}
    assert keys == {message["message_id"]}
    order = [mark.text for mark in story.marks if mark.text.startswith("dispatcher")]
    assert order == [
        "dispatcher 1 starts",
        "dispatcher 1 dies (SIGKILL)",
        "dispatcher 2 takes over",
        "dispatcher 2 is done",
    ]
    assert message["message_id"] in page(story)


def test_a_webhook_that_nobody_has_signed_notifies_nobody(database_url: str) -> None:
    body = b'{"id":"msg-1","topic":"t","action_id":"act-1","tenant":"demo","created_at":"2026-01-05","payload":{}}'
    secret = new_secret()
    with Service(database_url, {}, secret=secret) as service:
        forged = signed("msg-1", body, [b"another secret of enough bytes"], now=time.time())
        for headers in ({}, forged):
            assert httpx2.post(f"{service.url}/hooks", content=body, headers=headers).status_code == 401
    with Service(database_url, {}) as takes_none:
        assert httpx2.post(f"{takes_none.url}/hooks", content=body, headers=forged).status_code == 401
    database = store.open_database(database_url)
    assert database.run(store.count_records("notifications", field="message_id", value="msg-1")) == 0
    database.close()


def test_two_workers_bring_all_that_was_left_to_its_end(played: Played) -> None:
    """One is killed, the other one frozen and woken: each refund took place once, and the ledger has its receipt."""
    story = played("two-workers")
    actions = document(story)["actions"]
    assert [action["state"] for action in actions] == ["succeeded"] * len(LEFT_OPEN)
    assert len({action["receipt"] for action in actions}) == len(LEFT_OPEN)
    acted = Counter(seen["key"] for seen in story.requests if _has_acted(seen))
    assert acted == Counter(action["idempotency_key"] for action in actions)


def _has_acted(seen: Mapping[str, Any]) -> bool:
    return seen["method"] == "POST" and (seen["outcome"] == "201" or "committed" in seen["outcome"])


def test_what_had_taken_place_was_found_and_not_sent_again(played: Played) -> None:
    """Three in five had, when their process died: a worker has asked for each of these, and sent none."""
    ways = [triggers(action) for action in document(played("two-workers"))["actions"]]
    found = [way for way in ways if "release" not in way]
    assert len(found) >= sum(fault["kind"].startswith("commit") for fault in LEFT_OPEN)
    assert {way[-1] for way in found} <= {"find", "succeed"}


def test_what_a_frozen_worker_held_is_taken_over_and_it_goes_on_when_it_is_woken(played: Played) -> None:
    """And it finishes what the dead one has left."""
    story = played("two-workers")
    assert sorted(worker["ended"] for worker in document(story)["workers"]) == ["ended when it was asked to", "killed"]
    (woken,) = [worker for worker in story.workers if worker.did is not None]
    assert woken.did is not None
    assert woken.did["settled"] > 0
    assert woken.did["failed"] == 0
    texts = [mark.text for mark in story.marks]
    other = next(worker.name for worker in story.workers if worker is not woken)
    order = [f"{woken.name} is frozen (SIGSTOP)", f"{other} dies (SIGKILL)", f"{woken.name} is woken (SIGCONT)"]
    assert [text for text in texts if text in order] == order
    assert any(_was_taken_over(events) for _, events in story.actions)


def _was_taken_over(events: Sequence[Event]) -> bool:
    """Whether it was sent by a worker, and lost to another one."""
    after = dropwhile(lambda event: event.trigger != "release", events)
    return any(event.trigger == "lose" and (event.detail or {})["reason"] == ORPHANED for event in after)


def test_the_page_counts_what_is_too_much_to_tell_one_by_one(played: Played) -> None:
    shown = page(played("two-workers"))
    assert f"{len(LEFT_OPEN)} refunds in the service's database, as expected" in shown
    assert "found by asking" in shown
    assert "after it was sent again" in shown
    assert len(shown.splitlines()) < 40


@pytest.mark.deep
@pytest.mark.parametrize("after_s", [0.5, 5.0])
def test_no_worker_is_left_when_the_demo_is_killed(database_url: str, after_s: float) -> None:
    environment = {**os.environ, "SETTLED_DATABASE_URL": database_url}
    with subprocess.Popen([*COMMAND, "two-workers"], env=environment, stdout=subprocess.PIPE) as parent:
        deadline = time.monotonic() + 60
        while len(children := psutil.Process(parent.pid).children()) < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(after_s)
        parent.kill()
    assert len(children) == 4
    assert _left_of(children) == []


FREEZES = """
import time
from settled.demo.processes import Child
with Child("settled.demo.worker", "--no-queue") as worker:
    worker.expect()
    worker.freeze()
    print("frozen", flush=True)
    time.sleep(60)
"""


@pytest.mark.deep
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a frozen process that its parent has died")
def test_a_worker_that_is_frozen_ends_with_the_demo_too(database_url: str) -> None:
    environment = {**os.environ, "SETTLED_DATABASE_URL": database_url}
    with subprocess.Popen([sys.executable, "-c", FREEZES], env=environment, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"frozen\n"
        children = psutil.Process(parent.pid).children()
        parent.kill()
    assert len(children) == 1
    assert _left_of(children) == []


def _left_of(children: list[psutil.Process]) -> list[psutil.Process]:
    """Return those that are still there. A container's first process may not reap what it inherits: a zombie has
    ended.
    """
    _, alive = psutil.wait_procs(children, timeout=60)
    return [child for child in alive if child.status() != psutil.STATUS_ZOMBIE]
