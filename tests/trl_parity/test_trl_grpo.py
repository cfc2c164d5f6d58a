"""Every loss of `grpo` that TRL's GRPOTrainer has as well: loss and gradient on the same attempts.

Deviations are defined differently: TRL's is of a sample, plus 1e-4, ours of the population, plus 1e-8. So losses are
compared without one, and advantages by the factor between the definitions. Unless `use_bias_correction_kl` is off, TRL
multiplies the KL term by the ratio; ours is GRPO's own term.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs finqa[train]")

from trl_parity.recorded import as_rollouts, random_groups, with_sampler
from trl_parity.sides import Found, Policy, ask_trl, assert_same, assert_same_advantages, updated

from finqa_cli.types import Group, Rewards
from finqa_plugins.optimizers.grpo import Grpo, GrpoConfig

NONE = {"normalize_std": "none"}


@dataclass(frozen=True, slots=True)
class Case:
    """One loss, as both sides name it.

    Attributes:
        ours: Options of `grpo`.
        theirs: Of GRPOConfig.
        moves: Metric of finqa that must be above 0, because else the case would not show what it is for.
        noise: Largest difference of the sampler's log-probabilities from the current ones, in nats.
        settings: Of `train`; with any, both sides correct for the sampler instead of clipping around it.
    """

    ours: dict[str, Any]
    theirs: dict[str, Any]
    moves: str = "clip_fraction"
    noise: float = 0.5
    settings: dict[str, Any] = field(default_factory=dict)


CASES = {
    "grpo": Case({"variant": "grpo", **NONE}, {"loss_type": "grpo"}),
    "dapo": Case({"variant": "dapo", **NONE}, {"loss_type": "dapo", "epsilon_high": 0.28}),
    "dr_grpo": Case(
        {"variant": "dr_grpo", "normalization_length": 100}, {"loss_type": "dr_grpo", "max_completion_length": 100}
    ),
    "gspo": Case(
        {"variant": "gspo", **NONE, "clip_low": 0.08, "clip_high": 0.1},
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.08, "epsilon_high": 0.1},
        noise=1.5,
    ),
    # TRL's epsilon_high of cispo is the bound itself, ours is how far it is above 1
    "cispo": Case({"variant": "cispo", **NONE, "clip_high": 0.3}, {"loss_type": "cispo", "epsilon_high": 1.3}),
    "no variant": Case({}, {"loss_type": "bnpo"}),
    "clips of their own": Case(
        {"clip_low": 0.1, "clip_high": 0.35}, {"loss_type": "bnpo", "epsilon": 0.1, "epsilon_high": 0.35}
    ),
    "dual clip": Case({"dual_clip": 1.3}, {"loss_type": "bnpo", "delta": 1.3}, moves="dual_clip_fraction"),
    "kl of each sequence": Case(
        {"variant": "grpo", **NONE, "kl": "loss", "kl_coef": 0.2},
        {"loss_type": "grpo", "beta": 0.2, "use_bias_correction_kl": False},
        moves="kl_reference",
    ),
    "kl of all tokens": Case(
        {"variant": "dapo", **NONE, "kl": "loss", "kl_coef": 0.2},
        {"loss_type": "dapo", "epsilon_high": 0.28, "beta": 0.2, "use_bias_correction_kl": False},
        moves="kl_reference",
    ),
    "entropy": Case(
        {"normalization": "token", "entropy_coef": 0.05}, {"loss_type": "bnpo", "entropy_coef": 0.05}, moves="entropy"
    ),
    "temperature": Case({}, {"loss_type": "bnpo", "temperature": 0.6}),
    "sampler truncated": Case(
        {},
        {
            "loss_type": "bnpo",
            "vllm_importance_sampling_mode": "token_truncate",
            "vllm_importance_sampling_clip_max": 1.25,
        },
        moves="importance_truncated",
        settings={"off_policy": "token", "off_policy_cap": 1.25},
    ),
    "sampler masked": Case(
        {},
        {
            "loss_type": "bnpo",
            "vllm_importance_sampling_mode": "sequence_mask",
            "vllm_importance_sampling_clip_max": 1.5,
        },
        moves="sequences_masked",
        settings={"off_policy": "sequence", "off_policy_cap": 1.5},
    ),
}
DEVIATIONS = ("group", "batch")


@pytest.fixture(scope="module")
def attempts(policy: Policy) -> dict[str, list[Group]]:
    """By case; of two turns each but for the first of a group, so that what a tool says is among the tokens."""
    return {
        name: with_sampler(
            random_groups(3, turns=2),
            policy.learner(case.theirs.get("temperature", 1.0)).logprobs,
            noise=case.noise,
        )
        for name, case in CASES.items()
    }


@pytest.fixture(scope="module")
def unequal(attempts: dict[str, list[Group]]) -> list[Group]:
    """The attempts with a group in which all were graded alike."""
    first, *others = attempts["dapo"]
    return [_graded(first, [1.0] * 4), *others]


@pytest.fixture(scope="module")
def theirs(
    policy: Policy,
    attempts: dict[str, list[Group]],
    unequal: list[Group],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Found]:
    jobs: dict[str, Any] = {}
    for name, case in CASES.items():
        config = {"beta": 0.0, "scale_rewards": "none", "temperature": 1.0, **case.theirs}
        about = {"importance_sampling": True} if case.settings else {"old": True}
        jobs[name] = {"trainer": "grpo", "config": config, **about, **as_rollouts(attempts[name])}
    plain = {"trainer": "grpo", **as_rollouts(attempts["grpo"])}
    for scale in DEVIATIONS:
        jobs[f"std of {scale}"] = plain | {"config": {"scale_rewards": scale, "temperature": 1.0}}
    config = {"loss_type": "dapo", "epsilon_high": 0.28, "scale_rewards": "none", "temperature": 1.0}
    jobs["unequal"] = {"trainer": "grpo", "config": config, "old": True, **as_rollouts(unequal)}
    return ask_trl(tmp_path_factory.mktemp("trl-grpo"), policy, jobs)


@pytest.mark.parametrize("name", list(CASES))
async def test_loss_and_gradient(
    policy: Policy, attempts: dict[str, list[Group]], theirs: dict[str, Found], name: str
) -> None:
    case = CASES[name]
    learner = policy.learner(case.theirs.get("temperature", 1.0))
    ours = await updated(learner, Grpo(GrpoConfig(**case.ours)), attempts[name], **case.settings)
    assert ours.metrics and ours.metrics[case.moves] > 0
    assert_same_advantages(ours.advantages, theirs[name].advantages)
    assert_same(ours, theirs[name])


@pytest.mark.parametrize("scale", DEVIATIONS)
def test_advantages_over_a_deviation_differ_by_its_definition_alone(
    attempts: dict[str, list[Group]], theirs: dict[str, Found], scale: str
) -> None:
    groups = attempts["grpo"]
    optimizer = Grpo(GrpoConfig(normalize_std=scale))
    credits = optimizer.batch_credit(groups, [optimizer.credit(group) for group in groups])
    rewards = [_rewards(group) for group in groups]
    everything = [reward for each in rewards for reward in each]
    expected: list[float] = []
    advantages = iter(theirs[f"std of {scale}"].advantages)
    for each in rewards:
        over = each if scale == "group" else everything
        factor = (statistics.stdev(over) + 1e-4) / (statistics.pstdev(over) + 1e-8)
        expected += [factor * next(advantages) for _ in each]
    assert_same_advantages([given or 0.0 for credit in credits for given in credit.advantages], expected)


async def test_a_group_without_spread_is_left_out_here_and_counted_there(
    policy: Policy, unequal: list[Group], theirs: dict[str, Found]
) -> None:
    ours = await updated(policy.learner(), Grpo(GrpoConfig(variant="dapo", normalize_std="none")), unequal)
    tokens = [sum(len(turn.completion_ids) for each in group.trajectories for turn in each.turns) for group in unequal]
    assert_same(ours, theirs["unequal"].scaled(sum(tokens) / sum(tokens[1:])))


def _rewards(group: Group) -> list[float]:
    return [each.rewards.total for each in group.trajectories if each.rewards]


def _graded(group: Group, rewards: list[float]) -> Group:
    members = zip(group.trajectories, rewards, strict=True)
    return replace(group, trajectories=tuple(replace(each, rewards=Rewards(total=total)) for each, total in members))
