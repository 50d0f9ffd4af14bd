"""The checklist as data: every check with its id, how bad it is, why it is there, and what to do.

Ids are what authors write into `# settled: allow`, and what a CI job greps: they never change. An error can lead to a
second effect, to a lost one, or to a model that is invited to repeat; a warning is safe but will surprise somebody (a
person is asked, a call never succeeds twice); a note is worth knowing and never changes the exit code.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad a finding is, the worst first."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Check:
    """One line of the checklist; `why` and `fix` are sentences."""

    id: str
    severity: Severity
    why: str
    fix: str


@dataclass(frozen=True, order=True)
class Place:
    """A line of a file; line 0 where only the file is known."""

    file: str
    line: int


@dataclass(frozen=True)
class Finding:
    """What is wrong, where; `tool` is empty for what belongs to no tool."""

    check: Check
    place: Place | None
    tool: str
    sentence: str


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE

_ALL = (
    # The declaration.
    Check("refused-declaration", _E,
          "A declaration that contradicts itself is refused when the module is imported.",
          "do what the sentence says"),
    Check("volatile-key", _E,
          "A value that is new on each call (a timestamp, a uuid, a nonce) makes each repeat a new intent: nothing is"
          " ever recognised as the same.",
          "take it out of identity= and unique=, or mark it Annotated[..., Incidental()]; the key is made for you"),
    Check("volatile-argument", _W,
          "A value that is new on each call changes the fingerprint: an honest repeat becomes a conflict.",
          "drop it, or mark it Annotated[..., Incidental()]"),
    Check("free-text-key", _E,
          "A model words a free text anew each time, and each wording would be a new intent.",
          "name ids in identity=, and mark the text Annotated[str, Incidental()]"),
    Check("free-text-argument", _W,
          "A model words a free text anew each time: an honest repeat becomes a conflict.",
          "mark it Annotated[str, Incidental()], constrain it (Literal, an enum, a pattern), or name it in identity="),
    Check("float-key", _W,
          "0.1 + 0.2 is not 0.3: an amount that is computed as a float can make another key.",
          "use Decimal, or Annotated[float, Precision(2)]"),
    Check("float-money", _N,
          "Sums and comparisons of money in floats are off by cents.",
          "use Decimal, or Annotated[float, Precision(2)]"),
    Check("untyped-argument", _W,
          'What is not typed is not validated: 100 and "100" are two arguments, and so two fingerprints.',
          "say what it holds: a pydantic model, a TypedDict, list[str]"),
    Check("unsaid-order", _W,
          "Lists are sorted before they are compared: [a, b] and [b, a] are one request.",
          "Annotated[list[...], Ordered()] where the order matters; set[...] where it does not"),
    Check("no-query", _W,
          "After a timeout nobody can ask what became of the call: each lost reply waits for a person.",
          'give query=, a function that asks the remote side; or say remote="opaque" to have it so'),
    Check("opaque-remote", _N,
          "The remote side is declared as one that cannot be asked: each lost reply waits for a person.",
          "staff the manual queue (settled actions queue)"),
    Check("thin-lease", _W,
          "An attempt that times out must be recorded by its own owner before the lease ends.",
          "leave lease= out, or give it some seconds more than timeout="),
    Check("long-lease", _W,
          "After a crash nobody touches the action before its lease is over.",
          "leave lease= out: by default it is timeout + 5 s, and it is renewed"),
    Check("no-room-to-retry", _W,
          "The deadline ends before a second attempt could begin, so the attempts that are allowed are never made.",
          "raise deadline=, lower timeout=, or say max_attempts=1"),
    Check("thin-settle-window", _W,
          '"Not found" proves nothing while the request may still be on its way.',
          "leave settle_window= out, or give it some seconds more than timeout="),
    # What the model and the user read.
    Check("invites-retry", _E,
          "A model does what it reads: words that invite another call get one.",
          "state the fact, and that the outcome will be reported; who may retry is the ledger's to say"),
    Check("claims-outcome", _E,
          "Nobody knows the outcome yet: a word of failure invites a second call, a word of success is a lie.",
          "say that it was received and that its outcome will be reported"),
    Check("raw-exception", _E,
          "The text of an exception holds addresses, secrets, and invitations to try again.",
          "word the reason yourself, and let the exception through: it is read as unknown"),
    # The body.
    Check("error-as-result", _E,
          "What a body returns is a success: an exception that is turned into a result hides an unknown outcome.",
          "let the exception through, or raise Ended(Refused(...)) where nothing was sent"),
    Check("swallowed-interrupt", _E,
          "LangGraph's pause (GraphBubbleUp) is an Exception: whoever catches it loses an approval.",
          "put `except GraphBubbleUp: raise` before it"),
    Check("raw-client", _E,
          "A client that is not guarded sends no idempotency key, sends after the lease is over, and its answers are"
          " not read as outcomes.",
          "use settled.http.client(), or http.guard() on your own client"),
    Check("key-not-sent", _E,
          'remote="dedupes" is declared, but the body sends no key by which the remote side could recognise a repeat.',
          "pass current_action().idempotency_key, or use settled.http"),
    Check("key-made-late", _E,
          "A key that is made in the body is a new one on each attempt: it must be made at the decision.",
          "leave the header out (settled.http sends it), or pass current_action().idempotency_key"),
    Check("volatile-payload", _W,
          "A value that is new on each attempt changes the payload under the same key: the remote side refuses it.",
          "take it from the arguments, or from current_action()"),
    Check("several-writes", _E,
          "A crash between two writes of one action cannot be told apart: a restart has to begin at the break.",
          "make each write an action of its own"),
    Check("read-that-writes", _E,
          'risk="read" means that a repeat does no harm: it has no ledger row and is called again freely.',
          "declare it as a write"),
    Check("query-that-writes", _E,
          "A query is asked as often as it takes: it must have no effect.",
          "ask with a GET"),
    Check("absent-on-error", _E,
          "Absent() is taken for a proof that nothing happened: a query that failed has proved nothing.",
          'return Inconclusive("..."), or let the exception through'),
    Check("retry-in-body", _E,
          "A retry inside the body sends again without asking what became of the first call.",
          "remove it: attempts and their backoff are the ledger's (max_attempts=, backoff=)"),
    Check("sdk-retries", _E,
          "A vendor SDK that retries by itself sends again without asking what became of the first call.",
          "turn them off where the client is made"),
    Check("transport-retries", _W,
          "A transport that retries hides attempts from the ledger and uses up the time of this one.",
          "leave retries= out: a connection that was refused is tried again by the ledger"),
    Check("follow-redirects", _E,
          "A write that is redirected is sent twice.",
          "leave it out, and use the final address"),
    Check("client-outlasts-timeout", _W,
          "A client that waits longer than the action sends, or is answered, when the action was given up.",
          "set the client's timeout below the action's"),
    # What stands beside the tools.
    Check("unguarded-tool", _E,
          "A tool or a node that writes without a ledger row repeats its effect at each retry, crash and replay.",
          "declare it with @action, or wrap it with as_action"),
    Check("unguarded-write", _W,
          "A write outside every action has no row that says whether it happened.",
          "call it from the body of an action, or send it with settled.http"),
    Check("plain-tool-node", _E,
          "A plain tool node calls tools past the ledger; an action refuses to run there.",
          "use ActionNode, build_agent, or ActionMiddleware in create_agent"),
    Check("forgetful-checkpointer", _W,
          "A conversation in memory is gone with its process: nothing can go on from where it broke.",
          "with open_checkpointer(ledger) as checkpointer: ..."),
    Check("irreversible-step", _N,
          "When a later step fails for good, a step without a compensation stays done.",
          "give its tool compensate=, or put the step last"),
    Check("retry-around-run", _E,
          "A retry around a whole run begins the chain from its start, with a new message, instead of from the break.",
          "use Session.send with a message_id, and Session.resume to go on"),
    Check("direct-invoke", _W,
          "The entrance is open: a double click, or a client that sends again, is a second message and a second run.",
          "Session(agent, ...).send(text, message_id=...)"),
    Check("no-message-id", _W,
          "Without a message id the same message sent twice is two messages.",
          "pass the id that the client made: send(text, message_id=...)"),
    # The checklist itself.
    Check("unseen-tool", _W,
          "A tool that is made inside a function is not there when the module is imported: nothing of it was checked.",
          "check module:name, the name of a function without parameters, or of a list, that has it"),
    Check("no-source", _N,
          "The source of the body could not be read: only the contract was checked.",
          "check the module in which it is written"),
    Check("bad-allow", _E,
          "An exception from the checklist must say what it allows, and why.",
          "# settled: allow <id> - <reason>"),
    Check("unused-allow", _W,
          "An exception that excuses nothing will excuse the next mistake.",
          "remove the comment"),
)  # fmt: skip

CHECKS: Mapping[str, Check] = {check.id: check for check in _ALL}


def found(check: str, place: Place | None, tool: str, sentence: str) -> Finding:
    """Return a finding of the check with this id."""
    return Finding(CHECKS[check], place, tool, sentence)
