"""What the loss does about tokens that the sampler found more or less likely than the learner does. Pure.

The sampler differs from the learner's weights for two reasons: rollouts run ahead, so that older weights sampled, and
an engine rounds differently, so that even equal weights give other log-probabilities. Neither moves the anchor of the
ratio, which the learner computes itself; both are corrected by importance weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from finqa_cli.errors import ConfigError
from finqa_cli.types import RATIO_LOSSES, LossSpec, Sample

OffPolicy = Literal["auto", "none", "token", "sequence", "icepop", "geometric"]

_BOUNDS: dict[str, tuple[float | None, float]] = {
    "token": (None, 2.0),
    "sequence": (None, 2.0),
    "icepop": (0.5, 5.0),
    "geometric": (0.99, 1.01),
}
"""Floor and cap where none is set. token, sequence: verl's default; icepop: as published; geometric: SkyRL's."""


def correct_off_policy(
    loss: LossSpec, *, mode: OffPolicy, max_staleness: int, cap: float | None = None, floor: float | None = None
) -> LossSpec:
    """The optimizer's loss as the learner is to apply it.

    Args:
        loss: What the optimizer asks for.
        mode: `token`, `sequence`, `icepop` and `geometric` weigh it by importance ratios of the anchor to the sampler
            (see `LossSpec`); `none` does not. `auto` is `token`, and leaves a loss unchanged that has weights of its
            own. At staleness 0 as well: with one step per iteration the gradient is then that of a ratio to the
            sampler, as far as neither a clip nor the cap acts.
        max_staleness: How many iterations rollouts may run ahead of the learner.
        cap: Largest ratio that passes, at least 1; None for the mode's own.
        floor: Smallest ratio that passes, at most 1, of `icepop` and `geometric`; None for the mode's own.

    Raises:
        ConfigError: The loss does not know the sampler, so that it cannot be corrected, or corrects itself already.
    """
    if loss.name not in RATIO_LOSSES:
        if mode in ("auto", "none") and max_staleness == 0:
            return loss
        explicit = "" if mode == "auto" else " --set train.off_policy=auto"
        raise ConfigError(
            f"train.off_policy={mode} with max_staleness {max_staleness}: loss {loss.name!r} takes no account of who "
            "sampled its tokens, so those of older weights would be trained on uncorrected.",
            remedy="--max-staleness 0" + explicit,
        )
    if is_corrected(loss):
        if mode == "auto":
            return loss
        raise ConfigError(
            f"train.off_policy={mode}, but the optimizer's loss brings a correction of its own.",
            remedy="--set train.off_policy=auto",
        )
    if mode == "none":
        return loss
    chosen = "token" if mode == "auto" else mode
    lowest, highest = _BOUNDS[chosen]
    bounds = {f"{chosen}_cap": cap or highest}
    if lowest is not None:
        bounds[f"{chosen}_floor"] = floor or lowest
    return replace(loss, parameters={**loss.parameters, **bounds})


def is_corrected(loss: LossSpec) -> bool:
    """Whether the loss weighs tokens by importance ratios."""
    return any(loss.parameters.get(f"{mode}_cap", 0.0) > 0 for mode in _BOUNDS)


def needs_anchor(loss: LossSpec) -> bool:
    """Whether the loss has a ratio to the weights before the first step of an iteration, so that an iteration of
    several steps needs their log-probabilities.
    """
    return loss.name in RATIO_LOSSES


def with_proximal(samples: Sequence[Sample], logprobs: Sequence[tuple[float, ...]]) -> tuple[Sample, ...]:
    """The samples with what the learner's `logprobs` gave for them, in the same order.

    Raises:
        ValueError: There is not one row per sample.
    """
    return tuple(replace(sample, proximal_logprobs=row) for sample, row in zip(samples, logprobs, strict=True))
