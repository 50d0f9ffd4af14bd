"""docs/reference.md, made of the docstrings of the public names: `python scripts/reference.py` prints it.

`--write` puts it in its place. A test holds the page against the code.
"""

import dataclasses
import inspect
import re
import sys
import textwrap
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import settled

PAGE = Path(__file__).parent.parent / "docs" / "reference.md"

PARTS = {
    "Declaring": """
        action as_action actions_from_mcp carry_key Backoff Budget Compensation Done Message Incidental Ordered
        Precision Secret Inquiry Found Absent Inconclusive current_action ActionContext ActionTool Contract Risk
        Remote ContractWarning LEFT_OUT http
    """,
    "Ending an attempt": """
        Ended Succeeded Refused Rejected Invalid Forbidden Conflict Unknown
    """,
    "Calling": """
        Ledger perform aperform Outcome Code Action Event State Trigger World
    """,
    "In LangGraph": """
        build_agent Session Reply ActionMiddleware ActionNode open_checkpointer aopen_checkpointer
    """,
    "Policies and people": """
        PlannedAction Allow Ask Deny always first_time over permitted Desk Approval Approve Reject Edit ManualCase
        Happened DidNotHappen AskAgain
    """,
    "Chains": """
        chain step Chain Step SoFar StepDone ChainOutcome StepOutcome ChainState StepState ChainDesk
    """,
    "Messages": """
        Dispatcher Dispatched Delivery Webhook ProcrastinateTask Outbox Inbox verified new_secret
    """,
    "Workers": """
        Worker Purge Retention
    """,
    "The endpoint's side": """
        IdempotencyMiddleware IdempotencyStore EndpointRequest StoredAnswer claimed_request
    """,
    "Errors": """
        SettledError ContractError ChainChanged Unguarded InvalidArguments NotFound AlreadyDecided NotPermitted
        ShownOtherwise LedgerUnavailable ThreadBusy ClaimLost LedgerFault DuplicateAction IllegalTransition
        Undelivered Unverified
    """,
}
"""The public names by what one wants to do; each stands in one part."""


def page() -> str:
    """Return the whole page."""
    lines = [
        "# Reference",
        "",
        "Made of the docstrings (`scripts/reference.py`). All names are importable from `settled`.",
        "",
    ]
    lines += [f"- [{part}](#{part.lower().replace(' ', '-').replace(chr(39), '')})" for part in PARTS]
    for part, names in PARTS.items():
        lines += ["", f"## {part}"]
        for name in names.split():
            lines += ["", *entry(name, getattr(settled, name))]
    return "\n".join(lines).rstrip() + "\n"


def entry(name: str, thing: Any) -> list[str]:
    """Return what is said of one name."""
    if isinstance(thing, ModuleType):
        return [f"### `{name}`", "", said(thing), *functions(thing)]
    if inspect.isclass(thing):
        return [f"### `{name}`", *called(name, thing), "", said(thing), *methods(thing)]
    if callable(thing):
        return [f"### `{name}`", *called(name, thing), "", said(thing)]
    return [f"### `{name}`", "", said(type(thing))]


def called(name: str, thing: Any) -> list[str]:
    """Return how it is called, on lines of a width that can be read."""
    shown = signature(thing)
    return ["", "```text", *textwrap.wrap(f"{name}{shown}", 110, subsequent_indent="    "), "```"] if shown else []


def functions(module: ModuleType) -> list[str]:
    """Return the public functions of a module."""
    found = [(n, f) for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__]
    lines: list[str] = []
    for name, function in found:
        if not name.startswith("_"):
            lines += ["", f"**`{module.__name__.rpartition('.')[2]}.{name}{signature(function)}`** {said(function)}"]
    return lines


def methods(kind: type) -> list[str]:
    """Return the public methods and properties that a class has of itself."""
    lines: list[str] = []
    if issubclass(kind, Enum):
        return ["", ", ".join(f"`{one.value}`" for one in kind)]
    if kind.__init__.__doc__ and "__init__" in vars(kind) and not dataclasses.is_dataclass(kind):
        lines += ["", said(kind.__init__)]
    for name, member in vars(kind).items():
        function = getattr(member, "__func__", member)
        if name.startswith("_") or not (inspect.isfunction(function) or isinstance(member, property)):
            continue
        shown = name if isinstance(member, property) else f"{name}{signature(function, is_method=True)}"
        lines += ["", f"**`{shown}`** {said(member.fget if isinstance(member, property) else function)}"]
    return lines


def signature(thing: Any, *, is_method: bool = False) -> str:
    """Return the parameters by name, without their types: those are in the code, where an editor shows them."""
    try:
        parameters = list(inspect.signature(thing).parameters.values())
    except (TypeError, ValueError):
        return ""
    parameters = parameters[1:] if is_method and parameters and parameters[0].name in ("self", "cls") else parameters
    if inspect.isclass(thing) and issubclass(thing, Enum | BaseException):
        return ""
    shown: list[str] = []
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and "*" not in shown and not any(name.startswith("*") for name in shown):
            shown.append("*")
        mark = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
        shown.append(f"{mark}{one.name}" + ("" if one.default is one.empty or mark else f"={default(one.default)}"))
    return f"({', '.join(shown)})"


def default(value: object) -> str:
    """Return a default as it is written; what has no short form is an ellipsis."""
    text = repr(value)
    return "…" if len(text) > 30 or " at 0x" in text or text.startswith("<") else text


def said(thing: Any) -> str:
    """Return a docstring as Markdown; what it draws by indentation stays as it is drawn."""
    text = inspect.getdoc(thing) or ""
    if text.startswith(f"{getattr(thing, '__name__', '')}(") and dataclasses.is_dataclass(thing):
        return ""
    return re.sub(r"(?m)^( {4,}\S.*(?:\n {4,}.*)*)", r"```text\n\1\n```", text)


def main() -> None:
    """Print the page, or write it."""
    if "--write" in sys.argv:
        PAGE.write_text(page())
    else:
        print(page(), end="")


if __name__ == "__main__":
    main()
