"""English texts for `settled.tools.messages`: a sentence of fact that can be read out, then one line for the model.

Only plain named fields. A field in `PHRASES` is empty when its value is absent. Keep out of everything that may have
happened: words of failure, words that read as done, invitations to send it once more.
"""

SENTENCES = {
    "succeeded": "The request “{summary}” was carried out.{receipt_phrase}",
    "in_progress": (
        "The request “{summary}” is being processed. Its outcome is not known yet; it will be reported here."
    ),
    "waiting_for_approval": (
        "The request “{summary}” is waiting for a decision by {approver}{until_phrase}. Nothing has been carried out so"
        " far; the decision will be reported here."
    ),
    "denied": "The request “{summary}” was not approved by {approver}{reason_phrase}. Nothing was carried out.",
    "expired": (
        "The request “{summary}” was not carried out: no decision by {approver} came in time{deadline_phrase}. Nothing"
        " was changed."
    ),
    "changed_by_person": (
        "A person changed the request “{summary}”{changes_phrase}. The changed request is handled instead; the"
        " original was not carried out."
    ),
    "withdrawn": "The request “{summary}” was taken back{reason_phrase}. Nothing was carried out.",
    "unknown": (
        "The request “{summary}” was received. Its outcome is not known yet; it is being checked and will be reported"
        " here."
    ),
    "manual_review": (
        "The request “{summary}” was received. Its outcome is not known yet; a person has to check it, and it will be"
        " reported here."
    ),
    "rejected": "The request “{summary}” was declined{reason_phrase}.{earlier_receipt_phrase}",
    "invalid": "The request “{summary}” was not accepted{field_phrase}{reason_phrase}. Nothing was carried out.",
    "forbidden": "The request “{summary}” was not carried out: permission for it is missing{reason_phrase}.",
    "budget_exceeded": (
        "The request “{summary}” was not carried out: the limit for such requests is reached{reason_phrase}."
    ),
    "conflict": (
        "The request “{summary}” was not submitted: the earlier request {earlier} {earlier_state}, and it differs in"
        " {differing}.{earlier_receipt_phrase}"
    ),
    "conflict_remote": (
        "The request “{summary}” was not accepted: the other side has another request on record under the same"
        " reference. A person has to look at it."
    ),
    "unavailable": (
        "The request “{summary}” was not carried out: the other side was not available. Nothing was changed."
    ),
    "not_done": "The request “{summary}” was not carried out: a person has checked it. Nothing was changed.",
    "stopped": "The request “{summary}” was not carried out: it was stopped before it was sent. Nothing was changed.",
    "undone": "The request “{summary}” was carried out before and has been undone since.{receipt_phrase}",
    "undoing": (
        "The request “{summary}” was carried out before and is now being undone; the outcome will be reported here."
    ),
    "closed": "The request “{summary}” was closed before; nothing was carried out{reason_phrase}.",
}

LINES = {
    "succeeded": "Note for the assistant: tell the user the first sentence above.",
    "in_progress": "Note for the assistant: do not submit it again; tell the user the sentence above.",
    "waiting_for_approval": (
        "Note for the assistant: you cannot approve it; do not submit it again; tell the user the sentence above."
    ),
    "denied": "Note for the assistant: this decision stands; do not submit it again; tell the user the sentence above.",
    "expired": "Note for the assistant: do not submit it again by yourself; tell the user the sentence above.",
    "changed_by_person": (
        "Note for the assistant: a person decided this; the original must not be submitted; tell the user the sentence"
        " above."
    ),
    "withdrawn": "Note for the assistant: do not submit it again by yourself; tell the user the sentence above.",
    "unknown": "Note for the assistant: do not submit it again; tell the user the sentence above.",
    "manual_review": "Note for the assistant: do not submit it again; tell the user the sentence above.",
    "rejected": "Note for the assistant: this answer is final; do not submit it again; tell the user the reason.",
    "invalid": (
        "Note for the assistant: correct what is named above and call the tool with the corrected value; if you do not"
        " know the value, ask the user."
    ),
    "forbidden": (
        "Note for the assistant: stop here; do not look for another tool or another way; tell the user that an"
        " authorisation is needed."
    ),
    "budget_exceeded": (
        "Note for the assistant: stop here; do not split or resubmit it; tell the user the sentence above."
    ),
    "conflict": (
        "Note for the assistant: do not submit it with other values. If the user expressly wants one more besides the"
        ' earlier one, pass repeat_of="{earlier}": a person is asked first. If the earlier one is to be corrected, a'
        " person has to do that."
    ),
    "conflict_remote": (
        "Note for the assistant: do not submit it again, with these or other values; tell the user the sentence above."
    ),
    "unavailable": "Note for the assistant: do not submit it again by yourself; tell the user the sentence above.",
    "not_done": "Note for the assistant: do not submit it again by yourself; tell the user the sentence above.",
    "stopped": "Note for the assistant: do not submit it again by yourself; tell the user the sentence above.",
    "undone": "Note for the assistant: do not submit it again by yourself; tell the user the sentence above.",
    "undoing": "Note for the assistant: do not submit it again; tell the user the sentence above.",
    "closed": "Note for the assistant: do not submit it again by yourself; tell the user the sentence above.",
    "duplicate": (
        "Nothing new was done: this is the recorded outcome of the earlier request {earlier}. Only if the user"
        ' expressly wants one more, pass repeat_of="{earlier}": a person is asked first.'
    ),
}

PHRASES = {
    "receipt_phrase": " Receipt: {receipt}.",
    "earlier_receipt_phrase": " Receipt of the earlier one: {receipt}.",
    "reason_phrase": " ({reason})",
    "until_phrase": " until {until}",
    "deadline_phrase": " (the deadline was {until})",
    "field_phrase": ": “{field}” is not valid",
    "missing_phrase": ": “{field}” is missing",
    "no_such_phrase": ": there is no argument “{field}”",
    "changes_phrase": " ({changes})",
}

# How the state of an earlier request reads inside a sentence.
STATES = {
    "planned": "is waiting for a decision",
    "approved": "is about to be processed",
    "running": "is being processed",
    "succeeded": "was carried out",
    "unknown": "is being checked and its outcome is not known yet",
    "failed": "was closed and not carried out",
    "cancelled": "was withdrawn and not carried out",
    "compensation_pending": "is being undone",
    "compensated": "has been undone",
}

WORDS = {
    "someone": "a person",
    "policy": "the rules for such requests",
    "sentence_separator": " ",
    "before_now": "{name} ({before} before, {now} now)",
    "absent": "no value",
    "its_arguments": "its arguments",
    "state_unclear": "is on record",
    "list_separator": "; ",
    "result": "Result: {result}",
    "no_result": "There is no result.",
}

# Rules that a call may break, where the sentence that arrives can be said better; the others are told as they stand.
RULES = {
    "missing": "is missing",
    "no_such": "is not an argument of this tool",
    "budget": "{} of {} are used, and {} more would be needed",
    "authors": "{}",
}
