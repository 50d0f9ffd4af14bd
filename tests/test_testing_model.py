"""A chat model that follows a script, in an agent: also the models that repeat themselves, reword and lie."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from settled import Incidental, Ledger, Session, action, build_agent, current_action, open_checkpointer
from settled.state.errors import ContractError
from settled.testing import ScriptedModel, call_tool, calling, lying, once, reworded, twice

CALL = call_tool("refund", order_id="A-1", memo="as asked")


class Shop:
    """A tool that notes its effects, and a session with an agent that has it."""

    def __init__(self, ledger: Ledger, saver: Any) -> None:
        self.keys: list[str] = []
        self.ledger, self.saver = ledger, saver

    def session(self, model: ScriptedModel) -> Session:
        @action(risk="non_idempotent_write", identity=("order_id",))
        def refund(order_id: str, memo: Annotated[str, Incidental()] = "") -> dict[str, str]:
            """Refund an order."""
            self.keys.append(current_action().idempotency_key)
            return {"receipt": f"R-{len(self.keys)}"}

        agent = build_agent(model, [refund], ledger=self.ledger, checkpointer=self.saver)
        return Session(agent, ledger=self.ledger, thread_id="t")


@pytest.fixture
def shop(database_url: str) -> Iterator[Shop]:
    with Ledger.connect(database_url) as ledger, open_checkpointer(ledger) as saver:
        yield Shop(ledger, saver)


def test_a_list_is_read_by_the_conversation(shop: Shop) -> None:
    """One line for each time that the model speaks; a model made anew, as after a crash, goes on where it stopped."""
    script = [CALL, "It is done.", calling(call_tool("refund", order_id="A-2"))]
    assert shop.session(ScriptedModel(script)).send("A-1, please").text == "It is done."
    model = ScriptedModel(script)
    said = shop.session(model).send("and A-2").text
    assert (said, len(shop.keys)) == ("The request “refund (order_id A-2)” was carried out. Receipt: R-2.", 2)
    assert [type(messages[-1]) for messages in model.shown] == [HumanMessage, ToolMessage]


def test_a_function_is_given_the_conversation(shop: Shop) -> None:
    """It may say a text, a call, or a message of its own."""

    def script(messages: Sequence[BaseMessage]) -> Any:
        return f"I heard {messages[-1].text!r}." if isinstance(messages[-1], HumanMessage) else AIMessage("?")

    assert shop.session(ScriptedModel(script)).send("hello").text == "I heard 'hello'."


def test_each_call_has_an_id_of_its_own() -> None:
    """The same call said twice is two tool calls, as a real model makes them; an id that is given stays."""
    model = ScriptedModel(twice(CALL))
    ids = {call["id"] for _ in range(2) for call in model.invoke("A-1").tool_calls}
    assert len(ids) == 4
    assert ScriptedModel([{**CALL, "id": "c-1"}]).invoke("A-1").tool_calls[0]["id"] == "c-1"
    assert CALL["id"] is None, "the script itself is not touched"


@pytest.mark.parametrize(
    ("script", "calls"),
    [
        (once(CALL), 1),
        (twice(CALL), 2),
        (reworded(CALL, {"memo": "customer insists"}, {"memo": "again"}, times=3), 3),
    ],
    ids=["once", "twice in one message", "reworded"],
)
def test_a_model_that_repeats_itself_has_one_effect(shop: Shop, script: Any, calls: int) -> None:
    """The scripts of models that call again, and what comes of them: one effect, and its receipt."""
    session = shop.session(ScriptedModel(script))
    reply = session.send("A-1, please")
    asked = [call for m in reply.messages if isinstance(m, AIMessage) for call in m.tool_calls]
    assert (len(asked), len(shop.keys)) == (calls, 1)
    assert "R-1" in reply.text


def test_a_reworded_call_has_other_words_each_time() -> None:
    """The changes in order, and the last ones from then on."""
    model = ScriptedModel(reworded(CALL, {"memo": "b"}, {"memo": "c"}, times=4))
    talk: list[BaseMessage] = [HumanMessage("A-1")]
    memos = []
    for n in range(4):
        said = model.invoke(talk)
        memos.append(said.tool_calls[0]["args"]["memo"])
        talk += [said, ToolMessage(f"answer {n}", tool_call_id=said.tool_calls[0]["id"])]
    assert (memos, model.invoke(talk).text) == (["as asked", "b", "c", "c"], "answer 3")


def test_a_model_that_lies_says_its_text(shop: Shop) -> None:
    """Whatever the tool has answered: what the user hears is not the guard."""
    session = shop.session(ScriptedModel(lying(CALL, "It failed, please try again.")))
    assert session.send("A-1, please").text == "It failed, please try again."
    assert len(shop.keys) == 1


def test_a_model_knows_its_tools_and_shares_what_it_was_shown() -> None:
    """Bound to tools it is another model, and the test still sees what that one was shown."""
    model = ScriptedModel(["hello"])
    bound: Any = model.bind_tools([refund_function])
    bound.invoke("hi")
    assert (bound.tool_names, model.tool_names, len(model.shown)) == (("refund_function",), (), 1)


def refund_function(order_id: str) -> None:
    """Refund an order."""


def test_what_is_no_script_is_refused() -> None:
    """At once for the script, and when it is said for a line of it."""
    for script in ("hello", 7, None):
        with pytest.raises(ContractError, match="the script is a list"):
            ScriptedModel(script)  # type: ignore[arg-type]
    with pytest.raises(ContractError, match="a script says texts, calls and AIMessages, not int"):
        ScriptedModel([7]).invoke("hi")  # type: ignore[list-item]
    assert ScriptedModel().invoke("hi").text == "I have nothing to say."
