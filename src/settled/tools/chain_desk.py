"""What people do about runs of chains: look at them, and do by hand what a step should have done, or undo it.

Without the code: a run and its steps are rows, and so is what a person says of them. Carrying a run on needs the chain
itself (`Chain.go_on`). Each thing that is said here is guarded twice, here for a sentence that says why not, and in the
statement for whoever was quicker.
"""

from collections.abc import Sequence

from settled.state import chains
from settled.state.errors import AlreadyDecided, InvalidArguments, NotFound
from settled.state.store import Ledger
from settled.tools.chain_runs import actions_of, place_of, seen
from settled.tools.chain_standing import ChainState, Standing, StepStanding, StepState, standing_of
from settled.tools.chains import ChainContract
from settled.tools.decisions import Decider
from settled.tools.effects import Steps, ask
from settled.tools.runner import REAL, Runner, World
from settled.tools.storable import storable

MOST_READ = 1000
"""Runs that one listing looks at, newest first, where it is for some states only: a state is not stored."""

_OPEN = frozenset({ChainState.RUNNING, ChainState.WAITING, ChainState.UNKNOWN, ChainState.COMPENSATING})


class ChainDesk:
    """The runs of one tenant. `code` are chains as they are declared now, for runs that have got new steps since."""

    def __init__(
        self, ledger: Ledger, *, tenant: str = "default", code: Sequence[ChainContract] = (), world: World = REAL
    ) -> None:
        self._store = ledger
        self._tenant = tenant
        self._code = {one.name: one for one in code}
        self._world = world

    def runs(
        self, *, states: Sequence[ChainState] | None = None, thread_id: str | None = None, most: int = 100
    ) -> list[Standing]:
        """Return runs, newest first: at most `most`, in these states and of this thread if given."""
        return self._runner().drive(self._listed(states, thread_id, most))

    async def aruns(
        self, *, states: Sequence[ChainState] | None = None, thread_id: str | None = None, most: int = 100
    ) -> list[Standing]:
        """As `runs`, in an event loop."""
        return await self._runner().adrive(self._listed(states, thread_id, most))

    def show(self, chain_id: str) -> Standing:
        """Return where a run stands; NotFound where this tenant has none of that id."""
        return self._runner().drive(self._seen(chain_id))

    async def ashow(self, chain_id: str) -> Standing:
        """As `show`, in an event loop."""
        return await self._runner().adrive(self._seen(chain_id))

    def finish(
        self, chain_id: str, step: str, *, by: str, receipt: str | None = None, result: object = None,
        note: str | None = None,
    ) -> Standing:  # fmt: skip
        """Say that a person did a step by hand: the first one that is not done, while no action of it may still act.

        Later steps get `receipt` and `result` (by default made of the receipt) as if the tool had brought them. Raises
        NotFound, InvalidArguments for a step whose turn it is not, AlreadyDecided with the reason.
        """
        who = Decider(by=by)
        return self._runner().drive(self._finished(chain_id, step, who, receipt, result, note))

    async def afinish(
        self, chain_id: str, step: str, *, by: str, receipt: str | None = None, result: object = None,
        note: str | None = None,
    ) -> Standing:  # fmt: skip
        """As `finish`, in an event loop."""
        who = Decider(by=by)
        return await self._runner().adrive(self._finished(chain_id, step, who, receipt, result, note))

    def undone(self, chain_id: str, step: str, *, by: str, note: str | None = None) -> Standing:
        """Say that a person has undone a step by hand, or lets it stand: one without a way back, one that a person did,
        or one whose undoing did nothing. Raises as `finish` does.
        """
        return self._runner().drive(self._undone(chain_id, step, Decider(by=by), note))

    async def aundone(self, chain_id: str, step: str, *, by: str, note: str | None = None) -> Standing:
        """As `undone`, in an event loop."""
        return await self._runner().adrive(self._undone(chain_id, step, Decider(by=by), note))

    def _runner(self) -> Runner:
        return Runner(None, self._store, self._world)

    def _seen(self, chain_id: str) -> Steps[Standing]:
        chain = yield from ask(chains.load(self._tenant, chain_id))
        code = None if chain is None else self._code.get(chain.name)
        return (yield from seen(self._tenant, chain_id, code))

    def _listed(self, states: Sequence[ChainState] | None, thread_id: str | None, most: int) -> Steps[list[Standing]]:
        wanted = None if states is None else frozenset(states)
        is_over = False if wanted is not None and wanted <= _OPEN else None
        reads = most if wanted is None else MOST_READ
        query = chains.listed(self._tenant, thread_id=thread_id, is_over=is_over, most=reads)
        found = yield from ask(query)
        rows = yield from ask(chains.steps_of(self._tenant, [one.id for one in found]))
        actions = yield from actions_of(self._tenant, rows)
        all_of_them = [standing_of(one, [row for row in rows if row.chain_id == one.id], actions) for one in found]
        return [one for one in all_of_them if wanted is None or one.state in wanted][:most]

    def _finished(
        self, chain_id: str, name: str, who: Decider, receipt: str | None, result: object, note: str | None
    ) -> Steps[Standing]:
        _check_texts(receipt=receipt, note=note)
        now = yield from self._seen(chain_id)
        at = check_can_be_finished(now, name)
        brought = {"receipt": receipt} if result is None and receipt is not None else result
        query = chains.finish_step(
            place_of(now.chain, at), by=who.by, note=note, receipt=receipt, result=storable(brought)
        )
        if (yield from ask(query)) is None:
            raise AlreadyDecided(f"{chain_id} has moved meanwhile: look at it again")
        return (yield from self._seen(chain_id))

    def _undone(self, chain_id: str, name: str, who: Decider, note: str | None) -> Steps[Standing]:
        _check_texts(note=note)
        now = yield from self._seen(chain_id)
        at = check_can_be_undone_by_hand(now, name)
        if (yield from ask(chains.undo_step(place_of(now.chain, at), by=who.by, note=note))) is None:
            raise AlreadyDecided(f"{chain_id} has moved meanwhile: look at it again")
        return (yield from self._seen(chain_id))


def _check_texts(**said: object) -> None:
    for name, value in said.items():
        if not isinstance(value, str | None):
            raise InvalidArguments(name, f"must be a text, not a {type(value).__name__}")


def check_can_be_finished(now: Standing, name: str) -> StepStanding:
    """Return the step that a person may say he did; NotFound, InvalidArguments or AlreadyDecided say why not."""
    at = _step(now, name)
    if now.chain.ended_at is not None:
        raise AlreadyDecided(f"{now.chain.id} is over: it {now.chain.ended_as}")
    if now.chain.turned_at is not None:
        raise AlreadyDecided(f"{now.chain.id} goes back, since {now.chain.failed_step} did not take place")
    if at.state is StepState.DONE:
        raise AlreadyDecided(f"the step {name} is done" + (f", by {at.by}" if at.by else ""))
    if now.current is not None and now.current is not at:
        raise InvalidArguments("step", f"it is not the turn of {name}: {now.current.name} comes first")
    match at.state:
        case StepState.TO_DO | StepState.FAILED:
            return at
        case StepState.WAITING:
            way_on = f"waits for a decision: deny or withdraw {_action(at)} first"
        case StepState.UNKNOWN:
            way_on = f"may have happened: resolve {_action(at)}"
        case StepState.RUNNING:
            way_on = "is being carried out"
        case _:
            way_on = "has been undone"
    raise AlreadyDecided(f"the step {name} {way_on}")


def check_can_be_undone_by_hand(now: Standing, name: str) -> StepStanding:
    """Return the step that a person may say he has undone; as above."""
    at = _step(now, name)
    if now.chain.ended_at is not None or now.chain.turned_at is None:
        raise AlreadyDecided(f"{now.chain.id} is {now.state}: nothing of it is to be undone by hand")
    if not at.is_in_effect:
        raise AlreadyDecided(f"the step {name} is {at.state}: there is nothing to undo")
    if at.state is StepState.UNDOING and at.undo is not None:
        raise AlreadyDecided(f"{at.undo.id} is undoing the step {name}")
    if at.state is StepState.NOT_UNDONE and at.undo is not None and at.undo.is_open:
        raise AlreadyDecided(f"the step {name} may have been undone: resolve {at.undo.id}")
    if at.state is StepState.DONE and at.can_be_undone:
        raise AlreadyDecided(f"the step {name} has a way back: carry the chain on, with its code")
    return at


def _step(now: Standing, name: str) -> StepStanding:
    at = now.of(name)
    if at is None:
        raise NotFound(f"{now.chain.id} has no step {name!r}; it has {', '.join(one.name for one in now.steps)}")
    return at


def _action(at: StepStanding) -> str:
    return at.action.id if at.action is not None else "its action"
