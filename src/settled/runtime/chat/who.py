"""Who asks: a program that shows its token, or a person with the session of a page.

Owns no rule of what is permitted: a route says which role it takes. The subtle thing is the cookie: a browser sends it
by itself, so whatever changes something must carry beside it what only a page of this server can know (`x-csrf-token`).
"""

import hmac
from collections.abc import Sequence
from typing import Protocol

from fastapi import Request

from settled.runtime.chat.refusals import Refused
from settled.runtime.server.people import COOKIE, Person, csrf_token
from settled.state import tokens
from settled.state.postgres import Database

SAFE = ("GET", "HEAD", "OPTIONS")


class Who(Protocol):
    """Whoever asks: a `Person` of the console is one."""

    @property
    def name(self) -> str:
        """What timelines say."""

    @property
    def tenant(self) -> str:
        """What bounds everything that this one sees."""

    @property
    def roles(self) -> Sequence[str]:
        """What policies are told of this one."""

    def may(self, role: str) -> bool:
        """Whether this one may do what the role of that name may."""


async def who_asks(request: Request, database: Database) -> Person:
    """Return who asks; Refused (401, or 403 for a request that another site may have made)."""
    secret = _shown(request)
    if secret:
        token = await database.arun(tokens.bearer(secret))
        if token is None:
            raise Refused(401, "this token is not known here, was revoked, or is over")
        return Person(token)
    session = request.cookies.get(COOKIE)
    token = await database.arun(tokens.session(session)) if session else None
    if token is None or session is None:
        raise Refused(401, "show a token: Authorization: Bearer settled_…, or x-api-key")
    if request.method not in SAFE and not _is_ours(request, session):
        raise Refused(403, "this was not sent by a page of this server, or the page is older than the login")
    return Person(token, session)


def check_role(who: Who, role: str, to_do: str) -> None:
    """Raise Refused (403) for who does not have that role."""
    if not who.may(role):
        raise Refused(403, f"to {to_do} takes the role {role}, which {who.name} does not have")


def _shown(request: Request) -> str | None:
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key")


def _is_ours(request: Request, session: str) -> bool:
    given = request.headers.get("x-csrf-token", "")
    return hmac.compare_digest(given.encode("utf-8", "replace"), csrf_token(session).encode())
