"""What is read of a model in one place: of nested configurations, of other names of layers, of models that differ."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures.tiny_families import make_tiny, small_config
from fixtures.tiny_learners import GRPO_LOSS, as_batch, make_learner, random_samples
from peft.utils import load_peft_weights
from transformers import AutoConfig, AutoModelForCausalLM

from finqa_cli.errors import ConfigError
from finqa_cli.placement.known_models import text_settings
from finqa_cli.wiring.policies import resolve
from finqa_plugins.engines._http.adapter_files import vocabulary
from finqa_plugins.engines.transformers.served_model import load_model
from finqa_plugins.learners.torch.inspection import inspect
from finqa_plugins.learners.torch.torch_learner import TorchLearner
from finqa_plugins.model_facts import read_facts, target_names, text_decoder


def made(family: str, folder: Path) -> Path:
    return make_tiny(family, folder / family, Path(resolve("embedded").model))


def served(folder: Path) -> Any:
    return load_model(str(folder), device=torch.device("cpu"), dtype=torch.float32, fits=lambda config: None)


def test_a_multimodal_model_is_that_of_its_text(tmp_path: Path) -> None:
    folder = made("gemma3", tmp_path)
    facts = read_facts(AutoConfig.from_pretrained(folder))
    assert (facts.vocabulary, facts.context, facts.layers, facts.hidden) == (768, 512, 2, 32)
    assert set(facts.kinds) == {"sliding_attention"} and facts.attention == "sdpa" and not facts.stateful
    assert vocabulary(str(folder)) == 768
    assert (model := served(folder)).vocabulary == 768 and model.context == 512 and model.shares_openings
    names = {part.name for part in inspect(str(folder)).linear}
    assert names == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def test_the_vision_tower_gets_no_adapter(tmp_path: Path) -> None:
    learner = make_learner(made("gemma3", tmp_path), lora_target_modules=())
    learner.update(as_batch(random_samples(2)), GRPO_LOSS)
    adapter = learner.publish(tmp_path / "adapter", 1).adapter
    assert adapter is not None
    tensors = load_peft_weights(str(adapter), device="cpu")
    assert len(tensors) == 2 * 7 * 2 and all(".language_model." in name for name in tensors)
    with pytest.raises(ConfigError, match="no linear layer named fc1 in its text decoder") as caught:
        make_learner(made("gemma3", tmp_path), lora_target_modules=("fc1",))
    assert "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj" in caught.value.remedy


@pytest.mark.parametrize(
    ("family", "targets"),
    [
        ("phi3", {"o_proj", "qkv_proj", "gate_up_proj", "down_proj"}),
        ("gpt2", {"c_attn", "c_proj", "c_fc"}),
        ("mixtral", {"q_proj", "k_proj", "v_proj", "o_proj"}),
    ],
)
def test_layers_with_other_names_are_all_adapted(tmp_path: Path, family: str, targets: set[str]) -> None:
    config = small_config(family)
    model = AutoModelForCausalLM.from_config(config)
    assert set(target_names(model)) == targets
    config.save_pretrained(tmp_path)
    assert set(inspect(str(tmp_path)).lora_targets) == targets


def test_experts_that_peft_would_fuse_are_not_adapted(tmp_path: Path) -> None:
    folder = made("afmoe", tmp_path)
    learner = make_learner(folder, lora_target_modules=())
    learner.start()
    assert learner._built.identity.lora_target_modules == ("k_proj", "o_proj", "q_proj", "v_proj")
    with pytest.raises(ConfigError, match="adapted in its fused experts") as caught:
        make_learner(folder, lora_target_modules=("q_proj", "down_proj"))
    assert caught.value.remedy == "--lora-target-modules q_proj,k_proj,v_proj,o_proj"


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("bert", "depend on later tokens"),
        ("cohere", r"rescales its logits \(logit_scale\)"),
        ("minicpm3", r"rescales its logits \(logits_scaling\)"),
    ],
)
def test_what_the_learner_would_compute_wrongly_is_refused(tmp_path: Path, family: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        make_learner(made(family, tmp_path), lora_target_modules=())
    assert ("causal language model" if family == "bert" else "such as a Qwen3") in caught.value.remedy


def test_a_transformation_before_the_output_layer_is_refused(tmp_path: Path) -> None:
    folder = made("bert", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"is_decoder": True}))
    with pytest.raises(ConfigError, match="not those of its output layer alone") as caught:
        make_learner(folder, lora_target_modules=())
    assert "choose a model without a further transformation" in caught.value.remedy


def test_a_model_that_keeps_all_activations_is_trained_without_checkpointing(tmp_path: Path) -> None:
    folder = made("gpt_neox_japanese", tmp_path)
    with pytest.raises(ConfigError, match="has no gradient checkpointing") as caught:
        make_learner(folder, lora_target_modules=(), gradient_checkpointing=True)
    assert caught.value.remedy == "--disable-gradient-checkpointing"
    make_learner(folder, lora_target_modules=(), gradient_checkpointing=False)


@pytest.mark.parametrize("method", ["gptq", "fp8", "awq", "bitsandbytes"])
def test_quantized_weights_are_not_trained(tmp_path: Path, method: str) -> None:
    folder = made("llama", tmp_path)
    learner = make_learner(folder)
    config = json.loads((folder / "config.json").read_text())
    quantized = config | {"quantization_config": {"quant_method": method, "bits": 4}}
    (folder / "config.json").write_text(json.dumps(quantized))
    for rank in (16, 0):
        with pytest.raises(ConfigError, match=rf"are quantized \({method}\)") as caught:
            TorchLearner(learner._config, replace(learner._context, lora_rank=rank)).check()
        assert "in bfloat16" in caught.value.remedy


def test_layers_that_peft_refuses_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="PEFT cannot adapt") as caught:
        make_learner(made("ctrl", tmp_path), lora_target_modules=())
    assert "name other layers with --lora-target-modules" in caught.value.remedy


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("bart", "computes other logits with cached keys and values"),  # positions by place in the row
        ("roberta", "computes other logits with cached keys and values"),  # positions begin behind the padding's id
        ("mamba", "layers of linear_attention"),
        ("xmod", "Input language unknown"),  # an error of its own code
        ("gemma4_text", "keys and values of one shape"),
    ],
)
def test_what_the_engine_would_sample_wrongly_is_refused(tmp_path: Path, family: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        served(made(family, tmp_path))
    assert "--engine vllm" in caught.value.remedy


@pytest.mark.parametrize("family", ["llama4", "opt", "gemma3", "modernbert-decoder", "gpt2"])
def test_the_text_decoder_ends_in_hidden_states(family: str) -> None:
    config = small_config(family)
    model = AutoModelForCausalLM.from_config(config).eval()
    found = text_decoder(model)(input_ids=torch.arange(4)[None], use_cache=False).last_hidden_state
    assert found.shape == (1, 4, 32)


def test_a_nested_configuration_is_found_without_transformers() -> None:
    assert text_settings({"text_config": {"vocab_size": 3}, "vocab_size": 4}) == {"vocab_size": 3}
    assert text_settings({"text_config": None, "vocab_size": 4})["vocab_size"] == 4
