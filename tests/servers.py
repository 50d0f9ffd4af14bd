"""The Postgres servers that tests run on: the wheel's own, Debian's, or the one that SETTLED_DATABASE_URL names.

Also a fresh database per test: a copy of one that was migrated once. Tests may touch psycopg; only the library may not.
"""

import atexit
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

# The machine does not die in a test, only processes do, so nothing is lost by not waiting for the disk.
SETTINGS = {"fsync": "off", "max_connections": "200"}
START_S = 60
# Of 2 ms each, and then the database is dropped from under whoever is left.
LOOKS = 500
# In memory a copy of a database takes 10 ms; on a slow disk 300. Docker's usual 64 MB of it are too few for a server.
MEMORY = Path("/dev/shm")
ROOM_BYTES = 2 * 1024**3
DEBIAN = Path("/usr/lib/postgresql")


class Missing(Exception):
    """This machine does not have the server that was asked for."""


@contextmanager
def wheel() -> Iterator[str]:
    """The embedded server, in a home of its own outside the repository."""
    from settled.state import embedded

    with scratch() as home:
        try:
            yield embedded.server(home, settings={"fsync": "off"})
        finally:
            embedded.stop(home)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for a server, outside the repository: in memory if there is room, with a short path in any case."""
    parent = MEMORY if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM_BYTES else Path("/tmp")
    folder = Path(tempfile.mkdtemp(prefix="settled-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def debian() -> Iterator[str]:
    """Debian's PostgreSQL, run by a user who is not root, on a free port of the loopback interface."""
    binaries, user, port = _debian_binaries(), _postgres_user(), _free_port()
    with scratch() as folder:
        folder.chmod(0o755)
        if user:
            shutil.chown(folder, user)
        data = folder / "data"
        _run(user, binaries / "initdb", "--auth=trust", "--encoding=utf8", "--locale=C", "-U", "postgres", "-D", data)
        settings = {**SETTINGS, "port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": folder}
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        pg_ctl = [binaries / "pg_ctl", "-D", data, "-w", "-t", START_S]
        try:
            _run(user, *pg_ctl, "-l", folder / "log", "-o", options, "start")
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
        finally:
            if (data / "postmaster.pid").exists():
                _run(user, *pg_ctl, "-m", "immediate", "stop")


@contextmanager
def template(server_url: str) -> Iterator[str]:
    """The name of a database to copy that has been set up, a saver's tables with it; nobody may be connected to it
    while it is copied.
    """
    from settled import Ledger, open_checkpointer

    with database(server_url) as url:
        with Ledger.connect(url) as ledger, open_checkpointer(ledger):
            pass
        yield urlsplit(url).path.lstrip("/")


@contextmanager
def database(server_url: str, like: str = "template1") -> Iterator[str]:
    """The URL of a new database, a copy of `like`; dropped at the end, whoever is still connected."""
    name = f"settled_{secrets.token_hex(6)}"
    copied = "CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy"
    _execute(server_url, sql.SQL(copied).format(sql.Identifier(name), sql.Identifier(like)))
    try:
        yield urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))
    finally:
        _see_everybody_off(server_url, name)
        _execute(server_url, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _see_everybody_off(server_url: str, name: str) -> None:
    """Wait for a database's last backends to go, and end those that stay: DROP … FORCE would sleep for 100 ms each time
    it meets one that is on its way out, which is after nearly every test.
    """
    ended = sql.SQL(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = {} AND backend_type = 'client backend'"
    ).format(name)
    for _ in range(LOOKS):
        if not _execute(server_url, ended):
            return
        time.sleep(0.002)


_connections: dict[str, psycopg.Connection[Any]] = {}
"""One for each server, kept: to connect costs about as much as to copy a database."""


def _execute(server_url: str, statement: sql.Composed) -> int:
    """Execute a statement, on a new connection where the server was started anew; return its number of rows."""
    try:
        return _connection(server_url).execute(statement).rowcount
    except psycopg.OperationalError:
        _connections.pop(server_url).close()
        return _connection(server_url).execute(statement).rowcount


def _connection(server_url: str) -> psycopg.Connection[Any]:
    if server_url not in _connections:
        _connections[server_url] = psycopg.connect(server_url, autocommit=True)
        atexit.register(_connections[server_url].close)
    return _connections[server_url]


def _debian_binaries() -> Path:
    """Version 15 if it is there, for that is what is promised; else the newest."""
    found = sorted(DEBIAN.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    chosen = [path for path in found if path.parts[-3] == "15"] or found[-1:]
    if not chosen:
        raise Missing(f"no PostgreSQL under {DEBIAN}: install the package postgresql-15")
    return chosen[0].parent


def _postgres_user() -> str | None:
    """Postgres refuses to run as root: then the package's own user runs it. Else whoever runs the tests."""
    return "postgres" if os.geteuid() == 0 else None


def _run(user: str | None, *command: object) -> None:
    """Run a command of Postgres in a folder that its user may enter; its output is shown only when it fails.

    The output goes to a file: a started server inherits the descriptor, and a pipe would never end.
    """
    with tempfile.TemporaryFile("w+") as output:
        done = subprocess.run([str(part) for part in command], user=user, cwd="/", stdout=output, stderr=output)
        if done.returncode:
            output.seek(0)
            raise RuntimeError(f"{command[0]} failed: {output.read()}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
