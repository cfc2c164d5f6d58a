"""The kernel for variable lengths, which only CUDA has. Run with: pytest -m gpu tests/gpu"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kv_heads", [2, 8])
@pytest.mark.parametrize("window", [None, 64, 350])
def test_one_kernel_for_all_segments_is_the_attention_of_each(window: int | None, kv_heads: int) -> None:
    torch = pytest.importorskip("torch", reason="needs finqa[train]")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    from finqa_plugins.learners.torch.packed_rows import (
        Layer,
        Segments,
        _by_groups,
        _variable_length,
        _variable_length_kernel,
    )

    if (kernel := _variable_length_kernel()) is None:
        pytest.skip("this PyTorch has no torch.nn.attention.varlen with windows and shared heads")
    segments = Segments((300, 70, 129, 5, 400), ((0,), (0, 1), (0, 2), (0, 2, 3), (4,)))
    tokens = sum(segments.sizes)
    shapes = ((1, 8, tokens, 64), (1, kv_heads, tokens, 64), (1, kv_heads, tokens, 64))
    exact = [torch.randn(shape, device="cuda", requires_grad=True) for shape in shapes]
    half = [part.detach().to(torch.bfloat16).requires_grad_() for part in exact]
    wanted = _by_groups(*exact, Layer(window=window), segments)
    found = _variable_length(kernel, *half, Layer(window=window), segments)
    direction = torch.randn_like(wanted)
    (wanted * direction).sum().backward()
    (found.float() * direction).sum().backward()
    assert _distance(found, wanted) <= 2e-2
    for left, right in zip(half, exact, strict=True):
        assert _distance(left.grad, right.grad) <= 2e-2


def _distance(found: object, wanted: object) -> float:
    import torch

    assert isinstance(found, torch.Tensor)
    assert isinstance(wanted, torch.Tensor)
    return float((found.float() - wanted).norm() / wanted.norm())
