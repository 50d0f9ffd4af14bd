"""`settled serve` as a process: the first login, addresses, and its end."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from acts import count
from browsing import begun, token, visiting
from chat_agents import Talker
from settled import Ledger, State, action, always, build_agent
from settled.runtime import serve as command
from settled.runtime.cli import app

COMMAND = [sys.executable, "-c", "from settled.runtime.cli import main; main()", "serve"]


@action(risk="non_idempotent_write", identity=("amount",), approval=always(ttl=timedelta(seconds=0.2)))
def charge_soon(amount: int) -> dict[str, Any]:
    """Charge an amount, if somebody says so at once."""
    return {"receipt": "C-1"}


def agents(ledger: Ledger) -> dict[str, Any]:
    """Return what `--agents` names."""
    return {"bank": build_agent(Talker(), [charge_soon], ledger=ledger)}


@contextmanager
def serve(ledger: Ledger, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Start the command on a ledger; it is killed at the end, if it still runs."""
    environment = {**os.environ, "SETTLED_DATABASE_URL": ledger.url, "PYTHONPATH": str(Path(__file__).parent)}
    process = subprocess.Popen(
        [*COMMAND, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=20)


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_a_fresh_start_lets_the_first_operator_in_once(ledger: Ledger) -> None:
    """Without any token it prints a link; the page behind it is usable in seconds; its worker looks after what nobody
    else does; SIGTERM ends an open page too.
    """
    late = begun(ledger, charge_soon, {"amount": 25})
    start = time.monotonic()
    with serve(ledger, "--port", "0") as process:
        where = re.search(r"http://127\.0\.0\.1:\d+", line(process))
        assert where is not None
        link = re.search(r"/login\?link=settled_\S+", line(process))
        assert link is not None
        with visiting(where[0]) as visitor:
            answer = visitor.send(visitor.form(link[0], "/login"))
            assert time.monotonic() - start < 15
            assert "Nothing waits for an approval" in answer.text
            assert "first operator" in answer.text
            while ledger.action(late.id).state is not State.CANCELLED:
                assert time.monotonic() - start < 25, "nobody decided in time, and the worker did not say so"
                time.sleep(0.1)
            with visitor.client.stream("GET", "/live") as stream:
                next(stream.iter_lines())
                process.send_signal(signal.SIGTERM)
                assert process.wait(timeout=12) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_with_a_token_there_is_no_link(ledger: Ledger) -> None:
    """Whoever has a token logs in with it, and no other way in is printed; what was killed leaves nothing behind."""
    secret = token(ledger)
    with serve(ledger, "--port", "0") as process:
        where = re.search(r"http://127\.0\.0\.1:\d+", line(process))
        assert where is not None
        with visiting(where[0], secret) as visitor:
            assert visitor.get("/actions").status_code == 200
            cookie = dict(visitor.client.cookies)
        process.kill()
        said, _ = process.communicate(timeout=20)
        assert "link" not in said
    with serve(ledger, "--port", "0", "--no-console", "--agents", "test_serve_process:agents") as process:
        where = re.search(r"http://127\.0\.0\.1:\d+", line(process))
        assert where is not None
        with visiting(where[0]) as visitor:
            visitor.client.cookies.update(cookie)
            answer = visitor.get("/")
            assert (answer.status_code, answer.url.path) == (200, "/chat"), "the session outlives a server"
            assert "/approvals" not in answer.text
            assert visitor.get("/approvals").status_code == 404


def run(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    """Run the command here, up to where it would serve."""
    monkeypatch.setattr(command, "run", lambda ledger, parts, listening: None)
    return CliRunner().invoke(app, ["serve", *arguments], env={"SETTLED_DATABASE_URL": ledger.url})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--host", "0.0.0.0"], "nobody has a token, and 0.0.0.0 can be reached from elsewhere"),
        (["--trace-url", "javascript:alert({trace_id})"], "must begin with https://"),
        (["--tools", "nowhere_at_all"], "nowhere_at_all cannot be imported"),
        (["--port", "70000"], "65535"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
) -> None:
    """A wrong start says why, and makes no login link."""
    result = run(ledger, monkeypatch, "--port", "0", *arguments)
    assert result.exit_code in (1, 2)
    assert told in f"{result.output} {result.exception}"
    assert count(ledger.url, "settled.tokens") == 0


def test_without_the_extra_it_says_which(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base install has no server: the command names what is missing, and how to get it."""
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "jinja2" else name)
    result = run(ledger, monkeypatch, "--port", "0")
    assert "jinja2 is not installed" in str(result.exception)
    assert "settled[serve]" in str(result.exception)


def test_an_address_that_cannot_be_had(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that is taken, and a host that is not there, are named."""
    token(ledger)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert "Address already in use" in str(run(ledger, monkeypatch, "--port", port).exception)
    nowhere = run(ledger, monkeypatch, "--host", "no.such.host.invalid").exception
    assert "--host no.such.host.invalid" in str(nowhere)


def test_open_to_others_it_warns(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a token it listens elsewhere too, and says that TLS has to stand in front of it."""
    token(ledger)
    said = run(ledger, monkeypatch, "--host", "0.0.0.0", "--port", "0").stdout
    assert "http://0.0.0.0:" in said
    assert "put TLS in front of it" in said
    assert "login?link" not in said
