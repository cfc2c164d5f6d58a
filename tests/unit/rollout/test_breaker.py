from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.errors import CodeFault, EngineError, SandboxError
from finqa_cli.rollout.breaker import Breaker, CodeBreaker, EngineBreaker


def breaker_after(size: int, limit: float, outcomes: list[bool]) -> Breaker:
    breaker = Breaker(size, limit)
    for number, fine in enumerate(outcomes):
        if fine:
            breaker.fine()
        else:
            breaker.fault(SandboxError(f"fault {number}", remedy=f"remedy {number}"))
    return breaker


@given(
    st.integers(1, 40),
    st.sampled_from([0.1, 0.25, 0.5, 0.75, 1.0]),
    st.lists(st.booleans(), max_size=200),
)
def test_it_opens_at_the_first_window_whose_share_of_faults_is_too_large(
    size: int, limit: float, outcomes: list[bool]
) -> None:
    length, enough = max(20, 2 * size), max(20, size)
    windows = (outcomes[max(0, end - length) : end] for end in range(1, len(outcomes) + 1))
    expected = any(len(window) >= enough and window.count(False) / len(window) > limit for window in windows)
    assert (breaker_after(size, limit, outcomes).error is not None) == expected


def test_the_error_names_share_counts_first_error_and_remedy() -> None:
    error = breaker_after(8, 0.5, [True] * 9 + [False] * 11).error
    assert error is not None and error.exit_code == 69
    assert "11 of the latest 20" in error.message and "55%" in error.message and "fault 9" in error.message
    assert error.remedy == "remedy 9"


def test_a_fifth_of_five_hundred_sandboxes_may_die_at_once_at_any_moment() -> None:
    deaths = [False] * 100
    for before in (0, 1, 250, 500, 2000):
        for restarted in (0, 100):
            outcomes = [True] * (500 + before) + deaths + [True] * restarted + deaths
            assert breaker_after(500, 0.5, outcomes).error is None


def test_faults_of_long_ago_are_forgotten() -> None:
    assert breaker_after(10, 0.5, [False, True, True] * 200).error is None


def test_a_whole_pool_that_never_starts_opens_it() -> None:
    assert breaker_after(500, 0.5, [False] * 499).error is None
    assert breaker_after(500, 0.5, [False] * 500).error is not None


@given(st.integers(1, 30), st.lists(st.booleans(), max_size=150))
def test_an_engine_is_given_up_after_a_row_of_faults_without_a_turn(episodes: int, outcomes: list[bool]) -> None:
    breaker, row, longest = EngineBreaker(episodes), 0, 0
    for number, fine in enumerate(outcomes):
        if fine:
            breaker.fine()
        else:
            breaker.fault(EngineError(f"fault {number}", remedy=f"remedy {number}"))
        row = 0 if fine else row + 1
        longest = max(longest, row)
    assert (breaker.error is not None) == (longest >= max(20, 2 * episodes))


def test_the_error_of_an_engine_names_the_last_fault_and_its_remedy() -> None:
    breaker = EngineBreaker(3)
    for number in range(20):
        assert breaker.error is None
        breaker.fault(EngineError(f"fault {number}", remedy=f"remedy {number}"))
    error = breaker.error
    assert error is not None and error.exit_code == 69 and not isinstance(error, EngineError)
    assert "latest 20 attempts" in error.message and "fault 19" in error.message and error.remedy == "remedy 19"


ATTEMPTS = st.tuples(st.integers(0, 4), st.integers(0, 9))


@given(
    st.lists(st.one_of(ATTEMPTS, ATTEMPTS, ATTEMPTS, ATTEMPTS, st.none()), max_size=120)
    | st.lists(ATTEMPTS, min_size=40)
)
def test_code_is_given_up_after_a_row_of_failed_attempts_at_several_questions(
    outcomes: list[tuple[int, int] | None],
) -> None:
    breaker, row, expected = CodeBreaker(), set[tuple[int, int]](), False
    for attempt in outcomes:
        if attempt is None:
            breaker.fine()
            row.clear()
        else:
            fault = CodeFault("r.py raised ValueError (r.py:3)", remedy="correct r.py:3")
            breaker.fault(fault, f"t/q{attempt[0]}/{attempt[1]}", f"q{attempt[0]}")
            row.add(attempt)
        expected = expected or (len(row) >= 20 and len({question for question, _ in row}) >= 3)
        assert (breaker.error is not None) == expected
    if breaker.error is not None:
        assert breaker.error.exit_code == 3 and breaker.error.remedy == "correct r.py:3"
        assert breaker.error.message.endswith("(r.py:3)")
