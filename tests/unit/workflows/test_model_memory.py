from __future__ import annotations

import pytest
import torch

from finqa_cli.types import Architecture, LinearLayer
from finqa_cli.workflows import model_memory as memory

GB = 1e9
TARGETS = ("q_proj", "down_proj")
LAYERS = (
    LinearLayer(name="q_proj", inputs=64, outputs=128, count=2, kind="Linear"),
    LinearLayer(name="down_proj", inputs=256, outputs=64, count=2, kind="Linear"),
    LinearLayer(name="gate", inputs=64, outputs=4, count=2, kind="Linear"),
)


def architecture(*, parameters: int = 1_000_000, heads: int = 40, kv: int = 81_920) -> Architecture:
    return Architecture(
        family="qwen3",
        class_name="Qwen3ForCausalLM",
        dtype="bfloat16",
        layers=40,
        hidden=5120,
        heads=heads,
        key_value_heads=8,
        head_dim=128,
        vocabulary=151936,
        context=40960,
        tied=False,
        parameters=parameters,
        kv_values_per_token=kv,
        linear=LAYERS,
        lora_targets=TARGETS,
    )


def test_trained_weights_cost_what_adamw_really_holds() -> None:
    model = architecture()
    trained = memory.trained(model, TARGETS, 8)
    assert trained == 8 * 2 * (64 + 128 + 256 + 64)
    weight = torch.nn.Parameter(torch.ones(trained))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    assert weight.grad is not None
    averages = [optimizer.state[weight][name] for name in ("exp_avg", "exp_avg_sq")]
    assert memory.optimizer(model, TARGETS, 8) == sum(part.nbytes for part in (weight, weight.grad, *averages))
    assert memory.optimizer(model, TARGETS, 0) == 16 * model.parameters


def test_frozen_weights_are_counted_with_an_adapter_only() -> None:
    model = architecture()
    states = memory.activations(model, 10)
    assert states == 10 * 5120 * (2 * 40 + 80)
    assert memory.learner(model, TARGETS, 0, 10) == 16_000_000 + states
    assert memory.learner(model, TARGETS, 8, 10) == 2_000_000 + memory.optimizer(model, TARGETS, 8) + states


@pytest.mark.parametrize(
    ("gpu_gb", "heads", "gpus"),
    [
        (80, 40, 1),  # 29.5 GB of weights and 2.7 GB for 16,384 tokens in 68 GB
        (24, 40, 2),  # 20.4 GB do not hold the weights, 40.8 GB hold both
        (16, 40, 4),  # 27.2 GB do not
        (16, 42, None),  # 42 heads divide over 2, not over 4 or 8
        (2, 40, None),  # 13.6 GB in eight
    ],
)
def test_an_engine_takes_the_fewest_gpus_that_hold_it(gpu_gb: int, heads: int, gpus: int | None) -> None:
    model = architecture(parameters=14_768_307_200, heads=heads)
    assert memory.kv_per_token(model) == 163_840
    fit = memory.fit_engine(model, gpu_gb * GB, share=0.85, tokens=16_384)
    assert (fit.gpus if fit else None) == gpus
    if fit:
        assert fit.kv_tokens == int((fit.gpus * gpu_gb * GB * 0.85 - 2 * model.parameters) // 163_840)


def test_a_model_without_keys_and_values_needs_room_for_its_weights() -> None:
    fit = memory.fit_engine(architecture(kv=0, heads=0), 1 * GB, share=0.5, tokens=16_384)
    assert fit == memory.EngineFit(gpus=1, kv_tokens=0)
