"""How many writes one run of a body may send: along its longest path, through the functions that it calls.

Two branches of an `if` are one or the other, a loop may be more than one. It stops at two: more is as bad.
"""

import ast
from collections.abc import Sequence

from settled.runtime.checking.calls import Send, calls_in, sends
from settled.runtime.checking.files import Function
from settled.runtime.checking.reach import Part

MANY = 2

_Count = tuple[int | None, int]
"""What is sent by a path that goes on (None: none does), and by one that has left the function."""


class Writes:
    """The writes of a body and of what it reaches."""

    def __init__(self, parts: Sequence[Part]) -> None:
        """`parts` are what `reach` returned."""
        self.parts = parts
        self._sends = {id(part): sends(part.node, part.file, part) for part in parts}
        self._open: set[int] = set()

    def of(self, part: Part) -> list[Send]:
        """Return the writes that a part sends by itself."""
        return self._sends[id(part)]

    def sending(self, part: Part) -> list[ast.Call]:
        """Return the calls of a part that send a write, by themselves or further down."""
        own = [send.call for send in self.of(part)]
        below = [call for call in calls_in(part.node) if call.func in part.targets and self._below(part, call)]
        nested = [call for call in calls_in(part.node) if self._nested(part, call)]
        found = {id(call): call for call in (*own, *below, *nested)}
        return sorted(found.values(), key=lambda call: (call.lineno, call.col_offset))

    def longest(self, part: Part, node: Function | None = None) -> int:
        """Return the most writes that one run of a part sends, up to MANY."""
        node = node or part.node
        if id(node) in self._open:  # it calls itself
            return 0
        self._open.add(id(node))
        through, ended = self._block(part, node.body)
        self._open.discard(id(node))
        return min(MANY, max(through or 0, ended))

    def _below(self, part: Part, call: ast.Call) -> int:
        target = part.targets.get(call.func)
        return 0 if target is None or id(target) not in self._sends else self.longest(target)

    def _nested(self, part: Part, call: ast.Call) -> int:
        inner = part.nested.get(call.func.id) if isinstance(call.func, ast.Name) else None
        return 0 if inner is None else self.longest(part, inner)

    def _block(self, part: Part, statements: Sequence[ast.stmt]) -> _Count:
        through, most = 0, 0
        for statement in statements:
            on, ended = self._statement(part, statement)
            most = max(most, through + ended)
            if on is None:
                return None, most
            through += on
        return through, most

    def _statement(self, part: Part, statement: ast.stmt) -> _Count:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return 0, 0
            case ast.Return() | ast.Raise():
                return None, self._inside(part, statement)
            case ast.If(test=test, body=body, orelse=other):
                return _after(self._inside(part, test), _either(self._block(part, body), self._block(part, other)))
            case ast.For() | ast.AsyncFor() | ast.While():
                return self._loop(part, statement)
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                return _after(sum(self._inside(part, item) for item in items), self._block(part, body))
            case ast.Try():
                return self._attempt(part, statement)
            case ast.Match(subject=subject, cases=cases):
                blocks = [self._block(part, case.body) for case in cases]
                return _after(self._inside(part, subject), _either((0, 0), *blocks))
        return self._inside(part, statement), 0

    def _loop(self, part: Part, loop: ast.For | ast.AsyncFor | ast.While) -> _Count:
        on, ended = self._block(part, loop.body)
        if is_retry(loop, self.sending(part)):  # one write, again and again: that is said elsewhere
            return on or ended, ended
        return (MANY, ended) if on else (0, ended)

    def _attempt(self, part: Part, attempt: ast.Try) -> _Count:
        body = self._block(part, [*attempt.body, *attempt.orelse])
        handlers = [self._block(part, handler.body) for handler in attempt.handlers]
        sent = max(body[0] or 0, body[1])
        paths = _either(body, *(_after(sent, handler) for handler in handlers))
        on, ended = self._block(part, attempt.finalbody)
        return (None if paths[0] is None or on is None else paths[0] + on), max(paths[1] + (on or 0), ended)

    def _inside(self, part: Part, node: ast.AST) -> int:
        own = {id(send.call) for send in self.of(part)}
        return sum(
            1 if id(call) in own else self._below(part, call) + self._nested(part, call) for call in calls_in(node)
        )


def is_retry(loop: ast.For | ast.AsyncFor | ast.While, sending: Sequence[ast.Call]) -> bool:
    """Whether a loop sends, catches what goes wrong, and goes round again."""
    ids = {id(call) for call in sending}
    return any(
        isinstance(node, ast.Try)
        and any(id(call) in ids for statement in node.body for call in calls_in(statement))
        and any(goes_on(handler) for handler in node.handlers)
        for node in ast.walk(loop)
    )


def goes_on(handler: ast.ExceptHandler) -> bool:
    """Whether the code after a handler is reached: its last statement neither raises nor leaves."""
    return not isinstance(handler.body[-1], ast.Raise | ast.Return | ast.Break)


def _either(*paths: _Count) -> _Count:
    going = [on for on, _ in paths if on is not None]
    return (max(going) if going else None), max(ended for _, ended in paths)


def _after(sent: int, path: _Count) -> _Count:
    on, ended = path
    return (None if on is None else sent + on), sent + ended
