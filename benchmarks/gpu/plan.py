"""Part `plan`: what is predicted of the learner's memory, against what it took."""

from __future__ import annotations

from pathlib import Path

from benchmarks.figures import Figure, at_most, note
from benchmarks.gpu.device import GIB
from benchmarks.gpu.models import random_model
from benchmarks.gpu.scales import ModelShape, Scale
from benchmarks.gpu.updates import make_learner, measure, one_sequence
from benchmarks.learner.models import LORA_RANK
from finqa_cli.placement import memory_formulas
from finqa_cli.placement.known_models import read_architecture
from finqa_cli.types.architectures import PROJECTIONS

TOLERANCE = 0.10


def predicted_learner_gib(model_folder: Path, *, rank: int, tokens: int) -> float:
    """GiB of tensors that a learner with gradient checkpointing is predicted to hold at its peak.

    The CUDA context is left out, as it is of what PyTorch measures.

    Args:
        model_folder: Of the model.
        rank: Of an adapter on all linear layers; 0 trains all weights.
        tokens: Of a micro-batch.
    """
    architecture = read_architecture(str(model_folder))
    assert architecture is not None, "the shapes are of a family that the plan knows"
    parts = memory_formulas.learner_items(architecture, tokens, rank=rank, targets=PROJECTIONS)
    return sum(size for part, size in parts.items() if part != "cuda_context") / GIB


def plan(scale: Scale, scratch: Path) -> list[Figure]:
    """Other sizes of micro-batches than the part `learner` has, and all weights instead of an adapter."""
    half, quarter = scale.tokens // 2, scale.tokens // 4
    with random_model(scale.main, scratch) as folder:
        adapted = [_measured(scale.main, folder, rank=LORA_RANK, tokens=tokens) for tokens in (quarter, half)]
    with random_model(scale.small, scratch) as folder:
        return [*adapted, _measured(scale.small, folder, rank=0, tokens=half)]


def _measured(shape: ModelShape, folder: Path, *, rank: int, tokens: int) -> Figure:
    found = measure(make_learner(folder, rank=rank), one_sequence(shape, tokens), budget=tokens, repeats=1)
    return plan_figure(shape, folder, rank=rank, tokens=tokens, measured_gib=found.peak_gib)


def plan_figure(shape: ModelShape, folder: Path, *, rank: int, tokens: int, measured_gib: float | None) -> Figure:
    """How far the prediction lies from the measurement, as a share of it; on a CPU the prediction alone."""
    predicted = predicted_learner_gib(folder, rank=rank, tokens=tokens)
    name = f"{shape.name}, {f'LoRA r{rank}' if rank else 'all weights'}, {tokens} tokens"
    if measured_gib is None:
        return note(f"{name}: predicted GiB", predicted, "not measured on a CPU")
    detail = f"predicted {predicted:.2f} GiB, measured {measured_gib:.2f}"
    return at_most(f"{name}: prediction off by", abs(predicted / measured_gib - 1), TOLERANCE, detail)
