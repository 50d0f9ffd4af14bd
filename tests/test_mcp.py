"""Tools of a real MCP server over stdio: an answer that is lost with the transport never makes a second effect."""

import json
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.interceptors import MCPToolCallRequest
from langchain_mcp_adapters.tools import convert_mcp_tool_to_langchain_tool, load_mcp_tools
from mcp.types import Tool as Listed

from acts import action_of, both_doors, count, states, through_async, triggers_of
from scripted import Script, ScriptedModel, call, calling
from settled import (
    Absent,
    ActionTool,
    Backoff,
    Code,
    ContractError,
    Found,
    Incidental,
    Inquiry,
    Invalid,
    Ledger,
    Rejected,
    Session,
    State,
    Unknown,
    actions_from_mcp,
    always,
    aopen_checkpointer,
    build_agent,
    carry_key,
)
from settled.tools.mcp import _meaning

SERVER = Path(__file__).parent / "children" / "mcp_server.py"
PAYMENT = {"invoice": "INV-1", "amount": 25}
LISTED: list[Listed] = []
BY_INVOICE: dict[str, Any] = {"identity": ("invoice",), "markers": {"note": Incidental()}}


class Bank:
    """The server's folder, and a client that starts it for each call."""

    def __init__(self, folder: Path, *, keyed: bool = True) -> None:
        self.folder = folder
        env = {"SETTLED_MCP_FOLDER": str(folder), "SETTLED_MCP_SLOW_S": "5"}
        connection: Any = {"transport": "stdio", "command": sys.executable, "args": [str(SERVER)], "env": env}
        self.client = MultiServerMCPClient({"bank": connection})
        if keyed:
            carry_key(self.client)

    async def tools(self, overrides: Mapping[str, Any] | None = None, **defaults: Any) -> dict[str, ActionTool]:
        found = actions_from_mcp(await self.loaded(), overrides, **defaults)
        return {tool.name: tool for tool in found}

    async def loaded(self) -> list[BaseTool]:
        """The client's tools, as `get_tools` makes them; a server is started for their list once for all tests."""
        if not LISTED:
            async with self.client.session("bank") as session:
                LISTED.extend((await session.list_tools()).tools)
        how: dict[str, Any] = {
            "connection": self.client.connections["bank"],
            "server_name": "bank",
            "tool_interceptors": self.client.tool_interceptors,
        }
        return [convert_mcp_tool_to_langchain_tool(None, tool, **how) for tool in LISTED]

    def switch(self, fault: str) -> None:
        """Let the next payment meet a fault."""
        (self.folder / "switch").write_text(fault)

    def go_away(self) -> None:
        """The server can no longer be started."""
        self.client.connections["bank"]["command"] = str(self.folder / "gone")  # type: ignore[typeddict-unknown-key]

    @property
    def effects(self) -> list[dict[str, Any]]:
        file = self.folder / "effects"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    async def find(self, inquiry: Inquiry) -> Found | Absent:
        """Ask the server what became of a payment, through its own tool."""
        tools = {tool.name: tool for tool in await self.loaded()}
        found = await tools["find_payment"].ainvoke({"invoice": inquiry.arguments["invoice"]})
        payment = json.loads(found[0]["text"])
        if payment["receipt"] is None:
            return Absent()
        return Found(payment["receipt"], fields={"amount": payment["amount"]})


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    return Bank(tmp_path)


async def test_annotations_say_what_a_repeat_would_do(bank: Bank) -> None:
    """A read, an idempotent write, and everything else; what the server says of itself is kept."""
    tools = {tool.name: tool for tool in actions_from_mcp(await bank.client.get_tools())}
    assert {name: str(tool.contract.risk) for name, tool in tools.items()} == {
        "pay": "non_idempotent_write",
        "find_payment": "read",
        "set_limit": "idempotent_write",
        "close_account": "non_idempotent_write",
    }
    assert tools["pay"].contract.identity == ("invoice", "amount", "note", "purpose")
    assert (tools["pay"].description, tools["pay"].args["amount"]["type"]) == ("Pay an invoice.", "number")
    assert {name for name, tool in tools.items() if "repeat_of" not in tool.args} == {"find_payment"}
    assert (tools["close_account"].metadata or {})["destructiveHint"] is True


async def test_overrides_know_better(bank: Bank) -> None:
    """An override holds for its tool, a default for the writes; neither asks a read for an identity."""
    tools = await bank.tools(
        {"pay": {**BY_INVOICE, "query": bank.find}},
        approval=always,
        timeout=20,
    )
    pay, find = tools["pay"].contract, tools["find_payment"].contract
    assert (pay.identity, pay.remote, pay.timeout_s, len(pay.approval)) == (("invoice",), "queryable", 20, 1)
    assert (find.timeout_s, find.approval) == (20, ())
    distrusted = await bank.tools(risk="non_idempotent_write")
    assert {str(tool.contract.risk) for tool in distrusted.values()} == {"non_idempotent_write"}


def stub(name: str, **parts: Any) -> BaseTool:
    schema = {"type": "object", "properties": {"x": {"type": "string"}}}
    return StructuredTool(name=name, description="", args_schema=schema, func=lambda **_: "", **parts)


def test_what_cannot_be_told_apart_or_is_not_there_is_refused() -> None:
    """A misspelt override would leave a tool with less than was meant for it."""
    with pytest.raises(ContractError, match=r"overrides name \['pya'\], which is no tool; there are \['pay'\]"):
        actions_from_mcp([stub("pay")], {"pya": {"identity": ("x",)}})
    with pytest.raises(ContractError, match=r"two tools are named pay: load them with tool_name_prefix=True"):
        actions_from_mcp([stub("pay"), stub("pay")])
    with pytest.raises(ContractError, match="identiy is no part of a contract"):
        actions_from_mcp([stub("pay")], {"pay": {"identiy": ("x",)}})
    with pytest.raises(ContractError, match="a read has no identity"):
        actions_from_mcp([stub("look", metadata={"readOnlyHint": True})], {"look": {"identity": ("x",)}})


@both_doors
async def test_a_payment_carries_its_key(door: Any, bank: Bank, ledger: Ledger) -> None:
    """The server sees the key in `_meta`; the same call again is answered from the ledger."""
    pay = (await bank.tools())["pay"]
    outcome = await door(pay, PAYMENT, ledger=ledger)
    assert (outcome.code, outcome.receipt, outcome.result) == (Code.SUCCEEDED, "P-1", {"receipt": "P-1"})
    again = await door(pay, {**PAYMENT, "amount": "25.0", "note": ""}, ledger=ledger)
    assert (again.code, again.receipt) == (Code.DUPLICATE, "P-1")
    assert [effect["key"] for effect in bank.effects] == [outcome.idempotency_key]


async def test_an_argument_for_the_key_is_filled_in_and_not_shown(bank: Bank, ledger: Ledger) -> None:
    """Many servers take the key among the arguments; a model that chose it would make each call another one."""
    close = (await bank.tools())["close_account"]
    assert "idempotency_key" not in close.args
    outcome = await through_async(close, {"account": "A"}, ledger=ledger)
    assert (outcome.code, outcome.result) == (Code.SUCCEEDED, "closed")
    assert [effect["argument"] for effect in bank.effects] == [outcome.idempotency_key]
    given = await through_async(close, {"account": "B", "idempotency_key": "mine"}, ledger=ledger)
    assert given.code is Code.INVALID


@both_doors
async def test_transport_dropped_after_the_commit_is_found_by_the_query(door: Any, bank: Bank, ledger: Ledger) -> None:
    """The server has paid and is gone before it answers: unknown, then found; the user gets the receipt."""
    pay = (await bank.tools({"pay": {**BY_INVOICE, "query": bank.find}}))["pay"]
    bank.switch("drop")
    outcome = await door(pay, PAYMENT, ledger=ledger)
    assert (outcome.code, outcome.receipt, outcome.state) == (Code.SUCCEEDED, "P-1", State.SUCCEEDED)
    assert triggers_of(ledger, outcome)[-2:] == ["lose", "find"]
    assert (await door(pay, PAYMENT, ledger=ledger)).receipt == "P-1"
    assert len(bank.effects) == 1


@both_doors
async def test_transport_dropped_without_a_query_is_for_a_person(door: Any, bank: Bank, ledger: Ledger) -> None:
    """Nobody can tell, so nothing is sent again, however often and in whatever words it is asked for."""
    pay = (await bank.tools({"pay": BY_INVOICE}))["pay"]
    bank.switch("drop")
    outcome = await door(pay, PAYMENT, ledger=ledger)
    assert (outcome.code, outcome.state) == (Code.MANUAL_REVIEW, State.UNKNOWN)
    assert not re.search("fail|error|try again", outcome.message, re.IGNORECASE)
    for reworded in ({}, {"note": "please"}, {"amount": 26}):
        again = await door(pay, {**PAYMENT, **reworded}, ledger=ledger)
        assert again.code in (Code.MANUAL_REVIEW, Code.CONFLICT)
    assert (len(bank.effects), states(ledger.url)) == (1, ["unknown"])


async def test_the_plain_tool_pays_twice(tmp_path: Path) -> None:
    """The same loss without a ledger: whoever retries the tool pays again."""
    bank = Bank(tmp_path, keyed=False)
    pay = next(tool for tool in await bank.loaded() if tool.name == "pay")
    bank.switch("drop")
    await pay.with_retry(stop_after_attempt=2, wait_exponential_jitter=False).ainvoke(PAYMENT)
    assert len(bank.effects) == 2


async def test_a_timeout_is_no_answer(bank: Bank, ledger: Ledger) -> None:
    """The server has paid and thinks on: the query finds the payment; the late reply adds nothing."""
    pay = (await bank.tools({"pay": {**BY_INVOICE, "query": bank.find}}, timeout=3.5))["pay"]
    bank.switch("slow")
    outcome = await through_async(pay, PAYMENT, ledger=ledger)
    assert (outcome.code, outcome.receipt) == (Code.SUCCEEDED, "P-1")
    assert (len(bank.effects), states(ledger.url)) == (1, ["succeeded"])


async def test_an_idempotent_write_is_sent_again_under_its_key(bank: Bank, ledger: Ledger) -> None:
    """The server says that a repeat is harmless: a lost answer is one."""
    set_limit = (await bank.tools(backoff=Backoff(first=0.01, cap=0.01)))["set_limit"]
    bank.switch("drop")
    outcome = await through_async(set_limit, {"account": "A", "limit": "5"}, ledger=ledger)
    assert (outcome.code, outcome.result, outcome.attempts) == (Code.SUCCEEDED, "the limit of A is 5", 2)
    assert [effect["key"] for effect in bank.effects] == [outcome.idempotency_key] * 2


async def test_an_error_result_is_the_servers_answer(bank: Bank, ledger: Ledger) -> None:
    """It processed the call and says no, in its own words."""
    pay = (await bank.tools())["pay"]
    bank.switch("no")
    outcome = await through_async(pay, PAYMENT, ledger=ledger)
    assert (outcome.code, outcome.state) == (Code.REJECTED, State.FAILED)
    assert action_of(ledger, outcome).reason == "invoice INV-1 is paid already"
    assert (bank.effects, (await bank.client.get_tools())[0].handle_tool_error is not False) == ([], True)


async def test_an_error_result_that_speaks_of_a_lost_answer_is_no_no(bank: Bank, ledger: Ledger) -> None:
    """The server's own upstream did not answer it: the SDK makes an error result of that as of a refusal."""
    pay = (await bank.tools({"pay": {**BY_INVOICE, "query": bank.find}}))["pay"]
    bank.switch("upstream")
    outcome = await through_async(pay, PAYMENT, ledger=ledger)
    assert (outcome.code, outcome.receipt, len(bank.effects)) == (Code.SUCCEEDED, "P-1", 1)


async def test_a_server_that_cannot_be_started_was_sent_nothing(bank: Bank, ledger: Ledger) -> None:
    """Refused, tried again, and given up: nothing happened, and nobody has to look."""
    pay = (await bank.tools(max_attempts=2, backoff=Backoff(first=0.01, cap=0.01)))["pay"]
    bank.go_away()
    outcome = await through_async(pay, PAYMENT, ledger=ledger)
    assert (outcome.code, outcome.state, outcome.attempts) == (Code.UNAVAILABLE, State.FAILED, 2)


async def test_without_the_carrier_a_server_that_cannot_be_started_is_unknown(tmp_path: Path, ledger: Ledger) -> None:
    """From outside the adapters a session that never began looks like one that broke."""
    bank = Bank(tmp_path, keyed=False)
    pay = (await bank.tools())["pay"]
    assert (await through_async(pay, {**PAYMENT, "invoice": "INV-0"}, ledger=ledger)).code is Code.SUCCEEDED
    assert bank.effects[0]["key"] is None
    bank.go_away()
    assert (await through_async(pay, PAYMENT, ledger=ledger)).code is Code.MANUAL_REVIEW


@both_doors
async def test_a_read_has_no_row(door: Any, bank: Bank, ledger: Ledger) -> None:
    """It may be called again, and nothing is written down."""
    find = (await bank.tools())["find_payment"]
    outcome = await door(find, {"invoice": "INV-1"}, ledger=ledger)
    assert (outcome.code, outcome.result, outcome.state) == (Code.SUCCEEDED, {"receipt": None}, None)
    assert count(ledger.url) == 0


async def test_bad_arguments_do_not_reach_the_server(bank: Bank, ledger: Ledger) -> None:
    """The server's schema is known here."""
    pay = (await bank.tools())["pay"]
    bank.go_away()
    for wrong in ({"amount": "much"}, {"amount": True}, {"extra": 1}, {"invoice": None}):
        outcome = await through_async(pay, {**PAYMENT, **wrong}, ledger=ledger)
        assert outcome.code is Code.INVALID
        assert next(iter(wrong)) in outcome.message
    assert count(ledger.url) == 0


async def test_tools_of_a_session_that_is_kept_open(bank: Bank, ledger: Ledger) -> None:
    """They do not come by the carrier, and are actions all the same."""
    async with bank.client.session("bank") as session:
        pay = {tool.name: tool for tool in actions_from_mcp(await load_mcp_tools(session))}["pay"]
        outcome = await through_async(pay, PAYMENT, ledger=ledger)
        assert (outcome.code, outcome.receipt) == (Code.SUCCEEDED, "P-1")
        bank.switch("drop")
        lost = await through_async(pay, {**PAYMENT, "invoice": "INV-2"}, ledger=ledger)
        assert lost.code is Code.MANUAL_REVIEW


async def test_interceptors_of_others_keep_working(bank: Bank, ledger: Ledger) -> None:
    """The carrier is the innermost."""
    seen: list[str] = []

    async def look_on(request: MCPToolCallRequest, handler: Any) -> Any:
        seen.append(request.name)
        return await handler(request.override(args={**request.args, "note": "seen"}))

    bank.client.tool_interceptors.insert(0, look_on)
    pay = (await bank.tools())["pay"]
    assert (await through_async(pay, PAYMENT, ledger=ledger)).code is Code.SUCCEEDED
    assert (seen, bank.effects[0]["note"]) == (["pay"], "seen")
    assert bank.effects[0]["key"] is not None


@pytest.fixture
async def saver(ledger: Ledger) -> AsyncIterator[Any]:
    async with aopen_checkpointer(ledger) as opened:
        yield opened


def insisting() -> Script:
    """A model that calls a second time, reworded, whatever it was told."""

    def script(messages: Sequence[BaseMessage], has_tools: bool) -> AIMessage:
        told = [message for message in messages if isinstance(message, ToolMessage)]
        if isinstance(messages[-1], HumanMessage):
            return calling(call("pay", "a", **PAYMENT))
        if len(told) == 1:
            return calling(call("pay", "b", **PAYMENT, note="once more"))
        return AIMessage(content="done")

    return script


async def test_in_an_agent_a_dropped_transport_has_one_effect(bank: Bank, ledger: Ledger, saver: Any) -> None:
    """The model insists, in other words: it is told the receipt of the one payment there is."""
    tools = await bank.tools({"pay": {**BY_INVOICE, "query": bank.find}})
    bank.switch("drop")
    agent = build_agent(ScriptedModel(script=insisting()), [*tools.values()], ledger=ledger, checkpointer=saver)
    messages = (await Session(agent, ledger=ledger, thread_id="t").asend("pay INV-1")).messages
    told = [message.artifact for message in messages if isinstance(message, ToolMessage)]
    assert [(one["code"], one["receipt"]) for one in told] == [("succeeded", "P-1"), ("duplicate", "P-1")]
    assert len(bank.effects) == 1


class McpError(Exception):
    """As the SDK has it: by its shape, since the library reads it without importing the SDK."""

    def __init__(self, code: int) -> None:
        super().__init__("it says so")
        self.error = type("ErrorData", (), {"code": code})()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (McpError(-32602), Invalid),
        (McpError(-32601), Rejected),
        (McpError(-32603), Unknown),
        (McpError(-32000), Unknown),
        (McpError(408), Unknown),
        (RuntimeError("Invalid structured content returned by tool pay"), Unknown),
        (ConnectionRefusedError(), Unknown),
        (ToolException("Input validation error: 'x' is not of type 'number'"), Invalid),
        (ToolException("Error executing tool pay: 2 validation errors for payArguments\namount"), Invalid),
        (ToolException("Error executing tool pay: 1 validation error for Payment\nid"), Unknown),
        (ToolException("Output validation error: 'receipt' is a required property"), Unknown),
        (ToolException("Unknown tool: pya"), Invalid),
        (ToolException("Error executing tool pay: the account is closed"), Rejected),
        (ToolException("Error executing tool pay: Server error '502 Bad Gateway' for url"), Unknown),
    ],
    ids=lambda value: str(value) if isinstance(value, Exception) else value.__name__,
)
def test_what_an_error_means(error: Exception, kind: type) -> None:
    """Only what the server says of the call itself is definite."""
    assert isinstance(_meaning(error), kind)
