"""What an operator is told, in plain words: spans, instants, who may decide, and what will follow from a decision.

Pure: values in, sentences out; the same for a page and for JSON. Nothing is promised here that the ledger does not
keep, and an operator's sentence never says "done" of what only a service can know.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, assert_never

from settled.state.machine import State
from settled.state.model import Action, Approval

if TYPE_CHECKING:
    from settled.state.outbox import Posted
    from settled.tools.resolutions import Resolution

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400


def span(seconds: float) -> str:
    """Return a span in the unit that a person would use."""
    units = ((2 * DAY_S, DAY_S, "days"), (2 * HOUR_S, HOUR_S, "h"), (2 * MINUTE_S, MINUTE_S, "min"))
    for least, unit_s, name in units:
        if seconds >= least:
            return f"{round(seconds / unit_s, 1 if seconds < 10 * unit_s else 0):g} {name}"
    return f"{max(seconds, 0):.0f} s"


def instant(at: datetime) -> str:
    """Return an instant, to the second."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def until(at: datetime | None, now: datetime) -> str:
    """Return the end of something, and how far it is."""
    if at is None:
        return "without an end"
    left_s = (at - now).total_seconds()
    return f"{instant(at)} ({f'in {span(left_s)}' if left_s > 0 else 'over'})"


def since(at: datetime, now: datetime) -> str:
    """Return when something began, and how long ago that was."""
    return f"{instant(at)} ({span((now - at).total_seconds())} ago)"


def who_may_decide(approval: Approval) -> str:
    """Return who may decide: names or roles, and whether the requester may not."""
    named = " or ".join(approval.approvers) or "anybody"
    if not approval.four_eyes:
        return named
    return f"{named}, but not {approval.requester or 'the requester'} (four eyes)"


def ticket(approval: Approval) -> str:
    """Return what became of an approval, from the asking on."""
    asked = f"asked {instant(approval.issued_at)}"
    if approval.decided_at is None:
        return f"{asked}; {who_may_decide(approval)} may decide until {until(approval.valid_until, approval.now)}"
    word = DECISIONS.get(str(approval.decision), str(approval.decision))
    by = f" by {approval.decided_by}" if approval.decided_by else ""
    note = f" (“{approval.note}”)" if approval.note else ""
    decided = f"{asked}; {word}{by} {instant(approval.decided_at)}{note}"
    if approval.spent_at is not None:
        return f"{decided}; used {instant(approval.spent_at)}"
    good = approval.decision == "approve" and approval.valid_until
    return f"{decided}; not used, good until {until(good, approval.now)}" if good else decided


DECISIONS = {
    "approve": "approved",
    "deny": "denied",
    "supersede": "replaced by another request",
    "expire": "expired",
    "withdraw": "withdrawn",
}
"""What each decision of an approval is called once it was made."""


def after_approve(action: Action) -> list[str]:
    """Return what follows from an approval, before and after it was given."""
    match action.state:
        case State.PLANNED:
            ttl_s = (action.asking or {}).get("ttl_s")
            good = f"for {span(ttl_s)} after it is given" if isinstance(ttl_s, int | float) else None
        case State.APPROVED:
            good = f"until {instant(action.approved_until)}" if action.approved_until else None
        case _:
            return []
    end = "has no end" if good is None else f"is good {good}, and a person is asked again after that"
    return [
        "It may be run once, with these arguments and no others.",
        f"It will be run by the next process that continues its conversation, {action.thread_id}; the approval {end}.",
        "The user is told there what came of it.",
    ]


def after_deny(action: Action, by: str, note: str | None) -> list[str]:
    """Return what follows from a refusal."""
    said = f" (“{note}”)" if note else ""
    return [
        "It ends here: nothing is sent. This decision is final, and the same request gets the same answer.",
        f"{_goes_on(action)} the assistant and the user are told that it was not approved by {by}{said}.",
    ]


def before_edit(action: Action, changes: Sequence[str], summary: str) -> list[str]:
    """Return what follows from an edit of these arguments (each as "name: old → new")."""
    return [
        f"{action.id} ends here, and nothing is sent for it.",
        f"A new action, “{summary}”, takes its place, with {'; '.join(changes)}. The other arguments stay.",
        "The policy of its tool judges the new one: it may run, or wait for a person; if denied, nothing changes.",
        "Where the tool has no policy of its own, a person is asked about the new one.",
        f"{_goes_on(action)} the assistant and the user are told of the change, and what became of the new request.",
    ]


def after_edit(new: Action) -> list[str]:
    """Return what follows for the action that an edit began."""
    match new.state:
        case State.PLANNED:
            return [f"It waits for an approval of its own, until {instant(new.asked_until or new.now)}."]
        case State.APPROVED:
            return [f"It will be run by the next process that continues its conversation, {new.thread_id}."]
        case _:
            return [new.reason] if new.reason else []


def after_withdraw(action: Action) -> list[str]:
    """Return what follows from a withdrawal."""
    return [
        "It ends here, and nothing is sent. Nobody can approve it any more, and an approval that it has is void.",
        f"{_goes_on(action)} the assistant and the user are told that it was withdrawn.",
    ]


def after_resolution(action: Action, resolution: "Resolution") -> list[str]:
    """Return what follows from a person's word on what became of an action."""
    from settled.tools.resolutions import AskAgain, DidNotHappen, Happened

    match resolution:
        case Happened(receipt=receipt):
            return [
                f"It is settled as succeeded, with the receipt {receipt}, on your word; it is never sent again.",
                f"{_goes_on(action)} the user is told that it was carried out, and the receipt.",
            ]
        case DidNotHappen():
            return [
                "It is settled as failed, on your word: it did not take place, and this action is never sent again.",
                "If it did take place after all, a new request for the same would do it a second time. Be sure.",
                f"{_goes_on(action)} the user is told that it was not carried out.",
            ]
        case AskAgain():
            return [
                "It leaves the manual queue, and nothing is settled: whether it took place is still not known.",
                f"The next process that continues its conversation, {action.thread_id}, asks the remote side again.",
                "If nobody can tell, it comes back to this queue. To ask at once: settled actions retry.",
            ]
        case _:
            assert_never(resolution)


def after_retry(action: Action) -> list[str]:
    """Return what follows where this process carries an action on."""
    match action.state:
        case State.PLANNED:
            first = "It waits for a person's decision: nothing is run."
        case State.APPROVED if action.approval_is_over:
            first = "Its approval ended before it was used: nothing is run, and a person is asked again."
        case State.APPROVED:
            first = "It is run now, by this process, once; that uses up the approval that it has."
        case State.RUNNING:
            first = (
                "If its owner's time is up, the remote side is asked what became of it; else it is left to its owner."
            )
        case _:
            first = (
                "The remote side is asked now, if it can be. If it has it, the action is settled; if it surely has "
                "not, it is sent again under the same key where the tool allows that; else a person decides."
            )
    return [first, f"{_goes_on(action)} the user is told what came of it."]


def before_compensate(action: Action) -> list[str]:
    """Return what follows where an action is to be undone."""
    if action.state is State.COMPENSATION_PENDING:
        first = f"Its undoing by {action.compensated_by} is carried on; where that did nothing, another one is begun."
    else:
        first = "The action that undoes it is begun and run now, by this process, as its own policy allows."
    return [first, "What was done stays in effect until that action has succeeded."]


def after_compensate(action: Action) -> list[str]:
    """Return where an action stands after it was to be undone."""
    if action.state is State.COMPENSATED:
        return [f"It has been undone by {action.compensated_by}."]
    where = f"What was done is still in effect; {action.compensated_by} is to undo it: settled actions show."
    return [where, *([_PERSON] if action.escalated_at is not None else []), *_reason(action)]


def before_undone(action: Action) -> list[str]:
    """Return what follows where a person says that he has undone it."""
    return ["It counts as undone, by your word: nothing is sent, and the same may be asked for again."]


def after_undone(action: Action) -> list[str]:
    """Return where an action stands that a person has undone."""
    return ["It is undone, by the word of a person."]


_PERSON = "It is in the manual queue: a person tries again, or undoes it by hand: settled actions undone."


def _goes_on(action: Action) -> str:
    return f"When its conversation, {action.thread_id}, goes on,"


def after_carrying_on(action: Action) -> list[str]:
    """Return where an action stands after it was carried on."""
    match action.state:
        case State.PLANNED:
            return ["It waits for a person's approval: settled actions approvals."]
        case State.UNKNOWN if action.escalated_at is not None:
            return ["Only a person can decide what became of it: settled actions queue.", *_reason(action)]
        case State.UNKNOWN:
            return ["Its outcome is not known yet.", *_reason(action)]
        case State.RUNNING:
            return ["Another process is running it; nothing was done here."]
        case State.FAILED | State.CANCELLED:
            return ["Nothing has taken place.", *_reason(action)]
        case _:
            return [f"{_goes_on(action)} the user is told what came of it."]


def _reason(action: Action) -> list[str]:
    return [f"Why: {action.reason}."] if action.reason else []


def done(action_id: str, action: Action) -> str:
    """Return what was done: where the action stands now, or the one that took its place."""
    if action.id != action_id:
        return f"{action.id} ({action.summary}) took the place of {action_id}, and is {state(action.state)}."
    decided = action.approver is not None and action.state in (State.APPROVED, State.CANCELLED)
    receipt = f", with the receipt {action.receipt}" if action.receipt else ""
    return f"{action.id} is {state(action.state)}{f' by {action.approver}' if decided else receipt}."


def state(of: State) -> str:
    """Return where an action stands, as it reads in a sentence."""
    return "waiting for an approval" if of is State.PLANNED else of.replace("_", " ")


def message_waits_for(message: "Posted") -> Literal["held", "lease", "due", "tool", "sink"] | None:
    """Return what a message of the outbox waits for, in one word; None for one that is over.

    `held`: an earlier one of its action. `lease`: it is being delivered. `due`: the instant of its next attempt.
    `tool`: a dispatcher that can make the messages. `sink`: one that delivers its topic.
    """
    match message.state:
        case "delivered" | "dead":
            return None
        case "held":
            return "held"
        case _ if message.lease_until is not None and message.lease_until > message.now:
            return "lease"
        case _ if message.due_at is not None and message.due_at > message.now:
            return "due"
        case _:
            return "tool" if message.topic is None else "sink"
