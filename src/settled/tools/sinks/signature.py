"""Signed webhooks as in the Standard Webhooks specification (standardwebhooks.com), for both sides.

Owns the three headers and what they are made of: `webhook-id`, `webhook-timestamp` and `webhook-signature`, which has
an HMAC-SHA256 over `id.timestamp.body` for each secret. Knows no HTTP library. The subtle thing: the bytes are signed,
so they are verified as they came, before anybody reads them as JSON.
"""

import base64
import binascii
import hmac
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from settled.state.errors import ContractError, SettledError
from settled.tools.delivery import Delivery

PREFIX = "whsec_"
LEAST_SECRET_BYTES, MOST_SECRET_BYTES = 24, 64
"""As the specification has it."""

TOLERANCE_S = 300.0
"""A request that is older, or from further in the future, is refused: somebody may have kept it to send it again."""

Secrets = str | Sequence[str]
"""One `whsec_…`, or several while one replaces the other: the sender signs with each, the receiver accepts any."""


class Unverified(SettledError):
    """This request was not sent by whoever has the secret, or not now: answer 401 and do nothing."""


def new_secret() -> str:
    """Return a new secret, to be given to both sides."""
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def body_of(delivery: Delivery) -> bytes:
    """Return the body of a webhook: the same bytes whenever the message comes."""
    fields = {
        "id": delivery.id,
        "topic": delivery.topic,
        "action_id": delivery.action_id,
        "tenant": delivery.tenant,
        "created_at": delivery.created_at.isoformat(),
        "payload": delivery.payload,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def signed(message_id: str, body: bytes, keys: Sequence[bytes], *, now: float) -> dict[str, str]:
    """Return the headers of a webhook."""
    timestamp = str(int(now))
    signatures = [f"v1,{_signature(key, message_id, timestamp, body)}" for key in keys]
    return {"webhook-id": message_id, "webhook-timestamp": timestamp, "webhook-signature": " ".join(signatures)}


def verified(
    headers: Mapping[str, str],
    body: bytes,
    secret: Secrets,
    *,
    tolerance_s: float = TOLERANCE_S,
    now: Callable[[], float] = time.time,
) -> Delivery:
    """Return the message of a webhook that came with these headers and this body, as it came.

    Raises Unverified, with a sentence that holds nothing secret; ContractError for a secret that is none.
    """
    keys = keys_of(secret)
    if not isinstance(body, bytes):
        raise ContractError("body= must be the bytes as they came: those are what was signed")
    given = {name.lower(): value for name, value in headers.items()}
    try:
        message_id, timestamp, signatures = (given[f"webhook-{name}"] for name in ("id", "timestamp", "signature"))
    except KeyError as missing:
        raise Unverified(f"the header {missing.args[0]} is missing") from None
    _check_time(timestamp, tolerance_s, now())
    wanted = [_signature(key, message_id, timestamp, body).encode() for key in keys]
    texts = [text.removeprefix("v1,") for text in signatures.split(" ") if text.startswith("v1,")]
    found = [text.encode("utf-8", "surrogatepass") for text in texts]
    if not any(hmac.compare_digest(one, other) for one in found for other in wanted):
        raise Unverified("the signature is of another secret or another body")
    return _read(body)


def keys_of(secret: Secrets) -> tuple[bytes, ...]:
    """Return the keys of secrets; ContractError, which does not show them, for what is none."""
    texts = (secret,) if isinstance(secret, str) else tuple(secret)
    if not texts:
        raise ContractError("secret= must hold at least one secret")
    return tuple(map(_key, texts))


def _key(text: str) -> bytes:
    try:
        key = base64.b64decode(text.removeprefix(PREFIX), validate=True) if text.startswith(PREFIX) else b""
    except (binascii.Error, ValueError):
        key = b""
    if not LEAST_SECRET_BYTES <= len(key) <= MOST_SECRET_BYTES:
        span = f"{LEAST_SECRET_BYTES} to {MOST_SECRET_BYTES}"
        raise ContractError(f"secret= must be {PREFIX} and {span} bytes in base64 (`new_secret()` makes one)")
    return key


def _signature(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    told = f"{message_id}.{timestamp}.".encode("utf-8", "surrogatepass") + body
    return base64.b64encode(hmac.digest(key, told, "sha256")).decode()


def _check_time(timestamp: str, tolerance_s: float, now: float) -> None:
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        raise Unverified("the header webhook-timestamp is no time in seconds")
    if abs(now - int(timestamp)) > tolerance_s:
        raise Unverified(f"it was sent more than {tolerance_s:g} s ago, or one of the clocks is wrong")


def _read(body: bytes) -> Delivery:
    """Read a body that has the right signature: so it is a message, or the secret is used for something else."""
    try:
        fields = json.loads(body)
        known = {name: fields[name] for name in ("id", "topic", "payload", "action_id", "tenant")}
        return Delivery(**known, created_at=datetime.fromisoformat(fields["created_at"]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Unverified("the body is signed, but is no message of an outbox") from error
