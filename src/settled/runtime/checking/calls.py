"""What a call is: which library it belongs to, and whether it sends a write.

The live object decides where there is one; else the file's own imports and bindings. What is not recognised is taken
for harmless, except a `.post(...)` or `.patch(...)`, which only clients of HTTP have: then it is a send of whom nobody
knows whether it is guarded.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from settled.runtime.checking.files import Function, SourceFile
from settled.runtime.checking.reach import MISSING, Part

HTTP = ("httpx2", "httpx", "requests", "aiohttp", "urllib3", "http.client", "urllib.request")
"""Libraries whose requests carry no key and end in no outcome, unless a client of the first two is guarded."""

SDKS = (
    "stripe", "boto3", "botocore", "aioboto3", "google", "googleapiclient", "azure", "twilio", "sendgrid", "slack_sdk",
    "smtplib", "aiosmtplib", "paypalrestsdk", "braintree", "square", "Adyen", "mollie", "shopify", "hubspot", "github",
    "jira", "simple_salesforce", "mailchimp_marketing", "postmarker", "pyairtable", "notion_client", "openai",
    "anthropic",
)  # fmt: skip
"""Clients of vendors, which send under names of their own."""

_ANSWER_ONLY = ("openai", "anthropic")
"""Their calls make texts, and no effect outside."""

_WRITES = frozenset({"post", "put", "patch", "delete"})
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_ONLY_HTTP = frozenset({"post", "patch"})
_ACTS = frozenset({
    "create", "send", "put", "post", "delete", "update", "insert", "patch", "upload", "publish", "invoke", "run",
    "cancel", "refund", "capture", "transfer", "pay", "submit", "add", "remove", "set", "modify", "write", "push",
    "copy", "terminate", "confirm", "void", "authorize", "issue", "sendmail", "approve", "merge", "finalize",
    "register", "subscribe", "enqueue", "notify", "sale", "move", "archive", "release", "dispatch", "trigger",
})  # fmt: skip
_ASKS = frozenset({
    "get", "list", "describe", "retrieve", "head", "search", "query", "fetch", "read", "find", "count", "generate",
})  # fmt: skip
"""Words in the names of a vendor's calls: what acts, and what only asks if it stands first."""

_FINISHERS = frozenset({"execute", "result", "json", "data"})


class Via(StrEnum):
    """By what a write is sent."""

    GUARDED = "guarded"
    RAW = "raw"
    SDK = "sdk"
    SOMEBODY = "somebody"


@dataclass(frozen=True, eq=False)
class Send:
    """A call that sends a write: `library` is empty where nobody knows it."""

    call: ast.Call
    via: Via
    library: str


@dataclass(frozen=True)
class Kind:
    """What an object is that something is called on."""

    via: Via
    library: str = ""


UNKNOWN = Kind(Via.SOMEBODY)


@dataclass(frozen=True)
class Sight:
    """From where a call is seen: a function of a file, and its live part, where there is one."""

    file: SourceFile
    function: Function
    part: Part | None


def calls_in(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls in a node, outer ones before those inside them."""
    return (one for one in ast.walk(node) if isinstance(one, ast.Call))


def dotted(expr: ast.expr, file: SourceFile) -> str:
    """Return a name as its import spells it (`Refund.create` → `stripe.Refund.create`); empty where it is no name."""
    match expr:
        case ast.Name(id=name):
            return file.imports.get(name, name)
        case ast.Attribute(value=value, attr=attr):
            base = dotted(value, file)
            return f"{base}.{attr}" if base else ""
    return ""


def last(name: str) -> str:
    """Return the last part of a dotted name."""
    return name.rpartition(".")[2]


def made_by(expr: ast.expr, file: SourceFile, within: ast.AST | None = None, depth: int = 4) -> Iterator[ast.Call]:
    """Yield the calls that may have made the value of an expression of the function `within`."""
    match expr:
        case ast.Call():
            yield expr
        case ast.Await(value=value):
            yield from made_by(value, file, within, depth)
        case ast.Name(id=name) | ast.Attribute(attr=name) if depth:
            key = name if isinstance(expr, ast.Name) else f".{name}"
            for value in file.bound(key, within):
                yield from made_by(value, file, within, depth - 1)


def library_of(name: str, known: tuple[str, ...]) -> str:
    """Return which of the known libraries a dotted name belongs to, or an empty text."""
    return next((one for one in known if name == one or name.startswith(f"{one}.")), "")


def sends(function: Function, file: SourceFile, part: Part | None = None) -> list[Send]:
    """Return the writes that are sent in a function; of a chain of calls, the last one stands for all."""
    seen = Sight(file, function, part)
    found: list[Send] = []
    inner: set[int] = set()
    for call in calls_in(function):
        if id(call) not in inner and (send := _send(call, seen)) is not None:
            found.append(send)
            inner |= {id(one) for one in calls_in(call.func)}
    return found


def _send(call: ast.Call, at: Sight) -> Send | None:
    if at.part is not None and call.func in at.part.targets:
        return None  # a function of the user's own, which is read itself
    name = dotted(call.func, at.file)
    if name == "urllib.request.urlopen":
        return Send(call, Via.RAW, "urllib.request") if _carries_data(call, at) else None
    if (passed := _passed_on(call, at)) is not None:
        return passed
    if not isinstance(call.func, ast.Attribute):
        return _bare(call, name)
    kind = _kind_of(call.func.value, at)
    if kind.via is Via.SDK:
        return Send(call, Via.SDK, kind.library) if _acts(call, kind.library) else None
    return Send(call, kind.via, kind.library) if _is_write(call, call.func.attr, kind) else None


def _bare(call: ast.Call, name: str) -> Send | None:
    """A function of a library that was imported by its name: `from requests import post`."""
    if (library := library_of(name, HTTP)) and _is_write(call, last(name), Kind(Via.RAW, library)):
        return Send(call, Via.RAW, library)
    return None


def _passed_on(call: ast.Call, at: Sight) -> Send | None:
    """A send that another call is to make: `asyncio.to_thread(shop.post, ...)`."""
    for given in call.args:
        if isinstance(given, ast.Attribute) and given.attr in _WRITES:
            kind = _kind_of(given.value, at)
            if kind.via in (Via.GUARDED, Via.RAW):
                return Send(call, kind.via, kind.library)
    return None


def _is_write(call: ast.Call, verb: str, kind: Kind) -> bool:
    if verb in _WRITES:
        return kind.library != "" or kind.via is Via.GUARDED or (verb in _ONLY_HTTP and bool(call.args))
    if verb not in ("request", "stream", "urlopen") or (kind.via is Via.SOMEBODY and verb != "request"):
        return False
    said = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "method"), None)
    if isinstance(said, ast.Constant) and isinstance(said.value, str):
        return said.value.upper() not in _READS
    return said is not None and kind.via is not Via.SOMEBODY


def _carries_data(call: ast.Call, at: Sight) -> bool:
    """Whether `urlopen` sends something: with data it is a POST."""
    request = [one for given in call.args[:1] for one in made_by(given, at.file, at.function)]
    return any(k.arg == "data" for one in (call, *request) for k in one.keywords) or len(call.args) > 1


def _acts(call: ast.Call, library: str) -> bool:
    """Whether a call of a vendor's client does something, as the last verb of its chain says."""
    verbs = [verb for verb in _verbs(call.func) if verb not in _FINISHERS]
    if library in _ANSWER_ONLY or not verbs:
        return False
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+", verbs[0])]
    return bool(words) and words[0] not in _ASKS and not verbs[0][0].isupper() and not _ACTS.isdisjoint(words)


def _verbs(expr: ast.expr) -> list[str]:
    """Return what is called in a chain, the last first."""
    match expr:
        case ast.Attribute(value=value, attr=attr):
            return [attr, *_verbs(value)]
        case ast.Call(func=function):
            return _verbs(function)
    return []


def _kind_of(base: ast.expr, at: Sight) -> Kind:
    value = MISSING if at.part is None else at.part.value(base)
    if value is not MISSING and value is not None:
        return _of_value(value)
    if _is_guarded_later(base, at.file):
        return Kind(Via.GUARDED)
    kinds = [_made(call, at) for call in made_by(base, at.file, at.function)]
    known = sorted((kind for kind in kinds if kind is not UNKNOWN), key=lambda kind: kind.via)
    return known[0] if known else _of_name(dotted(root_of(base), at.file))


def root_of(expr: ast.expr) -> ast.expr:
    """Return what a chain of calls and attributes begins with."""
    while isinstance(expr, ast.Call | ast.Attribute | ast.Subscript | ast.Await):
        expr = expr.func if isinstance(expr, ast.Call) else expr.value
    return expr


def _of_value(value: object) -> Kind:
    if getattr(value, "_settled_guarded", False):
        return Kind(Via.GUARDED)
    module = getattr(value, "__name__", "") if type(value).__name__ == "module" else type(value).__module__
    if isinstance(value, type):
        module = value.__module__
    return _of_name(module)


def _of_name(name: str) -> Kind:
    if library := library_of(name, HTTP):
        return Kind(Via.RAW, library)
    if library := library_of(name, SDKS):
        return Kind(Via.SDK, library)
    return UNKNOWN


def _made(call: ast.Call, at: Sight, depth: int = 3) -> Kind:
    """What a call makes: a client of ours, or of a library; the clients of a client are of the same one."""
    name = dotted(call.func, at.file)
    if is_ours(name):
        return Kind(Via.GUARDED)
    if (kind := _of_name(name)) is not UNKNOWN:
        return kind
    inner = [one for one in made_by(root_of(call.func), at.file, at.function) if one is not call and depth]
    kinds = [_made(one, at, depth - 1) for one in inner[:4]]
    return next((kind for kind in kinds if kind.via is Via.SDK), UNKNOWN)


def is_ours(name: str) -> bool:
    """Whether a dotted name is what makes a client safe."""
    return name.startswith("settled.") and last(name) in ("client", "async_client", "guard")


def _is_guarded_later(base: ast.expr, file: SourceFile) -> bool:
    return isinstance(base, ast.Name | ast.Attribute) and ast.unparse(base) in _guarded_names(file)


@lru_cache(maxsize=256)
def _guarded_names(file: SourceFile) -> frozenset[str]:
    """What `guard(client)` is called on: it changes the client that it is given, so it may stand by itself."""
    guards = [call for call in calls_in(file.tree) if call.args and is_ours(dotted(call.func, file))]
    return frozenset(ast.unparse(call.args[0]) for call in guards if isinstance(call.args[0], ast.Name | ast.Attribute))
