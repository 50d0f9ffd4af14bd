"""The command `settled check`: what it prints, what a CI job reads, and how it says that it cannot check."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from settled.runtime.checking.catalogue import CHECKS
from settled.runtime.cli import app


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["check", *arguments], env={"COLUMNS": "200"})


def test_a_table_names_the_finding_the_tool_the_line_and_what_to_do() -> None:
    """And the exit code is 1: there are errors."""
    done = run("checked.bad_contracts")
    assert done.exit_code == 1
    row = next(line for line in done.stdout.splitlines() if "by_timestamp" in line)
    assert row.split()[:2] == ["volatile-key", "by_timestamp"]
    assert "bad_contracts.py:26" in row
    assert "timestamp is part of the key" in row
    assert done.stdout.splitlines()[0].split(maxsplit=3) == ["finding", "tool", "where", "what to do"]
    assert done.stdout.splitlines()[-1] == "checked.bad_contracts: 21 actions checked, 6 errors, 17 warnings, 4 notes"


def test_json_has_the_same_for_programs() -> None:
    """With ids, severities, files and lines; what the author allows, with his reason."""
    done = run("checked.excused", "--json")
    assert done.exit_code == 1
    said = json.loads(done.stdout)
    assert (said["errors"], said["warnings"], said["notes"]) == (5, 3, 0)
    first = said["findings"][0]
    assert (first["id"], first["severity"], first["tool"]) == ("bad-allow", "error", None)
    assert Path(first["file"]).name == "excused.py"
    assert [one["reason"] for one in said["allowed"]][:2] == ["the bank cannot be asked"] * 2


def test_a_clean_module_exits_with_0_and_says_how_much_was_checked() -> None:
    """Also under --strict."""
    done = run("checked.good", "--strict")
    assert (done.exit_code, done.stdout) == (0, "checked.good: 13 actions checked, nothing found (3 allowed)\n")


def test_a_warning_fails_only_a_strict_check() -> None:
    """`module:name` checks that tool alone, and not what stands beside it."""
    loose, strict = run("checked.bad_contracts:never_asked"), run("checked.bad_contracts:never_asked", "--strict")
    assert (loose.exit_code, strict.exit_code) == (0, 1)
    assert loose.stdout == strict.stdout
    assert loose.stdout.splitlines()[-1] == "checked.bad_contracts:never_asked: 1 action checked, 1 warning"


def test_the_list_has_every_check_with_its_reason() -> None:
    """For people and for programs."""
    said = json.loads(run("--list", "--json").stdout)
    assert [one["id"] for one in said] == list(CHECKS)
    assert all(one["why"] and one["fix"] for one in said)
    assert CHECKS["volatile-key"].why.split("(", maxsplit=1)[0].strip() in " ".join(run("--list").stdout.split())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "raise ValueError('no settings')",
            "Invalid value for MODULE: broken cannot be imported: ValueError: no settings",
        ),
        pytest.param(
            "import sys\nsys.exit(3)",
            "Invalid value for MODULE: broken cannot be imported: SystemExit: 3",
            marks=pytest.mark.deep,
        ),
        (
            "def x(:",
            "Invalid value for MODULE: broken cannot be imported: SyntaxError: invalid syntax (broken.py, line 1)",
        ),
        ("print('{}')\nx = 1", "Invalid value for MODULE: broken has no action, and nothing that should be one"),
    ],
)
def test_what_cannot_be_checked_is_a_wrong_use_in_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    """As a real process, in the user's own folder: exit code 2, no traceback, nothing on stdout."""
    (tmp_path / "broken.py").write_text(text)
    command = [sys.executable, "-m", "settled.runtime.cli", "check", "broken"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == f"settled: {said}"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("place", ["", "a b", "checked.good:nothing", "checked.no_such_module"])
def test_a_place_that_is_none_is_a_wrong_use(place: str) -> None:
    """The exit code is 2, which no finding has."""
    assert run(*([place] if place else [])).exit_code == 2


def test_a_declaration_that_is_refused_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's own sentence, at the line, and exit code 1: the module cannot be launched."""
    monkeypatch.delitem(sys.modules, "checked.bad_refused", raising=False)  # it speaks when it is imported
    done = run("checked.bad_refused", "--json")
    assert done.exit_code == 1
    one = json.loads(done.stdout)["findings"][0]
    assert (one["id"], one["line"]) == ("refused-declaration", 15)
    assert "a non-idempotent write must say what makes two calls the same" in one["sentence"]
