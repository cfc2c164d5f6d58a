"""Advantages per token from a value function: generalized advantage estimation. Pure.

Time runs over the tokens that the policy sampled. What tools answered lies between two of them and is bridged: it is
no action, so it is neither counted nor discounted, and the next value is that of the state in which the policy goes
on, which has read the answer. A sequence that forks goes on in the next one of its episode in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from finqa_cli.algorithms.reference import kl_estimate
from finqa_cli.types import AdvantageEstimation, KlPenalty, Sample

_STD_FLOOR = 1e-8


def generalized_advantages(
    rewards: Sequence[float], values: Sequence[float], *, gamma: float, lam: float
) -> tuple[float, ...]:
    """[T] advantages of an episode that ends after its T steps.

    A_t = sum over l of (gamma lam)^l delta_(t+l), delta_t = r_t + gamma V_(t+1) - V_t, V_T = 0: Schulman et al.,
    "High-Dimensional Continuous Control Using Generalized Advantage Estimation", arXiv 1506.02438, equations 11 and 16.

    Args:
        rewards: [T] of each step.
        values: [T] of the state before each step.
        gamma: Discount per step.
        lam: 0 trusts the next value, 1 the rewards.

    Raises:
        ValueError: There is not one value per reward.
    """
    advantages = [0.0] * len(rewards)
    following, value_after = 0.0, 0.0
    for step, (reward, value) in reversed(list(enumerate(zip(rewards, values, strict=True)))):
        following = reward + gamma * value_after - value + gamma * lam * following
        advantages[step] = following
        value_after = value
    return tuple(advantages)


def with_values(samples: Sequence[Sample], values: Sequence[tuple[float, ...]]) -> tuple[Sample, ...]:
    """The samples with what the learner's `values` gave for them, in the same order.

    Raises:
        ValueError: There is not one row per sample.
    """
    return tuple(replace(sample, values=row) for sample, row in zip(samples, values, strict=True))


def estimated(
    samples: Sequence[Sample],
    rewards: Mapping[str, float],
    estimation: AdvantageEstimation,
    penalty: KlPenalty | None = None,
    weights: Mapping[str, float] | None = None,
) -> tuple[Sample, ...]:
    """The samples with advantages and returns for each sampled token, in the same order.

    The reward of an episode is that of its last sampled token. A penalty is taken from the reward of each token:
    r_t = -coefficient x estimate of KL(sampler || reference) at t (Ziegler et al., arXiv 1909.08593, section 2; per
    token in Stiennon et al., arXiv 2009.01325). Returns are A_t + V_t, of the advantages before whitening.

    Args:
        samples: With values, and with reference log-probabilities if there is a penalty. Those of one episode follow
            each other in the order in which it was played.
        rewards: By episode.
        estimation: How.
        penalty: What is taken from the rewards; None for nothing.
        weights: By episode: a factor on its advantages, after whitening; see `attempt_weight`. Returns are not
            weighted, for the value function is to know every attempt. None: all weigh 1.

    Raises:
        ValueError: A sample lacks values or reference log-probabilities.
        KeyError: There is no reward, or no weight, for an episode.
    """
    episodes: dict[str, list[int]] = {}
    for place, sample in enumerate(samples):
        episodes.setdefault(sample.episode, []).append(place)
    result = list(samples)
    for episode, places in episodes.items():
        own = [samples[place] for place in places]
        credited = _episode(own, rewards[episode], estimation, penalty)
        for place, sample in zip(places, credited, strict=True):
            result[place] = sample
    final = whitened(result) if estimation.whiten else tuple(result)
    return final if weights is None else tuple(_weighted(sample, weights[sample.episode]) for sample in final)


def whitened(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """(A - mean) / (population std + 1e-8), both over all tokens with loss of all samples; 0.0 elsewhere."""
    advantages = [advantage for sample in samples for advantage in _masked(sample, sample.advantages)]
    if not advantages:
        return tuple(samples)
    mean = math.fsum(advantages) / len(advantages)
    std = math.sqrt(math.fsum((advantage - mean) ** 2 for advantage in advantages) / len(advantages)) + _STD_FLOOR
    return tuple(
        replace(
            sample, advantages=_placed(sample, ((each - mean) / std for each in _masked(sample, sample.advantages)))
        )
        for sample in samples
    )


def explained_variance(samples: Sequence[Sample]) -> float:
    """1 - Var(returns - values) / Var(returns) over the tokens with loss: 1 perfect, 0 no better than a constant.

    0.0 where all returns are equal.
    """
    returns = [each for sample in samples for each in _masked(sample, sample.returns)]
    values = [each for sample in samples for each in _masked(sample, sample.values)]
    variance = _variance(returns)
    if variance <= _STD_FLOOR:
        return 0.0
    return 1.0 - _variance([one - other for one, other in zip(returns, values, strict=True)]) / variance


def value_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """How well the values foretold the returns of a batch, and the means of both; {} for an empty one."""
    returns = [each for sample in samples for each in _masked(sample, sample.returns)]
    values = [each for sample in samples for each in _masked(sample, sample.values)]
    if not returns:
        return {}
    return {
        "explained_variance": explained_variance(samples),
        "return_mean": math.fsum(returns) / len(returns),
        "value_mean": math.fsum(values) / len(values),
    }


def _episode(
    samples: Sequence[Sample], reward: float, estimation: AdvantageEstimation, penalty: KlPenalty | None
) -> list[Sample]:
    values = [value for sample in samples for value in _masked(sample, sample.values)]
    rewards = [0.0] * len(values)
    if penalty is not None:
        rewards = [-penalty.coefficient * each for sample in samples for each in _divergences(sample, penalty)]
    rewards[-1] += reward
    advantages = generalized_advantages(rewards, values, gamma=estimation.gamma, lam=estimation.lam)
    returns = iter([advantage + value for advantage, value in zip(advantages, values, strict=True)])
    left = iter(advantages)
    return [replace(each, advantages=_placed(each, left), returns=_placed(each, returns)) for each in samples]


def _weighted(sample: Sample, weight: float) -> Sample:
    return replace(sample, advantages=tuple(weight * advantage for advantage in sample.advantages))


def _divergences(sample: Sample, penalty: KlPenalty) -> list[float]:
    pairs = zip(_masked(sample, sample.logprobs), _masked(sample, sample.reference_logprobs), strict=True)
    return [kl_estimate(sampler - reference, penalty.estimator) for sampler, reference in pairs]


def _masked(sample: Sample, row: Sequence[float]) -> list[float]:
    return [number for number, masked in zip(row, sample.loss_mask, strict=True) if masked]


def _placed(sample: Sample, numbers: Iterable[float]) -> tuple[float, ...]:
    """[L] the next of the numbers at each token with loss, 0.0 elsewhere."""
    left = iter(numbers)
    return tuple(next(left) if masked else 0.0 for masked in sample.loss_mask)


def _variance(numbers: Sequence[float]) -> float:
    if not numbers:
        return 0.0
    mean = math.fsum(numbers) / len(numbers)
    return math.fsum((number - mean) ** 2 for number in numbers) / len(numbers)
