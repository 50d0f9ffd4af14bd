"""Every door, sync and async: the process dies by SIGKILL when the far side has done it and nobody has saved that.

One effect, one key, and after the restart the same answer in each.
"""

import asyncio
import os
import signal
from dataclasses import replace

from conformance import FOUND, KILLS, ONE, Scenario
from conformance_doors import DOORS, Told, alike, play_of, stage
from processes import start
from scripted import Remote

STAGES = [(door, mode) for door in DOORS for mode in ("sync", "async")]
KILLED = Scenario("killed", [ONE], ["succeeded"], [FOUND], receipts=("R-1",), faults=[KILLS])
LEASE_S = 16.0
"""The lease of the dead caller is over then; a session, which has its thread's lock, need not wait for that."""


async def call(url: str, door: str, mode: str) -> None:
    """Make the call, and die of it."""
    async with stage(url, door, mode) as opened:
        await play_of(opened, replace(KILLED, name=f"{door} {mode}"), Remote(url)).play()


def die_at_each_door(*, database_url: str) -> list[int]:
    """Fork a child for each door, and return what they have died of."""
    children = []
    for door, mode in STAGES:
        pid = os.fork()
        if not pid:
            asyncio.run(call(database_url, door, mode))
            os._exit(0)
        children.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]


async def go_on(url: str, door: str, mode: str) -> list[Told]:
    """Do what a restarted caller does, and return what the model is told."""
    async with stage(url, door, mode) as opened:
        scenario = replace(KILLED, name=f"{door} {mode}", faults=())
        play = play_of(opened, scenario, Remote(url))
        play.build()
        play.number = 1
        if door == "perform":
            opened.clock.sleep(LEASE_S)
        await play.go_on()
        seen = await play.seen()
        assert (seen.events, seen.sent) == ([FOUND], []), scenario.name
        return seen.told


async def test_a_kill_between_the_effect_and_its_record(database_url: str) -> None:
    far = await asyncio.to_thread(Remote, database_url)
    child = await asyncio.to_thread(start, "test_conformance_kills.die_at_each_door", database_url=database_url)
    assert await asyncio.to_thread(child.result, 60.0) == [-signal.SIGKILL] * len(STAGES)
    assert far.count() == len(STAGES)
    told = [await go_on(database_url, door, mode) for door, mode in STAGES]
    assert [[one.code for one in each] for each in told] == [["succeeded"]] * len(STAGES)
    assert len({each[0].artifact["receipt"] for each in told}) == far.count() == len(STAGES)
    shapes = {str(alike(each)).replace(each[0].artifact["receipt"], "R") for each in told}
    assert len(shapes) == 1
