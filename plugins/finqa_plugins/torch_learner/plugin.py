"""Registers the PyTorch learner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from finqa_cli.extend import Component, hookimpl
from finqa_cli.types import PolicyVersion


@hookimpl
def register_components() -> list[Component]:
    """`torch`."""
    return [
        Component(
            kind="learner",
            name="torch",
            target="finqa_plugins.torch_learner.learner:TorchLearner",
            config="finqa_plugins.torch_learner.config:TorchLearnerConfig",
            summary="LoRA (PEFT) or full training with AdamW on one CPU or CUDA device",
            requires=("torch", "transformers", "peft", "safetensors"),
            extra="train",
        )
    ]


@hookimpl
def create_policy(specification: Path, texts: Sequence[str], folder: Path, seed: int) -> PolicyVersion | None:
    """A random Qwen3 with a tokenizer of its own, as `configs/models/tiny.toml` specifies it."""
    from finqa_plugins.torch_learner import scratch

    if (spec := scratch.read_spec(specification)) is None:
        return None
    scratch.create_policy(spec, texts, folder, seed)
    return PolicyVersion(number=0, model=str(folder))
