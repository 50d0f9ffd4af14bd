"""The scenarios of the demo, as data: what the user says, what goes wrong, and how many effects there must be.

Nothing here says what comes out; that is read from the ledger, the service and the agent afterwards.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TENANT = "demo"
"""The demo's actions stand in the user's own ledger, and not among his own."""

FILE = {"en": "Please file invoice INV-102 for reimbursement.", "zh": "请帮我报销发票 INV-102。"}
FILE_OTHER = {"en": "Please file invoice INV-101 too.", "zh": "请把发票 INV-101 也报销了。"}
CORRECT = {"en": "The amount should be 180; please file it like that.", "zh": "金额应该是 180，请按这个金额提交。"}

HOUR_S = 3600.0


@dataclass(frozen=True)
class Scenario:
    """One story.

    `faults` are the service's switches. `kill_at` names the instant at which the agent's process kills itself (`before`
    or `after`, and an effect of the protocol or a statement of the ledger). `clicks` is the number of processes that
    are sent the same words at once. With `queryable` False the tool's contract says that the service cannot be asked.

    With `approval_ttl_s` a supervisor is asked about what is over the limit, and each request stands for so long;
    `supervisors` decide at the same instant, and nobody does where none are named. `dies_waiting`: the agent's process
    is killed while the request waits. `rewritten` is what the call's arguments are changed to, in the conversation
    itself, once the request was approved; the employee's last words come after that. `daily_limit` is how much one
    employee may be paid in a day.
    """

    name: str
    title: str
    faults: Mapping[str, Any] = field(default_factory=dict)
    turns: tuple[Mapping[str, str], ...] = (FILE,)
    kill_at: str | None = None
    clicks: int = 1
    stubborn: bool = False
    queryable: bool = True
    approval_ttl_s: float | None = None
    supervisors: tuple[str, ...] = ()
    dies_waiting: bool = False
    rewritten: Mapping[str, object] = field(default_factory=dict)
    daily_limit: int | None = None
    expected_effects: int = 1


_ALL = (
    Scenario("lost-reply", "The service files the ticket, and its reply is lost.", {"next": ["commit_and_drop"]}),
    Scenario(
        "crash-before-intent",
        "The agent is killed before it has written down what it is about to do.",
        kill_at="before plan",
    ),
    Scenario(
        "crash-after-effect",
        "The agent is killed after the service filed the ticket, before it could write that down.",
        kill_at="after invoke",
    ),
    Scenario(
        "double-click",
        "The same request is sent twice at once, to two processes.",
        {"next": [{"kind": "commit_and_delay", "seconds": 0.5}]},
        clicks=2,
    ),
    Scenario("same-key-other-amount", "The same request comes again with another amount.", turns=(FILE, CORRECT)),
    Scenario(
        "retry-after",
        "The service is busy: 503, then 429 with Retry-After.",
        {"next": ["refuse_503", {"kind": "refuse_429", "retry_after": 2}]},
    ),
    Scenario("stubborn-model", "The model calls the tool again and again, in new words.", stubborn=True),
    Scenario(
        "no-query",
        "The reply is lost, and the service can neither be asked nor recognise a repeat.",
        {"next": ["commit_and_drop"], "no_query": 501, "forget_keys": True},
        queryable=False,
    ),
    Scenario(
        "approval",
        "The invoice is over the limit: a supervisor is asked, and approves it.",
        approval_ttl_s=HOUR_S,
        supervisors=("maria",),
    ),
    Scenario(
        "approval-change",
        "118.50 is approved, and then the call says 180: that takes an approval of its own.",
        approval_ttl_s=HOUR_S,
        supervisors=("maria",),
        rewritten={"amount": 180},
    ),
    Scenario(
        "approval-expired",
        "A supervisor is asked, and nobody answers in time.",
        approval_ttl_s=2,
        expected_effects=0,
    ),
    Scenario(
        "approval-crash",
        "The agent is killed while the request waits; another process takes over, then it is approved.",
        approval_ttl_s=HOUR_S,
        supervisors=("maria",),
        dies_waiting=True,
    ),
    Scenario(
        "two-approvers",
        "Two supervisors click approve at the same instant.",
        approval_ttl_s=HOUR_S,
        supervisors=("maria", "jonas"),
    ),
    Scenario(
        "budget",
        "150 per employee and day: the second invoice would be too much.",
        turns=(FILE, FILE_OTHER),
        daily_limit=150,
    ),
)
SCENARIOS: Mapping[str, Scenario] = {scenario.name: scenario for scenario in _ALL}
DEFAULT = _ALL[0].name
