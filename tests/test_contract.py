"""A declaration that contradicts itself is refused when it is made, with the sentence that says how to fix it."""

import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Annotated, Any

import pytest
from langchain_core.tools import tool as langchain_tool
from pydantic import AfterValidator, Field, SecretStr

from acts import Remote, count, through_async, through_sync
from settled import (
    Ask,
    Backoff,
    Budget,
    Code,
    ContractError,
    ContractWarning,
    Incidental,
    InvalidArguments,
    Ledger,
    Message,
    Unguarded,
    action,
    always,
    current_action,
    first_time,
    over,
)
from settled.tools.contract import ActionTool
from settled.tools.effects import Absent

WRITE: dict[str, Any] = {"risk": "non_idempotent_write", "remote": "opaque", "identity": ("order_id",)}


def declared(**contract: Any) -> ActionTool:
    @action(**{**WRITE, **contract})
    def pay(order_id: str, amount: float = 1, memo: Annotated[str, Incidental()] = "") -> object:
        """Pay an order."""
        return None

    return pay


def query(_: object) -> Absent:
    return Absent()


async def aquery(_: object) -> None:
    """Runs only when it is awaited."""


CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "no identity": ({"identity": None}, r'identity=\("field", \.\.\.\) or identity="all"'),
    "identity that is no argument": ({"identity": ("oder",)}, "not an argument"),
    "identity of nothing": ({"identity": ()}, 'makes all calls one and the same.*or "all"'),
    "identity as one text": ({"identity": "order_id"}, r'\("order_id",\)'),
    "unique as one text": ({"unique": "order_id"}, r'\("order_id",\)'),
    "unique that is no argument": ({"unique": ("oder",)}, "not an argument"),
    "incidental identity": ({"identity": ("memo",)}, "cannot be both incidental"),
    "incidental unique": ({"unique": ("memo",)}, "cannot be both incidental"),
    "queryable without a query": ({"remote": "queryable"}, 'needs query=.*or say remote="opaque"'),
    "a read with a query": ({"risk": "read", "identity": None, "query": query}, "drop them"),
    "a read with an identity": ({"risk": "read"}, "drop them"),
    "resend where a repeat is recognised": (
        {"resend_when_absent": True, "unique": ("order_id",)},
        "resend_when_absent",
    ),
    "resend without a lock": (
        {"resend_when_absent": True, "remote": "queryable", "query": query},
        "under the lock of that key",
    ),
    "no attempt": ({"max_attempts": 0}, "at least 1"),
    "no time": ({"timeout": 0}, "more than 0"),
    "negative time": ({"timeout": -1}, "more than 0"),
    "nan time": ({"timeout": float("nan")}, "timeout"),
    "deadline below timeout": ({"timeout": 10, "deadline": 5}, "deadline must not be below timeout"),
    "timeout not below lease": ({"timeout": 10, "lease": 10}, "timeout must be below lease"),
    "settle window below timeout": ({"timeout": 10, "settle_window": 5}, "settle_window must not be below timeout"),
    "no window": ({"window": timedelta(0)}, "window must be more than 0"),
    "window in seconds": ({"window": 86400}, r"window must be a timedelta, such as timedelta\(hours=24\), not 86400"),
    "timeout as text": ({"timeout": "10"}, "timeout must be a finite number of seconds, not '10'"),
    "endless deadline": ({"deadline": float("inf")}, "deadline must be a finite number"),
    "lease that is a truth": ({"lease": True}, "lease must be a finite number"),
    "settle window as timedelta": ({"settle_window": timedelta(seconds=20)}, "settle_window must be a finite number"),
    "half an attempt": ({"max_attempts": 1.5}, "max_attempts must be a whole number"),
    "backoff as a number": ({"backoff": 2}, r"backoff must be a Backoff\(\.\.\.\)"),
    "query that is no function": ({"query": "find"}, "query must be a function"),
    "receipt that is neither": ({"receipt": 5}, "a field's name or a function"),
    "messages that are none": ({"messages": "unknown"}, "messages must be a mapping"),
    "a message for no code": ({"messages": {"unknwon": "x"}}, "no code 'unknwon'"),
    "summary that is none": ({"summary": 5}, "a template, or one per language"),
    "summary of no argument": ({"summary": "pay {oder}"}, "summary names 'oder'"),
    "summary without names": ({"summary": "pay {}"}, "summary names ''"),
    "summary with an open brace": ({"summary": "pay {order_id"}, "write a literal brace twice"),
    "summary with a bad conversion": (
        {"summary": "pay {order_id!x}"},
        r"{order_id!x}, which suits no value: write {order_id}",
    ),
    "summary with a bad format": ({"summary": {"en": "pay {amount:.2q}"}}, "{amount:.2q}, which suits no value"),
    "approval that is no function": ({"approval": Ask()}, "approval must be a function of the planned action, or sev"),
    "approval as a word": ({"approval": "always"}, "approval must be a function of the planned action, or several"),
    "approval with a word among it": ({"approval": [always, "x"]}, "approval must be a function of the planned action"),
    "approval over no argument": ({"approval": over("amuont", 5)}, r"name \['amuont'\], which is not an argument"),
    "first time of no argument": ({"approval": [always, first_time("payee")]}, r"name \['payee'\]"),
    "budget of no argument": ({"budgets": [Budget(5, of="amuont")]}, r"name \['amuont'\], which is not an argument"),
    "budgets that are none": ({"budgets": [500]}, r"budgets must be a sequence of Budget\(\.\.\.\)"),
    "one budget": ({"budgets": Budget(5)}, r"budgets must be a sequence of Budget\(\.\.\.\)"),
    "a read with an approval": ({"risk": "read", "identity": None, "approval": always}, "no approval and no budget"),
    "a read with a budget": ({"risk": "read", "identity": None, "budgets": [Budget(5)]}, "no approval and no budget"),
    "undone by a plain function": ({"compensate": query}, "compensate= takes a tool that was declared with @action"),
    "undone by a word": ({"compensate": "cancel"}, "compensate= takes a tool that was declared with @action"),
    "messages before there is anything to tell": ({"emits": Message("paid")}, "emits must be a function"),
    "messages that are awaited": ({"emits": aquery}, "emits must be a plain function"),
    "a read that emits": (
        {"risk": "read", "identity": None, "emits": query},
        "nothing to compensate and nothing to em",
    ),
    "unknown risk": ({"risk": "dangerous"}, "read, idempotent_write, non_idempotent_write"),
    "unknown remote": ({"remote": "eventual"}, "dedupes, queryable, opaque"),
}


@pytest.mark.parametrize(("contract", "sentence"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_contradiction_is_refused_with_its_remedy(contract: dict[str, Any], sentence: str) -> None:
    """Each contradiction has its own sentence."""
    with pytest.raises(ContractError, match=sentence):
        declared(**contract)


@pytest.mark.parametrize("topic", ["", " ", "a\nb", "x" * 201, 7])
def test_a_topic_is_a_name(topic: Any) -> None:
    """Sinks are chosen by it, and people read it in a table."""
    with pytest.raises(InvalidArguments, match="topic: must be a name"):
        Message(topic)


@pytest.mark.parametrize("backoff", [{"first": -1}, {"first": 9, "cap": 1}, {"jitter": float("nan")}])
def test_a_backoff_judges_itself(backoff: dict[str, float]) -> None:
    """Negative, shrinking or unending waits are refused."""
    with pytest.raises(ContractError, match="backoff"):
        Backoff(**backoff)


def test_signatures_that_cannot_be_described() -> None:
    """Arguments without a name, and a `repeat_of` of the author's own, are refused."""
    with pytest.raises(ContractError, match="name each argument"):

        @action(**WRITE)
        def rest(order_id: str, *rest: str) -> None: ...

    with pytest.raises(ContractError, match="name each argument"):

        @action(**WRITE)
        def more(order_id: str, **more: str) -> None: ...

    with pytest.raises(ContractError, match="added by itself"):

        @action(**WRITE)
        def twice(order_id: str, repeat_of: str) -> None: ...


def test_only_one_plain_function_can_be_an_action() -> None:
    """What is a tool already, has no name, or yields, is refused with what to write instead."""

    def pay(order_id: str) -> None: ...

    def each(order_id: str) -> Iterator[str]:
        yield order_id

    async def later(order_id: str) -> AsyncIterator[str]:
        yield order_id

    refused: list[tuple[Any, str]] = [
        (declared(), "pay is a LangChain tool already.*instead of @tool"),
        (langchain_tool(look), "look is a LangChain tool already"),
        (partial(pay, "A"), "goes on a function"),
        (dict, "goes on a function"),
        (lambda order_id: None, "a lambda has no name"),
        (each, "each: its body yields.*return it"),
        (later, "later: its body yields.*return it"),
    ]
    for function, sentence in refused:
        with pytest.raises(ContractError, match=sentence):
            action(**WRITE)(function)


def look(order_id: str) -> str:
    """Look at an order."""
    return order_id


def test_a_summary_that_does_not_suit_a_value_gives_way_to_the_default() -> None:
    """A name for people never stops a call."""

    @action(**WRITE, summary="refund of {amount:.2f}")
    def refund(order_id: str, amount: float | None = None) -> None: ...

    assert refund.contract.summarize({"order_id": "A", "amount": 25}, "en") == "refund of 25.00"
    assert refund.contract.summarize({"order_id": "A", "amount": None}, "en") == "refund (order_id A)"


def test_formats_for_values_of_any_type_are_taken() -> None:
    """Numbers, texts and instants have formats of their own."""
    for template in ("{order_id:>10}", "{amount:,.2f}", "{amount!r:.3}", "{amount:.0%}", "{order_id:%d.%m.%Y}", "{{}}"):
        declared(summary=template)


def test_a_remote_side_that_nobody_asks_draws_a_warning_at_the_declaration() -> None:
    """A contract that says "dedupes" without a query reads as if a lost reply were sent again."""
    with pytest.warns(ContractWarning, match=r"pay: a lost reply goes to a person.*query=.*opaque") as warned:
        declared(remote="dedupes")
    assert warned[0].filename == __file__


def test_loose_text_draws_a_warning_that_names_it() -> None:
    """A free text that is neither identity, incidental nor constrained."""
    with pytest.warns(ContractWarning, match="'reason'.*Incidental"):

        @action(**WRITE)
        def pay(order_id: str, reason: str) -> None: ...


@pytest.mark.filterwarnings("error")
def test_tidy_text_draws_none() -> None:
    """Incidental, constrained and identity texts are fine, and so is a repeat that does no harm."""
    declared()

    @action(**{**WRITE, "identity": "all"})
    def every(order_id: str, reason: str) -> None: ...

    @action(**WRITE)
    def bounded(order_id: str, currency: Annotated[str, Field(pattern="^[A-Z]{3}$")]) -> None: ...

    @action(risk="idempotent_write", remote="opaque")
    def harmless(order_id: str, reason: str) -> None: ...

    with warnings.catch_warnings():
        warnings.simplefilter("error")

        @action(risk="read")
        def look(text: str) -> None: ...


async def test_calling_the_tool_directly_is_refused(ledger: Ledger) -> None:
    """A plain tool node cannot bypass the ledger: the body is not reached."""
    remote = Remote()

    @action(**{**WRITE, "name": "pay_order"})
    def pay(order_id: str) -> object:
        """Pay an order."""
        return remote.do()

    for call in (pay.invoke, pay.run):
        with pytest.raises(Unguarded, match="pay_order is an action"):
            call({"order_id": "A"})
    with pytest.raises(Unguarded, match=r"settled\.perform"):
        await pay.ainvoke({"order_id": "A"})
    with pytest.raises(Unguarded):
        current_action()
    assert (remote.effects, count(ledger.url)) == ([], 0)
    assert (pay.name, pay.description) == ("pay_order", "Pay an order.")
    assert set(pay.args) == {"order_id", "repeat_of"}


async def test_a_read_may_be_called_in_any_way(ledger: Ledger) -> None:
    """No side effect: no ledger row, callable directly, tried again while it is refused."""
    calls: list[str] = []

    @action(risk="read", backoff=Backoff(first=0.01, cap=0.01, jitter=0))
    def look(order_id: str) -> str:
        """Look at an order."""
        calls.append(order_id)
        if len(calls) == 2:
            raise TimeoutError
        return f"order {order_id}"

    assert look.invoke({"order_id": "A"}) == "order A"
    outcome = await through_sync(look, ["A"], ledger=ledger)
    assert (outcome.code, outcome.result, outcome.state, outcome.attempts) == (Code.SUCCEEDED, "order A", None, 2)
    again = await through_async(look, ["A"], ledger=ledger)
    assert (again.code, again.replayed) == (Code.SUCCEEDED, False)
    assert (len(calls), count(ledger.url)) == (4, 0)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Annotated[int, AfterValidator(lambda euros: euros * 100)], 5),
        (SecretStr, "hunter2"),
        (Annotated[int, Field(exclude=True)], 5),
        (Any, Decimal("1.5")),
    ],
    ids=["validator that changes twice", "SecretStr", "left out of JSON", "Decimal for Any"],
)
async def test_what_was_hashed_is_what_is_carried_out(hint: Any, value: object, ledger: Ledger) -> None:
    """An argument that its stored form would change is refused before anything is written: 5 never becomes 50000."""
    got: list[object] = []

    def pay(amount: object) -> object:
        got.append(amount)
        return {"receipt": "R-1"}

    pay.__annotations__["amount"] = hint
    tool = action(risk="idempotent_write", remote="opaque")(pay)
    for door in (through_sync, through_async):
        with pytest.raises(ContractError, match="amount cannot be stored and read back"):
            await door(tool, [value], ledger=ledger)
    assert (got, count(ledger.url)) == ([], 0)


@pytest.mark.parametrize(
    ("hint", "value", "carried_out"),
    [
        (Annotated[str, AfterValidator(str.strip)], "  x ", "x"),
        (set[int], [3, 1, 3], {1, 3}),
        (bytes, "abc", b"abc"),
        (tuple[int, str], [1, "a"], (1, "a")),
        (int | str, "5", "5"),
        (float, 0.1 + 0.2, 0.1 + 0.2),
        (Decimal, "100.50", Decimal("100.50")),
        (dict[str, list[int]], {"a": [2, 1]}, {"a": [2, 1]}),
        (Any, {"a": [1, None, "x"]}, {"a": [1, None, "x"]}),
    ],
    ids=range(9),
)
async def test_validated_values_survive_the_store(
    hint: Any, value: object, carried_out: object, ledger: Ledger
) -> None:
    """Types that JSON does not have come back from the ledger as the schema made them."""
    got: list[object] = []

    def pay(amount: object) -> None:
        got.append(amount)

    pay.__annotations__["amount"] = hint
    tool = action(risk="idempotent_write", remote="opaque")(pay)
    outcome = await through_sync(tool, [value], ledger=ledger)
    assert (outcome.code, got) == (Code.SUCCEEDED, [carried_out])
    assert type(got[0]) is type(carried_out)


HEAVY = ("langgraph", "langchain_core", "psycopg", "pydantic", "cryptography", "httpx", "httpx2")


def test_import_is_light_and_every_name_resolves() -> None:
    """`import settled` loads nothing heavy, in well under a second; each public name is there when asked for."""
    code = f"""
import sys, time
begun = time.perf_counter()
import settled
took = time.perf_counter() - begun
loaded = [name for name in {HEAVY!r} if name in sys.modules]
assert not loaded, loaded
assert took < 0.5, took
missing = [name for name in settled.__all__ if getattr(settled, name, None) is None]
assert not missing, missing
assert set(settled.__all__) <= set(dir(settled))
try:
    settled.nonsense
except AttributeError as error:
    assert "nonsense" in str(error)
else:
    raise AssertionError("a name that is not there was found")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_tools_and_state_do_not_load_langgraph() -> None:
    """The door without LangGraph works without it."""
    code = "import sys, settled; settled.perform, settled.Ledger, settled.action; assert 'langgraph' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
