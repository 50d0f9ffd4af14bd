"""`python -m settled.demo.service`: prints `listening on http://127.0.0.1:PORT`, and runs until it is ended."""

import argparse
import asyncio
import json
import os
import socket
from collections.abc import Sequence

import uvicorn

from settled.demo.service import SECRET, app, faults, life, store
from settled.demo.service.replies import Connection
from settled.state.store import Ledger

MAX_LIFE_S = 600.0
"""Longer than a person looks at a demo."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(
        prog="python -m settled.demo.service", description="The ticket service of the demo."
    )
    parser.add_argument(
        "--database-url", default=os.environ.get("SETTLED_DATABASE_URL"), help="or SETTLED_DATABASE_URL"
    )
    parser.add_argument("--port", type=int, default=8765, help="0 takes a free one (default 8765)")
    parser.add_argument("--faults", type=json.loads, default={}, help="switches as JSON, as for PUT /faults")
    parser.add_argument(
        "--parent", type=int, default=os.getppid(), help="end with this process (default: the parent; 0: none)"
    )
    parser.add_argument("--max-life", type=float, default=MAX_LIFE_S, help="seconds until it ends by itself")
    options = parser.parse_args(argv)
    if not options.database_url:
        parser.error("--database-url or SETTLED_DATABASE_URL is needed")
    asyncio.run(_serve(options))


async def _serve(options: argparse.Namespace) -> None:
    ledger = await asyncio.to_thread(Ledger.connect, options.database_url)
    database = store.open_database(options.database_url)
    await database.arun(store.create_tables())
    secret = os.environ.get(SECRET)
    application = app.application(database, ledger, faults.switches(options.faults), secret=secret)
    listener = _listener(options.port)
    config = uvicorn.Config(
        application, http=Connection, ws="none", lifespan="off", log_level="critical", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    ending = asyncio.ensure_future(life.end(options.parent, options.max_life))
    ending.add_done_callback(lambda _: setattr(server, "should_exit", True))
    await server.serve(sockets=[listener])
    ending.cancel()
    await database.aclose()
    await ledger.aclose()
    ledger.close()


def _listener(port: int) -> socket.socket:
    """Listen on loopback. asyncio sends small answers without delay only on a socket that names its protocol."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    return listener


if __name__ == "__main__":
    main()
