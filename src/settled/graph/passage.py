"""The way from an attempt to its body through a tool node, so that its events, callbacks and wrappers see the call.

Owns the two bodies, sync and async, that an engine is given in the place of a tool's function. Whatever happens on the
way, an attempt ends as the function ended; where the function was never called, nothing was done.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from langgraph.prebuilt.tool_node import ToolCallRequest
from pydantic_core import to_jsonable_python

from settled.graph.commands import recorded
from settled.graph.injecting import AnyRuntime
from settled.state.secrets import HIDDEN
from settled.tools.arguments import LEFT_OUT
from settled.tools.attempt import is_control_flow
from settled.tools.contract import ActionTool, Contract
from settled.tools.outcome import Ended, Rejected
from settled.tools.relay import RELAY, Relay

_log = logging.getLogger("settled")

Handler = Callable[[ToolCallRequest], Any]
"""Sync or async, as the passage is."""
Body = Callable[..., Any]

NEVER_CALLED = "it was not sent: something between the ledger and the tool answered in its place"


class Passage:
    """One call on its way: what the tool node asked for, and whether the body was ever called."""

    def __init__(self, tool: ActionTool, asked: ToolCallRequest, handler: Handler, *, is_async: bool = False) -> None:
        self.tool = tool
        self._asked = asked
        self._handler = handler
        self.body_of = self._abody if is_async else self._body
        self.is_begun = False

    @property
    def runtime(self) -> AnyRuntime:
        """What the tool node would inject."""
        return self._asked.runtime

    def _body(self, function: Body) -> Body:
        """Return a body that goes through the tool node to the function."""

        def body(**values: Any) -> Any:
            relay = Relay(self.tool.contract.name, function, values)
            token = RELAY.set(relay)
            stop: BaseException | None = None
            try:
                self._handler(self._request(values))
            except BaseException as error:  # noqa: BLE001 - whose it is, and what it means, `_ended` says
                stop = error
            finally:
                RELAY.reset(token)
            return self._ended(relay, stop)

        return body

    def _abody(self, function: Body) -> Body:
        """As `_body`, in an event loop."""

        async def body(**values: Any) -> Any:
            relay = Relay(self.tool.contract.name, function, values)
            token = RELAY.set(relay)
            stop: BaseException | None = None
            try:
                await self._handler(self._request(values))
            except BaseException as error:  # noqa: BLE001 - as above
                stop = error
            finally:
                RELAY.reset(token)
            return self._ended(relay, stop)

        return body

    def _request(self, values: Mapping[str, Any]) -> ToolCallRequest:
        """Return the request with what is really carried out: a person may have changed it."""
        shown = _shown(self.tool.contract, values)
        return self._asked.override(tool=self.tool, tool_call={**self._asked.tool_call, "args": shown})

    def _ended(self, relay: Relay, stop: BaseException | None) -> Any:
        """Return or raise what the body did."""
        self.is_begun = self.is_begun or relay.is_begun
        if relay.end is not None:
            if relay.end.error is not None:
                raise relay.end.error
            return recorded(relay.end.returned, str(self._asked.tool_call["id"]))
        if stop is not None and is_control_flow(stop):
            raise stop
        if relay.is_begun:
            raise RuntimeError(f"the body of {relay.tool} was left running") from stop
        _log.error("the body of %s was never called", relay.tool, exc_info=stop)
        raise Ended(Rejected(NEVER_CALLED))


def _shown(contract: Contract, values: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in values.items() if value is not LEFT_OUT}
    hidden = {name: HIDDEN if name in contract.secrets else value for name, value in given.items()}
    shown: dict[str, Any] = to_jsonable_python(hidden, fallback=str)
    return shown
