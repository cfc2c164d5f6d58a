"""Default learning rates, by what is trained."""

from __future__ import annotations

TRAIN_RATES = (8e-5, 4e-6)
"""Learning rates of `finqa train` for an adapter and for all weights, if neither the user nor the method names one."""

SFT_RATES = (2e-4, 1e-5)
"""Learning rates of `finqa sft` for an adapter and for all weights. At the rates of all weights, an adapter, whose
second factor begins at 0, hardly moves in the few hundred steps of a fine-tuning."""

TRAIN_SHOWN = "by what is trained: 8e-5 adapter, 4e-6 all weights; on pairs 2e-4, 1e-5"
SFT_SHOWN = "by what is trained: 2e-4 adapter, 1e-5 all weights"
"""The defaults as the help shows them."""


def rate_for(lora_rank: int, rates: tuple[float, float]) -> float:
    """Return the learning rate for what is trained: the first of `rates` for an adapter, the second for all weights."""
    return rates[0] if lora_rank else rates[1]
