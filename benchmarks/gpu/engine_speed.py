"""Part `engine`: tokens a second of the transformers engine, beside `generate` of transformers on the same model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.figures import Figure, at_least, note
from benchmarks.gpu.device import device, release, seconds
from benchmarks.gpu.mismatch import requests
from benchmarks.gpu.models import random_model
from benchmarks.gpu.scales import ModelShape, Scale
from finqa_cli.contracts import EngineContext
from finqa_plugins.engines.transformers.config import TransformersEngineConfig
from finqa_plugins.engines.transformers.transformers_engine import TransformersEngine

SLOWEST = 1.0
"""Of the engine's speed by that of `generate`, at the largest batch: it returns log-probabilities besides."""
_WARM_UP_TOKENS = 8


def engine_speed(scale: Scale, scratch: Path) -> list[Figure]:
    """Both with the same prompts, lengths and rows, one after the other on the device; and their ratio."""
    with random_model(scale.main, scratch) as folder:
        ours = asyncio.run(_engine(folder, scale))
        release()
        theirs = _generate(folder, scale)
    figures = []
    for rows, speed, peer in zip(scale.batches, ours, theirs, strict=True):
        label, ratio = f"{scale.main.name}, {rows} rows", speed / peer
        detail = f"prompts of {scale.prompt}, completions of {scale.generated} tokens"
        figures += [
            note(f"{label}: tokens a second", speed, detail),
            note(f"{label}: tokens a second of `generate`", peer),
            at_least(f"{label}: engine by `generate`", ratio, SLOWEST, timed=True)
            if scale.judged and rows == max(scale.batches)
            else note(f"{label}: engine by `generate`", ratio),
        ]
    return figures


async def _engine(folder: Path, scale: Scale) -> list[float]:
    """Tokens a second for each number of rows."""
    options = {"device": device().type, "max_batch": max(scale.batches), "lockstep": False}
    engine = TransformersEngine(
        TransformersEngineConfig.model_validate(options),
        EngineContext(model=str(folder), dispatch_wait_ms=20, needs_tokens=True),
    )
    await engine.start()
    try:
        speeds = []
        for number, rows in enumerate(scale.batches):
            for generated in (_WARM_UP_TOKENS, scale.generated):
                asked = requests(scale.main, rows, prompt=scale.prompt, generated=generated, seed=2 * number)
                began = time.perf_counter()  # a completion is on the host, so the device has done its work
                found = await asyncio.gather(*map(engine.generate, asked))
                took = time.perf_counter() - began
            speeds.append(sum(len(completion.token_ids) for completion in found) / took)
        return speeds
    finally:
        await engine.close()


def _generate(folder: Path, scale: Scale) -> list[float]:
    """Likewise, of transformers itself."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    dtype = torch.bfloat16 if device().type == "cuda" else torch.float32  # as the engine's
    module: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device()).eval()
    module.generation_config.eos_token_id = None
    return [_generated(module, scale.main, scale, rows) for rows in scale.batches]


def _generated(module: Any, shape: ModelShape, scale: Scale, rows: int) -> float:
    asked = requests(shape, rows, prompt=scale.prompt, generated=scale.generated)
    ids = torch.tensor([request.token_ids for request in asked], device=device())

    def generate(tokens: int) -> Sequence[int]:
        """[rows, prompt + tokens] shape of what was generated, sampled at temperature 1 from all tokens."""
        with torch.inference_mode():
            found = module.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                pad_token_id=0,
            )
        return tuple(found.shape)

    generate(_WARM_UP_TOKENS)
    shapes: list[Sequence[int]] = []
    took = seconds(lambda: shapes.append(generate(scale.generated)))
    if shapes[0] != (rows, scale.prompt + scale.generated):
        raise RuntimeError(f"`generate` returned {shapes[0]}, not {scale.generated} tokens after each prompt")
    return rows * scale.generated / took
