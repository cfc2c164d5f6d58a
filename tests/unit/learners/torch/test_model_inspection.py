from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import huggingface_hub.constants as hub
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

from finqa_cli.contracts import LearnerContext
from finqa_cli.errors import AuthenticationError, ConfigError, ServiceUnavailableError
from finqa_cli.placement.known_models import is_spelled_out
from finqa_plugins.learners.torch.inspection import inspect
from finqa_plugins.learners.torch.meta_model import build_and_describe
from finqa_plugins.learners.torch.trained_model import add_adapter, choose_targets

SIZES = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
SMALL: dict[str, dict[str, Any]] = {
    "qwen3": {**SIZES, "head_dim": 16, "tie_word_embeddings": True},
    "llama": SIZES,
    "phi3": SIZES,
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 300, "n_positions": 128},
    "qwen3_moe": {**SIZES, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
}


def written(folder: Path, family: str, **values: Any) -> Any:
    config = CONFIG_MAPPING[family](**values)
    config.save_pretrained(folder)
    return config


@pytest.mark.parametrize("family", SMALL)
def test_what_is_built_without_weights_has_the_sizes_of_the_real_model(tmp_path: Path, family: str) -> None:
    config = written(tmp_path, family, **SMALL[family])
    found = inspect(str(tmp_path))
    real = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    assert found.parameters == sum(part.numel() for part in real.parameters())
    assert found.class_name == type(real).__name__ and found.family == family
    with torch.no_grad():
        cache = real(input_ids=torch.ones(1, 5, dtype=torch.long), use_cache=True).past_key_values
    kept = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    assert found.kv_values_per_token * 5 == kept
    assert found.kv_values_per_token == 2 * found.layers * found.key_value_heads * found.head_dim
    assert found.tied == (real.get_input_embeddings().weight is real.get_output_embeddings().weight)
    assert (found.layers, found.hidden, found.heads, found.vocabulary) == (2, 32, 4, 300)


@pytest.mark.parametrize("family", ["qwen3", "llama", "phi3", "gpt2"])
def test_the_adapter_has_as_many_weights_as_announced(tmp_path: Path, family: str) -> None:
    config = written(tmp_path, family, **SMALL[family])
    found = inspect(str(tmp_path))
    adapted = add_adapter(AutoModelForCausalLM.from_config(config), learner_context(rank=3), found.lora_targets)
    trained = sum(part.numel() for part in adapted.parameters() if part.requires_grad)
    assert trained == found.adapter_parameters(found.lora_targets, 3) > 0


def learner_context(*, rank: int, targets: tuple[str, ...] = ()) -> LearnerContext:
    return LearnerContext(
        model="some/model",
        learning_rate=1e-3,
        lora_rank=rank,
        lora_alpha=2 * rank,
        lora_dropout=0.0,
        lora_target_modules=targets,
        gradient_checkpointing=False,
        max_grad_norm=1.0,
        temperature=1.0,
        seed=0,
    )


FULL: dict[str, dict[str, Any]] = {
    **{family: {**SIZES, "max_position_embeddings": 128} for family in ("llama", "mistral", "qwen2")},
    "qwen3": {**SMALL["qwen3"], "max_position_embeddings": 128},
    "gpt2": SMALL["gpt2"],
}
CHANGES: list[dict[str, Any]] = [
    {},
    {"tie_word_embeddings": False},
    {"tie_word_embeddings": True},
    {"attention_bias": True, "mlp_bias": True},
    {"num_key_value_heads": 4, "hidden_size": 64, "head_dim": 8},
    {"n_inner": 80, "add_cross_attention": False},
    {"vocab_size": "300"},
    {"vocab_size": True},
    {"num_attention_heads": 3},
    {"num_hidden_layers": 1001},
    {"hidden_act": "gelu9"},
    {"activation_function": "relu"},
    {"pad_token_id": 300},
    {"rope_parameters": {"rope_type": "of mine"}},
    {"logit_scale": 2.0},
]


@pytest.mark.parametrize(
    ("family", "change"),
    [
        pytest.param(family, change, marks=() if family == "qwen3" or not change else pytest.mark.slow)
        for family in FULL
        for change in CHANGES
    ],
    ids=str,
)
def test_what_is_read_of_a_configuration_is_what_transformers_builds(
    tmp_path: Path, family: str, change: dict[str, Any]
) -> None:
    whole = {**CONFIG_MAPPING[family](**FULL[family]).to_dict(), **change}
    known: dict[str, Any] = {}
    read = 0
    for left_out in (None, *whole):
        config = {key: value for key, value in whole.items() if key != left_out}
        (tmp_path / "config.json").write_text(json.dumps(config))
        if is_spelled_out(config):
            read += 1
            assert outcome(tmp_path) == outcome_of_build(tmp_path, known), left_out
    assert change or read, "the configuration that transformers writes is read"


def outcome(folder: Path, *, build: bool = False) -> Any:
    try:
        return build_and_describe(folder, "any", str(folder)) if build else inspect(str(folder))
    except ConfigError as error:
        return error.message.partition("(")[0]


def outcome_of_build(folder: Path, known: dict[str, Any]) -> Any:
    """Builds a model once for all files that transformers reads alike: most that are left out are defaults."""
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True).to_json_string(use_diff=False)
    except Exception:  # transformers and its validators raise their own kinds
        return outcome(folder, build=True)
    if config not in known:
        known[config] = outcome(folder, build=True)
    return known[config]


def test_gpt2_has_targets_and_a_word_about_engines(tmp_path: Path) -> None:
    written(tmp_path, "gpt2", **SMALL["gpt2"])
    found = inspect(str(tmp_path))
    assert found.lora_targets == ("c_attn", "c_proj", "c_fc")
    shapes = {(part.name, part.inputs, part.outputs, part.kind) for part in found.linear}
    assert shapes == {
        ("c_attn", 32, 96, "Conv1D"),
        ("c_proj", 32, 32, "Conv1D"),
        ("c_fc", 32, 128, "Conv1D"),
        ("c_proj", 128, 32, "Conv1D"),
    }
    assert any("vLLM serves no adapter" in warning and "--engine transformers" in warning for warning in found.warnings)


def test_a_target_that_a_model_lacks_is_answered_with_those_that_it_has(tmp_path: Path) -> None:
    config = written(tmp_path, "gpt2", **SMALL["gpt2"])
    with pytest.raises(
        ConfigError, match="no linear layer named q_proj in its text decoder; it has c_attn, c_fc, c_proj, lm_head"
    ) as caught:
        choose_targets(AutoModelForCausalLM.from_config(config), learner_context(rank=3, targets=("q_proj",)))
    assert caught.value.remedy == "--lora-target-modules c_attn,c_proj,c_fc"


def test_experts_that_no_adapter_reaches_are_announced(tmp_path: Path) -> None:
    written(tmp_path, "qwen3_moe", **{**SMALL["qwen3_moe"], "num_experts": 64})
    found = inspect(str(tmp_path))
    assert found.lora_targets == ("q_proj", "k_proj", "v_proj", "o_proj")
    assert any("outside linear layers" in warning for warning in found.warnings)


QWEN3 = {"vocab_size": 151936, "num_key_value_heads": 8, "head_dim": 128}
LLAMA3 = {"vocab_size": 128256, "num_key_value_heads": 8, "num_attention_heads": 32}
PUBLISHED: dict[str, tuple[str, int, dict[str, Any]]] = {
    "Qwen3-4B": (
        "qwen3",
        4_022_468_096,
        QWEN3
        | {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32}
        | {"tie_word_embeddings": True},
    ),
    "Qwen3-8B": (
        "qwen3",
        8_190_735_360,
        QWEN3 | {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32},
    ),
    "Qwen3-14B": (
        "qwen3",
        14_768_307_200,
        QWEN3 | {"hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 40, "num_attention_heads": 40},
    ),
    "Llama-3.2-1B": (
        "llama",
        1_235_814_400,
        LLAMA3
        | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
        | {"tie_word_embeddings": True},
    ),
    "Llama-3-8B": (
        "llama",
        8_030_261_248,
        LLAMA3 | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
    ),
    "DialoGPT-medium": ("gpt2", 354_823_168, {"n_embd": 1024, "n_layer": 24, "n_head": 16}),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_large_models_are_counted_as_published(tmp_path: Path, name: str) -> None:
    family, parameters, values = PUBLISHED[name]
    written(tmp_path, family, **{"tie_word_embeddings": family == "gpt2", **values, "dtype": "bfloat16"})
    found = inspect(str(tmp_path))
    assert found.parameters == parameters and found.dtype == "bfloat16"


BROKEN = {
    "not JSON": ('{"model_type": ', "cannot be read"),
    "a list": ("[]", "no model_type"),
    "no family": ("{}", "no model_type"),
    "an unknown family": ('{"model_type": "finqa9"}', r"\(finqa9\) cannot be built"),
    "an encoder with a decoder": ('{"model_type": "t5"}', r"\(t5\) cannot be built"),
    "a number as text": ('{"model_type": "llama", "hidden_size": "many"}', "cannot be built"),
    "no heads": ('{"model_type": "llama", "num_attention_heads": 0}', "cannot be built"),
    "a billion layers": ('{"model_type": "llama", "num_hidden_layers": 1000000000}', "1000000000 layers"),
    "foreign code": ('{"model_type": "x", "auto_map": {"AutoConfig": "a.B"}}', "cannot be built"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_config_is_explained(tmp_path: Path, name: str) -> None:
    text, reason = BROKEN[name]
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=reason) as caught:
        inspect(str(tmp_path))
    assert caught.value.remedy and "\n" not in caught.value.message


@contextmanager
def _hub(status: int, code: str, body: bytes) -> Iterator[str]:
    """One answer to every question, as the hub gives it, below a path that no client of another test knows."""
    root = f"/{secrets.token_hex(8)}"

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(status)
            for name, value in {"X-Repo-Commit": "0" * 40, "ETag": '"1"', "X-Error-Code": code}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()

        def do_GET(self) -> None:
            if not self.path.startswith(f"{root}/"):
                self.send_error(404)
                return
            asked.append(self.path)
            self.do_HEAD()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None: ...

    asked: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{root}"
        assert not [path for path in asked if "resolve" not in path or not path.endswith("/config.json")]
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "code", "error", "reason"),
    [
        (200, "", None, ""),
        (401, "GatedRepo", AuthenticationError, "accepted its licence"),
        (404, "RepoNotFound", ConfigError, "no model of that name"),
        (404, "EntryNotFound", ConfigError, "no model of that name"),
        (403, "", ServiceUnavailableError, "cannot be asked"),
    ],
)
def test_the_hub_is_asked_for_the_configuration_only(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    code: str,
    error: type[Exception] | None,
    reason: str,
) -> None:
    text = json.dumps({"model_type": "llama", **SIZES}).encode()
    with _hub(status, code, text) as endpoint:
        monkeypatch.setattr(hub, "ENDPOINT", endpoint)
        monkeypatch.setattr(hub, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr(hub, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path))
        if error is None:
            assert inspect("some/model").layers == 2
        else:
            with pytest.raises(error, match=reason):
                inspect("some/model")


def test_a_hub_that_may_not_be_asked_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ServiceUnavailableError, match="HF_HUB_OFFLINE"):
        inspect("some/model")
    with pytest.raises(ConfigError, match="no model folder"):
        inspect("not a/valid/name")
