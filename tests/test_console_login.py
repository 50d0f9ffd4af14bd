"""Who gets into the console, for how long, and what ends it."""

import re
from collections.abc import Iterator
from datetime import timedelta

import pytest

from acts import Clock, rows
from browsing import Visitor, forms, serving, token, visiting
from settled import Ledger
from settled.state import tokens
from settled.state.tokens import Role


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timed(database_url: str, clock: Clock) -> Iterator[Ledger]:
    with Ledger.connect(database_url, clock=clock) as ledger:
        yield ledger


@pytest.fixture
def url(timed: Ledger) -> Iterator[str]:
    with serving(timed) as address:
        yield address


@pytest.fixture
def stranger(url: str) -> Iterator[Visitor]:
    with visiting(url) as visitor:
        yield visitor


def is_in(visitor: Visitor) -> bool:
    answer = visitor.get("/actions", follow_redirects=False)
    assert answer.status_code in (200, 303)
    return answer.status_code == 200


def test_a_token_logs_in_and_logging_out_ends_it(timed: Ledger, url: str, stranger: Visitor) -> None:
    """A token opens the page that was asked for; after the logout neither the cookie nor a copy of it opens one."""
    secret = token(timed)
    asked = stranger.get("/queue")
    assert asked.url.path == "/login"
    form = forms(asked.text)[0]
    assert stranger.send(form, token=secret).url.path == "/queue"
    copy = dict(stranger.client.cookies)
    assert stranger.send(stranger.form("/queue", "/logout")).url.path == "/login"
    assert not is_in(stranger)
    with visiting(url) as thief:
        thief.client.cookies.update(copy)
        assert not is_in(thief)


def test_the_cookie_is_for_this_server_alone(timed: Ledger, stranger: Visitor) -> None:
    """No script reads it, no other site sends it, and the database holds neither it nor the token."""
    secret = token(timed)
    form = stranger.form("/login", "/login")
    answer = stranger.client.post(form.action, data={**form.fields, "token": secret}, follow_redirects=False)
    said = next(one for one in answer.headers.get_list("set-cookie") if one.startswith("settled_session="))
    assert "HttpOnly" in said
    assert "samesite=strict" in said.lower()
    assert re.search(r"Max-Age=\d+", said)
    session = said.partition("=")[2].partition(";")[0]
    kept = str(rows(timed.url, "SELECT * FROM settled.tokens, settled.sessions"))
    assert secret not in kept
    assert session not in kept


def test_a_wrong_token_is_told_nothing(timed: Ledger, stranger: Visitor) -> None:
    """An unknown token, half of one, and an empty one get the same page, and no session."""
    secret = token(timed)
    for wrong in ("settled_nobody", secret[:-1], " ", "x" * 5000, "\x00"):
        answer = stranger.log_in(wrong)
        assert answer.status_code == 403, wrong
        assert "not known here" in answer.text
    assert not is_in(stranger)


def test_a_revoked_token_ends_its_sessions_at_once(timed: Ledger, url: str) -> None:
    """Whoever is logged in with it is out with the next request, and cannot come back."""
    secret = token(timed)
    with visiting(url, secret) as maria, visiting(url, token(timed, "bob")) as bob:
        assert is_in(maria)
        token_id = rows(timed.url, "SELECT id FROM settled.tokens WHERE name = 'maria'")[0]["id"]
        revoked = tokens.on(timed).run(tokens.revoke(token_id))
        assert revoked is not None
        assert not is_in(maria)
        assert maria.log_in(secret).status_code == 403
        assert is_in(bob)


def test_an_expired_token_ends_its_sessions(timed: Ledger, clock: Clock, url: str) -> None:
    """A token that was good for an hour ends its session within it, by the database's clock."""
    with visiting(url, token(timed, good_for=timedelta(hours=1))) as maria:
        clock.sleep(3590)
        assert is_in(maria)
        clock.sleep(20)
        assert not is_in(maria)
        answer = maria.client.post("/logout", data={"csrf": "0"}, follow_redirects=False)
        assert answer.headers["location"].startswith("/login")


def test_a_session_ends_after_half_a_day(timed: Ledger, clock: Clock, url: str) -> None:
    """A token without an end does not make a session without one."""
    secret = token(timed)
    with visiting(url, secret) as maria:
        clock.sleep(12 * 3600 + 1)
        assert not is_in(maria)
        assert maria.log_in(secret).status_code == 200
        assert is_in(maria)


def test_a_login_link_works_once_and_not_late(timed: Ledger, clock: Clock, url: str) -> None:
    """Looking at the link uses nothing up; the first press of its button does, and after its time nothing does."""
    first, late = (
        token(timed, name, good_for=timedelta(hours=12), login_within=timedelta(minutes=30)) for name in ("a", "b")
    )
    with visiting(url) as one, visiting(url) as other:
        for _ in range(2):
            form = one.form(f"/login?link={first}", "/login")
        assert form.fields["token"] == first
        assert one.send(form).url.path == "/approvals"
        assert other.log_in(first).status_code == 403
        assert is_in(one)
        clock.sleep(1801)
        assert other.log_in(late).status_code == 403
        assert is_in(one)
        assert tokens.on(timed).run(tokens.bearer(first)) is None, "a link is no token for programs"


def test_nobody_is_logged_in_by_another_site(timed: Ledger, stranger: Visitor) -> None:
    """The login form needs the token of the visit that it was shown in."""
    secret = token(timed)
    form = stranger.form("/login", "/login")
    for forged in ("", "0" * 64, "é"):
        assert stranger.send(form, token=secret, csrf=forged).status_code == 403
    stranger.client.cookies.clear()
    assert stranger.send(form, token=secret).status_code == 403
    assert not is_in(stranger)


def test_the_way_back_stays_here(timed: Ledger, stranger: Visitor) -> None:
    """Neither the login nor the language switch leads to another server."""
    secret = token(timed)
    for elsewhere in ("//evil.example", "https://evil.example", "/\\evil.example", "/a\r\nx: y", "x"):
        stranger.client.cookies.clear()
        form = stranger.form("/login", "/login")
        data = {**form.fields, "token": secret, "next": elsewhere}
        answer = stranger.client.post("/login", data=data, follow_redirects=False)
        assert answer.headers["location"] == "/approvals", elsewhere
        switched = stranger.get("/language/zh", params={"next": elsewhere}, follow_redirects=False)
        assert switched.headers["location"] == "/approvals", elsewhere


def test_roles_are_an_order() -> None:
    """An operator may do what an approver may, and an approver what a viewer may; nothing else is a role."""
    assert Role.VIEWER < Role.APPROVER < Role.OPERATOR
    with pytest.raises(Exception, match="must be one of viewer, approver, operator"):
        Role.named("admin")
