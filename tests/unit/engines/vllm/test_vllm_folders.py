"""Model folders and the adapter that changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from finqa_cli.contracts import EngineContext, TokenEngine
from finqa_cli.errors import ConfigError, EngineError
from finqa_cli.types import GenerateRequest, PolicyVersion, Sampling
from finqa_plugins.engines._http.adapter_files import check_adapter, model_shapes, write_adapter
from finqa_plugins.engines.vllm.config import VllmEngineConfig
from finqa_plugins.engines.vllm.vllm_control import check_folder, check_replaceable
from finqa_plugins.engines.vllm.vllm_engine import FLOAT32_TOLERANCE, VllmEngine
from finqa_testing.tiny_models import make_tiny_qwen3

ASKED = GenerateRequest(key="a", token_ids=(1, 2), sampling=Sampling())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen3(tmp_path_factory.mktemp("folders") / "model")


def test_the_neutral_adapter_fits_the_model_and_changes_nothing(model: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    assert write_adapter(tmp_path, str(model), rank=1, zeros=True)
    assert check_adapter(tmp_path, model_shapes(str(model)), max_rank=1) is False
    read = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), tmp_path)
    low_rank = {name: value for name, value in read.named_parameters() if "lora_B" in name}
    assert low_rank
    assert all(not value.any() for value in low_rank.values())


def test_there_is_none_for_a_model_that_is_not_here(tmp_path: Path) -> None:
    assert not write_adapter(tmp_path, "org/model", rank=1, zeros=True)
    assert list(tmp_path.iterdir()) == []


def test_weights_are_not_replaced_where_the_output_matrix_would_stay(model: Path, tmp_path: Path) -> None:
    check_replaceable(str(model), gpu=True)
    check_replaceable("org/model", gpu=False)
    with pytest.raises(ConfigError, match="embeddings are tied") as caught:
        check_replaceable(str(model), gpu=False)
    assert "--lora-rank 16" in caught.value.remedy
    (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": False}))
    check_replaceable(str(tmp_path), gpu=False)


async def test_what_cannot_be_served_is_refused_before_anything_starts(model: Path, tmp_path: Path) -> None:
    check_folder(str(model))
    check_folder("org/model")
    (tmp_path / "config.json").write_text("{}")
    for context, reason in (
        (EngineContext(model=str(tmp_path)), "tokenizer_config.json, model.safetensors"),
        (EngineContext(model=str(model), lora_rank=1000), "up to rank 512"),
        (EngineContext(model=str(model), lora_rank=0, needs_tokens=True), "embeddings are tied"),
    ):
        engine = VllmEngine(None, context)
        with pytest.raises(ConfigError, match=reason):
            await engine.start()
        assert engine.server_pid is None
        await engine.close()


async def test_an_engine_that_is_not_started_or_closed_says_so(model: Path) -> None:
    engine = VllmEngine(None, EngineContext(model=str(model)))
    assert isinstance(engine, TokenEngine)
    assert (engine.max_context, engine.lockstep, engine.sleeps, engine.usage("a")) == (0, False, False, {})
    policy = PolicyVersion(number=1, model=str(model))
    for state in ("not started", "closed"):
        for call in (engine.generate(ASKED), engine.load(policy), engine.probe(ASKED), engine.sleep(), engine.wake()):
            with pytest.raises(EngineError, match=state):
                await call
        await engine.close()
    with pytest.raises(EngineError, match="closed"):
        await engine.start()


def test_the_tolerance_follows_what_is_computed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def tolerance(*, gpu: bool, **options: object) -> float | str | None:
        monkeypatch.setattr("finqa_plugins.engines.vllm.vllm_engine.has_gpu", lambda: gpu)
        return VllmEngine(VllmEngineConfig.model_validate(options), EngineContext(model="m")).probe_tolerance

    assert tolerance(gpu=False) == FLOAT32_TOLERANCE
    assert tolerance(gpu=False, dtype="bfloat16") == "measured"
    assert tolerance(gpu=True) == tolerance(gpu=True, dtype="float32") == "measured"
    assert tolerance(gpu=False, url="http://127.0.0.1:1") == "measured"
    assert tolerance(gpu=True, probe_tolerance=0.01) == 0.01


def test_requests_have_seeds_unless_one_server_at_a_url_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def seeded(*, gpu: bool, **options: object) -> bool:
        monkeypatch.setattr("finqa_plugins.engines.vllm.vllm_engine.has_gpu", lambda: gpu)
        return VllmEngine(VllmEngineConfig.model_validate(options), EngineContext(model="m")).seeded

    assert seeded(gpu=False) and seeded(gpu=True)
    assert seeded(gpu=True, urls=["http://127.0.0.1:1", "http://127.0.0.1:2"]), "which may have the same seed"
    assert not seeded(gpu=True, seeded=False)
    assert not seeded(gpu=False, url="http://127.0.0.1:1")
    assert seeded(gpu=False, url="http://127.0.0.1:1", seeded=True)
