"""What every door must do alike: a list of scenarios, as data. `conformance_doors` plays them, and knows the doors.

A scenario is a conversation (what the model calls, what people decide, how time passes), a far side with its faults,
and what must be seen afterwards: what the model was told, the effects, and the timeline of each action.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from settled import (
    Approve,
    Budget,
    Conflict,
    Deny,
    DidNotHappen,
    Edit,
    Forbidden,
    Happened,
    Invalid,
    Reject,
    Rejected,
    always,
    over,
    permitted,
)
from settled.tools.decisions import Decision
from settled.tools.outcome import AttemptOutcome
from settled.tools.resolutions import Resolution

HOUR = timedelta(hours=1)
CARD = "4000-1234-5678-9010"


@dataclass(frozen=True)
class Call:
    """What a model asks for. The argument FIRST stands for the id of the thread's first action."""

    tool: str
    arguments: Mapping[str, object]


@dataclass(frozen=True)
class Turn:
    """A user's message, and the messages with calls that the model answers it with before it says something.

    `meanwhile`: the ledger goes away when the model has spoken ("away"), or the caller is cancelled in the body.
    """

    says: Sequence[Sequence[Call]]
    text: str = "please refund it"
    meanwhile: Literal["away", "cancelled"] | None = None


@dataclass(frozen=True)
class Decided:
    """A person decides on the request for `order`, and the thread goes on; `refused`: he may not, and it stays."""

    decision: Decision
    order: str = "A1"
    by: str = "sue"
    roles: tuple[str, ...] = ()
    refused: bool = False


@dataclass(frozen=True)
class Resolved:
    """A person says what became of the thread's first action."""

    resolution: Resolution


@dataclass(frozen=True)
class Passed:
    """Time goes by."""

    seconds: float


@dataclass(frozen=True)
class Resumed:
    """Somebody lets the thread go on."""


Step = Turn | Decided | Resolved | Passed | Resumed


@dataclass(frozen=True)
class Status:
    """An HTTP answer, and nothing was done."""

    code: int
    headers: Mapping[str, str] = field(default_factory=dict)


LOST, NEVER, HANGS, MEETS, KILLS = "lost", "never", "hangs", "meets", "kills"
"""It was done and no reply came; it was not, and no reply came; it was done, and the reply takes for ever, or until an
equal call has come; it was done, and the caller's process died.
"""

Fault = str | Status | AttemptOutcome


@dataclass(frozen=True)
class Scenario:
    """`faults` are those of the far side's attempts, in order; after them it works.

    Expected: `told` (codes, in the order of the calls), `events` (the triggers of each action, by order and occurrence)
    and `receipts` (of those). `effects` is what the far side did, `sent` how often it was sent; `keys` how many keys it
    saw. `unordered`: which of two equal calls comes first is nobody's promise. `only`: in which mode it can be played.

    What a session does otherwise, in whichever graph: it carries out what was approved after its turn, and tells it by
    itself, so that the next call finds it done (`session_told`). What `build_agent` does otherwise: it ends a turn that
    only repeats itself, after so many answers (`build_agent_tells`).
    """

    name: str
    steps: Sequence[Step]
    told: Sequence[str]
    events: Sequence[str]
    receipts: Sequence[str | None] = ("RF-A1-1",)
    effects: int = 1
    sent: int | None = None
    keys: int | None = None
    faults: Sequence[Fault] = ()
    contract: Mapping[str, Any] = field(default_factory=dict)
    requester: str | None = None
    roles: tuple[str, ...] = ()
    secret: str | None = None
    unordered: bool = False
    only: Literal["sync", "async"] | None = None
    build_agent_tells: int | None = None
    session_told: Sequence[str] | None = None

    @property
    def turns(self) -> list[Turn]:
        return [step for step in self.steps if isinstance(step, Turn)]

    @property
    def asks(self) -> bool:
        """Whether people are asked."""
        return any(isinstance(step, Decided | Resumed) for step in self.steps)


FIRST = "<the first action>"


def refund(order: str = "A1", amount: object = 25, **more: object) -> Call:
    return Call("refund", {"order_id": order, "amount": amount, **more})


def look(order: str = "A1") -> Call:
    return Call("look", {"order_id": order})


def said(*calls: Call, **more: Any) -> Turn:
    """A turn with one message of the model."""
    return Turn([calls], **more)


def denied(planned: object) -> Deny:
    return Deny("refunds are closed today")


ONE = said(refund())
DONE = "plan approve claim succeed"
ASKED = "plan approve claim succeed"
OPAQUE: Mapping[str, Any] = {"remote": "opaque", "query": None}
ASKS: Mapping[str, Any] = {"approval": always}
ABOVE_100: Mapping[str, Any] = {"approval": over("amount", 100, approvers=("supervisor",), four_eyes=True, ttl=HOUR)}
MARIA: Mapping[str, Any] = {"by": "maria", "roles": ("supervisor",)}
FOUND = "plan approve claim lose find"
QUEUED = "plan approve claim lose escalate"

PLAIN = [
    Scenario("plain success", [ONE], ["succeeded"], [DONE]),
    Scenario("asked in Chinese", [said(refund(), text="请退款，谢谢")], ["succeeded"], [DONE]),
    Scenario("two orders at once", [said(refund(), refund("A2"))], ["succeeded"] * 2, [DONE] * 2,
             receipts=("RF-A1-1", "RF-A2-1"), effects=2),
    Scenario("a read has no row", [said(look())], ["succeeded"], [], receipts=(), effects=0),
    Scenario("a read beside a write", [said(look(), refund())], ["succeeded"] * 2, [DONE]),
]  # fmt: skip

EQUAL = Scenario("two equal calls in one message", [said(refund(), refund())], ["succeeded", "duplicate"], [DONE],
                 faults=[MEETS], unordered=True)  # fmt: skip

AGAIN = [
    Scenario("a second message", [ONE, ONE], ["succeeded", "duplicate"], [DONE]),
    Scenario("reworded", [ONE, said(refund(memo="once more"))], ["succeeded", "duplicate"], [DONE]),
    Scenario("another spelling of the amount", [ONE, said(refund(amount="25.00"))], ["succeeded", "duplicate"], [DONE]),
    Scenario("five times", [said(refund(memo=f"time {n}")) for n in range(5)],
             ["succeeded", *["duplicate"] * 4], [DONE]),
    Scenario("five times in one turn", [Turn([[refund(memo=f"time {n}")] for n in range(5)])],
             ["succeeded", *["duplicate"] * 4], [DONE], build_agent_tells=4),
    EQUAL,
    Scenario("another amount", [ONE, said(refund(amount=30))], ["succeeded", "conflict"], [DONE]),
    Scenario("a repeat on purpose", [ONE, said(refund(repeat_of=FIRST)), Decided(Approve())],
             ["succeeded", "succeeded"], [DONE, ASKED], receipts=("RF-A1-1", "RF-A1-2"), effects=2),
    Scenario("a repeat of nothing", [said(refund(repeat_of="act-0000000000000000"))], ["invalid"], [], receipts=(),
             effects=0),
]  # fmt: skip

REFUSALS = [
    Scenario("invalid, then corrected", [Turn([[refund(amount="lots")], [refund()]])], ["invalid", "succeeded"],
             [DONE]),
    Scenario("invalid in the far side's eyes", [Turn([[refund()], [refund(amount=20)]])], ["invalid", "succeeded"],
             ["plan approve claim fail", DONE], faults=[Invalid("amount must be at most 20", "amount")],
             receipts=(None, "RF-A1-1"), sent=2),
    Scenario("rejected by the business", [ONE], ["rejected"], ["plan approve claim fail"],
             faults=[Rejected("A1 was already refunded", "RF-7")], receipts=("RF-7",), effects=0, sent=1),
    Scenario("forbidden", [ONE], ["forbidden"], ["plan approve claim fail"], faults=[Forbidden("read only account")],
             receipts=(None,), effects=0, sent=1),
    Scenario("a conflict at the far side", [ONE], ["conflict"], ["plan approve claim fail"],
             faults=[Conflict("the key was used for another amount")], receipts=(None,), effects=0, sent=1),
    Scenario("refused, then done", [ONE], ["succeeded"], ["plan approve claim refuse refuse succeed"],
             faults=[Status(503), Status(429, {"Retry-After": "5"})], sent=3),
    Scenario("refused to the end", [ONE], ["unavailable"], ["plan approve claim refuse refuse fail"],
             faults=[Status(503)] * 3, contract={"max_attempts": 3}, receipts=(None,), effects=0, sent=3),
    Scenario("unavailable, and asked for at once and later", [ONE, ONE, Passed(31), ONE],
             ["unavailable", "unavailable", "succeeded"], ["plan approve claim fail", DONE], faults=[Status(503)],
             contract={"max_attempts": 1}, receipts=(None, "RF-A1-1"), sent=2),
]  # fmt: skip

UNKNOWNS = [
    Scenario("a lost reply is found", [ONE, ONE], ["succeeded", "duplicate"], [FOUND], faults=[LOST]),
    Scenario("a lost reply that nobody can ask about", [ONE, Resolved(Happened("RF-9")), ONE],
             ["manual_review", "duplicate"], [f"{QUEUED} find"], faults=[LOST], contract=OPAQUE, receipts=("RF-9",)),
    Scenario("a lost reply, asked for again before a person has looked", [ONE, ONE],
             ["manual_review", "manual_review"], [QUEUED], faults=[LOST], contract=OPAQUE, receipts=(None,)),
    Scenario("it did not happen, says a person", [ONE, Passed(60), Resolved(DidNotHappen()), Passed(31), ONE],
             ["manual_review", "succeeded"], [f"{QUEUED} fail", DONE], faults=[NEVER], contract=OPAQUE,
             receipts=(None, "RF-A1-1"), sent=2),
    Scenario("absent, and sent once more", [ONE], ["succeeded"], ["plan approve claim lose release succeed"],
             faults=[NEVER], sent=2, keys=1),
    Scenario("absent, and no repeat would be recognised", [ONE], ["manual_review"], [QUEUED], faults=[NEVER],
             contract={"remote": "queryable"}, receipts=(None,), effects=0, sent=1),
    Scenario("the ledger is away", [said(refund(), meanwhile="away"), ONE], ["unavailable", "succeeded"], [DONE]),
    Scenario("cancelled in the body", [said(refund(), meanwhile="cancelled"), Resumed()], ["succeeded"], [FOUND],
             faults=[HANGS], only="async"),
]  # fmt: skip

PEOPLE = [
    Scenario("approved", [ONE, Decided(Approve())], ["succeeded"], [ASKED], contract=ASKS),
    Scenario("rejected by a person", [ONE, Decided(Reject("not this one"))], ["denied"], ["plan deny"], contract=ASKS,
             receipts=(None,), effects=0),
    Scenario("changed by a person", [said(refund(amount=130)), Decided(Edit({"amount": 20}), **MARIA)],
             ["changed_by_person"], ["plan supersede", DONE], contract=ABOVE_100, requester="joe",
             receipts=(None, "RF-A1-1")),
    Scenario("changed by a person, and asked for again",
             [said(refund(amount=130)), Decided(Edit({"amount": 20}), **MARIA), said(refund(amount=130))],
             ["changed_by_person"] * 2, ["plan supersede", DONE], contract=ABOVE_100, requester="joe",
             receipts=(None, "RF-A1-1")),
    Scenario("rejected by a person, and asked for again", [ONE, Decided(Reject("not this one")), ONE], ["denied"] * 2,
             ["plan deny"], contract=ASKS, receipts=(None,), effects=0),
    Scenario("asked for again while it waits", [ONE, ONE, Decided(Approve())], ["waiting_for_approval", "succeeded"],
             [ASKED], contract=ASKS),
    Scenario("another amount while it waits", [ONE, said(refund(amount=30)), Decided(Approve())],
             ["waiting_for_approval", "succeeded"], ["plan supersede", ASKED], contract=ASKS,
             receipts=(None, "RF-A1-1")),
    Scenario("approved after its turn", [ONE, Turn([], text="hello?"), Decided(Approve()), ONE],
             ["waiting_for_approval", "succeeded"], [ASKED], contract=ASKS,
             session_told=["waiting_for_approval", "duplicate"]),
    Scenario("nobody has answered, and it is asked for again", [ONE, Passed(7200), ONE, Decided(Approve())],
             ["expired", "succeeded"], ["plan expire", ASKED], contract={"approval": always(ttl=HOUR)},
             receipts=(None, "RF-A1-1")),
    Scenario("nobody has answered", [ONE, Passed(7200), Resumed()], ["expired"], ["plan expire"],
             contract={"approval": always(ttl=HOUR)}, receipts=(None,), effects=0),
    Scenario("four eyes", [said(refund(amount=130)), Decided(Approve(), refused=True, **MARIA),
                           Decided(Approve(), by="bob", roles=("supervisor",))],
             ["succeeded"], [ASKED], contract=ABOVE_100, requester="maria"),
    Scenario("two at once, one approved and one rejected",
             [said(refund(), refund("A2")), Decided(Reject(), "A2"), Decided(Approve(), "A1")],
             ["succeeded", "denied"], [ASKED, "plan deny"], contract=ASKS, receipts=("RF-A1-1", None)),
    Scenario("one waits and its sibling does not", [said(look(), refund(amount=130), refund("A2")),
                                                   Decided(Approve(), **MARIA)],
             ["succeeded"] * 3, [ASKED, DONE], contract=ABOVE_100, requester="joe", receipts=("RF-A1-1", "RF-A2-1"),
             effects=2),
    Scenario("over the budget", [ONE, said(refund("A2"))], ["succeeded", "budget_exceeded"],
             [DONE, "plan approve withdraw"], contract={"budgets": [Budget(1, per="thread")]},
             receipts=("RF-A1-1", None)),
    Scenario("denied by the policy", [ONE], ["denied"], ["plan deny"], contract={"approval": denied},
             receipts=(None,), effects=0),
    Scenario("permitted by role", [ONE], ["succeeded"], [DONE], contract={"approval": permitted("clerk")},
             roles=("clerk",)),
    Scenario("without the role", [ONE], ["forbidden"], ["plan deny"], contract={"approval": permitted("clerk")},
             receipts=(None,), effects=0),
    Scenario("a secret is never shown", [said(Call("charge", {"order_id": "A1", "amount": 25, "card": CARD})),
                                         Decided(Approve()),
                                         said(Call("charge", {"order_id": "A1", "amount": 25, "card": "other"}))],
             ["succeeded", "conflict"], [ASKED], contract=ASKS, secret=CARD),
]  # fmt: skip

SCENARIOS = [*PLAIN, *AGAIN, *REFUSALS, *UNKNOWNS, *PEOPLE]
