"""What the pages show: everything that a decision takes, found again by what people have in hand, and inert."""

import re
from collections.abc import Iterator
from secrets import token_urlsafe
from string import Formatter

import pytest

from browsing import REFUND, SUPERVISOR, TOOLS, Visitor, begun, mail, pay, refund, serving, token, visiting, words
from settled import Ledger, action, always
from settled.runtime.server.languages import LANGUAGES, accepted
from settled.state import console
from settled.state.machine import State, Trigger
from settled.state.outbox import STANDINGS
from settled.tools.chain_standing import ChainState, StepState

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)> \u202egpj.exe {{ 7*7 }}"
PAGE_BYTES = 100_000


@pytest.fixture
def url(ledger: Ledger) -> Iterator[str]:
    with serving(ledger, tools=TOOLS, trace_url="https://traces.example/{trace_id}") as address:
        yield address


@pytest.fixture
def maria(ledger: Ledger, url: str) -> Iterator[Visitor]:
    with visiting(url, token(ledger, **SUPERVISOR)) as visitor:
        yield visitor


def test_empty_pages_say_so(maria: Visitor) -> None:
    """A console on an empty ledger explains what will be there."""
    assert "Nothing waits for an approval" in maria.text("/approvals")
    assert "no outcome is left for a person" in maria.text("/queue")
    assert "first tool call with a side effect appears here" in maria.text("/actions")
    assert "No action fits" in maria.text("/actions?state=failed")


def test_hostile_values_are_text(ledger: Ledger, maria: Visitor) -> None:
    """A script, a tag, a template and a turned direction in an argument, a requester and a conversation do nothing."""
    given = {"order_id": HOSTILE, "amount": 118.5, "memo": HOSTILE}
    action = begun(ledger, refund, given, requester="<b>jo</b>", thread_id="<i>7</i>")
    stuck = begun(ledger, mail, {"to": HOSTILE}, thread_id="<i>8</i>")
    for path in ("/approvals", "/queue", "/actions", f"/actions/{action.id}", f"/actions/{stuck.id}",
                 f"/actions/{action.id}/edit", f"/actions?q={HOSTILE[:20]}", "/login?link=%3Cscript%3E"):  # fmt: skip
        page = maria.text(path)
        assert not re.search(r"<(b|i|img|script)\b(?! src=\"/static/)", page), path
        assert "\u202e" not in page, path
        assert " 49 " not in page, path
    assert "\\u202e" in maria.text("/approvals"), "what is hidden in an argument can be seen"
    whole = maria.get(f"/actions/{action.id}/arguments", params={"name": "memo"})
    assert whole.headers["content-type"] == "text/plain; charset=utf-8"
    assert whole.headers["x-content-type-options"] == "nosniff"


def test_a_megabyte_is_cut_and_can_be_seen_whole(ledger: Ledger, maria: Visitor) -> None:
    """A page with an argument of almost a megabyte stays small, and says how long it is; one click shows all of it."""
    memo = "memo " * 190_000 + "the end"
    action = begun(ledger, refund, {**REFUND, "memo": memo})
    for path in ("/approvals", f"/actions/{action.id}", f"/actions/{action.id}/edit", "/actions"):
        assert len(maria.text(path)) < 40_000, path
    page = maria.text("/approvals")
    assert f"show all {len(memo)} characters" in page
    assert "too long to be edited here" in maria.text(f"/actions/{action.id}/edit")
    link = re.search(r'href="(/actions/[^"]*arguments[^"]*)"', page)
    assert link is not None
    assert maria.text(link[1]).strip('"').endswith("the end")


@action(risk="non_idempotent_write", identity="all", summary="many", approval=always)
def many(
    a: str, b: str, c: str, d: str, e: str, f: str, g: str, h: str, i: str, j: str, k: str, m: str, n: str
) -> dict[str, str]:
    """Take more arguments than a card shows."""
    return {"receipt": "M-1"}


def test_a_full_page_is_small(ledger: Ledger, maria: Visitor) -> None:
    """As many and as large cards as fit, of what cannot be compressed: a first visit transfers less than 100 KB, style
    and scripts included.
    """
    for _ in range(22):
        begun(ledger, many, {name: token_urlsafe(230) for name in "abcdefghijkmn"})
    answer = maria.get("/approvals")
    assert answer.text.count("<article") == 20
    assert "More is waiting than is shown" in answer.text
    assets = re.findall(r'(?:src|href)="(/static/[^"]+)"', answer.text)
    assert len(assets) == 4
    sent = 0
    for path in ("/approvals", *assets):
        with maria.client.stream("GET", path, headers={"accept-encoding": "gzip"}) as got:
            sent += len(b"".join(got.iter_raw()))
    assert sent < PAGE_BYTES


def test_who_cannot_read_all_does_not_decide(ledger: Ledger, maria: Visitor) -> None:
    """A card with more arguments than it shows leads to the page of its action, which shows all and has the forms."""
    action = begun(ledger, many, {name: f"value-{name}" for name in "abcdefghijkmn"})
    page = maria.text("/approvals")
    assert "value-m" in page
    assert "value-n" not in page
    assert "1 more" in page
    assert "/approve" not in page
    whole = maria.text(f"/actions/{action.id}")
    assert "value-n" in whole
    assert f"/actions/{action.id}/approve" in whole


def test_found_by_receipt_key_id_and_filters(ledger: Ledger, maria: Visitor) -> None:
    """What people have in hand leads to the action: receipt, key, id, who asked, conversation, state, tool."""
    done = begun(ledger, refund, {"order_id": "A-7", "amount": 50}, thread_id="chat-1")
    waiting = begun(ledger, refund, {"order_id": "A-8", "amount": 500}, requester="ann", thread_id="chat-2")
    stuck = begun(ledger, mail, {"to": "a@example.com"}, thread_id="chat-2")
    expected: dict[str, set[str]] = {
        "q=RF-A-7": {done.id},
        f"q={done.idempotency_key}": {done.id},
        f"q={stuck.id}": {stuck.id},
        "q=ann": {waiting.id},
        "q=RF-A": set(),
        "thread=chat-2": {waiting.id, stuck.id},
        "thread=chat-2&state=planned": {waiting.id},
        "thread=chat-9": set(),
        "state=unknown": {stuck.id},
        "tool=refund": {done.id, waiting.id},
        "tool=refund&state=succeeded&q=RF-A-7&thread=chat-1&age=younger-h": {done.id},
        "age=older-h": set(),
        "age=younger-h": {done.id, waiting.id, stuck.id},
    }
    for query, ids in expected.items():
        assert set(re.findall(r'class="main" href="/actions/(act-\w+)"', maria.text(f"/actions?{query}"))) == ids, query


def test_a_filter_that_cannot_be_is_refused(maria: Visitor) -> None:
    """It is named, and nothing breaks."""
    for query in ("state=nonsense", "age=x", "q=%00", "below=%00", f"q={'x' * 301}", "thread=%E2%80%AE"):
        assert maria.get(f"/actions?{query}").status_code == 422, query


def test_pages_follow_each_other_without_gap_or_repeat(ledger: Ledger, maria: Visitor) -> None:
    """Each action is on one page, newest first, also when new ones come in between."""
    made = [begun(ledger, refund, {"order_id": f"A-{n}", "amount": 1}).id for n in range(120)]
    seen: list[str] = []
    path: str | None = "/actions"
    while path is not None:
        page = maria.text(path)
        seen += re.findall(r'class="main" href="/actions/(act-\w+)"', page)
        more = re.search(r'class="choice" href="(/actions\?[^"]+)"', page)
        path = more and more[1].replace("&amp;", "&")
        begun(ledger, refund, {"order_id": f"B-{len(seen)}", "amount": 1})
    assert seen == sorted(made, reverse=True)


def test_a_search_reads_a_bounded_stretch_and_goes_on(
    ledger: Ledger, maria: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing fits in a stretch, the page says how far back it looked, and the next one looks further."""
    wanted = begun(ledger, refund, {"order_id": "A-0", "amount": 1})
    for n in range(1, 12):
        begun(ledger, refund, {"order_id": f"A-{n}", "amount": 1})
    monkeypatch.setattr(console, "STRETCH", 5)
    page, looked = maria.text("/actions?q=RF-A-0"), 1
    while wanted.id not in page:
        assert "Searched back to" in page
        more = re.search(r'class="choice" href="(/actions\?[^"]+)"', page)
        assert more is not None
        page, looked = maria.text(more[1].replace("&amp;", "&")), looked + 1
    assert looked == 3


def test_one_action_tells_its_story(ledger: Ledger, maria: Visitor) -> None:
    """State, both versions, each attempt and each event, who did what, and the trace where one is stored."""
    action = begun(ledger, pay, {"order_id": "P-1", "amount": 118.5})
    told = words(maria.text(f"/actions/{action.id}"))
    for part in ("unknown for a person", "the remote side has other values", "claimed, and sent", "outcome not known",
                 "handed to a person", "attempt 1", action.idempotency_key, action.fingerprint):  # fmt: skip
        assert part in told, part
    done = begun(ledger, refund, {"order_id": "A-1", "amount": 1})
    told = words(maria.text(f"/actions/{done.id}"))
    assert "Receipt RF-A-1" in told
    assert "the service answered" in told
    assert '{"receipt": "RF-A-1"}' in told


def test_ids_that_are_none_are_not_found(maria: Visitor) -> None:
    """An id that there is not, a strange one and a path trick are 404, and never an error of ours."""
    for path in ("act-0000000000000000", "act-%00", "..%2f..%2fetc%2fpasswd", "act-x%2Fedit", "%E2%80%AE", "a" * 500):
        assert maria.get(f"/actions/{path}").status_code == 404, path


def test_every_text_is_there_in_both_languages() -> None:
    """The same keys and the same places for values; a word for each state and each trigger."""
    places = {
        language: {key: {name for _, name, _, _ in Formatter().parse(text) if name} for key, text in texts.items()}
        for language, texts in LANGUAGES.items()
    }
    assert places["en"].keys() == places["zh"].keys()
    for key, names in places["en"].items():
        assert places["zh"][key] == names, key
    for state in State:
        assert f"state_{state}" in places["en"]
    for trigger in Trigger:
        assert f"what_{trigger}" in places["en"]
    for prefix, names in (("chain", ChainState), ("step", StepState), ("message", STANDINGS)):
        assert {f"{prefix}_{name}" for name in names} <= places["en"].keys()


@pytest.mark.parametrize(
    ("header", "language"),
    [("zh-CN,zh;q=0.9,en;q=0.8", "zh"), ("en;q=0.2,zh;q=0.1", "en"), ("fr,zh;q=0.5", "zh"), ("fr", "en"), ("", "en"),
     ("zh;q=0,en", "en"), ("zh;q=x", "en"), (",;q=,", "en")],
)  # fmt: skip
def test_the_browsers_language_is_taken(header: str, language: str) -> None:
    """By weight; what is not understood is English."""
    assert accepted(header) == language


def test_chinese_where_it_is_asked_for_and_where_it_is_chosen(ledger: Ledger, url: str) -> None:
    """Each page is in the reader's language, and a choice is remembered."""
    begun(ledger, refund, REFUND)
    with visiting(url, token(ledger), headers={"accept-language": "zh-TW"}) as reader:
        page = reader.text("/approvals")
        assert 'lang="zh-Hans"' in page
        assert "审批期限" in page
        assert "Decide until" not in page
        assert "Approvals" in reader.text("/language/en?next=/approvals")
        assert "Approvals" in reader.text("/approvals")


def test_a_program_gets_json_for_an_error(url: str) -> None:
    """Whoever asks for JSON, or shows a bearer token, is answered in JSON."""
    with visiting(url, headers={"accept": "application/json"}) as program:
        answer = program.get("/actions")
        assert (answer.status_code, answer.json().keys()) == (401, {"error"})
