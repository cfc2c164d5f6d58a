"""The loss of a micro-batch with its sums, and the metrics of a step, accumulated over micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Sums over the N tokens of a micro-batch.

    Attributes:
        loss: Scalar with gradient, weighted.
        sums: Scalars without gradient by name; divided by the batch's tokens with loss they are metrics.
        maxima: Scalars without gradient by name; their maximum over the micro-batches is a metric.
        sequence_sums: Scalars without gradient by name; divided by the batch's sequences with loss they are metrics.
    """

    loss: torch.Tensor
    sums: dict[str, torch.Tensor] = field(default_factory=dict)
    maxima: dict[str, torch.Tensor] = field(default_factory=dict)
    sequence_sums: dict[str, torch.Tensor] = field(default_factory=dict)

    def plus(self, loss: torch.Tensor, sums: dict[str, torch.Tensor]) -> TokenLoss:
        """The loss plus another term, with its sums."""
        return replace(self, loss=self.loss + loss, sums=self.sums | sums)


@dataclass(slots=True)
class StepMetrics:
    """Accumulates scalar tensors over the micro-batches of a step; without waiting for the device.

    Attributes:
        sums: Sums over tokens.
        sequence_sums: Sums over sequences with loss.
        maxima: Maxima over micro-batches.
        sequences: Number of sequences with loss.
    """

    sums: dict[str, torch.Tensor] = field(default_factory=dict)
    sequence_sums: dict[str, torch.Tensor] = field(default_factory=dict)
    maxima: dict[str, torch.Tensor] = field(default_factory=dict)
    sequences: int = 0

    def add(self, part: TokenLoss, entropy: torch.Tensor, sequences: int) -> None:
        """Adds a micro-batch."""
        sums = {**part.sums, "loss": part.loss.detach(), "entropy": entropy.detach().sum()}
        self.merge(StepMetrics(sums, part.sequence_sums, part.maxima, sequences))

    def merge(self, other: StepMetrics) -> None:
        """Adds the contents of another accumulator."""
        for own, theirs in ((self.sums, other.sums), (self.sequence_sums, other.sequence_sums)):
            for name, value in theirs.items():
                own[name] = own[name] + value if name in own else value
        for name, value in other.maxima.items():
            self.maxima[name] = torch.maximum(self.maxima[name], value) if name in self.maxima else value
        self.sequences += other.sequences

    def portable(self) -> StepMetrics:
        """The same in float64 on the CPU, for other processes."""
        sums, sequence_sums, maxima = (
            {name: value.to("cpu", torch.float64) for name, value in tensors.items()}
            for tensors in (self.sums, self.sequence_sums, self.maxima)
        )
        return StepMetrics(sums, sequence_sums, maxima, self.sequences)

    def metrics(self, loss_tokens: int) -> dict[str, float]:
        """Means over tokens or sequences, and maxima."""
        found = {name: float(value) / loss_tokens for name, value in self.sums.items()}
        found |= {name: float(value) / self.sequences for name, value in self.sequence_sums.items()}
        return found | {name: float(value) for name, value in self.maxima.items()}


def merge_metrics(parts: Sequence[StepMetrics]) -> StepMetrics:
    """The metrics of several processes together, from portable ones."""
    whole = StepMetrics()
    for part in parts:
        whole.merge(part)
    return whole
