"""How the commands print: pages for people, JSON for programs; nothing in a value moves the terminal."""

import json
import re
from typing import Any

_INERT = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What JSON may hold as it is, but a terminal or UTF-8 minds: C1 controls, direction overrides, lone surrogates."""


def print_json(value: object) -> None:
    """Print JSON; what a terminal would obey is written as an escape."""
    text = json.dumps(value, ensure_ascii=False, indent=2, default=str)
    print(_INERT.sub(lambda found: f"\\u{ord(found.group()):04x}", text))


def print_page(page: Any) -> None:
    """Print a page: as it is on a terminal, without colours and trailing blanks elsewhere."""
    from settled.runtime.tables import console

    out = console()
    if out.is_terminal:
        out.print(page)
        return
    with out.capture() as captured:
        out.print(page)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def width() -> int:
    """Return the columns that a page may take."""
    from settled.runtime.tables import console

    return console().width
