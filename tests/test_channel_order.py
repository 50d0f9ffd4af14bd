"""The order of a conversation: each answer behind the message that made its call, in the order of the calls, however
the writes come in and are cut.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from settled.graph.channel import merge

NAMES = st.sampled_from("abcd")
"""Few, so that messages share the ids of their calls."""


def calling(message_id: str, calls: Sequence[str], bad: Sequence[str] = ()) -> AIMessage:
    good = [{"name": "pay", "args": {}, "id": name, "type": "tool_call"} for name in calls]
    malformed = [{"name": "pay", "args": "{", "id": name, "type": "invalid_tool_call", "error": None} for name in bad]
    return AIMessage("", id=message_id, tool_calls=good, invalid_tool_calls=malformed)


def answer(message_id: str | None, name: str, text: str = "done") -> ToolMessage:
    own = None if message_id is None else f"{message_id}/{name}"
    return ToolMessage(text, id=own, tool_call_id=name)


SAID = st.sampled_from(["x", "y", "z"])
ONE = st.one_of(
    st.builds(calling, SAID, st.lists(NAMES, max_size=4), st.lists(NAMES, max_size=1)),
    st.builds(answer, st.none() | SAID, NAMES, st.sampled_from(["done", "waits"])),
    st.sampled_from("hi").map(lambda name: HumanMessage("hi", id=name)),
    st.sampled_from(["x", "y", "h", "x/a", "x/b", "y/a", REMOVE_ALL_MESSAGES]).map(lambda name: RemoveMessage(name)),
)
WRITES = st.lists(st.one_of(ONE, st.lists(ONE, max_size=4)), max_size=12)


@given(WRITES, st.sets(st.integers(1, 11)))
def test_messages_are_the_same_however_the_writes_are_cut(writes: list[Any], cuts: set[int]) -> None:
    places = [0, *sorted(cut for cut in cuts if cut < len(writes)), len(writes)]
    known: list[BaseMessage] = []
    for start, end in pairwise(places):
        known = merge(known, writes[start:end])
    assert known == merge([], writes)
    flat = [one for write in writes for one in (write if isinstance(write, list) else [write])]
    assert known == merge([], [flat])


@st.composite
def turns(draw: st.DrawFn) -> tuple[list[BaseMessage], list[ToolMessage]]:
    """Two turns as they should stand, of which the later one may use the ids of the earlier one's calls, and the later
    one's answers in the order in which they come.
    """
    first, second = (draw(st.lists(NAMES, unique=True, max_size=4)) for _ in range(2))
    bad = draw(st.lists(st.sampled_from("efg"), unique=True))
    told = [answer("y", name) for name in (*second, *bad)]
    earlier = [HumanMessage("hi", id="h"), calling("x", first), *(answer("x", name) for name in first)]
    return [*earlier, HumanMessage("so", id="i"), calling("y", second, bad), *told], draw(st.permutations(told))


@given(turns(), st.booleans())
def test_answers_stand_in_the_order_of_the_calls(
    turn: tuple[list[BaseMessage], list[ToolMessage]], has_gone_on: bool
) -> None:
    """In whatever order they come; and also where the user has written something meanwhile."""
    whole, told = turn
    later = [HumanMessage("well?", id="j")] if has_gone_on else []
    asked = [*whole[: len(whole) - len(told)], *later]
    assert merge(asked, [[one] for one in told]) == [*whole, *later]
    assert merge([], [asked, *told]) == [*whole, *later]
    assert merge([*whole, *later], [[one] for one in told]) == [*whole, *later]


def test_an_answer_to_nothing_stands_at_the_end() -> None:
    asked = [calling("x", ["a", "b"]), answer("x", "b")]
    stray = answer("y", "c")
    assert merge(asked, [stray]) == [*asked, stray]
    assert merge([*asked, stray], [answer("x", "a")]) == [asked[0], answer("x", "a"), asked[1], stray]
