"""The engine: its nodes are cuts through the protocol, and running any of them again is harmless."""

from collections.abc import Iterator
from typing import Any

import pytest

from scripted import Remote
from settled import Absent, Found, Ledger, State, action, current_action, perform
from settled.graph import engine
from settled.graph.calls import Request
from settled.graph.engine import FLIGHT_KEY, NODES, Engine, Flight, is_alive
from settled.graph.identity import Handle
from settled.state import ledger as operations
from settled.state.model import Action
from settled.tools.contract import contract_of
from settled.tools.effects import Effect, Invoke, Probe
from settled.tools.runner import REAL, Runner, World
from settled.tools.standing import Granted


class Stop(BaseException):
    """A signal that must travel on, like a cancellation."""


class Setting:
    """An engine over one tool whose reply can be lost."""

    def __init__(self, ledger: Ledger, remote: Remote, world: World = REAL) -> None:
        self.lose_reply = False

        @action(
            risk="non_idempotent_write", identity=("order",), remote="queryable", query=self.find, settle_window=10.0
        )
        def refund(order: str) -> dict[str, Any]:
            """Refund an order."""
            done = remote.act(current_action().idempotency_key)
            if self.lose_reply:
                raise TimeoutError("no answer")
            return done

        self.remote = remote
        self.ledger = ledger
        self.world = world
        self.tool = refund
        self.contract = contract_of(refund)
        self.engine = Engine({"refund": self.contract}, ledger, world)
        self.handle = Handle("default", "t", None, None, lambda action: not is_alive(action))

    def find(self, inquiry: Any) -> Any:
        receipt = self.remote.find(inquiry.idempotency_key)
        return Found(receipt) if receipt else Absent()

    def request(self, order: str = "A1", tool_call_id: str = "c", **more: Any) -> Request:
        return Request(
            name="refund", args={"order": order, **more}, tool_call_id=tool_call_id, message_id="m", occurrence=0,
            language="en", error=None,
        )  # fmt: skip

    def flight(self, request: Request) -> dict[str, Any]:
        runner = Runner(self.contract, self.ledger, self.world)
        return {"configurable": {FLIGHT_KEY: Flight(self.contract, self.handle, request, runner)}}

    def states(self) -> list[State]:
        return [action.state for action in self.ledger.run(operations.actions("default"))]


@pytest.fixture
def setting(database_url: str) -> Iterator[Setting]:
    with Ledger.connect(database_url) as ledger:
        yield Setting(ledger, Remote(database_url))


def visited(setting: Setting, request: Request, start: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    nodes, end = [], {}
    stream = setting.engine.graph.stream({"request": request, **start}, setting.flight(request), stream_mode="updates")
    for update in stream:
        for node, values in update.items():
            nodes.append(node)
            end.update(values)
    return nodes, end


def test_the_graph_has_the_five_nodes(setting: Setting) -> None:
    assert set(setting.engine.graph.nodes) == {"__start__", *NODES}


def test_the_happy_path_visits_plan_and_run_only(setting: Setting) -> None:
    nodes, end = visited(setting, setting.request(), {})
    assert nodes == ["plan", "run"]
    assert end["answer"]["artifact"]["receipt"] == "R-1"


def test_a_lost_reply_is_reconciled_and_settled(setting: Setting) -> None:
    setting.lose_reply = True
    nodes, end = visited(setting, setting.request(), {})
    assert nodes == ["plan", "run", "reconcile", "settle"]
    assert end["answer"]["code"] == "succeeded"
    assert setting.remote.count() == 1


def test_call_enters_the_graph_where_there_is_something_to_wait_for(setting: Setting) -> None:
    setting.lose_reply = True
    answer = setting.engine.call(setting.request(), setting.handle, {"configurable": {}})
    assert answer["artifact"]["receipt"] == "R-1"
    assert setting.states() == [State.SUCCEEDED]


@pytest.mark.parametrize("node", NODES)
def test_a_node_without_its_standing_asks_the_ledger_first(setting: Setting, node: str) -> None:
    """As after a crash: the state names a claim, and the memory that held it is gone."""
    perform(setting.tool, {"order": "A1"}, ledger=setting.ledger, thread_id="t", decision=("m", "c", "0"))
    [done] = setting.ledger.run(operations.actions("default"))
    _, end = visited(setting, setting.request(), {"step": node, "action_id": done.id, "token": done.fencing_token})
    assert (end["answer"]["code"], end["answer"]["artifact"]["action_id"]) == ("succeeded", done.id)
    assert setting.remote.count() == 1


def test_a_repeat_on_purpose_waits_for_a_person(setting: Setting) -> None:
    first = setting.engine.call(setting.request(), setting.handle, {})
    asked = setting.request(tool_call_id="d", repeat_of=first["artifact"]["action_id"])
    answer = setting.engine.call(asked, setting.handle, {})
    assert answer["code"] == "waiting_for_approval"
    assert setting.engine.call(asked, setting.handle, {})["artifact"] == answer["artifact"]
    assert setting.remote.count() == 1


def test_an_approved_action_runs_at_the_next_visit(setting: Setting) -> None:
    first = setting.engine.call(setting.request(), setting.handle, {})
    asked = setting.request(tool_call_id="d", repeat_of=first["artifact"]["action_id"])
    setting.engine.call(asked, setting.handle, {})
    [waiting] = setting.ledger.run(operations.actions("default", states=[State.PLANNED]))
    approve = operations.approve(
        "default", waiting.id, fingerprint=waiting.fingerprint, approver="ann", valid_for_s=None
    )
    assert setting.ledger.run(approve) is not None
    nodes, end = visited(setting, asked, {"step": "approve"})
    assert nodes == ["approve", "run"]
    assert end["answer"]["artifact"]["receipt"] == "R-2"


def test_a_stop_between_plan_and_run_is_recorded_as_nothing_sent(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_: Any, standing: Any) -> None:
        if isinstance(standing, Granted):
            raise Stop

    monkeypatch.setattr(engine, "_tell", stop)
    with pytest.raises(Stop):
        setting.engine.call(setting.request(), setting.handle, {})
    assert setting.states() == [State.FAILED]
    assert setting.remote.count() == 0


def test_an_action_is_alive_only_during_its_call(setting: Setting) -> None:
    seen: list[Action] = []

    def watch(effect: Effect, when: str) -> None:
        if isinstance(effect, Invoke | Probe):
            seen.append(effect.action)
            assert is_alive(effect.action)

    setting.lose_reply = True
    setting.engine._world = World(watch=watch)
    setting.engine.call(setting.request(), setting.handle, {})
    assert len(seen) == 4
    assert not any(is_alive(action) for action in seen)


@pytest.mark.parametrize("args", [{"order": "B1", "more": 1}, {"order": 5}, {"order": None}])
def test_an_edited_call_under_old_ids_is_not_answered_for_the_old_one(setting: Setting, args: dict[str, Any]) -> None:
    """What was done for order A1 is no answer to a bad call for another order, although all ids are the same."""
    request = setting.request("A1")
    assert setting.engine.call(request, setting.handle, {})["code"] == "succeeded"
    edited = setting.engine.call({**request, "args": args}, setting.handle, {})
    assert edited["code"] == "invalid"
    assert setting.remote.count() == 1


def test_a_call_whose_tool_is_gone_is_told_what_was_done(setting: Setting) -> None:
    """The tool was renamed since: never "nothing was carried out"."""
    request = setting.request("A1")
    setting.engine.call(request, setting.handle, {})
    renamed = Engine({"repay": setting.contract}, setting.ledger, REAL)
    told = renamed.call(request, setting.handle, {})
    assert (told["code"], told["artifact"]["receipt"]) == ("succeeded", "R-1")
    assert setting.remote.count() == 1
