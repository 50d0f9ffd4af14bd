"""The command `settled check`: the pre-launch checklist, on a user's own tools.

Exit code 0: nothing that must not be launched; 1: an error was found (with --strict: a warning too); 2: a wrong use.
The module is imported, and so its own code runs; nothing else of it does.
"""

from typing import Annotated

import typer

from settled.runtime.options import Json
from settled.runtime.output import print_json, print_page

Module = Annotated[
    str | None,
    typer.Argument(metavar="MODULE", show_default=False, help="module, or module:name of a tool or a list of them."),
]
Strict = Annotated[bool, typer.Option("--strict", help="Warnings count too.")]
Listed = Annotated[bool, typer.Option("--list", help="List all checks with their reasons.")]


def check(module: Module = None, as_json: Json = False, strict: Strict = False, listed: Listed = False) -> None:
    """Check the tools of a module before they are launched."""
    if listed:
        _list(as_json)
        return
    if module is None:
        raise typer.BadParameter("say which: module, or module:name", param_hint="MODULE")
    from settled.runtime.checking import pages
    from settled.runtime.checking.report import report_on

    report = report_on(module)
    if as_json:
        print_json(pages.report_record(report))
    else:
        print_page(pages.report_page(report))
    if not report.is_clean(strict=strict):
        raise typer.Exit(1)


def _list(as_json: bool) -> None:
    from settled.runtime.checking import pages

    if as_json:
        print_json(pages.catalogue_record())
    else:
        print_page(pages.catalogue_page())
