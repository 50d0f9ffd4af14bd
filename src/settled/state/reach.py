"""Reaching a database for the first time: it may just be starting, or its URL may be wrong.

Owns what is said when it cannot be reached: where, and the driver's last reason; never a password. Once a ledger is
open, `settled.state.postgres` waits for a Postgres that went away.
"""

import time
from collections.abc import Callable

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from settled.state.errors import ContractError, LedgerUnavailable
from settled.state.postgres import RECONNECT_WAIT_S, Tries, translated

HOW_TO_WRITE = (
    "it is like postgresql://user:password@host:5432/name, and in a password @ : / % are written %40 %3A %2F %25"
)

_REFUSED = ("password authentication failed", "does not exist", "no password supplied", "no pg_hba.conf entry")
"""A failed connection carries no SQLSTATE, so its words must do; in another language it is waited for, and then told.
"""

_NO_SUCH_HOST = ("failed to resolve host", "could not translate host name")


def reach(url: str, step: Callable[[str], object], patience_s: float) -> None:
    """Carry out `step(url)` as soon as Postgres can be reached; the URL it is given bounds each attempt to connect.

    Raises ContractError for a URL or a login that cannot be right, LedgerUnavailable for a host that is not there (at
    once) or does not answer (when the time is up).
    """
    where = address(url)
    tries = Tries(patience_s, free=0)
    for _ in tries:
        try:
            step(_bounded(url, patience_s))
            return
        except psycopg.OperationalError as error:
            reason = last_reason(error)
            if any(words in reason for words in _REFUSED):
                raise ContractError(f"Postgres at {where} refuses the connection: {reason}") from error
            if any(words in reason for words in _NO_SUCH_HOST):
                raise LedgerUnavailable(f"Postgres at {where} cannot be found: {reason}") from error
            if tries.are_over:
                raise LedgerUnavailable(
                    f"Postgres at {where} did not answer within {patience_s:g} s: {reason}"
                ) from error
            time.sleep(RECONNECT_WAIT_S)
        except psycopg.Error as error:
            raise translated(error) from error


def answer(url: str, patience_s: float) -> None:
    """Return once Postgres answers at `url`; raise as `reach` does. Changes nothing."""
    reach(url, lambda bounded: psycopg.connect(bounded).close(), patience_s)


def address(url: str) -> str:
    """Return the host and port of a database URL, as it may be shown; ContractError for one that cannot be read.

    A port that is no number is a piece of a password with an unescaped `/` or `:` in it, so nothing of it is told, nor
    of what libpq says about it.
    """
    try:
        parts = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise ContractError(f"this is not a database URL that libpq understands: {HOW_TO_WRITE}") from None
    ports = str(parts.get("port") or "5432").split(",")
    if not all(port.isdecimal() for port in ports if port):
        raise ContractError(f"the database URL has a port that is no number: {HOW_TO_WRITE}")
    hosts = str(parts.get("host") or parts.get("hostaddr") or "localhost").split(",")
    return ",".join(f"{host}:{ports[min(n, len(ports) - 1)]}" for n, host in enumerate(hosts))


def last_reason(error: psycopg.Error) -> str:
    """Return why a connection failed, as one line; where it was is said beside it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rpartition("failed: ")[2].strip()


def _bounded(url: str, patience_s: float) -> str:
    """Return the URL with a bound for each attempt, where it has none: a host that swallows packets answers never."""
    given = conninfo_to_dict(url)
    return make_conninfo(url, connect_timeout=given.get("connect_timeout") or max(2, round(patience_s)))
