"""Checks of the repository that no other tool makes; run by `make check`, prints one line per complaint.

`--write` first puts the generated picture of the state machine into the README.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

LINKS = {name: f"src/settled/{name}" for name in ("graph", "tools", "state")}

# Each pattern is written so that it does not match its own text.
FORBIDDEN = {
    r"(?i)exactly[-\s]+once": "promises more than anybody can: at most one effect per intent, and no silent loss",
    r"(?i)\bpypi\.org|\bpythonhosted\.org|\bnpmjs\.(?:org|com)|\bdevpi\b|\bartifactory\b": "names a registry's host",
    r"(?<![\w.~-])/(?:work|root|opt/wheels)(?:/|\b)": "names a path of one machine",
    r"(?<![\w.~-])/(?:home|Users)/(?!\W)\w+": "names a path of one machine",
}

DIAGRAM = re.compile(r"(<!-- diagram -->\n)(.*?)(<!-- /diagram -->)", re.DOTALL)
FENCED = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
INLINE_CODE = re.compile(r"`[^`\n]*`")
MARKDOWN_LINK = re.compile(r"\[[^\]]*\]\(<?([^)\s>]+)>?[^)]*\)")
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|#|//", re.IGNORECASE)


def files() -> list[Path]:
    """Every file of the repository, committed or about to be; links are left out, their targets are in."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
    )
    paths = {Path(name) for name in listed.stdout.split("\0") if name}
    return sorted(path for path in paths if path.is_file() and not path.is_symlink())


def text_of(path: Path) -> str:
    """The file's text, or nothing for a picture."""
    raw = path.read_bytes()
    return "" if b"\0" in raw else raw.decode(errors="replace")


def broken_top_links() -> Iterator[str]:
    """The top level shows the design: three links into the package."""
    for name, target in LINKS.items():
        link = Path(name)
        if not link.is_symlink() or str(link.readlink()) != target or not link.is_dir():
            yield f"{name}: must be a link to {target}"


def forbidden_words() -> Iterator[str]:
    """Phrases and places that no file may name."""
    for path in files():
        text = text_of(path)
        for pattern, why in FORBIDDEN.items():
            for found in re.finditer(pattern, text):
                yield f"{path}:{text.count(chr(10), 0, found.start()) + 1}: {found.group()!r} {why}"


def lock_files() -> Iterator[str]:
    """Versions are pinned in constraints.txt, which names no place to load them from."""
    for path in files():
        if path.name in {"uv.lock", "poetry.lock", "pdm.lock", "package-lock.json"}:
            yield f"{path}: lock files carry download addresses; pin versions in constraints.txt"


def stale_diagram() -> Iterator[str]:
    """The README's picture of the state machine is the one that the table makes."""
    readme = Path("README.md")
    found = DIAGRAM.search(readme.read_text()) if readme.exists() else None
    if found is None:
        yield "README.md: has no state diagram between <!-- diagram --> and <!-- /diagram -->"
    elif found[2].strip() != drawn():
        yield "README.md: the state diagram is not that of the table; run `python scripts/tidy.py --write`"


def drawn() -> str:
    """The state diagram as Markdown."""
    from settled.state.machine import diagram

    return f"```mermaid\n{diagram().strip()}\n```"


def write_diagram() -> None:
    """Put the diagram between its markers in the README."""
    readme = Path("README.md")
    readme.write_text(DIAGRAM.sub(lambda found: f"{found[1]}{drawn()}\n{found[3]}", readme.read_text()))


def broken_markdown_links() -> Iterator[str]:
    """Every relative link leads to a file, and `tests/x.py::test_name` to a test that is there."""
    for path in files():
        if path.suffix == ".md":
            prose = INLINE_CODE.sub("`…`", FENCED.sub("", path.read_text()))
            for found in MARKDOWN_LINK.finditer(prose):
                if not ELSEWHERE.match(found[1]) and not leads_somewhere(path.parent, found[1]):
                    yield f"{path}: the link to {found[1]} leads nowhere"


def leads_somewhere(folder: Path, link: str) -> bool:
    """Whether a relative link, with or without a test's name, resolves."""
    target, _, test = link.partition("#")[0].partition("::")
    path = folder / target
    return path.exists() and (not test or names_test(path, test.split("[")[0].split("::")))


def names_test(path: Path, parts: list[str]) -> bool:
    """Whether the module holds the function, or the class and its method, of that name."""
    body: list[ast.stmt] = ast.parse(path.read_text()).body
    for part in parts:
        found = [node for node in body if getattr(node, "name", None) == part]
        if not found:
            return False
        body = getattr(found[0], "body", [])
    return True


def missing_tests() -> Iterator[str]:
    """A test that Markdown names in code (`tests/x.py::test_name`) exists as well."""
    for path in files():
        if path.suffix == ".md":
            for found in re.finditer(r"`(tests/[\w/]+\.py(?:::[\w:]+)?)`", path.read_text()):
                if not leads_somewhere(Path(), found[1]):
                    yield f"{path}: {found[1]} is not there"


CHECKS: tuple[Callable[[], Iterator[str]], ...] = (
    broken_top_links,
    forbidden_words,
    lock_files,
    stale_diagram,
    broken_markdown_links,
    missing_tests,
)


def main() -> int:
    """Print every complaint; the exit status is 1 if there is one."""
    if "--write" in sys.argv[1:]:
        write_diagram()
    complaints = [complaint for check in CHECKS for complaint in check()]
    print("\n".join(complaints) or "tidy: nothing to complain about")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
