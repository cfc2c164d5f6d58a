"""Penalties that are subtracted from rewards before credit: KL divergence from the reference policy, length. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from finqa_cli.algorithms.samples import trajectory_samples
from finqa_cli.types import Credit, FloatRow, Group, KlEstimator, KlPenalty, RowLike, Sample, Status, Trajectory

References = Mapping[str, Sequence[FloatRow]]
"""Trajectory id -> [L] log-probabilities under the reference policy for each of the trajectory's samples."""

_LARGEST_LOG_RATIO = 20.0
_LIMITS = (Status.MAX_TURNS, Status.MAX_TOKENS, Status.TIMEOUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthLimit:
    """Where the penalty for length begins and ends, in tokens of one completion.

    Attributes:
        longest: Length from which on the penalty is 1.
        buffer: Tokens before `longest` over which the penalty rises from 0 to 1.
    """

    longest: int
    buffer: int


def scored_samples(groups: Sequence[Group], credits: Sequence[Credit]) -> dict[str, tuple[Sample, ...]]:
    """Samples of all members with an advantage, in groups that are used for training, by trajectory id.

    The advantages of the samples are 0.

    Raises:
        DataError: See `trajectory_samples`.
    """
    return {
        trajectory.id: trajectory_samples(trajectory, 0.0)
        for group, credit in zip(groups, credits, strict=True)
        if not credit.dropped
        for trajectory, advantage in zip(group.trajectories, credit.advantages, strict=True)
        if advantage is not None
    }


def rows_by_trajectory(samples: Mapping[str, Sequence[Sample]], rows: Sequence[FloatRow]) -> References:
    """The rows [L] that a learner's `reference_logprobs` returned for all samples in order, by trajectory id."""
    found = iter(rows)
    return {name: tuple(next(found) for _ in each) for name, each in samples.items()}


def penalize_kl(groups: Sequence[Group], references: References, penalty: KlPenalty) -> tuple[Group, ...]:
    """The groups with the penalty subtracted from the reward of each graded trajectory that is in `references`.

    R' = R - coefficient x sum over sampled tokens of the estimate of KL(sampler || reference): RLOO, arXiv 2402.14740,
    equation 3, as a reward of the whole episode. The estimate uses the sampler's own log-probabilities, because the
    sum runs over samples of that policy.
    """

    def penalty_of(trajectory: Trajectory) -> float:
        if trajectory.id not in references:
            return 0.0
        return penalty.coefficient * episode_kl(trajectory, references[trajectory.id], penalty.estimator)

    return _subtract_from_rewards(groups, penalty_of)


def episode_kl(trajectory: Trajectory, rows: Sequence[RowLike], estimator: KlEstimator) -> float:
    """Estimate of KL(sampler || reference) in nats, summed over the sampled tokens of the episode."""
    total = 0.0
    for sample, row in zip(trajectory_samples(trajectory, 0.0), rows, strict=True):
        gap = sample.logprobs.astype(np.float64) - np.asarray(row, dtype=np.float64)
        total += float(estimate_kl(gap[sample.loss_mask], estimator).sum())
    return total


def estimate_kl(log_ratio: npt.NDArray[np.float64], estimator: KlEstimator) -> npt.NDArray[np.float64]:
    """[T] estimate for each token, from logp - reference logp; see `KlPenalty`."""
    if estimator == "k1":
        return log_ratio
    found: npt.NDArray[np.float64] = (
        np.exp(np.clip(-log_ratio, -_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)) - 1 + log_ratio
    )
    return found


def is_truncated(trajectory: Trajectory) -> bool:
    """Whether a limit ended the episode: of turns, context or time, or of tokens in its last completion."""
    cut = bool(trajectory.turns) and trajectory.turns[-1].stop == "length"
    return not trajectory.status.is_fault and (trajectory.status in _LIMITS or cut)


def mask_truncated(groups: Sequence[Group], credits: Sequence[Credit]) -> tuple[Credit, ...]:
    """The credits with the advantage None for members that a limit ended, so that no loss contains or counts them.

    The other members are still compared with their rewards: only the loss is masked. This is overlong filtering: DAPO,
    arXiv 2503.14476, section 3.4; `mask_truncated_completions` of TRL.
    """
    return tuple(
        replace(
            credit,
            advantages=tuple(
                None if is_truncated(member) else advantage
                for member, advantage in zip(group.trajectories, credit.advantages, strict=True)
            ),
        )
        for group, credit in zip(groups, credits, strict=True)
    )


def count_truncated(groups: Sequence[Group], credits: Sequence[Credit]) -> int:
    """Count the members that a limit ended, among those with an advantage in groups that are used for training."""
    return sum(
        is_truncated(member) and advantage is not None
        for group, credit in zip(groups, credits, strict=True)
        if not credit.dropped
        for member, advantage in zip(group.trajectories, credit.advantages, strict=True)
    )


def length_penalty(trajectory: Trajectory, limit: LengthLimit) -> float:
    """From 0 to 1: how far the episode's longest completion is into the buffer; 1 if a limit ended the episode.

    Soft overlong punishment of DAPO, arXiv 2503.14476, equation 13, with the opposite sign. The length of the response
    there is the length of one completion here.
    """
    if is_truncated(trajectory):
        return 1.0
    tokens = max((len(turn.completion_ids) for turn in trajectory.turns), default=0)
    return min(1.0, max(0.0, (tokens - (limit.longest - limit.buffer)) / limit.buffer))


def penalize_length(groups: Sequence[Group], limit: LengthLimit) -> tuple[Group, ...]:
    """The groups with the length penalty subtracted from the reward of each graded member."""
    return _subtract_from_rewards(groups, lambda trajectory: length_penalty(trajectory, limit))


def _subtract_from_rewards(groups: Sequence[Group], penalty_of: Callable[[Trajectory], float]) -> tuple[Group, ...]:
    def penalize(trajectory: Trajectory) -> Trajectory:
        if trajectory.rewards is None:
            return trajectory
        total = trajectory.rewards.total - penalty_of(trajectory)
        return replace(trajectory, rewards=replace(trajectory.rewards, total=total))

    return tuple(replace(group, trajectories=tuple(map(penalize, group.trajectories))) for group in groups)
