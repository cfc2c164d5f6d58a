"""Every option of every optimizer changes a gradient, or is known to have no effect, so that naming it is refused.

A new option, or a new optimizer, fails here until it has a case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs finqa[train]")

import torch
from fixtures.graded_groups import graded_group
from fixtures.tiny_learners import GRPO_LOSS, as_batch, gradient, make_learner, random_samples

from finqa_cli.algorithms.credit import assign_credit
from finqa_cli.algorithms.pair_batches import PairSamples, pair_batch, with_pair_references
from finqa_cli.algorithms.samples import trajectory_samples
from finqa_cli.extend import registry
from finqa_cli.settings import TrainSettings
from finqa_cli.training.rl.updates import Updates, training_passes
from finqa_cli.types import Group, Sample, Turn
from finqa_plugins.learners.torch.torch_learner import TorchLearner
from finqa_plugins.learners.torch.value_model import ValueHead
from finqa_plugins.optimizers.recorded_methods import Dpo, DpoConfig
from finqa_testing.tiny_models import make_tiny_qwen3


@dataclass(frozen=True, slots=True)
class Case:
    """An option with a value, beside what it needs.

    Attributes:
        value: Of the option.
        beside: Other options, in the run with it and in the run without.
        instead: What the run without has in place of the option; empty for nothing.
    """

    value: Any
    beside: Mapping[str, Any] = field(default_factory=dict)
    instead: Mapping[str, Any] = field(default_factory=dict)


ONE_STEP = {"epochs": 1, "minibatches": 1}
KL = {"kl": "loss"}
SHARED = {
    "normalization": (Case("token"), Case("sequence"), Case("constant")),
    "normalization_length": (Case(100.0, beside={"normalization": "constant"}),),
    "kl": (Case("loss"), Case("reward")),
    "kl_coef": (Case(0.5, beside=KL), Case(0.5, beside={"kl": "reward"}), Case(0.5, beside={"kl": "off"})),
    "kl_estimator": (Case("k1", beside=KL), Case("k3", beside={"kl": "reward"}), Case("k1", beside={"kl": "off"})),
    "entropy_coef": (Case(0.1),),
}
CLIPS = {"clip_low": (Case(1e-6),), "clip_high": (Case(1e-6),)}
CASES: dict[str, dict[str, tuple[Case, ...]]] = {
    "grpo": {
        **SHARED,
        **CLIPS,
        "variant": (
            Case("grpo"),
            Case("dapo"),
            Case("dr_grpo"),
            Case("gspo", instead={"variant": "grpo"}),
            Case("cispo", beside={"clip_high": 1e-6}, instead={"variant": "dapo"}),
        ),
        "baseline": (Case("median"),),
        "normalize_std": (Case("group"), Case("batch")),
        "ratio": (Case("sequence"),),
        "dual_clip": (Case(1.000001),),
        "minimum_members": (Case(3),),
    },
    "rloo": {
        **SHARED,
        **CLIPS,
        "baseline": (Case("mean"),),
        "whiten_rewards": (Case(True),),
        "minimum_members": (Case(3),),
    },
    "reinforce": {**SHARED, "baseline": (Case("batch"), Case("group"))},
    "ppo": {
        **SHARED,
        **{name: (*cases, Case(1e-6, beside=ONE_STEP)) for name, cases in CLIPS.items()},
        "normalization": (Case("sequence"), Case("constant")),  # all members count, so `token` is what it is anyway
        "kl": (Case("loss"), Case("off")),
        "gamma": (Case(0.9),),
        "lam": (Case(0.5),),
        "whiten": (Case(False),),
        "value_coef": (Case(0.5),),
        "value_clip": (Case(1e-6), Case(1e-6, beside=ONE_STEP)),
        "epochs": (Case(2),),
        "minibatches": (Case(2),),
        "target_kl": (Case(1e-9), Case(1e-9, beside=ONE_STEP)),
    },
}
PAIRS: dict[str, tuple[Case, ...]] = {
    "loss_type": (Case("hinge"), Case("ipo")),
    "beta": (Case(0.5),),
    "label_smoothing": (Case(0.1),),
    "reference_free": (Case(True),),
}
PLAN: dict[str, Any] = {
    "epochs": 2.0,
    "pairs_per_step": 4,
    "warmup_share": 0.5,
    "validate_every": 7,
    "validation_samples": 3,
}
"""Options of `dpo` that say how to go through the pairs; `finqa dpo` follows its plan."""


EVERY = [(name, option, case) for name, options in CASES.items() for option, cases in options.items() for case in cases]


def optimizer(name: str, options: Mapping[str, Any]) -> Any:
    return registry().create("optimizer", name, dict(options))


def idle(name: str, options: Mapping[str, Any], train: TrainSettings) -> set[str]:
    method = optimizer(name, options)
    passes = training_passes(method, train)
    found = method.idle_options(passes.epochs * passes.minibatches)
    assert all(one.reason and one.remedy.startswith("--set ") for one in found)
    return {one.name for one in found}


IDLE = [
    (name, option, case)
    for name, option, case in EVERY
    if option in idle(name, {**case.beside, option: case.value}, TrainSettings()) and case.beside.get("kl") != "off"
]
"""Cases that several steps change."""


@dataclass(slots=True)
class Bench:
    """A learner that begins each iteration where it was saved, and what was played.

    Attributes:
        learner: A few steps from its reference, so that a divergence from that has a gradient.
        saved: Its state there.
        groups: Of several sizes, one without spread, sampled a little off the learner's policy.
        known: Gradients that were computed already.
    """

    learner: TorchLearner
    saved: Path
    groups: list[Group]
    known: dict[str, list[torch.Tensor]] = field(default_factory=dict)

    def gradients(self, name: str, options: Mapping[str, Any], train: TrainSettings) -> list[torch.Tensor]:
        """Of every step that an iteration takes, those of the value function included."""
        key = repr((name, sorted(options.items()), train))
        if key not in self.known:
            self.learner.load(self.saved)
            with pytest.MonkeyPatch.context() as patch:
                self.known[key] = _recorded(self, optimizer(name, options), train, patch)
        return self.known[key]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("bench")
    learner = make_learner(make_tiny_qwen3(folder / "model", hidden=32, layers=1), max_grad_norm=1e9)
    for _ in range(4):
        learner.update(as_batch(random_samples(2, seed=9)), GRPO_LOSS)
    (folder / "saved").mkdir()
    learner.save(folder / "saved")
    return Bench(learner, folder / "saved", played(learner))


def played(learner: TorchLearner) -> list[Group]:
    drawn = torch.Generator().manual_seed(0)
    rewards = ((1, 0, 0.5, 0.5), (0, 1), (0.3, 0, 1, 0, 1), (1, 1, 1))
    groups = []
    for number, members in enumerate(rewards):
        group = graded_group(*members, task=f"q{number}")
        trajectories = []
        for place, trajectory in enumerate(group.trajectories):
            ids = tuple(torch.randint(300, (3 + number + 2 * place,), generator=drawn).tolist())
            turn = Turn(prompt_ids=(1, 2), completion_ids=ids, logprobs=(0.0,) * len(ids))
            sampled = replace(trajectory, turns=(turn,))
            (row,) = learner.logprobs(trajectory_samples(sampled, 0.0))
            noise = (0.02 * torch.randn(len(ids), generator=drawn)).tolist()
            logprobs = tuple(value + gap for value, gap in zip(row[2:], noise, strict=True))
            trajectories.append(replace(trajectory, turns=(replace(turn, logprobs=logprobs),)))
        groups.append(replace(group, trajectories=tuple(trajectories)))
    return groups


def _recorded(bench: Bench, method: Any, train: TrainSettings, patch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    learner, found = bench.learner, list[torch.Tensor]()
    step, step_values = learner._optimizer.step, ValueHead.step

    def record() -> None:
        found.append(torch.cat([part.grad.flatten() for part in learner._trained.values() if part.grad is not None]))
        step()

    def record_values(head: ValueHead, rate: float) -> None:
        found.append(torch.cat([part.grad.flatten() for part in head._layer.parameters() if part.grad is not None]))
        step_values(head, rate)

    patch.setattr(learner._optimizer, "step", record)
    patch.setattr(ValueHead, "step", record_values)
    updates = Updates(learner, method, train)

    async def take() -> None:
        async for _ in updates.take(bench.groups, assign_credit(method, bench.groups)):
            pass

    asyncio.run(take())
    assert found
    return found


def changes(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Beyond rounding: it is 1e-6 of a gradient in float32."""
    if len(one) != len(other):
        return True
    return any((a - b).norm() > 1e-5 * b.norm() for a, b in zip(one, other, strict=True))


def test_every_optimizer_and_every_option_of_it_has_a_case() -> None:
    known = {**{name: set(options) for name, options in CASES.items()}, "dpo": {*PAIRS, *PLAN}, "sft": set[str]()}
    for component in registry().components("optimizer"):
        if not component.target.startswith("finqa_plugins."):
            continue
        config = type(registry().config(component, {})) if component.config else None
        assert known[component.name] == set(config.model_fields if config else ()), component.name


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "option", "case"), EVERY)
def test_an_option_changes_the_gradient_under_default_settings_or_has_no_effect(
    bench: Bench, name: str, option: str, case: Case
) -> None:
    train = TrainSettings()
    assert (train.max_staleness, train.updates_per_iteration, train.off_policy) == (1, 1, "auto")
    given = {**case.beside, option: case.value}
    found = changes(bench.gradients(name, given, train), bench.gradients(name, {**case.beside, **case.instead}, train))
    assert found != (option in idle(name, given, train))


@pytest.mark.parametrize(("name", "option", "case"), IDLE)
def test_with_several_steps_an_idle_option_changes_the_gradient(
    bench: Bench, name: str, option: str, case: Case
) -> None:
    given = {**case.beside, option: case.value}
    several = TrainSettings() if name == "ppo" else TrainSettings(updates_per_iteration=2)
    if name == "ppo":
        given |= {"epochs": 4, "minibatches": 4}
    assert option not in idle(name, given, several)
    without = {key: value for key, value in given.items() if key != option} | dict(case.instead)
    assert changes(bench.gradients(name, given, several), bench.gradients(name, without, several))


# --- methods that learn from pairs


@pytest.mark.parametrize(("option", "case"), [(option, case) for option, cases in PAIRS.items() for case in cases])
def test_an_option_of_dpo_changes_the_gradient(bench: Bench, option: str, case: Case) -> None:
    learner = bench.learner
    samples = random_samples(8, seed=4)
    pairs = [
        PairSamples(id=str(n), cluster="", chosen=(_signed(one, 1.0),), rejected=(_signed(other, -1.0),))
        for n, (one, other) in enumerate(zip(samples[::2], samples[1::2], strict=True))
    ]
    rows = learner.reference_logprobs([sample for pair in pairs for sample in pair.samples])
    batch = pair_batch(with_pair_references(pairs, rows), token_budget=10_000)

    def found(**options: Any) -> list[torch.Tensor]:
        return [gradient(learner, batch, Dpo(DpoConfig(**options)).pair_loss())]

    assert changes(found(**{option: case.value}), found())


@pytest.mark.parametrize("option", PLAN)
def test_an_option_of_dpo_changes_its_plan(option: str) -> None:
    assert Dpo(DpoConfig(**{option: PLAN[option]})).plan() != Dpo(DpoConfig()).plan()


def _signed(sample: Sample, sign: float) -> Sample:
    return replace(sample, advantages=tuple(sign if masked else 0.0 for masked in sample.loss_mask))


def test_cases_are_of_both_kinds() -> None:
    """The rule would hold as well if no option were ever idle."""
    assert {option for _, option, _ in IDLE} == {
        *("clip_low", "clip_high", "dual_clip", "ratio", "variant", "value_clip", "target_kl")
    }
