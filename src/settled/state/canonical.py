"""Which calls are the same: canonical bytes, and the digests made from them.

Owns the digests that tell calls apart (fingerprint, intent, business key, decision) and their domain tags. Knows
nothing of tools, rows or messages. `input_limits` looks at raw arguments first, `typed_pass` turns a validated value
into a tree, `scalars` says what one number or text is, `markers` are what an author writes.

Subtle: every digest has its own tag with the version in it, and structure instead of joined texts, so that no digest
can be taken for another and no field can lean over into its neighbour. Whatever changes one byte here needs a new
VERSION: the golden vectors in the tests belong to rows that are already stored.
"""

from __future__ import annotations

import hashlib
import typing
from collections.abc import Mapping, Sequence

from settled.state.errors import ContractError, InvalidArguments
from settled.state.input_limits import (
    MAX_ARGUMENT_BYTES,
    MAX_COMBINING_RUN,
    MAX_DEPTH,
    MAX_INTEGER,
    MIN_INTEGER,
    check_arguments,
    within,
)
from settled.state.markers import Incidental, Marker, Ordered, Precision, Secret, marked
from settled.state.scalars import Tree, tree_bytes
from settled.state.typed_pass import build, field_encoder, fields_tree

__all__ = [
    "ABSENT",
    "MAX_ARGUMENT_BYTES",
    "MAX_COMBINING_RUN",
    "MAX_DEPTH",
    "MAX_INTEGER",
    "MIN_INTEGER",
    "VERSION",
    "Incidental",
    "Marker",
    "Ordered",
    "Precision",
    "Secret",
    "arguments_bytes",
    "business_digest",
    "canonical_bytes",
    "check_arguments",
    "decision_digest",
    "differing",
    "fingerprint",
    "fingerprint_of",
    "idempotency_key",
    "intent_digest",
    "marked",
]

VERSION: typing.Final = 1
# What `differing` shows for a field that one side does not have; None there is an explicit null.
ABSENT: typing.Final = "(absent)"

_NO_ANNOTATIONS: typing.Final[Mapping[str, object]] = {}
_DIGEST_BYTES = hashlib.sha256().digest_size
# 160 bits of the digest: no collisions in practice, and short enough for remotes that cut keys at 64 characters.
_KEY_HEX = 40


def canonical_bytes(value: object, annotation: object = typing.Any) -> bytes:
    """The bytes that are equal for two values exactly when they are the same value for this annotation.

    Raises InvalidArguments for what has no canonical form (NaN, a generator, a cycle), ContractError for an annotation
    that cannot be read.
    """
    encode = field_encoder(annotation) or build(annotation)  # alone, an incidental value has nothing to be left out of
    return _bounded(lambda: encode(value))


def arguments_bytes(values: Mapping[str, object], annotations: Mapping[str, object]) -> bytes:
    """The canonical bytes of a call's arguments, each by its own annotation, without the incidental ones."""
    return _bounded(lambda: fields_tree(values, annotations))


def fingerprint(values: Mapping[str, object], annotations: Mapping[str, object]) -> str:
    """`sha256:…` over the arguments: two calls with one key must have one fingerprint."""
    return fingerprint_of(arguments_bytes(values, annotations))


def fingerprint_of(arguments: bytes) -> str:
    """The fingerprint of arguments whose canonical bytes (`arguments_bytes`) are already at hand."""
    return f"sha256:{_digest('fingerprint', arguments).hex()}"


def intent_digest(
    *,
    tenant: str,
    thread_id: str,
    tool: str,
    identity: Mapping[str, object],
    annotations: Mapping[str, object],
) -> bytes:
    """32 bytes for what an action wants, apart from when and how often it was asked."""
    return _digest("intent", _bounded(lambda: [tenant, thread_id, tool, fields_tree(identity, annotations)]))


def idempotency_key(intent: bytes, occurrence: int) -> str:
    """`s1-…`, the name of one intent for the remote side; `occurrence` counts deliberate repeats."""
    if len(intent) != _DIGEST_BYTES or occurrence < 0:
        raise ContractError("an idempotency key needs an intent_digest and an occurrence of 0 or more")
    return f"s{VERSION}-{_digest('key', intent + str(occurrence).encode()).hex()[:_KEY_HEX]}"


def business_digest(
    *, tenant: str, tool: str, fields: Mapping[str, object], annotations: Mapping[str, object]
) -> bytes:
    """32 bytes for the business key (`unique=`): the same in every conversation of the tenant."""
    return _digest("business", _bounded(lambda: [tenant, tool, fields_tree(fields, annotations)]))


def decision_digest(tenant: str, parts: Sequence[str], fingerprint: str) -> bytes:
    """32 bytes for one decision of a model: where it was taken (`parts`), and with which arguments."""
    return _digest("decision", _bounded(lambda: [tenant, list(parts), fingerprint]))


def differing(
    stored: Mapping[str, object],
    sent: Mapping[str, object],
    annotations: Mapping[str, object] = _NO_ANNOTATIONS,
) -> dict[str, tuple[object, object]]:
    """The fields that are not the same, each with its stored and its sent value; ABSENT where a side has none.

    Without annotations both sides are taken as plain JSON: the order of a list makes no difference.
    """
    names = sorted(stored.keys() | sent.keys())
    return {
        name: (stored.get(name, ABSENT), sent.get(name, ABSENT))
        for name in names
        if _one_field(name, stored, annotations) != _one_field(name, sent, annotations)
    }


def _one_field(name: str, values: Mapping[str, object], annotations: Mapping[str, object]) -> bytes:
    return arguments_bytes({name: values[name]} if name in values else {}, annotations)


def _digest(domain: str, content: bytes) -> bytes:
    return hashlib.sha256(f"settled/{domain}/{VERSION}\n".encode() + content).digest()


def _bounded(tree: typing.Callable[[], Tree]) -> bytes:
    """The bytes of a tree; a value that is cyclic or deeper than the stack is a bad call, not a crash."""
    try:
        return tree_bytes(tree())
    except RecursionError as cause:
        raise InvalidArguments("arguments", f"must not be nested deeper than {MAX_DEPTH} levels") from cause
    except InvalidArguments as error:
        raise error if error.field else within("arguments", error) from error.__cause__
