"""The proof after a sync, with a real learner and engine, and with engines that lie."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.fake_engines import FakeEngine
from fixtures.tiny_models import make_tiny_qwen3
from fixtures.toy_environment import ToyCodec
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs finqa[train]")

from fixtures.tiny_learners import GRPO_LOSS, as_batch, make_learner, random_samples

from finqa_cli.contracts import EngineContext
from finqa_cli.errors import EngineError
from finqa_cli.rollout.replicas import EngineSet
from finqa_cli.settings import Settings
from finqa_cli.types import Completion, GenerateRequest, PolicyVersion, Prompt, Sampling, Task
from finqa_cli.workflows.probe import FEWEST_TOKENS, PROBE_TOKENS, largest, probe_request, prove
from finqa_plugins.torch_learner.learner import TorchLearner
from finqa_plugins.transformers_engine.config import TransformersEngineConfig
from finqa_plugins.transformers_engine.engine import TransformersEngine

REQUEST = GenerateRequest(
    key="probe#0000", token_ids=tuple(range(20, 60)), sampling=Sampling(max_tokens=PROBE_TOKENS, seed=3)
)


class ProbedEngine(TransformersEngine):
    """The honest one."""

    probe_tolerance: float | None = 1e-4

    async def probe(self, request: GenerateRequest) -> tuple[Completion, ...]:
        return (await self.generate(request),)


class StaleEngine(ProbedEngine):
    """Says that it serves the new version, with the weights of the base."""

    async def load(self, policy: PolicyVersion) -> None:
        await super().load(replace(policy, adapter=None))


class LateEngine(ProbedEngine):
    """Its answers are of the version before."""

    async def load(self, policy: PolicyVersion) -> None:
        await super().load(replace(policy, number=policy.number - 1))


class MeagreEngine(ProbedEngine):
    """Gives few tokens, or fewer log-probabilities than tokens."""

    tokens, logprobs = FEWEST_TOKENS - 1, FEWEST_TOKENS - 1

    async def probe(self, request: GenerateRequest) -> tuple[Completion, ...]:
        (whole,) = await super().probe(request)
        return (replace(whole, token_ids=whole.token_ids[: self.tokens], logprobs=whole.logprobs[: self.logprobs]),)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen3(tmp_path_factory.mktemp("probe") / "model")


@pytest.fixture(scope="module")
def learner(model: Path) -> TorchLearner:
    """One that has learnt a little."""
    learner = make_learner(model, learning_rate=1e-2)
    for seed in range(2):
        learner.update(as_batch(random_samples(3, seed=seed)), GRPO_LOSS)
    return learner


@pytest.fixture(scope="module")
def policy(learner: TorchLearner, tmp_path_factory: pytest.TempPathFactory) -> PolicyVersion:
    return learner.publish(tmp_path_factory.mktemp("probe") / "v1", 1)


@pytest.fixture
async def made(model: Path) -> AsyncIterator[list[TransformersEngine]]:
    engines: list[TransformersEngine] = []
    yield engines
    for engine in engines:
        await engine.close()


async def serving(
    kind: type[ProbedEngine], model: Path, policy: PolicyVersion, made: list[TransformersEngine], **options: bool
) -> ProbedEngine:
    engine = kind(TransformersEngineConfig.model_validate(options), EngineContext(model=str(model)))
    made.append(engine)
    await engine.start()
    await engine.load(policy)
    return engine


async def test_an_honest_engine_agrees_with_the_learner(
    model: Path, learner: TorchLearner, policy: PolicyVersion, made: list[TransformersEngine]
) -> None:
    difference = await prove(await serving(ProbedEngine, model, policy, made), learner, policy, REQUEST)
    assert difference is not None and difference <= 1e-5


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (StaleEngine, r"Replica 0 .* version 1, but .* up to .* nats, at token \d+ .* rounding explains 0\.0001"),
        (LateEngine, r"Replica 0 serves policy version 0 after version 1 was loaded"),
        (MeagreEngine, r"with 7 tokens and 7 log-probabilities; 16 of each"),
    ],
)
async def test_an_engine_that_lies_is_found_out(
    kind: type[ProbedEngine],
    told: str,
    model: Path,
    learner: TorchLearner,
    policy: PolicyVersion,
    made: list[TransformersEngine],
) -> None:
    with pytest.raises(EngineError, match=told) as raised:
        await prove(await serving(kind, model, policy, made), learner, policy, REQUEST)
    assert "log" in raised.value.remedy


async def test_a_probe_with_fewer_logprobs_than_tokens_is_an_error(
    model: Path, learner: TorchLearner, policy: PolicyVersion, made: list[TransformersEngine]
) -> None:
    engine = await serving(MeagreEngine, model, policy, made)
    engine.tokens = 16  # type: ignore[attr-defined]
    with pytest.raises(EngineError, match="16 tokens and 7 log-probabilities"):
        await prove(engine, learner, policy, REQUEST)


async def test_every_replica_is_asked_and_the_one_that_lies_is_named(
    model: Path, learner: TorchLearner, policy: PolicyVersion, made: list[TransformersEngine]
) -> None:
    honest = await serving(ProbedEngine, model, policy, made, lockstep=False)
    another = await serving(ProbedEngine, model, policy, made, lockstep=False)
    stale = await serving(StaleEngine, model, policy, made, lockstep=False)
    assert await prove(EngineSet([honest, another], serving=policy), learner, policy, REQUEST) is not None
    with pytest.raises(EngineError, match="Replica 1 "):
        await prove(EngineSet([honest, stale], serving=policy), learner, policy, REQUEST)


async def test_engines_that_are_not_to_be_probed_are_left_alone(
    model: Path, learner: TorchLearner, policy: PolicyVersion, made: list[TransformersEngine]
) -> None:
    engine = await serving(StaleEngine, model, policy, made)
    engine.probe_tolerance = None
    assert await prove(engine, learner, policy, REQUEST) is None
    plain = FakeEngine()
    assert await prove(plain, learner, policy, REQUEST) is None
    assert await prove(EngineSet([plain], serving=policy), learner, policy, REQUEST) is None
    assert not plain.served


class WordyCodec(ToyCodec):
    def opening(self, prompt: Prompt) -> tuple[int, ...]:
        return tuple(prompt.messages[0].content.encode())


def test_the_request_fits_the_context_and_depends_on_the_seed_alone() -> None:
    task = Task(id="q", prompt="How much? " * 100, split="train", cluster="c")
    settings = Settings.model_validate({"generation": {"temperature": 0.7, "top_p": 0.5}, "train": {"seed": 4}})
    request = probe_request(WordyCodec(), task, settings, max_context=100)
    assert len(request.token_ids) + request.sampling.max_tokens == 100
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.stop_ids) == (0.7, 1.0, ())
    assert len(probe_request(WordyCodec(), task, settings, max_context=10**6).token_ids) == 512
    assert request == probe_request(WordyCodec(), task, settings, max_context=100)
    other = Settings.model_validate({"train": {"seed": 5}})
    assert request.sampling.seed != probe_request(WordyCodec(), task, other, max_context=100).sampling.seed


@given(st.lists(st.tuples(st.floats(), st.floats()), min_size=1))
def test_the_largest_difference_counts_everything_that_is_no_number_as_infinite(
    pairs: list[tuple[float, float]],
) -> None:
    found = largest([left for left, _ in pairs], [right for _, right in pairs])
    left, right = pairs[found.token]
    assert found.nats >= 0 and not math.isnan(found.nats)
    if all(math.isfinite(left - right) for left, right in pairs):
        assert found.nats == abs(left - right) == max(abs(left - right) for left, right in pairs)
    else:
        assert found.nats == math.inf and not math.isfinite(left - right)
