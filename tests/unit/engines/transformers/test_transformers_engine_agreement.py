"""The engine says about its tokens what a plain forward of the whole sequence says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from finqa_cli.types import Completion, GenerateRequest, PolicyVersion, Sampling
from finqa_plugins.engines.transformers.transformers_engine import TransformersEngine
from finqa_testing.contract.engine_play import play_episodes, worst_difference

MakeEngine = Callable[..., AbstractAsyncContextManager[TransformersEngine]]


@pytest.mark.parametrize("options", [{}, {"kv_cache_gb": 0}, {"max_batch": 4}, {"kv_cache_gb": 0.0002}])
async def test_multi_turn_logprobs_equal_a_plain_forward(
    started: MakeEngine, tiny_model: Path, options: dict[str, float]
) -> None:
    async with started(**options) as engine:
        played = await play_episodes(engine, count=24)
    assert len(played) > 40
    assert worst_difference(tiny_model, played) <= 1e-4


async def test_with_an_adapter(started: MakeEngine, tiny_model: Path, adapter: Callable[..., Path]) -> None:
    folder = adapter(1)
    async with started() as engine:
        base = await play_episodes(engine)
        await engine.load(PolicyVersion(number=1, model=str(tiny_model), adapter=folder))
        played = await play_episodes(engine)
    assert {completion.policy_version for _, completion in played} == {1}
    assert worst_difference(tiny_model, played, folder) <= 1e-4
    assert worst_difference(tiny_model, played) > 1e-2, "the adapter changes nothing, so the test shows nothing"
    assert worst_difference(tiny_model, base) <= 1e-4


@pytest.mark.parametrize("family", ["llama", "gemma3_sliding"])
async def test_other_architectures(started: MakeEngine, tmp_path: Path, family: str) -> None:
    model = _other_model(tmp_path / family, family)
    async with started(model=model) as engine:
        played = await play_episodes(engine, count=6)
    assert worst_difference(model, played) <= 1e-4


async def test_reuse_is_used_and_changes_no_token(started: MakeEngine) -> None:
    async with started() as engine, started(kv_cache_gb=0) as plain:
        generator, other = engine._worker._generator, plain._worker._generator
        assert generator is not None
        assert other is not None
        reused, computed = await play_episodes(engine), await play_episodes(plain)
        assert len(generator.openings) == 1
        assert not other.openings
        assert not len(other.store)
    assert [completion.token_ids for _, completion in reused] == [completion.token_ids for _, completion in computed]


async def test_same_seeds_give_the_same_bits_in_lockstep(started: MakeEngine) -> None:
    runs = []
    for _ in range(2):
        async with started() as engine:
            runs.append(await play_episodes(engine))
    assert runs[0] == runs[1]


async def test_tokens_do_not_depend_on_neighbours(started: MakeEngine) -> None:
    async with started() as engine:
        together = await play_episodes(engine, count=9)
    async with started() as engine:
        alone = [
            await engine.generate(GenerateRequest(key="alone", token_ids=request.token_ids, sampling=request.sampling))
            for request, _ in together
        ]
    for (_, completion), single in zip(together, alone, strict=True):
        assert single.token_ids == completion.token_ids
        assert single.stop == completion.stop
        assert single.logprobs == pytest.approx(completion.logprobs, abs=1e-4)


async def test_a_rewritten_history_is_noticed(started: MakeEngine, tiny_model: Path) -> None:
    """The kept entry of the episode holds another beginning: only what is really common may be reused."""
    async with started() as engine:
        played = []
        for turn, ids in enumerate(((5, 6, 7, 8, 9, 10), (5, 6, 11, 12, 13, 14, 15, 16, 17), (5, 6, 11), (90, 91))):
            request = GenerateRequest(key=f"e#{turn}", token_ids=ids, sampling=Sampling(max_tokens=5, seed=turn))
            played.append((request, await engine.generate(request)))
    assert worst_difference(tiny_model, played) <= 1e-4


async def test_stop_ids_and_limits(started: MakeEngine) -> None:
    async with started(context={"max_context": 40}) as engine:
        assert engine.max_context == 40

        async def ask(length: int, **settings: object) -> Completion:
            sampling = Sampling(**({"max_tokens": 10, "temperature": 0.0} | settings))  # type: ignore[arg-type]
            return await engine.generate(
                GenerateRequest(key="k", token_ids=tuple(range(5, 5 + length)), sampling=sampling)
            )

        free = await ask(5)
        assert (len(free.token_ids), free.stop) == (10, "length")
        stop = free.token_ids[3]
        ended = await ask(5, stop_ids=(stop,))
        assert ended.stop == "stop"
        assert ended.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
        assert len((await ask(37)).token_ids) == 3, "the context cuts max_tokens"
        for length in (40, 60):
            full = await ask(length)
            assert (full.token_ids, full.logprobs, full.stop) == ((), (), "length")


def _other_model(folder: Path, family: str) -> Path:
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

    sizes = {
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 1024,
        "initializer_range": 0.2,
    }
    torch.manual_seed(0)
    if family == "llama":
        module = LlamaForCausalLM(LlamaConfig(**sizes))
    else:
        kinds = ["sliding_attention", "full_attention"]
        module = Gemma3ForCausalLM(Gemma3TextConfig(**sizes, sliding_window=16, layer_types=kinds))
    module.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    return folder


async def test_an_opening_that_is_too_long_for_later_prompts_is_cut(started: MakeEngine, tiny_model: Path) -> None:
    system, played = tuple(range(40, 100)), []

    async def ask(key: str, *tail: int) -> None:
        sampling = Sampling(max_tokens=5, seed=len(played))
        request = GenerateRequest(key=key, token_ids=system + tail, sampling=sampling)
        played.append((request, await engine.generate(request)))

    async with started() as engine:
        generator = engine._worker._generator
        assert generator is not None
        await asyncio.gather(ask("a#0", 1, 2, 3, 4), ask("b#0", 1, 2, 3, 5, 6))
        assert [len(opening.token_ids) for opening in generator.openings] == [63]
        await ask("c#0", 1, 9, 9, 9)
        assert [len(opening.token_ids) for opening in generator.openings] == [61]
        await asyncio.gather(ask("a#1", 1, 2, 3, 4, 8, 8, 8), ask("d#0", 7, 7), ask("e#0"))
        assert [len(opening.token_ids) for opening in generator.openings] == [59]
    assert worst_difference(tiny_model, played) <= 1e-4
