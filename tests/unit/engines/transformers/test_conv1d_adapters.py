"""Adapters on GPT-2, whose linear layers store their weights the other way round."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import torch
from fixtures.plain_models import make_tiny_gpt2

from finqa_cli.errors import EngineError
from finqa_cli.types import PolicyVersion
from finqa_plugins.engines.transformers.transformers_engine import TransformersEngine
from finqa_testing.contract.engine_play import make_adapter, play_episodes, worst_difference

MakeEngine = Callable[..., AbstractAsyncContextManager[TransformersEngine]]
TARGETS = ["c_attn", "c_proj", "c_fc"]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_gpt2(tmp_path_factory.mktemp("gpt2") / "model")


@pytest.mark.parametrize("said", [True, False])
async def test_what_is_served_is_what_peft_computes(
    started: MakeEngine, gpt2: Path, tmp_path: Path, said: bool
) -> None:
    """Any statement of the adapter's own configuration about the layers."""
    folder = make_adapter(gpt2, tmp_path / "adapter", seed=1, target_modules=TARGETS, fan_in_fan_out=True)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"fan_in_fan_out": said}))
    async with started(model=gpt2) as engine:
        base = await play_episodes(engine)
        await engine.load(PolicyVersion(number=1, model=str(gpt2), adapter=folder))
        played = await play_episodes(engine)
        await engine.load(PolicyVersion(number=2, model=str(gpt2)))
        back = await play_episodes(engine)
    assert worst_difference(gpt2, played, folder) <= 1e-4
    assert worst_difference(gpt2, played) > 1e-2, "the adapter changes nothing, so the test shows nothing"
    assert [one.logprobs for _, one in back] == [one.logprobs for _, one in base]


async def test_bfloat16_keeps_it_beside_the_weights(started: MakeEngine, gpt2: Path, tmp_path: Path) -> None:
    folder = make_adapter(gpt2, tmp_path / "adapter", seed=1, target_modules=TARGETS)
    async with started(model=gpt2, dtype="bfloat16") as engine:
        await engine.load(PolicyVersion(number=1, model=str(gpt2), adapter=folder))
        played = await play_episodes(engine, count=6)
    with_adapter = worst_difference(gpt2, played, folder, torch.bfloat16)
    assert with_adapter < 0.5 * worst_difference(gpt2, played, None, torch.bfloat16)


async def test_an_adapter_the_wrong_way_round_is_refused(started: MakeEngine, gpt2: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = make_adapter(gpt2, tmp_path / "adapter", seed=1, target_modules=["c_attn"])
    weights = folder / "adapter_model.safetensors"
    turned = {
        name.replace("lora_A", "x").replace("lora_B", "lora_A").replace("x", "lora_B"): tensor.T.contiguous()
        for name, tensor in load_file(weights).items()
    }
    save_file(turned, weights)
    async with started(model=gpt2) as engine:
        with pytest.raises(EngineError, match=r"c_attn needs \(4, 32\) and \(96, 4\), but it has \(4, 96\)"):
            await engine.load(PolicyVersion(number=1, model=str(gpt2), adapter=folder))
