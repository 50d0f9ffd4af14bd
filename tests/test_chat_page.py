"""The chat page in a real browser: what is sent twice is answered once, what waits is decided in its place, and whoever
only reads decides nothing.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from browsing import serving, token, visiting
from chat_agents import Talker, tools
from chromium import chromium
from scripted import Remote
from settled import Approve, Desk, Ledger, build_agent
from settled.runtime.chat.router import router
from settled.runtime.chat.serving import Chat
from settled.runtime.chat.texts import EN, ZH
from settled.runtime.server.app import CONSOLE
from settled.state import runs
from settled.state.tokens import Role

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with chromium() as launched:
        yield launched


class Room:
    """A server with the chat page, and people before it."""

    def __init__(self, ledger: Ledger, remote: Remote, closing: ExitStack) -> None:
        self.url, self.ledger, self.remote = "", ledger, remote
        self.complaints: list[str] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self._closing = closing

    def sits_down(self, browser: "Browser", name: str, role: Role, **context: Any) -> "Page":
        """Log a person in, and open the chat."""
        opened = browser.new_context(**{"locale": "en-GB", **context})
        opened.set_default_timeout(15_000)
        self._closing.callback(opened.close)
        page = self.watched(opened.new_page())
        page.goto(f"{self.url}/login")
        page.locator("#token").fill(token(self.ledger, name, role))
        page.locator("main button").click()
        page.wait_for_url("**/approvals")
        page.goto(f"{self.url}/chat")
        return page

    def watched(self, page: "Page") -> "Page":
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda said: "Security Policy" in said.text and self.complaints.append(said.text))
        return page

    def threads(self) -> list[str]:
        found = runs.on(self.ledger).run(runs.threads("default", most=100))
        return [one.thread_id for one in found]

    def runs_of(self, thread_id: str) -> list[runs.Run]:
        return runs.on(self.ledger).run(runs.runs("default", thread_id, most=100))


@pytest.fixture
def room(database_url: str) -> Iterator[Room]:
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger.connect(database_url))
        remote = Remote(database_url)
        made = Room(ledger, remote, stack)
        slow = tools(remote, None, 0.8, may_go_on=made.may_go_on)
        chat = Chat(ledger, {"bank": build_agent(Talker(slow_s=0.02), slow, ledger=ledger)})
        parts = {"routers": (*CONSOLE, router(chat)), "beside": (lambda _: chat.opened(),)}
        made.url = stack.enter_context(serving(ledger, **parts))
        yield made
        assert made.complaints == []


def send(page: "Page", text: str) -> None:
    page.locator("#text").fill(text)
    page.locator("#send").click()


def expect(what: Any) -> Any:
    from playwright.sync_api import expect

    return expect(what)


def test_a_message_is_answered_and_its_action_shown_with_its_state(room: Room, browser: "Browser") -> None:
    """While it is under way the page says so, and a page that is loaded again shows the same."""
    page = room.sits_down(browser, "vera", Role.VIEWER)
    expect(page.locator("#empty")).to_be_visible()
    room.may_go_on.clear()
    send(page, "slow A1")
    expect(page.locator(".act .state")).to_have_text("running")
    room.may_go_on.set()
    expect(page.locator(".act .state")).to_have_text("succeeded")
    expect(page.locator(".act")).to_contain_text("Receipt R-1")
    expect(page.locator(".bubble").last).to_contain_text("R-1")
    expect(page.locator("#thinking")).to_be_hidden()
    expect(page.locator("#heading")).to_have_text("slow A1")
    page.reload()
    expect(page.locator(".bubble").last).to_contain_text("R-1")
    send(page, "words")
    expect(page.locator(".bubble").last).to_have_text("The answer comes in pieces.")
    assert len(room.threads()) == 1


def test_a_message_that_is_sent_twice_is_answered_once(room: Room, browser: "Browser") -> None:
    """By a double click, by a page that was loaded again before it heard, and by a second tab with the same draft."""
    page = room.sits_down(browser, "vera", Role.VIEWER)
    page.locator("#text").fill("slow A2")
    other = room.watched(page.context.new_page())
    other.goto(f"{room.url}/chat")
    expect(other.locator("#text")).to_have_value("slow A2")
    page.locator("#send").dblclick()
    other.locator("#send").click()
    page.reload()
    other.reload()
    (thread_id,) = room.threads()
    for tab in (page, other):
        tab.goto(f"{room.url}/chat?thread={thread_id}")
        expect(tab.locator(".act .state")).to_have_text("succeeded")
        expect(tab.locator(".mine")).to_have_count(1)
    assert [run.status for run in room.runs_of(thread_id)] == ["success"]
    assert room.remote.count() == 1


def test_what_waits_is_decided_in_its_place_by_who_may(room: Room, browser: "Browser") -> None:
    """The requester sees it waiting, and sees what came of it without asking."""
    vera = room.sits_down(browser, "vera", Role.VIEWER)
    send(vera, "pay 5")
    expect(vera.locator(".act .state")).to_have_text("waiting for approval")
    expect(vera.locator(".act")).to_contain_text("Waiting for somebody who may decide")
    expect(vera.locator(".act button")).to_have_count(0)
    anna = room.sits_down(browser, "anna", Role.APPROVER)
    anna.locator("#list a").first.click()
    expect(anna.locator(".act pre")).to_contain_text('"payee": "Ann"')
    anna.locator(".act button", has_text="Approve").click()
    expect(anna.locator(".act .state")).to_have_text("succeeded")
    expect(vera.locator(".act .state")).to_have_text("succeeded")
    expect(vera.locator(".bubble").last).to_contain_text("R-1")
    (action,) = room.ledger.actions()
    assert (action.requester, room.remote.count()) == ("vera", 1)
    assert [one.actor for one in room.ledger.timeline(action.id) if one.trigger == "approve"] == ["anna"]


def test_what_was_decided_elsewhere_is_told_in_the_thread(room: Room, browser: "Browser") -> None:
    """The page that waits hears of it, carries it out, and shows the receipt."""
    page = room.sits_down(browser, "vera", Role.VIEWER)
    send(page, "pay 6")
    expect(page.locator(".act .state")).to_have_text("waiting for approval")
    expect(page.locator("#thinking")).to_be_hidden()
    (waiting,) = Desk(room.ledger).approvals()
    Desk(room.ledger).decide(waiting.action_id, Approve(), by="sue", fingerprint=waiting.fingerprint)
    expect(page.locator(".act .state")).to_have_text("succeeded")
    expect(page.locator(".bubble").last).to_contain_text("R-1")
    assert room.remote.count() == 1


def test_the_page_reads_on_a_phone_and_in_chinese(room: Room, browser: "Browser") -> None:
    """Nothing is wider than the phone, and a rejection there sends nothing."""
    phone = {"viewport": {"width": 375, "height": 700}, "locale": "zh-CN"}
    page = room.sits_down(browser, "anna", Role.APPROVER, **phone)
    send(page, "pay 7")
    expect(page.locator(".act .state")).to_have_text("等待审批")
    expect(page.locator("#send")).to_have_text("发送")
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    page.locator(".act input").fill("太贵")
    page.locator(".act button", has_text="拒绝").click()
    expect(page.locator(".act .state")).to_have_text("已取消，未执行")
    assert room.remote.count() == 0


def test_hostile_text_stays_text(room: Room, browser: "Browser") -> None:
    """Markup in a message, and in the arguments that come of it, is shown and never run."""
    page = room.sits_down(browser, "vera", Role.VIEWER)
    text = "refund <img src=x onerror=alert(1)>\u202e</li><script>alert(2)</script>"
    send(page, text)
    expect(page.locator(".act .state")).to_have_text("succeeded")
    assert page.locator("#messages img, #messages script").count() == 0
    expect(page.locator(".mine .bubble")).to_contain_text("<img src=x")


def test_a_failure_says_that_the_message_is_kept(room: Room, browser: "Browser") -> None:
    """And the message still stands there."""
    page = room.sits_down(browser, "vera", Role.VIEWER)
    send(page, "die")
    expect(page.locator("#notice")).to_contain_text("Your message is kept")
    expect(page.locator(".mine .bubble")).to_have_text("die")


def test_who_may_not_decide_is_refused_by_the_server_too(room: Room) -> None:
    """Whatever a page shows: the role, the thread, the fingerprint and the CSRF token are asked for at the decision."""
    with visiting(room.url, token(room.ledger, "anna", Role.APPROVER)) as anna:
        assert 'id="chat"' in anna.text("/chat")
        answer = anna.client.post("/chat/threads/t/decisions", json={})
        assert answer.status_code == 403
    headers = {"authorization": f"Bearer {token(room.ledger, 'vic', Role.VIEWER)}"}
    with visiting(room.url, headers=headers) as vic:
        answer = vic.client.post("/chat/threads/t/decisions", json={})
        assert answer.status_code == 403
        assert vic.client.get("/chat/threads/t/live").status_code == 404


def test_both_languages_have_the_same_words() -> None:
    """A word that one of them lacked would break the page in that language."""
    assert EN.keys() == ZH.keys()
