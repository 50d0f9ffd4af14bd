"""The forms in which threads, runs and states travel: those that `langgraph_sdk` reads.

Pure. What cannot be written as JSON is written as text: a stream that breaks off for one odd value would lose the rest.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from langgraph.types import Interrupt, StateSnapshot
from pydantic_core import PydanticSerializationError, to_json

from settled.state.runs import ChatThread, Run


def text_of(value: object) -> str:
    """Return a value as JSON text; never raises."""
    try:
        return to_json(value, inf_nan_mode="strings", fallback=_named).decode()
    except (PydanticSerializationError, ValueError, RecursionError, UnicodeError):
        return json.dumps(f"a {type(value).__name__} that cannot be written as JSON")


def plain(value: object) -> Any:
    """Return a value as plain JSON values."""
    return json.loads(text_of(value))


def _named(value: object) -> str:
    return f"a {type(value).__name__}"


def thread_form(thread: ChatThread, state: StateSnapshot | None = None) -> dict[str, Any]:
    """Return a thread; with its values and interrupts where its state is given."""
    return {
        "thread_id": thread.thread_id,
        "created_at": thread.created_at.isoformat(),
        "updated_at": thread.updated_at.isoformat(),
        "metadata": {**({} if thread.title is None else {"title": thread.title}), **thread.metadata},
        "status": thread.status,
        "config": {},
        "values": None if state is None else plain(state.values),
        "interrupts": {} if state is None else _by_task(state),
    }


def run_form(run: Run) -> dict[str, Any]:
    """Return a run."""
    cancelled = None if run.cancel_asked_at is None else f"cancelled by {run.cancelled_by}"
    return {
        "run_id": run.run_id,
        "thread_id": run.thread_id,
        "assistant_id": run.agent,
        "created_at": run.created_at.isoformat(),
        "updated_at": run.updated_at.isoformat(),
        "status": run.status,
        "metadata": dict(run.metadata),
        "kwargs": {"input": {"messages": [run.request["message"]]} if run.request["message"] else None},
        "multitask_strategy": run.multitask_strategy,
        "cancel_reason": cancelled,
    }


def state_form(state: StateSnapshot, thread_id: str, *, subgraphs: bool = False) -> dict[str, Any]:
    """Return the state of a thread at one checkpoint. The thread's name is the client's, not the checkpointer's."""
    return {
        "values": plain(state.values),
        "next": list(state.next),
        "tasks": [_task_form(task, thread_id, subgraphs) for task in state.tasks],
        "interrupts": plain(state.interrupts),
        "checkpoint": _checkpoint(state.config, thread_id),
        "parent_checkpoint": _checkpoint(state.parent_config, thread_id) if state.parent_config else None,
        "metadata": plain({k: v for k, v in (state.metadata or {}).items() if k != "thread_id"}),
        "created_at": state.created_at,
        "checkpoint_id": state.config["configurable"].get("checkpoint_id"),
    }


def values_form(state: StateSnapshot) -> Any:
    """Return what a run leaves: the thread's values, and what waits for a person."""
    values = plain(state.values)
    if not state.interrupts:
        return values
    return {**(values if isinstance(values, dict) else {}), "__interrupt__": plain(state.interrupts)}


def interrupts_of(state: StateSnapshot) -> list[Interrupt]:
    """Return what a thread waits for."""
    return [interrupt for task in state.tasks for interrupt in task.interrupts]


def _by_task(state: StateSnapshot) -> dict[str, Any]:
    return {task.id: plain(task.interrupts) for task in state.tasks if task.interrupts}


def _task_form(task: Any, thread_id: str, subgraphs: bool) -> dict[str, Any]:
    inner = task.state if subgraphs and isinstance(task.state, StateSnapshot) else None
    return {
        "id": task.id,
        "name": task.name,
        "error": None if task.error is None else "this step has failed; the server's log says why",
        "interrupts": plain(task.interrupts),
        "checkpoint": None,
        "state": None if inner is None else state_form(inner, thread_id),
        "result": plain(task.result),
    }


def _checkpoint(config: Mapping[str, Any], thread_id: str) -> dict[str, Any]:
    named = config["configurable"]
    return {
        "thread_id": thread_id,
        "checkpoint_ns": named.get("checkpoint_ns", ""),
        "checkpoint_id": named.get("checkpoint_id"),
        "checkpoint_map": None,
    }


def selected(forms: Iterable[dict[str, Any]], names: Iterable[str] | None) -> list[dict[str, Any]]:
    """Return only the fields that were asked for."""
    wanted = None if names is None else set(names)
    return [{k: v for k, v in form.items() if wanted is None or k in wanted} for form in forms]
