"""The benchmark of engines would notice what it looks for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.engines.contestants import started, vllm_python
from benchmarks.engines.episodes import play
from benchmarks.engines.speed import reused_share
from benchmarks.engines.swaps import swap
from benchmarks.engines.versions import Versions
from finqa_cli.contracts import TokenEngine
from finqa_cli.types import Completion, GenerateRequest, PolicyVersion

pytestmark = pytest.mark.thorough

OPTIONS = {"threads": 1, "lockstep": False}


class Lying(TokenEngine):
    """An engine that names the version before the one that served, for every tenth request."""

    def __init__(self, engine: TokenEngine) -> None:
        self._engine = engine
        self._asked = 0

    async def generate(self, request: GenerateRequest) -> Completion:
        completion = await self._engine.generate(request)
        self._asked += 1
        if self._asked % 10 or not completion.policy_version:
            return completion
        return replace(completion, policy_version=completion.policy_version - 1)

    @property
    def max_context(self) -> int:
        return self._engine.max_context

    async def start(self) -> None:
        await self._engine.start()

    async def load(self, policy: PolicyVersion) -> None:
        await self._engine.load(policy)

    async def close(self) -> None:
        await self._engine.close()


@pytest.mark.parametrize("lying", [False, True])
async def test_completions_of_another_version_than_they_say_are_found(tmp_path: Path, lying: bool) -> None:
    async with started("transformers", OPTIONS) as engine:
        chosen = Lying(engine) if lying else engine
        figures = await swap("it", chosen, Versions(tmp_path), requests=40, swaps=4)
    passed = {figure.name: figure.passed for figure in figures if figure.limit}
    assert len(passed) == 2
    assert passed["it: completions under a wrong version"] is not lying


async def test_every_engine_has_the_same_tokens_to_make_and_reuse_is_counted() -> None:
    results, shares = [], []
    for options in (OPTIONS, {"threads": 1, "kv_cache_gb": 0, "lockstep": True}):
        async with started("transformers", options) as engine:
            results.append(await play(engine, episodes=6, turns=3))
            shares.append(reused_share(engine, results[-1]))
    assert results[0].tokens == results[1].tokens > 0
    assert len(results[0].turn_seconds) == 18
    assert results[0].latency_ms(50) <= results[0].latency_ms(95)
    assert shares[0] > 0.6
    assert shares[1] < 0.3, "without kept keys and values only equal prompts of a batch are computed once"


def test_without_an_interpreter_vllm_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FINQA_VLLM_PYTHON", raising=False)
    assert vllm_python(None) is None
    interpreter = tmp_path / "python"
    interpreter.touch()
    assert vllm_python(interpreter) == interpreter
    monkeypatch.setenv("FINQA_VLLM_PYTHON", str(interpreter))
    assert vllm_python(None) == interpreter
