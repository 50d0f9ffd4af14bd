"""What a caller is given for a run of a chain: its `ChainOutcome`, with what a model is told.

Pure: a standing in, values out. Owns how a run's state is classed under the codes of an action: "error" only where it
is certain that nothing is in effect, and an invitation to correct only where nothing was.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from settled.state.model import Action
from settled.tools.chain_begin import Clash
from settled.tools.chain_standing import ChainState, Standing, StepStanding, StepState
from settled.tools.chain_words import shown, tell, texts_of
from settled.tools.messages import MAX_DIFFERING, Code
from settled.tools.result import Outcome


@dataclass(frozen=True)
class StepOutcome:
    """One step of a run: `action_id` is its action, `undone_by` the action that undoes it, `by` the person who did it
    by hand, `reason` why it stands where it does.
    """

    name: str
    state: str
    action_id: str | None
    receipt: str | None
    result: Any = field(repr=False)
    reason: str | None
    by: str | None
    undone_by: str | None
    is_reversible: bool


@dataclass(frozen=True)
class ChainOutcome:
    """Where a run stands when its caller is answered.

    `state` is None where nothing was begun (a bad input, another one that is under way, a ledger that is away). `code`
    classes the answer as an action's, `message` is what a model is told, `artifact` the JSON record beside it.
    `fingerprint` is that of the action that waits for a person: the one that `artifact` names. `irreversible` are the
    steps without a way back.
    """

    state: ChainState | None
    code: Code
    chain_id: str | None
    steps: tuple[StepOutcome, ...]
    irreversible: tuple[str, ...]
    message: str = field(repr=False)
    artifact: Mapping[str, Any] = field(repr=False)
    fingerprint: str | None = None
    replayed: bool = False

    @property
    def receipts(self) -> dict[str, str]:
        """The receipts of what is in effect, by step."""
        kept = (StepState.DONE, StepState.UNDOING, StepState.NOT_UNDONE)
        return {one.name: one.receipt for one in self.steps if one.receipt and one.state in kept}

    def __getitem__(self, name: str) -> StepOutcome:
        """Return a step by name."""
        return {one.name: one for one in self.steps}[name]

    def record(self) -> dict[str, Any]:
        """Return it as plain JSON, without the steps' results: those are in the ledger, and may be large."""
        steps = [{name: value for name, value in asdict(one).items() if name != "result"} for one in self.steps]
        plain = {
            "state": self.state and str(self.state),
            "code": str(self.code),
            "irreversible": list(self.irreversible),
        }
        return {**{one.name: getattr(self, one.name) for one in fields(self)}, **plain, "steps": steps}


def outcome_of(now: Standing, language: str, *, replayed: bool = False) -> ChainOutcome:
    """Return what the caller of a run is given; `replayed`: it was over before he asked, and another call had begun
    it.
    """
    chain, state = now.chain, now.state
    step, about = now.waits_for, _action_about(now)
    code = Code.DUPLICATE if replayed and state is ChainState.SUCCEEDED else _code(now, step)
    artifact = {
        "code": str(code),
        "action_id": about.id if about is not None else chain.id,
        "chain_id": chain.id,
        "state": str(state),
        "receipt": None,
        "may_retry": code is Code.INVALID,
        "next": _NEXT.get(code, "tell_user"),
        "steps": [_brief(one) for one in now.steps],
        "irreversible": list(chain.irreversible),
        **({"replayed": True} if replayed else {}),
    }
    return ChainOutcome(
        state=state,
        code=code,
        chain_id=chain.id,
        steps=tuple(_step(one) for one in now.steps),
        irreversible=tuple(chain.irreversible),
        message=tell(now, step, about, code, language, replayed=replayed),
        artifact=artifact,
        fingerprint=about.fingerprint if about is not None and code is Code.WAITING_FOR_APPROVAL else None,
        replayed=replayed,
    )


def clash_outcome(clash: Clash, name: str, language: str) -> ChainOutcome:
    """Return the answer to an input that clashes with a run: nothing was begun."""
    texts, chain = texts_of(language), clash.chain
    pairs = list(clash.differing.items())[:MAX_DIFFERING]
    differing = texts["list"].join(f"{field} ({shown(before)} → {shown(sent)})" for field, (before, sent) in pairs)
    said = {"summary": shown(clash.summary), "chain_id": chain.id, "differing": differing or "…", "name": name}
    text = f"{texts['conflict'].format(**said)}\n{texts['line'].format(**said)}"
    artifact = {
        "code": str(Code.CONFLICT), "action_id": chain.id, "chain_id": chain.id, "state": None, "receipt": None,
        "may_retry": False, "next": "ask_user", "earlier_action_id": chain.id,
        "differing": {field: [str(one) for one in pair] for field, pair in clash.differing.items()},
    }  # fmt: skip
    return ChainOutcome(None, Code.CONFLICT, chain.id, (), tuple(chain.irreversible), text, artifact)


def refused_outcome(told: Outcome, irreversible: tuple[str, ...]) -> ChainOutcome:
    """Return the answer to a bad input: nothing was begun."""
    return ChainOutcome(None, told.code, None, (), irreversible, told.message, dict(told.artifact))


def unrecorded_outcome(name: str, language: str, irreversible: tuple[str, ...], *, invoked: bool) -> ChainOutcome:
    """Return the answer for a ledger that went away: what was sent, if anything, nobody knows."""
    texts, code = texts_of(language), Code.UNKNOWN if invoked else Code.UNAVAILABLE
    said = {"summary": name.replace("_", " "), "name": name}
    text = f"{texts['not_recorded' if invoked else 'not_begun'].format(**said)}\n{texts['line'].format(**said)}"
    artifact = {
        "code": str(code), "action_id": "", "state": None, "receipt": None, "may_retry": False,
        "next": _NEXT.get(code, "tell_user"),
    }  # fmt: skip
    return ChainOutcome(None, code, None, (), irreversible, text, artifact)


_NEXT = {
    Code.IN_PROGRESS: "wait",
    Code.WAITING_FOR_APPROVAL: "wait",
    Code.UNKNOWN: "wait",
    Code.MANUAL_REVIEW: "wait",
    Code.INVALID: "correct_arguments",
}


def _code(now: Standing, step: StepStanding | None) -> Code:
    match now.state:
        case ChainState.SUCCEEDED:
            return Code.SUCCEEDED
        case ChainState.WAITING:
            return Code.WAITING_FOR_APPROVAL
        case ChainState.RUNNING:
            return Code.IN_PROGRESS
        case ChainState.UNKNOWN:
            asked = step is not None and step.action is not None and step.action.escalated_at is not None
            return Code.MANUAL_REVIEW if asked else Code.UNKNOWN
        case ChainState.COMPENSATING:
            undo = None if step is None else step.undo
            return Code.WAITING_FOR_APPROVAL if undo is not None and undo.state == "planned" else Code.IN_PROGRESS
        case ChainState.PARTIALLY_COMPENSATED:
            return Code.MANUAL_REVIEW
        case ChainState.COMPENSATED:
            if now.chain.ended_as == "succeeded":
                return Code.DUPLICATE
            code = Code(now.chain.code) if now.chain.code else Code.REJECTED
            return Code.REJECTED if code is Code.INVALID else code
        case ChainState.STOPPED:
            if now.in_effect:
                return Code.MANUAL_REVIEW
            return (step.code if step is not None else None) or Code.REJECTED


def _action_about(now: Standing) -> Action | None:
    """Return the action that has to move before there is anything else to tell."""
    step = now.waits_for
    if now.state in (ChainState.WAITING, ChainState.RUNNING, ChainState.UNKNOWN, ChainState.COMPENSATING):
        return step.open_action if step is not None else None
    return None


def _step(step: StepStanding) -> StepOutcome:
    return StepOutcome(
        name=step.name,
        state=str(step.state),
        action_id=step.action.id if step.action is not None else None,
        receipt=step.receipt,
        result=step.result,
        reason=step.reason,
        by=step.by,
        undone_by=step.undo.id if step.undo is not None else None,
        is_reversible=step.is_reversible,
    )


def _brief(step: StepStanding) -> dict[str, Any]:
    said = {"name": step.name, "state": str(step.state), "receipt": step.receipt}
    return {name: value for name, value in said.items() if value is not None}
