"""What people ask and do about the messages of one tenant. The command line and the console are made of it.

Delivers nothing: that is the dispatcher's (`settled.tools.dispatcher`), and what is redriven here waits for it.
"""

from collections.abc import Sequence

from settled.state import outbox
from settled.state.errors import ContractError, InvalidArguments, NotFound
from settled.state.ledger import MAX_TEXT_CHARS
from settled.state.outbox import STANDINGS, Posted, Standing
from settled.state.store import Ledger
from settled.tools.decisions import Decider
from settled.tools.outcome import one_line

MOST_REDRIVEN = 1000
"""Dead letters in one statement; whoever has more asks again."""


class Outbox:
    """The messages of one tenant."""

    def __init__(self, ledger: Ledger, *, tenant: str = "default") -> None:
        self._database = outbox.on(ledger)
        self._tenant = tenant

    def messages(
        self,
        *,
        state: Standing | None = None,
        topic: str | None = None,
        action_id: str | None = None,
        most: int = 100,
    ) -> list[Posted]:
        """Return at most `most` messages: what is due first comes first, of the others the newest.

        `state`: "due" (being delivered too), "held" (behind another one of its action), "dead" or "delivered".
        """
        if state is not None and state not in STANDINGS:
            raise InvalidArguments("state", f"must be one of {', '.join(STANDINGS)}")
        return self._database.run(
            outbox.messages(self._tenant, state=state, topic=topic, action_id=action_id, most=most)
        )

    def message(self, message_id: str) -> Posted:
        """Return one message with its whole payload; NotFound where this tenant has none of that id."""
        found = self._database.run(outbox.message(self._tenant, message_id))
        if found is None:
            raise NotFound(f"there is no message {message_id!r}")
        return found

    def redrive(self, ids: Sequence[str], *, by: str, note: str | None = None) -> list[str]:
        """Make dead letters due again, their attempts counted anew, and say so on the timelines of their actions.
        Returns the ids of those that were dead letters; the others stay as they are.
        """
        if isinstance(ids, str):
            raise ContractError("ids must be several: [message.id]")
        return self._database.run(outbox.redrive(self._tenant, ids, by=Decider(by=by).by, note=_note(note)))

    def redrive_all(
        self, *, by: str, note: str | None = None, topic: str | None = None, most: int = MOST_REDRIVEN
    ) -> list[str]:
        """As `redrive`, for the oldest dead letters, at most `most` of them."""
        query = outbox.redrive_all(self._tenant, topic=topic, by=Decider(by=by).by, note=_note(note), most=most)
        return self._database.run(query)


def _note(note: str | None) -> str | None:
    return None if note is None else one_line(note, MAX_TEXT_CHARS)
