"""A node's logic, written once as protocol steps, for sync and async graphs.

Owns the one bridge between LangGraph's two ways of calling a node and the two drivers. A `Runnable` of our own rather
than two functions: LangGraph picks `invoke` or `ainvoke` by itself.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from langchain_core.runnables import Runnable, RunnableConfig

from settled.tools.effects import Steps
from settled.tools.runner import Runner

State = TypeVar("State")
Update = dict[str, Any]


class Twin(Runnable[State, Update], Generic[State]):
    """A node that carries out steps: `begin` makes them, with the runner that is to drive them."""

    def __init__(self, name: str, begin: Callable[[State, RunnableConfig], tuple[Runner, Steps[Update]]]) -> None:
        self.name = name
        self._begin = begin

    def invoke(self, input: State, config: RunnableConfig | None = None, **kwargs: Any) -> Update:  # noqa: A002
        """Carry the steps out in this thread."""
        runner, steps = self._begin(input, config or {})
        return runner.drive(steps)

    async def ainvoke(self, input: State, config: RunnableConfig | None = None, **kwargs: Any) -> Update:  # noqa: A002
        """Carry the steps out in this event loop."""
        runner, steps = self._begin(input, config or {})
        return await runner.adrive(steps)
