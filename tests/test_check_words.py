"""Which words invite a model to call again, and which claim an outcome that nobody knows."""

import pytest

from settled.runtime.checking.of_words import claim, invitation, invitation_in_answer
from settled.tools import texts_en, texts_zh
from settled.tools.messages import Code

OPEN = ("in_progress", "unknown", "manual_review", "waiting_for_approval")


@pytest.mark.parametrize(
    "text",
    [
        "Error: transaction failed. Please try again.",
        "If it fails, call this tool again.",
        "Please fix your mistakes.",
        "It is safe to retry.",
        "May be called multiple times.",
        "Keep calling until it works.",
        "Resubmit the form.",
        "Not now; try it again later.",
        "请重试。",
        "请重新提交。",
    ],
)
def test_an_invitation_is_heard(text: str) -> None:
    """In any of the words that frameworks and remote sides use."""
    assert invitation(text)


@pytest.mark.parametrize(
    "text",
    [
        "Do not try again.",
        "It must not be submitted again.",
        "Never call it again for the same order.",
        "There is no need to retry.",
        "You don't have to call it again.",
        "请勿重试。",
        "Refund an order. Returns the receipt.",
        "Retry a failed build job of the pipeline.",
        "Search the catalogue against a list.",
    ],
)
def test_a_sentence_that_forbids_is_no_invitation(text: str) -> None:
    """Nor is a tool whose work it is to retry a job of somebody else."""
    assert invitation(text) == ""


def test_a_bare_retry_invites_in_an_answer_only() -> None:
    """A description may be that of a tool that retries something."""
    assert (invitation_in_answer("Closed. Retry."), invitation("Retry the job.")) == ("Retry", "")


@pytest.mark.parametrize(
    ("text", "is_claim"),
    [
        ("The refund failed.", True),
        ("Error 500", True),
        ("The refund was refunded successfully.", True),
        ("退款已完成。", True),
        ("It was sent; no answer came back. It is being checked.", False),
        ("Whether it is completed will be reported here.", False),
        ("It is not known whether it succeeded.", False),
        ("是否成功尚未可知。", False),
    ],
)
def test_a_word_of_success_or_failure_is_a_claim(text: str, is_claim: bool) -> None:
    """Unless the sentence says that it is not known."""
    assert bool(claim(text)) is is_claim


@pytest.mark.parametrize("texts", [texts_en, texts_zh])
def test_our_own_texts_pass_the_check(texts: object) -> None:
    """What is asked of authors holds for the words that ship: `invalid` is the only one that invites."""
    spoken = {**texts.SENTENCES}  # type: ignore[attr-defined]
    lines = {**texts.LINES}  # type: ignore[attr-defined]
    told = {code: f"{spoken[code]}\n{lines[code]}" for code in spoken if code in lines and code != Code.INVALID}
    assert len(told) > 15
    assert {code: invitation_in_answer(text) for code, text in told.items() if invitation_in_answer(text)} == {}
    assert {code: claim(spoken[code]) for code in OPEN if claim(spoken[code])} == {}
