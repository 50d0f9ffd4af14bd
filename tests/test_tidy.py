"""The repository's own checks complain when they should, and only then."""

import subprocess
from pathlib import Path

import pytest

import tidy


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_tidy_repository_draws_no_complaint(repository: Path) -> None:
    for name, target in tidy.LINKS.items():
        (repository / target).mkdir(parents=True)
        (repository / name).symlink_to(target)
    (repository / "test_a.py").write_text("class TestB:\n    def test_c(self): ...\n")
    (repository / "README.md").write_text(
        f"[a](test_a.py) [b](test_a.py::TestB::test_c) [c](https://example.org) `[d](nowhere)`\n"
        f"<!-- diagram -->\n{tidy.drawn()}\n<!-- /diagram -->\n"
    )
    assert [complaint for check in tidy.CHECKS for complaint in check()] == []


@pytest.mark.parametrize(
    "text",
    [
        "Exactly" + " once",
        "exactly\n" + "once",
        "/" + "root/x",
        "at /" + "work/main",
        "/" + "home/ann/x",
        "py" + "pi.org",
    ],
)
def test_a_forbidden_phrase_or_place_is_found_with_its_line(repository: Path, text: str) -> None:
    (repository / "a.py").write_text(f"first line\n{text}\n")
    assert [complaint.split(":")[:2] for complaint in tidy.forbidden_words()] == [["a.py", "2"]]


@pytest.mark.parametrize("text", ["~/work/x", "src/root/x", "https://example.org/work", "framework/root"])
def test_an_ordinary_path_is_left_alone(repository: Path, text: str) -> None:
    (repository / "a.md").write_text(text)
    assert list(tidy.forbidden_words()) == []


@pytest.mark.parametrize("link", ["gone.md", "test_a.py::test_gone", "test_a.py::TestB::test_gone", "../x#part"])
def test_a_link_that_leads_nowhere_is_found(repository: Path, link: str) -> None:
    (repository / "test_a.py").write_text("class TestB:\n    def test_c(self): ...\n")
    (repository / "a.md").write_text(f"[a]({link})\n")
    assert list(tidy.broken_markdown_links()) == [f"a.md: the link to {link} leads nowhere"]


def test_a_missing_link_at_the_top_is_found(repository: Path) -> None:
    assert len(list(tidy.broken_top_links())) == 3


def test_an_old_picture_of_the_machine_is_found_and_redrawn(repository: Path) -> None:
    readme = repository / "README.md"
    readme.write_text("before\n<!-- diagram -->\nold\n<!-- /diagram -->\nafter\n")
    assert list(tidy.stale_diagram())
    tidy.write_diagram()
    assert list(tidy.stale_diagram()) == []
    assert readme.read_text().startswith("before\n")
    assert readme.read_text().endswith("after\n")
