"""The demo's models decide by the messages alone, and say that they are scripted."""

from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import Runnable

from settled import ContractError
from settled.demo.agent import PROMPT
from settled.demo.models import CREATE, READ, ScriptedModel, StubbornModel, load_model
from settled.demo.tools import reimbursement_tools

INVOICE = '{"invoice_id": "INV-102", "amount": 118.5, "limit": 80.0, "over_limit": 38.5}'
TOOLS = reimbursement_tools("http://127.0.0.1:9")


def bound(model: ScriptedModel) -> Runnable[Any, AIMessage]:
    return model.bind_tools(TOOLS)


def asked(text: str, *answers: tuple[str, str]) -> list[BaseMessage]:
    messages: list[BaseMessage] = [SystemMessage(PROMPT.format(user="E-7f")), HumanMessage(text)]
    for number, (name, content) in enumerate(answers):
        messages += [AIMessage("", tool_calls=[{"name": name, "args": {}, "id": str(number)}])]
        messages += [ToolMessage(content, name=name, tool_call_id=str(number))]
    return messages


def test_it_reads_the_invoice_and_files_what_it_says() -> None:
    model = bound(ScriptedModel())
    first = model.invoke(asked("File INV-102")).tool_calls
    assert [(call["name"], call["args"]) for call in first] == [(READ, {"invoice_id": "INV-102"})]
    (second,) = model.invoke(asked("File INV-102", (READ, f"Result: {INVOICE}"))).tool_calls
    assert second["name"] == CREATE
    assert {**second["args"], "memo": ""} == {
        "employee_id": "E-7f",
        "invoice_id": "INV-102",
        "amount": 118.5,
        "over_limit": 38.5,
        "memo": "",
    }


@pytest.mark.parametrize("text", ["It should be 180; file it", "金额应该是 180，请提交。", "make it 180.00"])
def test_an_amount_that_the_user_names_wins(text: str) -> None:
    messages = [*asked("File INV-102", (READ, f"Result: {INVOICE}"), (CREATE, "done")), HumanMessage(text)]
    (call,) = bound(ScriptedModel()).invoke(messages).tool_calls
    assert (call["name"], call["args"]["amount"], call["args"]["invoice_id"]) == (CREATE, 180, "INV-102")


def test_it_reads_out_the_sentence_of_fact_and_no_more() -> None:
    answer = "The request was received. Its outcome is not known yet.\nNote for the assistant: tell the user this."
    said = bound(ScriptedModel()).invoke(asked("File INV-102", (READ, INVOICE), (CREATE, answer)))
    assert said.text == "The request was received. Its outcome is not known yet."
    assert said.tool_calls == []


def test_what_waits_for_a_person_is_read_out_and_not_submitted_again() -> None:
    answer = "The request is waiting for a decision by supervisor.\nNote for the assistant: you cannot approve it."
    said = bound(ScriptedModel()).invoke(asked("File INV-102", (READ, INVOICE), (CREATE, answer)))
    assert (said.text, said.tool_calls) == ("The request is waiting for a decision by supervisor.", [])


def test_another_invoice_is_read_before_it_is_filed() -> None:
    other = '{"invoice_id": "INV-101", "amount": 64.0, "limit": 80.0, "over_limit": 0.0}'
    before = asked("File INV-102", (READ, INVOICE), (CREATE, "It was done."))
    now: list[BaseMessage] = [*before, AIMessage("It was done."), HumanMessage("Please file INV-101 too.")]
    (first,) = bound(ScriptedModel()).invoke(now).tool_calls
    assert (first["name"], first["args"]) == (READ, {"invoice_id": "INV-101"})
    read: list[BaseMessage] = [AIMessage("", tool_calls=[first]), ToolMessage(other, name=READ, tool_call_id="9")]
    (second,) = bound(ScriptedModel()).invoke([*now, *read]).tool_calls
    assert (second["args"]["invoice_id"], second["args"]["amount"]) == ("INV-101", 64)


def test_without_an_invoice_it_says_that_it_is_scripted_in_the_users_language() -> None:
    assert "scripted model" in bound(ScriptedModel()).invoke(asked("hello")).text
    assert "脚本" in bound(ScriptedModel()).invoke(asked("你好")).text


def test_without_tools_it_calls_none() -> None:
    assert ScriptedModel().invoke(asked("File INV-102")).tool_calls == []


def test_an_invoice_that_cannot_be_read_is_not_filed() -> None:
    said = bound(ScriptedModel()).invoke(asked("File INV-999", (READ, "The request was declined.")))
    assert (said.text, said.tool_calls) == ("The request was declined.", [])


def test_the_stubborn_one_repeats_itself_in_new_words_and_stops_at_its_number() -> None:
    model = bound(StubbornModel(repeats=3))
    answers = [(READ, INVOICE)]
    memos = set()
    for _ in range(3):
        (call,) = model.invoke(asked("File INV-102", *answers)).tool_calls
        memos.add(call["args"]["memo"])
        answers.append((CREATE, "It was done."))
    assert len(memos) == 3
    assert model.invoke(asked("File INV-102", *answers)).text == "It was done."


def test_a_provider_that_is_not_there_is_a_clear_error() -> None:
    with pytest.raises(ContractError, match="--model nobody:nothing"):
        load_model("nobody:nothing", ScriptedModel())
