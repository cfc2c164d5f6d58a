"""The warning about a loss that does not move: on losses as they were measured, and in a real run."""

from __future__ import annotations

import pytest

from finqa_cli.training.loss_watch import FEWEST, compared_steps, find_stuck

MOVING = [0.668, 0.422, 0.351, 0.309, 0.150, 0.138, 0.183, 0.088, 0.077, 0.129]
"""SmolLM2-135M-Instruct on expert episodes with an adapter, at 1e-3."""
STILL = [0.668, 0.629, 0.666, 0.691, 0.633, 0.671, 0.647, 0.669, 0.671, 0.691]
"""The same at 5e-6."""


def test_a_loss_that_only_scatters_is_named_with_its_numbers_and_a_larger_rate() -> None:
    stuck = find_stuck(STILL)
    assert stuck is not None and (stuck.steps, round(stuck.first, 4), round(stuck.last, 4)) == (10, 0.6543, 0.677)
    words = stuck.words(5e-6)
    assert "10 steps: 0.6543 in the first 3, 0.6770 in the last 3" in words and words.endswith("--lr 5e-05")


@pytest.mark.parametrize(
    "losses",
    [MOVING, [0.6931, 0.69, 0.68, 0.67, 0.66, 0.65, 0.64, 0.63, 0.62], [0.01] * 9],
    ids=["sft", "dpo", "known"],
)
def test_a_loss_that_falls_or_is_low_already_is_not(losses: list[float]) -> None:
    assert find_stuck(losses) is None


def test_a_loss_that_is_the_same_to_the_bit_or_rises_has_not_moved() -> None:
    assert find_stuck([0.6931] * 9) is not None and find_stuck([1.0, 1.1, 1.2] * 3) is not None


def test_it_is_looked_at_after_a_fifth_of_the_steps_if_these_are_enough() -> None:
    assert [compared_steps(total) for total in (5, 9, 10, 45, 100)] == [0, 0, FEWEST, FEWEST, 20]
