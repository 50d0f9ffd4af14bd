"""`settled serve`: one process with a login, the console, the chat and a worker, on this machine's own address.

Owns the order of a start: the ledger, somebody who can log in, the socket, and only then the word that it is there.
Nothing of a server is imported before the command runs.
"""

import ipaddress
import signal
import socket
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from settled.runtime.options import DatabaseUrl, LogJson, connect
from settled.state.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp
    from uvicorn import Config

    from settled.runtime.server.parts import Parts
    from settled.state.store import Ledger

HOST, PORT = "127.0.0.1", 8484
LOGIN_WITHIN = timedelta(minutes=30)
FIRST_SESSION = timedelta(hours=12)
FIRST_NAME = "first operator"

MAX_CONNECTIONS = 500
"""At once; more are answered with 503 instead of with ever slower pages. Each open page is one of them."""

HEADERS_BYTES = 32 * 1024
"""Of a request's head: cookies and a long search are a tenth of it."""

IDLE_S = 15
"""A connection that asks nothing for so long is closed."""

DRAIN_S = 10
"""After SIGTERM: a decision takes milliseconds, what is carried on here may take some seconds."""


def serve(
    host: Annotated[
        str, typer.Option(help="Where to listen; another address than this machine's own takes TLS.")
    ] = HOST,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = PORT,
    tools: Annotated[
        list[str] | None,
        typer.Option(help="module or module:name of your tools, for edits and retries; may be given again."),
    ] = None,
    agents: Annotated[
        str | None,
        typer.Option(help="module:function of the ledger that gives agents by name, for the chat and for resuming."),
    ] = None,
    dispatcher: Annotated[
        str | None, typer.Option(help="module:function of the ledger that gives the worker's Dispatcher of messages.")
    ] = None,
    console: Annotated[bool, typer.Option(help="The pages of operators.")] = True,
    chat: Annotated[bool, typer.Option(help="The chat page and its API, over --agents.")] = True,
    worker: Annotated[bool, typer.Option(help="A worker in this process, as `settled worker` is one.")] = True,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="A name that a proxy in front calls this server by; may be given again.")
    ] = None,
    trace_url: Annotated[
        str | None, typer.Option(envvar="SETTLED_TRACE_URL", help="Where a trace is shown, with {trace_id} in it.")
    ] = None,
    log_json: LogJson = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Start the server: login, console, chat and a worker. Any number of them share one database."""
    from settled.runtime.loading import chains_of, tools_at
    from settled.runtime.working import maker

    _check_installed()
    from settled.runtime.server.parts import Parts

    known = [tool for place in tools or [] for tool in tools_at(place)]
    made, delivering = maker(agents, "--agents"), maker(dispatcher, "--dispatcher")
    _check_trace_url(trace_url)
    from settled.runtime.logs import say_what_goes_wrong

    say_what_goes_wrong(as_json=log_json)
    with connect(database_url) as ledger:
        secret = _login_secret(ledger, host)
        with listen(host, port) as listening:
            _greet(host, listening.getsockname()[1], secret)
            parts = Parts(
                tools=known,
                agents=made,
                dispatcher=delivering,
                console=console,
                chat=chat and made is not None,
                worker=worker,
                trace_url=trace_url,
                hosts=_names(host, allowed_host),
                chains={chain.name: chain for chain in chains_of(tools or [])},
            )
            run(ledger, parts, listening)


def run(ledger: "Ledger", parts: "Parts", listening: socket.socket) -> None:
    """Serve until a signal ends it; what is under way is ended and recorded then."""
    import asyncio

    from settled.runtime.server.parts import serve_parts

    for one in (signal.SIGTERM, signal.SIGINT):  # the server drains, and raises it once more at the end
        signal.signal(one, _end)
    asyncio.run(serve_parts(ledger, parts, config, listening))


def _end(*_: object) -> None:
    raise SystemExit(0)


def _check_installed() -> None:
    """Refuse to start without what the extra installs, in a sentence."""
    for name in ("fastapi", "jinja2", "uvicorn", "multipart", "sse_starlette"):
        if find_spec(name) is None:
            raise ContractError(f"{name} is not installed; it comes with the extra: pip install 'settled[serve]'")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _names(host: str, allowed: "Sequence[str] | None") -> list[str]:
    """Return the names that the server answers to. Open to others, it cannot know them all, and a session's cookie goes
    to no other name anyhow.
    """
    if not is_loopback(host) and not allowed:
        return []
    own = ["localhost", "127.0.0.1", "::1", host] if is_loopback(host) else [host]
    return [name.lower() for name in [*own, *(allowed or [])]]


def _login_secret(ledger: "Ledger", host: str) -> str | None:
    """Return the secret of a login link, while nobody has a token; other machines are let in by tokens alone."""
    from settled.state import tokens

    database = tokens.on(ledger)
    if database.run(tokens.any_good()):
        return None
    if not is_loopback(host):
        raise ContractError(
            f"nobody has a token, and {host} can be reached from elsewhere: "
            "settled tokens create --name you --role operator"
        )
    secret = tokens.new_secret()
    database.run(
        tokens.create(
            secret, name=FIRST_NAME, role=tokens.Role.OPERATOR, good_for=FIRST_SESSION, login_within=LOGIN_WITHIN
        )
    )
    return secret


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; ContractError where it cannot."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(128)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise ContractError(f"--host {host} --port {port}: {error.strerror or error}") from error
    return listening


def _greet(host: str, port: int, secret: str | None) -> None:
    """Say where it is, and how the first operator gets in."""
    where = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    print(f"settled is at {where} (Ctrl-C ends it)", flush=True)
    if not is_loopback(host):
        print(f"warning: {where} is plain HTTP, and can be reached from elsewhere: put TLS in front of it", flush=True)
    if secret is not None:
        within = f"{LOGIN_WITHIN // timedelta(minutes=1)} minutes"
        print(f"nobody has a token yet. Log in once, within {within}: {where}/login?link={secret}", flush=True)
        print("then make tokens: settled tokens create --name you --role operator", flush=True)


def _check_trace_url(url: str | None) -> None:
    if url is not None and not (url.startswith(("https://", "http://")) and "{trace_id}" in url):
        raise typer.BadParameter("must begin with https:// and have {trace_id} in it", param_hint="--trace-url")


def config(app: "ASGIApp") -> "Config":
    """Return how the application is served."""
    from uvicorn import Config

    return Config(
        app,
        log_level="warning",
        access_log=False,  # an address may hold a login link
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=DRAIN_S,
        h11_max_incomplete_event_size=HEADERS_BYTES,
        http="h11",
    )
