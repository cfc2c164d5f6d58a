"""Part `oom`: an update that does not fit completes, with the gradient of one that does.

On CUDA a tensor fills the device until the micro-batch does not fit. On a CPU, where memory does not run out in this
way, the same exception is raised in the forward pass of every micro-batch that is too large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from benchmarks.figures import Figure, at_least, at_most, exactly
from benchmarks.gpu.device import begin_peak, device, on_cuda, release
from benchmarks.gpu.models import random_model
from benchmarks.gpu.scales import ModelShape, Scale
from benchmarks.gpu.updates import batch_of, gradient_of, make_learner, relative, several_episodes
from benchmarks.learner.models import LOSS
from finqa_cli.errors import FinqaError
from finqa_cli.types import Batch
from finqa_plugins.learners.torch.torch_learner import TorchLearner

SAME_GRADIENT = 1e-5
ROUNDING = 3.0
_FIRST_RATE = 1e-2
"""One step of AdamW at it gives the adapter's second factor, which begins at 0, values by which all gradients count."""

Failures = Callable[[], int]
"""How often memory ran out so far."""


def oom(scale: Scale, scratch: Path) -> list[Figure]:
    """In float32, where gradients must be equal, and in bfloat16, in which models are used for training GPUs."""
    figures = []
    for shape, dtype in ((scale.small, "float32"), (scale.main, "bfloat16")):
        with random_model(shape, scratch) as folder:
            figures += _of_model(shape, folder, scratch / f"state-{dtype}", scale, dtype)
    return figures


def _of_model(shape: ModelShape, folder: Path, state: Path, scale: Scale, dtype: str) -> list[Figure]:
    label = f"{shape.name}, {dtype}"
    policy = make_learner(folder, rate=_FIRST_RATE, dtype=dtype)
    samples = several_episodes(shape, scale.tokens, scale.episode)
    whole, quarter, eighth = (batch_of(samples, scale.tokens // parts, policy) for parts in (1, 4, 8))
    policy.update(quarter, LOSS)
    policy.save(state)

    def gradient(batch: Batch) -> tuple[torch.Tensor, int]:
        """From the saved state; and the bytes of the peak."""
        policy.load(state)
        begin_peak()
        found = gradient_of(lambda: policy.update(batch, LOSS))
        return found, torch.cuda.max_memory_allocated() if on_cuda() else 0

    (wanted, small), (again, _), (_, large) = (gradient(batch) for batch in (quarter, eighth, whole))
    # Sequences meet other neighbours in other micro-batches, so bfloat16 rounds other sums: a few times as far as two
    # budgets that both fit are apart, a recovered update may be.
    limit = max(SAME_GRADIENT, 0.0 if dtype == "float32" else ROUNDING * relative(again, wanted))
    shortage = _ballast((small + large) // 2) if on_cuda() else _injected(scale.tokens // 2)
    policy.load(state)
    with shortage as failures:
        found, error = _attempt(policy, whole)
        during = failures()
        kept = _attempt(policy, whole)[0] if found is not None else None
        later = failures() - during
    figures = [
        exactly(f"{label}: the update completes", found is not None, 1, error),
        at_least(f"{label}: times that memory ran out", during, 1),
    ]
    if found is not None:
        figures += [
            at_most(f"{label}: gradient against one that fits", relative(found, wanted), limit, "relative"),
            exactly(f"{label}: the next update completes at once", kept is not None and not later, 1),
        ]
    return figures


def _attempt(policy: TorchLearner, batch: Batch) -> tuple[torch.Tensor | None, str]:
    """The gradient of an update, or why there was none."""
    try:
        return gradient_of(lambda: policy.update(batch, LOSS)), ""
    except (torch.OutOfMemoryError, FinqaError) as error:
        return None, f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"


@contextmanager
def _ballast(peak: int) -> Iterator[Failures]:
    """So little memory of the CUDA device is free that tensors may take `peak` bytes in all."""
    release()
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(max(0, free - (peak - torch.cuda.memory_allocated())), dtype=torch.uint8, device=device())
    before = torch.cuda.memory_stats()["num_ooms"]
    try:
        yield lambda: torch.cuda.memory_stats()["num_ooms"] - before
    finally:
        del held
        release()


@contextmanager
def _injected(tokens: int) -> Iterator[Failures]:
    """Forward passes of more than so many tokens find no memory."""
    raised = 0

    def refuse(module: torch.nn.Module, inputs: tuple[object, ...]) -> None:
        nonlocal raised
        if (
            isinstance(module, torch.nn.Embedding)
            and isinstance(inputs[0], torch.Tensor)
            and inputs[0].numel() > tokens
        ):
            raised += 1
            raise torch.OutOfMemoryError(f"injected: {inputs[0].numel()} tokens, room for {tokens}")

    handle = register_module_forward_pre_hook(refuse)
    try:
        yield lambda: raised
    finally:
        handle.remove()
