"""Which demonstrations and which pairs training on a file takes, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from fixtures.tiny_learners import random_samples
from fixtures.toy_environment import ToyCodec

from finqa_cli.algorithms.pair_batches import PairSamples
from finqa_cli.contracts.preference_method import PairPlan
from finqa_cli.runs.trajectory_records import Demonstration
from finqa_cli.settings import Settings
from finqa_cli.training.preference.preference_loop import pair_steps
from finqa_cli.training.sft.sft_run import imitation_set, imitation_steps
from finqa_cli.types import Message, Prompt

COUNT = 12
Steps = Callable[[float, int], list[list[str]]]


def demonstrations(epochs: float, seed: int) -> list[list[str]]:
    """Ids, by step; 60 tokens are some of them."""
    samples = [replace(sample, episode=str(number)) for number, sample in enumerate(random_samples(COUNT))]
    settings = Settings.model_validate({"sft": {"epochs": epochs, "batch_tokens": 60}, "train": {"seed": seed}})
    steps = imitation_steps(samples, settings)
    assert all(sum(len(sample.token_ids) for sample in step) <= 60 for step in steps)
    return [[sample.episode for sample in step] for step in steps]


def pairs(epochs: float, seed: int) -> list[list[str]]:
    """Ids, by step."""
    (sample,) = random_samples(1)
    found = [PairSamples(id=str(number), cluster="", chosen=(sample,), rejected=(sample,)) for number in range(COUNT)]
    plan = PairPlan(epochs=epochs, pairs_per_step=5, warmup_share=0.0, validate_every=1)
    steps = pair_steps(found, plan, seed)
    assert {len(step) for step in steps[:-1]} == {5}
    return [[pair.id for pair in step] for step in steps]


def flat(steps: Sequence[Sequence[str]]) -> list[str]:
    return [name for step in steps for name in step]


@pytest.mark.parametrize("steps_of", [demonstrations, pairs])
def test_each_epoch_has_all_of_them_in_an_order_of_its_own(steps_of: Steps) -> None:
    names = flat(steps_of(2.5, 1))
    first, second, half = names[:COUNT], names[COUNT : 2 * COUNT], names[2 * COUNT :]
    assert sorted(first, key=int) == sorted(second, key=int) == [str(number) for number in range(COUNT)]
    assert len(set(half)) == len(half) == COUNT // 2
    assert len({tuple(order[: COUNT // 2]) for order in (first, second, half)}) == 3


@pytest.mark.parametrize("steps_of", [demonstrations, pairs])
def test_the_order_follows_from_the_seed(steps_of: Steps) -> None:
    assert steps_of(2.0, 1) == steps_of(2.0, 1) != steps_of(2.0, 2)


@pytest.mark.parametrize("seed", range(3))
def test_no_demonstration_of_a_held_out_company_is_trained_on(seed: int) -> None:
    prompt = Prompt(messages=(Message(role="user", content="2+2?"),), tools=())
    said = (Message(role="assistant", content="4"),)
    demonstrations = [
        Demonstration(id=f"c{number % 5}/{number}", prompt=prompt, messages=said, cluster=f"c{number % 5}", reward=1.0)
        for number in range(COUNT)
    ]
    settings = Settings.model_validate({"sft": {"validation_share": 0.3}, "train": {"seed": seed}})
    found = imitation_set(demonstrations, settings, ToyCodec())
    train, held_out = ([sample.episode for sample in part] for part in (found.train, found.held_out))
    assert sorted([*train, *held_out]) == sorted(item.id for item in demonstrations)
    companies, others = ({name.partition("/")[0] for name in part} for part in (train, held_out))
    assert (companies, len(others)) == (found.companies, 2)
    assert not companies & others
