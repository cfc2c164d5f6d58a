"""Which function computes which loss."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from finqa_cli.algorithms.losses import CrossEntropyLoss, PolicyGradientLoss
from finqa_cli.algorithms.pair_batches import PreferenceLoss
from finqa_cli.errors import ConfigError
from finqa_cli.types import Loss, Sample
from finqa_plugins.learners.torch.forward import Inputs
from finqa_plugins.learners.torch.policy_loss import policy_gradient
from finqa_plugins.learners.torch.preference_loss import preference
from finqa_plugins.learners.torch.step_metrics import TokenLoss

LossFunction = Callable[[Any, torch.Tensor, torch.Tensor, Inputs], TokenLoss]
"""From the loss, log-probabilities and entropies, both [N], under the current weights, and what the micro-batch carries
to the sum of the token losses, each times its weight in `Inputs.weights`."""


def cross_entropy(loss: CrossEntropyLoss, logprobs: torch.Tensor, entropy: torch.Tensor, inputs: Inputs) -> TokenLoss:
    """-log p."""
    return TokenLoss(loss=-(inputs.weights * logprobs).sum())


FUNCTIONS: Mapping[type[Loss], LossFunction] = MappingProxyType(
    {CrossEntropyLoss: cross_entropy, PolicyGradientLoss: policy_gradient, PreferenceLoss: preference}
)


def find_function(loss: Loss) -> LossFunction:
    """The function of a loss: the one that its class names for `torch`, else the learner's own.

    Raises:
        ConfigError: There is none, or the class names one that cannot be imported.
    """
    kind = type(loss)
    if loss.needs_values and not isinstance(loss, PolicyGradientLoss):
        raise ConfigError(f"{kind.__name__} needs values, whose loss learner 'torch' has for PolicyGradientLoss only.")
    if target := kind.functions.get("torch"):
        module, _, name = target.partition(":")
        try:
            found: LossFunction = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"{kind.__name__} names {target!r} as its function, which fails: {error}.") from error
        return found
    if kind not in FUNCTIONS:
        known = ", ".join(one.__name__ for one in FUNCTIONS)
        raise ConfigError(
            f"Learner 'torch' has no function for {kind.__name__}; it has those for {known}, and takes the one that "
            "the class names as functions['torch']."
        )
    return FUNCTIONS[kind]


def check_samples(loss: Loss, samples: Sequence[Sample]) -> None:
    """Further rows belong to every sample, or to none, and are as long as the sample.

    Raises:
        ValueError: They are missing from some samples, too short, or missing from all and the loss needs them.
    """
    if loss.needs_values:
        for sample in samples:
            for kind, row in (("values", sample.values), ("returns", sample.returns)):
                if row is None or len(row) != len(sample.token_ids):
                    found = 0 if row is None else len(row)
                    raise ValueError(f"the loss has a value term, but a sample has {found} {kind} for its tokens")
    for kind in ("proximal", "reference"):
        rows = [getattr(sample, f"{kind}_logprobs") for sample in samples]
        carrying = sum(row is not None for row in rows)
        if 0 < carrying < len(samples):
            raise ValueError(f"only {carrying} of {len(samples)} samples carry {kind} log-probabilities")
        for sample, row in zip(samples, rows, strict=True):
            if row is not None and len(row) != len(sample.token_ids):
                raise ValueError(f"a sample has {len(row)} {kind} log-probabilities for {len(sample.token_ids)} tokens")
    if loss.needs_reference and not all(sample.reference_logprobs is not None for sample in samples):
        raise ValueError(
            "the loss compares with the reference policy, but the samples carry no reference log-probabilities"
        )
