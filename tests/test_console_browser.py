"""The console in a real browser, with Debian's Chromium: the main ways through it, live, by keyboard, on a phone."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from browsing import FERNET, REFUND, SUPERVISOR, TOOLS, begun, mail, pay, refund, serving, token
from chain_shop import Counter, order_chain, raising
from chromium import chromium
from consumers import pay as posting
from consumers import paying
from settled import Action, Approve, Desk, Edit, Ended, Ledger, Message, Rejected, State
from settled.runtime.server.pages import live
from settled.state.tokens import Role
from settled.tools.outbox import Outbox

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

BOB: dict[str, Any] = {"by": "bob", "roles": ("supervisor",)}
LONG = "W" * 400
TOO_LOW = (
    "[...document.querySelectorAll('main button, summary, a.choice')]"
    ".filter(one => one.offsetHeight && one.offsetHeight < 36)"
)


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with chromium() as launched:
        yield launched


class Room:
    """A ledger, its console, and people who sit before it, each in a browser of their own."""

    def __init__(self, browser: "Browser", ledger: Ledger, url: str, closing: ExitStack) -> None:
        self.browser, self.ledger, self.url = browser, ledger, url
        self.complaints: list[str] = []
        self._closing = closing

    def sits_down(self, name: str = "maria", role: Role = Role.OPERATOR, **context: Any) -> "Page":
        """Log a person in, by the form; what the browser complains of is kept."""
        secret = token(self.ledger, name, role, **SUPERVISOR)
        opened = self.browser.new_context(**{"locale": "en-GB", **context})
        opened.set_default_timeout(10_000)
        self._closing.callback(opened.close)
        page = self.watched(opened.new_page())
        page.goto(f"{self.url}/approvals")
        page.locator("#token").fill(secret)
        page.locator("main button").click()
        page.wait_for_url("**/approvals")
        return page

    def watched(self, page: "Page") -> "Page":
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))
        page.on("console", lambda said: "Security Policy" in said.text and self.complaints.append(said.text))
        return page

    def go(self, page: "Page", path: str) -> "Page":
        page.goto(self.url + path)
        return page

    def now(self, action: Action) -> Action:
        return self.ledger.action(action.id)


@pytest.fixture
def room(browser: "Browser", database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    monkeypatch.setattr(live, "PULSE_S", 0.1)
    with Ledger.connect(database_url, secret_key=FERNET) as ledger, serving(ledger, tools=TOOLS) as url:
        with ExitStack() as closing:
            made = Room(browser, ledger, url, closing)
            yield made
        assert made.complaints == []


def test_approve_and_reject(room: Room) -> None:
    """Read, open, confirm: one is approved, one is refused with a message, and the list says what was done."""
    first, second = (begun(room.ledger, refund, {**REFUND, "order_id": order}) for order in ("A-1", "A-2"))
    page = room.sits_down()
    card = page.locator("article", has_text="order A-1")
    card.locator("summary", has_text="Approve").click()
    card.get_by_label("Note (optional)").fill("fine")
    card.locator("form button.good").click()
    page.get_by_role("status").filter(has_text="Approved").wait_for()
    page.locator("summary", has_text="Reject").click()
    page.get_by_label("Message").fill("not this one")
    page.locator("form button.bad").click()
    page.get_by_text("Nothing waits for an approval").wait_for()
    assert (room.now(first).state, room.now(first).approver) == (State.APPROVED, "maria")
    assert (room.now(second).state, room.now(second).reason) == (State.CANCELLED, "not this one")


def test_edit(room: Room) -> None:
    """What breaks a rule comes back beside its field; the corrected form makes a new action, which is shown."""
    action = begun(room.ledger, refund, REFUND)
    page = room.go(room.sits_down(), f"/actions/{action.id}")
    page.get_by_role("link", name="Edit").click()
    page.get_by_label("amount").fill("much")
    page.locator("main button").click()
    page.get_by_role("alert").filter(has_text="amount").wait_for()
    assert page.get_by_label("amount").input_value() == "much"
    page.get_by_label("amount").fill("180")
    page.locator("main button").click()
    page.get_by_role("heading", name="refund of 180.0 for order A-1001").wait_for()
    assert room.now(action).superseded_by in page.url


def test_resolve(room: Room) -> None:
    """Both versions are there; the receipt that the remote side has is offered, and settles it."""
    action = begun(room.ledger, pay, {"order_id": "P-1", "amount": 118.5})
    page = room.go(room.sits_down(), "/queue")
    assert page.locator(".versions").inner_text().split() == [
        "We", "meant", "{", '"amount":', "118.5", "}", "It", "has", "{", '"amount":', "180.0", "}",
    ]  # fmt: skip
    page.locator("summary", has_text="It happened").click()
    assert page.get_by_label("Receipt").input_value() == "R-9"
    page.get_by_role("button", name="Record it").first.click()
    page.get_by_text("no outcome is left for a person").wait_for()
    assert (room.now(action).state, room.now(action).receipt) == (State.SUCCEEDED, "R-9")


def test_two_tabs_and_a_change_underneath(room: Room) -> None:
    """A tab that is being read is not torn away; a decision on what it still shows is refused with the change."""
    action = begun(room.ledger, refund, REFUND)
    page = room.sits_down()
    page.locator("summary", has_text="Approve").click()
    desk = Desk(room.ledger, tools=TOOLS)
    desk.decide(action.id, Edit({"amount": 180}), fingerprint=action.fingerprint, **BOB)
    page.get_by_text("Something has changed here meanwhile").wait_for()
    page.locator("form button.good").click()
    page.get_by_role("heading", name="This has changed since you saw it").wait_for()
    assert page.locator(".changes").inner_text().split() == ["amount", "118.5", "→", "180.0"]
    page.get_by_role("link", name="Look at what took its place").click()
    page.get_by_role("heading", name="refund of 180.0").wait_for()
    assert room.now(action).state is State.CANCELLED


def test_lists_and_counts_are_live(room: Room) -> None:
    """What comes and goes is seen without a click: the list, the header's counts on another page, one action."""
    page = room.sits_down()
    other = room.watched(page.context.new_page())
    action = begun(room.ledger, refund, REFUND)
    page.locator("article", has_text="refund of 118.5").wait_for()
    room.go(other, f"/actions/{action.id}")
    assert other.locator("[data-count=approvals]").inner_text() == "1"
    Desk(room.ledger).decide(action.id, Approve(), fingerprint=action.fingerprint, **BOB)
    page.get_by_text("Nothing waits for an approval").wait_for()
    other.locator("h1 + .standing", has_text="approved").wait_for()
    other.locator("[data-count=approvals]").wait_for(state="hidden")


def test_a_viewer_reads(room: Room) -> None:
    """Whoever may not decide sees everything, no button, and why."""
    action = begun(room.ledger, refund, REFUND)
    page = room.sits_down(role=Role.VIEWER)
    page.get_by_text("Your role (viewer) reads").wait_for()
    for path in ("/approvals", "/queue", f"/actions/{action.id}"):
        room.go(page, path)
        assert page.locator("main button:visible").count() == 0
        assert page.locator("summary").count() == 0
    assert room.go(page, f"/actions/{action.id}/edit").get_by_text("You may not do this").is_visible()


def test_filters_and_more(room: Room) -> None:
    """A filter changes the list and the address without a reload; more rows join those that are there."""
    from playwright.sync_api import expect

    for number in range(55):
        begun(room.ledger, refund, {"order_id": f"A-{number}", "amount": 1})
    stuck = begun(room.ledger, mail, {"to": "a@example.com"})
    page = room.go(room.sits_down(), "/actions")
    assert page.locator("#rows > li:not(.more)").count() == 50
    page.get_by_role("link", name="More").click()
    expect(page.locator("#rows > li")).to_have_count(56)
    page.get_by_label("State").select_option("unknown")
    expect(page.locator("#rows > li")).to_have_count(1)
    assert stuck.id in page.locator("#rows").inner_text()
    assert "state=unknown" in page.url


def test_by_keyboard(room: Room) -> None:
    """The first stop leads past the header; each stop can be seen; a decision needs no mouse."""
    action = begun(room.ledger, refund, REFUND)
    page = room.sits_down()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    for _ in range(12):
        page.keyboard.press("Tab")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
        if page.evaluate("document.activeElement.tagName") == "SUMMARY":
            break
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("by hand")
    page.keyboard.press("Enter")
    page.get_by_text("Nothing waits for an approval").wait_for()
    assert room.now(action).approver == "maria"


@pytest.mark.parametrize("locale", ["en-GB", "zh-CN"])
def test_on_a_phone_nothing_sticks_out(room: Room, locale: str) -> None:
    """At 375 points no page scrolls sideways and no button is too small for a thumb, whatever the values are."""
    hostile = "<script>alert(1)</script>"
    action = begun(room.ledger, refund, {"order_id": LONG, "amount": 118.5, "memo": hostile}, requester=LONG[:200])
    stuck = begun(room.ledger, pay, {"order_id": hostile, "amount": 118.5}, thread_id=LONG[:200])
    far = Counter(faults={"pay": raising(Ended(Rejected(LONG)))})
    run = order_chain(far).run({"coupon": LONG, "order": LONG[:100]}, ledger=room.ledger, thread_id=LONG[:200])
    posting(room.ledger, "O-1", paying(emits=lambda done: Message(LONG[:100], LONG)))
    letter = Outbox(room.ledger).messages()[0]
    page = room.sits_down(LONG[:100], viewport={"width": 375, "height": 700}, locale=locale)
    for path in ("/approvals", "/queue", "/actions", f"/actions/{action.id}", f"/actions/{stuck.id}",
                 f"/actions/{action.id}/edit", "/actions/act-0", "/login?link=x", "/chains", f"/chains/{run.chain_id}",
                 "/outbox", f"/outbox/{letter.id}"):  # fmt: skip
        room.go(page, path)
        for summary in page.locator("summary").all():
            summary.click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 375, path
        assert page.evaluate(f"{TOO_LOW}.length") == 0, path


def test_a_server_that_is_gone_and_back(room: Room) -> None:
    """The page says that it may be old while the server is away, and goes on by itself when it is back."""
    with serving(room.ledger, abruptly=True) as room.url:
        page = room.sits_down()
        page.locator("#offline").wait_for(state="hidden")
    page.locator("#offline").wait_for(state="visible")
    begun(room.ledger, refund, REFUND)
    with serving(room.ledger, port=int(room.url.rpartition(":")[2]), abruptly=True):
        page.locator("article", has_text="refund of 118.5").wait_for()
        page.locator("#offline").wait_for(state="hidden")
        page.close()
