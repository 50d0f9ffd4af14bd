"""Who takes messages: a real HTTP server that verifies each webhook and acts on it through an Inbox, in one commit.

with Consumer(database_url) as consumer:
    consumer.next(Answer(status=503))      # the next webhook is refused, and the one after it taken
    Dispatcher(ledger, sinks={"*": Webhook(consumer.url, secret=SECRET)}).run_once()
    assert consumer.effects() == [...]
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from psycopg_pool import ConnectionPool

from remote import payment
from settled import ActionTool, Done, Ledger, Message, action, perform
from settled.tools.inbox import Inbox
from settled.tools.sinks.signature import Unverified, verified

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BILLING = Inbox("billing")


@dataclass(frozen=True)
class Answer:
    """What happens to one webhook: it is acted on (or not), waits, and is answered; without a status it is dropped."""

    acts: bool = True
    status: int | None = 204
    before_s: float = 0.0
    headers: Mapping[str, str] = field(default_factory=dict)


FINE = Answer()
LOST = Answer(status=None)
BUSY = Answer(acts=False, status=503)


class Consumer:
    """The server. `seen` are the ids of all webhooks that were acted on or known already, repeats too."""

    def __init__(self, database_url: str) -> None:
        self.seen: list[str] = []
        self.refused: list[str] = []
        self.arrived = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._next: deque[Answer] = deque()
        self._pool = ConnectionPool(database_url, min_size=1, max_size=8, open=False)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = False  # what it is at is ended before its database goes
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hooks"

    def __enter__(self) -> Self:
        self._pool.open()
        with self._pool.connection() as connection:
            Inbox.create_tables(connection)
            connection.execute(
                "CREATE TABLE IF NOT EXISTS effects (n bigserial, message_id text, topic text, payload json)"
            )
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()
        self._pool.close()

    def next(self, *answers: Answer) -> None:
        self._next.extend(answers)

    def effects(self) -> list[tuple[str, Any]]:
        """Return what was done, in order: topic and payload."""
        with self._pool.connection() as connection:
            return connection.execute("SELECT topic, payload FROM effects ORDER BY n").fetchall()

    def take(self, headers: Mapping[str, str], body: bytes) -> Answer:
        try:
            message = verified(headers, body, SECRET)
        except Unverified as error:
            self.refused.append(str(error))
            return Answer(acts=False, status=401)
        try:
            answer = self._next.popleft()
        except IndexError:
            answer = FINE
        self.arrived.set()
        self.may_answer.wait(30)
        time.sleep(answer.before_s)
        if answer.acts:
            with self._pool.connection() as connection:
                if BILLING.first_time(message.id, connection=connection):
                    row = [message.id, message.topic, _json(message.payload)]
                    connection.execute("INSERT INTO effects (message_id, topic, payload) VALUES (%s, %s, %s)", row)
            self.seen.append(message.id)
        return answer


def _json(value: Any) -> Any:
    from psycopg.types.json import Json

    return Json(value)


def _handler(consumer: Consumer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            answer = consumer.take(dict(self.headers.items()), body)
            if answer.status is None:
                self.close_connection = True
                return
            with contextlib.suppress(OSError):
                self.send_response(answer.status)
                for name, value in {"content-length": "0", **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


def paying(emits: Callable[[Done], Any] | None = None, **contract: Any) -> ActionTool:
    """A tool that pays an order here, and has two messages: `paid` and `shipping`."""

    @action(
        risk="non_idempotent_write",
        identity=("order_id",),
        emits=emits or _two,
        **{"name": "pay", **contract},
    )
    def pay(order_id: str) -> dict[str, str]:
        """Pay an order."""
        return {"receipt": f"R-{order_id}"}

    return pay


def pay(ledger: Ledger, order_id: str, tool: ActionTool | None = None, tenant: str = "default") -> str:
    """Pay an order; return the id of its action."""
    tool = tool or paying()
    end = perform(tool, {"order_id": order_id}, ledger=ledger, thread_id=f"t-{order_id}", tenant=tenant)
    assert end.code == "succeeded", end
    assert end.action_id is not None
    return end.action_id


def emitting(remote_url: str, **contract: Any) -> ActionTool:
    """The payment of `remote`, with two messages; patient enough for several processes at once."""
    patient = {"timeout": 2.5, "settle_window": 2.5, "lease": 2.8}
    return payment(remote_url, emits=_two, **{**patient, **contract})


def _two(done: Done) -> list[Message]:
    return [Message("paid", done.arguments["order_id"]), Message("shipping", done.receipt)]
