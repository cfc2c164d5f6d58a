"""Hot swap: exact, atomic, and refused with a reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import torch

from finqa_cli.errors import EngineError
from finqa_cli.types import PolicyVersion
from finqa_plugins.engines.transformers.transformers_engine import TransformersEngine
from finqa_testing.contract.engine_play import make_adapter, play_episodes, worst_difference
from finqa_testing.tiny_models import make_tiny_qwen3

MakeEngine = Callable[..., AbstractAsyncContextManager[TransformersEngine]]


async def test_swapping_back_and_forth_leaves_the_same_bits(
    started: MakeEngine, tiny_model: Path, adapter: Callable[..., Path]
) -> None:
    first, second = adapter(1), adapter(2)
    base = PolicyVersion(number=0, model=str(tiny_model))
    seen = []
    async with started() as engine:
        for folder in (None, first, second, first, None, second):
            policy = PolicyVersion(number=0, model=str(tiny_model), adapter=folder) if folder else base
            await engine.load(policy)
            seen.append(await play_episodes(engine))
    assert seen[0] == seen[4]
    assert seen[1] == seen[3]
    assert seen[2] == seen[5]
    assert seen[0] != seen[1] != seen[2]


async def test_bfloat16_keeps_the_adapter_beside_the_weights(
    started: MakeEngine, tiny_model: Path, adapter: Callable[..., Path]
) -> None:
    import torch

    folder = adapter(1)
    async with started(dtype="bfloat16") as engine:
        generator = engine._worker._generator
        assert generator is not None
        before = {name: value.clone() for name, value in generator.model.module.state_dict().items()}
        await engine.load(PolicyVersion(number=1, model=str(tiny_model), adapter=folder))
        played = await play_episodes(engine, count=6)
        after = generator.model.module.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)
    with_adapter = worst_difference(tiny_model, played, folder, torch.bfloat16)
    without = worst_difference(tiny_model, played, None, torch.bfloat16)
    assert with_adapter < 0.5 * without


async def test_rank_stabilised_adapter(started: MakeEngine, tiny_model: Path, adapter: Callable[..., Path]) -> None:
    folder = adapter(3, use_rslora=True)
    async with started() as engine:
        await engine.load(PolicyVersion(number=1, model=str(tiny_model), adapter=folder))
        played = await play_episodes(engine, count=6)
    assert worst_difference(tiny_model, played, folder) <= 1e-4


async def test_an_adapter_on_the_tied_head_leaves_the_embeddings_alone(
    started: MakeEngine, tiny_model: Path, adapter: Callable[..., Path]
) -> None:
    folder = adapter(4, target_modules=["lm_head"], ensure_weight_tying=False)
    async with started() as engine:
        await engine.load(PolicyVersion(number=1, model=str(tiny_model), adapter=folder))
        played = await play_episodes(engine, count=6)
    assert worst_difference(tiny_model, played, folder) <= 1e-4


async def test_whole_models_can_be_loaded(started: MakeEngine, tiny_model: Path, tmp_path: Path) -> None:
    other = make_tiny_qwen3(tmp_path / "other", seed=5)
    (other / "tokenizer.json").unlink()  # a learner need not publish the tokenizer with every version
    async with started() as engine:
        await engine.load(PolicyVersion(number=3, model=str(other)))
        played = await play_episodes(engine, count=6)
        await engine.load(PolicyVersion(number=0, model=str(tiny_model)))
        back = await play_episodes(engine, count=6)
    assert {completion.policy_version for _, completion in played} == {3}
    assert worst_difference(other, played) <= 1e-4
    assert worst_difference(tiny_model, back) <= 1e-4


async def test_weights_overwritten_in_place_are_noticed(started: MakeEngine, tiny_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "full")
    async with started(model=folder) as engine:
        make_tiny_qwen3(folder, seed=9)
        await engine.load(PolicyVersion(number=1, model=str(folder)))
        played = await play_episodes(engine, count=4)
    assert worst_difference(folder, played) <= 1e-4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_a_model_of_the_same_architecture_takes_the_memory_of_the_old_one(
    started: MakeEngine, tiny_model: Path, tmp_path: Path, adapter: Callable[..., Path], dtype: str
) -> None:
    other, patch = make_tiny_qwen3(tmp_path / "other", seed=5), adapter(1)
    versions = (
        PolicyVersion(number=1, model=str(other)),
        PolicyVersion(number=2, model=str(other), adapter=patch),
        PolicyVersion(number=3, model=str(tiny_model)),
        PolicyVersion(number=4, model=str(other), adapter=patch),
        PolicyVersion(number=5, model=str(other)),
    )
    async with started(dtype=dtype) as engine:
        generator = engine._worker._generator
        assert generator is not None
        module = generator.model.module
        places = {name: weight.data_ptr() for name, weight in module.state_dict().items()}
        await engine.load(PolicyVersion(number=0, model=str(tiny_model), adapter=patch))
        for policy in versions:
            await engine.load(policy)
            played = await play_episodes(engine, count=4)
            async with started(dtype=dtype, model=Path(policy.model)) as fresh:
                await fresh.load(policy)
                assert await play_episodes(fresh, count=4) == played, "as of an engine that began with it"
        assert engine._worker._generator is generator and generator.model.module is module
        assert {name: weight.data_ptr() for name, weight in module.state_dict().items()} == places
        assert module.lm_head.weight is module.model.embed_tokens.weight
        assert {weight.dtype for weight in module.parameters()} == {getattr(torch, dtype)}


async def test_a_model_of_another_architecture_takes_the_place_of_the_old_one(
    started: MakeEngine, tiny_model: Path, tmp_path: Path
) -> None:
    deeper = make_tiny_qwen3(tmp_path / "deeper", layers=3)
    turned = shutil.copytree(tiny_model, tmp_path / "turned")  # equal weights that compute something else
    config = json.loads((turned / "config.json").read_text(encoding="utf-8"))
    for facts in (config, config.get("rope_parameters") or {}):
        if "rope_theta" in facts:
            facts["rope_theta"] = 50.0
    (turned / "config.json").write_text(json.dumps(config), encoding="utf-8")
    async with started() as engine:
        for number, folder in enumerate((deeper, tiny_model, turned), start=1):
            before = engine._worker._generator
            await engine.load(PolicyVersion(number=number, model=str(folder)))
            assert engine._worker._generator is not before
            assert worst_difference(folder, await play_episodes(engine, count=4)) <= 1e-4


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("not_finite", "not finite, in model.embed_tokens.weight"),
        ("lacking", r"do not fit its config\.json"),
        ("torn", "cannot be loaded"),
        ("adapter", "no readable adapter_config.json"),
    ],
)
async def test_an_unsound_model_leaves_the_old_one_serving(
    started: MakeEngine, tiny_model: Path, tmp_path: Path, adapter: Callable[..., Path], damage: str, reason: str
) -> None:
    from safetensors.torch import load_file, save_file

    bad, good = make_tiny_qwen3(tmp_path / "bad", seed=5), adapter(1)
    weights = bad / "model.safetensors"
    tensors = load_file(weights)
    if damage == "torn":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif damage == "lacking":
        tensors.pop("model.norm.weight")
        save_file(tensors, weights, metadata={"format": "pt"})
    elif damage == "not_finite":
        tensors["model.embed_tokens.weight"][0, 0] = float("nan")
        save_file(tensors, weights, metadata={"format": "pt"})
    nowhere = tmp_path / "nowhere" if damage == "adapter" else None
    async with started() as engine:
        await engine.load(PolicyVersion(number=1, model=str(tiny_model), adapter=good))
        before = await play_episodes(engine, count=4)
        with pytest.raises(EngineError, match=reason):
            await engine.load(PolicyVersion(number=2, model=str(bad), adapter=nowhere))
        assert await play_episodes(engine, count=4) == before


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("no_config", "no readable adapter_config.json"),
        ("no_weights", "no readable adapter_model.safetensors"),
        ("torn_config", "is not the configuration of a LoRA adapter"),
        ("torn_weights", "is damaged"),
        ("other_base", "belongs to another base model"),
        ("deeper_base", "belongs to another base model"),
        ("rank", "rank 32.*ranks up to 16"),
        ("dora", "plain LoRA"),
        ("not_finite", "not finite"),
        ("no_folder", "no readable adapter_config.json"),
        ("no_model", "cannot be loaded"),
    ],
)
async def test_a_bad_version_is_refused_and_the_old_one_serves_on(
    started: MakeEngine, tiny_model: Path, tmp_path: Path, adapter: Callable[..., Path], damage: str, reason: str
) -> None:
    good, bad = adapter(1), _damaged(adapter, tmp_path / "bad", damage)
    async with started() as engine:
        await engine.load(PolicyVersion(number=1, model=str(tiny_model), adapter=good))
        before = await play_episodes(engine, count=4)
        model = str(tmp_path / "nowhere") if damage == "no_model" else str(tiny_model)
        with pytest.raises(EngineError, match=reason) as caught:
            await engine.load(PolicyVersion(number=2, model=model, adapter=bad))
        assert damage != "dora" or "--to merged --out MODEL" in caught.value.remedy
        after = await play_episodes(engine, count=4)
    assert {completion.policy_version for _, completion in after} == {1}
    assert worst_difference(tiny_model, after, good) <= 1e-4
    assert [completion.token_ids for _, completion in after] == [completion.token_ids for _, completion in before]


def _damaged(adapter: Callable[..., Path], folder: Path, damage: str) -> Path:
    from safetensors.torch import load_file, save_file

    if damage in ("other_base", "deeper_base"):
        sizes = {"hidden": 96} if damage == "other_base" else {"layers": 3}
        return make_adapter(make_tiny_qwen3(folder / "base", **sizes), folder / "adapter", seed=0)
    if damage == "no_folder":
        return folder
    extra = {"rank": {"r": 32}, "dora": {"use_dora": True}}.get(damage, {})
    folder = adapter(0, **extra)
    config, weights = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    if damage == "no_config":
        config.unlink()
    elif damage == "no_weights":
        weights.unlink()
    elif damage == "torn_config":
        config.write_text(json.dumps({"peft_type": "LORA"}), encoding="utf-8")
    elif damage == "torn_weights":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif damage == "not_finite":
        tensors = load_file(weights)
        next(iter(tensors.values()))[0, 0] = float("nan")
        save_file(tensors, weights)
    return folder
