"""Contract of token engines: the model's log-probabilities, sampling by seed alone, one version per completion.

The fixture `make` creates an engine for a model folder, which is not started; `engine` is a started one, which tests
may share. `model` and `tolerance` can be replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from finqa_cli.contracts import TokenEngine
from finqa_cli.errors import ConfigError, EngineError
from finqa_cli.types import Completion, GenerateRequest, PolicyVersion, Sampling
from finqa_testing.contract.engine_play import (
    Played,
    make_adapter,
    play_episodes,
    reference_logprobs,
    worst_difference,
)
from finqa_testing.tiny_models import make_tiny_qwen3

Make = Callable[[Path], TokenEngine]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a random model with a few thousand weights."""
    return make_tiny_qwen3(tmp_path_factory.mktemp("contract") / "model")


@pytest.fixture
async def engine(make: Make, model: Path) -> AsyncIterator[TokenEngine]:
    """Yields a started engine; it must serve any version that is loaded next."""
    made = make(model)
    await made.start()
    yield made
    await made.close()


@pytest.fixture
def tolerance() -> float:
    """Returns the largest difference between the log-probabilities of equal requests (nats)."""
    return 0.0


def ask(key: str, *, seed: int = 0, temperature: float = 1.0, max_tokens: int = 8) -> GenerateRequest:
    """Returns a request with a prompt of forty tokens."""
    sampling = Sampling(max_tokens=max_tokens, seed=seed, temperature=temperature)
    return GenerateRequest(key=key, token_ids=tuple(range(20, 60)), sampling=sampling)


def alike(left: Completion, right: Completion, tolerance: float) -> bool:
    """Returns whether the tokens are equal, and their log-probabilities within the tolerance."""
    gaps = [abs(one - other) for one, other in zip(left.logprobs, right.logprobs, strict=True)]
    return left.token_ids == right.token_ids and max(gaps) <= tolerance


async def next_version(engine: TokenEngine) -> int:
    """Returns a version number that was never loaded into this engine."""
    return (await engine.generate(ask("version", max_tokens=1))).policy_version + 1


async def test_start_and_close_are_idempotent(make: Make, model: Path) -> None:
    """Starting and closing twice has no further effect, and a closed engine raises an EngineError."""
    engine = make(model)
    await asyncio.gather(engine.start(), engine.start())
    await engine.start()
    assert engine.max_context > 0
    assert (await engine.generate(ask("first"))).policy_version == 0
    await engine.close()
    await engine.close()
    with pytest.raises(EngineError):
        await engine.generate(ask("late"))


async def test_an_incomplete_model_folder_is_a_config_error(make: Make, tmp_path: Path) -> None:
    """The message names the file that is missing."""
    engine = make(tmp_path)
    with pytest.raises(ConfigError, match=r"config\.json"):
        await engine.start()
    await engine.close()


async def test_one_logprob_for_each_token_within_the_limit(engine: TokenEngine) -> None:
    """The limit on tokens ends the completion, and each token has a log-probability of at most 0."""
    completion = await engine.generate(ask("a"))
    assert len(completion.token_ids) == len(completion.logprobs) == 8
    assert completion.stop == "length"
    assert all(logprob <= 1e-6 for logprob in completion.logprobs)


async def test_the_stop_id_ends_the_completion_and_stays_in_it(engine: TokenEngine) -> None:
    """The stop id was sampled by the policy, so it belongs to the tokens that are used for training."""
    free = await engine.generate(ask("a", temperature=0))
    stop = free.token_ids[-1]
    sampling = Sampling(max_tokens=50, temperature=0, stop_ids=(stop,))
    ended = await engine.generate(GenerateRequest(key="b", token_ids=tuple(range(20, 60)), sampling=sampling))
    assert ended.stop == "stop"
    assert ended.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]


async def test_a_prompt_that_fills_the_context_is_not_a_fault(engine: TokenEngine) -> None:
    """The completion is empty."""
    full = GenerateRequest(key="a", token_ids=(20,) * engine.max_context, sampling=Sampling(max_tokens=8))
    completion = await engine.generate(full)
    assert (completion.token_ids, completion.logprobs, completion.stop) == ((), (), "length")


async def test_only_the_seed_determines_the_result(engine: TokenEngine) -> None:
    """Other requests in the batch do not change the result."""
    alone = await engine.generate(ask("alone", seed=5))
    among = await asyncio.gather(*(engine.generate(ask(f"{seed:02}", seed=seed)) for seed in range(12)))
    assert among[5].token_ids == alone.token_ids
    assert len({completion.token_ids for completion in among}) == 12


async def test_logprobs_are_those_of_the_model_over_several_turns(engine: TokenEngine, model: Path) -> None:
    """A plain forward pass over the whole sequence gives the same log-probabilities."""
    await engine.load(PolicyVersion(number=await next_version(engine), model=str(model)))
    played = await play_episodes(engine)
    assert worst_difference(model, played) <= 1e-3


async def test_seats_never_block_forever(engine: TokenEngine) -> None:
    """An episode that has a seat and sends no request, as while it waits for a tool, does not block others."""

    async def idle() -> None:
        with engine.seat():
            await asyncio.sleep(0.05)

    async def active(key: str) -> Completion:
        with engine.seat():
            return await engine.generate(ask(key))

    await asyncio.wait_for(asyncio.gather(idle(), active("a"), active("b")), 30)


async def test_cancellation_does_not_affect_other_requests(engine: TokenEngine) -> None:
    """Every second request is cancelled; the others are completed."""
    tasks = [asyncio.create_task(engine.generate(ask(str(index), max_tokens=50))) for index in range(6)]
    await asyncio.sleep(0.01)
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
    assert all(isinstance(result, Completion) for result in results[1::2])


async def test_every_completion_names_the_version_that_served_it(
    engine: TokenEngine, model: Path, tmp_path: Path, tolerance: float
) -> None:
    """The base, an adapter, and the base again are loaded; each completion states the loaded version."""
    first = await next_version(engine)
    await engine.load(PolicyVersion(number=first, model=str(model)))
    base = await engine.generate(ask("a", temperature=0))
    folder = make_adapter(model, tmp_path / "adapter", seed=1)
    await engine.load(PolicyVersion(number=first + 1, model=str(model), adapter=folder))
    adapted = await engine.generate(ask("a", temperature=0))
    await engine.load(PolicyVersion(number=first + 2, model=str(model)))
    back = await engine.generate(ask("a", temperature=0))
    assert [one.policy_version - first for one in (base, adapted, back)] == [0, 1, 2]
    assert alike(back, base, tolerance)
    assert adapted.logprobs != base.logprobs


async def test_a_bad_adapter_is_refused_and_the_old_version_is_kept(
    engine: TokenEngine, model: Path, tmp_path: Path, tolerance: float
) -> None:
    """A missing adapter and one whose rank is too large raise an EngineError."""
    before = await engine.generate(ask("a"))
    number = before.policy_version + 1
    too_large = make_adapter(model, tmp_path / "large", seed=2, r=64)
    for adapter in (tmp_path, too_large):
        with pytest.raises(EngineError):
            await engine.load(PolicyVersion(number=number, model=str(model), adapter=adapter))
        after = await engine.generate(ask("a"))
        assert after.policy_version == before.policy_version
        assert alike(after, before, tolerance)


async def test_each_completion_belongs_to_one_version(engine: TokenEngine, model: Path, tmp_path: Path) -> None:
    """A request in progress ends with the version that it started with; later ones use a version loaded since."""
    first = await next_version(engine)
    adapter = make_adapter(model, tmp_path / "adapter", seed=3)
    loaded = first - 1
    played: list[tuple[int, Played]] = []  # each with the version that was loaded when the request was made

    async def request(number: int) -> None:
        asked, before = ask(f"{number:03}", seed=number, max_tokens=30), loaded
        played.append((before, (asked, await engine.generate(asked))))

    async with asyncio.TaskGroup() as group:
        for swap in range(4):
            await engine.load(
                PolicyVersion(number=first + swap, model=str(model), adapter=None if swap % 2 else adapter)
            )
            loaded = first + swap
            for number in range(4):
                group.create_task(request(swap * 4 + number))
            await asyncio.sleep(0.02)
    assert len(played) == 16
    for before, (_, completion) in played:
        assert before <= completion.policy_version <= first + 3
    served = [pair for _, pair in played]
    adapted = [pair for pair in served if not (pair[1].policy_version - first) % 2]
    plain = [pair for pair in served if (pair[1].policy_version - first) % 2]
    for pairs, weights, others in ((adapted, adapter, None), (plain, None, adapter)):
        assert pairs
        assert worst_difference(model, pairs, weights) <= 1e-3
        assert largest_gap(pairs, reference_logprobs(model, pairs, others)) > 0.1, "the check could not fail"


def largest_gap(pairs: Sequence[Played], rows: Sequence[Sequence[float]]) -> float:
    """Returns the largest difference of a token's log-probability (nats)."""
    return max(
        abs(one - other)
        for (_, completion), row in zip(pairs, rows, strict=True)
        for one, other in zip(completion.logprobs, row, strict=True)
    )
