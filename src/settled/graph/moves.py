"""What a turn may do to its thread, as values: the effects that the drivers of `settled.graph.driving` carry out.

Owns them, and what a turn knows of its thread. They hold no rules; the order of things is in `settled.graph.turn`.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage
from langgraph.types import StateSnapshot

from settled.graph.calls import Request
from settled.graph.channel import Ticket
from settled.graph.hosting import Shape
from settled.graph.identity import Handle
from settled.graph.late import Belated
from settled.graph.repair import IsAction
from settled.tools import effects

WhileOpen = Literal["keep", "reject", "withdraw"]
"""What happens to an open approval when its user writes a new message."""


@dataclass(frozen=True, slots=True)
class Look:
    """Read where the thread stands, or stood `at` a checkpoint. Answered by a StateSnapshot."""

    at: str | None = None


@dataclass(frozen=True, slots=True)
class Go:
    """Run the graph with this input, or without one; from a checkpoint, if given. Answered by the state's values, or
    None by a driver that streams; GraphDrained is thrown in.
    """

    message: HumanMessage | None = None
    at: str | None = None


@dataclass(frozen=True, slots=True)
class Catch:
    """Run the node `late` for calls of an idle thread. Answered like `Go`."""

    calls: Sequence[Belated]


@dataclass(frozen=True, slots=True)
class Carry:
    """Carry the action of a call on, without a word in the conversation. Answered by its Answer, or by None for a call
    that has to be left: its tool takes arguments from a graph, and none is running.
    """

    request: Request


@dataclass(frozen=True, slots=True)
class Tell:
    """Write messages into an idle thread whose graph has no node for what comes late, in the place of the node that has
    ended its turn; of `node`, where it is not clear which one that was.
    """

    messages: Sequence[BaseMessage]
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Rest:
    """Leave a thread idle that was so before it was told something: nodes that this would let run do not."""


@dataclass(frozen=True, slots=True)
class Fill:
    """Write messages into the thread in the place of the node that answers calls, and take tickets away. It is idle
    then, or goes on with its model.
    """

    messages: Sequence[BaseMessage]
    tickets: Sequence[Ticket] = ()
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Forget:
    """Forget what the open step's tasks have been given and have ended with: they run again, and ask again."""


@dataclass(frozen=True, slots=True)
class Fork:
    """Change the state that the thread had at a checkpoint, and make that its head."""

    at: str
    values: Mapping[str, Any]
    as_node: str | None


Effect = Look | Go | Catch | Carry | Tell | Rest | Fill | Forget | Fork | effects.Effect
"""Of the protocol's own effects a turn has only `Ask`."""

WRITES = Go | Catch | Carry | Tell | Rest | Fill | Forget | Fork
"""What must not be done without the lock."""

R = TypeVar("R")
Within = Generator[Effect, Any, R]


@dataclass(frozen=True, slots=True)
class Thread:
    """Whose thread a turn is about, and what its graph is like. `check` raises ThreadBusy once the lock is lost, and
    `is_action` knows the tools that have a ledger behind them.
    """

    handle: Handle
    check: Callable[[], None]
    shape: Shape = field(default_factory=Shape)
    while_open: WhileOpen = "keep"
    is_action: IsAction = lambda _: True

    def messages_in(self, state: StateSnapshot) -> list[AnyMessage]:
        """Return the conversation of a state."""
        messages: list[AnyMessage] = state.values.get(self.shape.messages, [])
        return messages
