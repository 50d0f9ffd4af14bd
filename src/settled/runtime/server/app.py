"""The application: the parts of one server, put together.

`build_app` mounts what it is given and knows nothing of what a part does: the routes of a part (the console, the chat
runtime) come as `routers`, and what runs beside the server (a worker) as `beside`, each a context that is entered when
the server starts and left when it ends.
"""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from fastapi import APIRouter, FastAPI
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp

from settled.runtime.server import login, problems, static_files
from settled.runtime.server.guard import BODY_WAIT_S, Guard
from settled.runtime.server.pages import action, actions, chains, deciding, edit, lists, live, metrics, outbox
from settled.runtime.server.site import Site

Beside = Callable[[Site], AbstractAsyncContextManager[object]]

CONSOLE = tuple(pages.router for pages in (lists, actions, action, edit, deciding, chains, outbox, live))
"""The pages of operators; `--no-console` leaves them away."""

ALWAYS = (login.router, static_files.router, metrics.router)
"""What every part needs: a login, the looks, and what is counted."""


def build_app(
    site: Site,
    *,
    routers: Sequence[APIRouter] = CONSOLE,
    beside: Sequence[Beside] = (),
    hosts: Collection[str] = (),
    body_wait_s: float = BODY_WAIT_S,
) -> ASGIApp:
    """Return the server as an ASGI application. `hosts` are the names that it answers to; none: to any."""

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(site.ledger.aclose)
            for part in beside:
                await stack.enter_async_context(part(site))
            yield

    app = FastAPI(
        title="settled", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False, lifespan=running
    )
    app.state.site = site
    for router in (*ALWAYS, *routers):
        app.include_router(router)
    problems.install(app)
    # A page holds a CSRF token and what a visitor asked for, which together may be guessed from compressed lengths, but
    # only by whoever can make the browser send requests with its cookie: SameSite=Strict lets no other site do that.
    app.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=6)
    return Guard(app, frozenset(hosts), body_wait_s)
