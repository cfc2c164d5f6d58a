"""From groups to steps, with a real learner: which samples a method's update is made of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.graded_groups import graded_group
from fixtures.tiny_learners import make_learner
from fixtures.typed_losses import typed

from benchmarks.async_training.simulation import SimulatedLearner
from finqa_cli.algorithms.credit import assign_credit, credited_samples
from finqa_cli.algorithms.packing import pack
from finqa_cli.algorithms.samples import trajectory_samples
from finqa_cli.errors import ConfigError
from finqa_cli.extend import registry
from finqa_cli.settings import TrainSettings
from finqa_cli.training.rl.updates import Updates, training_loss
from finqa_cli.types import Batch, FloatRow, Group, Loss, Sample, Status, Turn, UpdateReport
from finqa_plugins.learners.torch.torch_learner import TorchLearner
from finqa_testing.tiny_models import make_tiny_qwen3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen3(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def untrained(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], TorchLearner]:
    """Returns one learner in its initial state. Loading a state takes a tenth of the time of a start."""
    learner, state = make_learner(model), tmp_path_factory.mktemp("states") / "start"
    learner.save(state)

    def restore() -> TorchLearner:
        learner.__dict__.pop("update", None)  # of `taken`
        learner.load(state)
        return learner

    return restore


def optimizer(name: str, **options: Any) -> Any:
    return registry().create("optimizer", name, options)


def groups_of(*rewards: Sequence[float | Status]) -> list[Group]:
    """Every attempt samples ids of its own, later members more of them."""
    made = []
    for number, members in enumerate(rewards):
        group = graded_group(*members, task=f"q{number}")
        trajectories = []
        for place, trajectory in enumerate(group.trajectories):
            ids = tuple(range(10 * number + place, 12 * number + 2 * place + 3))
            turn = Turn(prompt_ids=(1, 2), completion_ids=ids, logprobs=(-5.7,) * len(ids))
            trajectories.append(replace(trajectory, turns=(turn,)))
        made.append(replace(group, trajectories=tuple(trajectories)))
    return made


METRICS: dict[str, float] = {}
"""Of the iteration that was `taken` last."""


def taken(
    learner: TorchLearner, method: Any, groups: Sequence[Group], **train: Any
) -> tuple[list[Batch], list[UpdateReport]]:
    """The batches that the learner was given, and its reports."""
    batches: list[Batch] = []
    update = learner.update

    def heard(batch: Batch, loss: Loss) -> UpdateReport:
        batches.append(batch)
        return update(batch, loss)

    async def take() -> list[UpdateReport]:
        return [report async for report in updates.take(groups, assign_credit(method, groups))]

    updates = Updates(learner, method, TrainSettings(**({"max_staleness": 0} | train)), max_gen_tokens=10)
    learner.update = heard  # type: ignore[method-assign]
    reports = asyncio.run(take())
    METRICS.clear()
    METRICS.update(updates.metrics)
    return batches, reports


MIXED = ((1, 0, 0.5, Status.ENGINE_ERROR), (1, 1), (0, 1, 0))


def test_each_step_is_a_mean_over_its_own_samples(model: Path) -> None:
    method = optimizer("grpo", normalization="constant", normalization_length=4.0)
    batches, _ = taken(make_learner(model), method, groups_of((0, 1, 0), (1, 0, 0)), updates_per_iteration=3)
    assert [len(batch.samples) for batch in batches] == [2, 2, 2]
    for batch in batches:
        assert {sample.weight for sample in batch.samples} == {batch.loss_tokens / (2 * 4.0)}


def test_the_default_makes_the_batch_that_it_always_made(model: Path) -> None:
    groups, grpo = groups_of(*MIXED), optimizer("grpo")
    learner, plain = make_learner(model), make_learner(model)
    (batch,), (report,) = taken(learner, grpo, groups)
    before = pack(credited_samples(groups, assign_credit(grpo, groups)), token_budget=16384, max_rows=12, padded=False)
    assert batch == before
    clips = {"clip_low": 0.2, "clip_high": 0.2}
    corrected = typed("policy_gradient", **clips, token_cap=2.0)
    expected = plain.update(before, corrected)
    assert (report.loss, report.metrics) == (expected.loss, expected.metrics)
    for left, right in zip(learner._trained.values(), plain._trained.values(), strict=True):
        assert torch.equal(left, right)


def test_kl_in_the_reward_is_taken_off_before_credit(model: Path) -> None:
    groups = groups_of(*MIXED)
    learner = make_learner(model)
    rloo = optimizer("rloo", kl="reward", kl_coef=0.1)
    (batch,), (report,) = taken(learner, rloo, groups)
    base = make_learner(model)
    penalized = {}
    for group in (groups[0], groups[2]):  # the second has no signal as it was graded, and gets none
        for trajectory in group.trajectories:
            if trajectory.reward is not None:
                (sample,) = trajectory_samples(trajectory, 1.0)
                (row,) = base.reference_logprobs([sample])
                kl = float(sample.logprobs.sum(dtype=np.float64)) - float(row.sum(dtype=np.float64))
                penalized[trajectory.id] = (trajectory.reward - 0.1 * kl, row)
    assert len(batch.samples) == len(penalized) == 6
    for group in (groups[0], groups[2]):
        scores = {one.id: penalized[one.id][0] for one in group.trajectories if one.id in penalized}
        for sample in batch.samples:
            if sample.episode in scores:
                others = [score for name, score in scores.items() if name != sample.episode]
                wanted = scores[sample.episode] - sum(others) / len(others)
                assert max(sample.advantages, key=abs) == pytest.approx(wanted, abs=1e-6)
                assert sample.reference_logprobs == pytest.approx(penalized[sample.episode][1], abs=1e-5)
    assert report.metrics["kl_reference"] == pytest.approx(0, abs=1e-6), "at the first step the policy is its reference"


def test_kl_in_the_loss_also_moves_members_without_an_advantage(model: Path) -> None:
    groups = groups_of(*MIXED)
    (batch,), (report,) = taken(make_learner(model), optimizer("grpo", kl="loss"), groups)
    assert [sample.episode for sample in batch.samples] == [
        *(f"train/q0/{place}" for place in range(3)),
        *(f"train/q2/{place}" for place in range(3)),
    ]
    assert all(sample.reference_logprobs is not None and sample.weight == 1 for sample in batch.samples)
    assert "kl_reference" in report.metrics


def test_members_without_an_advantage_are_counted_and_not_forwarded(model: Path) -> None:
    groups = groups_of(*MIXED)
    (batch,), _ = taken(make_learner(model), optimizer("grpo", variant="dr_grpo", normalization_length=100), groups)
    assert len(batch.samples) == 5
    assert {sample.weight for sample in batch.samples} == {batch.loss_tokens / (6 * 100)}


def test_advantages_that_need_the_batch_are_made_from_all_its_groups(model: Path) -> None:
    reinforce = optimizer("reinforce", baseline="batch")
    (batch,), _ = taken(make_learner(model), reinforce, groups_of((1, 1), (0, 1)))
    assert [max(sample.advantages, key=abs) for sample in batch.samples] == [0.25, 0.25, -0.75, 0.25]
    batches, reports = taken(make_learner(model), reinforce, groups_of((1, 1), (1, 1)))
    assert batches == reports == [], "nothing is better than the mean, so there is nothing to learn"


@pytest.mark.thorough
@pytest.mark.parametrize("variant", ["grpo", "dapo", "dr_grpo", "gspo", "cispo"])
@pytest.mark.parametrize("mode", ["auto", "none", "token", "sequence", "icepop", "geometric"])
@pytest.mark.parametrize("max_staleness", [0, 1])
def test_the_anchor_of_every_variant_is_computed_before_the_first_of_several_steps(
    untrained: Callable[[], TorchLearner], variant: str, mode: str, max_staleness: int
) -> None:
    method = optimizer("grpo", variant=variant, kl="loss")
    train = {"max_staleness": max_staleness, "off_policy": mode}
    groups = groups_of((1, 0), (0, 1))
    learner = untrained()
    anchors = {sample.episode: row for sample, row in _scored(learner, method, groups)}
    batches, reports = taken(learner, method, groups, updates_per_iteration=2, **train)
    assert len(reports) == 2
    for sample in (sample for batch in batches for sample in batch.samples):
        assert np.array_equal(sample.proximal_logprobs, anchors[sample.episode])
    assert all(("importance_weight_mean" in report.metrics) == (mode != "none") for report in reports)
    (single,), (report,) = taken(untrained(), method, groups, **train)
    assert all(sample.proximal_logprobs is None for sample in single.samples), "no forward pass for what is 1 anyway"
    assert report.metrics["ratio_mean"] == 1 and report.metrics["clip_fraction"] == 0


def cut_short(groups: list[Group]) -> list[Group]:
    """The same, where the second member of each ended at the limit of tokens."""
    found = []
    for group in groups:
        first, second, *others = group.trajectories
        turns = tuple(replace(turn, stop="length") for turn in second.turns)
        found.append(replace(group, trajectories=(first, replace(second, turns=turns), *others)))
    return found


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_masked_episodes_are_in_no_batch_and_in_the_baseline(model: Path, name: str) -> None:
    method = optimizer(name, **({"epochs": 1, "minibatches": 1} if name == "ppo" else {}))
    groups = cut_short(groups_of((1, 0, 0.5, 0), (0, 1)))
    (kept,), _ = taken(make_learner(model), method, groups)
    assert METRICS.get("episodes_truncated") is None
    (masked,), _ = taken(make_learner(model), method, groups, truncated="mask")
    left = [sample for sample in kept.samples if not sample.episode.endswith("/1")]
    assert {sample.episode for sample in masked.samples} == {sample.episode for sample in left}
    assert METRICS["episodes_truncated"] == 2
    if name == "grpo":
        assert list(masked.samples) == left, "the others are compared with its reward as before"
        assert masked.loss_tokens == sum(sample.loss_tokens for sample in left)
    everything = [replace(one, trajectories=one.trajectories[1:2] * 2) for one in groups]
    assert taken(make_learner(model), method, everything, truncated="mask") == ([], [])


def test_penalized_episodes_get_credit_for_the_reward_that_is_left(model: Path) -> None:
    """Completions of 3 to 6 and of 5 and 6 tokens; with a buffer of 8 the penalty is (tokens - 2) / 8, and 1 if cut."""
    method = optimizer("grpo")
    groups = cut_short(groups_of((1, 0, 0.5), (0, 1)))
    lengths = {one.id: len(one.turns[0].completion_ids) for group in groups for one in group.trajectories}
    (batch,), _ = taken(make_learner(model), method, groups, truncated="penalize", overlong_buffer=8)
    rewards = {one.id: one.reward or 0.0 for group in groups for one in group.trajectories}
    penalties = {name: 1.0 if name.endswith("/1") else (length - 2) / 8 for name, length in lengths.items()}
    assert METRICS["length_penalty_mean"] == pytest.approx(sum(penalties.values()) / len(penalties))
    assert METRICS["episodes_truncated"] == 2
    for group in groups:
        left = {one.id: rewards[one.id] - penalties[one.id] for one in group.trajectories}
        for sample in batch.samples:
            if sample.episode in left:
                wanted = left[sample.episode] - sum(left.values()) / len(left)
                assert max(sample.advantages, key=abs) == pytest.approx(wanted)


def _scored(learner: TorchLearner, method: Any, groups: list[Group]) -> Iterator[tuple[Sample, FloatRow]]:
    samples = credited_samples(groups, assign_credit(method, groups))
    return zip(samples, learner.logprobs(samples), strict=True)


def test_a_learner_without_a_reference_policy_is_refused() -> None:
    for kl in ("reward", "loss"):
        with pytest.raises(ConfigError, match="SimulatedLearner keeps no reference policy") as error:
            Updates(SimulatedLearner(0.0), optimizer("rloo", kl=kl), TrainSettings())
        assert error.value.remedy == "--set optimizer.options.kl=off"
    Updates(SimulatedLearner(0.0), optimizer("rloo"), TrainSettings())


def test_an_unknown_normalization_is_refused_before_anything_is_played() -> None:
    class Odd:
        def loss(self) -> Loss:
            return typed(normalization="mean")  # type: ignore[arg-type]

    with pytest.raises(
        ConfigError, match="Odd creates an invalid PolicyGradientLoss: normalization: Input should be 'trained'"
    ):
        training_loss(Odd(), TrainSettings())  # type: ignore[arg-type]
