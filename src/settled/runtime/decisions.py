"""What a person decides from a terminal: open approvals, the manual queue, and one command for each decision.

A command without --fingerprint prints what will follow and the same command with the fingerprint, and exits with 2:
nothing was written. With it, the decision goes through `settled.tools.desk`, which holds the rules; no command here
writes to the ledger by itself. Everything heavy is imported by the command that needs it.
"""

from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from settled.runtime import options, previews, stepping
from settled.runtime.options import ActionId, By, DatabaseUrl, Fingerprint, Json, Note, Roles, Tenant, Thread, Tools
from settled.runtime.output import print_json, print_page
from settled.runtime.stepping import Counter, Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from settled.runtime.previews import Preview
    from settled.state.model import Action
    from settled.tools.result import Outcome

decisions = typer.Typer()

Most: TypeAlias = Annotated[
    int, typer.Option("--limit", min=1, max=options.MOST, help="How many, the most urgent first.")
]
Sets: TypeAlias = Annotated[
    list[str],
    typer.Option(
        "--set",
        callback=options.settings,
        metavar="NAME=JSON",
        show_default=False,
        help="A new value; may be given again.",
    ),
]
Receipt: TypeAlias = Annotated[
    str | None,
    typer.Option(callback=options.note, metavar="RECEIPT", help="It took place: the remote side's reference."),
]


@decisions.command()
def approvals(
    thread: Thread = None,
    tenant: Tenant = "default",
    limit: Most = 100,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List what waits for a person's approval."""
    with stepping.opened(database_url, tenant) as at:
        found = at.desk.approvals(thread_id=thread, most=limit)
    from settled.runtime import desk_pages
    from settled.runtime.records import approval_record

    if as_json:
        print_json([approval_record(one) for one in found])
    elif found:
        print_page(desk_pages.approvals_page(found))
    else:
        print("nothing waits for an approval")


@decisions.command()
def queue(
    tenant: Tenant = "default", limit: Most = 100, as_json: Json = False, database_url: DatabaseUrl = None
) -> None:
    """List what only a person can decide: the manual queue."""
    with stepping.opened(database_url, tenant) as at:
        found = at.desk.queue(most=limit)
    from settled.runtime import desk_pages
    from settled.runtime.records import case_record

    if as_json:
        print_json([case_record(one) for one in found])
    elif found:
        print_page(desk_pages.queue_page(found))
    else:
        print("the manual queue is empty")


@decisions.command()
def approve(
    ctx: typer.Context, action_id: ActionId, by: By, role: Roles = None, note: Note = None,
    fingerprint: Fingerprint = None, tenant: Tenant = "default", as_json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:  # fmt: skip
    """Permit an action that waits, with the arguments that were shown and no others."""
    from settled.runtime import words
    from settled.tools.decisions import Approve

    stepping.take(
        ctx,
        Step(
            partial(previews.waiting, by=by, roles=role or ()),
            stepping.deciding(ctx, Approve(note)),
            words.after_approve,
        ),
    )


@decisions.command()
def deny(
    ctx: typer.Context, action_id: ActionId, by: By, role: Roles = None, note: Note = None,
    fingerprint: Fingerprint = None, tenant: Tenant = "default", as_json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:  # fmt: skip
    """Refuse an action that waits; the note is the reason that the assistant and the user are told."""
    from settled.runtime import words
    from settled.tools.decisions import Reject

    follows = partial(words.after_deny, by=by, note=note)
    stepping.take(
        ctx, Step(partial(previews.waiting, by=by, roles=role or ()), stepping.deciding(ctx, Reject(note)), follows)
    )


@decisions.command()
def edit(
    ctx: typer.Context, action_id: ActionId, by: By, tools: Tools, sets: Sets, role: Roles = None, note: Note = None,
    fingerprint: Fingerprint = None, tenant: Tenant = "default", as_json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:  # fmt: skip
    """Put other arguments in the place of those that wait: a new action, judged by its tool's policy."""
    from settled.runtime import editing, words
    from settled.runtime.loading import tools_at

    known, values = tools_at(tools), editing.values_of(sets)
    with stepping.opened(database_url, tenant, known, editing.strict()) as at:
        change = editing.change(at, at.action(action_id), known, values, note)
        see = partial(previews.waiting, by=by, roles=role or ())
        follows = partial(words.before_edit, changes=change.lines, summary=change.summary)
        do = stepping.deciding(ctx, change.decision)
        stepping.carry_out(ctx, at, Step(see, do, follows, words.after_edit, change.secrets))


@decisions.command()
def withdraw(
    ctx: typer.Context, action_id: ActionId, by: By, note: Note = None, fingerprint: Fingerprint = None,
    tenant: Tenant = "default", as_json: Json = False, database_url: DatabaseUrl = None,
) -> None:  # fmt: skip
    """Take a request back, for the side that made it: an action that waits, or that is approved and not yet run."""
    from settled.runtime import words

    def do(at: Counter) -> "Action":
        stepping.check_shown(at, ctx)
        return at.desk.withdraw(action_id, by=by, note=note)

    stepping.take(ctx, Step(previews.not_begun, do, words.after_withdraw))


@decisions.command()
def resolve(
    ctx: typer.Context, action_id: ActionId, by: By, happened: Receipt = None,
    did_not_happen: Annotated[bool, typer.Option("--did-not-happen", help="It did not take place.")] = False,
    ask_again: Annotated[bool, typer.Option("--ask-again", help="Have the remote side asked once more.")] = False,
    note: Note = None, fingerprint: Fingerprint = None, tenant: Tenant = "default",
    as_json: Json = False, database_url: DatabaseUrl = None,
) -> None:  # fmt: skip
    """Say what became of an action of the manual queue: --happened RECEIPT, --did-not-happen or --ask-again."""
    from settled.runtime import words
    from settled.tools.resolutions import AskAgain, DidNotHappen, Happened, Resolution

    resolution: Resolution
    match (happened, did_not_happen, ask_again):
        case (str(receipt), False, False):
            resolution = Happened(receipt)
        case (None, True, False):
            resolution = DidNotHappen()
        case (None, False, True):
            resolution = AskAgain()
        case _:
            raise typer.BadParameter("give one of them", param_hint="--happened RECEIPT, --did-not-happen, --ask-again")

    def do(at: Counter) -> "Action":
        with stepping.saying_what_changed(at, ctx):
            return at.desk.resolve(action_id, resolution, by=by, note=note, fingerprint=str(fingerprint))

    see = partial(previews.case, as_not_happened=did_not_happen)
    stepping.take(ctx, Step(see, do, partial(words.after_resolution, resolution=resolution)))


@decisions.command()
def retry(
    ctx: typer.Context, action_id: ActionId, by: By, tools: Tools, note: Note = None, fingerprint: Fingerprint = None,
    tenant: Tenant = "default", as_json: Json = False, database_url: DatabaseUrl = None,
) -> None:  # fmt: skip
    """Carry an action on from where it stands, in this process: run what is approved, ask about what is unknown."""
    from settled.runtime import words

    def do(at: Counter) -> "tuple[Outcome, Action]":
        outcome = at.desk.retry(action_id, by=by, note=note)
        return outcome, at.action(outcome.action_id or action_id)

    _carry_on(ctx, previews.not_ended, do, words.after_retry, words.after_carrying_on)


@decisions.command()
def compensate(
    ctx: typer.Context, action_id: ActionId, by: By, tools: Tools, note: Note = None, fingerprint: Fingerprint = None,
    tenant: Tenant = "default", as_json: Json = False, database_url: DatabaseUrl = None,
) -> None:  # fmt: skip
    """Undo an action that succeeded, by the action that its tool says undoes it, or carry its undoing on."""
    from settled.runtime import words

    def do(at: Counter) -> "tuple[Outcome, Action]":
        return at.desk.compensate(action_id, by=by, note=note), at.action(action_id)

    _carry_on(ctx, previews.done, do, words.before_compensate, words.after_compensate)


@decisions.command()
def undone(
    ctx: typer.Context, action_id: ActionId, by: By, note: Note = None, fingerprint: Fingerprint = None,
    tenant: Tenant = "default", as_json: Json = False, database_url: DatabaseUrl = None,
) -> None:  # fmt: skip
    """Say that a person has undone by hand what an action could not."""
    from settled.runtime import words
    from settled.runtime.desk_pages import done_page
    from settled.runtime.records import action_record

    with stepping.opened(database_url, tenant) as at:
        if fingerprint is None:
            stepping.foretell(ctx, previews.being_undone(at, action_id), words.before_undone)
        stepping.check_shown(at, ctx)
        action = at.desk.undone(action_id, by=by, note=note)
    if as_json:
        print_json({"done": True, "action": action_record(action)})
    else:
        print_page(done_page(words.done(action_id, action), words.after_undone(action)))


def _carry_on(
    ctx: typer.Context,
    see: "Callable[[Counter, str], Preview]",
    do: "Callable[[Counter], tuple[Outcome, Action]]",
    follows: "Callable[[Action], list[str]]",
    after: "Callable[[Action], list[str]]",
) -> None:
    """Run an action on in this process with the tools at `--tools`, or print what would follow from it."""
    from settled.runtime import words
    from settled.runtime.desk_pages import done_page
    from settled.runtime.loading import tools_at
    from settled.runtime.records import action_record, outcome_record

    given = ctx.params
    known = tools_at(given["tools"])
    with stepping.opened(given["database_url"], given["tenant"], known) as at:
        if given["fingerprint"] is None:
            stepping.foretell(ctx, see(at, given["action_id"]), follows)
        stepping.check_shown(at, ctx)
        outcome, action = do(at)
    if given["as_json"]:
        print_json({"done": True, "outcome": outcome_record(outcome), "action": action_record(action)})
    else:
        print_page(done_page(words.done(given["action_id"], action), after(action)))
