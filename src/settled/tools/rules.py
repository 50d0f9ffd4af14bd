"""The rules that a call broke, in the words of the user's language.

Rules arrive as English sentences (pydantic's, or ours): what is known here is put into the words of `texts_en` and
`texts_zh`; any other sentence, such as an author's own, is told as it stands.
"""

import re
from collections.abc import Mapping

MISSING, NO_SUCH = "missing", "no_such"
"""The two that are about the field's being there at all, and not about its value."""

_KNOWN: Mapping[str, str] = {
    MISSING: r"Field required",
    NO_SUCH: r"is not an argument of this tool|Extra inputs are not permitted",
    "whole_number": r"Input should be a valid integer.*",
    "number": r"Input should be a valid (?:number|decimal).*|Decimal input should be an integer, float.*",
    "finite": r"Input should be a finite number|must be a finite number.*",
    "not_a_truth": r"a boolean is not a number",
    "text": r"Input should be a valid string.*",
    "truth": r"Input should be a valid boolean.*",
    "list": r"Input should be a valid (?:list|set|tuple).*",
    "object": r"Input should be a valid dictionary.*",
    "date": r"Input should be a valid date(?! ?time)(?: or datetime)?(?:,.*)?",
    "instant": r"Input should be a valid datetime.*",
    "time_zone": r"Input should have timezone info",
    "at_least": r"Input should be greater than or equal to (.+)",
    "more_than": r"Input should be greater than (.+)",
    "at_most": r"Input should be less than or equal to (.+)",
    "less_than": r"Input should be less than (.+)",
    "multiple": r"Input should be a multiple of (.+)",
    "text_at_least": r"String should have at least (\d+) characters?",
    "text_at_most": r"String should have at most (\d+) characters?",
    "pattern": r"String should match pattern '(.+)'",
    "list_at_least": r"\w+ should have at least (\d+) items? after validation.*",
    "list_at_most": r"\w+ should have at most (\d+) items? after validation.*",
    "places": r"Decimal input should have no more than (\d+) decimal places?",
    "digits": r"Decimal input should have no more than (\d+) digits? in total",
    "one_of": r"Input should be ('.+)",
    "wide_number": r"must fit in a signed 64-bit integer.*",
    "nul": r"must not hold a NUL character",
    "budget": r"(\S+) of (\S+) are used, and (\S+) more would be needed",
    "authors": r"(?:Value error|Assertion failed), (.+)",
}


def known(rule: str) -> str | None:
    """Return the name of a rule; None for a sentence that is not known here."""
    return next((name for name, pattern in _KNOWN.items() if re.fullmatch(pattern, rule, re.DOTALL)), None)


def in_words(rule: str, words: Mapping[str, str]) -> str:
    """Return a rule by the words that a language has for it; as it stands where it has none."""
    name = known(rule)
    if name is None or name not in words:
        return rule
    found = re.fullmatch(_KNOWN[name], rule, re.DOTALL)
    values = found.groups() if found else ()
    return words[name].format(*(value.replace("' or '", "', '") for value in values))  # the list of one_of
