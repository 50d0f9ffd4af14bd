"""A conversation whose process is killed at random instants, again and again: as many effects as there were intents,
and a complete, valid history in the end.

Each turn makes three calls at once, one of which a person decides. The client is a program that does what clients do:
it starts anew and sends its messages again, from the first one.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from acts import rows
from processes import start
from scripted import Remote
from settled import Ledger, Session, open_checkpointer
from talks import CALLS, OURS, agent_of

TURNS = 20
RUNS = int(os.environ.get("SETTLED_KILL_RUNS", "200"))
SIDE_BY_SIDE = 3


def check(url: str, thread_id: str, turns: int) -> None:
    """A history of whole turns, in which each call has its answer; all of them done."""
    with Ledger.connect(url) as ledger, open_checkpointer(ledger) as saver:
        session = Session(agent_of(OURS, ledger, saver), ledger=ledger, thread_id=thread_id)
        state = session._agent.get_state(session.config)
        assert state.tasks == ()
        messages: Sequence[BaseMessage] = state.values["messages"]
        whole = [HumanMessage, AIMessage, *[ToolMessage] * CALLS, AIMessage] * turns
        assert [type(message) for message in messages] == whole, thread_id
        for index, message in enumerate(messages):
            if isinstance(message, AIMessage) and message.tool_calls:
                asked = [one["id"] for one in message.tool_calls]
                answers = messages[index + 1 : index + 1 + CALLS]
                assert [one.tool_call_id for one in answers if isinstance(one, ToolMessage)] == asked
        states = {action.state for action in ledger.actions(thread_id=thread_id, most=1000)}
        assert states == {"succeeded"}, thread_id


def converse_and_check(url: str, runs: int, turns: int) -> None:
    Remote(url)
    names = [f"run-{number}" for number in range(runs)]

    def survive(number: int) -> int:
        child = start("talking.survive", database_url=url, thread_id=names[number], turns=turns, seed=number)
        died: int = child.result(240)
        return died

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        kills = list(pool.map(survive, range(runs)))
    assert sum(kills) >= runs, kills
    for name in names:
        check(url, name, turns)
    done = rows(url, "SELECT thread_id, count(*) AS n FROM settled.actions GROUP BY 1")
    assert {row["thread_id"]: row["n"] for row in done} == dict.fromkeys(names, turns * CALLS)
    twice = rows(url, "SELECT key, count(*) AS n FROM effects GROUP BY 1 HAVING count(*) > 1")
    assert twice == []
    assert Remote(url).count() == runs * turns * CALLS


def test_a_conversation_is_killed_at_random_instants(database_url: str) -> None:
    """A short one, for every day."""
    converse_and_check(database_url, runs=3, turns=4)


@pytest.mark.deep
def test_long_conversations_are_killed_at_random_instants(database_url: str) -> None:
    """200 of 20 turns; SETTLED_KILL_RUNS says otherwise."""
    converse_and_check(database_url, runs=RUNS, turns=TURNS)
