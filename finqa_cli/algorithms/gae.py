"""Advantages per token from a value function: generalized advantage estimation. Pure.

A time step is a token that the policy sampled. A tool reply between two sampled tokens is not an action, so its tokens
are neither counted nor discounted. The next value is that of the state in which the policy continues, after the reply.
An episode that forks has several sequences: the first step of a sequence follows the last step of the one before.

Everything is computed in float64 and rounded to float32 once, in the samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from finqa_cli.algorithms.penalties import estimate_kl
from finqa_cli.algorithms.samples import masked
from finqa_cli.types import AdvantageEstimation, FloatRow, KlPenalty, Sample

Floats = npt.NDArray[np.float64]

_STD_FLOOR = 1e-8


def generalized_advantages(rewards: Sequence[Floats], values: Sequence[Floats], *, gamma: float, lam: float) -> Floats:
    """Advantages of all steps of all episodes, one episode after the other. An episode ends after its own T steps.

    A_t = sum over l of (gamma lam)^l delta_(t+l), delta_t = r_t + gamma V_(t+1) - V_t, V_T = 0: Schulman et al.,
    "High-Dimensional Continuous Control Using Generalized Advantage Estimation", arXiv 1506.02438, equations 11 and 16.

    Args:
        rewards: [T] reward of each step, for each episode.
        values: [T] value of the state before each step, for each episode.
        gamma: Discount per step.
        lam: Lambda, 0 to 1. 0 bootstraps from the next value; 1 uses the discounted sum of the rewards.

    Returns:
        [sum of T] advantages.

    Raises:
        ValueError: There is not one value per reward.
    """
    lengths = np.array([len(row) for row in rewards], dtype=np.int64)
    if list(map(len, values)) != lengths.tolist():
        raise ValueError("there is not one value per reward")
    longest = int(lengths.max(initial=0))
    # one row for each episode, all of which end in the last column
    used = np.arange(longest) >= longest - lengths[:, None]
    errors, following = np.zeros(used.shape, order="F"), np.zeros((len(lengths), longest + 1), order="F")
    if longest:
        errors[used] = np.concatenate(rewards)
        following[:, :-1][used] = np.concatenate(values)
    errors += gamma * following[:, 1:] - following[:, :-1]
    for step in range(longest - 2, -1, -1):
        errors[:, step] += gamma * lam * errors[:, step + 1]
    found: Floats = errors[used]
    return found


def estimate_advantages(
    samples: Sequence[Sample],
    rewards: Mapping[str, float],
    estimation: AdvantageEstimation,
    penalty: KlPenalty | None = None,
    weights: Mapping[str, float] | None = None,
) -> tuple[Sample, ...]:
    """The samples with advantages and returns for each sampled token, in the same order.

    The reward of an episode is given to its last sampled token. A penalty is subtracted from the reward of each token:
    r_t = -coefficient x estimate of KL(sampler || reference) at t (Ziegler et al., arXiv 1909.08593, section 2; per
    token in Stiennon et al., arXiv 2009.01325). Returns are A_t + V_t, with the advantages before whitening.

    Args:
        samples: Samples with values, and with reference log-probabilities if there is a penalty. The samples of one
            episode are in the order in which they were played.
        rewards: Reward by episode.
        estimation: Discounts, and whether advantages are whitened.
        penalty: What is subtracted from the rewards; None: nothing.
        weights: Factor on the advantages by episode, applied after whitening; see `attempt_weight`. Returns are not
            weighted, because the value function learns from every attempt. None: every weight is 1.

    Raises:
        ValueError: A sample lacks values or reference log-probabilities.
        KeyError: There is no reward, or no weight, for an episode.
    """
    places: dict[str, list[int]] = {}
    for place, sample in enumerate(samples):
        places.setdefault(sample.episode, []).append(place)
    ordered = [samples[place] for own in places.values() for place in own]
    values = [np.concatenate([masked(samples[place], "values") for place in own]) for own in places.values()]
    step_rewards = []
    for episode, own in places.items():
        if penalty is None:
            steps = np.zeros(sum(samples[place].loss_tokens for place in own))
        else:
            steps = np.concatenate([-penalty.coefficient * _divergences(samples[place], penalty) for place in own])
        steps[-1] += rewards[episode]
        step_rewards.append(steps)
    advantages = generalized_advantages(step_rewards, values, gamma=estimation.gamma, lam=estimation.lam)
    returns = advantages + np.concatenate(values) if values else advantages
    if estimation.whiten:
        advantages = whiten(advantages)
    if weights is not None and ordered:
        advantages = advantages * np.repeat(
            [weights[sample.episode] for sample in ordered], [sample.loss_tokens for sample in ordered]
        )
    found: list[Sample] = []
    start = 0
    for sample in ordered:
        tokens = slice(start, start := start + sample.loss_tokens)
        found.append(
            replace(sample, advantages=_placed(sample, advantages[tokens]), returns=_placed(sample, returns[tokens]))
        )
    result = dict(zip((place for own in places.values() for place in own), found, strict=True))
    return tuple(result[place] for place in range(len(samples)))


def whiten(advantages: Floats) -> Floats:
    """[T] advantages with mean 0 and deviation 1: (A - mean) / (population std + 1e-8)."""
    if not len(advantages):
        return advantages
    whitened: Floats = (advantages - advantages.mean()) / (advantages.std() + _STD_FLOOR)
    return whitened


def explained_variance(returns: Floats, values: Floats) -> float:
    """1 - Var(returns - values) / Var(returns): 1 is perfect, 0 no better than a constant. 0 if all returns are equal.

    Args:
        returns: [T] targets.
        values: [T] predictions.
    """
    variance = float(returns.var())
    return 0.0 if variance <= _STD_FLOOR else 1.0 - float((returns - values).var()) / variance


def value_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """How well the values predicted the returns over a batch's tokens with loss, and both means; {} without samples."""
    if not samples:
        return {}
    returns, values = (np.concatenate([masked(one, name) for one in samples]) for name in ("returns", "values"))
    return {
        "explained_variance": explained_variance(returns, values),
        "return_mean": float(returns.mean()),
        "value_mean": float(values.mean()),
    }


def _divergences(sample: Sample, penalty: KlPenalty) -> Floats:
    return estimate_kl(masked(sample, "logprobs") - masked(sample, "reference_logprobs"), penalty.estimator)


def _placed(sample: Sample, numbers: Floats) -> FloatRow:
    """Return a row [L] with the numbers at the tokens with loss, and 0.0 elsewhere."""
    row = np.zeros(len(sample.token_ids), dtype=np.float32)
    row[sample.loss_mask] = numbers
    return row
