"""Who is at the other end: a person with a session cookie. (A program that shows its token is the chat API's to ask.)

Owns the cookie and what is asked of it. Whether a session is good is asked in the database with each request; nothing
about it is kept in this process, so that any number of servers agree, and what is revoked ends at once.
"""

import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated

from fastapi import Depends, Request

from settled.runtime.server.site import site_of
from settled.state import tokens
from settled.state.errors import NotPermitted
from settled.state.tokens import Role, Token

COOKIE = "settled_session"


class NotSignedIn(Exception):
    """Nobody is signed in, or not any more."""


@dataclass(frozen=True)
class Person:
    """Who is signed in. `session` is the cookie's secret, None for a program."""

    token: Token
    session: str | None = None

    @property
    def name(self) -> str:
        return self.token.name

    @property
    def tenant(self) -> str:
        return self.token.tenant

    @property
    def roles(self) -> tuple[str, ...]:
        return self.token.roles

    @property
    def csrf(self) -> str:
        """What a form of this person carries."""
        return csrf_token(self.session or "")

    def may(self, role: str) -> bool:
        """Whether this person may do what the role of that name may."""
        return self.token.role >= Role.named(role)


def csrf_token(secret: str) -> str:
    """Return what a form must carry: it follows from a cookie that no other site can read, and gives it not away."""
    return hmac.digest(secret.encode(), b"settled form", sha256).hex()


async def signed_in(request: Request) -> Person:
    """Return who is signed in by cookie; NotSignedIn."""
    person = await by_session(request)
    if person is None:
        raise NotSignedIn
    request.state.person = person  # for the page of an error
    return person


async def by_session(request: Request) -> Person | None:
    """Return whose session cookie came with the request, if it is good."""
    secret = request.cookies.get(COOKIE)
    if not secret:
        return None
    token = await site_of(request).tokens.arun(tokens.session(secret))
    return Person(token, secret) if token else None


def needs(role: str) -> Callable[[Person], Awaitable[Person]]:
    """Return the dependency of a route that takes at least this role; NotPermitted for a lesser one."""

    async def permitted(person: Annotated[Person, Depends(signed_in)]) -> Person:
        if not person.may(role):
            raise NotPermitted(f"this takes the role {role}, and {person.name} is {person.token.role.label}")
        return person

    return permitted
