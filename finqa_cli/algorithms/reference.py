"""Log-probabilities under the reference policy: for which samples, and what they take from rewards. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from finqa_cli.algorithms.samples import trajectory_samples
from finqa_cli.types import Credit, Group, KlEstimator, KlPenalty, Sample, Trajectory

References = Mapping[str, Sequence[tuple[float, ...]]]
"""By trajectory id: [L] log-probabilities under the reference policy for each of the trajectory's samples."""

_LARGEST_LOG_RATIO = 20.0


def scored_samples(groups: Sequence[Group], credits: Sequence[Credit]) -> dict[str, tuple[Sample, ...]]:
    """By trajectory id: the samples of all scored members of the groups that are trained on; advantages are 0."""
    return {
        trajectory.id: trajectory_samples(trajectory, 0.0)
        for group, credit in zip(groups, credits, strict=True)
        if not credit.dropped
        for trajectory, advantage in zip(group.trajectories, credit.advantages, strict=True)
        if advantage is not None
    }


def references(samples: Mapping[str, Sequence[Sample]], logprobs: Sequence[tuple[float, ...]]) -> References:
    """What a learner's `reference_logprobs` gave for the samples one after the other, by trajectory again."""
    rows = iter(logprobs)
    return {name: tuple(next(rows) for _ in each) for name, each in samples.items()}


def penalized(groups: Sequence[Group], references: References, penalty: KlPenalty) -> tuple[Group, ...]:
    """The groups with the penalty taken from the reward of each graded trajectory that has a reference.

    R' = R - coefficient x sum over sampled tokens of the estimate of KL(sampler || reference): RLOO, arXiv 2402.14740,
    equation 3, as a reward of the whole episode. It is the sampler's own log-probability that the estimate is made
    with, because that is the policy whose samples the sum runs over.
    """

    def fined(trajectory: Trajectory) -> Trajectory:
        if trajectory.rewards is None or trajectory.id not in references:
            return trajectory
        kl = episode_kl(trajectory, references[trajectory.id], penalty.estimator)
        rewards = replace(trajectory.rewards, total=trajectory.rewards.total - penalty.coefficient * kl)
        return replace(trajectory, rewards=rewards)

    return tuple(replace(group, trajectories=tuple(map(fined, group.trajectories))) for group in groups)


def episode_kl(trajectory: Trajectory, rows: Sequence[tuple[float, ...]], estimator: KlEstimator) -> float:
    """Estimate of KL(sampler || reference) in nats, summed over the sampled tokens of the episode."""
    return math.fsum(
        kl_estimate(sampler - reference, estimator)
        for sample, row in zip(trajectory_samples(trajectory, 0.0), rows, strict=True)
        for sampler, reference, masked in zip(sample.logprobs, row, sample.loss_mask, strict=True)
        if masked
    )


def kl_estimate(log_ratio: float, estimator: KlEstimator) -> float:
    """Of one token, from logp - reference logp; see `KlPenalty`."""
    if estimator == "k1":
        return log_ratio
    return math.exp(max(-_LARGEST_LOG_RATIO, min(_LARGEST_LOG_RATIO, -log_ratio))) - 1.0 + log_ratio
