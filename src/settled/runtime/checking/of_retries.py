"""Retries that the ledger does not know of: decorators, loops, and the clients of vendors and of HTTP."""

import ast
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

from settled.runtime.checking.calls import HTTP, calls_in, dotted, last, library_of, made_by
from settled.runtime.checking.catalogue import Finding, Place, found
from settled.runtime.checking.counting import Writes, is_retry
from settled.runtime.checking.declared import Declared
from settled.runtime.checking.files import SourceFile
from settled.runtime.checking.reach import Part

DECORATORS = ("tenacity", "backoff", "retrying", "stamina", "retry", "google.api_core.retry", "pyfailsafe", "opnieuw")
"""Libraries whose decorators, or loops, call again."""


def of_retries(tool: Declared, writes: Writes) -> Iterator[Finding]:
    """Yield the retries in what a write reaches, and in the clients that it uses."""
    for part in writes.parts:
        for node, sentence in _in_code(part, writes):
            yield found("retry-in-body", part.place(node), tool.name, sentence)
        for call in dict.fromkeys((*calls_in(part.node), *_clients(part))):
            for check, sentence in wrong_client(call, part.file):
                yield found(check, Place(part.file.path, call.lineno), tool.name, sentence)
        yield from _modules(tool, part, writes)


def _in_code(part: Part, writes: Writes) -> Iterator[tuple[ast.AST, str]]:
    sending = writes.sending(part)
    for function in (part.node, *part.nested.values()):
        for decorator in function.decorator_list:
            if name := retrying(decorator, part.file):
                yield decorator, f"@{name} calls it again"
    for call in calls_in(part.node):
        for made in made_by(call.func, part.file, part.node):
            if name := retrying(made, part.file):
                yield call, f"{name} calls what it is given again"
    for node in ast.walk(part.node):
        if isinstance(node, ast.For | ast.AsyncFor | ast.While) and is_retry(node, sending):
            yield node, "the loop sends again what was caught"
        elif isinstance(node, ast.For | ast.AsyncFor) and (name := retrying(node.iter, part.file)) and sending:
            yield node, f"{name} sends again"


def retrying(node: ast.expr, file: SourceFile) -> str:
    """Return the name of what calls again, if this does."""
    name = dotted(node.func if isinstance(node, ast.Call) else node, file)
    return name if library_of(name, DECORATORS) else ""


def _clients(part: Part) -> Iterator[ast.Call]:
    """Yield the calls that made the clients which a part names, wherever in its file."""
    for node in ast.walk(part.node):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            for made in made_by(node, part.file, part.node):
                yield from calls_in(made)


def wrong_client(call: ast.Call, file: SourceFile) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a client as it is made here."""
    name = _name_of(call, file)
    if _is_true(_keyword(call, "follow_redirects")):
        yield "follow-redirects", "the client follows redirects"
    if last(name) in ("HTTPTransport", "AsyncHTTPTransport") and _number(_keyword(call, "retries")) not in (None, 0):
        yield "transport-retries", f"{last(name)} connects again by itself"
    if name == "urllib3.PoolManager" and _number(_keyword(call, "retries")) not in (None, 0, False):
        yield "sdk-retries", "the pool sends again by itself: say retries=False"
    if last(name) in ("RetryTransport", "RetryClient"):
        yield "sdk-retries", f"{last(name)} sends again by itself"
    for library, (makers, are_off, how) in _RETRYING.items():
        if library_of(name, (library,)) and last(name) in makers and not are_off(call, file):
            yield "sdk-retries", f"{name} retries by itself: {how}"


def _name_of(call: ast.Call, file: SourceFile) -> str:
    """Return what a client is made by; what a session of boto3 makes is boto3's."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("client", "resource"):
        for made in made_by(call.func.value, file):
            if dotted(made.func, file) in ("boto3.Session", "boto3.session.Session"):
                return f"boto3.{call.func.attr}"
    return dotted(call.func, file)


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _is_true(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


def _number(value: ast.expr | None) -> object:
    """Return the number that is written; None where there is none, and the text of what is no number."""
    if value is None:
        return None
    return value.value if isinstance(value, ast.Constant) else ast.unparse(value)


def _zero(keyword: str) -> Callable[[ast.Call, SourceFile], bool]:
    return lambda call, _: _number(_keyword(call, keyword)) in (0, False) and _keyword(call, keyword) is not None


def _no_total(call: ast.Call, _: SourceFile) -> bool:
    total = _keyword(call, "total") or (call.args[0] if call.args else None)
    return total is not None and _number(total) in (0, False)


def _no_adapter(call: ast.Call, file: SourceFile) -> bool:
    """An adapter without `max_retries` sends once; one with a Retry is found by the Retry."""
    given = _keyword(call, "max_retries")
    if given is None or _number(given) == 0:
        return True
    return any(last(dotted(made.func, file)) == "Retry" for made in made_by(given, file))


def _boto_config(call: ast.Call, file: SourceFile) -> bool:
    """`config=Config(retries={"total_max_attempts": 1})`, here or where the name is bound."""
    config = _keyword(call, "config")
    for made in made_by(config, file, None) if config is not None else ():
        match _keyword(made, "retries"):
            case ast.Dict(keys=keys, values=values):
                pairs = [(ast.unparse(key), _number(n)) for key, n in zip(keys, values, strict=True) if key is not None]
                return ("'total_max_attempts'", 1) in pairs or ("'max_attempts'", 0) in pairs
    return False


_MODELS = ("OpenAI", "AsyncOpenAI", "AzureOpenAI", "AsyncAzureOpenAI", "Anthropic", "AsyncAnthropic")
_Off = Callable[[ast.Call, SourceFile], bool]

_RETRYING: Mapping[str, tuple[tuple[str, ...], _Off, str]] = {
    "stripe": (("StripeClient",), _zero("max_network_retries"), "say max_network_retries=0"),
    "boto3": (("client", "resource"), _boto_config, 'say config=Config(retries={"total_max_attempts": 1})'),
    "openai": (_MODELS, _zero("max_retries"), "say max_retries=0"),
    "anthropic": (_MODELS, _zero("max_retries"), "say max_retries=0"),
    "urllib3": (("Retry",), _no_total, "say Retry(0), or leave it out"),
    "requests.packages": (("Retry",), _no_total, "say Retry(0), or leave it out"),
    "requests": (("HTTPAdapter",), _no_adapter, "leave max_retries out"),
    "google.api_core": (("Retry", "AsyncRetry"), lambda call, file: False, "say retry=None at the call"),
}
"""By library: what makes a client, whether its retries are off, and how to turn them off."""


def _modules(tool: Declared, part: Part, writes: Writes) -> Iterator[Finding]:
    """Retries that are a setting of a module or of a single call."""
    for send in writes.of(part):
        name = dotted(send.call.func, part.file)
        if send.library == "stripe" and library_of(name, ("stripe",)) and not _stripe_is_off(send.call, part.file):
            sentence = f"{name} retries by itself: say stripe.max_network_retries = 0"
            yield found("sdk-retries", part.place(send.call), tool.name, sentence)
        if send.library == "google" and not _is_none(_keyword(send.call, "retry")):
            sentence = "clients of google.cloud retry by themselves: say retry=None at the call"
            yield found("sdk-retries", part.place(send.call), tool.name, sentence)
        if _number(_keyword(send.call, "num_retries")) not in (None, 0):
            sentence = "num_retries= sends again by itself: leave it out"
            yield found("sdk-retries", part.place(send.call), tool.name, sentence)
    if any(send.library in HTTP for send in writes.of(part)):
        yield from _adapters(tool, part)


def _stripe_is_off(call: ast.Call, file: SourceFile) -> bool:
    settings = [node for node in ast.walk(file.tree) if isinstance(node, ast.Assign)]
    off = (
        isinstance(target, ast.Attribute)
        and dotted(target, file) == "stripe.max_network_retries"
        and _number(node.value) == 0
        for node in settings
        for target in node.targets
    )
    return any(off) or _number(_keyword(call, "max_network_retries")) == 0


def _is_none(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _adapters(tool: Declared, part: Part) -> Iterator[Finding]:
    """Adapters are mounted on a session by a statement of their own, so the whole file is looked at."""
    for call in _mounted(part.file):
        for check, sentence in wrong_client(call, part.file):
            yield found(check, Place(part.file.path, call.lineno), tool.name, sentence)


@lru_cache(maxsize=256)
def _mounted(file: SourceFile) -> tuple[ast.Call, ...]:
    return tuple(call for call in calls_in(file.tree) if last(dotted(call.func, file)) in ("HTTPAdapter", "Retry"))
