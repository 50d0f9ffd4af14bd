"""One source file of the user, read and parsed once: its imports, what is bound to which name, its comments.

Names are read without flow: a name that is bound twice in a function has both values, and the readers of it must be
content with either.
"""

import ast
import io
import linecache
import site
import sys
import sysconfig
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import settled

Function = ast.FunctionDef | ast.AsyncFunctionDef

_OURS = [str(Path(settled.__file__).parent / part) for part in ("tools", "state", "graph", "runtime")]
_LIBRARIES = [*site.getsitepackages(), sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")]


@dataclass(frozen=True, eq=False)
class SourceFile:
    """A file and its tree."""

    path: str
    text: str
    tree: ast.Module

    @cached_property
    def imports(self) -> Mapping[str, str]:
        """What each imported name stands for: `{"http": "settled.http"}`."""
        return dict(_imports(self.tree))

    @cached_property
    def bindings(self) -> Mapping[str, list[ast.expr]]:
        """The values that each name is bound to, anywhere; an attribute stands under `.name`."""
        return bindings_in(self.tree)

    @cached_property
    def _local(self) -> dict[int, Mapping[str, list[ast.expr]]]:
        return {}

    def bound(self, name: str, within: ast.AST | None = None) -> list[ast.expr]:
        """Return what a name is bound to: in a function, where it binds it, and else anywhere in the file."""
        if within is None:
            return self.bindings.get(name, [])
        if id(within) not in self._local:
            self._local[id(within)] = bindings_in(within)
        return self._local[id(within)].get(name) or self.bindings.get(name, [])

    @cached_property
    def functions(self) -> list[Function]:
        """All functions and methods, outer ones first."""
        return [node for node in ast.walk(self.tree) if isinstance(node, Function)]

    @cached_property
    def comments(self) -> Mapping[int, str]:
        """The comment of each line that has one."""
        try:
            tokens = list(tokenize.generate_tokens(io.StringIO(self.text).readline))
        except (tokenize.TokenError, SyntaxError):
            return {}
        return {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}

    def function_at(self, line: int, name: str) -> Function | None:
        """Return the function whose code begins at a line: that of its first decorator, where it has one."""
        return self._functions_at.get((line, name))

    @cached_property
    def _functions_at(self) -> Mapping[tuple[int, str], Function]:
        return {(first_line(node), node.name): node for node in self.functions}

    @cached_property
    def lines(self) -> list[str]:
        """The text, line by line."""
        return self.text.splitlines()

    @cached_property
    def statements(self) -> list[range]:
        """The lines of each statement that holds no others."""
        simple = [node for node in ast.walk(self.tree) if isinstance(node, ast.stmt) and not hasattr(node, "body")]
        return [range(node.lineno, (node.end_lineno or node.lineno) + 1) for node in simple]


def first_line(node: Function) -> int:
    """Return the line on which a function begins, with its decorators."""
    return min([node.lineno, *(one.lineno for one in node.decorator_list)])


@lru_cache(maxsize=256)
def source_file(path: str) -> SourceFile | None:
    """Return a file of the user's own; None for one of a library, or one that cannot be read."""
    if not is_own(path):
        return None
    text = "".join(linecache.getlines(path))
    try:
        return SourceFile(path, text, ast.parse(text)) if text else None
    except (SyntaxError, ValueError, RecursionError):
        return None


def is_own(path: str) -> bool:
    """Whether a file is the user's, and neither Python's nor that of an installed package or of ours."""
    resolved = str(Path(path))
    return not any(resolved.startswith(f"{library}/") for library in (*_OURS, *_LIBRARIES, f"{sys.prefix}/lib"))


def bindings_in(tree: ast.AST) -> Mapping[str, list[ast.expr]]:
    """Return the values that each name is bound to in a tree."""
    bound: dict[str, list[ast.expr]] = {}
    for name, value in _bindings(tree):
        bound.setdefault(name, []).append(value)
    return bound


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.split(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module or ''}.{alias.name}"


def _bindings(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets, value=value):
                yield from ((name, value) for target in targets for name in _named(target))
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield from ((name, value) for name in _named(target))
            case ast.NamedExpr(target=target, value=value):
                yield target.id, value
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                yield from ((name, value) for name in _named(target))


def _named(target: ast.expr) -> list[str]:
    match target:
        case ast.Name(id=name):
            return [name]
        case ast.Attribute(attr=name):
            return [f".{name}"]
    return []
