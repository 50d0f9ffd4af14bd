"""All findings of a module: every check is asked, what is said twice is said once, and the worst comes first."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import typer

from settled.runtime.checking.allows import Silenced, allows_in, weigh
from settled.runtime.checking.catalogue import Finding, Severity
from settled.runtime.checking.declared import Declared, declared, modules_of
from settled.runtime.checking.files import SourceFile, source_file
from settled.runtime.checking.handlers import swallowed_pauses
from settled.runtime.checking.of_body import of_body
from settled.runtime.checking.of_chains import of_chains
from settled.runtime.checking.of_contract import of_contract
from settled.runtime.checking.of_entrance import of_entrance
from settled.runtime.checking.of_module import Surroundings, of_module
from settled.runtime.checking.of_words import of_words
from settled.runtime.checking.subject import HINT, Subject, subject_at
from settled.tools.chains import ChainTool

_ORDER = list(Severity)


@dataclass(frozen=True)
class Report:
    """What was found at a place, and in which tools it was looked for."""

    place: str
    tools: tuple[str, ...]
    findings: tuple[Finding, ...]
    silenced: tuple[Silenced, ...] = ()

    def count(self, severity: Severity) -> int:
        """Return how many findings are this bad."""
        return sum(one.check.severity is severity for one in self.findings)

    def is_clean(self, *, strict: bool) -> bool:
        """Whether nothing was found that must not be launched: no error, and if `strict` no warning."""
        return not self.count(Severity.ERROR) and not (strict and self.count(Severity.WARNING))


def report_on(place: str) -> Report:
    """Import `module` or `module:name` and check it; raises typer.BadParameter for what is no such place."""
    subject = subject_at(place)
    tools = [declared(tool, subject.module) for tool in subject.tools if not isinstance(tool, ChainTool)]
    surroundings = list(_surroundings(subject, tools))
    files = _files(tools, surroundings)
    allows, bad = allows_in(files)
    found = [*subject.refused, *_of_tools(tools), *_of_surroundings(surroundings)]
    standing, silenced, unused = weigh(_once(found), allows, tools)
    whole = subject.module is not None  # of a part of a module nobody knows what its comments are for
    findings = sorted([*standing, *bad, *(unused if whole else [])], key=_rank)
    if not tools and not findings and not silenced:  # a slip in a CI job must not pass for a clean module
        raise typer.BadParameter(f"{subject.place} has no action, and nothing that should be one", param_hint=HINT)
    return Report(subject.place, tuple(tool.name for tool in tools), tuple(findings), tuple(silenced))


def _surroundings(subject: Subject, tools: Sequence[Declared]) -> Iterator[Surroundings]:
    if subject.module is None:
        return
    for module in modules_of(tools, subject.module):
        file = source_file(getattr(module, "__file__", None) or "")
        if file is not None:
            yield Surroundings(module, file, tools, subject.refused)


def _files(tools: Iterable[Declared], surroundings: Iterable[Surroundings]) -> list[SourceFile]:
    parts = [part.file for tool in tools for part in (*tool.body, *tool.query)]
    return list({file.path: file for file in (*parts, *(one.file for one in surroundings))}.values())


def _of_tools(tools: Iterable[Declared]) -> Iterator[Finding]:
    for tool in tools:
        yield from of_contract(tool)
        yield from of_words(tool)
        yield from of_body(tool)
        for part in tool.body:
            yield from swallowed_pauses(part.node, part.file, tool.name)


def _of_surroundings(surroundings: Iterable[Surroundings]) -> Iterator[Finding]:
    for around in surroundings:
        yield from of_module(around)
        yield from of_entrance(around)
        yield from of_chains(around)
        yield from swallowed_pauses(around.file.tree, around.file, "")


def _once(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings once each: what several tools share is said of all of them."""
    merged: dict[tuple[object, ...], Finding] = {}
    for one in findings:
        key = (one.check.id, one.place) if one.place is not None else (one.check.id, one.tool, one.sentence)
        if (known := merged.get(key)) is None:
            merged[key] = one
        elif one.tool and one.tool not in known.tool.split(", "):
            merged[key] = replace(known, tool=", ".join(filter(None, (known.tool, one.tool))))
    return list(merged.values())


def _rank(finding: Finding) -> tuple[int, str, int]:
    place = finding.place
    return _ORDER.index(finding.check.severity), place.file if place else "", place.line if place else 0
