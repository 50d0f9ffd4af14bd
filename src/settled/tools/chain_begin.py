"""Which run an input is: the one that it has in this conversation, or a new one.

A run has no window: the same input in the same thread is the same run for ever. Another input of the same identity
clashes with it, unless nothing of it is in effect; once more on purpose (`repeat_of`) is a run of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from settled.state import chains
from settled.state.canonical import arguments_bytes, differing, fingerprint_of, intent_digest
from settled.state.chains import Beginning, ChainRow
from settled.state.errors import InvalidArguments
from settled.tools import arguments as args
from settled.tools.chain_driving import Moves, part
from settled.tools.chain_runs import RACES, Run, meet, seen
from settled.tools.chain_standing import Standing
from settled.tools.chains import ChainContract
from settled.tools.effects import Steps, ask
from settled.tools.perform import new_id, prepare
from settled.tools.standing import Call


@dataclass(frozen=True)
class Clash:
    """The same is under way or done with another input: which run, and what differs (stored, sent)."""

    chain: ChainRow
    summary: str
    differing: Mapping[str, tuple[object, object]]


def begin(run: Run, given: Mapping[str, Any]) -> Moves[Standing | Clash]:
    """Begin a run, or meet the one that the same input has in this conversation. InvalidArguments for a bad input;
    nothing is written then.
    """
    met = yield from part(None, _begun(run, given))
    return met if isinstance(met, Clash) else (yield from meet(run, met.id))


def _begun(run: Run, given: Mapping[str, Any]) -> Steps[ChainRow | Clash]:
    call, root = yield from _asked(run, given)
    for _ in range(RACES):
        met = yield from ask(chains.latest(call.plan.tenant, call.plan.intent))
        if met is not None and _is_same(run.chain, met, call):
            return met
        occurrence = 0
        if met is not None:
            if met.ended_at is None or met.ended_as == "succeeded":
                over = yield from _replaced(run, met, call)
                if isinstance(over, Clash):
                    return over
            occurrence = met.occurrence + 1
        born = yield from ask(chains.begin(_beginning(run, call, root, occurrence)))
        if born is not None:
            return born
    raise AssertionError(f"{run.chain.name}: no run began or showed itself in {RACES} tries")


def _asked(run: Run, given: Mapping[str, Any]) -> Steps[tuple[Call, bytes]]:
    """Return what is asked for, and the intent that it may repeat on purpose."""
    call = prepare(run.chain, given, run.options, run.store)
    root, repeat_of = _intent(run.chain, call, ""), call.plan.repeat_of
    if repeat_of is not None:
        earlier = yield from ask(chains.load(call.plan.tenant, repeat_of))
        if earlier is None or earlier.root != root[: len(earlier.root)]:
            raise InvalidArguments(args.REPEAT_OF, "names no earlier run of this chain for the same thing")
    intent = root if repeat_of is None else _intent(run.chain, call, repeat_of)
    return replace(call, plan=replace(call.plan, intent=intent)), root


def _intent(chain: ChainContract, call: Call, repeat_of: str) -> bytes:
    """Return what tells runs of a conversation apart. A field at its default takes no part: an input of older code,
    which did not have the field yet, is the same.
    """
    fields = chain.schema.model_fields
    identity = {name: call.values[name] for name in chain.identity if call.values[name] != fields[name].default}
    return intent_digest(
        tenant=call.plan.tenant,
        tool=f"chain\x1f{chain.name}",
        thread_id=f"{call.plan.thread_id}\x1f{repeat_of}",
        identity=identity,
        annotations=chain.annotations,
    )


def _is_same(chain: ChainContract, met: ChainRow, call: Call) -> bool:
    """Whether a run has this input, as far as it knows its fields: the code may have got new ones since."""
    known = {name: value for name, value in call.values.items() if name in met.input}
    return fingerprint_of(arguments_bytes(known, chain.annotations)) == met.fingerprint


def _replaced(run: Run, met: ChainRow, call: Call) -> Steps[Clash | None]:
    """Another input takes the place of a run of which nothing is in effect, and else clashes with it."""
    now = yield from seen(met.tenant, met.id, run.chain)
    if not now.did_nothing:
        sent = args.values_of(args.validate(run.chain.schema, call.values))
        stored = args.restore(run.chain.schema, met.input, run.chain.secrets, run.store.vault)
        shown = {k: v for k, v in differing(stored, sent, run.chain.annotations).items() if k not in run.chain.secrets}
        return Clash(met, call.plan.summary, shown)
    if met.ended_at is None:
        yield from ask(chains.end(met, ended_as="stopped" if met.turned_at is None else "compensated"))
    return None


def _beginning(run: Run, call: Call, root: bytes, occurrence: int) -> Beginning:
    plan, chain = call.plan, run.chain
    return Beginning(
        tenant=plan.tenant,
        id="chn-" + new_id().removeprefix("act-"),
        thread_id=plan.thread_id,
        name=chain.name,
        occurrence=occurrence,
        intent=plan.intent,
        root=root,
        fingerprint=plan.fingerprint,
        input=plan.arguments,
        summary=plan.summary,
        steps=[one.name for one in chain.steps],
        tools=[one.contract.name for one in chain.steps],
        irreversible=chain.irreversible,
        on_failure=chain.on_failure,
        requester=plan.requester,
        roles=tuple(run.options.roles),
        correlation_id=plan.correlation_id,
        repeat_of=plan.repeat_of,
    )
