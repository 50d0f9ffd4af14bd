"""A module of tools and agents, as a user gives one to `settled worker`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from settled import Ledger, action, always


@action(risk="non_idempotent_write", remote="opaque", identity=("order",), approval=always(ttl=timedelta(seconds=0.1)))
def short(order: int) -> dict[str, int]:
    """Ask, for a moment only."""
    return {"order": order}


@action(risk="non_idempotent_write", remote="opaque", identity=("order",), window=timedelta(seconds=1))
def note(order: int) -> dict[str, int]:
    """Note an order."""
    return {"order": order}


@action(risk="non_idempotent_write", remote="opaque", identity=("order",), approval=always)
def pay(order: int) -> dict[str, str]:
    """Pay an order."""
    return {"receipt": f"R-{order}"}


def model() -> Any:
    """Return a model that pays once, and then says so."""
    from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

    from scripted import ScriptedModel, call, calling

    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        return calling(call("pay", order=1)) if isinstance(messages[-1], HumanMessage) else AIMessage(content="paid")

    return ScriptedModel(script=script)


@contextmanager
def agents(ledger: Ledger) -> Iterator[dict[str, Any]]:
    """The agents of this application, for as long as a worker runs."""
    from settled import build_agent, open_checkpointer

    with open_checkpointer(ledger) as saver:
        yield {"desk": build_agent(model(), [pay], ledger=ledger, checkpointer=saver)}


def no_agents(ledger: Ledger) -> str:
    return "none"
