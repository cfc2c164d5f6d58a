"""What the loss does about tokens that older weights sampled. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from finqa_cli.errors import ConfigError
from finqa_cli.types import LossSpec, Sample

OffPolicy = Literal["auto", "clip", "token", "sequence"]

_CAPS = {"token": "token_cap", "sequence": "sequence_cap"}
_CORRECTABLE = ("policy_gradient", "gspo", "cispo")


def corrected(loss: LossSpec, *, mode: OffPolicy, cap: float, max_staleness: int) -> LossSpec:
    """The optimizer's loss as the learner is to apply it.

    Args:
        loss: What the optimizer asks for.
        mode: `clip` leaves it as it is: PPO's ratio is to the sampler then. `token` and `sequence` decouple it and
            weigh it by importance ratios (see `LossSpec`). `auto` is `clip` where nothing is stale, else `token`; it
            leaves a loss alone that is decoupled already.
        cap: Largest importance ratio that passes, at least 1.
        max_staleness: How many iterations rollouts may run ahead of the learner.

    Raises:
        ConfigError: The loss does not know the sampler, so that it cannot be corrected, or corrects itself already.
    """
    if mode == "auto" and (max_staleness == 0 or is_decoupled(loss)):
        return loss
    if loss.name not in _CORRECTABLE:
        explicit = "" if mode == "auto" else " --set train.off_policy=auto"
        raise ConfigError(
            f"train.off_policy={mode} with max_staleness {max_staleness}: loss {loss.name!r} takes no account of who "
            "sampled its tokens, so those of older weights would be trained on uncorrected.",
            remedy="--max-staleness 0" + explicit,
        )
    if is_decoupled(loss):
        raise ConfigError(
            f"train.off_policy={mode}, but the optimizer's loss brings a correction of its own.",
            remedy="--set train.off_policy=auto",
        )
    if mode == "clip":
        return loss
    return replace(loss, parameters={**loss.parameters, _CAPS["token" if mode == "auto" else mode]: cap})


def is_decoupled(loss: LossSpec) -> bool:
    """Whether it tells the proximal weights from those that sampled, so that several steps need the former's
    log-probabilities from before the first.
    """
    return any(loss.parameters.get(name, 0.0) > 0 for name in _CAPS.values())


def with_proximal(samples: Sequence[Sample], logprobs: Sequence[tuple[float, ...]]) -> tuple[Sample, ...]:
    """The samples with what the learner's `logprobs` gave for them, in the same order.

    Raises:
        ValueError: There is not one row per sample.
    """
    return tuple(replace(sample, proximal_logprobs=row) for sample, row in zip(samples, logprobs, strict=True))
