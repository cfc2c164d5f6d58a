"""`rloo` beside TRL's RLOOTrainer, on the same attempts.

TRL's ratio and clip are of a whole completion, ours of a token, and its loss is the mean over completions of the ratio
times the advantage, ours (with normalization=constant and a length of 1) that of the sum over tokens. So gradients are
equal where the policy is the one that sampled, and losses and clips as well where completions are of one token.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs finqa[train]")

from trl_parity.recorded import as_rollouts, random_groups, with_sampler
from trl_parity.sides import Found, Policy, ask_trl, assert_same, assert_same_advantages, updated

from finqa_cli.types import Group
from finqa_plugins.optimizers.reinforce import Rloo, RlooConfig

SUMS = {"normalization": "constant", "normalization_length": 1}


@pytest.fixture(scope="module")
def on_policy(policy: Policy) -> list[Group]:
    return with_sampler(random_groups(5), policy.learner().logprobs, noise=0.0)


@pytest.fixture(scope="module")
def off_policy(policy: Policy) -> list[Group]:
    """Of one token each."""
    return with_sampler(random_groups(6, longest=1, groups=6), policy.learner().logprobs, noise=1.0)


@pytest.fixture(scope="module")
def theirs(
    policy: Policy, on_policy: list[Group], off_policy: list[Group], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Found]:
    plain = {"trainer": "rloo", "config": {"beta": 0.0, "temperature": 1.0}}
    penalized = {"trainer": "rloo", "config": {"beta": 0.3, "temperature": 1.0}}
    jobs = {
        "plain": plain | as_rollouts(on_policy),
        "penalized": penalized | as_rollouts(on_policy),
        "one token": plain | {"old": True} | as_rollouts(off_policy),
    }
    return ask_trl(tmp_path_factory.mktemp("trl-rloo"), policy, jobs)


@pytest.mark.parametrize(
    ("name", "options"), [("plain", {}), ("penalized", {"kl": "reward", "kl_coef": 0.3, "kl_estimator": "k1"})]
)
async def test_advantages_and_gradient_on_policy(
    policy: Policy, on_policy: list[Group], theirs: dict[str, Found], name: str, options: dict[str, object]
) -> None:
    optimizer = Rloo(RlooConfig.model_validate({**SUMS, **options}))
    ours = await updated(policy.learner(), optimizer, on_policy)
    assert_same_advantages(ours.advantages, theirs[name].advantages)
    assert_same(ours, theirs[name], loss=False)


def test_the_penalty_moves_the_advantages(theirs: dict[str, Found]) -> None:
    pairs = zip(theirs["plain"].advantages, theirs["penalized"].advantages, strict=True)
    assert max(abs(plain - penalized) for plain, penalized in pairs) > 0.01


async def test_loss_and_clip_off_policy_where_completions_are_one_token(
    policy: Policy, off_policy: list[Group], theirs: dict[str, Found]
) -> None:
    ours = await updated(policy.learner(), Rloo(RlooConfig.model_validate(SUMS)), off_policy)
    assert ours.metrics and ours.metrics["clip_fraction"] > 0
    assert_same(ours, theirs["one token"])
