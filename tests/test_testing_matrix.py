"""The crash matrix finds what is wrong with a tool, at the right row, and lets a good one pass."""

import signal
from collections.abc import Callable
from functools import partial

import pytest

from children import kit_scenarios as kit
from settled.state.errors import ContractError
from settled.testing import COMMIT_AND_DROP, Crash, CrashReport, FaultyRemote, commit_later, plugin
from settled.testing.processes import Point, run
from settled.testing.scene import Died, Finished, Scene

settled_databases, crash_matrix = plugin.settled_databases, plugin.crash_matrix
Matrix = Callable[..., CrashReport]

CALL = ["plan", "invoke refund", "succeed"]
WRITE = "POST /refunds is done"
POINTS = [f"{when} {what}" for what in (*CALL, WRITE) for when in ("before", "after")]


@pytest.fixture(scope="session")
def settled_server_url(server_url: str) -> str:
    return server_url


def keeps_nothing() -> FaultyRemote:
    """A remote side that has one more effect for each write."""
    return FaultyRemote(dedupes=False)


def loses_first_reply() -> FaultyRemote:
    return keeps_nothing().next(COMMIT_AND_DROP)


def wrong_rows(matrix: Matrix, scenario: object, **options: object) -> dict[str, str]:
    """Return what a matrix complains of, by crash point, as its error's table shows it."""
    with pytest.raises(AssertionError) as raised:
        matrix(scenario, **options)
    head, _, *lines = str(raised.value).split("\n\n", 1)[1].splitlines()
    assert head.startswith("crash matrix of children.kit_scenarios:")
    at = lines[0].index("problem")
    return {line.split("  ")[0]: line[at:] for line in lines[1:] if line[at:]}


def test_a_good_tool_passes_at_every_point(crash_matrix: Matrix) -> None:
    """Killed before and after each effect, and in the middle of its body: one effect, and its receipt."""
    seen: list[Crash] = []
    report = crash_matrix(kit.good, seen.append)
    assert [row.point for row in report.rows] == ["no crash", *POINTS]
    found = ["none", "none", *["running"] * 4, "succeeded", "running", "running"]
    assert [row.found for row in report.rows] == found
    assert [(row.effects, row.final, row.said) for row in report.rows] == [(1, "succeeded", "R-1")] * len(report.rows)
    assert [row.restarts for row in report.rows] == [0, *[1] * len(POINTS)]
    assert [crash.remote.writes() for crash in seen] == [1] * len(report.rows), "no call is sent a second time"


def test_a_process_really_dies_there(database_url: str) -> None:
    """By SIGKILL, before the effect of the protocol that follows; and one that nobody kills tells its result."""
    with FaultyRemote() as far:
        scene = Scene("s", database_url, far.url)
        assert run(kit.good, scene, far, Point("after plan", 1), 60) == Died("after plan")
        assert (far.count(), far.requests) == (0, [])
        killed = run(kit.good, Scene("s", database_url, far.url, 60.0), far, Point("in a write", 0, "before"), 60)
        assert killed == Died("in a write")
        assert far.wait_until_idle()
        assert far.count() == 1, "what was sent takes place without its sender"
        ended = run(kit.good, Scene("s", database_url, far.url, 120.0), far, None, 60)
        assert isinstance(ended, Finished)
        assert (ended.said, far.writes()) == ("R-1", 1)


@pytest.mark.deep
def test_a_lost_reply_meets_more_points(crash_matrix: Matrix) -> None:
    """A fault of the remote side is tried at each of the points that it leads to."""
    report = crash_matrix(kit.good, remote=lambda: FaultyRemote().next(COMMIT_AND_DROP))
    names = [row.point for row in report.rows]
    assert [f"{when} {what}" for what in LOST for when in ("before", "after")] == names[1:-2]
    assert {row.effects for row in report.rows} == {1}


LOST = ["plan", "invoke refund", "lose", "probe refund", "find"]


@pytest.mark.deep
@pytest.mark.parametrize("scenario", [kit.default_spans, kit.agent, kit.memo_incidental, kit.good_async, kit.by_itself])
def test_good_scenarios_of_other_kinds_pass(crash_matrix: Matrix, scenario: Callable[[Scene], object]) -> None:
    """An agent whose user writes again; a lease that nobody waits for; a program that knows nothing of the kit."""
    report = crash_matrix(scenario)
    assert {(row.effects, row.final) for row in report.rows} == {(1, "succeeded")}
    assert len(report.rows) == 1 + len(POINTS)


def test_a_blind_resend_is_found(crash_matrix: Matrix) -> None:
    """A write that is called idempotent and is not: two effects, where it was killed after the first."""
    told = wrong_rows(crash_matrix, "children.kit_scenarios:resends_blindly", remote=keeps_nothing, only="succeed")
    assert told == {"before succeed": "2 effects instead of 1"}


def test_a_body_that_calls_again_is_found(crash_matrix: Matrix) -> None:
    """It catches the lost reply and sends once more: two effects even without a crash."""
    told = wrong_rows(crash_matrix, kit.calls_again, remote=loses_first_reply, only="after succeed")
    assert told["no crash"] == told["after succeed"] == "2 effects instead of 1"


@pytest.mark.deep
def test_a_body_with_a_key_of_its_own_is_found(crash_matrix: Matrix) -> None:
    """Nothing is found under the ledger's key, so absence is taken for proved, and it is sent again."""
    told = wrong_rows(crash_matrix, kit.own_key)
    assert told["after invoke keyed_refund"] == told[f"after {WRITE}"] == "2 effects instead of 1"
    assert "before invoke keyed_refund" not in told


def test_a_second_write_that_is_lost_is_found(crash_matrix: Matrix) -> None:
    """Killed between the two writes of one body, the second never happens: only a kill inside the body shows it."""
    told = wrong_rows(crash_matrix, kit.two_requests, effects=2, only="is done")
    assert told == {f"{when} {WRITE}": "1 effect instead of 2" for when in ("before", "after")}


def test_a_text_in_the_identity_is_found(crash_matrix: Matrix) -> None:
    """Worded anew after the restart it is another action: one more effect, and the first one stays open."""
    told = wrong_rows(crash_matrix, kit.memo_in_identity, only="after invoke")
    assert told["after invoke noted_refund"].startswith("noted_refund stays running; ")
    assert told["after invoke noted_refund"].endswith(" effects instead of 1")


def test_a_swallowed_interrupt_is_found(crash_matrix: Matrix) -> None:
    """A broad `except` around LangGraph's interrupt acts although nobody was asked."""
    told = wrong_rows(crash_matrix, kit.swallows_interrupt, effects=0, only="before plan")
    assert told["no crash"] == "1 effect instead of 0"


def test_the_manual_queue_is_an_end_only_where_it_is_allowed(crash_matrix: Matrix) -> None:
    """A remote side that can neither be asked nor recognise a repeat: a person, and never two effects."""
    report = crash_matrix(kit.opaque, manual=True, only="invoke")
    queued = "unknown (manual queue)"
    assert [(row.effects, row.final) for row in report.rows] == [(1, "succeeded"), (0, queued), (1, queued)]
    told = wrong_rows(crash_matrix, kit.opaque, only="invoke")
    assert told["after invoke refund"] == "refund stays unknown (the remote side cannot be asked)"


def test_what_waits_for_a_person_is_told(crash_matrix: Matrix) -> None:
    """An approval that nobody gives is no end, and is not run again and again."""
    told = wrong_rows(crash_matrix, kit.waits_for_approval, only="after plan")
    assert told["after plan_judged"] == "refund stays planned; 0 effects instead of 1"


def test_an_instant_of_ones_own_is_a_crash_point(crash_matrix: Matrix) -> None:
    """Killed when the model has the answer and has said nothing: the user's message is sent again, and answered."""
    report = crash_matrix(kit.agent_that_dies_in_its_model, only="at model call")
    rows = {row.point: row for row in report.rows}
    assert (rows["at model call 1"].found, rows["at model call 3"].found) == ("none", "succeeded")
    assert {(row.effects, row.final, "R-1" in row.said) for row in report.rows} == {(1, "succeeded", True)}


@pytest.mark.deep
def test_a_settle_window_that_is_shorter_than_a_replica_lags_is_found(crash_matrix: Matrix) -> None:
    """Where a resend rests on absence: 10 seconds of lag are waited for, 40 are not. Nobody waits for them in truth."""
    crash_matrix(kit.resends_when_absent, remote=lambda: FaultyRemote(dedupes=False, lag_s=10))
    late = ["after invoke refund", "before succeed", f"before {WRITE}", f"after {WRITE}"]
    told = wrong_rows(crash_matrix, kit.resends_when_absent, remote=lambda: FaultyRemote(dedupes=False, lag_s=40))
    assert told == dict.fromkeys(late, "2 effects instead of 1")


@pytest.mark.deep
def test_an_effect_that_lands_after_the_crash_is_waited_for(crash_matrix: Matrix) -> None:
    """A request in a queue on its way: the clock is not moved past it, at any of two dozen points."""
    report = crash_matrix(kit.resends_when_absent, remote=lambda: keeps_nothing().next(commit_later(1)))
    assert {(row.effects, row.final) for row in report.rows} == {(1, "succeeded")}
    assert len({row.point for row in report.rows}) == len(report.rows) > 20


@pytest.mark.deep
def test_two_actions_are_tried_at_every_point(crash_matrix: Matrix) -> None:
    """The first one is not repeated when the second one is killed."""
    report = crash_matrix(kit.two_tools, effects=2)
    assert report.rows[-1].point == f"after {WRITE} (2)"
    assert len(report.rows) == 1 + 2 * len(POINTS)
    assert {row.final for row in report.rows} == {"succeeded, succeeded"}


def test_a_check_of_ones_own_and_a_count_of_ones_own_are_told(crash_matrix: Matrix) -> None:
    """What else must be true, at the row where it is not; and effects at a remote side that is not ours."""

    def sent_once(crash: Crash) -> None:
        assert crash.point != "after plan", f"{crash.actions[0].tool} was looked at, with {crash.effects} effects"

    with pytest.raises(AssertionError, match="1 of 3 rows are wrong") as raised:
        crash_matrix(kit.good, sent_once, effects=7, only="plan", count=lambda scene: 7 if scene.remote_url else 0)
    assert "check: refund was looked at, with 7 effects" in str(raised.value)


def test_what_cannot_be_run_is_said(crash_matrix: Matrix) -> None:
    """A scenario that cannot be imported elsewhere, that does nothing, that fails by itself, or that hangs."""
    for scenario, words in [
        (lambda scene: None, "must be a function at the top level"),
        ("children.kit_scenarios", "is named as module:function"),
        ("children.kit_scenarios:nobody", "there is no 'children.kit_scenarios:nobody'"),
        (kit.does_nothing, "carried out no action"),
        (7, "7 is no function"),
    ]:
        with pytest.raises(ContractError, match=words):
            crash_matrix(scenario)
    with pytest.raises(ContractError, match="no crash point has 'lunch' in it: before plan, after plan, "):
        crash_matrix(kit.good, only="lunch")
    with pytest.raises(AssertionError, match=r"(?s)fails without any crash.*no such shop at no-crash"):
        crash_matrix(partial(kit.fails))
    with pytest.raises(AssertionError, match=r"not over after 0\.5 s"):
        crash_matrix(kit.hangs, timeout_s=0.5)
    with pytest.raises(AssertionError, match=f"ended by itself, with {-signal.SIGTERM}"):
        crash_matrix(kit.ends_itself)
