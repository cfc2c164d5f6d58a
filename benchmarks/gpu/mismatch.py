"""Part `mismatch`: how far the learner's log-probabilities are from those that the engine sampled with.

Both compute in bfloat16 and see the same tokens; the engine decodes them one at a time, the learner scores packed rows.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.figures import Figure, at_most, note
from benchmarks.gpu.device import device
from benchmarks.gpu.models import random_model
from benchmarks.gpu.scales import ModelShape, Scale
from benchmarks.gpu.updates import make_learner
from benchmarks.learner.shapes import OWN_TOKENS
from finqa_cli.contracts import EngineContext
from finqa_cli.types import GenerateRequest, Sample, Sampling
from finqa_plugins.engines.transformers.config import TransformersEngineConfig
from finqa_plugins.engines.transformers.transformers_engine import TransformersEngine

DTYPE = "bfloat16"
HEADS = ("model", "float32")
"""Values of the learner's option `head_dtype`."""
LARGEST_RMS = 0.06
"""Nats. Published of vLLM and a trainer in bfloat16: 0.031 with heads in float32, 0.041 without (ServiceNow, Fast-LLM,
pull request 525); of the 0.6B shape on a CPU, with the weights that are made here, 0.039."""
NO_WORSE = 1.05
"""Of the float32 head's root mean square by the other's: rounding one thing less makes nothing worse but by chance."""
_SHARES = (0.5, 0.9, 0.99, 1.0)
_EDGES = (0.0, 0.001, 0.01, 0.03, 0.1, 0.3, 1.0, math.inf)


def mismatch(scale: Scale, scratch: Path) -> list[Figure]:
    """Quantiles and a histogram of |difference| in nats, with the learner's head in either dtype."""
    figures: list[Figure] = []
    roots: dict[str, float] = {}
    with random_model(scale.main, scratch) as folder:
        samples = asyncio.run(sampled(scale.main, folder, scale, DTYPE))
        figures.append(_uncertainty(scale.main.name, samples))
        for head in HEADS:
            differences = _differences(folder, samples, {"head_dtype": head})
            roots[head] = float(differences.square().mean().sqrt())
            figures += _figures(f"{scale.main.name}, head in {head}", differences, judged=scale.judged)
    ratio = roots["float32"] / roots["model"] if roots["model"] else 1.0
    name = f"{scale.main.name}: RMS with a float32 head, by that without"
    # Of a tiny model some CPUs round engine and learner alike with the head in the model's dtype: nothing to compare.
    return [*figures, at_most(name, ratio, NO_WORSE) if scale.judged else note(name, ratio)]


async def sampled(shape: ModelShape, folder: Path, scale: Scale, dtype: str) -> list[Sample]:
    """What the engine samples at temperature 1, with its log-probabilities."""
    config = TransformersEngineConfig.model_validate({"device": device().type, "dtype": dtype, "lockstep": False})
    engine = TransformersEngine(config, EngineContext(model=str(folder), dispatch_wait_ms=20, needs_tokens=True))
    await engine.start()
    try:
        asked = requests(shape, scale.played, prompt=scale.prompt, generated=scale.generated)
        completions = await asyncio.gather(*map(engine.generate, asked))
    finally:
        await engine.close()
    return [
        Sample(
            token_ids=request.token_ids + completion.token_ids,
            loss_mask=(False,) * len(request.token_ids) + (True,) * len(completion.token_ids),
            logprobs=(0.0,) * len(request.token_ids) + completion.logprobs,
            advantages=(0.0,) * len(request.token_ids) + (1.0,) * len(completion.token_ids),
        )
        for request, completion in zip(asked, completions, strict=True)
    ]


def requests(shape: ModelShape, count: int, *, prompt: int, generated: int, seed: int = 0) -> list[GenerateRequest]:
    """Random prompts; no id ends a completion, so that all have the same length. They hold no seats of episodes."""
    return [
        GenerateRequest(
            key=f"{seed}-{number:04}",
            token_ids=tuple(_ids(random.Random(f"{seed}/{number}"), prompt, shape.vocabulary)),
            sampling=Sampling(max_tokens=generated, seed=number),
        )
        for number in range(count)
    ]


def _ids(rng: random.Random, count: int, vocabulary: int) -> list[int]:
    return [rng.randrange(OWN_TOKENS, vocabulary) for _ in range(count)]


def _uncertainty(name: str, samples: Sequence[Sample]) -> Figure:
    """A policy that is sure of every token agrees with any other that is."""
    found = [
        value for sample in samples for value, masked in zip(sample.logprobs, sample.loss_mask, strict=True) if masked
    ]
    return at_most(f"{name}: mean log-probability of what is sampled", statistics.fmean(found), -0.5)


def _differences(folder: Path, samples: Sequence[Sample], options: Mapping[str, Any]) -> torch.Tensor:
    """[N] |engine's - learner's| of every sampled token."""
    scored = make_learner(folder, dtype=DTYPE, **options).logprobs(samples)
    return torch.tensor(
        [
            abs(ours - theirs)
            for sample, row in zip(samples, scored, strict=True)
            for ours, theirs, masked in zip(row, sample.logprobs, sample.loss_mask, strict=True)
            if masked
        ],
        dtype=torch.float64,
    )


def _figures(label: str, differences: torch.Tensor, *, judged: bool) -> list[Figure]:
    root, name = float(differences.square().mean().sqrt()), f"{label}: RMS difference (nats)"
    detail = f"{len(differences)} tokens; {histogram(differences)}"
    figures = [at_most(name, root, LARGEST_RMS, detail) if judged else note(name, root, detail)]
    for share in _SHARES:
        value = float(differences.quantile(share))
        figures.append(note(f"{label}: {f'p{100 * share:.0f}' if share < 1 else 'largest'} (nats)", value))
    return figures


def histogram(differences: torch.Tensor) -> str:
    """How many lie between the edges, as text."""
    counts = [int(((differences >= low) & (differences < high)).sum()) for low, high in itertools.pairwise(_EDGES)]
    return ", ".join(f"{count} below {high:g}" for count, high in zip(counts, _EDGES[1:], strict=True) if count)
