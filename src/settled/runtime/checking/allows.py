"""The author's word on a finding: `# settled: allow no-query - the bank has none`.

It stands on the finding's line (or elsewhere in its statement, where a formatter put it), in the declaration of its
tool, or in the comment lines above either. A word without a
reason, or about no check, is a finding itself; so is one that excuses nothing.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from settled.runtime.checking.catalogue import CHECKS, Finding, Place, found
from settled.runtime.checking.declared import Declared
from settled.runtime.checking.files import SourceFile, source_file

_ALLOW = re.compile(r"#\s*settled:\s*allow\b(?P<ids>.*?)(?:(?:\s[-–—]|:)(?:\s+(?P<reason>.*))?)?$")
_NEVER = frozenset({"bad-allow", "unused-allow", "refused-declaration"})


@dataclass(frozen=True)
class Allow:
    """One comment: what it allows, and why."""

    place: Place
    ids: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Silenced:
    """A finding that its author has justified."""

    finding: Finding
    reason: str


def allows_in(files: Iterable[SourceFile]) -> tuple[list[Allow], list[Finding]]:
    """Return the comments that allow something, and the findings about those that say it wrongly."""
    good: list[Allow] = []
    bad: list[Finding] = []
    for file in files:
        for line, comment in file.comments.items():
            if (match := _ALLOW.match(comment)) is None:
                continue
            ids = tuple(re.findall(r"[\w-]+", match["ids"]))
            allow = Allow(Place(file.path, line), ids, (match["reason"] or "").strip())
            if sentence := _wrong(allow):
                bad.append(found("bad-allow", allow.place, "", sentence))
            else:
                good.append(allow)
    return good, bad


def _wrong(allow: Allow) -> str:
    if not allow.ids:
        return "it does not say what it allows"
    if unknown := [one for one in allow.ids if one not in CHECKS or one in _NEVER]:
        return f"there is no check {unknown[0]!r} that may be allowed"
    return "" if allow.reason else f"it does not say why {allow.ids[0]} is allowed"


def weigh(
    findings: Sequence[Finding], allows: Sequence[Allow], tools: Sequence[Declared]
) -> tuple[list[Finding], list[Silenced], list[Finding]]:
    """Return the findings that stand, those that are justified, and the comments that justify nothing."""
    standing: list[Finding] = []
    silenced: list[Silenced] = []
    used: set[tuple[Allow, str]] = set()
    for finding in findings:
        lines = set(_lines_of(finding, tools))
        allow = next((a for a in allows if finding.check.id in a.ids and a.place in lines), None)
        if allow is None:
            standing.append(finding)
        else:
            used.add((allow, finding.check.id))
            silenced.append(Silenced(finding, allow.reason))
    unused = [
        found("unused-allow", allow.place, "", f"{one} is not found here")
        for allow in allows
        for one in allow.ids
        if (allow, one) not in used
    ]
    return standing, silenced, unused


def _lines_of(finding: Finding, tools: Sequence[Declared]) -> Iterator[Place]:
    """Yield where a word on this finding may stand."""
    if finding.place is not None:
        yield from _with_comments_above(finding.place)
        yield from _statement_around(finding.place)
    for tool in tools:
        if tool.place is not None and tool.name in finding.tool.split(", "):
            yield from (Place(tool.place.file, line) for line in tool.lines)
            yield from _with_comments_above(Place(tool.place.file, tool.lines.start))


def _statement_around(place: Place) -> Iterator[Place]:
    """Yield the lines of the simple statement that a line is part of."""
    file = source_file(place.file)
    for lines in file.statements if file is not None else ():
        if place.line in lines:
            yield from (Place(place.file, line) for line in lines)


def _with_comments_above(place: Place) -> Iterator[Place]:
    yield place
    file = source_file(place.file)
    lines = file.lines if file is not None else []
    line = place.line - 1
    while 0 < line <= len(lines) and lines[line - 1].lstrip().startswith("#"):
        yield Place(place.file, line)
        line -= 1
