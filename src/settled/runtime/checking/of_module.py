"""What stands beside the actions in a module: tools and nodes that write without a row, and plain tool nodes.

Read from the source, with the live module where a name has a value; a function that an action or its query reaches has
been judged with it.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType

from langchain_core.tools import BaseTool

from settled.runtime.checking.calls import Send, Via, calls_in, dotted, last, made_by, sends
from settled.runtime.checking.catalogue import Finding, Place, found
from settled.runtime.checking.declared import Declared, function_of
from settled.runtime.checking.files import Function, SourceFile, first_line
from settled.runtime.checking.reach import Part, reach
from settled.tools.contract import ActionTool

_TOOL_TAKERS = frozenset({"ToolNode", "create_react_agent", "create_agent", "bind_tools", "build_agent", "ActionNode"})
_DECLARING = frozenset({"settled.action", "settled.tools.contract.action"})
_PLAIN = frozenset({"ToolNode", "create_react_agent", "create_agent"})


@dataclass(frozen=True, eq=False)
class Surroundings:
    """A module's file, with what is known of its functions."""

    module: ModuleType
    file: SourceFile
    tools: Sequence[Declared]
    refused: Sequence[Finding] = ()

    @cached_property
    def covered(self) -> set[int]:
        """The functions that belong to an action or to a query, with all that is inside them."""
        parts = [part for tool in self.tools for part in (*tool.body, *tool.query)]
        roots = [part.node for part in parts] + [node for node in self.file.functions if self.is_refused(node)]
        return {id(node) for root in roots for node in ast.walk(root) if isinstance(node, Function)}

    def is_refused(self, node: Function) -> bool:
        """Whether a function was to be an action, and its declaration was refused."""
        return Place(self.file.path, first_line(node)) in [one.place for one in self.refused]

    @cached_property
    def parts(self) -> Mapping[int, Part]:
        """The functions of the module that have a live object, by their nodes."""
        live = [function_of(one) if isinstance(one, BaseTool) else one for one in vars(self.module).values()]
        functions = [one for one in live if callable(one) and not isinstance(one, type)]
        return {id(part.node): part for one in functions for part in reach(one)}

    @cached_property
    def inner(self) -> Mapping[int, Function]:
        """The innermost function around each call."""
        return {id(call): node for node in self.file.functions for call in calls_in(node)}

    @cached_property
    def by_name(self) -> Mapping[str, Function]:
        """The functions of the file by name."""
        return {node.name: node for node in self.file.functions}

    @cached_property
    def called_by_models(self) -> Mapping[int, tuple[str, str]]:
        """What a model or a graph calls, the functions of plain tools, and nodes: which of the two, and its name."""
        return dict(_called_by_models(self))

    def value(self, name: str) -> object:
        """Return what a name of the module stands for, if it has a value."""
        return vars(self.module).get(name)

    def writes(self, node: Function, seen: frozenset[int] = frozenset()) -> list[Send]:
        """Return the writes of a function, and of those that it calls by name."""
        part = self.parts.get(id(node))
        own = [send for send in sends(node, self.file, part) if self.inner.get(id(send.call)) is node]
        known = seen | {id(node)}
        names = {call.func.id for call in calls_in(node) if isinstance(call.func, ast.Name)}
        below = [self.by_name[name] for name in sorted(names & self.by_name.keys())]
        return own + [send for one in below if id(one) not in known for send in self.writes(one, known)]


def of_module(around: Surroundings) -> Iterator[Finding]:
    """Yield what writes beside the actions of a module, and the tool nodes that would call past the ledger."""
    judged: set[int] = set()
    for node in around.file.functions:
        role, name = around.called_by_models.get(id(node), ("", ""))
        if role and id(node) not in around.covered and (written := around.writes(node)):
            judged |= {id(send.call) for send in written}
            sentence = f"the {role} {name} sends {_said(written[0])} without a ledger row"
            yield found("unguarded-tool", Place(around.file.path, node.lineno), name, sentence)
    yield from _from_elsewhere(around)
    yield from _other_writes(around, judged)
    yield from _plain_tool_nodes(around)
    yield from _unseen(around)


def _unseen(around: Surroundings) -> Iterator[Finding]:
    """Yield the actions that are declared in the file, and that no tool in hand was made of."""
    live = {id(tool.body[0].node) for tool in around.tools if tool.body}
    for node in around.file.functions:
        if (
            id(node) not in live
            and not around.is_refused(node)
            and any(_declares(one, around.file) for one in node.decorator_list)
        ):
            sentence = f"{node.name} is declared, but no tool of the module is made of it"
            yield found("unseen-tool", Place(around.file.path, node.lineno), node.name, sentence)


def _declares(decorator: ast.expr, file: SourceFile) -> bool:
    return isinstance(decorator, ast.Call) and dotted(decorator.func, file) in _DECLARING


def _from_elsewhere(around: Surroundings) -> Iterator[Finding]:
    """Yield the plain tools that are written in another file of the user's, and given to an agent in this one."""
    given = [value for call in calls_in(around.file.tree) for value in _given(call)]
    named = [around.value(name) for name in _names(given, around.file)]
    tools = [one for one in vars(around.module).values() if isinstance(one, BaseTool)]
    for value in {id(one): one for one in (*named, *tools) if not isinstance(one, ActionTool)}.values():
        parts = reach(function_of(value) if isinstance(value, BaseTool) else value)
        if not parts or parts[0].file is around.file or id(parts[0].node) in around.covered:
            continue
        if written := [send for part in parts for send in sends(part.node, part.file, part)]:
            sentence = f"the tool {parts[0].node.name} sends {_said(written[0])} without a ledger row"
            yield found("unguarded-tool", parts[0].place(parts[0].node), parts[0].node.name, sentence)


def _given(call: ast.Call) -> list[ast.expr]:
    """Return what a call is given as tools, if it takes tools."""
    named = [keyword.value for keyword in call.keywords if keyword.arg == "tools"]
    return [*call.args, *named] if _called(call) in _TOOL_TAKERS else named


def _other_writes(around: Surroundings, judged: set[int]) -> Iterator[Finding]:
    for node in around.file.functions:
        if id(node) in around.covered or id(node) in around.called_by_models:
            continue
        for send in sends(node, around.file, around.parts.get(id(node))):
            own = around.inner.get(id(send.call)) is node and id(send.call) not in judged
            if own and send.via is Via.RAW:
                sentence = f"{node.name} sends {_said(send)} outside every action"
                yield found("unguarded-write", Place(around.file.path, send.call.lineno), "", sentence)


def _said(send: Send) -> str:
    return f"{ast.unparse(send.call.func)[-60:]}(...)"


def _called_by_models(around: Surroundings) -> Iterator[tuple[int, tuple[str, str]]]:
    wrapped = {id(tool.body[0].node) for tool in around.tools if tool.body}
    for node in around.file.functions:
        if any(last(dotted(_bare(one), around.file)) == "tool" for one in node.decorator_list):
            yield id(node), ("tool", node.name)
    for call in calls_in(around.file.tree):
        taker = _called(call)
        if taker == "add_node" and call.args:
            yield from ((id(node), ("node", node.name)) for node in _functions(call.args[-1:], around))
        else:
            yield from ((id(node), ("tool", node.name)) for node in _functions(_given(call), around))
    for cls in [one for one in ast.walk(around.file.tree) if isinstance(one, ast.ClassDef)]:
        if any(last(dotted(base, around.file)) in ("BaseTool", "StructuredTool") for base in cls.bases):
            runs = [one for one in cls.body if isinstance(one, Function) and one.name in ("_run", "_arun")]
            yield from ((id(one), ("tool", cls.name)) for one in runs if id(one) not in wrapped)
    yield from _live_tools(around, wrapped)


def _live_tools(around: Surroundings, wrapped: set[int]) -> Iterator[tuple[int, tuple[str, str]]]:
    for value in vars(around.module).values():
        if isinstance(value, BaseTool) and not isinstance(value, ActionTool):
            for part in reach(function)[:1] if (function := function_of(value)) is not None else ():
                if id(part.node) not in wrapped:
                    yield id(part.node), ("tool", value.name)


def _bare(decorator: ast.expr) -> ast.expr:
    return decorator.func if isinstance(decorator, ast.Call) else decorator


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _functions(given: Sequence[ast.expr], around: Surroundings) -> Iterator[Function]:
    """Yield the functions of the file that are named in what is given, or in a list that is."""
    for name in _names(given, around.file):
        if name in around.by_name and not isinstance(around.value(name), ActionTool):
            yield around.by_name[name]


def _names(given: Sequence[ast.expr], file: SourceFile, depth: int = 2) -> Iterator[str]:
    for expr in given:
        for node in ast.walk(expr) if isinstance(expr, ast.List | ast.Tuple | ast.Name | ast.BinOp) else ():
            if isinstance(node, ast.Name):
                yield node.id
                if depth:
                    yield from _names(file.bindings.get(node.id, []), file, depth - 1)


def _plain_tool_nodes(around: Surroundings) -> Iterator[Finding]:
    for call in calls_in(around.file.tree):
        taker = last(dotted(call.func, around.file))
        if taker not in _PLAIN or (taker == "create_agent" and _has_middleware(call, around.file)):
            continue
        given = _given(call)
        if action := next((name for name in _names(given, around.file) if _is_write(around.value(name))), ""):
            sentence = f"{taker} is given the action {action}"
            yield found("plain-tool-node", Place(around.file.path, call.lineno), action, sentence)


def _has_middleware(call: ast.Call, file: SourceFile) -> bool:
    given = [keyword.value for keyword in call.keywords if keyword.arg == "middleware"]
    inside = [node for value in given for node in ast.walk(value) if isinstance(node, ast.Name | ast.Call)]
    made = [one for node in inside for one in made_by(node, file)]
    listed = [one for node in inside if isinstance(node, ast.Name) for one in _calls_bound(node.id, file)]
    return any(last(dotted(one.func, file)) == "ActionMiddleware" for one in (*made, *listed)) or any(
        keyword.arg is None for keyword in call.keywords
    )


def _calls_bound(name: str, file: SourceFile) -> Iterator[ast.Call]:
    for value in file.bindings.get(name, []):
        yield from calls_in(value)


def _is_write(value: object) -> bool:
    several = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(one, ActionTool) and not one.contract.is_read for one in several)
