"""What a person sees and says of chains from a terminal: `settled chains`.

Owns the commands. The rules are those of `settled.tools.chain_desk`; carrying a run on is the chain's own. As with the
commands about actions, what decides is first foretold, and done with the fingerprint that was shown.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from settled.runtime import options, stepping
from settled.runtime.options import By, DatabaseUrl, Fingerprint, Json, Limit, Note, Tenant, Thread, Tools, connect
from settled.runtime.output import print_json, print_page
from settled.runtime.plain_json import parsed

if TYPE_CHECKING:
    from settled.tools.chain_desk import ChainDesk
    from settled.tools.chain_standing import ChainState, Standing

chains = typer.Typer(
    help="Runs of chains: where each step stands, and what a person does by hand.", no_args_is_help=True
)

ChainId: TypeAlias = Annotated[str, typer.Argument(metavar="ID", callback=options.reference, help="chn-…")]
StepName: TypeAlias = Annotated[str, typer.Argument(metavar="STEP", callback=options.reference, help="Its name.")]
Receipt: TypeAlias = Annotated[
    str | None, typer.Option(callback=options.note, show_default=False, help="The reference of what was done.")
]
Result: TypeAlias = Annotated[
    str | None, typer.Option(show_default=False, metavar="JSON", help="What later steps are given as its result.")
]


@chains.command("list")
def list_chains(
    state: Annotated[list[str] | None, typer.Option(help="Only this state; may be given again.")] = None,
    thread: Thread = None,
    tenant: Tenant = "default",
    limit: Limit = 50,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List runs, newest first."""
    from settled.runtime.chain_pages import chain_record, chains_page
    from settled.tools.chain_desk import ChainDesk

    wanted = _states(state)
    with connect(database_url) as ledger:
        found = ChainDesk(ledger, tenant=tenant).runs(states=wanted, thread_id=thread, most=limit)
    if as_json:
        print_json([chain_record(one) for one in found])
    elif found:
        print_page(chains_page(found))
    else:
        print("there are no such chains")


def _states(given: list[str] | None) -> "list[ChainState] | None":
    from settled.tools.chain_standing import ChainState

    for state in given or []:
        if state not in set(ChainState):
            raise typer.BadParameter(f"{state!r} is none of {', '.join(ChainState)}", param_hint="--state")
    return [ChainState(state) for state in given] if given else None


@chains.command()
def show(
    chain_id: ChainId, tenant: Tenant = "default", as_json: Json = False, database_url: DatabaseUrl = None
) -> None:
    """Show one run: where each step stands, and why."""
    from settled.tools.chain_desk import ChainDesk

    with connect(database_url) as ledger:
        _print(ChainDesk(ledger, tenant=tenant).show(chain_id), as_json)


@chains.command("finish-step")
def finish_step(
    ctx: typer.Context, chain_id: ChainId, step: StepName, by: By, receipt: Receipt = None, result: Result = None,
    undone: Annotated[bool, typer.Option("--undone", help="It was undone by hand, or is to stand as it is.")] = False,
    note: Note = None, fingerprint: Fingerprint = None, tenant: Tenant = "default", as_json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:  # fmt: skip
    """Say that a step was done by hand: it is not carried out any more, and the next run goes on after it."""
    from settled.tools.chain_desk import ChainDesk, check_can_be_finished, check_can_be_undone_by_hand

    if undone and (receipt is not None or result is not None):
        raise typer.BadParameter("takes no --receipt and no --result", param_hint="--undone")
    brought = _json(result)
    with connect(database_url) as ledger:
        desk = ChainDesk(ledger, tenant=tenant)

        def check(now: "Standing") -> list[str]:
            (check_can_be_undone_by_hand if undone else check_can_be_finished)(now, step)
            return [_follows(step, by, undone=undone)]

        _check_shown(ctx, desk, check)
        if undone:
            now = desk.undone(chain_id, step, by=by, note=note)
        else:
            now = desk.finish(chain_id, step, by=by, receipt=receipt, result=brought, note=note)
    _print(now, as_json, done=True)


@chains.command()
def retry(
    ctx: typer.Context, chain_id: ChainId, tools: Tools, fingerprint: Fingerprint = None, tenant: Tenant = "default",
    as_json: Json = False, database_url: DatabaseUrl = None,
) -> None:  # fmt: skip
    """Carry a run on from where it stands, in this process; --tools says where the chain is: module, or module:name."""
    from settled.runtime.loading import chain_named
    from settled.tools.chain_desk import ChainDesk

    with connect(database_url) as ledger:
        now = ChainDesk(ledger, tenant=tenant).show(chain_id)
        chain = chain_named(tools, now.chain.name)
        desk = ChainDesk(ledger, tenant=tenant, code=[chain.contract])
        _check_shown(
            ctx, desk, lambda _: ["The run goes on at its first step that is not done, with the code as it is."]
        )
        chain.go_on(chain_id, ledger=ledger, tenant=tenant)
        _print(desk.show(chain_id), as_json, done=True)


def _follows(step: str, by: str, *, undone: bool) -> str:
    if undone:
        return f"The step {step} counts as undone, by the word of {by}. Nothing is sent for it."
    return f"The step {step} counts as done, by the word of {by}, and is never sent. The next run goes on after it."


def _json(text: str | None) -> object:
    if text is None:
        return None
    try:
        return parsed(text)
    except ValueError as error:
        raise typer.BadParameter(f"is no JSON: {error}", param_hint="--result") from error


def _check_shown(ctx: typer.Context, desk: "ChainDesk", check: "Callable[[Standing], list[str]]") -> None:
    """Print what will follow, and end with 2, where no fingerprint is given; refuse one of something else."""
    from settled.runtime.chain_pages import chain_page, chain_record
    from settled.state.errors import ShownOtherwise

    given = ctx.params
    now = desk.show(given["chain_id"])
    sentences = check(now)
    if given["fingerprint"] is None:
        stepping.forecast(ctx, now.chain.fingerprint, chain_page(now), {"chain": chain_record(now)}, sentences)
    if not now.chain.fingerprint.startswith(given["fingerprint"]):
        raise ShownOtherwise(
            f"--fingerprint: {given['fingerprint']} is not that of {now.chain.id}, which is “{now.chain.summary}” with "
            f"{now.chain.fingerprint}. Nothing was done; look at it again without --fingerprint"
        )


def _print(now: "Standing", as_json: bool, *, done: bool = False) -> None:
    from settled.runtime.chain_pages import chain_page, chain_record

    if as_json:
        print_json({"done": True, "chain": chain_record(now)} if done else chain_record(now))
    else:
        print_page(chain_page(now))
