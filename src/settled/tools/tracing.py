"""Spans of what the library does, for hosts that have OpenTelemetry.

    execute_tool refund            one call of a tool, in whatever trace its caller is
    ├── attempt refund             each call of the body
    ├── query refund               each question to the remote side
    └── wait for approval refund   from the planning to the claim of what a person was asked about

The context of the first call is stored with its action, and attempts and queries are children of that one, whoever
makes them: so one trace spans restarts, and a later call that meets the action has a link to it. OpenTelemetry is no
dependency, and nothing is imported here: where nobody has loaded it there is nobody to tell.

The subtle thing: a call that waits for a person, or whose caller stopped, is no error.
"""

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

from settled.state.model import Action
from settled.tools.effects import Inconclusive
from settled.tools.outcome import Refused, Unknown

T = TypeVar("T")

SCOPE = "settled"
TRACEPARENT = "traceparent"
"""The header of W3C Trace Context, in whose form a context is stored."""


class Span:
    """A span that is under way, or none where nobody listens."""

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def ended(self, end: T) -> T:
        """Note how an attempt or a query ended, and return it."""
        if self._span is not None:
            self._span.set_attribute("settled.outcome", type(end).__name__.lower())
            if isinstance(end, Refused | Unknown | Inconclusive):
                self._span.set_status(_api().StatusCode.ERROR, end.reason)
        return end


@contextmanager
def execution(tool: str) -> Generator[None]:
    """One call of a tool. (Named as OpenTelemetry's conventions for generative AI name it.)"""
    with _span(f"execute_tool {tool}", {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool}):
        yield


@contextmanager
def attempt(action: Action) -> Generator[Span]:
    """One call of a body, within the action's own trace."""
    if action.attempt == 1 and action.asking is not None and action.started_at is not None:
        _waited(action, action.started_at)
    named = {**_named(action), "settled.attempt": action.attempt}
    with _span(f"attempt {action.tool}", named, parent=action.trace_context, to_remote=True) as span:
        yield span


@contextmanager
def query(action: Action) -> Generator[Span]:
    """One question to the remote side, within the action's own trace."""
    named = {**_named(action), "settled.queries": action.queries}
    with _span(f"query {action.tool}", named, parent=action.trace_context, to_remote=True) as span:
        yield span


def current() -> str | None:
    """Return the context of the current span, to be stored with an action; None where there is none."""
    if not _is_here():
        return None
    carrier: dict[str, str] = {}
    _propagator().inject(carrier)
    return carrier.get(TRACEPARENT)


def met(action: Action, code: str) -> None:
    """Note on the current execution which action it is about, with a link where that one has a trace of its own."""
    if not _is_here():
        return
    span = _api().get_current_span()
    span.set_attributes({**_named(action), "settled.state": str(action.state), "settled.code": code})
    own = _context_of(action.trace_context)
    if own is not None and own.trace_id != span.get_span_context().trace_id:
        span.add_link(own, {"settled.action_id": action.id})


def _waited(action: Action, until: datetime) -> None:
    if not _is_here():
        return
    name, context = f"wait for approval {action.tool}", _extracted(action.trace_context)
    began, ended = (int(at.timestamp() * 1e9) for at in (action.planned_at, until))
    named = {**_named(action), "settled.approver": action.approver or ""}
    _tracer().start_span(name, context=context, attributes=named, start_time=began).end(ended)


@contextmanager
def _span(
    name: str, attributes: Mapping[str, Any], *, parent: str | None = None, to_remote: bool = False
) -> Generator[Span]:
    if not _is_here():
        yield Span()
        return
    kind = _api().SpanKind.CLIENT if to_remote else _api().SpanKind.INTERNAL
    how: dict[str, Any] = {"kind": kind, "record_exception": False, "set_status_on_exception": False}
    with _tracer().start_as_current_span(name, context=_extracted(parent), attributes=attributes, **how) as span:
        yield Span(span)


def _named(action: Action) -> dict[str, Any]:
    return {"settled.action_id": action.id, "settled.tenant": action.tenant, "settled.thread_id": action.thread_id}


def _is_here() -> bool:
    return "opentelemetry.trace" in sys.modules


def _api() -> Any:
    return sys.modules["opentelemetry.trace"]


def _tracer() -> Any:
    return _api().get_tracer(SCOPE)


def _propagator() -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()


def _extracted(parent: str | None) -> Any:
    """Return the context that a span is a child of; None: the current one."""
    return None if parent is None else _propagator().extract({TRACEPARENT: parent})


def _context_of(stored: str | None) -> Any:
    return None if stored is None else _api().get_current_span(_extracted(stored)).get_span_context()
