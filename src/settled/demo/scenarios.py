"""The scenarios of the demo, as data: what the user says, what goes wrong, and how many effects there must be.

Nothing here says what comes out; that is read from the ledger, the service and the agent afterwards.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TENANT = "demo"
"""The demo's actions stand in the user's own ledger, and not among his own."""

FILE = {"en": "Please file invoice INV-102 for reimbursement.", "zh": "请帮我报销发票 INV-102。"}
CORRECT = {"en": "The amount should be 180; please file it like that.", "zh": "金额应该是 180，请按这个金额提交。"}


@dataclass(frozen=True)
class Scenario:
    """One story.

    `faults` are the service's switches. `kill_at` names the instant at which the agent's process kills itself (`before`
    or `after`, and an effect of the protocol or a statement of the ledger). `clicks` is the number of processes that
    are sent the same words at once. With `queryable` False the tool's contract says that the service cannot be asked.
    """

    name: str
    title: str
    faults: Mapping[str, Any] = field(default_factory=dict)
    turns: tuple[Mapping[str, str], ...] = (FILE,)
    kill_at: str | None = None
    clicks: int = 1
    stubborn: bool = False
    queryable: bool = True
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
)
SCENARIOS: Mapping[str, Scenario] = {scenario.name: scenario for scenario in _ALL}
DEFAULT = _ALL[0].name
