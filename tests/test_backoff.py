"""The waits between attempts (SPEC 5)."""

from collections.abc import Callable

import pytest

from settled.state.errors import ContractError
from settled.tools.backoff import Backoff


def never() -> float:
    raise AssertionError("no random number was needed")


def drawing(*numbers: float) -> Callable[[], float]:
    return iter(numbers).__next__


def test_the_worked_example_comes_out_to_the_number() -> None:
    """503 at 0.2 waits 1.3, 503 at 1.7 waits 2.1; 429 at 4.0 with Retry-After 5 waits 5, not the 4.4 of the formula."""
    backoff, random = Backoff(first=1, cap=8, jitter=0.5), drawing(0.6, 0.2, 0.8)
    attempt_2 = 0.2 + backoff.next_delay(0, random=random)
    attempt_3 = 1.7 + backoff.next_delay(1, random=random)
    formula = backoff.next_delay(2, random=random)
    attempt_4 = 4.0 + backoff.next_delay(2, random=never, retry_after_s=5)
    assert (attempt_2, attempt_3, attempt_4) == (pytest.approx(1.5), pytest.approx(3.8), 9.0)
    assert formula == pytest.approx(4.4)


def test_without_jitter_the_five_waits_are_twenty_three_seconds() -> None:
    """1, 2, 4, 8, 8."""
    assert [Backoff(jitter=0).next_delay(n, random=lambda: 0.9) for n in range(5)] == [1, 2, 4, 8, 8]


def test_retry_after_wins_even_when_it_is_shorter() -> None:
    """The remote side knows better than the formula; a negative wait is none."""
    assert Backoff().next_delay(4, random=never, retry_after_s=0.25) == 0.25
    assert Backoff().next_delay(4, random=never, retry_after_s=-3) == 0.0


def test_full_jitter_spreads_from_zero_to_the_formula() -> None:
    """Uniform in 0 … min(cap, first * 2**n), and nothing added to it."""
    full = Backoff(full=True)
    assert [full.next_delay(2, random=lambda u=u: u) for u in (0.0, 0.5, 1.0)] == [0.0, 2.0, 4.0]


def test_any_number_of_retries_stays_below_the_cap() -> None:
    """The power never overflows."""
    assert Backoff(jitter=0).next_delay(100_000, random=lambda: 0.0) == 8.0


@pytest.mark.parametrize(
    "fields",
    [
        {"first": -1.0},
        {"first": float("nan")},
        {"cap": float("inf")},
        {"first": 9.0},
        {"jitter": -0.1},
        {"first": True},
        {"cap": "8"},
    ],
    ids=str,
)
def test_a_backoff_that_cannot_be_right_is_refused_when_it_is_written(fields: dict[str, float]) -> None:
    """The sentence names the field."""
    with pytest.raises(ContractError, match=r"backoff: (first|cap|jitter)"):
        Backoff(**fields)


def test_a_negative_retry_number_is_refused() -> None:
    """n counts from 0."""
    with pytest.raises(ContractError, match="-1"):
        Backoff().next_delay(-1, random=never)
