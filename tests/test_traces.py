"""One trace for an action, whoever carries it on: the context is stored with it, and a pause is no error."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from acts import Door, Remote, both_doors, opened
from scripted import ScriptedModel, call
from settled import (
    Approve,
    Code,
    Desk,
    Ended,
    Ledger,
    Rejected,
    Session,
    action,
    always,
    build_agent,
    open_checkpointer,
)
from settled.tools.contract import ActionTool


@pytest.fixture(scope="module")
def exporter() -> Iterator[InMemorySpanExporter]:
    """The API keeps a provider for ever once it is set; other tests of this process are traced by nobody."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "_TRACER_PROVIDER", provider)
        yield exporter


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> "Spans":
    exporter.clear()
    return Spans(exporter)


class Spans:
    """What was traced, in the order of its ends."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def named(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.all() if span.name == name]
        return found

    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.all()]


def refund_at(remote: Remote, **contract: Any) -> ActionTool:
    @action(risk="non_idempotent_write", remote="dedupes", identity=("order",), query=remote.find, **contract)
    def refund(order: str) -> object:
        return remote.do(order=order)

    return refund


@both_doors
async def test_an_attempt_is_a_child_of_its_call(door: Door, ledger: Ledger, spans: Spans) -> None:
    """A call is a span in its caller's trace, and the body's own spans are within the attempt."""
    tracer = trace.get_tracer("host")
    remote = Remote()

    @action(risk="non_idempotent_write", remote="dedupes", identity=("order",), query=remote.find)
    def refund(order: str) -> object:
        with tracer.start_as_current_span("POST /refunds"):
            return remote.do(order=order)

    with tracer.start_as_current_span("request") as request:
        outcome = await door(refund, ["A-1"], ledger=ledger)
    call, attempt, post = (
        spans.named("execute_tool refund"),
        spans.named("attempt refund"),
        spans.named("POST /refunds"),
    )
    assert call.parent is not None
    assert call.parent.span_id == request.get_span_context().span_id
    assert attempt.parent is not None
    assert attempt.parent.span_id == call.get_span_context().span_id
    assert post.parent is not None
    assert post.parent.span_id == attempt.get_span_context().span_id
    assert attempt.attributes is not None
    assert attempt.attributes["settled.action_id"] == outcome.action_id
    assert attempt.attributes["settled.outcome"] == "succeeded"
    assert call.attributes is not None
    assert call.attributes["settled.code"] == "succeeded"
    action_row = ledger.action(str(outcome.action_id))
    assert action_row.trace_context is not None
    assert f"{call.get_span_context().span_id:016x}" in action_row.trace_context
    assert {event.trace_context for event in ledger.timeline(action_row.id)} == {action_row.trace_context}


@both_doors
async def test_a_lost_reply_and_its_query_are_one_trace(door: Door, ledger: Ledger, spans: Spans) -> None:
    """The attempt that was lost is marked, the query that found it is not, and the call itself is well."""
    remote = Remote()

    @action(risk="non_idempotent_write", remote="dedupes", identity=("order",), query=remote.find)
    def refund(order: str) -> object:
        remote.do(order=order)
        raise ConnectionResetError

    await door(refund, ["A-1"], ledger=ledger)
    attempt, query, call = (spans.named(f"{word} refund") for word in ("attempt", "query", "execute_tool"))
    assert len({span.get_span_context().trace_id for span in (attempt, query, call)}) == 1
    assert attempt.status.status_code is StatusCode.ERROR
    assert query.status.status_code is StatusCode.UNSET
    assert call.status.status_code is StatusCode.UNSET
    assert query.attributes is not None
    assert query.attributes["settled.outcome"] == "found"


@both_doors
async def test_a_pause_is_no_error_and_a_restart_joins_its_trace(door: Door, database_url: str, spans: Spans) -> None:
    """The call that waits ends well; the one that carries on, in another trace, has the attempt in the first one."""
    remote = Remote()
    refund = refund_at(remote, approval=always)
    with opened(database_url) as ledger:
        waiting = await door(refund, ["A-1"], ledger=ledger)
        await ledger.aclose()
    assert waiting.code is Code.WAITING_FOR_APPROVAL
    first = spans.named("execute_tool refund")
    assert first.status.status_code is StatusCode.UNSET
    assert not first.events
    with opened(database_url) as ledger:
        shown = Desk(ledger).approval(str(waiting.action_id)).fingerprint
        Desk(ledger).decide(str(waiting.action_id), Approve(), by="maria", fingerprint=shown)
        done = await door(refund, ["A-1"], ledger=ledger)
        await ledger.aclose()
    assert done.receipt == "RF-1"
    wait, attempt = spans.named("wait for approval refund"), spans.named("attempt refund")
    second = spans.all()[-1]
    assert {wait.get_span_context().trace_id, attempt.get_span_context().trace_id} == {
        first.get_span_context().trace_id
    }
    assert wait.start_time is not None
    assert wait.end_time is not None
    assert wait.end_time > wait.start_time
    assert second.name == "execute_tool refund"
    assert second.get_span_context().trace_id != first.get_span_context().trace_id
    assert [link.context.span_id for link in second.links] == [first.get_span_context().span_id]


async def test_a_business_no_is_an_answer(ledger: Ledger, spans: Spans) -> None:
    """What the remote side declines is no fault of anything that is traced."""
    from settled import aperform

    @action(risk="non_idempotent_write", remote="opaque", identity=("order",))
    def refund(order: str) -> object:
        raise Ended(Rejected("it was refunded already"))

    await aperform(refund, ["A-1"], ledger=ledger, thread_id="t")
    attempt = spans.named("attempt refund")
    assert attempt.status.status_code is StatusCode.UNSET
    assert attempt.attributes is not None
    assert attempt.attributes["settled.outcome"] == "rejected"


def test_an_agents_call_is_in_the_trace_of_its_run(ledger: Ledger, spans: Spans) -> None:
    """Through the engine as through `perform`; the interrupt of a call that waits is no error of any span."""
    remote = Remote()
    refund = refund_at(remote, approval=always)

    def script(messages: Sequence[BaseMessage], _: bool) -> AIMessage:
        if isinstance(messages[-1], HumanMessage):
            return AIMessage("", tool_calls=[call("refund", order="A-1")], id="ai-1")
        return AIMessage("It is done.")

    with open_checkpointer(ledger) as saver:
        agent = build_agent(ScriptedModel(script=script), [refund], ledger=ledger, checkpointer=saver)
        session = Session(agent, ledger=ledger, thread_id="chat-1")
        with trace.get_tracer("host").start_as_current_span("turn") as turn:
            (asked,) = session.send("Please refund A-1.").approvals
        session.decide(asked["action_id"], Approve(), by="maria", fingerprint=asked["fingerprint"])
    attempt = spans.named("attempt refund")
    assert attempt.get_span_context().trace_id == turn.get_span_context().trace_id
    assert {span.status.status_code for span in spans.all() if span.name != "turn"} == {StatusCode.UNSET}
    assert len(remote.effects) == 1


def test_where_nobody_listens_nothing_is_stored(database_url: str) -> None:
    """A host without a tracer provider pays no column and no event for it."""
    code = f"""
from settled import Ledger, action, perform

@action(risk="non_idempotent_write", remote="opaque", identity=("order",))
def refund(order: str) -> object:
    return None

with Ledger.connect({database_url!r}) as ledger:
    outcome = perform(refund, ["A-1"], ledger=ledger, thread_id="t")
    print(outcome.code, ledger.action(outcome.action_id).trace_context)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout.strip() == "succeeded None"
