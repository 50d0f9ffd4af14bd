"""What reaches the server from outside: names, paths, sizes, and clients that take their time."""

import contextlib
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from browsing import Visitor, begun, refund, serving, token, visiting
from settled import Ledger
from settled.runtime.server.guard import MAX_BODY_BYTES


@pytest.fixture
def url(ledger: Ledger) -> Iterator[str]:
    with serving(ledger, hosts=("127.0.0.1", "::1"), body_wait_s=0.5) as address:
        yield address


@pytest.fixture
def maria(ledger: Ledger, url: str) -> Iterator[Visitor]:
    with visiting(url, token(ledger)) as visitor:
        yield visitor


def raw(url: str, *parts: bytes, pause_s: float = 0.0) -> bytes:
    """Send bytes as they are, with pauses between the parts; returns all that comes back."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=15) as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(pause_s)
        heard = b""
        while more := connection.recv(65536):
            heard += more
            if pause_s == 0 and b"\r\n\r\n" in heard:
                break
    return heard


def test_every_answer_carries_the_headers(url: str, maria: Visitor) -> None:
    """Pages, errors, files and redirects: nothing inline, in nobody's frame, of no guessed type, and kept nowhere."""
    for path in ("/approvals", "/nothing", "/static/console.css", "/login", "/", "/actions/act-1"):
        answer = maria.client.get(path, follow_redirects=False)
        policy = answer.headers["content-security-policy"]
        assert "script-src 'self'" in policy
        assert "style-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "server" not in answer.headers
        assert (answer.headers["cache-control"] == "no-store") == ("static" not in path)
    page = maria.text("/approvals")
    assert " style=" not in page
    assert " onclick=" not in page
    assert page.count("<script") == page.count("<script src=")


def test_another_name_is_not_answered(url: str) -> None:
    """A foreign name that was made to lead to this machine gets nothing, whatever is asked."""
    for host in ("evil.example", "127.0.0.1.evil.example", "", "localhost"):
        head = f"GET /login HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
        assert raw(url, head).startswith(b"HTTP/1.1 400"), host
    for host in ("127.0.0.1", "127.0.0.1:1", "[::1]:8484", "127.0.0.1:"):
        head = f"GET /login HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
        assert raw(url, head).startswith(b"HTTP/1.1 " + (b"400" if host.endswith(":") else b"200")), host


TRICKS = (
    "..%2fapp.py", "%2e%2e/app.py", "../app.py", "..\\app.py", "%2e%2e%5capp.py", "/etc/passwd",
    "console.css%00.png", "", ".", "%252e%252e%252fapp.py", "sub/../console.css",
)  # fmt: skip


def test_no_path_leads_out_of_the_files(url: str) -> None:
    """Only the files that there are, by their very names; sent as they are, past a client that tidies paths."""
    for path in TRICKS:
        answer = raw(url, f"GET /static/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/html\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 404"), (path, answer[:80])
        assert b"build_app" not in answer


def test_a_body_that_is_too_large_is_refused(url: str, maria: Visitor) -> None:
    """By what it says of itself, and by what arrives without saying: it is not read to its end, and does nothing."""
    csrf = maria.form("/approvals", "/logout").fields["csrf"]

    def chunks() -> Iterator[bytes]:
        yield f"csrf={csrf}&x=".encode()
        for _ in range(40):
            yield b"x" * 100_000

    headers = {"content-type": "application/x-www-form-urlencoded"}
    for body in (f"csrf={csrf}&x={'x' * MAX_BODY_BYTES}".encode(), chunks()):
        with contextlib.suppress(httpx.NetworkError):  # it closes the connection while much is still to come
            assert maria.client.post("/logout", content=body, headers=headers).status_code in (400, 413)
    assert maria.get("/actions", follow_redirects=False).status_code == 200, "nothing was done"


def test_a_slow_client_is_cut_off_and_holds_nobody_up(url: str, maria: Visitor) -> None:
    """Forty forms that never end are ended for them; meanwhile others are served as ever."""
    head = (
        b"POST /logout HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        b"Content-Length: 100000\r\nCookie: settled_session=" + maria.client.cookies["settled_session"].encode()
    )
    with ThreadPoolExecutor(40) as pool:
        slow = [pool.submit(raw, url, head + b"\r\n\r\ncsrf=", b"1", pause_s=0.2) for _ in range(40)]
        start = time.monotonic()
        assert maria.get("/actions").status_code == 200
        assert time.monotonic() - start < 5
        for one in slow:
            assert one.result(timeout=20).startswith(b"HTTP/1.1 408")


def test_a_body_that_is_no_form_does_nothing(maria: Visitor) -> None:
    """Whatever else is sent has no token in it, and is refused without an error of ours."""
    for kind in ("multipart/form-data", "multipart/form-data; boundary=x", "application/json", ""):
        answer = maria.client.post("/logout", content=b'--x\r\n{"csrf": 1}', headers={"content-type": kind})
        assert answer.status_code in (400, 403), kind
    assert maria.get("/actions", follow_redirects=False).status_code == 200


def test_methods_that_are_not_meant_are_refused(ledger: Ledger, maria: Visitor) -> None:
    """A decision is never a link, and a page is never a target."""
    action = begun(ledger, refund, {"order_id": "A-1", "amount": 118.5})
    assert maria.get(f"/actions/{action.id}/approve").status_code == 405
    assert maria.get("/logout").status_code == 405
    assert maria.client.post("/approvals").status_code == 405


def test_too_many_fields_are_refused(maria: Visitor) -> None:
    """A form has as many fields as a tool has arguments."""
    data = {f"f{n}": "1" for n in range(5000)}
    assert maria.client.post("/logout", data=data).status_code in (400, 403)
