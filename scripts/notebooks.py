"""Run the notebooks from top to bottom, each in a fresh kernel and on a ledger of its own; keep what they printed.

    python scripts/notebooks.py            run them, and write their outputs into the files
    python scripts/notebooks.py --check    run them, and change nothing: for CI

A cell that raises is a failure.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).parent.parent / "notebooks"
TIMEOUT_S = 180
"""For one cell: far more than any takes on a busy machine."""


def run(path: Path) -> nbformat.NotebookNode:
    """Run one notebook in its folder; CellExecutionError for a cell that raises."""
    book = nbformat.read(path, as_version=4)
    client = NotebookClient(book, timeout=TIMEOUT_S, kernel_name="python3", resources={"metadata": {"path": FOLDER}})
    client.execute()
    for cell in book.cells:
        cell.metadata.pop("execution", None)  # instants that differ in each run
    return book


def main(names: list[str], *, check: bool) -> int:
    """Run the notebooks of these names (all, without any); return how many failed."""
    failed = 0
    for path in sorted(FOLDER.glob("*.ipynb")):
        if names and not any(name in path.name for name in names):
            continue
        began = time.monotonic()
        try:
            book = run(path)
            said = "well"
            if not check:
                nbformat.write(book, path)
        except CellExecutionError as error:
            said = str(error)
            failed += 1
        print(f"{path.name}: {said} ({time.monotonic() - began:.0f} s)", flush=True)
    return failed


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="settled-notebooks-") as home:
        os.environ.setdefault("SETTLED_HOME", home)
        given = sys.argv[1:]
        sys.exit(main([one for one in given if one != "--check"], check="--check" in given) > 0)
