"""PPO's iterations with a real learner: values, advantages, passes, the stop, and what a resumed run makes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.graded_groups import graded_group
from fixtures.tiny_learners import make_learner

from benchmarks.async_training.simulation import SimulatedLearner
from finqa_cli.algorithms.credit import assign_credit
from finqa_cli.errors import ConfigError
from finqa_cli.extend import registry
from finqa_cli.settings import TrainSettings
from finqa_cli.training.rl.updates import Updates, training_passes
from finqa_cli.types import Batch, Group, Loss, Status, Trajectory, Turn, UpdateReport
from finqa_plugins.learners.torch.torch_learner import TorchLearner
from finqa_testing.tiny_models import make_tiny_qwen3

MIXED = ((1, 0, 0.5, Status.ENGINE_ERROR), (1, 1), (0, 0))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen3(tmp_path_factory.mktemp("models") / "tiny")


def ppo(**options: Any) -> Any:
    return registry().create("optimizer", "ppo", {"target_kl": 0} | options)


def groups_of(*rewards: Sequence[float | Status]) -> list[Group]:
    """Every attempt samples ids of its own in two turns around a tool's reply."""
    made = []
    for number, members in enumerate(rewards):
        group = graded_group(*members, task=f"q{number}")
        trajectories = []
        for place, trajectory in enumerate(group.trajectories):
            ids = tuple(range(10 * number + place, 12 * number + 2 * place + 3))
            turns = tuple(
                Turn(prompt_ids=prompt, completion_ids=ids, logprobs=(-5.7,) * len(ids))
                for prompt in ((1, 2), (3, 4, 5))
            )
            trajectories.append(replace(trajectory, turns=turns))
        made.append(replace(group, trajectories=tuple(trajectories)))
    return made


def taken(
    learner: TorchLearner, method: Any, groups: Sequence[Group], *, iteration: int = 1, **train: Any
) -> tuple[list[Batch], list[UpdateReport], Mapping[str, float]]:
    """The batches that the learner was given, its reports, and the metrics of the iteration."""
    batches: list[Batch] = []
    update = TorchLearner.update

    def heard(batch: Batch, loss: Loss) -> UpdateReport:
        batches.append(batch)
        return update(learner, batch, loss)

    learner.update = heard  # type: ignore[method-assign]
    updates = Updates(learner, method, TrainSettings(**({"max_staleness": 0} | train)))

    async def take() -> list[UpdateReport]:
        credits = assign_credit(method, groups)
        return [report async for report in updates.take(groups, credits, iteration=iteration)]

    return batches, asyncio.run(take()), updates.metrics


def state(learner: TorchLearner) -> list[torch.Tensor]:
    parts = [*learner._trained.values(), *learner._values()._layer.parameters()]
    return [part.detach().clone() for part in parts]


def test_the_first_iteration_by_hand(model: Path) -> None:
    """Values are 0, so with lam 0.5 the advantage k tokens before the end is 0.5^k of the reward."""
    method = ppo(kl="off", whiten=False, lam=0.5, epochs=1, minibatches=1)
    (batch,), (report,), metrics = taken(make_learner(model), method, groups_of(*MIXED))
    rewards = {"train/q0/0": 1.0, "train/q0/1": 0.0, "train/q0/2": 0.5, "train/q1/0": 1.0, "train/q1/1": 1.0}
    rewards |= {"train/q2/0": 0.0, "train/q2/1": 0.0}
    assert sorted(sample.episode for sample in batch.samples) == sorted(rewards), "all that were scored, equal or not"
    for sample in batch.samples:
        own = [each for each, masked in zip(sample.advantages, sample.loss_mask, strict=True) if masked]
        wanted = [rewards[sample.episode] * 0.5 ** (len(own) - 1 - step) for step in range(len(own))]
        assert own == pytest.approx(wanted)
        assert sample.returns == pytest.approx(sample.advantages) and not sample.values.any()
        assert not any(number for number, m in zip(sample.advantages, sample.loss_mask, strict=True) if not m)
    assert metrics["explained_variance"] == 0 and metrics["value_mean"] == 0 and metrics["return_mean"] > 0
    assert report.metrics["value_loss"] > 0 and report.metrics["ratio_mean"] == pytest.approx(1, abs=0.5)


def test_weights_of_attempts_scale_their_advantages_and_not_their_returns(model: Path) -> None:
    plain = groups_of((1, 0.5))
    halved = [replace(one, trajectories=tuple(map(_halved, one.trajectories))) for one in plain]
    method = ppo(kl="off", epochs=1, minibatches=1)
    ((full,), _, _), ((half,), _, _) = (taken(make_learner(model), method, groups) for groups in (plain, halved))
    for one, other in zip(full.samples, half.samples, strict=True):
        assert one.advantages.any()
        assert other.advantages == pytest.approx([0.5 * each for each in one.advantages])
        assert np.array_equal(other.returns, one.returns)


def _halved(trajectory: Trajectory) -> Trajectory:
    assert trajectory.rewards is not None
    return replace(trajectory, rewards=replace(trajectory.rewards, weight=0.5))


def test_the_penalty_of_each_token_is_in_the_returns_and_not_twice(model: Path) -> None:
    groups = groups_of((1, 0))
    options: dict[str, Any] = {"whiten": False, "lam": 1.0, "epochs": 1, "minibatches": 1}
    (plain,), _, _ = taken(make_learner(model), ppo(kl="off", **options), groups)
    (fined,), _, _ = taken(make_learner(model), ppo(kl_coef=0.1, **options), groups)
    returns = {sample.episode: sample.returns for sample in plain.samples}
    for sample in fined.samples:
        ratios = [
            one - other
            for one, other, masked in zip(sample.logprobs, sample.reference_logprobs, sample.loss_mask, strict=True)
            if masked
        ]
        first = sample.loss_mask.tolist().index(True)
        assert sample.returns[first] == pytest.approx(returns[sample.episode][first] - 0.1 * sum(ratios), abs=1e-6)


def test_each_epoch_takes_every_sample_once_in_an_order_of_its_own(model: Path) -> None:
    def episodes(iteration: int) -> list[list[str]]:
        batches, reports, metrics = taken(
            make_learner(model), ppo(epochs=3, minibatches=2), groups_of(*MIXED), iteration=iteration
        )
        assert len(batches) == len(reports) == 6 and metrics["updates_skipped"] == 0
        return [[sample.episode for sample in batch.samples] for batch in batches]

    first = episodes(1)
    epochs = [first[place] + first[place + 1] for place in (0, 2, 4)]
    assert len({tuple(sorted(epoch)) for epoch in epochs}) == 1 and len(epochs[0]) == 7
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert episodes(1) == first != episodes(2)


def test_at_the_target_kl_the_rest_is_skipped_and_counted(model: Path) -> None:
    options = {"epochs": 5, "minibatches": 2}
    learner = make_learner(model, learning_rate=3e-2)
    groups = groups_of(*MIXED)
    free, reports, _ = taken(learner, ppo(**options), groups)
    target = max(report.metrics["kl_proximal"] for report in reports)
    first = next(place for place, report in enumerate(reports) if report.metrics["kl_proximal"] >= target)
    assert first > 0, "the test shows nothing if the first step is the furthest"
    stopped, again, metrics = taken(make_learner(model, learning_rate=3e-2), ppo(target_kl=target, **options), groups)
    divergences = [report.metrics["kl_proximal"] for report in reports]
    assert [report.metrics["kl_proximal"] for report in again] == divergences[: first + 1]
    assert (len(free), len(stopped)) == (10, first + 1)
    assert metrics["updates_skipped"] == 10 - len(stopped)
    assert metrics["kl_last_step"] == target


@pytest.mark.parametrize("mode", ["auto", "none", "token", "sequence"])
def test_stale_tokens_are_corrected_as_the_settings_ask(model: Path, mode: str) -> None:
    """The stop looks at the divergence from the anchor, which is 0 at the first step however stale it is."""
    batches, reports, metrics = taken(
        make_learner(model), ppo(epochs=2, minibatches=2), groups_of(*MIXED), max_staleness=1, off_policy=mode
    )
    assert len(reports) == 4
    assert all(sample.proximal_logprobs is not None for batch in batches for sample in batch.samples)
    assert all(("importance_weight_mean" in report.metrics) == (mode != "none") for report in reports)
    assert abs(reports[0].metrics["kl_proximal"]) < 1e-6 < reports[0].metrics["kl"]
    assert metrics["kl_last_step"] == reports[-1].metrics["kl_proximal"] > 0


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_saved_between_iterations_and_loaded_it_goes_on_to_the_bit(model: Path, tmp_path: Path, dropout: float) -> None:
    rounds = [groups_of((1, 0, 0.5), (0, 0)), groups_of((0, 1), (1, 1, 0))]
    unbroken = make_learner(model, lora_dropout=dropout)
    whole = [taken(unbroken, ppo(), groups, iteration=number)[1:] for number, groups in enumerate(rounds, start=1)]
    first = make_learner(model, lora_dropout=dropout)
    taken(first, ppo(), rounds[0], iteration=1)
    first.save(tmp_path)
    second = make_learner(model, lora_dropout=dropout)
    second.load(tmp_path)
    _, reports, metrics = taken(second, ppo(), rounds[1], iteration=2)
    assert metrics == whole[1][1] and metrics["value_mean"] != 0
    assert [replace(report, seconds=0) for report in reports] == [replace(one, seconds=0) for one in whole[1][0]]
    assert all(torch.equal(one, other) for one, other in zip(state(second), state(unbroken), strict=True))


def test_nothing_scored_is_no_step(model: Path) -> None:
    batches, reports, metrics = taken(make_learner(model), ppo(), groups_of((Status.ENGINE_ERROR,) * 2))
    assert not batches and not reports and not metrics


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="SimulatedLearner has no value function"):
        Updates(SimulatedLearner(0.0), ppo(kl="off"), TrainSettings())
    with pytest.raises(ConfigError, match="updates_per_iteration=2 has no effect") as error:
        training_passes(ppo(), TrainSettings(updates_per_iteration=2))
    assert "optimizer.options.minibatches=2" in (error.value.remedy or "")
