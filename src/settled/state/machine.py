"""The state machine of an action, as data.

Owns which trigger leads from which state to which; knows nothing of SQL or tools. The database guard (migration
0001), the diagram in the README and the tests are made from `TRANSITIONS`. The subtle row is `unknown`: a late reply
of the same fencing token may still settle it, and `escalate` keeps the state but hands the action to a person.
"""

from enum import StrEnum

from settled.state.errors import IllegalTransition


class State(StrEnum):
    """Where an action stands. The guard in the database knows what a row must hold in each."""

    PLANNED = "planned"
    APPROVED = "approved"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    UNKNOWN = "unknown"
    FAILED = "failed"
    CANCELLED = "cancelled"
    COMPENSATION_PENDING = "compensation_pending"
    COMPENSATED = "compensated"


class Trigger(StrEnum):
    """What moves an action; the same word in the event it leaves."""

    APPROVE = "approve"
    DENY = "deny"
    EXPIRE = "expire"
    SUPERSEDE = "supersede"
    WITHDRAW = "withdraw"
    CLAIM = "claim"
    LAPSE = "lapse"
    SUCCEED = "succeed"
    FAIL = "fail"
    REFUSE = "refuse"
    LOSE = "lose"
    FIND = "find"
    RELEASE = "release"
    ESCALATE = "escalate"
    COMPENSATE = "compensate"
    COMPENSATED = "compensated"


BIRTH = "plan"
"""The trigger word of the event that begins an action (from no state to planned)."""

TRANSITIONS: dict[State, dict[Trigger, State]] = {
    State.PLANNED: {
        Trigger.APPROVE: State.APPROVED,
        Trigger.DENY: State.CANCELLED,
        Trigger.EXPIRE: State.CANCELLED,
        Trigger.SUPERSEDE: State.CANCELLED,
        Trigger.WITHDRAW: State.CANCELLED,
    },
    State.APPROVED: {
        Trigger.CLAIM: State.RUNNING,
        Trigger.LAPSE: State.PLANNED,
        Trigger.SUPERSEDE: State.CANCELLED,
        Trigger.WITHDRAW: State.CANCELLED,
    },
    State.RUNNING: {
        Trigger.SUCCEED: State.SUCCEEDED,
        Trigger.FAIL: State.FAILED,
        Trigger.REFUSE: State.RUNNING,
        Trigger.LOSE: State.UNKNOWN,
    },
    State.UNKNOWN: {
        Trigger.FIND: State.SUCCEEDED,
        Trigger.SUCCEED: State.SUCCEEDED,
        Trigger.RELEASE: State.RUNNING,
        Trigger.FAIL: State.FAILED,
        Trigger.ESCALATE: State.UNKNOWN,
    },
    State.SUCCEEDED: {Trigger.COMPENSATE: State.COMPENSATION_PENDING},
    State.COMPENSATION_PENDING: {
        Trigger.COMPENSATED: State.COMPENSATED,
        Trigger.ESCALATE: State.COMPENSATION_PENDING,
    },
    State.FAILED: {},
    State.CANCELLED: {},
    State.COMPENSATED: {},
}

OPEN = frozenset({State.PLANNED, State.APPROVED, State.RUNNING, State.UNKNOWN, State.COMPENSATION_PENDING})
"""States that never leave the window of an intent: what is not over is not forgotten."""

TERMINAL = frozenset(state for state, row in TRANSITIONS.items() if not row)
"""States that nothing leaves."""


def advance(state: State, trigger: Trigger) -> State:
    """Return the state that `trigger` leads to from `state`; raise IllegalTransition where the table has no such
    entry.
    """
    try:
        return TRANSITIONS[state][trigger]
    except KeyError:
        raise IllegalTransition(f"an action that is {state} cannot {trigger}") from None


def sources(trigger: Trigger) -> tuple[State, ...]:
    """Return the states that `trigger` leads out of: a ledger statement moves an action from these and no others."""
    return tuple(state for state, row in TRANSITIONS.items() if trigger in row)


def diagram() -> str:
    """Return the machine as the text of a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.PLANNED}: {BIRTH}"]
    for state, row in TRANSITIONS.items():
        by_target: dict[State, list[str]] = {}
        for trigger, target in row.items():
            by_target.setdefault(target, []).append(trigger)
        lines += [f"    {state} --> {target}: {', '.join(triggers)}" for target, triggers in by_target.items()]
    lines += [f"    {state} --> [*]" for state in State if state in TERMINAL]
    return "\n".join(lines)


if __name__ == "__main__":
    print(diagram())
