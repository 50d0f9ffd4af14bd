"""A Postgres that a test may stop, kill and start again; the fixtures are imported by the files that do so."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import servers
from settled.state import embedded


@dataclass(frozen=True)
class Server:
    """A Postgres of this file's own, that a test may stop, kill and start again."""

    home: Path

    @property
    def url(self) -> str:
        return embedded.server(self.home, settings={"fsync": "off"})

    def stop(self) -> None:
        assert embedded.stop(self.home)

    def kill(self) -> None:
        """End it as a crash would: no farewell to anybody, and a recovery at the next start."""
        pid = int((self.home / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        while Path(f"/proc/{pid}").exists():
            time.sleep(0.01)

    def start(self) -> None:
        embedded.server(self.home)

    def restart(self) -> None:
        self.stop()
        self.start()

    def crash(self) -> None:
        self.kill()
        self.start()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with servers.scratch() as home:
        own = Server(home)
        try:
            assert own.url
            yield own
        finally:
            embedded.stop(home)


@pytest.fixture
def own_url(server: Server) -> Iterator[str]:
    """A database on the server that will be stopped; the remote side has its effects on the other one."""
    with servers.database(server.url) as url:
        yield url
