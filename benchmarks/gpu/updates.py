"""Updates of the learner: how they are set up, timed, and their gradients read."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from benchmarks.gpu.device import begin_peak, device, on_cuda, peak_gib, peak_reserved_gib, release, seconds
from benchmarks.gpu.scales import ModelShape
from benchmarks.learner.models import LORA_ALPHA, LORA_RANK, LOSS, MAX_GRAD_NORM
from benchmarks.learner.shapes import OWN_TOKENS, Shape, episodes
from finqa_cli.algorithms.packing import pack
from finqa_cli.contracts import LearnerContext
from finqa_cli.types import Batch, Sample, UpdateReport
from finqa_plugins.learners.torch.config import TorchLearnerConfig
from finqa_plugins.learners.torch.torch_learner import TorchLearner

LEARNING_RATE = 8e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What updates took.

    Attributes:
        tokens: Of an update.
        seconds: Median over the timed updates.
        peak_gib: Tensors on the device at the peak; None on a CPU.
        reserved_gib: What the allocator held at the peak; None on a CPU.
        packs: The learner takes packed rows of this model, as it does of real ones.
        loss: Of the last update.
    """

    tokens: int
    seconds: float
    peak_gib: float | None
    reserved_gib: float | None
    packs: bool
    loss: float

    @property
    def tokens_per_second(self) -> float:
        """Forward, backward and step."""
        return self.tokens / self.seconds


def make_learner(folder: Path, *, rank: int = LORA_RANK, rate: float = LEARNING_RATE, **options: Any) -> TorchLearner:
    """A learner of the model in `folder`, started on the device, after what nothing refers to any more was released.

    Args:
        folder: Of the model.
        rank: Of the adapter on all linear layers; 0 trains all weights.
        rate: Learning rate.
        options: Of the learner.
    """
    release()
    context = LearnerContext(
        model=str(folder),
        learning_rate=rate,
        lora_rank=rank,
        lora_alpha=LORA_ALPHA,
        gradient_checkpointing=True,
        max_grad_norm=MAX_GRAD_NORM,
    )
    policy = TorchLearner(TorchLearnerConfig(device=str(device()), **options), context)
    policy.start()
    return policy


def one_sequence(shape: ModelShape, tokens: int, *, seed: int = 0) -> list[Sample]:
    """One sequence of so many tokens, all but the first of which carry loss."""
    rng = random.Random(seed)
    mask = (False, *(True,) * (tokens - 1))
    ids = tuple(rng.randrange(OWN_TOKENS, shape.vocabulary) for _ in range(tokens))
    return [
        Sample(
            token_ids=ids,
            loss_mask=mask,
            logprobs=(0.0,) * tokens,
            advantages=tuple(float(masked) for masked in mask),
        )
    ]


def several_episodes(shape: ModelShape, tokens: int, each: int) -> list[Sample]:
    """Episodes of `each` tokens that add up to `tokens`, in groups of 4; half of an episode is its group's prompt."""
    sizes = Shape(prompt=each // 2, sampled=each - each // 2, group=4, vocabulary=shape.vocabulary)
    return episodes(sizes, tokens // each)


def batch_of(samples: Sequence[Sample], budget: int, policy: TorchLearner) -> Batch:
    """Micro-batches of at most `budget` tokens."""
    return pack(samples, token_budget=budget, max_rows=len(samples), padded=not policy.packs())


def measure(policy: TorchLearner, samples: Sequence[Sample], *, budget: int, repeats: int) -> Measured:
    """Times updates after a first one, which makes the optimizer's state and warms kernels up."""
    batch = batch_of(samples, budget, policy)
    policy.update(batch, LOSS)
    begin_peak()
    reports: list[UpdateReport] = []
    times = [seconds(lambda: reports.append(policy.update(batch, LOSS))) for _ in range(repeats)]
    return Measured(
        tokens=sum(len(sample.token_ids) for sample in samples),
        seconds=statistics.median(times),
        peak_gib=peak_gib(),
        reserved_gib=peak_reserved_gib() if on_cuda() else None,
        packs=policy.packs(),
        loss=reports[-1].loss,
    )


def gradient_of(update: Callable[[], object]) -> torch.Tensor:
    """[P] float64 on the CPU: the gradient that the optimizer's step in `update` takes, all parameters in one row."""
    found: list[torch.Tensor] = []

    def read(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parts = (part.grad for group in optimizer.param_groups for part in group["params"])
        found.append(torch.cat([part.detach().double().flatten().cpu() for part in parts if part is not None]))

    handle = register_optimizer_step_pre_hook(read)
    try:
        update()
    finally:
        handle.remove()
    if len(found) != 1:
        raise RuntimeError(f"the update took {len(found)} steps of its optimizer, not one")
    return found[0]


def relative(left: torch.Tensor, right: torch.Tensor) -> float:
    """|left - right| / |right|."""
    left, right = left.detach(), right.detach()
    return float((left - right).norm() / right.norm())
