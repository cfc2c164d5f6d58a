"""How much each sample weighs in a batch. Pure.

The learner sums the weighted losses of all tokens and divides by one number, the tokens of the batch. Whatever a loss
is to be a mean over is said by the weights, so the gradient does not depend on how the batch is cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from finqa_cli.errors import ConfigError
from finqa_cli.types import LossSpec, Normalization, Sample


def counts_neutral(loss: LossSpec) -> bool:
    """Whether members whose advantage is 0 belong to the batch: they are counted, or the loss moves them as well."""
    return loss.normalization != "trained" or is_regularized(loss)


def is_regularized(loss: LossSpec) -> bool:
    """Whether the loss has a term without the advantage: a KL divergence, an entropy or a value loss."""
    terms = ("entropy_coef", "value_coef")
    return needs_reference(loss) or any(loss.parameters.get(name, 0.0) != 0 for name in terms)


def needs_reference(loss: LossSpec) -> bool:
    """Whether the loss has a term in the log-probabilities of the reference policy."""
    return any(loss.parameters.get(name, 0.0) != 0 for name in ("kl_k1", "kl_k3"))


def check_normalization(loss: LossSpec) -> None:
    """Refuses what `normalized` cannot do.

    Raises:
        ConfigError: The normalization is unknown, or its length is missing or stands where none belongs.
    """
    if loss.normalization not in get_args(Normalization):
        known = ", ".join(get_args(Normalization))
        raise ConfigError(f"There is no loss normalization {loss.normalization!r}; there are {known}.")
    constant, length = loss.normalization == "constant", loss.normalization_length
    if (constant and not length > 0) or (not constant and length != 0):
        raise ConfigError(
            f"Loss normalization {loss.normalization!r} "
            + (f"needs a length above 0, not {length}." if constant else f"has no length, but {length} is given.")
        )


def normalized(samples: Sequence[Sample], loss: LossSpec) -> tuple[Sample, ...]:
    """The samples of one step with their weights, less those that would only cost a forward and backward pass.

    With N episodes, |o| tokens with loss in an episode, S in all of them and K in the samples that are returned, the
    weight is 1 (`trained`), K / S (`token`), K / (N |o|) (`sequence`) or K / (N length) (`constant`); after the
    learner's division by K these are the means that `LossSpec` names. What a sample weighs does not depend on their
    order. An episode that forks into several samples counts once.

    Sources: `token` DAPO, arXiv 2503.14476, equation 8; `sequence` DeepSeekMath, arXiv 2402.03300, equation 3;
    `constant` Dr. GRPO, arXiv 2503.20783, section 3.2 and its published code.

    Raises:
        ConfigError: See `check_normalization`.
    """
    check_normalization(loss)
    episodes = [sample.episode or place for place, sample in enumerate(samples)]
    kept = [
        (sample, episode)
        for sample, episode in zip(samples, episodes, strict=True)
        if is_regularized(loss) or any(sample.advantages)
    ]
    if loss.normalization == "trained":
        return tuple(sample for sample, _ in kept)
    lengths: Counter[str | int] = Counter()
    for sample, episode in zip(samples, episodes, strict=True):
        lengths[episode] += sample.loss_tokens
    tokens = sum(sample.loss_tokens for sample, _ in kept)

    def weight(episode: str | int) -> float:
        if loss.normalization == "token":
            return tokens / lengths.total()
        length = loss.normalization_length if loss.normalization == "constant" else lengths[episode]
        return tokens / (len(lengths) * length)

    return tuple(replace(sample, weight=weight(episode)) for sample, episode in kept)
