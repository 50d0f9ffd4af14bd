"""The guides' Python is run as it stands, page by page, with a shop on loopback and a model that follows a script."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

import reference
import settled
from scripted import ScriptedModel, call, once
from settled.runtime.cli import app
from test_readme import Shop, run, shop

__all__ = ["shop"]  # the fixture

DOCS = Path(__file__).parents[1] / "docs"


def blocks_of(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)


def printed(page: str, shop: Shop, capsys: pytest.CaptureFixture[str], **given: Any) -> list[str]:
    """Run a page from top to bottom; return what it printed."""
    names: dict[str, Any] = {"__name__": page, **given}
    for block in blocks_of(page):
        run(block, shop, names)
    return capsys.readouterr().out.splitlines()


def test_the_contract_page(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """Its last line of output is the one that the text names; one refund came of four calls."""
    said = printed("contract.md", shop, capsys)
    assert said == ["succeeded duplicate conflict rejected"]
    assert f"This prints `{said[0]}`" in (DOCS / "contract.md").read_text()
    assert shop.posts == 1


def test_the_page_on_moving_an_agent(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """The agent before and after; the one after has its receipt although the reply is lost."""
    shop.loses = True
    model = ScriptedModel(script=once(call("refund", order_id="A-5005", amount=25)))
    said = printed("moving.md", shop, capsys, model=model)
    assert said == ["The request “refund (order_id A-5005)” was carried out. Receipt: RF-1."]
    assert (shop.posts, len(shop.refunds)) == (1, 1)


def test_the_page_on_chains(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """The chain is done with two receipts, and the message of the action after it is delivered."""
    said = printed("chains.md", shop, capsys)
    assert said == [
        "cannot be undone: ship",
        "succeeded {'deduct_coupon': 'RF-1', 'ship': 'RF-2'}",
        "told: warehouse {'order': 'A-1', 'receipt': 'RF-3'}",
    ]
    assert shop.posts == 3


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_every_page_is_tried(page: str) -> None:
    """A page that gets Python gets a test here."""
    tried = {"contract.md", "moving.md", "chains.md"}
    assert not blocks_of(page) or page in tried or page in ELSEWHERE


ELSEWHERE = {"testing.md", "checklist.md"}
"""Pages whose Python has a test of its own."""


def commands() -> list[str]:
    """Every `settled …` that a page tells its reader to type."""
    pages = [*DOCS.glob("*.md"), DOCS.parent / "README.md"]
    text = "\n".join(page.read_text() for page in pages)
    typed = re.findall(r"^\$ (settled [^#\n]*)", text, re.MULTILINE)
    return sorted({line.strip() for line in [*typed, *re.findall(r"`(settled [a-z][^`…]*)`", text)]})


@pytest.mark.parametrize("line", commands())
def test_every_command_that_is_told_exists(line: str) -> None:
    """With the options that are told; a command that was renamed would be a dead end for whoever follows the page."""
    _, *words = shlex.split(line)
    command: Any = typer.main.get_command(app)
    while words and hasattr(command, "commands"):
        assert words[0] in command.commands, f"there is no {words[0]!r} in {line!r}"
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known | {"--json", "--help"}


def test_the_reference_is_that_of_the_docstrings() -> None:
    """Every public name stands in it, in one part, as its docstring says; `python scripts/reference.py --write`."""
    named = [name for names in reference.PARTS.values() for name in names.split()]
    assert sorted(named) == sorted(settled.__all__)
    assert (DOCS / "reference.md").read_text() == reference.page()
