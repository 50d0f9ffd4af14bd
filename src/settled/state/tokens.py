"""Who may look into the console and the API: tokens and sessions, as operations.

Owns the statements of `tokens.sql`, and the secrets' form: a secret is shown once, to whom it is for, and only its
SHA-256 is kept. Knows nothing of HTTP. The subtle thing: a session is good only as long as its token is, and that is
asked with each request, so that what is revoked ends at once and everywhere.
"""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Self

from settled.state.errors import InvalidArguments
from settled.state.ledger import Query, Rows
from settled.state.postgres import Database

MAX_NAME_CHARS = 200
"""As `settled.tools.decisions` bounds the name of a person who decides."""

MAX_EXTRA_ROLES = 20
"""More than a person has; each of them is compared with each approver of a policy."""

LONGEST = timedelta(days=3660)
"""Ten years: whoever wants more wants a token without an end, and an instant must not pass the end of all calendars."""

SECRET_PREFIX = "settled_"
"""What a scanner for leaked secrets, and a reader of a log, knows a token by."""


class Role(IntEnum):
    """What a token permits; each role may do what the ones before it may."""

    VIEWER = 1
    """Reads."""
    APPROVER = 2
    """Decides approvals."""
    OPERATOR = 3
    """Resolves the manual queue, retries, withdraws, sends again."""

    @classmethod
    def named(cls, name: str) -> Self:
        """Return the role of that name; InvalidArguments for any other."""
        for role in cls:
            if role.label == name:
                return role
        raise InvalidArguments("role", f"must be one of {', '.join(role.label for role in cls)}")

    @property
    def label(self) -> str:
        """Its name as it is written."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Token:
    """One token without its secret. `now` is the database's clock at the statement that read it.

    `login_until` is a login link's alone: it is good for one login until then, and its session until `expires_at`.
    """

    id: str
    tenant: str
    name: str
    role: Role
    extra_roles: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None
    login_until: datetime | None
    used_at: datetime | None
    revoked_at: datetime | None
    now: datetime

    @property
    def is_good(self) -> bool:
        """Whether it is neither revoked nor over."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > self.now)

    @property
    def roles(self) -> tuple[str, ...]:
        """All roles, as a policy is told them."""
        return (self.role.label, *self.extra_roles)


def _token(rows: Rows) -> Token | None:
    found = _tokens(rows)
    return found[0] if found else None


def _tokens(rows: Rows) -> list[Token]:
    return [Token(row[0], row[1], row[2], Role.named(row[3]), tuple(row[4]), *row[5:]) for row in rows]


def new_secret() -> str:
    """Return a fresh secret of 256 bits, as it is shown."""
    return SECRET_PREFIX + secrets.token_urlsafe(32)


def digest(secret: str) -> bytes:
    """Return what is kept of a secret. It has 256 random bits, so one hash is enough, and the index finds it."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()


def create(
    secret: str,
    *,
    name: str,
    role: Role,
    tenant: str = "default",
    extra_roles: tuple[str, ...] = (),
    good_for: timedelta | None = None,
    login_within: timedelta | None = None,
) -> Query[Token]:
    """Write a token down, for `good_for` (None: without an end); with `login_within` as a link for one login.

    InvalidArguments names what cannot be: a name, a role or a tenant that is blank, too long or not printable, a span
    that is over at once.
    """
    for field, value in (("name", name), ("tenant", tenant), *(("as-role", role) for role in extra_roles)):
        check_name(field, value)
    if len(extra_roles) > MAX_EXTRA_ROLES:
        raise InvalidArguments("as-role", f"may be given at most {MAX_EXTRA_ROLES} times")
    if good_for is not None and not timedelta(0) < good_for <= LONGEST:
        raise InvalidArguments("expires-in", f"must be more than nothing and at most {LONGEST.days} days")
    params: dict[str, object] = {"digest": digest(secret), "id": f"tok-{secrets.token_hex(6)}", "tenant": tenant}
    params |= {"name": name, "role": role.label, "extra_roles": list(extra_roles)}
    return Query("create", params | {"good_for": good_for, "login_within": login_within}, lambda rows: _tokens(rows)[0])


def check_name(field: str, value: str) -> None:
    """Raise InvalidArguments for what cannot be read as a name in a timeline."""
    if not value.strip() or not value.isprintable() or len(value) > MAX_NAME_CHARS:
        raise InvalidArguments(field, f"must be a name of at most {MAX_NAME_CHARS} printable characters")


def tokens(tenant: str | None = None, *, most: int = 100) -> Query[list[Token]]:
    """Read the tokens that were made by hand, newest first."""
    return Query("tokens", {"tenant": tenant, "most": most}, _tokens)


def any_good() -> Query[bool]:
    """Read whether anybody has a token that is good, of any tenant."""
    return Query("any_good", {}, lambda rows: bool(rows[0][0]))


def revoke(token_id: str) -> Query[Token | None]:
    """Take a token back, and its sessions with it; None: there is none of that id."""
    return Query("revoke", {"id": token_id}, _token)


def log_in(secret: str, session: str, *, good_for: timedelta) -> Query[Token | None]:
    """Begin the session of that secret; None: the token is not good, or its link was used."""
    return Query("log_in", {"digest": digest(secret), "session": digest(session), "good_for": good_for}, _token)


def session(secret: str) -> Query[Token | None]:
    """Read whose session it is; None: it is over, or its token is."""
    return Query("session", {"session": digest(secret)}, _token)


def bearer(secret: str) -> Query[Token | None]:
    """Read whose token a program shows; None: it is not good."""
    return Query("bearer", {"digest": digest(secret)}, _token)


def log_out(session: str) -> Query[bool]:
    """End a session; False: there was none."""
    return Query("log_out", {"session": digest(session)}, bool)


def on(database: Database) -> Database:
    """Return `database` as one that speaks these statements; the two share their connections."""
    return database.speaking("sql/tokens.sql")
