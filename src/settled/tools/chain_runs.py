"""A run of a chain as it stands in the ledger: read anew by each visit, never taken from what an earlier one remembers.

Owns who carries a run on (`Run`), the reading of its rows, and the check that the code still has the steps which were
begun. Writes nothing but the end of a run of which nothing is left to do.
"""

from collections.abc import Callable
from dataclasses import dataclass

from settled.state import chains, ledger
from settled.state.chains import ChainRow, Place, StepRow
from settled.state.errors import NotFound
from settled.state.model import Action
from settled.state.store import Ledger
from settled.tools.chain_driving import Moves, part
from settled.tools.chain_standing import ChainState, Standing, StepStanding, standing_of
from settled.tools.chains import ChainChanged, ChainContract
from settled.tools.effects import Steps, ask
from settled.tools.perform import Options

RACES = 10
"""Of callers that write about one run at the same instant: more in a row means that something is wrong."""


@dataclass(frozen=True)
class Run:
    """Who carries a chain on, and how. `options` are those of the caller; a run's own requester and roles are those
    that began it. `alive` is told what is under way in this process: owners of calls.
    """

    chain: ChainContract
    store: Ledger
    options: Options
    alive: Callable[[str], None] = lambda _: None


def look(run: Run, chain_id: str) -> Moves[Standing]:
    """Return where a run stands; NotFound, or ChainChanged where a step that was begun is not where it was."""
    return (yield from part(None, seen(run.options.tenant, chain_id, run.chain)))


def seen(tenant: str, chain_id: str, code: ChainContract | None) -> Steps[Standing]:
    """Read where a run stands, by the code as it is, or without it."""
    chain = yield from ask(chains.load(tenant, chain_id))
    if chain is None or (code is not None and chain.name != code.name):
        raise NotFound(f"there is no run {chain_id!r}" + ("" if code is None else f" of {code.name}"))
    rows = yield from ask(chains.steps_of(tenant, [chain_id]))
    found = yield from actions_of(tenant, rows)
    if code is None:
        return standing_of(chain, rows, found)
    for row in rows:
        _check_unchanged(code, chain, row)
    return standing_of(chain, rows, found, [(one.name, one.contract.name, one.is_reversible) for one in code.steps])


def actions_of(tenant: str, rows: list[StepRow]) -> Steps[dict[str, Action]]:
    """Read the actions of steps, and those that undo them."""
    ids = [row.action_id for row in rows if row.action_id is not None]
    own = (yield from ask(ledger.load_all(tenant, ids))) if ids else []
    undoing = [one.compensated_by for one in own if one.compensated_by is not None]
    undos = (yield from ask(ledger.load_all(tenant, undoing))) if undoing else []
    return {action.id: action for action in (*own, *undos)}


def _check_unchanged(code: ChainContract, chain: ChainRow, row: StepRow) -> None:
    now = code.steps[row.position] if row.position < len(code.steps) else None
    if now is not None and (now.name, now.contract.name) == (row.name, row.tool):
        return
    place = next((number for number, one in enumerate(code.steps) if one.name == row.name), None)
    what = (
        f"it is gone from {code.name}, or has another name now" if place is None
        else f"it is number {place + 1} now" if place != row.position
        else f"its tool is {code.steps[place].contract.name} now"
    )  # fmt: skip
    raise ChainChanged(
        f"{chain.id} has begun its step {row.name} (number {row.position + 1}, by {row.tool}), and {what}. A step that "
        "was begun is not removed, renamed or moved while a run of it is open; new steps go to the end"
    )


def meet(run: Run, chain_id: str) -> Moves[Standing]:
    """Return where a run stands now, ended where nothing is left to do: whoever did the last one may have died."""
    for _ in range(RACES):
        now = yield from look(run, chain_id)
        if now.chain.ended_at is not None:
            break
        if now.chain.turned_at is None and now.is_all_done:
            yield from part(None, ask(chains.end(now.chain, ended_as="succeeded")))
        elif now.chain.turned_at is not None and now.state is ChainState.COMPENSATED:
            yield from part(None, ask(chains.end(now.chain, ended_as="compensated")))
        else:
            break
    return now


def place_of(chain: ChainRow, at: StepStanding) -> Place:
    """Return which step of which run it is."""
    return Place(chain.tenant, chain.id, at.position, at.name, at.tool, at.is_reversible)
