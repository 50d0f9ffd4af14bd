"""A process dies by SIGKILL: in the third of three parallel calls, and at every effect of one call. After the restart
each effect is there once, and each call has its answer.

The plain version stands beside it: a `create_agent` repeats the third call, and a tools node all three.
"""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.types import Command

import processes
from scripted import Bank, Remote, bank, call, once
from settled import World, always
from settled.tools.effects import Effect
from tool_doors import KINDS, OURS, PLAIN, QUICK, agent_of, assert_all_answered, plain_refund, refund_of, told

THREE = tuple(call("refund", name, order=name) for name in ("A1", "A2", "A3"))
CASES = [
    ("create_agent", PLAIN, "sync", 4),
    ("tools node", PLAIN, "sync", 6),
    ("create_agent", OURS, "sync", 3),
    ("tools node", OURS, "sync", 3),
    ("create_agent", OURS, "async", 3),
    ("tools node", OURS, "async", 3),
]
ALWAYS = [("create_agent", False, "async"), ("tools node", True, "sync")]
"""At which instants a call is killed in `make test` too: the kind of agent, whether it asks, and the door."""

MOST_POINTS = 40


def thread_of(kind: str, whose: str, door: str) -> str:
    return f"{kind} {whose} {door}"


def build(shop: Bank, kind: str, whose: str, *, dies: bool) -> Any:
    def then(order: str) -> None:
        if dies and order == "A3":
            end = time.monotonic() + 20
            while shop.remote.count() < before + 3 and time.monotonic() < end:
                time.sleep(0.02)
            time.sleep(0.6)  # the siblings' answers are stored meanwhile
            os.kill(os.getpid(), signal.SIGKILL)

    before = shop.remote.count()
    tools = [plain_refund(shop.remote, then) if whose == PLAIN else refund_of(shop.remote, then, **QUICK)]
    return agent_of(kind, shop, once(*THREE), tools, whose=whose)


async def run(url: str, kind: str, whose: str, door: str, *, dies: bool) -> Sequence[Any]:
    async with bank(door, url) as shop:
        shop.agent = build(shop, kind, whose, dies=dies)
        given: Any = {"messages": [HumanMessage("please")]} if dies else None
        result = await shop.run(given, thread_id=thread_of(kind, whose, door))
        messages: Sequence[Any] = result["messages"]
        return messages


@pytest.mark.parametrize(
    ("kind", "whose", "door", "effects"),
    [
        pytest.param(*case, id=thread_of(*case[:3]), marks=pytest.mark.deep if number in (1, 3, 4) else [])
        for number, case in enumerate(CASES)
    ],
)
async def test_a_kill_in_the_third_of_three_calls(
    database_url: str, kind: str, whose: str, door: str, effects: int
) -> None:
    remote = await asyncio.to_thread(Remote, database_url)
    how = {"url": database_url, "kind": kind, "whose": whose, "door": door}
    died = await asyncio.to_thread(partial(processes.start, "test_middleware_kills.die_in_the_third", **how))
    assert await asyncio.to_thread(died.status, 60) == -signal.SIGKILL
    assert remote.count() == 3
    messages = await run(database_url, kind, whose, door, dies=False)
    assert remote.count() == effects
    assert_all_answered(messages)
    if whose == OURS:
        assert {message.artifact["code"] for message in told(messages)} == {"succeeded"}
        assert len({message.artifact["receipt"] for message in told(messages)}) == 3


def die_in_the_third(*, url: str, kind: str, whose: str, door: str) -> None:
    asyncio.run(run(url, kind, whose, door, dies=True))


def agent_at(shop: Bank, kind: str, *, asks: bool, point: int | None = None) -> Any:
    """Return an agent whose process dies at effect number `point`."""
    seen = iter(range(1000))

    def watch(effect: Effect, when: str) -> None:
        if next(seen) == point:
            os.kill(os.getpid(), signal.SIGKILL)

    tools = [refund_of(shop.remote, approval=always if asks else None, **QUICK)]
    world = World(watch=watch)
    return agent_of(kind, shop, once(call("refund", "a", order="A1")), tools, world=world)


@pytest.mark.parametrize(
    ("kind", "asks", "door"),
    [
        pytest.param(kind, asks, door, marks=[] if (kind, asks, door) in ALWAYS else pytest.mark.deep)
        for kind, asks, door in product(KINDS, (False, True), ("sync", "async"))
    ],
)
async def test_a_kill_at_any_effect(database_url: str, kind: str, asks: bool, door: str) -> None:
    """Of an approved call the process dies while it takes the person's answer: that may be asked for again."""
    how: dict[str, Any] = {"url": database_url, "kind": kind, "asks": asks, "door": door}
    killed = await asyncio.to_thread(partial(processes.start, "test_middleware_kills.die_at_any", **how))
    points = await asyncio.to_thread(killed.result, 120)
    assert points >= (8 if asks else 6)
    remote = await asyncio.to_thread(Remote, database_url)
    async with bank(door, database_url) as shop:
        shop.agent = agent_at(shop, kind, asks=asks)
        await asyncio.gather(*(assert_it_goes_on(shop, f"{point}") for point in range(points)))
    assert remote.count() == points


async def assert_it_goes_on(shop: Bank, thread_id: str) -> None:
    result = await shop.run(None, thread_id=thread_id)
    if result.get("__interrupt__"):
        result = await shop.run(Command(resume={"type": "approve"}), thread_id=thread_id)
    kinds = [type(message) for message in result["messages"]]
    assert kinds == [HumanMessage, AIMessage, ToolMessage, AIMessage], thread_id
    assert told(result["messages"])[0].artifact["code"] in ("succeeded", "duplicate"), thread_id


async def take(url: str, kind: str, asks: bool, door: str, point: int) -> None:
    """Run one call in a process that dies at `point`."""
    async with bank(door, url) as shop:
        thread_id = f"{point}"
        if asks:
            shop.agent = agent_at(shop, kind, asks=True)
            await shop.run("please", thread_id=thread_id)
        shop.agent = agent_at(shop, kind, asks=asks, point=point)
        given: Any = Command(resume={"type": "approve"}) if asks else "please"
        await shop.run(given, thread_id=thread_id)


def die_at_any(*, url: str, kind: str, asks: bool, door: str) -> int:
    """Fork a child for each point until one lives; return how many have died."""
    Remote(url)
    for point in range(MOST_POINTS):
        pid = os.fork()
        if not pid:
            asyncio.run(take(url, kind, asks, door, point))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            assert status == 0, f"{point}: the child failed"
            return point + 1
        assert os.WTERMSIG(status) == signal.SIGKILL
    raise AssertionError("no child has lived")
