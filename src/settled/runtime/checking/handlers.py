"""What a function does with exceptions: whether it hides an outcome, shows raw text, or swallows LangGraph's pause."""

import ast
import re
from collections.abc import Iterator, Sequence

from settled.runtime.checking.calls import calls_in, dotted, last
from settled.runtime.checking.catalogue import Finding, Place, found
from settled.runtime.checking.counting import Writes, goes_on, is_retry
from settled.runtime.checking.declared import Declared
from settled.runtime.checking.files import SourceFile
from settled.runtime.checking.reach import Part

_OF_READING = frozenset(
    {"KeyError", "IndexError", "TypeError", "AttributeError", "ValueError", "JSONDecodeError", "UnicodeError",
     "ValidationError", "UnicodeDecodeError", "StopIteration", "InvalidOperation"}
)  # fmt: skip
"""What goes wrong when an answer is read: it was there."""

_BROAD = frozenset({"Exception", "BaseException"})
_PAUSES = frozenset({"GraphBubbleUp", "GraphInterrupt", "NodeInterrupt", "ParentCommand"})
_RUNS = frozenset({"invoke", "ainvoke", "stream", "astream"})
_RUNNERS = re.compile(r"(\w*_)?(agent|graph|subgraph|tool|app|workflow|inner)")
"""What is run so, by its name; a model, or a prompt, does not pause."""

_AS_TEXT = frozenset({"str", "repr", "format_exc", "format_exception", "print_exc", "format"})


def of_handlers(tool: Declared, part: Part, writes: Writes) -> Iterator[Finding]:
    """Yield what is wrong with the handlers of a function that a write reaches."""
    sending = writes.sending(part)
    ids = {id(call) for call in sending}
    retried = {id(one) for loop in _loops(part.node) if is_retry(loop, sending) for one in ast.walk(loop)}
    for attempt in _attempts(part.node):
        sends = any(id(call) in ids for statement in attempt.body for call in calls_in(statement))
        for handler in attempt.handlers:
            if sends and _hides(handler, part.file) and not (id(handler) in retried and goes_on(handler)):
                sentence = f"`{_head(handler)}` around the send turns an unknown outcome into a result"
                yield found("error-as-result", part.place(handler), tool.name, sentence)
            for shown in _raw_texts(handler):
                sentence = "the text of the exception is what the model will read"
                yield found("raw-exception", part.place(shown), tool.name, sentence)


def of_suppressions(tool: Declared, part: Part, writes: Writes) -> Iterator[Finding]:
    """Yield the `with suppress(...)` around a send: an outcome that is hidden without a handler."""
    ids = {id(call) for call in writes.sending(part)}
    for block, names in _suppressions(part.node, part.file):
        sends = any(id(call) in ids for statement in block.body for call in calls_in(statement))
        if sends and not names <= _OF_READING:
            sentence = f"suppress({', '.join(sorted(names))}) around the send hides an unknown outcome"
            yield found("error-as-result", part.place(block), tool.name, sentence)


def _suppressions(tree: ast.AST, file: SourceFile) -> Iterator[tuple[ast.With, set[str]]]:
    for block in [node for node in ast.walk(tree) if isinstance(node, ast.With)]:
        for call in [item.context_expr for item in block.items if isinstance(item.context_expr, ast.Call)]:
            if dotted(call.func, file) == "contextlib.suppress":
                yield block, {last(dotted(one, file)) for one in call.args}


def swallowed_pauses(tree: ast.AST, file: SourceFile, tool: str) -> Iterator[Finding]:
    """Yield the handlers that keep LangGraph's pause from its runtime."""
    for block, suppressed in _suppressions(tree, file):
        passes = any(_may_pause(call, file) for statement in block.body for call in calls_in(statement))
        if suppressed & _PAUSES or (passes and suppressed & _BROAD):
            sentence = "suppress() drops LangGraph's pause"
            yield found("swallowed-interrupt", Place(file.path, block.lineno), tool, sentence)
    for attempt in _attempts(tree):
        inside = [call for statement in attempt.body for call in calls_in(statement)]
        passes = any(_may_pause(call, file) for call in inside)
        handled: set[str] = set()
        for handler in attempt.handlers:
            names = _names(handler, file)
            swallows = not _raises(handler) and not handled & _PAUSES
            if swallows and (names & _PAUSES or (passes and (not names or names & _BROAD))):
                sentence = f"`{_head(handler)}` catches LangGraph's pause and does not raise it again"
                yield found("swallowed-interrupt", Place(file.path, handler.lineno), tool, sentence)
            handled |= names


def _may_pause(call: ast.Call, file: SourceFile) -> bool:
    """Whether LangGraph's pause may come out of a call: of `interrupt`, of a middleware's handler, of a graph."""
    match call:
        case ast.Call(func=ast.Name(id="handler"), args=[ast.Name(id="request"), *_]):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name), attr=attr)) if (
            attr in _RUNS
        ):
            return _RUNNERS.fullmatch(name) is not None
    return dotted(call.func, file) == "langgraph.types.interrupt"


def _attempts(tree: ast.AST) -> list[ast.Try | ast.TryStar]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Try | ast.TryStar)]


def _loops(tree: ast.AST) -> Sequence[ast.For | ast.AsyncFor | ast.While]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.AsyncFor | ast.While)]


def _hides(handler: ast.ExceptHandler, file: SourceFile) -> bool:
    names = _names(handler, file)
    return not _raises(handler) and not (names and names <= _OF_READING)


def _raises(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(node, ast.Raise) for statement in handler.body for node in ast.walk(statement))


def _names(handler: ast.ExceptHandler, file: SourceFile) -> set[str]:
    """Return the last names of what a handler catches; none for a bare one."""
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type] if handler.type else []
    return {last(dotted(one, file)) for one in caught}


def _head(handler: ast.ExceptHandler) -> str:
    return f"except {ast.unparse(handler.type)}" if handler.type is not None else "except"


def _raw_texts(handler: ast.ExceptHandler) -> Iterator[ast.AST]:
    """Yield what leaves a handler with the exception's own text in it."""
    for statement in handler.body:
        for node in ast.walk(statement):
            said = node.value if isinstance(node, ast.Return) else node.exc if isinstance(node, ast.Raise) else None
            if said is not None and _shows(said, handler.name):
                yield node


def _shows(said: ast.expr, name: str | None) -> bool:
    for node in ast.walk(said):
        match node:
            case ast.FormattedValue(value=value) if _is_named(value, name):
                return True
            case ast.Call(func=function, args=args):
                called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
                if called in _AS_TEXT and (called.startswith("format_exc") or any(_is_named(a, name) for a in args)):
                    return True
            case ast.Attribute(value=value, attr="args" | "message"):
                if _is_named(value, name):
                    return True
    return False


def _is_named(value: ast.expr, name: str | None) -> bool:
    return name is not None and isinstance(value, ast.Name) and value.id == name
