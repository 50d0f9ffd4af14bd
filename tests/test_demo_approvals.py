"""`settled demo approval…`: people decide in processes of their own, and nothing runs that they did not decide on."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest

import servers
from demos import KEYS, Play, about_writes, triggers
from settled import Allow, Ask, PlannedAction
from settled.demo.scenarios import SCENARIOS
from settled.demo.tools import over_the_limit, reimbursement_tools

NAMES = [name for name, one in SCENARIOS.items() if one.approval_ttl_s is not None or one.daily_limit is not None]
APPROVAL_KEYS = {
    *("action_id", "round", "fingerprint", "summary", "scope", "reason", "requester", "approvers", "issued_at"),
    *("valid_until", "decision", "decided_by", "decided_at", "note", "spent_at"),
}


@pytest.fixture(scope="module")
def played(server_url: str) -> Iterator[Play]:
    """Play a scenario once for the whole module, and return its document."""
    with servers.database(server_url) as url:
        yield Play(url, {"approval-crash": "zh", "two-approvers": "zh"})


def approval_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    (approval,) = document["approvals"]
    assert isinstance(approval, dict)
    return approval


def codes(document: Mapping[str, Any]) -> list[str]:
    return [told["artifact"]["code"] for told in about_writes(document)]


def rows(page: str, *parts: str) -> list[str]:
    """Return the lines of the page that have all of these parts."""
    return [line for line in page.splitlines() if all(part in line for part in parts)]


def test_there_are_six() -> None:
    assert NAMES == ["approval", "approval-change", "approval-expired", "approval-crash", "two-approvers", "budget"]


@pytest.mark.parametrize("name", NAMES)
def test_every_scenario_has_the_same_document_with_its_approvals(played: Play, name: str) -> None:
    document, wanted = played(name), SCENARIOS[name].expected_effects
    assert list(document) == KEYS
    assert (document["scenario"], document["effects"], document["expected_effects"]) == (name, wanted, wanted)
    actions = {action["action_id"]: action for action in document["actions"]}
    for approval in document["approvals"]:
        assert set(approval) >= APPROVAL_KEYS
        assert approval["fingerprint"] == actions[approval["action_id"]]["fingerprint"]
        assert (approval["round"], approval["scope"], approval["approvers"]) == (1, "over the limit", ["supervisor"])
        assert approval["decided_by"] != approval["requester"]
        assert datetime.fromisoformat(approval["issued_at"]) <= datetime.fromisoformat(approval["decided_at"])
    succeeded = [action for action in document["actions"] if action["state"] == "succeeded"]
    assert len(succeeded) == wanted
    assert all(action["state"] == "cancelled" for action in document["actions"] if action not in succeeded)
    assert all(action["attempts"] == 0 for action in document["actions"] if action not in succeeded)


def test_a_supervisor_approves_what_is_over_the_limit_and_it_is_filed(played: Play) -> None:
    document = played("approval")
    approval = approval_of(document)
    assert (approval["decision"], approval["decided_by"], approval["reason"]) == (
        "approve",
        "maria",
        "amount 118.50 is over 80",
    )
    assert "INV-102" in approval["summary"]
    assert "118.50" in approval["summary"]
    assert approval["spent_at"] > approval["decided_at"]
    (action,) = document["actions"]
    assert triggers(action) == ["plan", "approve", "claim", "succeed"]
    assert codes(document) == ["succeeded"]
    assert action["receipt"] in document["reply"]


def test_the_approval_of_118_50_never_runs_180(played: Play) -> None:
    """Approved and unspent, it is void for the changed call; 180 is filed on an approval of its own."""
    document = played("approval-change")
    first, second = document["actions"]
    assert triggers(first) == ["plan", "approve", "supersede"]
    assert triggers(second) == ["plan", "approve", "claim", "succeed"]
    old, new = document["approvals"]
    assert [(one["decision"], one["decided_by"], bool(one["spent_at"])) for one in (old, new)] == [
        ("approve", "maria", False),
        ("approve", "maria", True),
    ]
    assert ("118.50" in old["summary"], "180.00" in new["summary"]) == (True, True)
    assert old["fingerprint"] != new["fingerprint"]
    (filed,) = about_writes(document)
    assert (filed["artifact"]["code"], filed["artifact"]["receipt"]) == ("succeeded", second["receipt"])
    assert '"amount": 180.0' in filed["content"]


def test_a_request_that_nobody_answers_expires_and_the_user_is_told(played: Play) -> None:
    document = played("approval-expired")
    approval = approval_of(document)
    assert (approval["decision"], approval["decided_by"], approval["spent_at"]) == ("expire", None, None)
    asked_for = datetime.fromisoformat(approval["valid_until"]) - datetime.fromisoformat(approval["issued_at"])
    assert asked_for == timedelta(seconds=2)
    (action,) = document["actions"]
    assert triggers(action) == ["plan", "expire"]
    assert codes(document) == ["expired"]
    assert "was not carried out: no decision by supervisor came in time" in document["reply"]


def test_after_a_kill_the_approval_is_still_bound_to_the_invoice_and_its_amount(played: Play) -> None:
    page = played.page("approval-crash")
    order = [page.index(part) for part in ("SIGKILL", "process 2 takes over", "process 2 waits", "clicks approve")]
    assert order == sorted(order)
    (killed,), (seen,) = rows(page, "SIGKILL", "planned"), rows(page, "maria", "sees the request")
    bound = seen.split("sees the request")[1].strip()
    assert ("INV-102" in bound, "118.50" in bound, "sha256:" in bound) == (True, True, True)
    assert bound in killed
    assert len(rows(page, "ledger", "written down")) == 1
    assert rows(page, "approved by maria", "used once")
    assert "1 ticket in" in page


def test_a_kill_while_it_waits_repeats_nothing(played: Play) -> None:
    document = played("approval-crash")
    (action,) = document["actions"]
    assert triggers(action) == ["plan", "approve", "claim", "succeed"]
    assert len(document["tool_messages"]) == 2
    approval = approval_of(document)
    assert (approval["decision"], approval["decided_by"], bool(approval["spent_at"])) == ("approve", "maria", True)


def test_of_two_supervisors_one_decides_and_the_other_hears_it(played: Play) -> None:
    page = played.page("two-approvers")
    (recorded,) = rows(page, "clicks approve", "recorded")
    (refused,) = rows(page, "clicks approve", "refused")
    first, second = ("maria", "jonas") if "maria" in recorded else ("jonas", "maria")
    assert second in refused.split("clicks approve")[0]
    assert f"{first} approved it at" in refused
    assert "the first decision on act-" in refused
    assert rows(page, f"approved by {first}", "used once")
    assert "1 ticket in" in page


def test_two_clicks_are_one_decision(played: Play) -> None:
    document = played("two-approvers")
    approval = approval_of(document)
    assert (approval["decision"], approval["decided_by"] in ("maria", "jonas")) == ("approve", True)
    (action,) = document["actions"]
    assert triggers(action) == ["plan", "approve", "claim", "succeed"]


def test_what_would_exceed_the_budget_is_not_filed_and_the_user_is_told(played: Play) -> None:
    document = played("budget")
    assert document["approvals"] == []
    assert codes(document) == ["succeeded", "budget_exceeded"]
    filed, refused = document["actions"]
    assert triggers(filed) == ["plan", "approve", "claim", "succeed"]
    assert triggers(refused) == ["plan", "approve", "withdraw"]
    assert "118.5 of 150 are used, and 64 more would be needed" in document["reply"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("approval-crash", "已办理完毕"),
        pytest.param("approval", "已办理完毕", marks=pytest.mark.deep),
        pytest.param("approval-change", "金额 180.00”已办理完毕", marks=pytest.mark.deep),
        pytest.param("approval-expired", "没有在期限内作出审批", marks=pytest.mark.deep),
        pytest.param("budget", "已达到限额（已用 118.5，限额 150，这次还需要 64）", marks=pytest.mark.deep),
    ],
)
def test_the_user_is_answered_in_his_language(played: Play, name: str, said: str) -> None:
    document = played(name, "zh")
    assert document["effects"] == document["expected_effects"]
    assert said in document["reply"]


def test_the_page_says_who_decided_what_and_when(played: Play) -> None:
    page = played.page("approval-change")
    parts = (
        *("118.50", "by maria", "the call is changed", "replaced by another request"),
        *("clicks on the old page", "refused: act-", "used once"),
    )
    places = [page.index(part) for part in parts]
    assert places == sorted(places)
    assert rows(page, "118.50", "approved by maria", "and never used")
    assert rows(page, "180.00", "approved by maria", "used once")


@pytest.mark.parametrize(
    ("amount", "over_limit", "asks"), [("64.00", "0.00", False), ("118.50", "38.50", True), ("500.00", "0.00", True)]
)
def test_a_supervisor_is_asked_by_the_amount_whatever_the_model_says_of_the_limit(
    amount: str, over_limit: str, asks: bool
) -> None:
    planned = PlannedAction(
        tool="create_reimbursement_ticket",
        risk="non_idempotent_write",
        arguments={"amount": amount, "over_limit": over_limit},
        tenant="demo",
        thread_id="one",
        requester="E-1",
        roles=frozenset(),
        summary="",
        fingerprint="",
        repeat_of=None,
    )
    verdicts = [policy(planned) for policy in over_the_limit(timedelta(seconds=2))]
    assert any(isinstance(verdict, Ask) and verdict.four_eyes for verdict in verdicts) is asks
    assert all(isinstance(verdict, Ask | Allow) for verdict in verdicts)


def test_the_other_scenarios_ask_nobody() -> None:
    _, create = reimbursement_tools("http://127.0.0.1:9")
    assert (create.contract.approval, create.contract.budgets) == ((), ())
