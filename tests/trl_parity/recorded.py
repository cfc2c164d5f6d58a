"""Random attempts and pairs, as our types and as the lists that TRL takes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from finqa_cli.algorithms.pair_batches import PairSamples
from finqa_cli.algorithms.samples import trajectory_samples
from finqa_cli.types import Group, Rewards, Sample, Status, Task, Trajectory, Turn

VOCAB = 300
Rows = Sequence[tuple[float, ...]]


def random_groups(seed: int, *, turns: int = 1, longest: int = 24, groups: int = 3, members: int = 4) -> list[Group]:
    """Groups of attempts with rewards that differ; every member but the first has `turns` turns."""
    rng = random.Random(seed)
    return [_group(rng, f"q{number}", turns, longest, members) for number in range(groups)]


def with_sampler(groups: Sequence[Group], logprobs: Callable[[Sequence[Sample]], Rows], *, noise: float) -> list[Group]:
    """The groups as if sampled by a policy whose log-probabilities differ from `logprobs` by at most `noise`."""
    # of the seeds tried, 9 puts a ratio within 6e-8 of a clip, where rounding decides a gradient
    rng = random.Random(10)
    rows = iter(logprobs([sample for group in groups for each in group.trajectories for sample in _samples(each)]))

    def sampled(trajectory: Trajectory) -> Trajectory:
        masked = (
            float(logp) for logp, chosen in zip(next(rows), _samples(trajectory)[0].loss_mask, strict=True) if chosen
        )
        turns = tuple(
            replace(turn, logprobs=tuple(next(masked) + rng.uniform(-noise, noise) for _ in turn.completion_ids))
            for turn in trajectory.turns
        )
        return replace(trajectory, turns=turns)

    return [replace(group, trajectories=tuple(map(sampled, group.trajectories))) for group in groups]


def as_rollouts(groups: Sequence[Group]) -> dict[str, Any]:
    """Prompts, and what follows for each member: ids, which of them it sampled, log-probabilities, reward."""
    attempts = [trajectory for group in groups for trajectory in group.trajectories]
    rows = [(_samples(each)[0], len(each.turns[0].prompt_ids)) for each in attempts]
    return {
        "prompts": [group.trajectories[0].turns[0].prompt_ids for group in groups],
        "completions": [sample.token_ids[start:].tolist() for sample, start in rows],
        "masks": [[int(chosen) for chosen in sample.loss_mask[start:]] for sample, start in rows],
        "logprobs": [sample.logprobs[start:].tolist() for sample, start in rows],
        "rewards": [each.reward for each in attempts],
    }


def random_pairs(seed: int, count: int, *, length: int = 0) -> list[PairSamples]:
    """Pairs of completions of one prompt each; both are of `length`, or of any length from 3 to 20."""
    rng = random.Random(seed)

    def side(prompt: tuple[int, ...], sign: float) -> tuple[Sample, ...]:
        chosen = _ids(rng, length or rng.randint(3, 20))
        mask = (False,) * len(prompt) + (True,) * len(chosen)
        signs = tuple(sign if masked else 0.0 for masked in mask)
        return (Sample(token_ids=prompt + chosen, loss_mask=mask, logprobs=(0.0,) * len(mask), advantages=signs),)

    prompts = [_ids(rng, rng.randint(4, 16)) for _ in range(count)]
    return [
        PairSamples(id=f"p{place}", cluster="", chosen=side(prompt, 1.0), rejected=side(prompt, -1.0))
        for place, prompt in enumerate(prompts)
    ]


def as_preferences(pairs: Sequence[PairSamples]) -> list[dict[str, Any]]:
    """What TRL's collator takes."""

    def part(sample: Sample, wanted: bool) -> list[int]:
        return [
            token for token, masked in zip(sample.token_ids.tolist(), sample.loss_mask, strict=True) if masked == wanted
        ]

    return [
        {
            "prompt_ids": part(pair.chosen[0], False),
            "chosen_ids": part(pair.chosen[0], True),
            "rejected_ids": part(pair.rejected[0], True),
        }
        for pair in pairs
    ]


def _group(rng: random.Random, name: str, turns: int, longest: int, members: int) -> Group:
    task, prompt = Task(id=name, prompt="?", split="train", cluster="ACME"), _ids(rng, rng.randint(4, 16))
    rewards = rng.sample([0.0, 0.1, 0.25, 0.5, 0.8, 1.0], members)

    def played(member: int) -> Trajectory:
        given = [prompt, *(_ids(rng, rng.randint(2, 8)) for _ in range(turns - 1 if member else 0))]
        sampled = [_ids(rng, rng.randint(min(3, longest), longest)) for _ in given]
        return Trajectory(
            id=f"train/{name}/{member}",
            task=task,
            member=member,
            seed=0,
            status=Status.COMPLETED,
            rewards=Rewards(total=rewards[member]),
            turns=tuple(
                Turn(prompt_ids=before, completion_ids=after, logprobs=(0.0,) * len(after))
                for before, after in zip(given, sampled, strict=True)
            ),
        )

    return Group(task=task, trajectories=tuple(played(member) for member in range(members)))


def _samples(trajectory: Trajectory) -> tuple[Sample, ...]:
    return trajectory_samples(trajectory, 1.0)


def _ids(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(VOCAB) for _ in range(count))
