"""The pre-launch checklist: each planted fault is found by its id and at its line, and nothing where there is none."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from settled import ContractError
from settled.runtime.checking.catalogue import CHECKS, Severity
from settled.runtime.checking.report import Report, report_on

ROOT = Path(__file__).parents[1]
BAD = ["bad_contracts", "bad_words", "bad_bodies", "bad_vendors", "bad_module", "bad_refused", "excused"]
MARK = re.compile(r"# (<-|\^) ([\w, -]+)$")
Found = tuple[str, int]


def planted(module: str) -> set[Found]:
    """The faults that a module marks, by id and line."""
    lines = (Path(__file__).parent / "checked" / f"{module}.py").read_text().splitlines()
    marks = [(number, MARK.search(line)) for number, line in enumerate(lines, 1)]
    return {(one, number - (mark[1] == "^")) for number, mark in marks if mark for one in mark[2].split(", ")}


def placed(report: Report) -> set[Found]:
    return {(one.check.id, one.place.line) for one in report.findings if one.place is not None}


def told(report: Report) -> list[tuple[str, str, str, int]]:
    """The findings of a report: id, tool, file and line."""
    places = [(one, one.place) for one in report.findings]
    return [(one.check.id, one.tool, Path(at.file).name if at else "", at.line if at else 0) for one, at in places]


@pytest.mark.parametrize("module", BAD)
def test_every_planted_fault_is_found_at_its_line_and_nothing_else(module: str) -> None:
    """By id and line, both ways: no fault is missed, and nothing is said of a line without one."""
    assert planted(module)
    report = report_on(f"checked.{module}")
    assert placed(report) == planted(module)
    files = {Path(one.place.file).stem for one in report.findings if one.place is not None}
    assert files == {module}


def test_more_than_twenty_bad_tools_are_told_apart_by_name() -> None:
    """Each finding of a declaration or a body names its tool."""
    reports = [report_on(f"checked.{module}") for module in BAD[:4]]
    bad = {name for report in reports for one in report.findings for name in one.tool.split(", ")}
    assert len(bad) > 50
    assert {name for report in reports for name in report.tools} - bad == {"with_a_secret"}


def test_every_check_of_the_catalogue_has_a_planted_fault() -> None:
    """A check that nothing shows to work is no check."""
    shown = {one for module in BAD for one, _ in planted(module)}
    assert set(CHECKS) - shown == {"no-source", "unseen-tool"}  # which have tests of their own


def test_a_body_without_source_gets_the_contract_checks_and_says_so() -> None:
    """A tool from `exec` has no file: its contract is checked, and the note says that no more was."""
    notes = [one for one in report_on("checked.bad_bodies").findings if one.check.id == "no-source"]
    assert [(one.tool, one.place, one.check.severity) for one in notes] == [("unseen", None, Severity.NOTE)]


def test_nothing_is_found_in_good_tools() -> None:
    """Many of which look like one that has a fault; what their author allows is kept with his reason."""
    report = report_on("checked.good")
    assert report.findings == ()
    assert len(report.tools) == 13
    allowed = {(one.finding.tool, one.finding.check.id, one.reason.split(";")[0]) for one in report.silenced}
    title = "this request_id is the shop's own id of an open request"
    assert allowed == {
        ("transfer", "opaque-remote", "the bank cannot be asked"),
        ("close_request", "volatile-key", title),
        ("close_request", "free-text-key", title),
    }


def test_an_excuse_counts_where_it_stands_and_with_its_reason() -> None:
    """Above the declaration, in it, or on the line itself; the rest of `excused` is marked as not excused."""
    silenced = report_on("checked.excused").silenced
    assert [(one.finding.tool, one.finding.check.id) for one in silenced] == [
        ("above", "no-query"),
        ("inside", "no-query"),
        ("on_its_line", "several-writes"),
    ]
    assert {one.reason for one in silenced[:2]} == {"the bank cannot be asked"}


ModuleOf = Callable[..., Report]


@pytest.fixture
def module_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleOf:
    """Write a module and return its report."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def made(name: str, text: str, attribute: str = "") -> Report:
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return report_on(name + attribute)

    return made


def test_the_tools_of_the_readme_have_no_fault(module_of: ModuleOf) -> None:
    """As they stand there; that amounts are floats is noted."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    report = module_of("readme_tools", "\n".join(block.partition("\nwith Ledger")[0] for block in blocks))
    assert report.tools == ("refund", "large_refund")
    assert {one.check.id for one in report.findings} <= {"float-money"}
    assert report.is_clean(strict=True)


DEMO = """
from settled.demo.tools import reimbursement_tools

def tools():
    return reimbursement_tools("http://127.0.0.1:1", approval_ttl_s=5.0, daily_limit=3)
"""


def test_the_tools_of_the_demo_have_no_fault(module_of: ModuleOf) -> None:
    """They are made by a function, with a client from elsewhere: the live objects are looked at."""
    report = module_of("demo_tools", DEMO, ":tools")
    assert (report.tools, report.findings) == (("get_invoice", "create_reimbursement_ticket"), ())


def test_tools_that_are_made_inside_a_function_are_said_to_be_unseen() -> None:
    """Rather than passed over: a job that checks nothing must not look as if it had."""
    report = report_on("settled.demo.tools")
    assert [(one.check.id, one.tool) for one in report.findings] == [
        ("unseen-tool", "get_invoice"),
        ("unseen-tool", "create_reimbursement_ticket"),
    ]
    assert not report.is_clean(strict=True)


REFUSED = """
from settled import action, build_agent

@action(risk="non_idempotent_write")
def wipe() -> None:
    "Wipe all."
    raise AssertionError("it was run")

def again():
    action(risk="non_idempotent_write")(wipe.declared)

agent = build_agent(None, [wipe], ledger=None)
"""


SHARED = """
import requests
from settled import Found, Inquiry, action

def find(asked: Inquiry) -> Found: ...

def post(order_id):
    return requests.post("https://shop.example", json=order_id, timeout=5).json()

def twice(order_id):
    return once(order_id)

def once(order_id):
    return twice(order_id) if order_id else post(order_id)

@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def one(order_id: str) -> None:
    "Order."
    return twice(order_id)

@action(risk="non_idempotent_write", remote="dedupes", identity=("order_id",), query=find)
def other(order_id: str) -> None:
    "Order."
    return post(order_id)

tools = [one, other]
"""


def test_a_refused_declaration_hides_no_other_fault_and_is_refused_again_afterwards(module_of: ModuleOf) -> None:
    """One run tells all of them; nothing of what stands for a refused tool is run, and the library is as it was."""
    report = module_of("refused", REFUSED)
    assert told(report) == [
        ("refused-declaration", "wipe", "refused.py", 4),
        ("refused-declaration", "", "refused.py", 12),
    ]
    assert told(module_of("refused_one", REFUSED.partition("agent =")[0], ":wipe"))[0][:2] == (
        "refused-declaration",
        "wipe",
    )
    with pytest.raises(ContractError, match="say what makes two calls the same"):
        importlib.import_module("refused_one").again()


def test_what_two_tools_share_is_said_once_of_both(module_of: ModuleOf) -> None:
    """Through helpers that call each other, too; and a tool that is held twice is checked once."""
    report = module_of("shared", SHARED)
    assert [(one.check.id, one.tool) for one in report.findings] == [("raw-client", "one, other")]
    assert report.tools == ("one", "other")


WRAPPED = """
from langchain_core.tools import tool
import requests
from settled import Found, Inquiry, as_action

def find(asked: Inquiry) -> Found: ...

@tool
def mail(to: str, note: str) -> str:
    "Send a mail. If it fails, try again."
    return requests.post("https://mail.example", json={"to": to}, timeout=5).text

action = as_action(mail, risk="non_idempotent_write", remote="queryable", identity=("to",), query=find)
"""


def test_a_wrapped_tool_is_checked_by_its_own_source(module_of: ModuleOf) -> None:
    """Its contract where it was wrapped, its body where it was written; it is no unguarded tool any more."""
    report = module_of("wrapped", WRAPPED)
    assert told(report) == [
        ("raw-client", "mail", "wrapped.py", 11),
        ("invites-retry", "mail", "wrapped.py", 13),
        ("free-text-argument", "mail", "wrapped.py", 13),
    ]


FOREIGN = """
from checked.mails import send_mail
from langchain.agents import create_agent

def build(model):
    return create_agent(model, tools=[send_mail])
"""


def test_a_plain_tool_of_another_file_is_found_where_it_is_written(module_of: ModuleOf) -> None:
    """An agent that is given a function which writes: at the function, also without any action beside it."""
    report = module_of("foreign", FOREIGN)
    assert told(report) == [("unguarded-tool", "send_mail", "mails.py", 6)]


IN_A_CLASS = """
from settled import action

class Tools:
    @staticmethod
    @action(risk="non_idempotent_write", remote="opaque", identity=("order",))
    def note(order: int) -> dict[str, int]:
        "Note an order."
        return {"order": order}
"""


def test_a_tool_in_a_class_is_checked_as_any_other(module_of: ModuleOf) -> None:
    """A namespace is no hiding place."""
    report = module_of("in_a_class", IN_A_CLASS)
    assert report.tools == ("note",)
    assert told(report) == [("opaque-remote", "note", "in_a_class.py", 6)]


def test_the_page_of_the_checklist_is_that_of_the_catalogue() -> None:
    """docs/checklist.md has every check with its severity, its reason and its fix."""
    page = (ROOT / "docs" / "checklist.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| (\w+) \| (.*) \| (.*) \|$", page, re.MULTILINE)
    assert rows == [(one.id, one.severity, one.why, one.fix) for one in CHECKS.values()]
