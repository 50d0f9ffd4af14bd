"""What a function reaches: itself, and the functions of the user's own code that it names, one after the other.

Names are looked up in the live module (globals, closures, the attributes of modules and objects), so that a client made
by a factory is seen as what it is; nothing is called, and no property is read.
"""

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Final

from settled.runtime.checking.catalogue import Place
from settled.runtime.checking.files import Function, SourceFile, source_file

MAX_PARTS = 100
"""A body that reaches more functions than this is a program; the nearest ones are read."""

MISSING: Final = object()
"""What a name stands for that only a run would tell."""


@dataclass(frozen=True, eq=False)
class Part:
    """One function with its source, and what it names that could be resolved."""

    function: FunctionType
    node: Function
    file: SourceFile
    me: object = MISSING
    targets: dict[ast.expr, "Part"] = field(default_factory=dict)

    def place(self, node: ast.AST) -> Place:
        """Return where a node of this function stands."""
        return Place(self.file.path, getattr(node, "lineno", self.node.lineno))

    def value(self, expr: ast.expr | None) -> object:
        """Return the object that a name, or an attribute of it, stands for when the body runs; MISSING otherwise."""
        match expr:
            case ast.Name(id=name):
                return self._names.get(name, MISSING)
            case ast.Attribute(value=base, attr=attr):
                return _attribute(self.value(base), attr)
        return MISSING

    @cached_property
    def nested(self) -> Mapping[str, Function]:
        """The functions that are defined inside this one."""
        inner = [one for one in ast.walk(self.node) if isinstance(one, Function) and one is not self.node]
        return {one.name: one for one in inner}

    @cached_property
    def _names(self) -> Mapping[str, object]:
        code = self.function.__code__
        names = dict(self.function.__globals__)
        for name, cell in zip(code.co_freevars, self.function.__closure__ or (), strict=False):
            try:
                names[name] = cell.cell_contents
            except ValueError:  # not bound yet
                names[name] = MISSING
        names |= dict.fromkeys((*_locals(code), *self.nested), MISSING)
        if self.me is not MISSING and code.co_argcount:
            names[code.co_varnames[0]] = self.me
        return names


def reach(function: object) -> tuple[Part, ...]:
    """Return the parts of a body, itself first; empty where its source cannot be read."""
    parts: dict[tuple[CodeType, int], Part] = {}
    _add(function, parts)
    todo = list(parts.values())
    while todo:
        part = todo.pop(0)
        for expr in _named(part.node):
            known = len(parts)
            if (target := _add(part.value(expr), parts)) is not None:
                part.targets[expr] = target
            todo += list(parts.values())[known:]
    return tuple(parts.values())


def _add(value: object, parts: dict[tuple[CodeType, int], Part]) -> Part | None:
    """Return the part of a function that is known or can be read."""
    function, me = plain(value)
    if function is None:
        return None
    key = (function.__code__, id(me))
    if key not in parts and len(parts) < MAX_PARTS and (part := _read(function, me)) is not None:
        parts[key] = part
    return parts.get(key)


def _read(function: FunctionType, me: object) -> Part | None:
    code = function.__code__
    file = source_file(code.co_filename)
    node = None if file is None else file.function_at(code.co_firstlineno, code.co_name)
    return None if file is None or node is None else Part(function, node, file, me)


def plain(value: object) -> tuple[FunctionType | None, object]:
    """Return the function under wrappers, and the object whose method it is."""
    me: object = MISSING
    while not isinstance(value, FunctionType) or inspect.unwrap(value) is not value:
        match value:
            case partial(func=inner):
                value = inner
            case MethodType(__func__=inner, __self__=me):
                value = inner
            case FunctionType():
                value = inspect.unwrap(value)
            case _:  # a class, a builtin; or another action, which has a row of its own
                return None, me
    return value, me


def _attribute(base: object, attr: str) -> object:
    if base is MISSING:
        return MISSING
    if isinstance(base, ModuleType):
        return vars(base).get(attr, MISSING)
    found = inspect.getattr_static(base, attr, MISSING)
    match found:
        case FunctionType() if not isinstance(base, type):
            return MethodType(found, base)
        case staticmethod() | classmethod():
            return found.__func__
        case _ if hasattr(type(found), "__get__"):  # a property would run code
            return MISSING
    return found


def _locals(code: CodeType) -> Iterator[str]:
    yield from code.co_varnames
    yield from code.co_cellvars


def _named(node: Function) -> Iterator[ast.expr]:
    for statement in node.body:
        for one in ast.walk(statement):
            if isinstance(one, ast.Name | ast.Attribute) and isinstance(one.ctx, ast.Load):
                yield one
