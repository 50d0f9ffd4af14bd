"""Named SQL, loaded once from a `.sql` file.

`-- name: claim` begins a statement and a comment line says its purpose. A name that begins with `_` is a fragment;
`{columns}` in a statement puts the fragment `_columns` in its place. Parameters are written `%(name)s` and become
`$1`, `$2` … at loading, once, instead of at each execution.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_HEAD = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_FRAGMENT = re.compile(r"\{(\w+)\}")
_PARAMETER = re.compile(r"%\((\w+)\)s")
_ANSWERS = re.compile(r"^\(?(SELECT|WITH)|\bRETURNING\b[^()]*$", re.IGNORECASE)


@dataclass(frozen=True)
class Statement:
    """One statement with numbered parameters. `answers`: whether it returns rows."""

    sql: bytes
    names: tuple[str, ...]
    answers: bool

    def values(self, params: Mapping[str, object]) -> list[object]:
        """Return the parameters in the statement's order."""
        return [params[name] for name in self.names]


@cache
def load(package: str, path: str) -> dict[str, Statement]:
    """Return the statements of the resource `path` in `package`, by name, with fragments put in."""
    _, *parts = _HEAD.split(files(package).joinpath(path).read_text("utf-8"))
    raw = {name: _without_comments(text) for name, text in zip(parts[::2], parts[1::2], strict=True)}

    def whole(text: str) -> str:
        return _FRAGMENT.sub(lambda match: whole(raw["_" + match[1]]), text)

    return {name: _numbered(whole(text)) for name, text in raw.items() if not name.startswith("_")}


def _numbered(text: str) -> Statement:
    names = tuple(dict.fromkeys(_PARAMETER.findall(text)))
    sql = _PARAMETER.sub(lambda match: f"${names.index(match[1]) + 1}", text)
    return Statement(sql.encode(), names, bool(_ANSWERS.search(text)))


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("--")).strip()
