"""A LangChain tool that exists already becomes an action without being rewritten, and means what it meant."""

import time
from collections.abc import Callable
from typing import Annotated, Any

import httpx
import pytest
from cryptography.fernet import Fernet
from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolArg, InjectedToolCallId, StructuredTool, Tool, ToolException
from langchain_core.tools import tool as langchain_tool
from langgraph.prebuilt import ToolRuntime
from pydantic import BaseModel, Field, field_validator

from acts import Door, action_of, both_doors, opened, rows, through_async, through_sync
from scripted import ScriptedModel, call, once
from settled import (
    ActionMiddleware,
    Code,
    ContractError,
    ContractWarning,
    Incidental,
    InvalidArguments,
    Ledger,
    Ordered,
    Rejected,
    Secret,
    Session,
    State,
    Succeeded,
    Unguarded,
    action,
    as_action,
    build_agent,
    current_action,
    open_checkpointer,
    perform,
)
from settled.state import canonical
from settled.tools import arguments
from settled.tools.json_schema import model_of
from settled.tools.wrapping import MAX_ARTIFACT_BYTES, said_no

WRITE: dict[str, Any] = {"risk": "non_idempotent_write", "identity": "all"}
EFFECTS: list[tuple[str, float, str]] = []


@pytest.fixture(autouse=True)
def _no_effects() -> None:
    EFFECTS.clear()


def effect(order_id: str, amount: float, side: str) -> dict[str, Any]:
    EFFECTS.append((order_id, amount, side))
    return {"receipt": f"R-{len(EFFECTS)}"}


def pay_sync(order_id: str, amount: float = 1.0) -> dict[str, Any]:
    """Pay an order."""
    return effect(order_id, amount, "sync")


async def pay_async(order_id: str, amount: float = 1.0) -> dict[str, Any]:
    """Pay an order."""
    return effect(order_id, amount, "async")


class Payment(BaseModel):
    order_id: str = Field(alias="orderId", description="the order")
    amount: float = 1.0


class PaysItself(BaseTool):
    name: str = "pay"
    description: str = "Pay an order."

    def _run(self, order_id: str, amount: float = 1.0, run_manager: Any = None) -> dict[str, Any]:
        return effect(order_id, amount, "sync")


class PaysInALoop(PaysItself):
    async def _arun(self, order_id: str, amount: float = 1.0, run_manager: Any = None) -> dict[str, Any]:
        return effect(order_id, amount, "async")


JSON_SCHEMA = {
    "type": "object",
    "properties": {"order_id": {"type": "string"}, "amount": {"type": "number", "default": 1.0}},
    "required": ["order_id"],
}

KINDS: dict[str, Callable[[], BaseTool]] = {
    "@tool": lambda: langchain_tool("pay")(pay_sync),
    "@tool async": lambda: langchain_tool("pay")(pay_async),
    "structured, both sides": lambda: StructuredTool.from_function(pay_sync, pay_async, name="pay"),
    "structured, its own model": lambda: StructuredTool.from_function(pay_sync, name="pay", args_schema=Payment),
    "structured, JSON schema": lambda: StructuredTool(
        name="pay", description="Pay an order.", args_schema=JSON_SCHEMA, func=pay_sync
    ),
    "structured, JSON schema, async": lambda: StructuredTool(
        name="pay", description="Pay an order.", args_schema=JSON_SCHEMA, coroutine=pay_async
    ),
    "BaseTool": PaysItself,
    "BaseTool, async side": PaysInALoop,
}


@both_doors
@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_of_tool_has_one_effect(kind: str, door: Door, ledger: Ledger) -> None:
    """One intent, one effect, one receipt; defaults and numbers count by value."""
    pay = as_action(KINDS[kind](), **WRITE)
    assert (pay.name, pay.description.splitlines()[0]) == ("pay", "Pay an order.")
    assert set(pay.args) == {"order_id", "amount", "repeat_of"}
    assert pay.contract.identity == ("order_id", "amount")
    outcome = await door(pay, {"order_id": "A-1"}, ledger=ledger)
    assert (outcome.code, outcome.receipt, outcome.result) == (Code.SUCCEEDED, "R-1", {"receipt": "R-1"})
    again = await door(pay, {"order_id": "A-1", "amount": "1"}, ledger=ledger)
    assert (again.code, again.receipt, len(EFFECTS)) == (Code.DUPLICATE, "R-1", 1)


async def test_a_tool_with_both_sides_uses_that_of_its_caller(ledger: Ledger) -> None:
    """What a tool keeps for its async side belongs to one event loop."""
    pay = as_action(KINDS["structured, both sides"](), **WRITE)
    await through_sync(pay, ["A-1"], ledger=ledger)
    await through_async(pay, ["A-2"], ledger=ledger)
    assert [side for *_, side in EFFECTS] == ["sync", "async"]


@both_doors
async def test_a_tool_of_one_text(door: Door, ledger: Ledger) -> None:
    """The oldest kind of tool has no schema: its one text is named `tool_input`."""
    say = as_action(Tool(name="say", description="Say it.", func=str.upper), **WRITE)
    outcome = await door(say, {"tool_input": "hello"}, ledger=ledger)
    assert (outcome.result, set(say.args)) == ("HELLO", {"tool_input", "repeat_of"})


class Witness(BaseCallbackHandler):
    def __init__(self) -> None:
        self.started: list[Any] = []

    def on_tool_start(self, serialized: dict[str, Any], input_str: str, **more: Any) -> None:
        self.started.append((serialized["name"], more["inputs"], more["tags"]))


async def test_callbacks_and_tags_are_kept(ledger: Ledger) -> None:
    """Whoever watches the tool sees it run, and once."""
    witness = Witness()
    kept: dict[str, Any] = {"callbacks": [witness], "tags": ["money"], "metadata": {"by": "me"}}
    tool = StructuredTool.from_function(pay_sync, name="pay", **kept)
    pay = as_action(tool, **WRITE)
    for _ in range(2):
        await through_sync(pay, {"order_id": "A-1"}, ledger=ledger)
    assert witness.started == [("pay", {"order_id": "A-1", "amount": 1.0}, ["money"])]
    assert (pay.tags, pay.metadata) == (["money"], {"by": "me"})


async def test_past_the_ledger_it_cannot_be_called(ledger: Ledger) -> None:
    """As any action."""
    pay = as_action(KINDS["@tool"](), **WRITE)
    with pytest.raises(Unguarded):
        pay.invoke({"order_id": "A-1"})
    assert EFFECTS == []


def with_rest(**arguments: Any) -> None:
    """Do anything."""


def mine(order_id: str, repeat_of: str) -> None:
    """Has an argument of our own."""


REFUSED: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "an action": (lambda: action(**WRITE)(pay_sync), WRITE, "pay_sync is an action already"),
    "a function": (lambda: pay_sync, WRITE, "is no LangChain tool: put @action on its function"),
    "no risk": (KINDS["@tool"], {}, "pay: say what a repeat would do"),
    "a misspelt part": (KINDS["@tool"], {**WRITE, "querry": None}, "pay: querry is no part of a contract"),
    "no identity": (KINDS["@tool"], {"risk": "non_idempotent_write"}, "a non-idempotent write must say"),
    "unnamed arguments": (
        lambda: StructuredTool.from_function(with_rest, name="any"),
        WRITE,
        "any: its schema does not name its arguments",
    ),
    "any object": (
        lambda: StructuredTool(
            name="any", description="", args_schema={"type": "object", "additionalProperties": True}, func=with_rest
        ),
        WRITE,
        "any: its schema does not name its arguments",
    ),
    "no object": (
        lambda: StructuredTool(name="any", description="", args_schema={"type": "array"}, func=with_rest),
        WRITE,
        "does not name its arguments",
    ),
    "markers of nothing": (KINDS["@tool"], {**WRITE, "markers": {"memo": Incidental()}}, r"markers name \['memo'\]"),
    "a key of nothing": (KINDS["@tool"], {**WRITE, "key_argument": "key"}, "key_argument='key' is not an argument"),
    "a repeat_of of its own": (lambda: langchain_tool(mine), WRITE, "mine: repeat_of is added by itself"),
}


@pytest.mark.parametrize(("tool", "parts", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_an_action_is_refused(tool: Callable[[], Any], parts: dict[str, Any], sentence: str) -> None:
    """With the sentence that says what to do."""
    with pytest.raises(ContractError, match=sentence):
        as_action(tool(), **parts)


def test_a_tool_without_arguments_is_fine() -> None:
    """A schema may well say that there is nothing to say."""
    for schema in ({"type": "object", "properties": {}}, {"type": "object"}):
        look = as_action(StructuredTool(name="look", description="", args_schema=schema, func=with_rest), risk="read")
        assert look.args == {}


def test_a_warning_points_to_the_wrapping() -> None:
    """And not into the library."""

    def send(to: str, text: str) -> None:
        """Send."""

    with pytest.warns(ContractWarning, match="'text'.*markers=") as warned:
        as_action(langchain_tool(send), risk="non_idempotent_write", identity=("to",))
    assert warned[0].filename == __file__


def failing(error: Callable[[], BaseException], **parts: Any) -> BaseTool:
    def pay(order_id: str) -> str:
        """Pay an order."""
        raise error()

    return StructuredTool.from_function(pay, handle_tool_error=True, **parts)


def no() -> ToolException:
    return ToolException("the order is closed")


def passing_on(cause: BaseException) -> Callable[[], BaseException]:
    def make() -> BaseException:
        error = ToolException("it did not work")
        error.__cause__ = cause
        return error

    return make


def hiding(cause: BaseException) -> Callable[[], BaseException]:
    def make() -> BaseException:
        try:
            raise cause
        except type(cause):
            try:
                raise ToolException("it did not work") from None
            except ToolException as error:
                return error

    return make


def of_http(method: str, status: int) -> httpx.HTTPStatusError:
    request = httpx.Request(method, "http://pay")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, request=request))


MEANINGS: dict[str, tuple[Callable[[], BaseException], Code]] = {
    "a no": (no, Code.REJECTED),
    "a timeout, passed on": (passing_on(TimeoutError()), Code.MANUAL_REVIEW),
    "a timeout, hidden": (hiding(TimeoutError()), Code.MANUAL_REVIEW),
    "never sent, passed on": (passing_on(httpx.ConnectError("")), Code.UNAVAILABLE),
    "a status, passed on": (passing_on(of_http("POST", 409)), Code.REJECTED),
    "a status of doubt, passed on": (passing_on(of_http("POST", 502)), Code.MANUAL_REVIEW),
    "a status": (lambda: of_http("POST", 403), Code.FORBIDDEN),
    "a status of a look": (lambda: of_http("GET", 404), Code.MANUAL_REVIEW),
    "a mistake": (lambda: KeyError("id"), Code.MANUAL_REVIEW),
    "a no of ours": (lambda: InvalidArguments("order_id", "is none"), Code.INVALID),
}


@both_doors
@pytest.mark.parametrize("meaning", MEANINGS)
async def test_what_a_tool_raises(meaning: str, door: Door, ledger: Ledger) -> None:
    """A tool's "no" is one only when it is its own; a handler that would have told a model is not asked."""
    error, code = MEANINGS[meaning]
    tool = failing(error)
    pay = as_action(tool, **WRITE, max_attempts=1)
    outcome = await door(pay, ["A-1"], ledger=ledger)
    assert outcome.code is code
    assert (outcome.state is State.UNKNOWN) == (code is Code.MANUAL_REVIEW)
    assert tool.handle_tool_error is True


async def test_a_rejection_gives_the_tools_reason(ledger: Ledger) -> None:
    """It was written for a model."""
    outcome = await through_sync(as_action(failing(no), **WRITE), ["A-1"], ledger=ledger)
    assert "the order is closed" in outcome.message


async def test_the_author_may_know_better_what_an_exception_means(ledger: Ledger) -> None:
    """A function that says it, or says nothing."""

    class Declined(Exception): ...

    def outcome_of(error: Exception) -> Rejected | None:
        return Rejected("declined", "D-1") if isinstance(error, Declined) else None

    declined = as_action(failing(Declined), **WRITE, outcome_of=outcome_of)
    outcome = await through_sync(declined, ["A-1"], ledger=ledger)
    assert (outcome.code, outcome.receipt) == (Code.REJECTED, "D-1")
    other = as_action(failing(OSError), **WRITE, outcome_of=outcome_of)
    assert (await through_sync(other, ["A-2"], ledger=ledger)).code is Code.MANUAL_REVIEW


@pytest.mark.parametrize(
    ("words", "definite"),
    [
        ("order A-1 is closed", True),
        ("amount 500 is over the limit", True),
        ("unknown customer", True),
        ("no bank connection is on file", True),
        ("item is unavailable in this size", True),
        ("", True),
        ("Read timed out.", False),
        ("Timeout while waiting for the bank", False),
        ("HTTPError: 503 Service Unavailable", False),
        ("API error (status code: 500)", False),
        ("error 502: upstream", False),
        ("connection was reset by peer", False),
        ("Connection aborted.", False),
        ("read ECONNRESET", False),
        ("socket hang up", False),
        ("Internal Server Error", False),
        ("an unexpected error occurred", False),
        ("请求超时", False),
    ],
)
def test_words_of_one_who_lost_an_answer_are_no_no(words: str, definite: bool) -> None:
    """Many a tool makes a ToolException of whatever went wrong."""
    assert isinstance(said_no(words), Rejected) == definite


async def test_an_interrupt_travels_on(ledger: Ledger) -> None:
    """It is no failure of the tool."""

    class GraphBubbleUp(Exception): ...

    with pytest.raises(GraphBubbleUp):
        await through_sync(as_action(failing(GraphBubbleUp), **WRITE), ["A-1"], ledger=ledger)


TOO_LARGE = f"the artifact was too large to keep ({MAX_ARTIFACT_BYTES + 2} bytes)"


def of_two(content: Any, artifact: Any) -> BaseTool:
    def pay(order_id: str) -> tuple[Any, Any]:
        """Pay an order."""
        return content, artifact

    return StructuredTool.from_function(pay, response_format="content_and_artifact")


@pytest.mark.parametrize(
    ("content", "artifact", "result"),
    [
        ("paid", None, "paid"),
        ("paid", {"receipt": "R-7"}, {"content": "paid", "artifact": {"receipt": "R-7"}}),
        ([{"type": "text", "text": "paid", "id": "x"}, {"type": "text", "text": "now"}], None, "paid\nnow"),
        (
            [{"type": "image", "url": "http://i", "id": "lc_1"}],
            None,
            [{"type": "image", "url": "http://i"}],
        ),
        (
            "paid",
            object(),
            {"content": "paid", "artifact": {"note": "the artifact, a object, has no form as JSON"}},
        ),
        (
            "paid",
            "x" * MAX_ARTIFACT_BYTES,
            {"content": "paid", "artifact": {"note": TOO_LARGE}},
        ),
    ],
    ids=["content alone", "both", "texts", "blocks", "no JSON", "too large"],
)
@both_doors
async def test_content_and_artifact_are_the_result(
    content: Any, artifact: Any, result: Any, door: Door, ledger: Ledger
) -> None:
    """Under their names, and never so that the artifact crowds the content out."""
    outcome = await door(as_action(of_two(content, artifact), **WRITE), ["A-1"], ledger=ledger)
    assert (outcome.code, outcome.result) == (Code.SUCCEEDED, result)
    assert outcome.receipt == (artifact["receipt"] if isinstance(artifact, dict) else None)


async def test_a_receipt_is_found_in_a_text_of_json(ledger: Ledger) -> None:
    """Many a tool answers with JSON as a text."""
    pay = as_action(of_two('{"receipt": "R-7", "number": 3}', None), **WRITE)
    assert (await through_sync(pay, ["A-1"], ledger=ledger)).receipt == "R-7"
    numbered = as_action(of_two('{"receipt": "R-7", "number": 3}', None), **WRITE, receipt="number")
    assert (await through_sync(numbered, ["A-2"], ledger=ledger)).receipt == "3"


async def test_a_message_that_says_error_is_a_no(ledger: Ledger) -> None:
    """A tool may answer with a message of its own."""

    def pay(order_id: str) -> ToolMessage:
        """Pay an order."""
        status: Any = "error" if order_id == "closed" else "success"
        return ToolMessage("it is " + order_id, tool_call_id="x", status=status)

    tool = as_action(langchain_tool(pay), **WRITE)
    assert (await through_sync(tool, ["closed"], ledger=ledger)).code is Code.REJECTED
    assert (await through_sync(tool, ["open"], ledger=ledger)).result == "it is open"


async def test_an_outcome_that_a_tool_returns_counts(ledger: Ledger) -> None:
    """As in the body of an @action."""

    def pay(order_id: str) -> Succeeded:
        """Pay an order."""
        return Succeeded("done", current_action().idempotency_key)

    outcome = await through_sync(as_action(langchain_tool(pay), **WRITE), ["A-1"], ledger=ledger)
    assert (outcome.result, outcome.receipt) == ("done", outcome.idempotency_key)


def injected(call_id: Annotated[str, InjectedToolCallId], order_id: str, runtime: ToolRuntime) -> str:
    """Pay an order."""
    return f"{order_id} for {call_id} with {len(runtime.state['messages'])} messages"


def test_what_is_injected_is_no_argument_of_the_action(database_url: str) -> None:
    """A graph gives it; it takes no part in the identity, and without a graph there is none."""
    tool = as_action(langchain_tool("pay")(injected), **WRITE)
    assert (set(tool.args), tool.contract.identity) == ({"order_id", "repeat_of"}, ("order_id",))
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        with pytest.raises(ContractError, match="takes call_id, runtime from a graph"):
            perform(tool, ["A-1"], ledger=ledger, thread_id="t")
        model = ScriptedModel(script=once(call("pay", "call-7", order_id="A-1")))
        agent = build_agent(model, [tool], ledger=ledger, checkpointer=saver)
        reply = Session(agent, ledger=ledger, thread_id="t").send("pay")
    assert "A-1 for call-7 with 2 messages" in str([m.content for m in reply.messages if isinstance(m, ToolMessage)])


def test_what_nobody_can_inject_is_refused_unless_the_tool_does_without() -> None:
    """As the adapters of MCP do without the runtime that they would like to have."""

    def needs(order_id: str, who: Annotated[str, InjectedToolArg]) -> None:
        """Pay."""

    def likes(order_id: str, who: Annotated[str, InjectedToolArg] = "") -> None:
        """Pay."""

    with pytest.raises(ContractError, match="needs: nobody gives who"):
        as_action(langchain_tool(needs), **WRITE)
    assert set(as_action(langchain_tool(likes), **WRITE).args) == {"order_id", "repeat_of"}


async def test_an_idempotency_key_is_filled_in(ledger: Ledger) -> None:
    """The argument is the tool's, and nobody else's."""

    def pay(order_id: str, request_id: str) -> str:
        """Pay an order."""
        return request_id

    tool = as_action(langchain_tool(pay), **WRITE, key_argument="request_id")
    outcome = await through_sync(tool, ["A-1"], ledger=ledger)
    assert (outcome.result, set(tool.args)) == (outcome.idempotency_key, {"order_id", "repeat_of"})


async def test_markers_say_what_a_signature_would(database_url: str) -> None:
    """A note that is worded anew, a card that nobody sees, steps in their order."""
    got: list[Any] = []

    def pay(order_id: str, note: str = "", card: str = "", steps: list[str] = []) -> str:  # noqa: B006
        """Pay an order."""
        got.append((note, card, steps))
        return "paid"

    markers: dict[str, Any] = {"note": Incidental(), "card": Secret(), "steps": [Ordered()]}
    tool = as_action(langchain_tool(pay), **WRITE, markers=markers)
    first = {"order_id": "A-1", "note": "please", "card": "4111", "steps": ["a", "b"]}
    calls = [first, {**first, "note": "now"}, {**first, "steps": ["b", "a"]}]
    with opened(database_url, secret_key=Fernet.generate_key().decode()) as ledger:
        codes = [(await through_sync(tool, one, ledger=ledger)).code for one in calls]
    assert codes == [Code.SUCCEEDED, Code.DUPLICATE, Code.SUCCEEDED]
    assert got == [("please", "4111", ["a", "b"]), ("please", "4111", ["b", "a"])]
    assert "4111" not in str(rows(database_url, "SELECT arguments FROM settled.actions"))


class Tidy(BaseModel):
    order_id: str

    @field_validator("order_id")
    @classmethod
    def stripped(cls, value: str) -> str:
        return value.strip()


async def test_validators_of_the_tools_own_model_come_first(ledger: Ledger) -> None:
    """What they make of a value is what counts, and what is sent."""
    tool = as_action(StructuredTool.from_function(pay_sync, name="pay", args_schema=Tidy), **WRITE)
    outcome = await through_sync(tool, ["  A-1 "], ledger=ledger)
    again = await through_sync(tool, ["A-1"], ledger=ledger)
    assert (outcome.code, again.code, EFFECTS) == (Code.SUCCEEDED, Code.DUPLICATE, [("A-1", 1.0, "sync")])


ISSUE = {
    "type": "object",
    "$defs": {
        "Tree": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "under": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}},
            "required": ["name"],
        },
        "Level": {"enum": ["low", "high"]},
    },
    "properties": {
        "id": {"type": "integer"},
        "size": {"type": "number"},
        "assignee": {"type": ["string", "null"]},
        "title": {"type": "string", "default": None},
        "level": {"$ref": "#/$defs/Level", "default": "low"},
        "tree": {"$ref": "#/$defs/Tree"},
        "labels": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]}},
        "extra": {"type": "object", "additionalProperties": {"type": "number"}},
        "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "string"}]},
        "odd": {"not": {"type": "string"}},
        "flag": {"type": "boolean", "nullable": True},
        "_meta": {"type": "string"},
        "model_dump": {"const": 3},
    },
    "required": ["id"],
}


def fingerprint_of(**sent: object) -> str:
    model = arguments.validate(model_of(ISSUE, "issue"), sent)
    hints = arguments.annotations_of(type(model))
    return canonical.fingerprint_of(canonical.arguments_bytes(arguments.values_of(model), hints))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"id": 1}, {"id": "1"}),
        ({"id": 1}, {"id": 1.0}),
        ({"id": 1}, {"id": 1, "level": "low"}),
        ({"id": 1, "size": 100}, {"id": 1, "size": "100.00"}),
        ({"id": 1, "tree": {"name": "a", "x": 1}}, {"id": 1, "tree": {"x": 1.0, "name": "a"}}),
        ({"id": 1, "labels": ["a", "b"]}, {"id": 1, "labels": ["b", "a"]}),
        ({"id": 1, "extra": {"a": 1, "b": 2}}, {"id": 1, "extra": {"b": "2", "a": 1.0}}),
    ],
)
def test_arguments_of_a_json_schema_are_equal_by_value(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Numbers, defaults and objects are read as the schema says."""
    assert fingerprint_of(**one) == fingerprint_of(**other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"id": 1}, {"id": 1, "assignee": None}),
        ({"id": 1, "assignee": None}, {"id": 1, "assignee": ""}),
        ({"id": 1, "labels": [1]}, {"id": 1, "labels": ["1"]}),
        ({"id": 1, "pair": ["a", "b"]}, {"id": 1, "pair": ["b", "a"]}),
        ({"id": 1}, {"id": 1, "tree": {"name": "a"}}),
        ({"id": 1, "flag": None}, {"id": 1, "flag": False}),
    ],
)
def test_arguments_of_a_json_schema_that_are_not_the_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Left out, null and empty are three things; a place in a tuple means something."""
    assert fingerprint_of(**one) != fingerprint_of(**other)


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({}, "id"),
        ({"id": True}, "id"),
        ({"id": 1, "size": True}, "size"),
        ({"id": 1, "level": "middle"}, "level"),
        ({"id": 1, "title": None}, "title"),
        ({"id": 1, "tree": {}}, "tree.name"),
        ({"id": 1, "extra": {"a": "x"}}, "extra.a"),
        ({"id": 1, "model_dump": 4}, "model_dump"),
        ({"id": 1, "more": 4}, "more"),
    ],
)
def test_what_a_json_schema_does_not_allow_is_invalid(sent: dict[str, Any], field: str) -> None:
    """The field is named."""
    with pytest.raises(InvalidArguments) as refused:
        fingerprint_of(**sent)
    assert refused.value.field.startswith(field)


async def test_what_was_left_out_is_not_sent_as_null(ledger: Ledger) -> None:
    """A null could empty what it names: the tool gets what was given, under the names of its schema."""
    got: list[dict[str, Any]] = []
    tool = StructuredTool(name="issue", description="", args_schema=ISSUE, func=lambda **given: got.append(given))
    issue = as_action(tool, **WRITE)
    tree = {"name": "a", "under": [{"name": "b", "z": None}], "x": 1}
    sent = {"id": "1", "assignee": None, "tree": tree, "_meta": "m", "model_dump": 3}
    outcome = await through_sync(issue, sent, ledger=ledger)
    assert got == [{"id": 1, "assignee": None, "level": "low", "tree": tree, "_meta": "m", "model_dump": 3}]
    kept = action_of(ledger, outcome).arguments
    assert set(kept) == {"id", "assignee", "level", "tree", "arg_meta", "arg_model_dump"}
    assert "left out" not in action_of(ledger, outcome).summary
    assert set(issue.args) == {*ISSUE["properties"], "repeat_of"}  # type: ignore[misc]
    assert issue.args["level"] == ISSUE["properties"]["level"]  # type: ignore[index]


def test_names_that_python_would_rather_not_have_reach_the_tool() -> None:
    """Whatever a schema calls its arguments."""
    names = ["user-id", "_id", "arg_id", "__x", "json", "model_config", "class", "x.y", "function", "values"]
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    tool = StructuredTool(name="odd", description="", args_schema=schema, func=lambda **given: given)
    odd = as_action(tool, risk="read")
    model = arguments.validate(odd.contract.schema, {name: name for name in names})
    assert odd.contract.function(**arguments.values_of(model)) == {name: name for name in names}
    kept = odd.contract.schema.model_validate_json(arguments.plain_json(model))
    assert arguments.values_of(kept) == arguments.values_of(model)


@pytest.mark.parametrize(
    "properties",
    [
        {"a": True, "b": {"type": []}, "c": {"type": ["string", 5]}, "d": {"enum": []}, "e": {"$ref": "#/nowhere"}},
        {"a": {"$ref": "http://elsewhere"}, "b": {"enum": [{"x": 1}]}, "c": {"type": "tuple"}, "d": {"anyOf": []}},
        {"a": {"type": "object", "properties": [1], "required": True}, "b": {"items": {"type": "string"}}},
    ],
)
def test_an_odd_schema_lets_anything_through(properties: dict[str, Any]) -> None:
    """What is not understood is left to the tool, which has the schema too."""
    model = model_of({"type": "object", "properties": properties}, "odd")
    sent = {name: {"any": ["thing", 1, None]} for name in properties}
    assert arguments.validate(model, sent).model_dump() == sent


def test_a_schema_that_grows_without_end_is_read_to_a_bound() -> None:
    """Each level refers to the next one twice: a kilobyte that says a billion things."""
    levels = {
        f"l{n}": {"type": "object", "properties": {side: {"$ref": f"#/$defs/l{n + 1}"} for side in "ab"}}
        for n in range(30)
    }
    begun = time.monotonic()
    model_of({"type": "object", "$defs": levels, "properties": {"x": {"$ref": "#/$defs/l0"}}}, "large")
    assert time.monotonic() - begun < 20


def test_an_action_may_bring_a_model_for_its_arguments() -> None:
    """As LangChain's own decorator takes one; a function that does not take its fields is refused at once."""

    @action(**WRITE, args_schema=Tidy)
    def pay(order_id: Any) -> None:
        """Pay."""

    assert pay.contract.annotations == {"order_id": str}
    with pytest.raises(ContractError, match="does not take what args_schema describes"):

        @action(**WRITE, args_schema=Tidy)
        def other(order: str) -> None: ...

    with pytest.raises(ContractError, match="args_schema must be a pydantic model"):
        action(**WRITE, args_schema={"type": "object"})(pay_sync)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["@tool", "structured, JSON schema"])
def test_in_somebody_elses_agent_a_wrapped_tool_is_seen_once(kind: str, database_url: str) -> None:
    """The tool node announces the call; the tool inside, which has callbacks of its own, does not do so again."""
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        model, tools = ScriptedModel(script=once(call("pay", "c", order_id="A-1"))), [as_action(KINDS[kind](), **WRITE)]
        agent = create_agent(model, tools, middleware=[ActionMiddleware(ledger=ledger)], checkpointer=saver)
        config: Any = {"configurable": {"thread_id": "t"}}
        given: Any = {"messages": [HumanMessage("pay")]}
        events = list(agent.stream(given, config, stream_mode="tools", durability="sync"))
        told = [m.artifact for m in agent.get_state(config).values["messages"] if isinstance(m, ToolMessage)]
    assert [(event["event"], event["tool_call_id"]) for event in events] == [
        ("tool-started", "c"),
        ("tool-finished", "c"),
    ]
    assert [(one["code"], one["receipt"]) for one in told] == [("succeeded", "R-1")]


def test_in_an_agent_a_wrapped_tool_is_an_action_like_any_other(database_url: str) -> None:
    """Two identical calls in one message have one effect."""
    same = {"order_id": "A-1", "amount": 25}
    script = once(call("pay", "a", **same), call("pay", "b", **same))
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        tools = [as_action(KINDS["@tool"](), **WRITE)]
        agent = build_agent(ScriptedModel(script=script), tools, ledger=ledger, checkpointer=saver)
        messages = Session(agent, ledger=ledger, thread_id="t").send("pay").messages
    told = [message.artifact for message in messages if isinstance(message, ToolMessage)]
    assert sorted(one["code"] for one in told) == ["duplicate", "succeeded"]
    assert {one["receipt"] for one in told} == {"R-1"}
    assert len(EFFECTS) == 1
