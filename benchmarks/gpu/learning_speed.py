"""Part `learner`: tokens a second and peak memory of updates with LoRA of rank 16 on all linear layers.

Published beside it: prime-rl's trainer on one H100, Qwen3-4B, RL with LoRA of rank 16, one sequence of 16k tokens:
6.23k tokens/s and 23.3 GiB (github.com/PrimeIntellect-ai/prime-rl, benchmarks/results/BENCHMARKS.md).
"""

from __future__ import annotations

import math
from pathlib import Path

from benchmarks.figures import Figure, at_least, at_most, exactly, note
from benchmarks.gpu.device import on_cuda
from benchmarks.gpu.models import random_model
from benchmarks.gpu.plan import plan_figure
from benchmarks.gpu.scales import QWEN3_4B, ModelShape, Scale
from benchmarks.gpu.updates import Measured, make_learner, measure, one_sequence, several_episodes
from benchmarks.learner.models import LORA_RANK

PUBLISHED_TOKENS_PER_SECOND = 6230
PUBLISHED_GIB = 23.3


def learning_speed(scale: Scale, scratch: Path) -> list[Figure]:
    """Of every model: one sequence as published, then episodes as they are used for training."""
    figures: list[Figure] = []
    for shape in scale.models:
        figures += _of_model(shape, scale, scratch)
    return figures


def _of_model(shape: ModelShape, scale: Scale, scratch: Path) -> list[Figure]:
    with random_model(shape, scratch) as folder:
        policy = make_learner(folder)
        alone = measure(policy, one_sequence(shape, scale.tokens), budget=scale.tokens, repeats=scale.repeats)
        several = several_episodes(shape, scale.tokens, scale.episode)
        together = measure(policy, several, budget=scale.tokens, repeats=scale.repeats)
        predicted = plan_figure(shape, folder, rank=LORA_RANK, tokens=scale.tokens, measured_gib=alone.peak_gib)
    judged = shape == QWEN3_4B and on_cuda()
    finite = math.isfinite(alone.loss) and math.isfinite(together.loss)
    name, size = shape.name, f"{scale.tokens} tokens"
    return [
        exactly(f"{name}: rows without padding", alone.packs, 1),
        exactly(f"{name}: losses are finite", finite, 1),
        _speed(f"{name}: tokens a second, one sequence of {size}", alone, judged=judged),
        note(
            f"{name}: tokens a second, {len(several)} episodes, {size}",
            together.tokens_per_second,
            f"{together.seconds:.3g} s an update; prompts of groups are computed once",
        ),
        *_memory(f"{name}: peak GiB, one sequence of {size}", alone, judged=judged),
        *_memory(f"{name}: peak GiB, {len(several)} episodes, {size}", together, judged=False),
        predicted,
    ]


def _speed(name: str, found: Measured, *, judged: bool) -> Figure:
    detail = f"{found.seconds:.3g} s an update"
    if not judged:
        return note(name, found.tokens_per_second, detail)
    detail += "; published on one H100: 6.23k"
    return at_least(name, found.tokens_per_second, PUBLISHED_TOKENS_PER_SECOND, detail, timed=True)


def _memory(name: str, found: Measured, *, judged: bool) -> list[Figure]:
    if found.peak_gib is None:
        return []
    detail = f"tensors; the allocator held {found.reserved_gib:.1f} GiB"
    if not judged:
        return [note(name, found.peak_gib, detail)]
    return [at_most(name, found.peak_gib, PUBLISHED_GIB, f"{detail}; published: 23.3 GiB")]
