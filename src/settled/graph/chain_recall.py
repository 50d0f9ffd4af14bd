"""What a conversation is told of a chain that nobody goes on with: read from the rows, without the chain's code.

A call that a crash, a cancellation or a new message has left without an answer may have begun a run, or wait for a step
of one. What its newest action says would be the truth of one step only.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from settled.graph.answers import Answer
from settled.graph.calls import Request, decision_of
from settled.graph.identity import Handle, correlation_of
from settled.state import chains
from settled.state.errors import NotFound
from settled.state.model import Action
from settled.tools.chain_outcome import outcome_of
from settled.tools.chain_runs import seen
from settled.tools.effects import Steps, ask

CHAIN = "chn-"
"""What the ids of runs begin with: an answer about a run as a whole names it where others name their action."""


def chain_recalled(request: Request, handle: Handle, action: Action | None) -> Steps[Answer | None]:
    """Return the answer to a call that has begun a run of a chain, or whose `action` is a step of one; None where it
    has not.
    """
    name = correlation_of(decision_of(request))
    chain = yield from ask(chains.recall(handle.tenant, handle.thread_id, name))
    if chain is None and action is not None:
        chain = yield from ask(chains.of_action(handle.tenant, action.id))
    if chain is None:
        return None
    now = yield from seen(handle.tenant, chain.id, None)
    return answer_of_chain(outcome_of(now, request["language"]).record())


def chains_moved(handle: Handle, runs: Sequence[tuple[str, str]], *, only_open: bool) -> Steps[set[str]]:
    """Return which of some runs, each with the code of the answer that was given of it, stand otherwise by now: a
    person has done a step by hand, or somebody has carried it on. With `only_open`, those alone that are not over.
    """
    moved: set[str] = set()
    for chain_id, code in runs:
        try:
            now = yield from seen(handle.tenant, chain_id, None)
        except NotFound:
            continue
        is_ours = now.chain.thread_id == handle.thread_id and not (only_open and now.chain.ended_at is not None)
        if is_ours and outcome_of(now, "en").code != code:
            moved.add(chain_id)
    return moved


def answer_of_chain(outcome: Mapping[str, Any]) -> Answer:
    """Return the answer that a run of a chain gives; a step that waits for a person is asked about as any action."""
    answer = Answer(code=outcome["code"], message=outcome["message"], artifact=outcome["artifact"])
    return answer if outcome["fingerprint"] is None else {**answer, "fingerprint": outcome["fingerprint"]}
