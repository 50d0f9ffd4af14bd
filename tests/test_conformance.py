"""One list of scenarios, and four doors, sync and async: they do the same, leave the same, and tell the same.

Each scenario is held against what is expected of it, and against `perform`: the same keys, timelines and results, and
the same text, artifact and status of each tool message.
"""

import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

import servers
from conformance import DONE, EQUAL, SCENARIOS, Scenario
from conformance_doors import ASKING_DOORS, DOORS, FarSide, Seen, Stage, alike, play_of, stage, wait_until
from settled import State
from settled.graph.engine import is_alive
from settled.tools.effects import Ask, Effect

pytestmark = pytest.mark.asyncio(loop_scope="module")

BUILT = ("build_agent", *ASKING_DOORS)
CROSSING = replace(EQUAL, name="two equal calls that cross")
CASES = [
    pytest.param((door, mode), scenario, id=f"{door}-{mode}-{scenario.name}")
    for mode in ("sync", "async")
    for door in (*DOORS, *ASKING_DOORS)
    for scenario in SCENARIOS
    if (door in DOORS or scenario.asks) and scenario.only in (None, mode)
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stages(server_url: str, migrated_template: str) -> AsyncIterator[Callable[[str, str], Awaitable[Stage]]]:
    """Each door is opened once, on a database of its own. (A fixture with parameters would be made anew for each case,
    since no two of them have the same number.)
    """
    async with AsyncExitStack() as stack:
        opened: dict[tuple[str, str], Stage] = {}

        async def open_once(door: str, mode: str) -> Stage:
            if (door, mode) not in opened:
                url = stack.enter_context(servers.database(server_url, like=migrated_template))
                opened[door, mode] = await stack.enter_async_context(stage(url, door, mode))
            return opened[door, mode]

        yield open_once


@pytest_asyncio.fixture(loop_scope="module")
async def here(request: pytest.FixtureRequest, stages: Callable[[str, str], Awaitable[Stage]]) -> Stage:
    """One door."""
    return await stages(*request.param)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain(server_url: str, migrated_template: str) -> AsyncIterator[Any]:
    """`perform`, to hold the other doors against."""
    with servers.database(server_url, like=migrated_template) as url:
        async with stage(url, "perform", "async") as opened:
            known: dict[str, Seen] = {}

            async def seen(scenario: Scenario) -> Seen:
                if scenario.name not in known:
                    known[scenario.name] = await play_of(opened, scenario).play()
                return known[scenario.name]

            yield seen


@pytest.mark.parametrize(("here", "scenario"), CASES, indirect=["here"])
async def test_every_door_does_and_tells_the_same(here: Stage, plain: Any, scenario: Scenario) -> None:
    seen = await play_of(here, scenario).play()
    assert_as_expected(scenario, seen, here)
    assert_alike(scenario, seen, await plain(scenario), here)


def crossing(here: Stage, far: FarSide) -> Callable[[Effect, str], None]:
    """Let the second of two plans meet the first call in its body, and go on when that call has ended."""
    lock, seen = threading.Lock(), {"before": 0, "after": 0}

    def has_ended() -> bool:
        (first,) = here.ledger.actions(thread_id=CROSSING.name)
        return first.state is State.SUCCEEDED and not is_alive(first)

    def watch(effect: Effect, when: str) -> None:
        if not (isinstance(effect, Ask) and effect.query.name.startswith("plan")):
            return
        with lock:
            seen[when] += 1
            is_second = seen[when] == 2
        if is_second:
            wait_until(far.begun.is_set if when == "before" else has_ended)

    return watch


@pytest.mark.parametrize("here", [(door, "sync") for door in DOORS], indirect=True, ids=DOORS)
async def test_a_call_that_met_an_equal_one_just_before_its_end_is_told_that_nothing_new_was_done(here: Stage) -> None:
    play = play_of(here, CROSSING)
    here.watch = crossing(here, play.far)
    try:
        seen = await play.play()
    finally:
        here.watch = None
    assert (seen.events, len(seen.effects)) == ([DONE], 1)
    assert sorted(one.code for one in seen.told) == ["duplicate", "succeeded"]


def assert_as_expected(scenario: Scenario, seen: Seen, here: Stage) -> None:
    codes = [told.code for told in seen.told]
    expected = list(scenario.told)
    if here.door != "perform":
        expected = list(scenario.session_told or expected)
    if here.door in BUILT:
        expected = expected[: scenario.build_agent_tells]
    assert (sorted(codes) if scenario.unordered else codes) == (sorted(expected) if scenario.unordered else expected)
    assert seen.events == list(scenario.events)
    assert [one["receipt"] for one in seen.actions] == list(scenario.receipts)
    assert len(seen.effects) == scenario.effects
    assert len(seen.sent) == (scenario.effects if scenario.sent is None else scenario.sent)
    if scenario.keys is not None:
        assert len(set(seen.sent)) == scenario.keys
    assert set(seen.sent) <= {one["idempotency_key"] for one in seen.actions}
    if scenario.secret is not None:
        assert scenario.secret not in f"{seen.told} {seen.actions} {seen.asked}"


def assert_alike(scenario: Scenario, seen: Seen, plain: Seen, here: Stage) -> None:
    """Check that a door has left and told what `perform` has."""
    assert left(scenario, seen) == left(scenario, plain)
    assert (seen.effects, sorted(seen.sent)) == (plain.effects, sorted(plain.sent))
    ours, theirs = seen.told, plain.told
    if scenario.unordered:
        ours, theirs = (sorted(told, key=lambda one: one.code) for told in (ours, theirs))
    for one, other in zip(alike(ours), alike(theirs), strict=scenario.build_agent_tells is None):
        may_differ = here.door != "perform" and scenario.session_told is not None
        assert one == other or (may_differ and one.code != other.code)


def left(scenario: Scenario, seen: Seen) -> list[dict[str, Any]]:
    """Return what is promised of the ledger's rows: of two equal calls either may be the first, and where a session
    or `build_agent` does otherwise no repeat is promised.
    """
    if scenario.unordered:
        return [{**one, "correlation_id": None} for one in seen.actions]
    if scenario.build_agent_tells is not None or scenario.session_told is not None:
        return [{**one, "events": events} for one, events in zip(seen.actions, seen.events, strict=True)]
    return seen.actions
