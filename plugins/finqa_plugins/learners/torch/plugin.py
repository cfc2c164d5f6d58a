"""Registers the PyTorch learner."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from finqa_cli.contracts import LearnerProcesses
from finqa_cli.extend import Component, hookimpl
from finqa_cli.types import Architecture, PolicyVersion


@hookimpl
def register_components() -> list[Component]:
    """`torch`."""
    return [
        Component(
            kind="learner",
            name="torch",
            target="finqa_plugins.learners.torch.distributed.distributed_learner:make_learner",
            config="finqa_plugins.learners.torch.config:TorchLearnerConfig",
            summary="LoRA (PEFT) or full training with AdamW on one device or several (FSDP2)",
            requires=("torch", "transformers", "peft", "safetensors"),
            extra="train",
            devices="several",
        )
    ]


@hookimpl
def create_policy(specification: Path, texts: Sequence[str], folder: Path, seed: int) -> PolicyVersion | None:
    """A random Qwen3 with a tokenizer of its own, as `configs/models/tiny.toml` specifies it."""
    from finqa_plugins.learners.torch import initial_policy

    if (spec := initial_policy.read_spec(specification)) is None:
        return None
    initial_policy.create_policy(spec, texts, folder, seed)
    return PolicyVersion(number=0, model=str(folder))


@hookimpl
def merge_policy(policy: PolicyVersion, folder: Path) -> PolicyVersion | None:
    """A LoRA adapter in PEFT's format; None for others, and where PEFT is not installed."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("peft") is None:
        return None
    from finqa_plugins.learners.torch import whole_models

    return whole_models.merge_adapter(policy, folder)


@hookimpl
def write_model(policy: PolicyVersion, folder: Path, dtype: str) -> PolicyVersion | None:
    """Models that transformers reads, FSDP shards in verl's layout, and LoRA adapters; None where PEFT is not there."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("peft") is None:
        return None
    from finqa_plugins.learners.torch import whole_models

    return whole_models.write_model(policy, folder, dtype)


@hookimpl
def join_processes(learner: str) -> LearnerProcesses | None:
    """The processes of `torch`, which share sharded weights (FSDP2)."""
    if learner != "torch":
        return None
    from finqa_plugins.learners.torch.distributed import distributed_learner

    return distributed_learner.join()


@hookimpl
def inspect_model(reference: str) -> Architecture | None:
    """Any causal language model that transformers knows; None where transformers or torch is not installed."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        return None
    from finqa_plugins.learners.torch import inspection

    return inspection.inspect(reference)
