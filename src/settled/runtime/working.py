"""The commands `settled worker` and `settled db purge`: what is typed becomes a worker, or a retention.

Owns their options, and what a worker process consists of: the worker, what it hears from the queue, and the page for
probes. Everything heavy is imported by the function that needs it.
"""

import asyncio
import contextlib
import importlib.util
import inspect
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from settled.runtime.loading import chains_of, tools_at
from settled.runtime.options import DatabaseUrl, Json, LogJson, connect
from settled.runtime.output import print_json

if TYPE_CHECKING:
    from settled.runtime.chat.executing import Executor
    from settled.runtime.pace import Round
    from settled.state.store import Ledger

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def span(value: str | None) -> timedelta | None:
    """Return a length of time such as 30d, 12h, 45m or 90s."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d{1,6})([smhdw])", value.strip())
    if found is None or int(found[1]) == 0:
        raise typer.BadParameter("must be a number and a unit: s, m, h, d or w, as in 30d")
    return timedelta(seconds=int(found[1]) * _UNITS[found[2]])


@dataclass(frozen=True)
class Setup:
    """What a worker process is made of."""

    tools: list[Any]
    chains: list[Any]
    agents: Callable[["Ledger"], Any] | None
    dispatcher: Callable[["Ledger"], Any] | None
    concurrency: int
    scan_every_s: float
    lease_s: float
    has_queue: bool
    once: bool
    health: tuple[str, int] | None
    purge_after: timedelta | None
    checkpoints_after: timedelta | None


def worker(
    tools: Annotated[
        list[str] | None, typer.Option(help="Tools it may carry on: module or module:name; may be given again.")
    ] = None,
    agents: Annotated[
        str | None,
        typer.Option(help="module:function of the ledger that gives agents by name, or a context manager of them."),
    ] = None,
    dispatcher: Annotated[
        str | None,
        typer.Option(help="module:function of the ledger that gives a Dispatcher, which delivers the outbox."),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=1000, help="Looks at once.")] = 16,
    scan_every: Annotated[float, typer.Option(min=0.1, max=60, help="Seconds between two scans of the ledger.")] = 5.0,
    lease: Annotated[
        float, typer.Option(min=0.5, max=600, help="Seconds that what a dead worker had taken up waits for the next.")
    ] = 10.0,
    no_queue: Annotated[bool, typer.Option("--no-queue", help="Scan only, without procrastinate.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Do one round, print what was done, and end.")] = False,
    purge_after: Annotated[str | None, typer.Option(help="Purge what was settled so long ago, as 30d.")] = None,
    checkpoints_after: Annotated[str | None, typer.Option(help="Purge threads that nobody used for so long.")] = None,
    health_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Answer /live, /ready and /metrics here.")
    ] = None,
    health_host: Annotated[str, typer.Option(help="… at this address.")] = "127.0.0.1",
    log_json: LogJson = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Look after what is open and has nobody any more, until SIGTERM."""
    given = [one for place in tools or [] for one in tools_at(place)]
    chains = chains_of(tools or [])
    setup = Setup(
        given,
        chains,
        maker(agents, "--agents"),
        maker(dispatcher, "--dispatcher"),
        concurrency,
        scan_every,
        lease,
        has_queue=not (no_queue or once),
        once=once,
        health=None if health_port is None else (health_host, health_port),
        purge_after=span_of(purge_after, "--purge-after"),
        checkpoints_after=span_of(checkpoints_after, "--checkpoints-after"),
    )
    from settled.runtime.logs import say_what_goes_wrong

    say_what_goes_wrong(as_json=log_json)
    with connect(database_url) as ledger:
        done = asyncio.run(serve(ledger, setup))
    if as_json:
        print_json(asdict(done))
    else:
        print(
            ", ".join(f"{count} {word}" for word, count in asdict(done).items() if count) or "there was nothing to do"
        )


def purge(
    older_than: Annotated[str, typer.Option(help="What was settled so long ago, as 30d.")],
    checkpoints_older_than: Annotated[
        str | None, typer.Option(help="Also threads of sessions with an agent_name that nobody used for so long.")
    ] = None,
    decisions: Annotated[
        bool, typer.Option("--decisions", help="Also by which calls it was decided: a late repeat of one acts anew.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the actions, and forget nothing.")] = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Forget what is over. What is open stays, with its conversation; so does a success under a business key."""
    from settled.runtime.purging import Purge, Purged, Retention

    after = span_of(older_than, "--older-than")
    retention = Retention(after, span_of(checkpoints_older_than, "--checkpoints-older-than"), decisions)
    with connect(database_url) as ledger:
        purging = Purge(ledger, retention)
        done = Purged(purging.count()) if dry_run else purging.run_once()
    if as_json:
        print_json({**done.record, "dry_run": dry_run})
    elif dry_run:
        print(f"{done.actions} actions would be forgotten")
    else:
        print(f"forgotten: {done.actions} actions, {done.threads} threads, {done.endpoint_keys} idempotency keys")


def span_of(value: str | None, hint: str) -> timedelta | None:
    """As `span`, for an option of that name."""
    try:
        return span(value)
    except typer.BadParameter as error:
        raise typer.BadParameter(error.message, param_hint=hint) from None


def maker(place: str | None, hint: str) -> Callable[["Ledger"], Any] | None:
    """Return the function at `module:function`; a wrong use where there is none."""
    if place is None:
        return None
    from settled.runtime.loading import imported

    name, _, attribute = place.partition(":")
    found: Callable[[Ledger], Any] | None = getattr(imported(name), attribute, None) if attribute else None
    if not callable(found):
        raise typer.BadParameter(f"{place} is no module:function", param_hint=hint)
    return found


async def serve(ledger: "Ledger", setup: Setup) -> "Round":
    """Run a worker as it is set up, until SIGTERM or SIGINT; return what it did."""
    from settled.runtime.health import health
    from settled.runtime.worker import Worker

    async with AsyncExitStack() as stack:
        stack.push_async_callback(ledger.aclose)
        agents, executor = None if setup.agents is None else await entered(stack, setup.agents(ledger)), None
        if agents:
            agents, executor = await _chatting(stack, ledger, agents, carries_out=not setup.once)
        working = Worker(
            ledger,
            tools=setup.tools,
            agents=agents,
            dispatcher=None if setup.dispatcher is None else dispatcher(setup.dispatcher(ledger)),
            concurrency=setup.concurrency,
            scan_every_s=setup.scan_every_s,
            lease_s=setup.lease_s,
            chains=setup.chains,
            purge_after=setup.purge_after,
            checkpoints_after=setup.checkpoints_after,
        )
        for one in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(one, working.stop)
        if setup.health is not None:
            host, _ = setup.health
            port = await stack.enter_async_context(_listening(health(working, *setup.health), *setup.health))
            print(f"settled: ready is told at http://{host}:{port}/ready", file=sys.stderr, flush=True)
        if setup.has_queue and _is_there("procrastinate"):
            await stack.enter_async_context(_hearing(working, executor))
        return await (working.arun_once() if setup.once else working.arun())


@asynccontextmanager
async def _listening(page: AbstractAsyncContextManager[int], host: str, port: int) -> AsyncIterator[int]:
    """Serve a page within the block; a wrong use where nobody can listen at its address."""
    async with AsyncExitStack() as stack:
        try:
            bound = await stack.enter_async_context(page)
        except (OSError, UnicodeError) as error:  # taken, not ours, or no name of a host
            said = f"cannot listen at {host}:{port}: {error}"
            raise typer.BadParameter(said, param_hint="--health-port") from error
        yield bound


async def _chatting(
    stack: AsyncExitStack, ledger: "Ledger", agents: Mapping[str, Any], *, carries_out: bool
) -> "tuple[Mapping[str, Any], Executor | None]":
    """Return the agents, with a checkpointer of this loop; and what carries out the runs of the chat with them."""
    from settled.runtime.chat.carrying import checkpointed, working
    from settled.runtime.chat.executing import Executor

    agents = await stack.enter_async_context(checkpointed(ledger, agents))
    if not carries_out:
        return agents, None
    return agents, await stack.enter_async_context(working(Executor(ledger, agents)))


def _is_there(module: str) -> bool:
    """Whether the queue is installed; a worker without it scans, and says so."""
    if importlib.util.find_spec(module) is not None:
        return True
    print(f"settled: {module} is not installed, so this worker scans only", file=sys.stderr, flush=True)
    return False


@asynccontextmanager
async def _hearing(working: Any, executor: "Executor | None") -> AsyncIterator[None]:
    from settled.runtime.jobs import Listening

    on_run = None if executor is None else executor.look_now
    hearing = asyncio.ensure_future(Listening(working, on_run=on_run).run())
    try:
        yield
    finally:
        hearing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await hearing


def dispatcher(made: Any) -> Any:
    from settled.tools.dispatcher import Dispatcher

    if not isinstance(made, Dispatcher):
        raise typer.BadParameter(f"gave a {type(made).__name__}, not a Dispatcher", param_hint="--dispatcher")
    return made


async def entered(stack: AsyncExitStack, made: Any) -> Mapping[str, Any]:
    """Return agents by name: as they are, awaited, or for as long as the worker runs."""
    if inspect.isawaitable(made):
        made = await made
    if hasattr(made, "__aenter__"):
        made = await stack.enter_async_context(made)
    elif hasattr(made, "__enter__"):
        made = stack.enter_context(made)
    if not isinstance(made, Mapping):
        raise typer.BadParameter(f"gave a {type(made).__name__}, not agents by name", param_hint="--agents")
    return made
