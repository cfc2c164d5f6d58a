"""What full training publishes: precision and size of the files, and that neither touches the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures.tiny_learners import GRPO_LOSS, as_batch, make_learner, random_samples, same_rows
from safetensors.torch import load_file

from finqa_plugins.engines.vllm.vllm_control import check_folder
from finqa_plugins.learners.torch import state, trained_model
from finqa_plugins.learners.torch.config import TorchLearnerConfig
from finqa_plugins.learners.torch.torch_learner import TorchLearner
from finqa_plugins.learners.torch.trained_model import uses_tf32
from finqa_testing.tiny_models import make_tiny_qwen3


def trained(model: Path, **options: Any) -> TorchLearner:
    """A learner of all weights that took one step."""
    learner = make_learner(model, options, lora_rank=0, learning_rate=1e-3)
    learner.update(as_batch(random_samples(3)), GRPO_LOSS)
    return learner


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: value for path in folder.glob("*.safetensors") for name, value in load_file(path).items()}


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def test_bfloat16_halves_the_file_and_the_state_to_resume_from_stays_float32(
    learner_model: Path, tmp_path: Path
) -> None:
    learner = trained(learner_model, publish_dtype="bfloat16")
    before = {name: part.detach().clone() for name, part in learner._trained.items()}
    learner.publish(tmp_path / "half", 1)
    learner.save(tmp_path / "state")
    written = weights(tmp_path / "half")
    assert {name: part.to(torch.bfloat16).tolist() for name, part in before.items()} == {
        name: part.tolist() for name, part in written.items()
    }
    assert {part.dtype for part in written.values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == "bfloat16"
    saved = load_file(tmp_path / "state" / "trained.safetensors")
    assert all(torch.equal(saved[name], part) and part.dtype == torch.float32 for name, part in before.items())
    assert all(torch.equal(learner._trained[name], part) for name, part in before.items())
    trained(learner_model, publish_dtype="float32").publish(tmp_path / "whole", 1)
    assert 0.5 <= size(tmp_path / "half") / size(tmp_path / "whole") < 0.55


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({}, torch.float32),
        ({"dtype": "bfloat16"}, torch.bfloat16),
        ({"dtype": "bfloat16", "publish_dtype": "float32"}, torch.float32),
    ],
    ids=["as_on_the_cpu", "as_on_cuda", "as_set"],
)
def test_the_precision_is_that_of_the_computation_unless_set(
    learner_model: Path, tmp_path: Path, options: dict[str, Any], dtype: torch.dtype
) -> None:
    trained(learner_model, **options).publish(tmp_path / "v1", 1)
    assert {part.dtype for part in weights(tmp_path / "v1").values()} == {dtype}
    make_learner(learner_model, options).publish(tmp_path / "adapter", 1)
    assert {part.dtype for part in weights(tmp_path / "adapter").values()} == {torch.float32}


def test_an_adapter_has_what_a_vllm_server_reads(learner_model: Path, tmp_path: Path) -> None:
    learner = make_learner(learner_model, lora_alpha=8)
    learner.publish(tmp_path / "v1", 1)
    config = json.loads((tmp_path / "v1" / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 4, 8)
    assert config["inference_mode"] and not config["modules_to_save"]
    saved = load_file(tmp_path / "v1" / "adapter_model.safetensors")
    trained = {name.replace(".default.", "."): part for name, part in learner._trained.items()}
    assert saved.keys() == trained.keys() and all(torch.equal(part, trained[name]) for name, part in saved.items())
    modules = {name.rsplit(".", 3)[1] for name in saved}
    assert modules == set(config["target_modules"])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_large_model_is_several_files_with_an_index(
    learner_model: Path, tmp_path: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "LARGEST_FILE", "100KB")
    trained(learner_model, publish_dtype=precision).publish(tmp_path / "v1", 1)
    files = sorted((tmp_path / "v1").glob("*.safetensors"))
    assert len(files) > 1 and max(path.stat().st_size for path in files) < 110_000
    index = json.loads((tmp_path / "v1" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {path.name for path in files}
    check_folder(str(tmp_path / "v1"))
    monkeypatch.setattr(state, "LARGEST_FILE", "5GB")
    trained(learner_model, publish_dtype=precision).publish(tmp_path / "one", 1)
    sample = random_samples(2)
    ours, theirs = (make_learner(tmp_path / name, lora_rank=0).logprobs(sample) for name in ("v1", "one"))
    assert same_rows(ours, theirs)


def test_tied_embeddings_are_written_once_and_untied_ones_twice(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    tied = make_tiny_qwen3(tmp_path / "tied")
    model = AutoModelForCausalLM.from_pretrained(tied)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.save_pretrained(tmp_path / "untied")
    for file in tied.glob("token*"):
        (tmp_path / "untied" / file.name).write_bytes(file.read_bytes())
    for name, both in (("tied", False), ("untied", True)):
        trained(tmp_path / name, publish_dtype="bfloat16").publish(tmp_path / f"{name} v1", 1)
        assert ("lm_head.weight" in weights(tmp_path / f"{name} v1")) is both


@pytest.mark.parametrize(
    ("option", "device", "computation", "used"),
    [
        ("auto", "cuda", torch.bfloat16, True),
        ("auto", "cuda", torch.float32, False),
        ("off", "cuda", torch.bfloat16, False),
        ("on", "cuda", torch.float32, True),
        ("on", "cpu", torch.bfloat16, False),
    ],
)
def test_tf32_is_for_cuda_where_the_computation_is_rounded_anyway(
    option: str, device: str, computation: torch.dtype, used: bool
) -> None:
    config = TorchLearnerConfig.model_validate({"tf32": option})
    assert uses_tf32(config, torch.device(device), computation) is used


def test_a_learner_sets_the_precision_of_products_where_tf32_is_used(
    learner_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_learner(learner_model)
    assert torch.get_float32_matmul_precision() == "highest"
    monkeypatch.setattr(trained_model, "uses_tf32", lambda *facts: True)
    try:
        make_learner(learner_model)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
