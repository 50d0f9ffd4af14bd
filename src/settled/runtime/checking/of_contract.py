"""What a contract says about itself: its key, its arguments, its spans, and whether anybody can be asked.

Facts come from the live `Contract`; the source only tells on which line an argument stands.
"""

import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from settled.runtime.checking.catalogue import Finding, found
from settled.runtime.checking.declared import Declared
from settled.state.canonical import Incidental, Ordered, Precision, marked
from settled.state.markers import is_union, unwrap
from settled.tools.arguments import REPEAT_OF
from settled.tools.contract import Contract, Remote, Risk

_VOLATILE = re.compile(
    r"(client_|request_|req_|retry_|correlation_|trace_|span_|tool_call_)(id|uuid|guid|token|key|ref)"
    r"|idempotency_?key|uuid\d?|guid|nonce|salt|rand(om)?(_\w+)?|(\w+_)?(timestamp|epoch|ts|now)"
    r"|(current|request|call|send|submission|execution|client)_(time|date)"
    r"|(created|updated|sent|requested|submitted|called|issued)_(at|on)|attempts?|attempt_(no|number|id)|retr(y|ies)"
    r"|retry_count"
)
_TEXTY = re.compile(
    r"(\w+_)?(notes?|memo|reasons?|comments?|remarks?|message|description|summary|explanation|justification|details?"
    r"|body|text|content|subject|title|caption|feedback|question|instructions?|purpose)"
)
_MONEY = re.compile(
    r"(\w+_)?(amount|price|total|subtotal|fee|cost|balance|refund|payment|sum|tax|tip|discount)s?(_\w+)?"
)
_EMPTY = (list, dict, set, tuple, str)
"""Default factories that make the same value each time."""

_MARGIN_S = 1.0
"""What a timeout needs to be recorded, on a busy machine."""
_LONG_LEASE_S = 60.0
"""A person who waits notices it."""


def of_contract(tool: Declared) -> Iterator[Finding]:
    """Yield what is wrong with the declaration of a write."""
    if tool.contract.is_read:
        return
    yield from _fields(tool)
    yield from _asking(tool)
    yield from _spans(tool)


def _fields(tool: Declared) -> Iterator[Finding]:
    c = tool.contract
    for name, info in c.schema.model_fields.items():
        if name == REPEAT_OF or marked(c.annotations[name], Incidental):
            continue
        in_key = name in c.identity or name in c.unique
        for check, sentence in (
            *_volatile(name, info, in_key),
            *_free_text(c, name, info, in_key),
            *_number(name, c.annotations[name], in_key),
            *_untyped(name, c.annotations[name]),
            *_order(name, c.annotations[name]),
        ):
            yield found(check, tool.at(name), tool.name, sentence)


_Said = Iterator[tuple[str, str]]


def _volatile(name: str, info: FieldInfo, in_key: bool) -> _Said:
    made = info.default_factory is not None and info.default_factory not in _EMPTY
    if made or _VOLATILE.fullmatch(name.lower()):
        why = "is made anew for each call" if made else "is by its name new on each call"
        if in_key:
            yield "volatile-key", f"{name} is part of the key, and {why}"
        else:
            yield "volatile-argument", f"{name} is part of the fingerprint, and {why}"


def _free_text(c: Contract, name: str, info: FieldInfo, in_key: bool) -> _Said:
    if not _is_text(info.annotation) or c.risk is not Risk.NON_IDEMPOTENT_WRITE:
        return  # to write the same page in other words is what an idempotent write may do
    texty = _TEXTY.fullmatch(name.lower()) is not None and not _is_constrained(info)
    if in_key and texty:
        yield "free-text-key", f"the text {name} is part of the key"
    elif not in_key and (texty or (info.annotation is str and not info.metadata)):
        yield "free-text-argument", f"the text {name} is part of the fingerprint"


def _is_text(annotation: object) -> bool:
    core, _ = unwrap(annotation)
    return core is str or (is_union(core) and set(typing.get_args(core)) <= {str, type(None)})


def _is_constrained(info: FieldInfo) -> bool:
    """Whether a text is one of few, or of a fixed form; a mere length leaves its wording free."""
    return any(
        getattr(one, "pattern", None) or type(one).__name__.endswith(("Validator", "StringConstraints"))
        for one in info.metadata
    )


def _number(name: str, hint: Any, in_key: bool) -> _Said:
    if in_key and _is_float(hint):
        yield "float-key", f"{name} is a float, and part of the key"
        return
    for path, inner in _nested(name, hint):
        if _MONEY.fullmatch(path.rpartition(".")[2].lower()) and any(_is_float(one) for one in _elements(inner)):
            yield "float-money", f"{path} is money in a float"
            return


def _is_float(hint: Any) -> bool:
    return any(core is float for core in _branches(hint)) and not marked(hint, Precision)


def _elements(hint: Any) -> Iterator[Any]:
    """Yield a hint, and those of what it holds: of a list of floats, the float."""
    yield hint
    for core in _branches(hint):
        yield from typing.get_args(core)


def _nested(name: str, hint: Any, depth: int = 4) -> Iterator[tuple[str, Any]]:
    """Yield a field, and the fields of the models in it, by path."""
    yield name, hint
    models = [core for core in _inside(hint, depth=2) if isinstance(core, type) and issubclass(core, BaseModel)]
    for model in models if depth else ():
        for field, info in model.model_fields.items():
            yield from _nested(f"{name}.{field}", _hint_of(info), depth - 1)


def _hint_of(info: FieldInfo) -> Any:
    return typing.Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation


def _untyped(name: str, hint: Any) -> _Said:
    if what := next((_untyped_part(core) for core in _inside(hint) if _untyped_part(core)), None):
        yield "untyped-argument", f"{name} is {what}: what is in it is not validated"


def _untyped_part(core: object) -> str:
    if core is Any or core is object:
        return "of any type"
    if core in (dict, list, set, tuple, Mapping, Sequence):
        return f"a bare {getattr(core, '__name__', core)}"
    return ""


def _order(name: str, hint: Any) -> _Said:
    if any(core is list or typing.get_origin(core) in (list, Sequence) for core in _inside(hint, stop=Ordered)):
        yield "unsaid-order", f"{name} is a list, and does not say whether its order matters"


def _branches(hint: Any) -> Iterator[Any]:
    """Yield what a hint may be: itself, or the members of its union."""
    core, _ = unwrap(hint)
    if is_union(core):
        for branch in typing.get_args(core):
            yield from _branches(branch)
    else:
        yield core


def _inside(hint: Any, stop: type[Ordered] | None = None, depth: int = 6) -> Iterator[Any]:
    """Yield every type in a hint, those inside of containers and models too; not what carries the marker `stop`."""
    if depth == 0 or (stop is not None and marked(hint, stop)):
        return
    for core in _branches(hint):
        yield core
        if isinstance(core, type) and issubclass(core, BaseModel):
            for info in core.model_fields.values():
                yield from _inside(_hint_of(info), stop, depth - 1)
        for argument in typing.get_args(core):
            if argument is not Ellipsis:
                yield from _inside(argument, stop, depth - 1)


def _asking(tool: Declared) -> Iterator[Finding]:
    c = tool.contract
    if c.risk is not Risk.NON_IDEMPOTENT_WRITE or c.query is not None:
        return
    if c.remote is Remote.OPAQUE and "remote" in tool.written:
        yield found("opaque-remote", tool.at("remote"), tool.name, "nobody can ask what became of a lost reply")
    else:
        yield found("no-query", tool.place, tool.name, "after a timeout nobody asks what became of the call")


def _spans(tool: Declared) -> Iterator[Finding]:
    c = tool.contract
    wait_s = c.backoff.first
    for wrong, check, field, sentence in (
        (c.lease_s - c.timeout_s < _MARGIN_S, "thin-lease", "lease",
         f"the lease ({c.lease_s:g} s) ends just after the timeout ({c.timeout_s:g} s)"),
        (c.lease_s > max(_LONG_LEASE_S, 2 * c.deadline_s), "long-lease", "lease",
         f"after a crash nobody touches the action for {c.lease_s:g} s, and its deadline is {c.deadline_s:g} s"),
        (c.max_attempts > 1 and c.deadline_s < c.timeout_s + wait_s, "no-room-to-retry", "deadline",
         f"no second attempt fits: timeout {c.timeout_s:g} s, wait {wait_s:g} s, deadline {c.deadline_s:g} s"),
        (c.settle_window_s - c.timeout_s < _MARGIN_S, "thin-settle-window", "settle_window",
         f"a request that is still under way counts as absent {c.settle_window_s:g} s after it began"),
    ):  # fmt: skip
        if wrong:
            yield found(check, tool.at(field), tool.name, sentence)
