"""Tools that exist already, as actions: `as_action` gives a LangChain tool a contract and leaves the tool as it is.

Owns what stands between the two: the body that runs the tool, with its own callbacks and tags, and the reading of what
it returned or raised; `shapes` owns the arguments. The subtle thing: a `ToolException` is how a tool says no, but also
how many a tool passes on a timeout. So it is a definite "no" only where it was raised for itself, in words that do not
speak of a lost answer.
"""

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, StructuredTool, Tool, ToolException
from pydantic_core import PydanticSerializationError, to_json

from settled.state.canonical import Marker
from settled.state.errors import ContractError
from settled.tools import bodies
from settled.tools.attempt import is_control_flow
from settled.tools.context import CURRENT
from settled.tools.contract import ActionTool, action
from settled.tools.outcome import MAX_REASON_CHARS, AttemptOutcome, Ended, Rejected, Unknown, from_exception, one_line
from settled.tools.relay import RELAY
from settled.tools.shapes import Shape, shape_of

OutcomeOf: TypeAlias = Callable[[Exception], AttemptOutcome | None]
ResultOf: TypeAlias = Callable[[object, object], object]

_NOSTREAM = "nostream"
"""LangGraph's tag for what its streams leave out."""

MAX_ARTIFACT_BYTES = 64 * 1024
"""An artifact is for programs: beside the content, which a model reads, it must not crowd that out of the ledger."""


def as_action(
    tool: BaseTool,
    *,
    markers: Mapping[str, Marker | Sequence[Marker]] | None = None,
    outcome_of: OutcomeOf | None = None,
    key_argument: str | None = None,
    **contract: Any,
) -> ActionTool:
    """Return an existing LangChain tool as an action: its name, description, schema, callbacks and tags are kept.

        refund = as_action(
            refund_tool,
            risk="non_idempotent_write",
            identity=("charge_id",),
            markers={"note": Incidental()},
            query=find_refund,
        )

    `contract` is what `@action` takes. `markers` say of the tool's arguments what `Annotated` says in a signature.
    `key_argument` names the argument in which the tool takes an idempotency key: it is filled in, and no model sees it.
    `outcome_of(exception)` says what an exception of the tool means, or None for the usual reading: a `ToolException`
    raised for itself is a rejection, one that passes another exception on means what that one means, and everything
    that is not known is unknown. The result of a tool with content and artifact is both, under these names. For an
    argument that was left out, and has no default in a JSON schema, policies and queries find `LEFT_OUT`.

    Raises ContractError for what is no LangChain tool, for one whose schema does not name its arguments, and for a
    contract that contradicts itself.
    """
    return wrap(tool, contract, markers=markers, outcome_of=outcome_of, key_argument=key_argument)


def wrap(
    tool: BaseTool,
    contract: Mapping[str, Any],
    *,
    markers: Mapping[str, Marker | Sequence[Marker]] | None = None,
    outcome_of: OutcomeOf | None = None,
    key_argument: str | None = None,
    result_of: ResultOf | None = None,
) -> ActionTool:
    """As `as_action`; `result_of(content, artifact)` is for tools whose two results have a form of their own."""
    _check(tool, contract)
    shape = shape_of(tool, markers or {}, key_argument)
    body = _Body(_outspoken(tool), shape, key_argument, outcome_of or (lambda _: None), result_of or _both)
    parts = {"name": tool.name, "description": tool.description or tool.name, "receipt": "receipt", **contract}
    if isinstance(parts["receipt"], str):
        parts["receipt"] = partial(_field, parts["receipt"])
    made = action(args_schema=shape.model, **parts)(body.function)
    if shape.shown is not None:
        made.args_schema = shape.shown if made.contract.is_read else shape.shown_with_repeat
    for kept in ("tags", "metadata", "extras", "return_direct"):
        setattr(made, kept, getattr(tool, kept))
    return made


def _check(tool: object, contract: Mapping[str, Any]) -> None:
    if isinstance(tool, ActionTool):
        raise ContractError(f"{tool.name} is an action already")
    if not isinstance(tool, BaseTool):
        raise ContractError(f"{tool!r} is no LangChain tool: put @action on its function")
    known = [name for name in inspect.signature(action).parameters if name != "args_schema"]
    if unknown := [name for name in contract if name not in known]:
        raise ContractError(f"{tool.name}: {', '.join(unknown)} is no part of a contract, which has {', '.join(known)}")
    if "risk" not in contract:
        raise ContractError(
            f'{tool.name}: say what a repeat would do: risk="read", "idempotent_write" or "non_idempotent_write"'
        )


def _outspoken(tool: BaseTool) -> BaseTool:
    """Return the tool with its exceptions left as they are: what it would have told a model is no outcome."""
    if not (tool.handle_tool_error or tool.handle_validation_error):
        return tool
    return tool.model_copy(update={"handle_tool_error": False, "handle_validation_error": False})


@dataclass(frozen=True)
class _Body:
    """Runs a tool for one attempt."""

    tool: BaseTool
    shape: Shape
    key_argument: str | None
    outcome_of: OutcomeOf
    result_of: ResultOf

    @property
    def function(self) -> Callable[..., Any]:
        """The body as the tool can run: async where it has an async side, which serves both kinds of caller."""
        if isinstance(self.tool, StructuredTool | Tool):
            is_async = self.tool.coroutine is not None
        else:
            is_async = type(self.tool)._arun is not BaseTool._arun
        run: Callable[..., Any] = self.acall if is_async else self.call
        return _declaring(run, self.shape.injected) if self.shape.injected else run

    def call(self, /, **values: Any) -> object:
        try:
            returned = self._shown.invoke(self._input(values))
        except Exception as error:
            if (outcome := self._meaning(error)) is None:
                raise
            raise Ended(outcome) from error
        return self._result(returned)

    async def acall(self, /, **values: Any) -> object:
        if bodies.in_own_thread() and getattr(self.tool, "func", None) is not None:
            return self.call(**values)  # a sync caller, and this event loop is nobody else's
        try:
            returned = await self._shown.ainvoke(self._input(values))
        except Exception as error:
            if (outcome := self._meaning(error)) is None:
                raise
            raise Ended(outcome) from error
        return self._result(returned)

    @property
    def _shown(self) -> BaseTool:
        """The tool; kept out of the stream of tool events where a tool node has announced the call there already."""
        if RELAY.get() is None:
            return self.tool
        return self.tool.model_copy(update={"tags": [*(self.tool.tags or ()), _NOSTREAM]})

    def _input(self, values: Mapping[str, Any]) -> Any:
        context = CURRENT.get()
        args = self.shape.input_of(values)
        if self.key_argument is not None and context is not None:
            args[self.key_argument] = context.idempotency_key
        if self.tool.response_format == "content" and self.shape.call_id is None:
            return args
        of_agent = context.correlation_id if context is not None else None
        call_id = values.get(self.shape.call_id or "") or (of_agent or "").rpartition("/")[2] or self.tool.name
        return {"type": "tool_call", "id": call_id, "name": self.tool.name, "args": args}

    def _meaning(self, error: Exception) -> AttemptOutcome | None:
        """Return what an exception means, or None where it is read like that of any other body."""
        if is_control_flow(error):
            return None
        return self.outcome_of(error) or _meaning(error)

    def _result(self, returned: object) -> object:
        if not isinstance(returned, ToolMessage):
            return returned
        if returned.status == "error":
            raise Ended(said_no(text_of(returned.content) or ""))
        return self.result_of(_readable(returned.content), returned.artifact)


def _declaring(run: Callable[..., Any], injected: Mapping[str, inspect.Parameter]) -> Callable[..., Any]:
    """Return a body whose signature says what is to be injected."""

    def body(**values: Any) -> Any:
        return run(**values)

    async def abody(**values: Any) -> Any:
        return await run(**values)

    function: Any = abody if inspect.iscoroutinefunction(run) else body
    rest = inspect.Parameter("values", inspect.Parameter.VAR_KEYWORD)
    function.__annotations__ = {name: parameter.annotation for name, parameter in injected.items()}
    function.__signature__ = inspect.Signature([*injected.values(), rest])
    return function  # type: ignore[no-any-return]


def _meaning(error: Exception) -> AttemptOutcome | None:
    passed_on = error.__cause__ or error.__context__ if isinstance(error, ToolException) else None
    if isinstance(error, ToolException) and passed_on is None:
        return said_no(str(error))
    source = passed_on or error
    if _is_of_a_read(source):
        return Unknown("a request that only reads had no answer, and a write may have gone before it", type(source))
    if passed_on is None:
        return None
    context = CURRENT.get()
    outcome = from_exception(source, len(context.sent) if context is not None else 0)
    return None if isinstance(outcome, Unknown) else outcome  # raised again, and so logged with its cause


def _is_of_a_read(error: BaseException) -> bool:
    """Whether an HTTP client raised this for a GET or the like. A tool that writes may read before or after it."""
    try:
        method = getattr(getattr(error, "request", None), "method", None)
    except RuntimeError:  # httpx, where no request is known
        return False
    return method in ("GET", "HEAD", "OPTIONS") and CURRENT.get() is not None


_UNSURE = re.compile(
    r"""time[ds]?[\ -]?out | deadline | no\ (?:answer|response|reply)
    | hang.?up | broken\ pipe | reset\ by\ peer | gateway
    | (?:connection|network|socket|transport|stream)(?:\W+\w+)?\W+(?:reset|clos|abort|lost|drop|refus|broke|err|fail)
    | connect\w*error | \be(?:connreset|connaborted|pipe|timedout)\b
    | (?:service|temporarily|currently)\ unavailable
    | (?:internal|unexpected|unhandled|server)(?:\ server)?\ (?:error|exception)
    | (?:http|status|code|error)\W{0,3}(?:code\W{0,2})?5\d\d\b
    | output\ validation | validation\ errors?\ for  # of what came back, not of what was sent
    | 超时 | 连接(?:中断|失败|错误|重置)""",
    re.IGNORECASE | re.VERBOSE,
)
"""Words of whoever lost an answer himself. A tool that heard nothing from its own remote side knows no more than we."""


def said_no(text: str) -> AttemptOutcome:
    """Return what a tool's own "no" means, by its words. A wrong "unknown" costs a question; a wrong "rejected" may
    cost a second effect.
    """
    reason = one_line(text, MAX_REASON_CHARS) or "no reason was given"
    return Unknown(f"the tool had no definite answer: {reason}") if _UNSURE.search(text) else Rejected(reason)


def text_of(content: object) -> str | None:
    """Return the text of a message's content; None where it holds anything else."""
    blocks = content if isinstance(content, list) else [content]
    texts = [block.get("text") if isinstance(block, Mapping) else block for block in blocks]
    known = [text for text in texts if isinstance(text, str)]
    return "\n".join(known) if len(known) == len(texts) else None


def _readable(content: object) -> object:
    """Return content as its text, or as blocks without the ids that LangChain gives them anew each time."""
    text = text_of(content)
    if text is not None or not isinstance(content, list):
        return content if text is None else text
    return [{k: v for k, v in block.items() if k != "id"} if isinstance(block, Mapping) else block for block in content]


def _both(content: object, artifact: object) -> object:
    return content if artifact is None else {"content": content, "artifact": _bounded(artifact)}


def _bounded(artifact: object) -> object:
    """Return an artifact as JSON, or a note of what it was: the content beside it must stay readable."""
    try:
        plain = to_json(artifact, inf_nan_mode="strings")
    except (PydanticSerializationError, ValueError, RecursionError):
        return {"note": f"the artifact, a {type(artifact).__name__}, has no form as JSON"}
    if len(plain) > MAX_ARTIFACT_BYTES:
        return {"note": f"the artifact was too large to keep ({len(plain)} bytes)"}
    return json.loads(plain)


def _field(name: str, result: object) -> object:
    """Return a field of a result, wherever the tool has put it."""
    found = (part[name] for part in _objects(result) if name in part)
    return next(found, None if isinstance(result, Mapping) else getattr(result, name, None))


def _objects(result: object) -> Iterator[Mapping[str, object]]:
    if isinstance(result, str) and result.lstrip().startswith("{"):
        try:
            result = json.loads(result)
        except (ValueError, RecursionError):
            return
    if isinstance(result, Mapping):
        yield result
        for inner in ("artifact", "structured_content", "content"):
            yield from _objects(result.get(inner))
