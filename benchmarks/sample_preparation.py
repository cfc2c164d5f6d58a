"""How long the event loop stands still while an iteration's samples are made, and what they take of memory.

    python -m benchmarks.sample_preparation [--episodes 600] [--tokens 8000]

A ticker asks for its turn every millisecond while `Updates` takes the steps of PPO (credit, values, GAE, whitening, KL
in the reward, four epochs of four steps) with a learner that scores with zeros. The stall is the longest time that the
ticker waited beyond its millisecond: what every connection of the rollouts waits for as well.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from finqa_cli.algorithms.credit import assign_credit
from finqa_cli.algorithms.samples import trajectory_samples
from finqa_cli.contracts import Learner
from finqa_cli.extend import registry
from finqa_cli.settings import TrainSettings
from finqa_cli.training.rl.updates import Updates
from finqa_cli.types import (
    Batch,
    FloatRow,
    Group,
    Loss,
    PolicyVersion,
    Rewards,
    Sample,
    Status,
    Task,
    Trajectory,
    Turn,
    UpdateReport,
)

LARGEST_STALL_S = 0.2
LARGEST_BYTES = 20.0
_GROUP = 8
_TURNS = 4


class ZeroLearner(Learner):
    """Scores with zeros and takes steps that do nothing, so that what is measured is the preparation alone."""

    keeps_reference = True
    has_value_function = True

    def start(self) -> None:
        """Nothing to load."""

    def update(self, batch: Batch, loss: Loss) -> UpdateReport:
        """A report of zeros."""
        return UpdateReport(loss=0, grad_norm=0, learning_rate=0, tokens=0, loss_tokens=batch.loss_tokens, seconds=0)

    def logprobs(self, samples: Sequence[Sample]) -> tuple[FloatRow, ...]:
        """Zeros."""
        return tuple(np.zeros(len(sample.token_ids), dtype=np.float32) for sample in samples)

    def reference_logprobs(self, samples: Sequence[Sample]) -> tuple[FloatRow, ...]:
        """Zeros."""
        return self.logprobs(samples)

    def values(self, samples: Sequence[Sample]) -> tuple[FloatRow, ...]:
        """Zeros."""
        return self.logprobs(samples)

    def packs(self) -> bool:
        """As the PyTorch learner does."""
        return True

    def publish(self, folder: Path, number: int) -> PolicyVersion:
        """Returns a version without weights."""
        return PolicyVersion(number=number, model=str(folder))

    def save(self, folder: Path) -> None:
        """Nothing is saved."""

    def load(self, folder: Path) -> None:
        """Nothing is loaded."""


def played_groups(episodes: int, tokens: int) -> list[Group]:
    """Groups of 8 attempts of several turns, a quarter of whose tokens are prompts and replies."""
    rng = random.Random(0)
    groups = []
    for number in range(episodes // _GROUP):
        task = Task(id=f"q{number}", prompt="", split="train", cluster=f"q{number}")
        members = []
        for member in range(_GROUP):
            sampled = tokens * 3 // 4 // _TURNS
            turns = tuple(
                Turn(
                    prompt_ids=tuple(rng.randrange(50_000) for _ in range(tokens // 4 // _TURNS)),
                    completion_ids=tuple(rng.randrange(50_000) for _ in range(sampled)),
                    logprobs=tuple(-rng.random() for _ in range(sampled)),
                )
                for _ in range(_TURNS)
            )
            rewards = Rewards(total=float(rng.random() < 0.5))
            name = f"{task.id}/{member}"
            members.append(
                Trajectory(
                    id=name, task=task, member=member, seed=0, status=Status.COMPLETED, turns=turns, rewards=rewards
                )
            )
        groups.append(Group(task=task, trajectories=tuple(members)))
    return groups


async def longest_stall(groups: Sequence[Group]) -> tuple[float, float]:
    """Seconds that the ticker waited at most, and seconds of the whole iteration."""
    optimizer = registry().create("optimizer", "ppo", {})
    updates = Updates(ZeroLearner(), optimizer, TrainSettings())
    credits = assign_credit(optimizer, groups)
    waits = [0.0]

    async def tick() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            waits.append(time.perf_counter() - began - 0.001)

    ticker = asyncio.create_task(tick())
    began = time.perf_counter()
    async for _ in updates.take(groups, credits):
        pass
    took = time.perf_counter() - began
    ticker.cancel()
    with suppress(asyncio.CancelledError):
        await ticker
    return max(waits), took


def bytes_per_token(groups: Sequence[Group]) -> float:
    """Bytes of a sample's rows by token: ids, mask, log-probabilities and advantages."""
    samples = [sample for one in groups[0].trajectories for sample in trajectory_samples(one, 1.0)]
    rows = [row for one in samples for row in (one.token_ids, one.loss_mask, one.logprobs, one.advantages)]
    return sum(row.nbytes for row in rows) / sum(len(sample.token_ids) for sample in samples)


def main() -> int:
    """Measures once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=600)
    parser.add_argument("--tokens", type=int, default=8000)
    arguments = parser.parse_args()
    groups = played_groups(arguments.episodes, arguments.tokens)
    stall, took = asyncio.run(longest_stall(groups))
    print(f"{arguments.episodes} episodes of {arguments.tokens} tokens: {took:.1f} s, longest stall {stall:.3f} s")
    print(f"{bytes_per_token(groups):.1f} bytes a token")
    return 0 if stall < LARGEST_STALL_S and bytes_per_token(groups) < LARGEST_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
