"""The Python of the README and of docs/testing.md passes `mypy --strict`, as in a file of its reader's own.

Run by `make check`; prints what mypy complains of.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"# (\w+\.py)\n")
A_MODEL = "from langchain_core.language_models import BaseChatModel\n\nmodel: BaseChatModel\n"
"""What the README's blocks say is the reader's own."""


def blocks(page: str) -> list[str]:
    return BLOCK.findall(Path(page).read_text())


def written() -> dict[str, str]:
    """The files that a reader would have: the README's blocks are one program, each of the other page's is a file."""
    testing = {
        match[1] if (match := NAMED.match(block)) else f"block_{number}.py": block
        for number, block in enumerate(blocks("docs/testing.md"))
    }
    return {"readme.py": "\n".join([A_MODEL, *blocks("README.md")]), **testing}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in written().items():
            (Path(folder) / name).write_text(text)
        paths = sorted(str(path) for path in Path(folder).iterdir())
        return subprocess.run([sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *paths]).returncode


if __name__ == "__main__":
    sys.exit(main())
