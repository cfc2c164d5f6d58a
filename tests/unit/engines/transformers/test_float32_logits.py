"""In bfloat16 the engine's logits are float32, like the learner's, so that the two agree."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import torch
from fixtures.tiny_learners import make_learner
from transformers import AutoModelForCausalLM

from finqa_cli.errors import ConfigError
from finqa_cli.types import PolicyVersion, Sample
from finqa_plugins.engines.transformers.transformers_engine import TransformersEngine
from finqa_plugins.model_facts import TOLERANCE
from finqa_testing.contract.engine_play import play_episodes
from finqa_testing.tiny_models import make_tiny_qwen3

MakeEngine = Callable[..., AbstractAsyncContextManager[TransformersEngine]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose logits are as large as those of real ones, so that their rounding shows."""
    folder = make_tiny_qwen3(tmp_path_factory.mktemp("large-logits") / "model")
    module = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        head = module.get_output_embeddings()
        head.weight *= 20 / (head.weight.norm(dim=1).mean() * head.weight.shape[1] ** 0.5)
    module.save_pretrained(folder)
    return folder


async def mean_difference(started: MakeEngine, model: Path, engine_head: str, learner_head: str) -> float:
    """Nats between the log-probabilities of engine and learner, both in bfloat16, root mean square."""
    async with started(model=model, dtype="bfloat16", head_dtype=engine_head) as engine:
        played = await play_episodes(engine, count=24)
    samples = [
        Sample(
            token_ids=request.token_ids + done.token_ids,
            loss_mask=(False,) * len(request.token_ids) + (True,) * len(done.token_ids),
            logprobs=(0.0,) * len(request.token_ids) + done.logprobs,
            advantages=(0.0,) * (len(request.token_ids) + len(done.token_ids)),
        )
        for request, done in played
    ]
    learner = make_learner(model, {"dtype": "bfloat16", "head_dtype": learner_head})
    ours = torch.cat([torch.tensor(row) for row in learner.logprobs(samples)])
    theirs = torch.cat([torch.tensor(sample.logprobs) for sample in samples])
    return float((ours - theirs)[theirs != 0].square().mean().sqrt())


async def test_two_wide_heads_agree_better_than_one_or_none(started: MakeEngine, model: Path) -> None:
    both = await mean_difference(started, model, "float32", "float32")
    one = await mean_difference(started, model, "model", "float32")
    none = await mean_difference(started, model, "model", "model")
    assert both < min(one, none)


async def test_checks_of_a_model_allow_for_the_rounding_of_its_computation(
    started: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TOLERANCE, torch.float32, -1.0)  # no logits in float32 pass
    async with started(dtype="bfloat16"):
        pass
    with pytest.raises(ConfigError, match="other logits with cached keys"):
        async with started(dtype="float32"):
            pass


async def test_it_is_the_default_and_survives_adapters_of_the_head(
    started: MakeEngine, tiny_model: Path, adapter: Callable[..., Path]
) -> None:
    on_head = adapter(3, target_modules=["q_proj", "lm_head"])
    async with started(dtype="bfloat16") as engine, started(dtype="bfloat16", head_dtype="model") as narrow:
        generators = [each._worker._generator for each in (engine, narrow)]
        heads = [each.model.module.get_output_embeddings() for each in generators if each is not None]
        states = torch.ones(2, 1, heads[0].weight.shape[1], dtype=torch.bfloat16)  # type: ignore[union-attr,arg-type]
        dtypes = [[head(states).dtype for head in heads]]  # type: ignore[operator]
        for number, folder in enumerate((on_head, None), start=1):
            for each in (engine, narrow):
                await each.load(PolicyVersion(number=number, model=str(tiny_model), adapter=folder))
            dtypes.append([head(states).dtype for head in heads])  # type: ignore[operator]
    half, full = torch.bfloat16, torch.float32
    assert dtypes == [[full, half], [half, half], [full, half]]
