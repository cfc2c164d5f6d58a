"""An adapter and its base as one model: the same log-probabilities, and refusals where the two do not fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures.plain_models import make_tiny_gpt2, make_tiny_llama
from fixtures.tiny_learners import GRPO_LOSS, as_batch, make_learner, random_samples, same_rows
from safetensors.torch import load_file, save_file

from finqa_cli.errors import ConfigError
from finqa_cli.extend import registry
from finqa_cli.types import PolicyVersion
from finqa_plugins.learners.torch.torch_learner import TorchLearner
from finqa_testing.tiny_models import make_tiny_qwen3


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen3(tmp_path_factory.mktemp("base"))


def trained(base: Path, **context: Any) -> TorchLearner:
    """A learner whose adapter is far from 0, on every layer."""
    learner = make_learner(base, learning_rate=3e-2, **context)
    for seed in range(3):
        learner.update(as_batch(random_samples(3, seed=seed)), GRPO_LOSS)
    return learner


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    return trained(base).publish(tmp_path / "adapter", 1).adapter or tmp_path


def merge(base: Path, adapter: Path, to: Path) -> PolicyVersion | None:
    policy: PolicyVersion | None = registry().hook.merge_policy(
        policy=PolicyVersion(number=1, model=str(base), adapter=adapter), folder=to
    )
    return policy


def distance(left: TorchLearner, right: TorchLearner) -> float:
    samples = random_samples(4, seed=9)
    rows = (torch.tensor([logp for row in learner.logprobs(samples) for logp in row]) for learner in (left, right))
    return float((next(rows) - next(rows)).abs().max())


@pytest.mark.parametrize("targets", [("q_proj", "down_proj"), ("v_proj", "lm_head")], ids=["layers", "tied-head"])
def test_the_merged_model_is_the_policy(base: Path, tmp_path: Path, targets: tuple[str, ...]) -> None:
    learner = trained(base, lora_target_modules=targets)
    published = learner.publish(tmp_path / "adapter", 1)
    assert published.adapter is not None
    merged = merge(base, published.adapter, tmp_path / "merged")
    assert merged == PolicyVersion(number=0, model=str(tmp_path / "merged"))
    fresh = make_learner(tmp_path / "merged")
    assert distance(fresh, learner) < 1e-4 < 0.05 < distance(make_learner(base), learner)
    samples = random_samples(2, seed=3)
    assert same_rows(fresh.reference_logprobs(samples), fresh.logprobs(samples)), (
        "its reference is the policy it starts from"
    )
    weights = load_file(tmp_path / "merged" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert ("lm_head.weight" in weights) == ("lm_head" in targets)
    assert (tmp_path / "merged" / "tokenizer.json").is_file()


@pytest.mark.parametrize("make", [make_tiny_gpt2, make_tiny_llama], ids=["gpt2", "llama"])
def test_other_families_are_merged_as_well(make: Callable[[Path], Path], tmp_path: Path) -> None:
    family = make(tmp_path / "family")
    names = ("c_attn", "c_proj", "c_fc") if make is make_tiny_gpt2 else ("q_proj", "up_proj")
    learner = trained(family, lora_target_modules=names)
    adapter = learner.publish(tmp_path / "adapter", 1).adapter
    assert adapter is not None and merge(family, adapter, tmp_path / "merged") is not None
    assert distance(make_learner(tmp_path / "merged", lora_target_modules=names), learner) < 1e-4
    assert distance(make_learner(family, lora_target_modules=names), learner) > 0.01


def edited(name: str, value: Any) -> Callable[[Path], None]:
    def edit(adapter: Path) -> None:
        path = adapter / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))

    return edit


def retensored(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def edit(adapter: Path) -> None:
        tensors = load_file(adapter / "adapter_model.safetensors")
        change(tensors)
        save_file(tensors, adapter / "adapter_model.safetensors")

    return edit


NAME = "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"

WRONG: dict[str, tuple[str, Callable[[Path], object]]] = {
    "layers that are not there": ("does not fit", edited("target_modules", ["c_attn"])),
    "another rank": ("does not fit", edited("r", 8)),
    "a tensor less": ("None in the adapter", retensored(lambda tensors: tensors.pop(NAME))),
    "not a number": ("not finite", retensored(lambda tensors: tensors[NAME].fill_(float("nan")))),
    "cut weights": ("cannot be read", lambda adapter: (adapter / "adapter_model.safetensors").write_bytes(b"\1" * 40)),
    "no weights": ("cannot be read", lambda adapter: (adapter / "adapter_model.safetensors").unlink()),
    "no configuration": ("cannot be read", lambda adapter: (adapter / "adapter_config.json").write_text("[]x")),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_misfit_is_refused_and_leaves_nothing(base: Path, adapter: Path, tmp_path: Path, case: str) -> None:
    message, damage = WRONG[case]
    damage(adapter)
    with pytest.raises(ConfigError, match=message):
        merge(base, adapter, tmp_path / "merged")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter"]


def test_an_adapter_of_another_architecture_is_refused(adapter: Path, tmp_path: Path) -> None:
    other = make_tiny_qwen3(tmp_path / "other", hidden=96)
    with pytest.raises(ConfigError, match="does not fit"):
        merge(other, adapter, tmp_path / "merged")


def test_another_method_is_nobodys(base: Path, adapter: Path, tmp_path: Path) -> None:
    edited("peft_type", "IA3")(adapter)
    assert merge(base, adapter, tmp_path / "merged") is None


def test_merging_again_replaces_what_was_there(base: Path, adapter: Path, tmp_path: Path) -> None:
    merge(base, adapter, tmp_path / "merged")
    before = (tmp_path / "merged" / "model.safetensors").read_bytes()
    (tmp_path / "merged" / "model.safetensors").write_bytes(b"half")
    shutil.copy(adapter / "adapter_config.json", tmp_path / "merged")
    merge(base, adapter, tmp_path / "merged")
    assert (tmp_path / "merged" / "model.safetensors").read_bytes() == before
    assert not (tmp_path / "merged" / "adapter_config.json").exists()
