"""`settled worker` and `settled db purge`: a process of its own, its page for probes, and what is typed wrongly."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import working_tools
from acts import rows
from own_server import Server
from settled import Approve, Desk, Ledger, Session, State, build_agent, open_checkpointer, perform
from settled.runtime.cli import app

HERE = Path(__file__).parent
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent / "src")]),
}
SETTLED = [sys.executable, "-m", "settled.runtime.cli"]


def ran(url: str, *words: str, status: int = 0) -> str:
    """Run a command to its end, in this process; what it printed, and said where it failed."""
    done = CliRunner().invoke(app, list(words), env={"SETTLED_DATABASE_URL": url, "COLUMNS": "200"})
    assert done.exit_code == status, done.output
    return done.stdout if status == 0 else done.stderr


@contextmanager
def running(url: str, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a worker within the block, with the address of its page; ask it to end after it."""
    command = [*SETTLED, "worker", *words, "--health-port", "0", "--json", "--database-url", url]
    child = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    try:
        address = child.stderr.readline().split()[-1].removesuffix("/ready")
        yield child, address
    finally:
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=60)


def page(address: str, path: str = "/ready") -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(address + path, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def until_ready(address: str, ready: bool = True) -> dict[str, Any]:
    end = time.monotonic() + 30
    while (found := page(address))[0] != (200 if ready else 503):
        assert time.monotonic() < end, found
        time.sleep(0.05)
    return found[1]


def expired(ledger: Ledger) -> str:
    """A request whose time is over, a second old, as it must be to be noted."""
    asked = perform(working_tools.short, [1], ledger=ledger, thread_id="t")
    time.sleep(1.1)
    return str(asked.action_id)


def test_one_round_prints_what_it_did(ledger: Ledger) -> None:
    """For a cron job: one round, no queue, and an end."""
    mine = expired(ledger)
    assert ran(ledger.url, "worker", "--once") == "1 noted, 1 looked, 1 expired\n"
    assert ledger.action(mine).state is State.CANCELLED
    assert ran(ledger.url, "worker", "--once") == "there was nothing to do\n"
    told = json.loads(ran(ledger.url, "worker", "--once", "--json"))
    assert (told["looked"], set(told.values())) == (0, {0})
    assert rows(ledger.url, "SELECT FROM pg_namespace WHERE nspname = 'settled_jobs'") == []


def test_its_log_is_lines_of_json_where_that_is_asked_for(own_url: str) -> None:
    """For whoever collects logs: each line is an object, and says where it comes from."""
    command = [*SETTLED, "worker", "--once", "--log-json", "--json", "--database-url", own_url]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["looked"] == 0
    assert all(json.loads(line)["logger"] for line in done.stderr.splitlines())


def test_a_process_runs_until_sigterm_and_says_whether_it_is_ready(server: Server, own_url: str) -> None:
    """Ready while it works, not ready while Postgres is away, and it ends by itself when it is asked to."""
    with Ledger.connect(own_url) as ledger, running(own_url, "--scan-every", "0.2", "--tools", "working_tools") as run:
        child, address = run
        assert (until_ready(address)["ready"], page(address, "/live")) == (True, (200, {"live": True}))
        assert page(address, "/other")[0] == 404
        assert b"settled_up 1.0" in urllib.request.urlopen(address + "/metrics", timeout=10).read()
        mine = expired(ledger)
        end = time.monotonic() + 20
        while ledger.action(mine).state is not State.CANCELLED:
            assert time.monotonic() < end
            time.sleep(0.05)
        server.stop()
        assert until_ready(address, ready=False)["ledger"] is False
        assert page(address, "/live")[0] == 200
        server.start()
        assert until_ready(address)["ledger"] is True
        child.send_signal(signal.SIGTERM)
        printed, _ = child.communicate(timeout=60)
        assert (child.returncode, json.loads(printed)["expired"]) == (0, 1)


def test_agents_of_a_module_go_on_with_their_threads(ledger: Ledger) -> None:
    """What a person approved is done, and told in its thread, by a process that was given the agents' function."""
    with open_checkpointer(ledger) as saver:
        agent = build_agent(working_tools.model(), [working_tools.pay], ledger=ledger, checkpointer=saver)
        session = Session(agent, ledger=ledger, thread_id="t", agent_name="desk")
        asked = session.send("please").approvals[0]
        Desk(ledger).decide(asked["action_id"], Approve(), by="sue", fingerprint=asked["fingerprint"])
        with running(ledger.url, "--scan-every", "0.3", "--no-queue", "--agents", "working_tools:agents"):
            end = time.monotonic() + 40
            while not agent.get_state(session.config).values["messages"][-1].content.startswith("paid"):
                assert time.monotonic() < end
                time.sleep(0.1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["worker", "--tools", "no_such_module"], "cannot be imported"),
        (["worker", "--agents", "working_tools"], "module:function"),
        (["worker", "--agents", "working_tools:nothing"], "module:function"),
        (["worker", "--once", "--agents", "working_tools:no_agents"], "not agents by name"),
        (["worker", "--once", "--dispatcher", "working_tools:no_agents"], "not a Dispatcher"),
        (["worker", "--concurrency", "0"], "--concurrency"),
        (["worker", "--purge-after", "soon"], "as in 30d"),
        (["db", "purge", "--older-than", "30"], "as in 30d"),
        (["db", "purge", "--older-than", "0d"], "as in 30d"),
        (["db", "purge"], "--older-than"),
    ],
)
def test_a_wrong_use_says_what_is_wrong(ledger: Ledger, words: Sequence[str], said: str) -> None:
    """It names the option, and exits with 2."""
    assert said in ran(ledger.url, *words, status=2)


def test_purge_says_what_it_forgets(ledger: Ledger) -> None:
    """A dry run first; then what is over goes."""
    perform(working_tools.note, [1], ledger=ledger, thread_id="t")
    time.sleep(1.2)
    assert (
        ran(ledger.url, "db", "purge", "--older-than", "30d") == "forgotten: 0 actions, 0 threads, 0 idempotency keys\n"
    )
    assert ran(ledger.url, "db", "purge", "--older-than", "1s", "--dry-run") == "1 actions would be forgotten\n"
    told = json.loads(ran(ledger.url, "db", "purge", "--older-than", "1s", "--json"))
    assert told == {"actions": 1, "threads": 0, "endpoint_keys": 0, "dry_run": False}
    assert ledger.actions() == []
