"""The scenarios of the demo, as data: what the user says, what goes wrong, and how many effects there must be.

Nothing here says what comes out; that is read from the ledger, the service and the agent afterwards.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

TENANT = "demo"
"""The demo's actions stand in the user's own ledger, and not among his own."""

FILE = {"en": "Please file invoice INV-102 for reimbursement.", "zh": "请帮我报销发票 INV-102。"}
FILE_OTHER = {"en": "Please file invoice INV-101 too.", "zh": "请把发票 INV-101 也报销了。"}
CORRECT = {"en": "The amount should be 180; please file it like that.", "zh": "金额应该是 180，请按这个金额提交。"}
ORDER = {
    "en": "Please order the KETTLE, and use my coupon SPRING-20.",
    "zh": "请帮我下单购买 KETTLE，并使用优惠券 SPRING-20。",
}
ORDER_OTHER = {
    "en": "Please order the TEAPOT, and use my coupon SPRING-20.",
    "zh": "请帮我下单购买 TEAPOT，并使用优惠券 SPRING-20。",
}

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

    With `chain` the agent is that of a shop, which orders by a chain of steps; its value is what the chain does when a
    step fails for good. `dispatchers`: a filed ticket has a message for the supervisor, so many processes deliver it
    one after the other, and all but the last are killed before they have written down that it arrived. `left_open`: no
    agent, but so many refunds that a process has begun and left, and `workers` that look after them.

    `divided` says how the expected effects are divided, where they are not all tickets.
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
    chain: Literal["stop", "compensate"] | None = None
    dispatchers: int = 0
    left_open: int = 0
    workers: int = 0
    expected_effects: int = 1
    divided: Mapping[str, int] = field(default_factory=dict)

    @property
    def expected(self) -> Mapping[str, int]:
        """How many effects of each kind there must be."""
        return self.divided or {"tickets": self.expected_effects}


LEFT_OPEN: tuple[Mapping[str, Any], ...] = (
    *({"kind": "commit_and_delay", "seconds": 20},) * 8,
    *({"kind": "freeze"},) * 6,
    *({"kind": "refuse_503", "retry_after": 1},) * 6,
    *({"kind": "commit_and_500"},) * 5,
    *({"kind": "commit_and_drop"},) * 5,
)
"""What goes wrong with the refunds that are left open, one each: three in five took place, and nobody was told."""

LATE = {"kind": "commit_and_delay", "seconds": 1}
"""A reply that comes when a worker has been waiting for it for a while: it can be stopped in the middle of that."""

SENT_AGAIN: tuple[Mapping[str, Any], ...] = (
    *(LATE,) * 8,
    *({"kind": kind} for kind in ("commit_and_drop", "refuse_503", "commit_and_500", "commit_and_drop")),
)
"""What goes wrong with the first of those that a worker sends again. The others are late too."""

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
    Scenario(
        "coupon-chain",
        "Verify coupon, deduct coupon, ship: the agent is killed when the coupon was deducted and nobody knows it yet.",
        turns=(ORDER,),
        chain="stop",
        kill_at="after invoke",
        expected_effects=2,
        divided={"coupons": 1, "shipments": 1, "returns": 0},
    ),
    Scenario(
        "compensation",
        "Out of stock: the coupon that was deducted is given back, and the reply to that is lost.",
        {"next": [None, None, "commit_and_drop"]},
        turns=(ORDER_OTHER,),
        chain="compensate",
        expected_effects=2,
        divided={"coupons": 1, "shipments": 0, "returns": 1},
    ),
    Scenario(
        "outbox",
        "The supervisor is notified by a message; its dispatcher is killed after it arrived, and it comes again.",
        dispatchers=2,
        expected_effects=2,
        divided={"tickets": 1, "notifications": 1},
    ),
    Scenario(
        "two-workers",
        "Thirty refunds that a dead process has left: one worker is frozen and woken, the other one killed.",
        {"next": [*LEFT_OPEN, *SENT_AGAIN], "always": LATE, "lag_s": 1},
        turns=(),
        left_open=len(LEFT_OPEN),
        workers=2,
        expected_effects=len(LEFT_OPEN),
        divided={"refunds": len(LEFT_OPEN)},
    ),
)
SCENARIOS: Mapping[str, Scenario] = {scenario.name: scenario for scenario in _ALL}
DEFAULT = _ALL[0].name
