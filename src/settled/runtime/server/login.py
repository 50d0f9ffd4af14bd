"""Login and logout. A token is shown once, at login; after that the browser holds a random session id in a cookie.

The login form has a CSRF token too, which follows from a cookie of the visit: nobody can log a browser in as himself.
"""

import secrets
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response

from settled.runtime.server import languages, people
from settled.runtime.server.forms import Form, checked, posted, visitor_token
from settled.runtime.server.people import by_session
from settled.runtime.server.rendering import page
from settled.runtime.server.site import site_of
from settled.state import tokens

SESSION = timedelta(hours=12)
"""A working day: whoever comes back tomorrow shows the token again."""

VISIT_COOKIE = "settled_visit"
MAX_SECRET_CHARS = 200

router = APIRouter()


@router.get("/")
def home(request: Request) -> Response:
    """Lead to the first page."""
    return RedirectResponse(site_of(request).home, 303)


@router.get("/login")
async def login_page(request: Request, link: str = "", next: str = "") -> Response:  # noqa: A002 - the usual name
    """Show the login form. A login link only fills it in: what merely looks at links uses none up."""
    if not link and await by_session(request):
        return RedirectResponse(within(request, next), 303)
    return _form(request, link=link[:MAX_SECRET_CHARS], next_page=within(request, next) if next else "")


@router.post("/login")
async def log_in(request: Request) -> Response:
    """Begin a session, or show the form again."""
    form = await checked(request, visitor_token(request.cookies.get(VISIT_COOKIE, "")))
    secret, session = form.get("token", "").strip()[:MAX_SECRET_CHARS], secrets.token_urlsafe(32)
    token = await site_of(request).tokens.arun(tokens.log_in(secret, session, good_for=SESSION))
    if token is None:
        return _form(request, link="", next_page=form.get("next", ""), status=403)
    answer = RedirectResponse(within(request, form.get("next", "")), 303)
    _set_cookie(answer, request, people.COOKIE, session)
    answer.delete_cookie(VISIT_COOKIE)
    return answer


@router.post("/logout")
async def log_out(request: Request, form: Annotated[Form, Depends(posted)]) -> Response:
    """End the session, here and in the database."""
    await site_of(request).tokens.arun(tokens.log_out(request.cookies[people.COOKIE]))
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(people.COOKIE)
    return answer


@router.get("/language/{language}")
def choose_language(request: Request, language: str, next: str = "") -> Response:  # noqa: A002 - the usual name
    """Remember the language that the reader wants."""
    answer = RedirectResponse(within(request, next), 303)
    if language in languages.LANGUAGES:
        year_s = 365 * 24 * 3600
        answer.set_cookie(languages.COOKIE, language, max_age=year_s, samesite="lax", httponly=True)
    return answer


def within(request: Request, path: str) -> str:
    """Return a path of this server; home for anything that could lead elsewhere."""
    is_ours = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_ours else site_of(request).home


def _form(request: Request, *, link: str, next_page: str, status: int = 200) -> Response:
    visit = request.cookies.get(VISIT_COOKIE) or secrets.token_urlsafe(16)
    values = {"csrf": visitor_token(visit), "link": link, "next": next_page, "refused": status != 200}
    answer = page(request, "login.html", None, values, status=status)
    _set_cookie(answer, request, VISIT_COOKIE, visit)
    return answer


def _set_cookie(answer: Response, request: Request, name: str, value: str) -> None:
    """Set a cookie that no script reads, no other site sends along, and no plain connection carries, where there is a
    secure one.
    """
    secure = request.url.scheme == "https"
    answer.set_cookie(
        name, value, max_age=int(SESSION.total_seconds()), httponly=True, samesite="strict", secure=secure
    )
