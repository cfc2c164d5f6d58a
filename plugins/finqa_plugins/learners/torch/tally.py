"""What is counted over the micro-batches of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from finqa_plugins.learners.torch.losses import TokenLoss


@dataclass(slots=True)
class Tally:
    """Scalar tensors by name.

    Attributes:
        sums: Over tokens.
        sequence_sums: Over sequences with loss.
        maxima: Over micro-batches.
        sequences: How many sequences had loss.
    """

    sums: dict[str, torch.Tensor] = field(default_factory=dict)
    sequence_sums: dict[str, torch.Tensor] = field(default_factory=dict)
    maxima: dict[str, torch.Tensor] = field(default_factory=dict)
    sequences: int = 0

    def add(self, part: TokenLoss, entropy: torch.Tensor, sequences: int) -> None:
        """Another micro-batch; nothing waits for the device."""
        sums = {**part.sums, "loss": part.loss.detach(), "entropy": entropy.detach().sum()}
        self.join(Tally(sums, part.sequence_sums, part.maxima, sequences))

    def join(self, other: Tally) -> None:
        """Another tally."""
        for own, theirs in ((self.sums, other.sums), (self.sequence_sums, other.sequence_sums)):
            for name, value in theirs.items():
                own[name] = own[name] + value if name in own else value
        for name, value in other.maxima.items():
            self.maxima[name] = torch.maximum(self.maxima[name], value) if name in self.maxima else value
        self.sequences += other.sequences

    def portable(self) -> Tally:
        """The same in float64 on the CPU, for other processes."""
        return Tally(_portable(self.sums), _portable(self.sequence_sums), _portable(self.maxima), self.sequences)

    def metrics(self, loss_tokens: int) -> dict[str, float]:
        """Means over tokens or sequences, and maxima."""
        found = {name: float(value) / loss_tokens for name, value in self.sums.items()}
        found |= {name: float(value) / self.sequences for name, value in self.sequence_sums.items()}
        return found | {name: float(value) for name, value in self.maxima.items()}


def joined(tallies: Sequence[Tally]) -> Tally:
    """Of several processes, from portable tallies."""
    whole = Tally()
    for tally in tallies:
        whole.join(tally)
    return whole


def _portable(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.to("cpu", torch.float64) for name, value in tensors.items()}
