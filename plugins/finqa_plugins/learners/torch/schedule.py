"""Learning rate by step."""

from __future__ import annotations

import math

from finqa_plugins.learners.torch.config import TorchLearnerConfig


def rate_factor(config: TorchLearnerConfig, step: int) -> float:
    """Share of the full learning rate that step number `step` (from 0) applies."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    progress = min(1.0, (step - config.warmup_steps) / (config.total_steps - config.warmup_steps))
    return 1.0 - progress if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
