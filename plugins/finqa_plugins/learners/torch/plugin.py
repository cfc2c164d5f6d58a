"""Registers the PyTorch learner."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

from finqa_cli.contracts import LearnerProcesses
from finqa_cli.extend import Component, hookimpl
from finqa_cli.local_models import GgufFile
from finqa_cli.types import Architecture, PolicyVersion


@hookimpl
def register_components() -> list[Component]:
    """The `torch` learner."""
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
            sleeps=True,
            threads="threads",
        )
    ]


@hookimpl
def create_policy(specification: Path, texts: Sequence[str], folder: Path, seed: int) -> PolicyVersion | None:
    """Make a random Qwen3 with its own tokenizer; None for other architectures. See `initial_policy.PolicySpec`."""
    from finqa_plugins.learners.torch import initial_policy

    if (spec := initial_policy.read_spec(specification)) is None:
        return None
    initial_policy.create_policy(spec, texts, folder, seed)
    return PolicyVersion(number=0, model=str(folder))


@hookimpl
def merge_policy(policy: PolicyVersion, folder: Path) -> PolicyVersion | None:
    """Merge a LoRA adapter in PEFT's format; None for other policies, or if torch or PEFT is not installed."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("peft") is None:
        return None
    from finqa_plugins.learners.torch import whole_models

    return whole_models.merge_adapter(policy, folder)


@hookimpl
def write_model(policy: PolicyVersion, folder: Path, dtype: str) -> PolicyVersion | None:
    """Write a model of transformers, FSDP shards of verl, or an adapter; None if torch or PEFT is not installed."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("peft") is None:
        return None
    from finqa_plugins.learners.torch import whole_models

    return whole_models.write_model(policy, folder, dtype)


@hookimpl
def convert_gguf(header: GgufFile, folder: Path, dtype: str, moved: Callable[[str, int, int], None]) -> bool | None:
    """Convert a GGUF file whose architecture transformers knows; None if torch or transformers is not installed."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        return None
    from finqa_plugins.learners.torch import gguf_conversion

    gguf_conversion.convert(header, folder, dtype, moved)
    return True


@hookimpl
def join_processes(learner: str) -> LearnerProcesses | None:
    """Join the processes of learner `torch`, which share sharded weights (FSDP2); None for other learners."""
    if learner != "torch":
        return None
    from finqa_plugins.learners.torch.distributed import distributed_learner

    return distributed_learner.join()


@hookimpl
def inspect_model(reference: str) -> Architecture | None:
    """Inspect a causal language model that transformers knows; None if transformers or torch is not installed."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        return None
    from finqa_plugins.learners.torch import inspection

    return inspection.inspect(reference)
