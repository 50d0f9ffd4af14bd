"""An undoing is killed at every effect: asked for again it is carried on, and what was done is undone once."""

from typing import Any

import pytest

from acts import opened, states
from chain_shop import Clock, Counter, raising
from settled import Desk, perform
from test_chain_kills import Fuse, Killed
from test_compensation import ORDER, shop_tools


def undone(desk: Desk, mode: str, action_id: str) -> Any:
    return desk.acompensate(action_id, by="mia") if mode == "async" else desk.compensate(action_id, by="mia")


@pytest.mark.parametrize("how", ["all is well", "reply lost", "first try turned down"])
@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_killed_at_any_effect_it_is_undone_once(database_url: str, mode: str, how: str) -> None:
    """No kill leaves an undoing that nobody can carry on, a second refund, or a word of more than is true."""
    clock, number, instants = Clock(), 0, 1
    with opened(database_url, clock=clock) as ledger:
        while number < instants:
            far, fuse, thread_id = Counter(), Fuse(number), f"{mode}-{how}-{number}"
            if how == "reply lost":
                far.faults["refund, answered"] = raising(TimeoutError())
            tools = shop_tools(far)
            known = [tools["pay"], tools["refund"]]
            paid = perform(tools["pay"], ORDER, ledger=ledger, thread_id=thread_id)
            desk = Desk(ledger, tools=known, world=clock.world())
            if how == "first try turned down":
                from settled import Ended, Rejected

                far.faults["refund"] = raising(Ended(Rejected("closed")))
                desk.compensate(str(paid.action_id), by="mia")
                far.faults.clear()
            try:
                answer = undone(Desk(ledger, tools=known, world=clock.world(fuse)), mode, str(paid.action_id))
                if mode == "async":
                    await answer
            except Killed:
                instants = number + 2
                clock.sleep(60)
                answer = undone(desk, mode, str(paid.action_id))
                if mode == "async":
                    await answer
            assert far.done == ["pay", "refund"], f"killed at instant {number}"
            assert ledger.action(str(paid.action_id)).state == "compensated", f"killed at instant {number}"
            number += 1
        assert number > 10
        assert set(states(database_url)) <= {"compensated", "succeeded", "failed"}
        await ledger.aclose()
