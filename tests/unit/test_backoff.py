from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.backoff import Backoff, retry_after_s


@given(st.integers(1, 10**6), st.floats(0, 1))
def test_pauses_grow_to_the_longest_and_a_spread_shortens_them_by_half_at_most(failures: int, spread: float) -> None:
    backoff = Backoff(first_s=0.25, longest_s=5.0)
    assert [backoff.pause_s(number) for number in range(1, 8)] == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    whole = backoff.pause_s(failures)
    assert whole / 2 <= backoff.pause_s(failures, spread) <= whole <= 5.0


@given(st.text() | st.integers().map(str))
def test_any_retry_after_is_read(value: str) -> None:
    seconds = retry_after_s(value)
    assert seconds is None or seconds >= 0


def test_retry_after_of_both_forms() -> None:
    assert retry_after_s("7") == 7.0 and retry_after_s("0.5") == 0.5
    assert retry_after_s(None) is retry_after_s("soon") is retry_after_s("-7") is None
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert (retry_after_s("Wed, 21 Oct 2095 07:28:00 GMT") or 0) > 1e9
