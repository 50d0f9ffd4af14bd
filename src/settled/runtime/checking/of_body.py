"""What a body does with its one write, and what a query must not do."""

import ast
import re
from collections.abc import Iterator

from settled.runtime.checking.calls import HTTP, Send, Via, calls_in, dotted, last, library_of, made_by
from settled.runtime.checking.catalogue import Finding, found
from settled.runtime.checking.counting import MANY, Writes
from settled.runtime.checking.declared import Declared
from settled.runtime.checking.files import SourceFile
from settled.runtime.checking.handlers import of_handlers, of_suppressions
from settled.runtime.checking.of_retries import of_retries
from settled.runtime.checking.reach import Part
from settled.tools.contract import Remote

_KEY = re.compile(r"(x-)?idempotency[-_]?(key|token)|client[-_]?(request)?[-_]?token|paypal-request-id", re.IGNORECASE)
_FAILED = re.compile(
    r"status(_code)? (!= 20\d|>=? (300|399|400|499|500))|not \S+\.(ok|is_success)\b|\.is_(client_|server_)?error"
)
_ANEW = ("uuid", "secrets", "random", "time.time", "time.time_ns", "time.monotonic", "os.urandom", "datetime")
_VERBS = frozenset({"post", "put", "patch", "delete", "request", "create", "send"})
_OF_CLOCK = frozenset({"now", "utcnow", "today"})


def of_body(tool: Declared) -> Iterator[Finding]:
    """Yield what is wrong with the code of a tool, and of its query."""
    if not tool.body:
        yield found("no-source", tool.place, tool.name, "its source could not be read: only its contract was checked")
    writes = Writes(tool.body)
    if tool.contract.is_read:
        yield from _of_read(tool, writes)
    else:
        yield from _of_write(tool, writes)
    yield from _of_query(tool)


def _of_read(tool: Declared, writes: Writes) -> Iterator[Finding]:
    for part in writes.parts:
        for send in writes.of(part):
            yield found("read-that-writes", part.place(send.call), tool.name, f"{shown(send)} in a read")


def _of_write(tool: Declared, writes: Writes) -> Iterator[Finding]:
    yield from _clients(tool, writes)
    yield from _several(tool, writes)
    yield from of_retries(tool, writes)
    for part in writes.parts:
        yield from of_handlers(tool, part, writes)
        yield from of_suppressions(tool, part, writes)
        yield from _made_anew(tool, part, writes)
        yield from _spans(tool, part)


def shown(send: Send) -> str:
    """Return a send as it is written, in short."""
    return f"{ast.unparse(send.call.func)}(...)"[-60:]


def _clients(tool: Declared, writes: Writes) -> Iterator[Finding]:
    """Whether the remote side gets the key: by the helper, or by hand."""
    if tool.key_argument is not None or any(_names_key(part.node) for part in writes.parts):
        return
    for part in writes.parts:
        for send in writes.of(part):
            if send.via is Via.RAW:
                sentence = f"{shown(send)} is sent by {send.library}, without the action's key"
                yield found("raw-client", part.place(send.call), tool.name, sentence)
            elif send.via is Via.SDK and tool.contract.remote is Remote.DEDUPES:
                yield found("key-not-sent", part.place(send.call), tool.name, f"{shown(send)} sends no key")


def _names_key(node: ast.AST) -> bool:
    """Whether a body takes the action's key into its own hands."""
    return any(
        (isinstance(one, ast.Attribute) and one.attr == "idempotency_key")
        or (isinstance(one, ast.Constant) and isinstance(one.value, str) and one.value.lower() == "idempotency-key")
        or (isinstance(one, ast.keyword) and one.arg == "idempotency_key")
        for one in ast.walk(node)
    )


def _several(tool: Declared, writes: Writes) -> Iterator[Finding]:
    if writes.parts and writes.longest(root := writes.parts[0]) >= MANY:
        calls = writes.sending(root)
        place = root.place(calls[1] if len(calls) > 1 else calls[0])
        yield found("several-writes", place, tool.name, "one run of its body may send more than one write")


def _made_anew(tool: Declared, part: Part, writes: Writes) -> Iterator[Finding]:
    """Keys and payloads that another attempt would make otherwise."""
    keyed = list(_keys(part.node))
    in_keys = {id(one) for value in keyed for one in ast.walk(value)}
    for value in keyed:
        if what := _is_made_anew(value, part):
            yield found("key-made-late", part.place(value), tool.name, f"the key is made by {what} in the body")
    for value in [value for send in writes.of(part) for value in _payload(send)]:
        inner = {id(one) for one in ast.walk(value)}
        if inner.isdisjoint(in_keys) and (what := _is_made_anew(value, part)):
            yield found("volatile-payload", part.place(value), tool.name, f"{what} is sent")


def _payload(send: Send) -> Iterator[ast.expr]:
    """Yield what is sent; headers are for those on the way."""
    for call in (send.call, *calls_in(send.call.func)):
        yield from call.args
        yield from (keyword.value for keyword in call.keywords if keyword.arg != "headers")


def _is_send(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in _VERBS


def _keys(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the values that are given as a key: in a header, or as an argument of an SDK."""
    for one in ast.walk(node):
        match one:
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str) and _KEY.fullmatch(key.value):
                        yield value
            case ast.keyword(arg=str(name), value=value) if _KEY.fullmatch(name):
                yield value
            case ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value=str(name)))]) if _KEY.fullmatch(name):
                yield one.value


def _is_made_anew(value: ast.expr, part: Part) -> str:
    """Return the call by which a value is another one each time, or an empty text."""
    for call in [call for one in _with_bindings(value, part.file, part.node) for call in calls_in(one)]:
        name = dotted(call.func, part.file)
        if library_of(name, _ANEW) and (not name.startswith("datetime") or last(name) in _OF_CLOCK):
            return f"{ast.unparse(call.func)}()"
    return ""


def _with_bindings(value: ast.expr, file: SourceFile, within: ast.AST) -> Iterator[ast.expr]:
    yield value
    for name in [one for one in ast.walk(value) if isinstance(one, ast.Name)]:
        yield from file.bound(name.id, within)


def _spans(tool: Declared, part: Part) -> Iterator[Finding]:
    """Clients, and single requests, that wait longer than the action."""
    limit = tool.contract.timeout_s
    for call in calls_in(part.node):
        base = call.func.value if isinstance(call.func, ast.Attribute) else None
        makers = list(made_by(base, part.file, part.node)) if base is not None else []
        for one in (call, *makers):
            if (seconds := _timeout(one)) is not None and seconds > limit and _is_client(one, part.file):
                sentence = f"the client waits {seconds:g} s, and the action {limit:g} s"
                yield found("client-outlasts-timeout", part.place(one), tool.name, sentence)


def _is_client(call: ast.Call, file: SourceFile) -> bool:
    """Whether a call makes a client, or a request; a lock or a queue may wait as it likes."""
    name = dotted(call.func, file)
    known = library_of(name, HTTP) or (name.startswith("settled.") and last(name) in ("client", "async_client"))
    return bool(known) or _is_send(call)


def _timeout(call: ast.Call) -> float | None:
    """Return the seconds in `timeout=30`, or in `timeout=httpx.Timeout(30)`."""
    given = next((keyword.value for keyword in call.keywords if keyword.arg == "timeout"), None)
    if isinstance(given, ast.Call) and last(ast.unparse(given.func)) == "Timeout" and given.args:
        given = given.args[0]
    if isinstance(given, ast.Constant) and isinstance(given.value, int | float) and not isinstance(given.value, bool):
        return float(given.value)
    return None


def _of_query(tool: Declared) -> Iterator[Finding]:
    asked = Writes(tool.query)
    for part in asked.parts:
        for send in asked.of(part):
            yield found("query-that-writes", part.place(send.call), tool.name, f"{shown(send)} in its query")
        for node in ast.walk(part.node):
            if isinstance(node, ast.ExceptHandler) or (isinstance(node, ast.If) and _tests_failure(node.test)):
                for absent in _absences(node.body):
                    sentence = "its query answers Absent() where the asking went wrong"
                    yield found("absent-on-error", part.place(absent), tool.name, sentence)


def _absences(statements: list[ast.stmt]) -> list[ast.Return]:
    nodes = [one for statement in statements for one in ast.walk(statement)]
    calls = [one for one in nodes if isinstance(one, ast.Return) and isinstance(one.value, ast.Call)]
    return [one for one in calls if last(ast.unparse(one.value.func)) == "Absent"]  # type: ignore[union-attr]


def _tests_failure(test: ast.expr) -> bool:
    """Whether a test asks if an answer was no success; that it is 404 is an answer."""
    return _FAILED.search(ast.unparse(test)) is not None
