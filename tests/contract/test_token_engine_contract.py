"""What every token engine must do, run on each one that is ready on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from fixtures.engine_play import make_adapter, play_episodes, worst_difference
from fixtures.tiny_models import make_tiny_qwen3

from finqa_cli.contracts import EngineContext, TokenEngine
from finqa_cli.errors import ConfigError, EngineError
from finqa_cli.extend import missing_requirements, registry
from finqa_cli.types import Completion, GenerateRequest, PolicyVersion, Sampling

pytest.importorskip("torch")

Make = Callable[[Path], TokenEngine]


def _ready() -> list[str]:
    """Engines whose packages are installed and whose class speaks tokens."""
    names = [component.name for component in registry().components("engine") if not missing_requirements(component)]
    return [name for name in names if isinstance(_create(name, Path("unused")), TokenEngine)]


def _create(name: str, model: Path) -> object:
    return registry().create("engine", name, {}, EngineContext(model=str(model), dispatch_wait_ms=50))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen3(tmp_path_factory.mktemp("contract") / "model")


@pytest.fixture(params=_ready())
def make(request: pytest.FixtureRequest) -> Make:
    def create(folder: Path) -> TokenEngine:
        engine = _create(request.param, folder)
        assert isinstance(engine, TokenEngine)
        return engine

    return create


@pytest.fixture
async def engine(make: Make, model: Path) -> AsyncIterator[TokenEngine]:
    made = make(model)
    await made.start()
    yield made
    await made.close()


def ask(key: str, *, seed: int = 0, temperature: float = 1.0, max_tokens: int = 8) -> GenerateRequest:
    sampling = Sampling(max_tokens=max_tokens, seed=seed, temperature=temperature)
    return GenerateRequest(key=key, token_ids=tuple(range(20, 60)), sampling=sampling)


async def test_start_and_close_are_idempotent(make: Make, model: Path) -> None:
    engine = make(model)
    await asyncio.gather(engine.start(), engine.start())
    await engine.start()
    assert engine.max_context > 0
    await engine.close()
    await engine.close()
    with pytest.raises(EngineError):
        await engine.generate(ask("late"))


async def test_an_incomplete_model_folder_is_a_config_error(make: Make, tmp_path: Path) -> None:
    engine = make(tmp_path)
    with pytest.raises(ConfigError, match=r"config\.json"):
        await engine.start()
    await engine.close()


async def test_one_logprob_for_each_token_within_the_limit(engine: TokenEngine) -> None:
    completion = await engine.generate(ask("a"))
    assert len(completion.token_ids) == len(completion.logprobs) == 8
    assert completion.stop == "length"
    assert completion.policy_version == 0
    assert all(logprob <= 1e-6 for logprob in completion.logprobs)


async def test_the_stop_id_ends_the_completion_and_stays_in_it(engine: TokenEngine) -> None:
    free = await engine.generate(ask("a", temperature=0))
    stop = free.token_ids[-1]
    sampling = Sampling(max_tokens=50, temperature=0, stop_ids=(stop,))
    ended = await engine.generate(GenerateRequest(key="b", token_ids=tuple(range(20, 60)), sampling=sampling))
    assert ended.stop == "stop"
    assert ended.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]


async def test_the_seed_decides_and_nothing_else(engine: TokenEngine) -> None:
    alone = await engine.generate(ask("alone", seed=5))
    among = await asyncio.gather(*(engine.generate(ask(f"{seed:02}", seed=seed)) for seed in range(12)))
    assert among[5].token_ids == alone.token_ids
    assert len({completion.token_ids for completion in among}) == 12


async def test_logprobs_are_those_of_the_model_over_several_turns(engine: TokenEngine, model: Path) -> None:
    played = await play_episodes(engine)
    assert worst_difference(model, played) <= 1e-3


async def test_seats_never_block_for_good(engine: TokenEngine) -> None:
    async def idle() -> None:
        with engine.seat():
            await asyncio.sleep(0.05)

    async def active(key: str) -> Completion:
        with engine.seat():
            return await engine.generate(ask(key))

    await asyncio.wait_for(asyncio.gather(idle(), active("a"), active("b")), 30)


async def test_cancellation_leaves_the_others_alone(engine: TokenEngine) -> None:
    tasks = [asyncio.create_task(engine.generate(ask(str(index), max_tokens=50))) for index in range(6)]
    await asyncio.sleep(0.01)
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
    assert all(isinstance(result, Completion) for result in results[1::2])


async def test_every_completion_names_the_version_that_served_it(
    engine: TokenEngine, model: Path, tmp_path: Path
) -> None:
    base = await engine.generate(ask("a", temperature=0))
    folder = make_adapter(model, tmp_path / "adapter", seed=1)
    await engine.load(PolicyVersion(number=1, model=str(model), adapter=folder))
    adapted = await engine.generate(ask("a", temperature=0))
    await engine.load(PolicyVersion(number=2, model=str(model)))
    back = await engine.generate(ask("a", temperature=0))
    assert [completion.policy_version for completion in (base, adapted, back)] == [0, 1, 2]
    assert back.token_ids == base.token_ids
    assert back.logprobs == base.logprobs
    assert adapted.logprobs != base.logprobs


async def test_a_bad_adapter_is_refused_and_the_old_version_serves_on(
    engine: TokenEngine, model: Path, tmp_path: Path
) -> None:
    with pytest.raises(EngineError):
        await engine.load(PolicyVersion(number=1, model=str(model), adapter=tmp_path))
    assert (await engine.generate(ask("a"))).policy_version == 0
