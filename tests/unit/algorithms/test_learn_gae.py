"""Generalized advantage estimation over sampled tokens, by hand and against its definition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.algorithms.gae import estimate_advantages, generalized_advantages, value_metrics, whiten
from finqa_cli.algorithms.packing import step_rows
from finqa_cli.algorithms.samples import attach_rows
from finqa_cli.types import AdvantageEstimation, KlPenalty, Passes, Sample

PLAIN = AdvantageEstimation(gamma=0.5, lam=0.5, whiten=False)
NUMBERS = st.floats(-3, 3, allow_nan=False)
# two sampled tokens, a tool's reply of two, another sampled token
EPISODE = Sample(
    token_ids=(7, 1, 2, 8, 9, 3),
    loss_mask=(False, True, True, False, False, True),
    logprobs=(0.0, -1.0, -2.0, 0.0, 0.0, -0.5),
    advantages=(0.0, 1.0, 1.0, 0.0, 0.0, 1.0),
    values=(0.0, 0.2, 0.4, 0.0, 0.0, 0.6),
    reference_logprobs=(0.0, -1.5, -1.0, 0.0, 0.0, -0.75),
    episode="e",
)


def advantages(rewards: Sequence[float], values: Sequence[float], *, gamma: float, lam: float) -> list[float]:
    """Advantages of one episode."""
    rows = [[np.array(row, dtype=np.float64)] for row in (rewards, values)]
    return generalized_advantages(*rows, gamma=gamma, lam=lam).tolist()


def test_by_hand() -> None:
    """delta = (0.5 x 0.4 - 0.2, 0.5 x 0.6 - 0.4, 1 - 0.6) = (0, -0.1, 0.4), then A = delta + 0.25 A of the next."""
    assert advantages((0, 0, 1), (0.2, 0.4, 0.6), gamma=0.5, lam=0.5) == pytest.approx((0, 0, 0.4))
    assert advantages((0, 0, 1), (0, 0, 0), gamma=1, lam=1) == [1, 1, 1]
    assert advantages((0, 0, 1), (0, 0, 0), gamma=1, lam=0.5) == [0.25, 0.5, 1]
    assert advantages((), (), gamma=1, lam=1) == []
    with pytest.raises(ValueError, match="one value per reward"):
        advantages((0, 1), (0,), gamma=1, lam=1)
    both = generalized_advantages(
        [np.array([0.0, 0, 1]), np.zeros(0), np.array([2.0])],
        [np.array([0.2, 0.4, 0.6]), np.zeros(0), np.array([0.5])],
        gamma=0.5,
        lam=0.5,
    )
    assert both.tolist() == pytest.approx([0, 0, 0.4, 1.5]), "episodes of any length do not touch each other"


@given(
    steps=st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=9), gamma=st.floats(0.1, 1), lam=st.floats(0, 1)
)
def test_it_is_the_sum_of_discounted_errors(steps: list[tuple[float, float]], gamma: float, lam: float) -> None:
    rewards, values = [step[0] for step in steps], [step[1] for step in steps]
    following = [*values[1:], 0.0]
    errors = [rewards[t] + gamma * following[t] - values[t] for t in range(len(steps))]
    defined = [
        math.fsum((gamma * lam) ** (later - t) * errors[later] for later in range(t, len(steps)))
        for t in range(len(steps))
    ]
    assert advantages(rewards, values, gamma=gamma, lam=lam) == pytest.approx(defined, abs=1e-9)


def test_tool_tokens_are_bridged_and_the_reward_comes_with_the_last_sampled_token() -> None:
    (sample,) = estimate_advantages([EPISODE], {"e": 1.0}, PLAIN)
    assert sample.advantages == pytest.approx((0, 0, 0, 0, 0, 0.4), abs=1e-7)
    assert sample.returns == pytest.approx((0, 0.2, 0.4, 0, 0, 1.0), abs=1e-7)
    longer = replace(
        EPISODE,
        token_ids=(7, 1, 2, 8, 8, 8, 9, 3),
        loss_mask=(False, True, True, False, False, False, False, True),
        logprobs=(0.0,) * 8,
        values=(0.0, 0.2, 0.4, 0.0, 0.0, 0.0, 0.0, 0.6),
    )
    (other,) = estimate_advantages([longer], {"e": 1.0}, PLAIN)
    assert [each for each in other.advantages if each] == [each for each in sample.advantages if each]


def test_the_penalty_is_taken_at_each_token() -> None:
    """Sampler -1, -2, -0.5 and reference -1.5, -1, -0.75: k1 is 0.5, -1, 0.25."""
    everything = AdvantageEstimation(gamma=1.0, lam=1.0, whiten=False)
    (sample,) = estimate_advantages([EPISODE], {"e": 1.0}, everything, KlPenalty(coefficient=0.1, estimator="k1"))
    rewards = (-0.05, 0.1, -0.025 + 1)
    assert sample.returns == pytest.approx((0, sum(rewards), sum(rewards[1:]), 0, 0, rewards[2]), abs=1e-7)
    (k3,) = estimate_advantages([EPISODE], {"e": 1.0}, everything, KlPenalty(coefficient=0.1, estimator="k3"))
    assert k3.returns[5] == pytest.approx(1 - 0.1 * (math.exp(-0.25) - 1 + 0.25))


def test_a_fork_goes_on_in_its_next_sequence() -> None:
    first = replace(
        EPISODE,
        token_ids=EPISODE.token_ids[:3],
        loss_mask=EPISODE.loss_mask[:3],
        logprobs=EPISODE.logprobs[:3],
        values=EPISODE.values[:3],
    )
    second = replace(EPISODE, loss_mask=(False,) * 5 + (True,), values=(0.0,) * 5 + (0.6,))
    stranger = replace(EPISODE, episode="f")
    whole, _ = estimate_advantages([EPISODE, stranger], {"e": 1.0, "f": 0.0}, PLAIN)
    one, two, other = estimate_advantages([first, second, stranger], {"e": 1.0, "f": 0.0}, PLAIN)
    assert [*one.advantages, *two.advantages[3:]] == whole.advantages.tolist()
    assert [*one.returns, *two.returns[3:]] == whole.returns.tolist()
    assert other.returns[5] == pytest.approx(0, abs=1e-7), "each episode has its own reward"


def test_whitening_is_over_the_sampled_tokens_alone() -> None:
    """Where nothing is discounted and values are 0, advantages of a token are the reward of its episode."""
    everything = AdvantageEstimation(gamma=1.0, lam=1.0, whiten=True)
    samples = [replace(EPISODE, values=(0.0,) * 6, episode=name) for name in "ef"]
    white = estimate_advantages(samples, {"e": 1.0, "f": 3.0}, everything)
    assert white[0].advantages == pytest.approx((0, -1, -1, 0, 0, -1), abs=1e-6)
    assert white[1].advantages == pytest.approx((0, 1, 1, 0, 0, 1), abs=1e-6)
    std = math.sqrt((4 + 1 + 0 + 1 + 4 + 0) / 6)
    by_hand = [each / std for each in (-2, -1, 0, 1, 2, 0)]
    assert whiten(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 3.0])).tolist() == pytest.approx(by_hand, abs=1e-6)
    assert whiten(np.zeros(0)).tolist() == []


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=4), st.floats(-1, 1))
def test_masked_positions_stay_0_and_returns_are_not_whitened(
    rows: list[tuple[float, float, float]], reward: float
) -> None:
    samples = attach_rows(
        [replace(EPISODE, episode=str(place)) for place in range(len(rows))],
        values=[(0.0, one, two, 0.0, 0.0, three) for one, two, three in rows],
    )
    rewards = {sample.episode: reward for sample in samples}
    white = estimate_advantages(samples, rewards, replace(PLAIN, whiten=True))
    plain = estimate_advantages(samples, rewards, PLAIN)
    assert [sample.returns.tolist() for sample in white] == [sample.returns.tolist() for sample in plain]
    for sample in white:
        for row in (sample.advantages, sample.returns, sample.values):
            assert all(number == 0 for number, masked in zip(row, sample.loss_mask, strict=True) if not masked)


def test_explained_variance_by_hand() -> None:
    """Returns 1, 2, 3 have variance 2/3; values 1, 2, 2 leave errors 0, 0, 1 of variance 2/9."""
    sample = replace(EPISODE, returns=(0.0, 1.0, 2.0, 0.0, 0.0, 3.0), values=(0.0, 1.0, 2.0, 0.0, 0.0, 2.0))

    def explained(one: Sample) -> float:
        return value_metrics([one])["explained_variance"]

    assert explained(sample) == pytest.approx(2 / 3)
    assert explained(replace(sample, values=sample.returns)) == 1
    assert explained(replace(sample, values=(0.0,) * 6)) == 0
    assert explained(replace(sample, returns=(0.0, 1.0, 1.0, 0.0, 0.0, 1.0))) == 0, "nothing to explain"
    assert value_metrics([sample]) == pytest.approx(
        {"explained_variance": 2 / 3, "return_mean": 2, "value_mean": 5 / 3}
    )
    assert value_metrics([]) == {}


@given(samples=st.integers(0, 12), epochs=st.integers(1, 3), minibatches=st.integers(1, 5), seeded=st.booleans())
def test_an_epoch_takes_every_sample_once(samples: int, epochs: int, minibatches: int, seeded: bool) -> None:
    passes = Passes(epochs=epochs, minibatches=minibatches)
    seeds = range(epochs) if seeded else ()
    steps = step_rows(samples, passes, seeds=seeds)
    per_epoch = min(samples, minibatches)
    assert len(steps) == epochs * per_epoch and all(steps)
    for epoch in range(epochs):
        rows = [row for step in steps[epoch * per_epoch : (epoch + 1) * per_epoch] for row in step]
        assert sorted(rows) == list(range(samples))
    assert steps == step_rows(samples, passes, seeds=seeds)


def test_epochs_have_orders_of_their_own() -> None:
    one, two = step_rows(20, Passes(epochs=2, minibatches=1), seeds=(1, 2))
    assert one != two != tuple(range(20))
    assert step_rows(5, Passes(epochs=1, minibatches=2)) == [(0, 2, 4), (1, 3)]
    with pytest.raises(ValueError, match="1 seeds for 2 epochs"):
        step_rows(5, Passes(epochs=2, minibatches=1), seeds=(1,))
