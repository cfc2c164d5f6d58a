from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures.tiny_learners import GRPO_LOSS, as_batch, make_learner, random_samples, same_rows

from finqa_cli.errors import ConfigError, StorageError
from finqa_plugins.learners.torch.torch_learner import TorchLearner
from finqa_testing.tiny_models import make_tiny_qwen3


def digest(learner: TorchLearner) -> str:
    whole = hashlib.sha256()
    for name, part in learner._trained.items():
        whole.update(name.encode() + part.detach().numpy().tobytes())
    return whole.hexdigest()


def take_steps(learner: TorchLearner, steps: range) -> None:
    for step in steps:
        learner.update(as_batch(random_samples(4, seed=step), [(0, 1), (2, 3)]), GRPO_LOSS)


@pytest.mark.parametrize("context", [{}, {"lora_rank": 0}, {"lora_dropout": 0.1}], ids=["adapter", "full", "dropout"])
def test_a_loaded_learner_continues_to_the_bit(learner_model: Path, tmp_path: Path, context: dict[str, Any]) -> None:
    options = {"schedule": "cosine", "total_steps": 6, "warmup_steps": 1}
    unbroken = make_learner(learner_model, options, **context)
    take_steps(unbroken, range(4))
    first = make_learner(learner_model, options, **context)
    take_steps(first, range(2))
    first.save(tmp_path / "state")
    second = make_learner(learner_model, options, **context)
    second.load(tmp_path / "state")
    assert digest(second) == digest(first)
    take_steps(second, range(2, 4))
    assert digest(second) == digest(unbroken)


def test_a_learner_without_a_step_can_be_saved_and_loaded(learner_model: Path, tmp_path: Path) -> None:
    fresh = make_learner(learner_model)
    fresh.save(tmp_path / "state")
    moved = make_learner(learner_model)
    take_steps(moved, range(1))
    moved.load(tmp_path / "state")
    take_steps(moved, range(2))
    take_steps(fresh, range(2))
    assert digest(moved) == digest(fresh)


@pytest.mark.parametrize(
    ("context", "field"),
    [
        ({"lora_rank": 2}, "lora_rank"),
        ({"lora_alpha": 7}, "lora_alpha"),
        ({"lora_target_modules": ("q_proj",)}, "lora_target_modules"),
        ({"lora_rank": 0}, "lora_rank"),
    ],
)
def test_a_state_of_another_adapter_is_refused(
    learner_model: Path, tmp_path: Path, context: dict[str, Any], field: str
) -> None:
    make_learner(learner_model).save(tmp_path / "state")
    other = make_learner(learner_model, **context)
    before = digest(other)
    with pytest.raises(ConfigError, match=f"belongs to another {field}"):
        other.load(tmp_path / "state")
    assert digest(other) == before


def test_a_state_of_another_base_model_is_refused(learner_model: Path, tmp_path: Path) -> None:
    make_learner(learner_model).save(tmp_path / "state")
    other = make_tiny_qwen3(tmp_path / "other", seed=1)
    with pytest.raises(ConfigError, match="belongs to another base model"):
        make_learner(other).load(tmp_path / "state")


def test_the_base_model_may_have_moved(learner_model: Path, tmp_path: Path) -> None:
    make_learner(learner_model).save(tmp_path / "state")
    moved = Path(shutil.copytree(learner_model, tmp_path / "moved"))
    make_learner(moved).load(tmp_path / "state")


@pytest.mark.parametrize("name", ["learner.json", "trained.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize("damage", ["missing", "cut", "foreign"])
def test_a_damaged_state_is_refused(learner_model: Path, tmp_path: Path, name: str, damage: str) -> None:
    folder = tmp_path / "state"
    learner = make_learner(learner_model)
    take_steps(learner, range(1))
    learner.save(folder)
    path = folder / name
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:20])
    else:
        other = "optimizer.safetensors" if name == "trained.safetensors" else "trained.safetensors"
        content = json.dumps({"schema_version": 99, "step": 1, "identity": {}}).encode()
        path.write_bytes(content if name == "learner.json" else (folder / other).read_bytes())
    before = digest(learner)
    with pytest.raises(ConfigError, match="cannot be loaded"):
        learner.load(folder)
    assert digest(learner) == before


def test_a_published_adapter_is_a_peft_adapter_of_these_weights(learner_model: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    learner = make_learner(learner_model, learning_rate=1e-2)
    take_steps(learner, range(2))
    policy = learner.publish(tmp_path / "v1", 1)
    assert (policy.number, policy.model, policy.adapter) == (1, str(learner_model), tmp_path / "v1")
    about = json.loads((tmp_path / "v1" / "adapter_config.json").read_text())
    assert (about["base_model_name_or_path"], about["r"], about["peft_type"]) == (str(learner_model), 4, "LORA")
    sample = random_samples(1)[0]
    served = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(learner_model), tmp_path / "v1")
    with torch.no_grad():
        logprobs = torch.log_softmax(served(torch.tensor([sample.token_ids])).logits[0], -1)
    for place, value in enumerate(learner.logprobs([sample])[0]):
        if sample.loss_mask[place]:
            assert value == pytest.approx(float(logprobs[place - 1, sample.token_ids[place]]), abs=1e-4)


def test_a_published_full_model_is_a_complete_folder(learner_model: Path, tmp_path: Path) -> None:
    learner = make_learner(learner_model, lora_rank=0, learning_rate=1e-2)
    take_steps(learner, range(1))
    policy = learner.publish(tmp_path / "v1", 1)
    assert (policy.model, policy.adapter) == (str(tmp_path / "v1"), None)
    sample = random_samples(1)
    assert same_rows(make_learner(tmp_path / "v1", lora_rank=0).logprobs(sample), learner.logprobs(sample))
    assert not same_rows(make_learner(learner_model, lora_rank=0).logprobs(sample), learner.logprobs(sample))


def test_publishing_again_replaces_and_leaves_nothing_behind(learner_model: Path, tmp_path: Path) -> None:
    learner = make_learner(learner_model)
    learner.publish(tmp_path / "out" / "latest", 1)
    (tmp_path / "out" / "latest" / "stale").touch()
    learner.publish(tmp_path / "out" / "latest", 2)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["latest"]
    assert not (tmp_path / "out" / "latest" / "stale").exists()


@pytest.mark.parametrize("action", ["publish", "save"])
def test_a_place_that_cannot_be_written_is_a_storage_error(learner_model: Path, tmp_path: Path, action: str) -> None:
    (tmp_path / "file").touch()
    learner = make_learner(learner_model)
    with pytest.raises(StorageError, match="failed"):
        if action == "save":
            learner.save(tmp_path / "file" / "state")
        else:
            learner.publish(tmp_path / "file" / "v1", 1)


@pytest.mark.parametrize(
    ("patterns", "lacking"),
    [
        (["config.json"], r"configuration \(config.json\)"),
        (["*.safetensors"], r"weights \(\*.safetensors\)"),
        (["tokenizer*"], r"tokenizer \(tokenizer.json\)"),
    ],
)
def test_an_incomplete_model_folder_says_what_it_lacks(
    learner_model: Path, tmp_path: Path, patterns: list[str], lacking: str
) -> None:
    folder = Path(shutil.copytree(learner_model, tmp_path / "model"))
    for pattern in patterns:
        for path in folder.glob(pattern):
            path.unlink()
    with pytest.raises(ConfigError, match=f"lacks: {lacking}"):
        make_learner(folder)


def test_a_model_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be loaded"):
        make_learner(tmp_path / "nowhere")


def test_damaged_weights_are_a_config_error(learner_model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(learner_model, tmp_path / "model"))
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        make_learner(folder)


def test_an_unknown_target_module_names_the_known(learner_model: Path) -> None:
    with pytest.raises(ConfigError, match=r"named query in its text decoder; it has down_proj, .*lm_head"):
        make_learner(learner_model, lora_target_modules=("q_proj", "query"))
