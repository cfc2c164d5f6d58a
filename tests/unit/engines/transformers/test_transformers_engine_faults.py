"""Bad models, bad requests and failures of torch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from finqa_cli.contracts import EngineContext
from finqa_cli.errors import ConfigError, EngineError
from finqa_cli.types import Completion, GenerateRequest, Sampling
from finqa_plugins.engines.transformers.config import TransformersEngineConfig
from finqa_plugins.engines.transformers.device_placement import choose_device, need
from finqa_plugins.engines.transformers.transformers_engine import TransformersEngine
from finqa_testing.contract.engine_play import gathered

MakeEngine = Callable[..., AbstractAsyncContextManager[TransformersEngine]]


def ask(key: str, length: int = 10) -> GenerateRequest:
    return GenerateRequest(key=key, token_ids=tuple(range(5, 5 + length)), sampling=Sampling(max_tokens=4))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no weights"),
        (lambda folder: [path.unlink() for path in folder.glob("tokenizer*")], "no a tokenizer|no tokenizer"),
        (lambda folder: [path.unlink() for path in folder.iterdir()], "no config.json, no weights"),
        (lambda folder: shutil.rmtree(folder), "cannot be loaded"),
        (lambda folder: (folder / "config.json").write_text("{"), "cannot be loaded"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"torn"), "cannot be loaded"),
        (lambda folder: _drop_tensor(folder / "model.safetensors"), "do not fit its config.json"),
    ],
)
async def test_an_incomplete_model_folder_names_what_is_missing(
    tiny_model: Path, tmp_path: Path, spoil: Callable[[Path], object], reason: str
) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    spoil(folder)
    engine = TransformersEngine(None, EngineContext(model=str(folder)))
    with pytest.raises(ConfigError, match=reason) as caught:
        await engine.start()
    assert caught.value.remedy
    await engine.close()


async def test_options_that_do_not_fit_are_refused(tiny_model: Path) -> None:
    import torch

    model = str(tiny_model)
    with pytest.raises(ConfigError, match="one device"):
        await TransformersEngine(None, EngineContext(model=model, tensor_parallel_size=2)).start()
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="no CUDA device"):
            await TransformersEngine(TransformersEngineConfig(device="cuda"), EngineContext(model=model)).start()


@pytest.mark.parametrize("token_ids", [(), (1, -1), (1, 10_000)])
async def test_impossible_ids_fail_alone(started: MakeEngine, token_ids: tuple[int, ...]) -> None:
    async with started() as engine:
        bad = GenerateRequest(key="bad", token_ids=token_ids, sampling=Sampling(max_tokens=4))
        failed, served = await gathered(engine.generate(bad), engine.generate(ask("good")))
    assert isinstance(failed, EngineError)
    assert "vocabulary" in failed.message
    assert isinstance(served, Completion)


async def test_before_start_nothing_is_served(tiny_model: Path) -> None:
    engine = TransformersEngine(None, EngineContext(model=str(tiny_model)))
    with pytest.raises(EngineError, match="not started"):
        await engine.generate(ask("early"))
    await engine.close()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("shapes differ"), "batch of 2 requests of up to 14 tokens: RuntimeError: shapes differ"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "out of memory on a batch of 2"),
        (MemoryError(), "out of memory"),
    ],
)
async def test_a_failing_batch_reaches_exactly_its_requests(
    started: MakeEngine, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    async with started() as engine:
        generator = engine._worker._generator
        assert generator is not None
        forward = generator.model.forward

        def failing(token_ids: Any, *rest: Any) -> Any:
            if token_ids.shape[0] > 1:
                raise error
            return forward(token_ids, *rest)

        monkeypatch.setattr(generator.model, "forward", failing)
        # Equal prompts would share a row, and lengths as far apart as the third are never one batch.
        results = await gathered(*(engine.generate(ask(key, n)) for key, n in (("a", 9), ("b", 10), ("long", 285))))
        assert all(isinstance(result, EngineError) for result in results[:2])
        assert reason in results[0].message
        assert isinstance(results[2], Completion)
        if "memory" in reason:
            assert "max_batch" in results[0].remedy
        monkeypatch.undo()
        assert isinstance(await engine.generate(ask("after")), Completion)


async def test_weights_that_are_not_finite_are_a_fault_not_a_text(started: MakeEngine) -> None:
    import torch

    async with started() as engine:
        generator = engine._worker._generator
        assert generator is not None
        weight = generator.model.module.lm_head.weight
        kept = weight.clone()
        weight[:] = float("nan")
        with pytest.raises(EngineError, match="not finite"):
            await engine.generate(ask("e#0"))
        weight.copy_(kept)
        assert torch.isfinite(torch.tensor((await engine.generate(ask("e#1"))).logprobs)).all()


async def test_a_model_that_is_too_large_is_refused_before_a_weight_is_read(tiny_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_size": 65536, "intermediate_size": 262144, "num_hidden_layers": 100}
    config.pop("layer_types", None)
    (folder / "config.json").write_text(json.dumps(config))
    engine = TransformersEngine(TransformersEngineConfig(dtype="float32"), EngineContext(model=str(folder)))
    with pytest.raises(ConfigError, match=r"needs \d+\.\d GiB \(weights .* keys and values .* activations") as caught:
        await engine.start()
    assert "It may take" in caught.value.message
    assert "kv_cache_gb" in caught.value.remedy
    assert "bfloat16" in caught.value.remedy
    await engine.close()


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")]
)
async def test_running_out_of_memory_while_loading_tells_the_need(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    from transformers import AutoModelForCausalLM

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", fail)
    engine = TransformersEngine(None, EngineContext(model=str(tiny_model)))
    with pytest.raises(ConfigError, match=r"needs .* GiB") as caught:
        await engine.start()
    assert "max_batch" in caught.value.remedy
    await engine.close()


def test_the_need_is_that_of_the_loaded_model(tiny_model: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    module = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    config = AutoConfig.from_pretrained(tiny_model)
    sizes: dict[str, Any] = {"dtype": torch.float32, "max_batch": 4, "max_context": 100}
    needs = need(config, **sizes, kv_bytes=None)
    assert needs.weights == sum(parameter.numel() * 4 for parameter in module.parameters())
    with torch.no_grad():
        cache = module(torch.zeros(1, 100, dtype=torch.long), use_cache=True).past_key_values
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert needs.keys_values == held
    assert need(config, **sizes, kv_bytes=1000).keys_values == 2000
    assert need(config, **sizes, kv_bytes=1 << 40).keys_values == 2 * 4 * held, "more than a full batch is never used"
    assert needs.total == needs.weights + needs.keys_values + needs.activations


def test_each_replica_has_a_device_of_its_own() -> None:
    def choose(name: str, replica: int = 0, replicas: int = 1, cuda_devices: int = 4) -> str:
        return str(choose_device(name, replica=replica, replicas=replicas, cuda_devices=cuda_devices))

    assert choose("auto", cuda_devices=0) == choose("cpu") == "cpu"
    assert [choose("auto", number, 3) for number in range(3)] == ["cuda:0", "cuda:1", "cuda:2"]
    with pytest.raises(ConfigError, match="5 replicas, 4 devices") as caught:
        choose("cuda", 0, 5)
    assert caught.value.remedy == "--engine-replicas 4"
    with pytest.raises(ConfigError, match="no CUDA device"):
        choose("cuda", cuda_devices=0)


def _drop_tensor(path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    tensors.pop(next(name for name in tensors if "q_proj" in name))
    save_file(tensors, path, metadata={"format": "pt"})
