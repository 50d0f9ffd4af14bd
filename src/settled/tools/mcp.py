"""Tools of MCP servers, loaded with `langchain-mcp-adapters`, as actions.

Owns what their annotations and their errors mean, and the way of the idempotency key to the server. Imports neither
`mcp` nor the adapters until a client is given. The subtle thing: an error *result* is the server's answer to a call
that it processed, an error of the *transport* is no answer at all; and an SDK turns any exception of a server into an
error result, a lost answer of its own upstream too, so the words decide (`wrapping.said_no`).
"""

import json
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.tools import BaseTool, ToolException

from settled.state.errors import ContractError
from settled.tools.context import CURRENT, ActionContext
from settled.tools.contract import ActionTool, Risk
from settled.tools.outcome import (
    MAX_REASON_CHARS,
    AttemptOutcome,
    Ended,
    Invalid,
    Refused,
    Rejected,
    Unknown,
    after_sent,
    one_line,
)
from settled.tools.wrapping import OutcomeOf, said_no, wrap

if TYPE_CHECKING:
    from langchain_mcp_adapters.client import MultiServerMCPClient
    from langchain_mcp_adapters.interceptors import MCPToolCallRequest, MCPToolCallResult

_log = logging.getLogger("settled")

META_KEY = "idempotencyKey"
"""Where the key stands in the `_meta` of a `tools/call` request; MCP has no place of its own for it yet."""

KEY_ARGUMENTS = ("idempotency_key", "idempotencyKey")
"""An argument of these names is where many servers take the key."""

ClientT = TypeVar("ClientT", bound="MultiServerMCPClient")


def actions_from_mcp(
    tools: Iterable[BaseTool], overrides: Mapping[str, Mapping[str, Any]] | None = None, **defaults: Any
) -> list[ActionTool]:
    """Return the tools of MCP servers as actions, each with the risk that its annotations tell.

        client = carry_key(MultiServerMCPClient({"bank": {"transport": "stdio", "command": "bank-mcp", "args": []}}))
        tools = actions_from_mcp(
            await client.get_tools(),
            {"pay": {"identity": ("invoice",), "query": find_payment, "approval": over("amount", 100)}},
            timeout=20,
        )

    `readOnlyHint` is a read, `idempotentHint` an idempotent write, anything else a non-idempotent write whose identity
    is all of its arguments. The annotations stay in the tool's `metadata`, `destructiveHint` among them. They are the
    server's own word: for a server that you do not trust, say `risk="non_idempotent_write"` among the defaults.

    `overrides` say by tool name what is better known here, `defaults` hold for all the others; both take what
    `as_action` takes (the defaults of a write are not asked of a read). With a `query` and no `remote`, the remote side
    is queryable. An argument `idempotency_key` or `idempotencyKey` is filled in, unless `key_argument` says otherwise.

    Raises ContractError for an override of a tool that there is not, for two tools of one name, and where `as_action`
    does.
    """
    by_name: dict[str, BaseTool] = {}
    for tool in tools:
        if tool.name in by_name:
            raise ContractError(f"two tools are named {tool.name}: load them with tool_name_prefix=True")
        by_name[tool.name] = tool
    if unknown := [name for name in overrides or {} if name not in by_name]:
        raise ContractError(f"overrides name {unknown}, which is no tool; there are {sorted(by_name)}")
    return [_action_of(tool, (overrides or {}).get(name, {}), defaults) for name, tool in by_name.items()]


_OF_WRITES = frozenset(
    {"remote", "identity", "unique", "query", "resend_when_absent", "approval", "budgets", "compensate", "emits"}
)
_OF_WRAPPING = ("markers", "outcome_of", "key_argument")


def _action_of(tool: BaseTool, override: Mapping[str, Any], defaults: Mapping[str, Any]) -> ActionTool:
    parts = {"risk": _risk_of(tool.metadata or {}), **defaults, **override}
    if parts["risk"] == Risk.READ:
        parts = {name: part for name, part in parts.items() if name in override or name not in _OF_WRITES}
    if parts["risk"] == Risk.NON_IDEMPOTENT_WRITE:
        parts.setdefault("identity", "all")
    if parts.get("query") is not None:
        parts.setdefault("remote", "queryable")
    contract = {name: part for name, part in parts.items() if name not in _OF_WRAPPING}
    return wrap(
        tool,
        contract,
        markers=parts.get("markers"),
        outcome_of=_outcome_of(parts.get("outcome_of")),
        key_argument=parts.get("key_argument", _key_argument(tool)),
        result_of=_result_of,
    )


def _risk_of(hints: Mapping[str, Any]) -> str:
    if hints.get("readOnlyHint") is True:
        return Risk.READ
    return Risk.IDEMPOTENT_WRITE if hints.get("idempotentHint") is True else Risk.NON_IDEMPOTENT_WRITE


def _key_argument(tool: BaseTool) -> str | None:
    schema = tool.args_schema
    known = schema.get("properties") or {} if isinstance(schema, Mapping) else {}
    return next((name for name in KEY_ARGUMENTS if name in known), None)


def _outcome_of(given: OutcomeOf | None) -> OutcomeOf:
    return lambda error: (given(error) if given is not None else None) or _meaning(error)


_OF_AN_SDK = re.compile(r"^Error executing tool \S+: ")
_NOT_ACCEPTED = re.compile(
    r"^(?:input validation error|unknown tool|\d+ validation errors? for \w+arguments\b)", re.IGNORECASE
)
_INVALID_PARAMS, _METHOD_NOT_FOUND = -32602, -32601
"""JSON-RPC's codes for a request that was not carried out."""


def _meaning(error: Exception) -> AttemptOutcome | None:
    """Return what an error of an MCP tool means. Only the server's own words are definite: an HTTP error of the
    transport, which would be for a tool that makes one request, may belong to any request of the session.
    """
    if isinstance(error, Ended):
        return error.outcome
    if isinstance(error, ToolException):
        words = _OF_AN_SDK.sub("", str(error))
        return Invalid(one_line(words, MAX_REASON_CHARS)) if _NOT_ACCEPTED.search(words) else said_no(words)
    code = getattr(getattr(error, "error", None), "code", None)
    if code == _INVALID_PARAMS:
        return Invalid(one_line(str(error), MAX_REASON_CHARS))
    if code == _METHOD_NOT_FOUND:
        return Rejected(one_line(str(error), MAX_REASON_CHARS))
    return Unknown(f"the MCP server gave no definite answer ({type(error).__name__})", type(error))


def _result_of(content: object, artifact: object) -> object:
    """Return one result: the structured content, which servers repeat as text, or both where the text says more."""
    structured = artifact.get("structured_content") if isinstance(artifact, Mapping) else None
    if not isinstance(structured, Mapping):
        return content
    if structured.keys() == {"result"}:  # the wrapper of an SDK around what is no object
        return structured["result"]
    return structured if _is_json_of(content, structured) else {"content": content, "structured_content": structured}


def _is_json_of(content: object, structured: Mapping[str, object]) -> bool:
    if not content:
        return True
    try:
        return isinstance(content, str) and json.loads(content) == structured
    except (ValueError, RecursionError):
        return False


def carry_key(client: ClientT) -> ClientT:
    """Make a client send the idempotency key of the action that calls a tool, and return it.

        client = carry_key(MultiServerMCPClient({"bank": {"transport": "http", "url": "https://bank.example/mcp"}}))

    The key stands in the request's `_meta` as `idempotencyKey`; a server that does not know it ignores it. (It is no
    HTTP header: that would go with every request of the session, and not with this one alone.) A call whose session
    could not be opened is *refused*: it was never sent, and may be tried again. Without this nobody can tell that from
    a lost answer. Interceptors that the client has by then stand around this one and keep working. Like the adapters'
    own, each call opens a session; the tools of one that you keep open (`load_mcp_tools(session)`) do not come by here.
    """
    client.tool_interceptors.append(_Carrier(client))
    return client


class _Carrier:
    """The innermost interceptor. It makes the call itself, since the adapters' own has no place for `_meta`."""

    def __init__(self, client: "MultiServerMCPClient") -> None:
        self._client = client

    async def __call__(
        self, request: "MCPToolCallRequest", handler: "Callable[[MCPToolCallRequest], Awaitable[MCPToolCallResult]]"
    ) -> "MCPToolCallResult":
        context = CURRENT.get()
        if context is None or math.isinf(context.lease_monotonic):  # a read, or a query: the key is not theirs
            return await handler(request)
        return await self._call(request, context)

    async def _call(self, request: "MCPToolCallRequest", context: ActionContext) -> "MCPToolCallResult":
        from langchain_mcp_adapters.sessions import create_session

        earlier, answer = len(context.sent), _Answer()
        callbacks = self._callbacks(request)
        try:
            async with create_session(self._connection(request), mcp_callbacks=callbacks) as session:
                await session.initialize()
                await answer.to(session, request, context, callbacks.progress_callback)
        except Exception as error:  # noqa: BLE001 - what it means depends on what went out before
            _log.info("the session with %s did not end well", request.server_name, exc_info=error)
        if not answer.is_asked:
            raise Ended(after_sent(Refused("the MCP server could not be reached"), earlier))
        answered: MCPToolCallResult = answer.result()
        return answered

    def _callbacks(self, request: "MCPToolCallRequest") -> Any:
        from langchain_mcp_adapters.callbacks import CallbackContext

        context = CallbackContext(server_name=request.server_name, tool_name=request.name)
        return self._client.callbacks.to_mcp_format(context=context)

    def _connection(self, request: "MCPToolCallRequest") -> Any:
        connection: dict[str, Any] = dict(self._client.connections[request.server_name])
        if request.headers:  # another interceptor's
            connection["headers"] = {**(connection.get("headers") or {}), **request.headers}
        return connection


class _Answer:
    """What a call came to, kept until its session is closed: closing may fail, or swallow an exception, and the answer
    of the server stands all the same.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self._result: Any = None
        self._fault: Exception = ConnectionError("the session ended before its answer")

    async def to(self, session: Any, request: "MCPToolCallRequest", context: ActionContext, on_progress: Any) -> None:
        """Send the request, unless its time is over."""
        self.is_asked = True
        if time.monotonic() > min(context.lease_monotonic, context.deadline_monotonic):
            self._fault = Ended(after_sent(Refused("its time was over before it was sent"), len(context.sent)))
            return
        context.sent.append(f"tools/call {request.name}")
        meta = {META_KEY: context.idempotency_key}
        try:
            self._result = await session.call_tool(request.name, request.args, progress_callback=on_progress, meta=meta)
        except Exception as error:  # noqa: BLE001 - raised by result(), and read as an outcome
            self._fault = error

    def result(self) -> Any:
        """Return the server's answer, or raise what came in its place."""
        if self._result is None:
            raise self._fault
        return self._result
