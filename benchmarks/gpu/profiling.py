"""Part `profile`, which is run when it is named: where an update spends its time, the 20 longest kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from benchmarks.figures import Figure, note
from benchmarks.gpu.device import on_cuda, wait
from benchmarks.gpu.models import random_model
from benchmarks.gpu.scales import Scale
from benchmarks.gpu.updates import batch_of, make_learner, one_sequence
from benchmarks.learner.models import LOSS

LISTED = 20
_NAME = 90


def profiling(scale: Scale, scratch: Path) -> list[Figure]:
    """Milliseconds of each kernel in one update, of one sequence with LoRA; on a CPU of each operation."""
    with random_model(scale.main, scratch) as folder:
        policy = make_learner(folder)
        batch = batch_of(one_sequence(scale.main, scale.tokens), scale.tokens, policy)
        policy.update(batch, LOSS)
        wait()
        with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda() else [])]) as recorded:
            policy.update(batch, LOSS)
            wait()
    rows = [row for row in recorded.key_averages() if _measured(row)]
    total = sum(map(_microseconds, rows))
    longest = sorted(rows, key=_microseconds, reverse=True)[:LISTED]
    return [
        note(f"{scale.main.name}: ms of all kernels in an update", total / 1000),
        *(note(_name(row), _microseconds(row) / 1000, _detail(row, total)) for row in longest),
    ]


def _measured(row: Any) -> bool:
    """Whether a row is of the device: PyTorch lists kernels, and once more the operations that launched them."""
    kind = "CUDA" if on_cuda() else "CPU"
    return row.device_type.name == kind and not row.is_user_annotation and _microseconds(row) > 0


def _microseconds(row: Any) -> float:
    """Of the row itself, without what it called."""
    return float(row.self_device_time_total if on_cuda() else row.self_cpu_time_total)


def _name(row: Any) -> str:
    return f"ms, {str(row.key)[:_NAME].replace('|', '/')}"


def _detail(row: Any, total: float) -> str:
    return f"{row.count} calls, {100 * _microseconds(row) / total:.1f} %"
