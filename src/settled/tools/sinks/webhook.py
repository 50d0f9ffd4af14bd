"""A sink that posts each message to a URL, signed (`settled.tools.sinks.signature` has the format and the other side).

The subtle thing is what an answer means. Any 2xx acknowledges. 410 says that nobody will ever take it there: a dead
letter at once. Whatever else there is (also a 401, a 404, a redirect) is most often a deployment or a changed setting
of the consumer, and passes: the message is tried again until its attempts are used up, and can be redriven then.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from settled.state.errors import ContractError
from settled.tools.delivery import Delivery, Undelivered
from settled.tools.outcome import one_line, retry_after_s
from settled.tools.sinks.signature import Secrets, body_of, keys_of, signed

if TYPE_CHECKING:
    import ssl

    import httpx2

TIMEOUT_S = 10.0
"""From the connection to the head of the answer; below the time that a dispatcher gives a delivery."""

LONGEST_RETRY_AFTER_S = 86_400.0
"""A consumer may ask for a day; one that asks for more is asked again then."""

MAX_ERROR_CHARS = 200


class Webhook:
    """`Webhook("https://shop.example/hooks", secret="whsec_…")`: a sink for a `Dispatcher`.

    `secret`: one, or several while one replaces the other. `headers` are sent besides. Each delivery opens a connection
    of its own, follows no redirect, and reads no more of the answer than its head.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: Secrets,
        timeout_s: float = TIMEOUT_S,
        headers: Mapping[str, str] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Raises ContractError for a URL, a secret or headers that cannot be right; it shows none of them."""
        if timeout_s <= 0:
            raise ContractError("timeout_s must be above 0")
        self._host, self._is_tls = _place(url)
        self._url, self._keys, self._timeout_s, self._now = url, keys_of(secret), timeout_s, now
        self._headers = {name.lower(): value for name, value in (headers or {}).items()}
        if any(name.startswith("webhook-") for name in self._headers):
            raise ContractError("headers= may not hold a webhook-… header: those say who signed what")

    def __repr__(self) -> str:
        return f"Webhook({self._host!r})"

    async def __call__(self, delivery: Delivery) -> None:
        """Post one message; Undelivered unless it was acknowledged."""
        import httpx2

        body = body_of(delivery)
        said = {"content-type": "application/json", "user-agent": "settled", **self._headers}
        said |= signed(delivery.id, body, self._keys, now=self._now())
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                httpx2.AsyncClient(timeout=None, follow_redirects=False, verify=self._is_tls and _trusted()) as client,
                client.stream("POST", self._url, content=body, headers=said) as answer,
            ):
                _check_acknowledged(answer)
        except TimeoutError:
            raise Undelivered(f"{self._host} did not answer within {self._timeout_s:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            why = one_line(f"{type(error).__name__}: {error}", MAX_ERROR_CHARS)
            raise Undelivered(f"{self._host} could not be asked: {why}") from error


def _place(url: str) -> tuple[str, bool]:
    """Return the host of an address, and whether it is reached by TLS."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise ContractError("url= must be an address with http:// or https://")
    return host, parts.scheme == "https"


def _check_acknowledged(answer: "httpx2.Response") -> None:
    if answer.is_success:
        return
    wait_s = retry_after_s(answer.headers, datetime.now(UTC))
    pause_s = None if wait_s is None else min(wait_s, LONGEST_RETRY_AFTER_S)
    why = one_line(f"answered {answer.status_code} {answer.reason_phrase}", MAX_ERROR_CHARS)
    raise Undelivered(why, retry_after_s=pause_s, is_final=answer.status_code == 410)


@cache
def _trusted() -> "ssl.SSLContext":
    """Return whom we trust; reading that takes longer than a delivery, and plain http:// has no need of it."""
    import httpx2

    return httpx2.create_ssl_context()
