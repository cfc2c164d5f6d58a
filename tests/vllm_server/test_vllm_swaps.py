"""Policy versions on a real server: swaps in flight, weights in place, sleep, and what the prefix cache saves."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from vllm_server.running import RANK, Vllm, ask

from finqa_cli.errors import AuthenticationError, ConfigError, EngineError
from finqa_cli.types import Completion, GenerateRequest, PolicyVersion, Sampling
from finqa_testing.contract.engine_play import Played, make_adapter, reference_logprobs, worst_difference
from finqa_testing.tiny_models import make_tiny_qwen3

pytest.importorskip("torch")

SWAPS, EACH = 5, 20
EXACT = 1e-4


async def test_no_completion_is_of_another_version_than_it_says(server: Vllm, adapters: list[Path]) -> None:
    """Requests without a pause over swaps in flight; what served each is told by its log-probabilities."""
    engine, played = server.engine(), []

    async def request(number: int) -> None:
        asked = ask(f"{number:03}", seed=number)
        played.append((asked, await engine.generate(asked)))

    await engine.start()
    try:
        async with asyncio.TaskGroup() as group:
            for swap in range(SWAPS):
                await engine.load(PolicyVersion(number=swap + 1, model=str(server.model), adapter=adapters[swap]))
                for number in range(EACH):
                    group.create_task(request(swap * EACH + number))
                    await asyncio.sleep(0.005)
    finally:
        await engine.close()
    assert len(played) == SWAPS * EACH
    served = {completion.policy_version for _, completion in played}
    assert served == set(range(1, SWAPS + 1))
    for version in served:
        mine = [pair for pair in played if pair[1].policy_version == version]
        assert worst_difference(server.model, mine, adapters[version - 1]) <= EXACT
        assert _largest(mine, reference_logprobs(server.model, mine, adapters[version % SWAPS])) > 0.1


async def test_the_probe_tells_versions_apart_and_reads_no_cache(server: Vllm, adapters: list[Path]) -> None:
    engine = server.engine()
    await engine.start()
    try:
        assert engine.probe_tolerance is not None
        base = (await engine.probe(ask("probe", temperature=0)))[0]
        await engine.load(PolicyVersion(number=1, model=str(server.model), adapter=adapters[0]))
        adapted = (await engine.probe(ask("probe", temperature=0)))[0]
        assert worst_difference(server.model, [(ask("probe", temperature=0), adapted)], adapters[0]) <= EXACT
        assert (base.policy_version, adapted.policy_version) == (0, 1)
        assert adapted.logprobs != base.logprobs
        for _ in range(2):
            await engine.probe(ask("repeated#0", prompt=200, temperature=0))
        assert engine.usage("repeated")["cached_tokens"] == 0
    finally:
        await engine.close()


async def test_a_turn_pays_for_its_new_tokens_only(server: Vllm) -> None:
    engine = server.engine()
    await engine.start()
    try:
        ids = ask("x", prompt=320).token_ids
        for turn in range(4):
            asked = GenerateRequest(key=f"episode#{turn}", token_ids=ids, sampling=Sampling(max_tokens=16, seed=turn))
            completion = await engine.generate(asked)
            ids += completion.token_ids + tuple(range(30))
        used = engine.usage("episode")
        assert used["requests"] == 4
        assert used["cached_tokens"] > 0.55 * used["prompt_tokens"], "three of the four turns begin with earlier ones"
    finally:
        await engine.close()


async def test_weights_that_would_be_replaced_in_part_are_refused(server: Vllm, tmp_path: Path) -> None:
    """vLLM 0.32 without a GPU reports success and keeps using the old output matrix."""
    engine = server.engine(rank=0)
    await engine.start()
    try:
        with pytest.raises(EngineError, match="embeddings are tied"):
            await engine.load(PolicyVersion(number=1, model=str(make_tiny_qwen3(tmp_path / "other", seed=9))))
        asked = ask("a")
        assert worst_difference(server.model, [(asked, await engine.generate(asked))]) <= EXACT
    finally:
        await engine.close()


async def test_after_sleep_and_wake_the_same_version_is_served(server: Vllm, adapters: list[Path]) -> None:
    engine = server.engine(sleep=True)
    await engine.start()
    try:
        assert engine.sleeps
        await engine.load(PolicyVersion(number=1, model=str(server.model), adapter=adapters[1]))
        before = await engine.generate(ask("a", temperature=0))
        await engine.sleep()
        await engine.sleep()
        for refused in (engine.generate(ask("b")), engine.load(PolicyVersion(number=2, model=str(server.model)))):
            with pytest.raises(EngineError, match="sleeps"):
                await refused
        await engine.wake()
        await engine.wake()
        after = await engine.generate(ask("a", temperature=0))
        assert (after.token_ids, after.policy_version) == (before.token_ids, 1)
        assert max(abs(a - b) for a, b in zip(after.logprobs, before.logprobs, strict=True)) <= EXACT
    finally:
        await engine.close()


async def test_adapters_of_a_wrong_rank_or_base_are_refused(server: Vllm, tmp_path: Path) -> None:
    large = make_adapter(server.model, tmp_path / "large", seed=1, r=2 * RANK)
    foreign_model = make_tiny_qwen3(tmp_path / "foreign", hidden=32)
    foreign = make_adapter(foreign_model, tmp_path / "foreign-adapter", seed=1)
    damaged = shutil.copytree(large, tmp_path / "damaged")
    (damaged / "adapter_model.safetensors").write_bytes(b"no weights")
    engine = server.engine()
    await engine.start()
    try:
        for folder, reason in ((large, f"rank {2 * RANK}"), (foreign, "another base model"), (damaged, "damaged")):
            with pytest.raises(EngineError, match=reason):
                await engine.load(PolicyVersion(number=1, model=str(server.model), adapter=folder))
        assert (await engine.generate(ask("a"))).policy_version == 0
    finally:
        await engine.close()


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"url": "http://127.0.0.1:9"}, Exception, "no server at http://127.0.0.1:9"),
        ({"api_key_env": "TEST_VLLM_WRONG_KEY"}, AuthenticationError, "rejected the API key"),
        ({"url": None, "urls": ["{url}", "{url}"]}, ConfigError, "2 servers, but there are 1 replicas"),
    ],
)
async def test_a_server_that_cannot_be_used_is_told_at_start(
    server: Vllm, options: dict[str, Any], error: type[Exception], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_VLLM_WRONG_KEY", "not-the-key-of-the-tests")
    if "urls" in options:
        options = {**options, "urls": [one.format(url=server.url) for one in options["urls"]]}
    engine = server.engine(**options)
    with pytest.raises(error, match=reason):
        await engine.start()
    await engine.close()


def _largest(pairs: list[Played], rows: list[list[float]]) -> float:
    assert all(isinstance(completion, Completion) for _, completion in pairs)
    return max(
        abs(one - other)
        for (_, completion), row in zip(pairs, rows, strict=True)
        for one, other in zip(completion.logprobs, row, strict=True)
    )
