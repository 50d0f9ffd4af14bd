"""Runs of chains: where each step stands and why, and what a person has done by hand."""

from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import PlainTextResponse, RedirectResponse, Response

from settled.runtime.server.forms import needed, note_of
from settled.runtime.server.pages.routes import ChainId, Operator, Posted, Text, TheSite, Viewer, flash_of, pulse_of
from settled.runtime.server.people import Person
from settled.runtime.server.rendering import page
from settled.runtime.server.site import Site
from settled.runtime.server.wording import pretty
from settled.state.errors import AlreadyDecided, ContractError, InvalidArguments, NotFound, ShownOtherwise
from settled.state.secrets import masked
from settled.tools.chain_desk import ChainDesk, check_can_be_finished, check_can_be_undone_by_hand
from settled.tools.chain_standing import OVER, ChainState, Standing, StepStanding

MOST = 50
"""Runs of the page, each with its steps and their actions."""

Check = Callable[[Standing, str], object]
router = APIRouter()


@router.get("/chains")
def chains(request: Request, person: Viewer, site: TheSite, state: Text = "", thread: Text = "") -> Response:
    """Show runs, newest first, of one state and conversation if given."""
    if state and state not in set(ChainState):
        raise InvalidArguments("state", f"must be one of {', '.join(ChainState)}")
    if not thread.isprintable():
        raise InvalidArguments("thread", "must be printable characters")
    wanted = [ChainState(state)] if state else None
    runs = _desk(site, person).runs(states=wanted, thread_id=thread.strip() or None, most=MOST)
    values = {"runs": runs, "state": state, "thread": thread, "states": list(ChainState), "most": MOST}
    return page(request, "chains.html", person, values, pulse=pulse_of(site, person))


@router.get("/chains/{chain_id}")
def one_chain(request: Request, chain_id: ChainId, person: Viewer, site: TheSite) -> Response:
    """Show one run."""
    pulse = pulse_of(site, person, chain_id)
    run = _desk(site, person).show(chain_id)
    values = {"run": run, "steps": [(step, _by_hand(run, step)) for step in run.steps]}
    values |= {"can_go_on": run.chain.name in site.chains and run.state not in OVER, **flash_of(request)}
    return page(request, "chain.html", person, values, pulse=pulse)


@router.get("/chains/{chain_id}/arguments")
def one_input(
    chain_id: ChainId, name: Annotated[str, Query(max_length=1000)], person: Viewer, site: TheSite
) -> Response:
    """Show one value of what a run was begun with, whole."""
    given = masked(_desk(site, person).show(chain_id).chain.input)
    if name not in given:
        raise NotFound(f"{chain_id} was given no {name!r}")
    return PlainTextResponse(pretty(given[name]))


@router.post("/chains/{chain_id}/steps")
def by_hand(chain_id: ChainId, person: Operator, form: Posted, site: TheSite) -> Response:
    """Record that a person has done a step, or has undone it."""
    desk, step = _desk(site, person), needed(form, "step")
    _shown(desk, chain_id, needed(form, "fingerprint"))
    match form.get("what"):
        case "done":
            desk.finish(chain_id, step, by=person.name, receipt=note_of(form, "receipt"), note=note_of(form))
        case "undone":
            desk.undone(chain_id, step, by=person.name, note=note_of(form))
        case _:
            raise InvalidArguments("what", "must be done or undone")
    return RedirectResponse(f"/chains/{chain_id}?said=step_done", 303)


@router.post("/chains/{chain_id}/retry")
def retry(chain_id: ChainId, person: Operator, form: Posted, site: TheSite) -> Response:
    """Carry a run on from where it stands, here; ContractError where this server does not have the chain."""
    now = _shown(_desk(site, person), chain_id, needed(form, "fingerprint"))
    chain = site.chains.get(now.chain.name)
    if chain is None:
        raise ContractError(f"this server does not have the chain {now.chain.name}: settled serve --tools module")
    chain.go_on(chain_id, ledger=site.ledger, tenant=person.tenant)
    return RedirectResponse(f"/chains/{chain_id}?said=retried", 303)


def _desk(site: Site, person: Person) -> ChainDesk:
    return ChainDesk(site.ledger, tenant=person.tenant, code=[one.contract for one in site.chains.values()])


def _shown(desk: ChainDesk, chain_id: str, fingerprint: str) -> Standing:
    """Return a run as it stands; ShownOtherwise for another one than was shown."""
    now = desk.show(chain_id)
    if now.chain.fingerprint != fingerprint:
        raise ShownOtherwise(f"{chain_id} is not what was shown")
    return now


def _by_hand(run: Standing, step: StepStanding) -> str | None:
    """Return what a person may say of a step: that it was done, or undone, by hand."""
    checks: Sequence[tuple[str, Check]] = (("done", check_can_be_finished), ("undone", check_can_be_undone_by_hand))
    return next((what for what, check in checks if _passes(check, run, step.name)), None)


def _passes(check: Check, run: Standing, name: str) -> bool:
    try:
        check(run, name)
    except (AlreadyDecided, InvalidArguments, NotFound):
        return False
    return True
