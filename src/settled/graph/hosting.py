"""The graph that a session runs, whoever built it: an agent of `build_agent`, one of `create_agent` with an
`ActionMiddleware`, anybody's graph with an `ActionNode`.

Owns the finding of what a session needs to know of it: the engine behind its calls, the node that answers them, its
channel of messages. Knows the doors by what their nodes hold. The subtle thing is the cache policy that a host may have
set on such a node: its key has no thread in it, and what the ledger says changes while the question stays the same; so
a session runs a copy of the graph without it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from types import MethodType

from langchain_core.messages import AIMessage
from langgraph.channels.base import BaseChannel
from langgraph.graph.state import CompiledStateGraph

from settled.graph.agent import DEFAULT_TENANT, Agent, engine_of, tenant_of
from settled.graph.door import Door
from settled.graph.engine import Engine
from settled.state.errors import ContractError

OURS = ("action", "approve", "late")
"""The nodes of `build_agent` that answer calls."""

TOOLS = "tools"
"""The node that answers calls in an agent of `create_agent`, and in most graphs."""

MAX_NESTING = 3
"""Graphs within graphs that are looked through for a door."""

MAX_STEPS = 4
"""From a node to its door: the node, its wrapper, whose it is, the door."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a turn knows of its graph: the node in whose place answers are written, the channel of messages, whether it
    is one of `build_agent`, which keeps the tickets of what waits and has a node for what comes late, and whether a
    message takes the place of an older one of the same id, without which nothing that comes late can be told.
    """

    answers: str = "action"
    messages: str = "messages"
    is_ours: bool = True
    replaces: bool = True


@dataclass(frozen=True, slots=True)
class Host:
    """A graph, and what is behind its calls. `tenant` is the only one that it serves, if it was built for one."""

    agent: Agent
    engine: Engine
    shape: Shape
    tenant: str | None = None


def host_of(agent: Agent) -> Host:
    """Return what a session needs of a graph; ContractError for one without a door to the ledger."""
    nodes = agent.builder.nodes
    if _is_ours(agent):
        return Host(_without_cache(agent, OURS), engine_of(agent), Shape(), tenant_of(agent))
    for holder, door in _doors(agent):
        answers = TOOLS if TOOLS in nodes else holder
        if isinstance(door, Door):
            door.learn(getattr(nodes[answers].runnable, "tools_by_name", {}).values())
        engine = door.engine if isinstance(door, Door) else door
        tenant = getattr(door, "_tenant", DEFAULT_TENANT)
        messages = getattr(door, "_messages_key", "messages")
        shape = Shape(answers, messages, is_ours=False, replaces=_replaces(agent, messages))
        return Host(
            _without_cache(agent, (answers, holder)), engine, shape, None if tenant == DEFAULT_TENANT else tenant
        )
    raise ContractError(
        "a session runs an agent of build_agent, one of create_agent with an ActionMiddleware, or a graph with an "
        "ActionNode"
    )


def _replaces(agent: Agent, messages: str) -> bool:
    """Whether a channel does as `add_messages` does: tried on an empty one, since a host may have a reducer of its own
    around it.
    """
    channel = agent.channels.get(messages)
    if not isinstance(channel, BaseChannel):
        return False
    channel = channel.copy()
    old, other, new = AIMessage("old", id="a"), AIMessage("other", id="b"), AIMessage("new", id="a")
    try:
        channel.update([[old, other]])
        channel.update([[new]])
        return [(one.id, one.content) for one in channel.get()] == [("a", "new"), ("b", "other")]
    except Exception:  # noqa: BLE001 - a reducer that cannot take messages can be told nothing
        return False


def _is_ours(agent: Agent) -> bool:
    return all(name in agent.builder.nodes for name in OURS)


def _doors(agent: Agent, depth: int = 0) -> Iterator[tuple[str, Door | Engine]]:
    """Yield the doors of a graph with the nodes that hold them; those of the graphs within it come last. An agent of
    `build_agent` within another graph has its engine for a door.
    """
    inner: list[tuple[str, Agent]] = []
    for name, spec in agent.builder.nodes.items():
        if isinstance(spec.runnable, CompiledStateGraph):
            inner.append((name, spec.runnable))
        else:
            yield from ((name, door) for door in _held_by(spec.runnable))
    for name, graph in inner if depth < MAX_NESTING else ():
        if _is_ours(graph):
            yield name, engine_of(graph)
        else:
            yield from ((name, door) for _, door in _doors(graph, depth + 1))


def _held_by(runnable: object, steps: int = MAX_STEPS) -> Iterator[Door]:
    """Yield the door that a node keeps: it, or whatever it calls (a middleware's hook, a tool node's wrapper).

    Only the fields of objects are read, never a property: this looks, and runs nothing of anybody's.
    """
    if isinstance(runnable, Door):
        yield runnable
    elif steps:
        for part in _parts_of(runnable):
            yield from _held_by(part, steps - 1)


def _parts_of(owner: object) -> list[object]:
    if isinstance(owner, MethodType):
        return [owner.__self__]
    if is_dataclass(owner) and not isinstance(owner, type):
        return [getattr(owner, one.name, None) for one in fields(owner)]
    kept = owner.__dict__.values() if type(owner).__module__ != "builtins" and hasattr(owner, "__dict__") else ()
    return [part for part in kept if isinstance(part, MethodType | Door)]


def _without_cache(agent: Agent, names: tuple[str, ...]) -> Agent:
    """Return the graph with these nodes uncached; the graph itself where they are."""
    cached = [name for name in names if name in agent.nodes and agent.nodes[name].cache_policy is not None]
    if not cached:
        return agent
    plain = {name: agent.nodes[name].copy({"cache_policy": None}) for name in cached}
    return agent.copy({"nodes": {**agent.nodes, **plain}})
