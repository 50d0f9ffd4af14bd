"""A report as a table for a terminal and as JSON for a CI job, and the checklist itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from settled.runtime.checking.catalogue import CHECKS, Finding, Place, Severity
from settled.runtime.checking.report import Report
from settled.runtime.tables import text

_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "bright_black"}


def report_page(report: Report) -> RenderableType:
    """Return a report as a page: its table, and the sentence that sums it up."""
    head = text(summary(report), "bold")
    return Group(_table(report.findings), Text(), head) if report.findings else head


def summary(report: Report) -> str:
    """Return what was checked and found, in one sentence."""
    checked = f"{report.place}: {_many(len(report.tools), 'action')} checked"
    counts = [(report.count(severity), severity) for severity in Severity]
    said = ", ".join(_many(count, severity) for count, severity in counts if count) or "nothing found"
    return f"{checked}, {said}" + (f" ({len(report.silenced)} allowed)" if report.silenced else "")


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("finding", "tool", "where", "what to do"):
        table.add_column(name, overflow="fold", no_wrap=name == "finding")
    for one in findings:
        advice = Text.assemble(text(f"{one.sentence}; "), text(one.check.fix, "bright_black"))
        table.add_row(text(one.check.id, _COLOURS[one.check.severity]), text(one.tool), text(shown(one.place)), advice)
    return table


def shown(place: Place | None) -> str:
    """Return a place as `file:line`, from the current folder where it is below it."""
    if place is None:
        return "?"
    path = Path(place.file)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{place.line}"


def report_record(report: Report) -> dict[str, Any]:
    """Return a report as JSON."""
    return {
        "place": report.place,
        "tools": list(report.tools),
        **{f"{severity}s": report.count(severity) for severity in Severity},
        "findings": [_record(one) for one in report.findings],
        "allowed": [{**_record(one.finding), "reason": one.reason} for one in report.silenced],
    }


def _record(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.check.id,
        "severity": str(finding.check.severity),
        "tool": finding.tool or None,
        "file": finding.place.file if finding.place else None,
        "line": finding.place.line if finding.place else None,
        "sentence": finding.sentence,
        "fix": finding.check.fix,
    }


def catalogue_page() -> RenderableType:
    """Return the whole checklist with its reasons."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("finding", "severity", "why", "what to do"):
        table.add_column(name, overflow="fold", no_wrap=name in ("finding", "severity"))
    for one in CHECKS.values():
        table.add_row(text(one.id, _COLOURS[one.severity]), text(one.severity), text(one.why), text(one.fix))
    return table


def catalogue_record() -> list[dict[str, str]]:
    """Return the whole checklist as JSON."""
    return [{"id": one.id, "severity": str(one.severity), "why": one.why, "fix": one.fix} for one in CHECKS.values()]
