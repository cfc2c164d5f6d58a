"""The proof after a sync, with a real learner and engine, and with engines that serve something else."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import pytest
from fixtures.fake_engines import FakeEngine
from fixtures.run_contexts import make_context
from fixtures.toy_environment import ToyCodec

from finqa_testing.tiny_models import make_tiny_qwen3

pytest.importorskip("torch", reason="needs finqa[train]")

from fixtures.tiny_learners import GRPO_LOSS, as_batch, make_learner, random_samples

import finqa_plugins.policies
from finqa_cli.contracts import EngineContext, TokenEngine
from finqa_cli.errors import EngineError
from finqa_cli.rollout.replicas import EngineSet
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.settings import Settings
from finqa_cli.training.rl.probe import CEILING, FLOOR, LOOK_TRIES, POSITIONS, TEXTS, Probe
from finqa_cli.types import Completion, GenerateRequest, Message, PolicyVersion, Prompt, Sample, Sampling, Task
from finqa_cli.wiring.build import make_codec
from finqa_plugins.engines.transformers.config import TransformersEngineConfig
from finqa_plugins.engines.transformers.transformers_engine import TransformersEngine
from finqa_plugins.learners.torch.torch_learner import TorchLearner

EMBEDDED = Path(finqa_plugins.policies.__file__).parent
BF16 = 0.035
"""Nats RMS between a sampler and a trainer in bfloat16, as published for vLLM."""


class ProbedEngine(TransformersEngine):
    """An honest one, whose log-probabilities may be off by noise."""

    probe_tolerance: float | Literal["measured"] | None = 1e-4
    noise = 0.0

    def __init__(self, config: TransformersEngineConfig, context: EngineContext) -> None:
        super().__init__(config, context)
        self.probed: list[GenerateRequest] = []

    async def probe(self, request: GenerateRequest) -> Mapping[int, Completion]:
        self.probed.append(request)
        served = await self.generate(request)
        rng = random.Random(f"{request.sampling.seed}")
        noisy = (logprob + rng.gauss(0, self.noise) for logprob in served.logprobs)
        return {0: replace(served, logprobs=tuple(noisy)) if self.noise else served}


class StaleEngine(ProbedEngine):
    """Reports the new version and serves the base model."""

    async def load(self, policy: PolicyVersion) -> None:
        await super().load(replace(policy, adapter=None))


class LateEngine(ProbedEngine):
    """Its answers are of the version before."""

    async def load(self, policy: PolicyVersion) -> None:
        await super().load(replace(policy, number=policy.number - 1))


class MeagreEngine(ProbedEngine):
    """Gives fewer log-probabilities than tokens."""

    async def probe(self, request: GenerateRequest) -> Mapping[int, Completion]:
        whole = (await super().probe(request))[0]
        return {0: replace(whole, logprobs=whole.logprobs[:1])}


class SilentEngine(ProbedEngine):
    """Gives nothing at all."""

    async def probe(self, request: GenerateRequest) -> Mapping[int, Completion]:
        return {0: Completion(token_ids=(), logprobs=(), stop="length", policy_version=1)}


class SmallEngine(ProbedEngine):
    max_context = 100


class OnceWrongEngine(ProbedEngine):
    """Its first answer is far off, and no other one."""

    off = 3.0

    async def probe(self, request: GenerateRequest) -> Mapping[int, Completion]:
        first = not self.probed
        served = (await super().probe(request))[0]
        return {0: replace(served, logprobs=tuple(logprob - self.off * first for logprob in served.logprobs))}


class BytesCodec(ToyCodec):
    stop_ids = (258,)

    def opening(self, prompt: Prompt) -> tuple[int, ...]:
        return tuple(prompt.messages[0].content.encode())


TASKS = [Task(id=f"q{number}", prompt=f"How much is {number}?", split="train", cluster="c") for number in range(3)]


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
def run(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path / "run", command="train", settings={}, save_token_ids=False) as folder:
        yield folder


@pytest.fixture
async def made(model: Path) -> AsyncIterator[list[TransformersEngine]]:
    engines: list[TransformersEngine] = []
    yield engines
    for engine in engines:
        await engine.close()


async def serving(
    kind: type[ProbedEngine], policy: PolicyVersion, made: list[TransformersEngine], **options: Any
) -> ProbedEngine:
    engine = kind(TransformersEngineConfig.model_validate(options), EngineContext(model=policy.model))
    made.append(engine)
    await engine.start()
    await engine.load(policy)
    return engine


def a_probe(engine: TokenEngine, learner: Any, run: RunFolder, **options: Any) -> Probe:
    settings = options.pop("settings", Settings())
    return Probe(make_context(run, settings), engine, learner, BytesCodec(), TASKS, **options)


def events(run: RunFolder) -> list[dict[str, Any]]:
    run.event("read").result()  # all events before it are on disk
    return [event for event in read_jsonl(run.path / "events.jsonl") if event["event"].startswith("probe")]


async def test_an_honest_engine_agrees_with_the_learner(
    learner: TorchLearner, policy: PolicyVersion, made: list[TransformersEngine], run: RunFolder
) -> None:
    found = await a_probe(await serving(ProbedEngine, policy, made), learner, run).prove(policy)
    assert 0 <= found["probe_difference"] <= found["probe_largest"] <= 1e-5
    assert found["probe_looks"] == 1 and not events(run)


async def test_an_engine_on_the_same_device_sleeps_while_the_learner_scores(
    learner: TorchLearner, policy: PolicyVersion, made: list[TransformersEngine], run: RunFolder
) -> None:
    calls: list[str] = []

    class Shared(ProbedEngine):
        async def sleep(self) -> None:
            calls.append("engine sleeps")

        async def wake(self) -> None:
            calls.append("engine wakes")

    class Napping:
        def sleep(self) -> None:
            calls.append("learner sleeps")

        def wake(self) -> None:
            calls.append("learner wakes")

        def logprobs(self, samples: Sequence[Sample]) -> Any:
            calls.append("learner scores")
            return learner.logprobs(samples)

    engine, napping = await serving(Shared, policy, made), Napping()
    engine.sleeps = True
    assert await a_probe(engine, napping, run).prove(policy)
    assert calls == ["engine sleeps", "learner wakes", "learner scores", "learner sleeps", "engine wakes"]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (StaleEngine, r"Replica 0 reports .* version 1, but twice .* nats a token .* Rounding explains 0\.0001"),
        (LateEngine, "Replica 0 serves policy version 0 after version 1 was loaded"),
        (MeagreEngine, r"with \d+ tokens and 1 log-probabilities"),
        (SilentEngine, "with 0 tokens and 0 log-probabilities"),
    ],
)
async def test_an_engine_that_serves_something_else_ends_the_run(
    kind: type[ProbedEngine],
    message: str,
    learner: TorchLearner,
    policy: PolicyVersion,
    made: list[TransformersEngine],
    run: RunFolder,
) -> None:
    with pytest.raises(EngineError, match=message) as raised:
        await a_probe(await serving(kind, policy, made), learner, run).prove(policy)
    assert raised.value.remedy.startswith(f"finqa train --resume {run.path}, ")


async def test_every_replica_is_probed_and_the_wrong_one_is_named(
    learner: TorchLearner, policy: PolicyVersion, made: list[TransformersEngine], run: RunFolder
) -> None:
    honest, another = [await serving(ProbedEngine, policy, made, lockstep=False) for _ in range(2)]
    stale = await serving(StaleEngine, policy, made, lockstep=False)
    assert await a_probe(EngineSet([honest, another], serving=policy), learner, run).prove(policy)
    with pytest.raises(EngineError, match="Replica 1 "):
        await a_probe(EngineSet([honest, stale], serving=policy), learner, run).prove(policy)


class ScriptedSet(TokenEngine):
    """Replicas of one engine, of which `present` says who answers a request."""

    probe_tolerance = 1e-4

    def __init__(self, engine: ProbedEngine, present: Callable[[int], set[int]]) -> None:
        self._engine, self._present, self.asked = engine, present, 0

    @property
    def max_context(self) -> int:
        return self._engine.max_context

    async def start(self) -> None: ...

    async def generate(self, request: GenerateRequest) -> NoReturn:
        raise AssertionError("a probe does not generate")

    async def load(self, policy: PolicyVersion) -> NoReturn:
        raise AssertionError("a probe does not load")

    async def close(self) -> None: ...

    async def probe(self, request: GenerateRequest) -> Mapping[int, Completion]:
        present, self.asked = self._present(self.asked), self.asked + 1
        served = (await self._engine.probe(request))[0]
        wrong = replace(served, logprobs=tuple(logprob - 3 for logprob in served.logprobs))
        return {replica: wrong if replica == 2 else served for replica in present}


@pytest.mark.parametrize(
    "present",
    [
        lambda asked: {0, 1} if asked < TEXTS else {1},
        lambda asked: {1} if asked < TEXTS + 1 else {0, 1},
        lambda asked: {0, 1} if asked < TEXTS else {1, 2},
        lambda asked: {0} if asked < TEXTS else {1},
    ],
    ids=["one leaves", "one joins", "one leaves and a wrong one joins", "the only one is replaced"],
)
async def test_replicas_that_leave_or_join_during_a_probe_do_not_end_the_run(
    present: Callable[[int], set[int]],
    learner: TorchLearner,
    policy: PolicyVersion,
    made: list[TransformersEngine],
    run: RunFolder,
) -> None:
    engine = ScriptedSet(await serving(ProbedEngine, policy, made), present)
    found = await a_probe(engine, learner, run).prove(policy)  # type: ignore[arg-type]
    assert found["probe_largest"] <= 1e-5 and found["probe_looks"] == 1 and not events(run)


async def test_a_look_that_no_replica_answers_whole_is_repeated_a_few_times_only(
    learner: TorchLearner, policy: PolicyVersion, made: list[TransformersEngine], run: RunFolder
) -> None:
    engine = ScriptedSet(await serving(ProbedEngine, policy, made), lambda asked: {asked % 2})
    with pytest.raises(EngineError, match=r"No replica answered all requests .* version 1, in 3 tries") as raised:
        await a_probe(engine, learner, run).prove(policy)  # type: ignore[arg-type]
    assert engine.asked == LOOK_TRIES * TEXTS and raised.value.remedy.startswith("finqa train --resume")


async def test_other_engines_are_not_probed(learner: TorchLearner, policy: PolicyVersion, run: RunFolder) -> None:
    plain = FakeEngine()
    for engine in (plain, EngineSet([plain], serving=policy)):
        probe = a_probe(engine, learner, run)
        await probe.begin(policy)
        assert await probe.prove(policy) == {} and probe.state is None
    assert not plain.served


async def test_a_difference_is_looked_at_again_with_another_text_before_it_ends_the_run(
    learner: TorchLearner, policy: PolicyVersion, made: list[TransformersEngine], run: RunFolder
) -> None:
    engine = await serving(OnceWrongEngine, policy, made)
    found = await a_probe(engine, learner, run).prove(policy)
    assert found["probe_looks"] == 2 and found["probe_largest"] <= 1e-4
    (event,) = events(run)
    assert (event["event"], event["look"], event["replica"]) == ("probe_differs", 1, 0)
    assert event["largest"] == pytest.approx(3, abs=1e-3)
    count = TEXTS * (1 + POSITIONS)
    first, second = engine.probed[:count], engine.probed[count:]
    assert len(second) == count and not {one.token_ids for one in first} & {one.token_ids for one in second[TEXTS:]}
    assert not {one.sampling.seed for one in first} & {one.sampling.seed for one in second}


async def test_log_probabilities_that_are_no_numbers_are_recorded_and_end_the_run(
    learner: TorchLearner, policy: PolicyVersion, made: list[TransformersEngine], run: RunFolder
) -> None:
    engine = await serving(ProbedEngine, policy, made)
    engine.noise = float("nan")
    engine.probe_tolerance = "measured"
    with pytest.raises(EngineError, match="by inf nats a token and up to inf"):
        await a_probe(engine, learner, run).begin(policy)
    assert [event["typical"] for event in events(run)] == [None, None]


async def test_texts_end_where_turns_do_and_depend_on_seed_and_version_alone(
    learner: TorchLearner, policy: PolicyVersion, made: list[TransformersEngine], run: RunFolder
) -> None:
    asked = []
    for seed in (4, 4, 5):
        engine = await serving(ProbedEngine, policy, made)
        settings = Settings.model_validate({"generation": {"temperature": 1.0, "top_p": 0.5}, "train": {"seed": seed}})
        await a_probe(engine, learner, run, settings=settings).prove(policy)
        asked.append(engine.probed)
        assert all(one.key.startswith("probe#") for one in engine.probed)
        assert {(one.sampling.top_p, one.sampling.stop_ids) for one in engine.probed} == {(1.0, (258,))}
        openings = {task.prompt.encode() for task in TASKS}
        assert {bytes(one.token_ids) for one in engine.probed[:TEXTS]} == openings
        for one in engine.probed[TEXTS:]:
            assert len(one.token_ids) > len(TASKS[0].prompt), "it continues a text of the model"
    assert asked[0] == asked[1] != asked[2]


async def test_what_is_asked_fits_a_small_context(
    learner: TorchLearner, policy: PolicyVersion, made: list[TransformersEngine], run: RunFolder
) -> None:
    engine = await serving(SmallEngine, policy, made)
    task = Task(id="q", prompt="How much? " * 100, split="train", cluster="c")
    await Probe(make_context(run), engine, learner, BytesCodec(), [task]).prove(policy)
    assert max(len(one.token_ids) + one.sampling.max_tokens for one in engine.probed) <= 100
    assert bytes(engine.probed[0].token_ids) == b"How much? " * 2, "the end of the opening is kept"


async def test_the_tolerance_is_measured_at_the_start_recorded_and_kept_by_a_resumed_run(
    model: Path, made: list[TransformersEngine], run: RunFolder
) -> None:
    learner, base = make_learner(model), PolicyVersion(number=0, model=str(model))
    engine = await serving(ProbedEngine, base, made)
    engine.probe_tolerance = "measured"
    states = []
    for noise in (0.0, BF16, 0.2):
        engine.noise = noise
        probe = a_probe(engine, learner, run)
        await probe.begin(base)
        states.append(probe.state)
    small, usual, large = (state["typical"] for state in states if state is not None)
    assert small == FLOOR < usual < large == CEILING
    assert usual == pytest.approx(2 * 0.8 * BF16, rel=0.2), "twice the mean of a Gaussian's absolute value, trimmed"
    recorded = [event for event in events(run) if event["event"] == "probe_tolerance"]
    assert [event["typical"] for event in recorded] == [small, usual, large]
    assert "measured on version 0" in recorded[0]["source"]
    before, engine.noise = len(engine.probed), BF16
    resumed = a_probe(engine, learner, run, state=states[1])
    await resumed.begin(base)
    assert resumed.state == states[1] and len(engine.probed) - before <= 2 * TEXTS * (1 + POSITIONS)
    engine.probe_tolerance = 0.5
    chosen = a_probe(engine, learner, run, state=states[1])
    assert (await chosen.prove(base))["probe_looks"] == 1 and chosen.state is None, "the user's option wins"


async def test_an_engine_with_another_model_is_found_before_anything_is_played(
    model: Path, tmp_path: Path, made: list[TransformersEngine], run: RunFolder
) -> None:
    other = make_tiny_qwen3(tmp_path / "other", seed=1)
    engine = await serving(ProbedEngine, PolicyVersion(number=0, model=str(other)), made)
    engine.probe_tolerance = "measured"
    with pytest.raises(EngineError, match="the largest difference that rounding explains"):
        await a_probe(engine, make_learner(model), run).begin(PolicyVersion(number=0, model=str(model)))


@pytest.mark.parametrize("noise", [0.0, BF16])
async def test_a_stale_embedded_policy_is_found_after_one_update_also_under_noise(
    noise: float, tmp_path: Path, made: list[TransformersEngine], run: RunFolder
) -> None:
    settings = Settings.model_validate({"model": {"name": str(EMBEDDED)}})
    codec = make_codec(settings, str(EMBEDDED))
    questions = ("What was the revenue in 2019?", "By how much did net income change from 2017 to 2018?")
    tasks = [Task(id=text, prompt=text, split="train", cluster="c") for text in questions]
    learner = make_learner(EMBEDDED, learning_rate=1e-3, lora_rank=16, lora_alpha=32)  # as its profile
    base = PolicyVersion(number=0, model=str(EMBEDDED))
    honest, stale = [await serving(kind, base, made, threads=1) for kind in (ProbedEngine, StaleEngine)]
    probes = []
    for engine in (honest, stale):
        engine.noise, engine.probe_tolerance = noise, "measured"
        probe = Probe(make_context(run, settings), engine, learner, codec, tasks)
        await probe.begin(base)
        probes.append(probe)
    samples = []
    for seed in range(12):
        opening = codec.opening(Prompt(messages=(Message(role="user", content=questions[seed % 2]),), tools=()))
        sampling = Sampling(max_tokens=48, stop_ids=codec.stop_ids, seed=seed)
        played = await honest.generate(GenerateRequest(key=f"a{seed}#0", token_ids=opening, sampling=sampling))
        samples.append(_sample(opening, played, 1.0 if seed % 3 else -2.0))
    learner.update(as_batch(samples), GRPO_LOSS)
    policy = learner.publish(tmp_path / "v1", 1)
    for engine in (honest, stale):
        await engine.load(policy)
    assert (await probes[0].prove(policy))["probe_difference"] < FLOOR
    with pytest.raises(EngineError, match="serves other weights"):
        await probes[1].prove(policy)


def _sample(opening: tuple[int, ...], played: Completion, advantage: float) -> Sample:
    begin, length = len(opening), len(played.token_ids)
    return Sample(
        token_ids=opening + played.token_ids,
        loss_mask=(False,) * begin + (True,) * length,
        logprobs=(0.0,) * begin + played.logprobs,
        advantages=(0.0,) * begin + (advantage,) * length,
    )
