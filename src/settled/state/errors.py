"""The errors of the library, split by what the caller must do.

    SettledError
    ├── ContractError              fix your code: a declaration or a call that cannot be right
    │   ├── ChainChanged           a step that was begun is gone from the code of its chain, or elsewhere in it
    │   └── Unguarded              an action's body was called outside an action
    ├── InvalidArguments           fix the call: one field, one rule
    ├── NotFound                   no such action for this tenant
    ├── AlreadyDecided             look: somebody decided first, and that stands
    ├── NotPermitted               ask somebody else: this person may not decide it
    ├── ShownOtherwise             look again: what was decided on is not what stands there
    ├── LedgerUnavailable          wait: Postgres cannot be reached
    ├── ThreadBusy                 wait: another session runs this thread
    ├── ClaimLost                  undo your work: the idempotency key is not yours any more, and nothing was written
    ├── Unverified                 refuse the request: a webhook whose signature, time or form is not right
    ├── Undelivered                raised by a sink: the message comes again
    ├── LedgerFault                page someone: Postgres refused a statement, and would again
    │   └── DuplicateAction        another action has this intent or business key already
    └── IllegalTransition          page someone: the machine forbids this step

Outcomes of an attempt (refused, unknown …) are values, not errors: see `settled.tools.outcome`.
"""


class SettledError(Exception):
    """Every error that this library raises by itself."""


class ContractError(SettledError):
    """A declaration or a call that cannot be right; the sentence says how to fix it."""


class Unguarded(ContractError):
    """The body of an action was reached outside an action, where nothing guards its effect."""


class InvalidArguments(SettledError):
    """A call whose arguments break a rule; nothing was sent and no row was written.

    `field` is a path (`amount`, `items[2].price`), `rule` a sentence without the field's name.
    """

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: {rule}")
        self.field = field
        self.rule = rule


class NotFound(SettledError):
    """There is no such action for this tenant (another tenant's ids do not exist)."""


class AlreadyDecided(SettledError):
    """The first decision is final, and this one came second, or too late; the sentence says what was decided."""


class NotPermitted(SettledError):
    """This person may not decide: the request names others, or asks for somebody other than the requester."""


class ShownOtherwise(SettledError):
    """The fingerprint that was shown to the person is not the action's."""


class LedgerUnavailable(SettledError):
    """Postgres did not answer in time. Before the call: not started. After it: the outcome is unknown."""


class LedgerFault(SettledError):
    """Postgres refused a statement for a reason that sending it again cannot cure."""


class DuplicateAction(LedgerFault):
    """Another action has this intent or business key; nothing was written."""


class ThreadBusy(SettledError):
    """Another session holds this thread's lock."""


class ClaimLost(SettledError):
    """Somebody else has taken up this idempotency key since it was claimed; what came of it is his to say."""


class IllegalTransition(SettledError):
    """The state machine forbids this step: a fault in the code or in somebody's SQL."""


LEDGER_IS_GONE = (LedgerUnavailable, LedgerFault)
"""Whatever the cause: before the call nothing has begun, and after it nobody knows."""
