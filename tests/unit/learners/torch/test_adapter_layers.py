"""LoRA layers as one operation beside float64 and PEFT; a small change survives bfloat16, in the engine too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures.tiny_learners import GRPO_LOSS, as_batch, make_learner, random_samples
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.layer import Linear
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.pytorch_utils import Conv1D

from finqa_plugins.engines.transformers.lora_adapter import AdapterSlot, Patch
from finqa_plugins.learners.torch.adapter_layers import AdaptedLinear, fuse_adapters
from finqa_plugins.precision import low_rank_sum


def kept_share(result: torch.Tensor, base: torch.Tensor, added: torch.Tensor) -> float:
    """How much of a change is in a result, on average."""
    return float(((result.float() - base.float()) * added.sign()).mean() / added.abs().mean())


@pytest.mark.parametrize("bias", [False, True])
def test_a_change_below_half_of_the_last_bit_is_kept_on_average(bias: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    states = torch.randn(256, 256, generator=draw).bfloat16()
    weight = (0.05 * torch.randn(256, 512, generator=draw)).bfloat16()
    shift = torch.randn(512, generator=draw).bfloat16() if bias else None
    hidden, up = torch.randn(256, 4, generator=draw).bfloat16(), 2e-4 * torch.randn(4, 512, generator=draw).bfloat16()
    added = hidden.float() @ up.float()
    base = low_rank_sum(states, weight, shift, hidden, torch.zeros_like(up))
    torch.testing.assert_close(base, nn.functional.linear(states, weight.t(), shift), rtol=2e-2, atol=2e-2)
    assert kept_share(low_rank_sum(states, weight, shift, hidden, up), base, added) == pytest.approx(1, abs=0.15)
    assert kept_share((base + added).bfloat16(), base, added) < 0.5, "as it is added after the rounding"


def in_float64(layer: Any, x: torch.Tensor, gradient: torch.Tensor) -> dict[str, torch.Tensor]:
    """Result and gradients of a LoRA layer with the definition's formula in float64, from the same rounded numbers."""
    leaf = x.detach().double().requires_grad_()
    down, up = (layer[name]["default"].weight.detach().double().requires_grad_() for name in ("lora_A", "lora_B"))
    base, scale = layer["base"], layer["scale"]
    weight = base.weight.double() if isinstance(base, Conv1D) else base.weight.double().t()
    found = leaf @ weight + scale * (leaf @ down.t()) @ up.t() + (0 if base.bias is None else base.bias.double())
    found.backward(gradient.double())
    return {"result": found.detach(), "x": leaf.grad, "down": down.grad, "up": up.grad}  # type: ignore[dict-item]


@settings(deadline=None, max_examples=25)
@given(
    kind=st.sampled_from([nn.Linear, Conv1D]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    sizes=st.tuples(st.integers(2, 200), st.integers(2, 200), st.integers(1, 16)),
    bias=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_a_layer_and_its_gradients_are_as_close_to_float64_as_those_of_peft(
    kind: type, dtype: torch.dtype, shape: list[int], sizes: tuple[int, int, int], bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    width, out, rank = sizes
    base = nn.Linear(width, out, bias=bias) if kind is nn.Linear else Conv1D(out, width)
    options = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["0"], fan_in_fan_out=kind is Conv1D)
    model = get_peft_model(nn.Sequential(base.to(dtype)), options)  # type: ignore[arg-type]
    layer: Any = model.base_model.model[0]
    nn.init.normal_(layer.lora_B["default"].weight, std=0.1)
    x, gradient = torch.randn(*shape, width).to(dtype), torch.randn(*shape, out).to(dtype)
    parts = {"lora_A": layer.lora_A, "lora_B": layer.lora_B, "base": base, "scale": layer.scaling["default"]}
    true = in_float64(parts, x, gradient)

    def errors() -> dict[str, float]:
        leaf = x.detach().requires_grad_()
        layer.zero_grad()
        result = layer(leaf)
        result.backward(gradient)
        found = {
            "result": result,
            "x": leaf.grad,
            "down": layer.lora_A["default"].weight.grad,
            "up": layer.lora_B["default"].weight.grad,
        }
        assert result.dtype == dtype and found["down"].dtype == found["up"].dtype == torch.float32
        return {
            name: float((found[name].detach().double() - true[name]).norm() / (true[name].norm() + 1e-9))
            for name in found
        }

    by_peft = errors()
    fuse_adapters(model)
    assert type(layer) is AdaptedLinear
    ours, rounding = errors(), torch.finfo(dtype).eps
    for name, error in ours.items():
        assert error <= max(1.2 * by_peft[name], (8 if dtype == torch.float32 else 1) * rounding), (name, ours, by_peft)


def test_with_dropout_the_weights_see_the_input_and_the_adapter_what_is_left_of_it() -> None:
    torch.manual_seed(0)
    options = LoraConfig(r=4, lora_dropout=0.5, target_modules=["0"])
    model = get_peft_model(nn.Sequential(nn.Linear(32, 8)), options)  # type: ignore[arg-type]
    layer: Any = model.base_model.model[0]
    nn.init.normal_(layer.lora_B["default"].weight)
    x = torch.randn(5, 32)

    def run() -> list[torch.Tensor]:
        leaf = x.clone().requires_grad_()
        layer.zero_grad()
        torch.manual_seed(1)
        result = layer(leaf)
        result.square().sum().backward()
        return [result.detach(), leaf.grad, *(part["default"].weight.grad for part in (layer.lora_A, layer.lora_B))]

    by_peft = run()
    fuse_adapters(model)
    torch.testing.assert_close(run(), by_peft, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        model.eval()
        ours = layer(x)
        layer.__class__ = Linear
        torch.testing.assert_close(ours, layer(x))


@pytest.mark.parametrize("options", [{"use_dora": True}, {"lora_bias": True}])
def test_layers_of_other_kinds_stay_those_of_peft(options: dict[str, bool]) -> None:
    model = get_peft_model(nn.Sequential(nn.Linear(32, 8)), LoraConfig(r=4, target_modules=["0"], **options))  # type: ignore[arg-type]
    fuse_adapters(model)
    assert type(model.base_model.model[0]) is Linear


class Bytes(TorchDispatchMode):
    """Counts what operations read and write, without those that only make views."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        outs = [part for part in tree_leaves(result) if isinstance(part, torch.Tensor)]
        if not function.is_view:
            ins = [part for part in tree_leaves((args, kwargs)) if isinstance(part, torch.Tensor)]
            self.count += sum(part.numel() * part.element_size() for part in (*ins, *outs))
        return result


def test_a_layer_of_4b_parameters_moves_at_most_six_tenths_of_the_bytes_of_peft() -> None:
    """On the meta device, 16,384 tokens in bfloat16: without the weight's own traffic, which both have."""
    with torch.device("meta"):
        model = get_peft_model(
            nn.Sequential(nn.Linear(2560, 9728, bias=False, dtype=torch.bfloat16)),  # type: ignore[arg-type]
            LoraConfig(r=16, target_modules=["0"]),
        )
        x = torch.empty(16_384, 2560, dtype=torch.bfloat16, requires_grad=True)
        counted = []
        for fused in (False, True):
            if fused:
                fuse_adapters(model)
            with Bytes() as bytes_moved:
                result = model(x)
                result.backward(torch.empty_like(result))
            counted.append(bytes_moved.count)
    assert counted[1] <= 0.6 * counted[0], counted


def test_in_bfloat16_a_learner_moves_as_in_float32(learner_model: Path) -> None:
    samples = random_samples(4)
    found = {}
    for dtype in ("float32", "bfloat16"):
        learner = make_learner(learner_model, {"dtype": dtype}, lora_dropout=0.1)
        assert any(isinstance(part, AdaptedLinear) for part in learner._model.modules())
        before = learner.logprobs(samples)
        learner.update(as_batch(samples), GRPO_LOSS)
        reference, after = learner.reference_logprobs(samples), learner.logprobs(samples)
        assert all((one == two).all() for one, two in zip(before, reference, strict=True)), "the adapter began at 0"
        found[dtype] = torch.tensor([float((one - two).sum()) for one, two in zip(after, before, strict=True)])
    assert torch.nn.functional.cosine_similarity(found["float32"], found["bfloat16"], dim=0) > 0.9


@pytest.mark.parametrize("kind", [nn.Linear, Conv1D])
def test_an_engine_does_the_same_and_gives_the_layer_back(kind: type) -> None:
    torch.manual_seed(0)
    layer = (nn.Linear(256, 128, bias=True) if kind is nn.Linear else Conv1D(128, 256)).bfloat16()
    module = nn.ModuleDict({"part": layer})
    down, up = 0.01 * torch.randn(4, 256), 0.01 * torch.randn(128, 4)
    states = torch.randn(2, 50, 256).bfloat16()
    slot, base = AdapterSlot(module), layer(states)
    slot.put([Patch("part", layer, down, up, 0.5)])
    added = 0.5 * (states.float() @ down.T @ up.T)
    assert kept_share(layer(states), base, added) == pytest.approx(1, abs=0.2)
    slot.put([])
    assert torch.equal(layer(states), base) and "forward" not in vars(layer)
