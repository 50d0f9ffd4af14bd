"""A tool as it was declared: its contract, the lines of its declaration, and what its body and its query reach."""

import ast
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

from langchain_core.tools import BaseTool

from settled.runtime.checking.calls import calls_in, dotted, last
from settled.runtime.checking.catalogue import Place
from settled.runtime.checking.files import SourceFile, first_line, source_file
from settled.runtime.checking.reach import Part, plain, reach
from settled.tools.contract import ActionTool, Contract


@dataclass(frozen=True, eq=False)
class Declared:
    """One tool of the user. `lines` are those of its declaration; `fields` are the lines of its arguments."""

    tool: ActionTool
    place: Place | None
    lines: range
    fields: Mapping[str, int]
    written: Mapping[str, ast.expr]
    body: tuple[Part, ...]
    query: tuple[Part, ...]
    key_argument: str | None

    @property
    def name(self) -> str:
        """The name that a model calls it by."""
        return self.tool.name

    @property
    def contract(self) -> Contract:
        """What its author declared."""
        return self.tool.contract

    def at(self, field: str) -> Place | None:
        """Return where an argument, or a part of the contract, is written; the declaration, where nobody knows."""
        if self.place is None:
            return None
        line = self.fields.get(field) or getattr(self.written.get(field), "lineno", None)
        return Place(self.place.file, line or self.place.line)


def declared(tool: ActionTool, module: ModuleType | None) -> Declared:
    """Return where a tool was declared, and what it reaches."""
    function, wrapped = body_of(tool)
    body = () if function is None else reach(function)
    query = () if tool.contract.query is None else reach(tool.contract.query)
    key_argument = getattr(_carrier(tool), "key_argument", None)
    place, lines, call = _wrapping(tool, module) if wrapped is not None else (None, range(0), None)
    if place is None and body:
        place, lines, call = _decorating(body[0])
    fields = _fields(body[0]) if body and wrapped is None and tool.contract.function is not function else {}
    written = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg} if call is not None else {}
    return Declared(tool, place, lines, fields, written, body, query, key_argument)


def body_of(tool: ActionTool) -> tuple[Callable[..., object] | None, BaseTool | None]:
    """Return the function that the author wrote, and the LangChain tool that was wrapped, if one was."""
    wrapped = getattr(_carrier(tool), "tool", None)
    if isinstance(wrapped, BaseTool):
        return function_of(wrapped), wrapped
    return plain(tool.contract.function)[0], None


def function_of(tool: BaseTool) -> Callable[..., object] | None:
    """Return the function of a LangChain tool; its `_run`, where it is a class of its own."""
    named = getattr(tool, "func", None) or getattr(tool, "coroutine", None)
    return named if callable(named) else getattr(tool, "_run", None)


def _carrier(tool: ActionTool) -> object:
    """Return what `as_action` put between an action and the tool that it wraps."""
    function, me = plain(tool.contract.function)
    if function is not None and not hasattr(me, "tool"):  # with injected arguments the method is one closure away
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        return next((one.__self__ for one in cells if hasattr(getattr(one, "__self__", None), "key_argument")), me)
    return me


def _decorating(part: Part) -> tuple[Place, range, ast.Call | None]:
    begin = first_line(part.node)
    lines = range(begin, max(part.node.body[0].lineno, part.node.lineno + 1))
    calls = [one for one in part.node.decorator_list if isinstance(one, ast.Call)]
    return Place(part.file.path, part.node.lineno), lines, next(filter(_is_contract, calls), None)


def _wrapping(tool: ActionTool, module: ModuleType | None) -> tuple[Place | None, range, ast.Call | None]:
    """Return where `name = as_action(...)` stands, in the module that holds the tool under that name."""
    names = [name for name, value in vars(module).items() if value is tool] if module is not None else []
    file = source_file(getattr(module, "__file__", None) or "") if module is not None else None
    for call in calls_in(file.tree) if file is not None else ():
        if last(dotted(call.func, file)) == "as_action" and _bound_to(call, file) in names:  # type: ignore[arg-type]
            lines = range(call.lineno, (call.end_lineno or call.lineno) + 1)
            return Place(file.path, call.lineno), lines, call  # type: ignore[union-attr]
    return None, range(0), None


def _bound_to(call: ast.Call, file: SourceFile) -> str:
    return next((name for name, values in file.bindings.items() if any(value is call for value in values)), "")


def _is_contract(call: ast.Call) -> bool:
    return any(keyword.arg == "risk" for keyword in call.keywords)


def _fields(part: Part) -> Mapping[str, int]:
    arguments = part.node.args
    return {one.arg: one.lineno for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}


def modules_of(tools: Sequence[Declared], root: ModuleType) -> list[ModuleType]:
    """Return the module, and those of its package in which its tools are written."""
    names = [body.function.__module__ for tool in tools for body in tool.body[:1]]
    own = [name for name in dict.fromkeys(names) if name.startswith(f"{root.__name__}.")]
    return [root, *(sys.modules[name] for name in own if name in sys.modules)]
