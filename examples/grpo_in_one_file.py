"""GRPO in one file: an agent learns to answer questions about 10-K tables, on two processor cores, in two minutes.

    python examples/grpo_in_one_file.py

The algorithm is written in plain PyTorch. The episodes are played by parts of finqa: an environment with tools in local
sandboxes, a pool of sandboxes, an engine that samples tokens, a codec between messages and token ids, and a player. An
iteration of `train` has four parts:

1. `play_groups`: the policy answers each question several times, in sandboxes, and every attempt is graded.
2. `group_advantages`: the reward of an attempt is compared with those of the other attempts at the same question.
3. `Policy.update`: steps of AdamW on a LoRA adapter with the clipped policy gradient.
4. `Policy.publish`: the adapter is written to a folder, from which the engine loads it.

`finqa train` does the same with more features: any model on any device, rollouts during updates, recovery, records on
disk. With the same settings it reports the same figures, which `tests/examples` checks. The method is equation 3 of
Shao et al., "DeepSeekMath", arXiv 2402.03300, without the KL term.
"""

from __future__ import annotations

import asyncio
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from finqa_cli import logs
from finqa_cli.algorithms.samples import trajectory_samples
from finqa_cli.contracts import TokenEngine
from finqa_cli.rollout.attempts import Attempt, AttemptPlayer
from finqa_cli.rollout.seeds import TaskWalk, derive
from finqa_cli.rollout.stream import play_all
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.settings import Settings, load_settings
from finqa_cli.types import Group, PolicyVersion, Sample
from finqa_cli.wiring.policies import resolve
from finqa_cli.wiring.stage import stage

FLAGS = {
    "model.name": "embedded",  # a Qwen3 of 0.9 million weights that ships with finqa; its answers are mostly wrong
    "environment.options.grader": "strict-3",  # of the embedded data, whose tool the policy knows
    "engine.name": "transformers",
    "sandbox.name": "local",
    "pool.sandboxes": 4,
    "pool.sessions_per_sandbox": 16,  # 64 attempts at once
    "train.iterations": 8,
    "train.group_size": 8,  # attempts at one question, so that 8 groups fill the sandboxes
    "train.target_groups_per_iter": 0,  # no target: an iteration fills the sandboxes
    "train.max_rollout_rounds": 1,  # one round only
    "train.updates_per_iteration": 2,  # in the second step, the policy is no longer the one that sampled
    "train.learning_rate": 1e-3,
    "train.seed": 0,
    "lora.rank": 16,
    "lora.alpha": 32,
    "generation.temperature": 1.0,
    "optimizer.name": "grpo",
    "optimizer.options.variant": "grpo",
    "optimizer.options.clip_low": 0.2,
    "optimizer.options.clip_high": 0.2,
}
"""Settings, with the names of `finqa train --set NAME=VALUE`."""

EQUAL_REWARDS = 1e-6
LARGEST_CORRECTION = 2.0


async def train(settings: Settings, folder: Path) -> list[dict[str, float]]:
    """Trains the policy, prints the figures of each iteration and returns them.

    Args:
        settings: Settings of `finqa train`; the file uses those in `FLAGS` and the limits of an episode.
        folder: Folder for the adapters.
    """
    torch.set_num_threads(1)  # more threads do not help such a small model
    start = resolve(settings.model.name)  # version 0: the model without an adapter
    learner = Policy(start.model, settings)
    figures = []
    async with stage(settings, start, run_id="grpo-in-one-file", reporter=NullReporter(), trains=True) as parts:
        assert isinstance(parts.engine, TokenEngine), "`stage` returns a token engine for training"
        player = parts.player(settings, temperature=settings.generation.temperature)
        walk = TaskWalk(parts.environment.tasks(settings.data.train_split), seed=settings.train.seed)
        for iteration in range(1, settings.train.iterations + 1):
            groups = await play_groups(player, walk, iteration, settings)
            samples = [sample for group in groups for sample in group_samples(group)]
            steps = await asyncio.to_thread(learner.update, samples)
            if steps:
                await parts.engine.load(learner.publish(folder))
            figures.append(summarize(iteration, groups, steps))
            print_row(figures[-1])
    return figures


# 1. Rollouts


async def play_groups(player: AttemptPlayer, walk: TaskWalk, iteration: int, settings: Settings) -> list[Group]:
    """Plays `train.group_size` attempts at each of the next questions of the walk, until the sandboxes are full.

    An attempt leases a sandbox and opens a session of its question there. The engine continues the conversation and
    the sandbox runs the tool calls in it, until the policy submits an answer, which the environment grades. All
    random choices in an attempt are determined by its seed.
    """
    pool, size, seed = settings.pool, settings.train.group_size, settings.train.seed
    tasks = [walk.next()[1] for _ in range(pool.sandboxes * pool.sessions_per_sandbox // size)]
    attempts = [
        Attempt(
            id=f"train/{iteration:04d}/{number}/{task.id}/{member}",
            task=task,
            member=member,
            seed=derive(seed, "attempt", iteration, number, task.id, member),
        )
        for number, task in enumerate(tasks)
        for member in range(size)
    ]
    played = await play_all(player, attempts, concurrency=pool.concurrency, on_trajectory=lambda _: None)
    return [
        Group(task=task, trajectories=tuple(played[number * size : (number + 1) * size]))
        for number, task in enumerate(tasks)
    ]


# 2. Credit


def group_advantages(rewards: Sequence[float]) -> list[float]:
    """Returns A_i = (r_i - mean(r)) / (std(r) + 1e-8) for the attempts at one question; empty if all r_i are equal.

    Such a group, all right or all wrong, does not show which attempt is better, so it is not used.
    """
    if len(rewards) < 2 or max(rewards) - min(rewards) <= EQUAL_REWARDS:
        return []
    row = torch.tensor(rewards, dtype=torch.float64)
    advantages: list[float] = ((row - row.mean()) / (row.std(correction=0) + 1e-8)).tolist()
    return advantages


def group_samples(group: Group) -> list[Sample]:
    """Returns the token sequences of a group: prompt, completion, tool reply, completion, ... exactly as sampled.

    A sample marks the tokens that the policy chose, with their log-probabilities at that time and the advantage of the
    attempt. An attempt that ended in an infrastructure fault has no reward and is skipped.
    """
    graded = [(member, member.reward) for member in group.trajectories if member.reward is not None]
    advantages = group_advantages([reward for _, reward in graded])
    if not advantages:
        return []
    pairs = zip(graded, advantages, strict=True)
    return [sample for (member, _), advantage in pairs for sample in trajectory_samples(member, advantage)]


# 3. Update


@dataclass(frozen=True)
class Tokens:
    """A batch of B sequences, padded on the right to L tokens. Shapes [B, L - 1] exclude the first token of each.

    Attributes:
        ids: [B, L] token ids. Attention is causal, so no token attends to the padding.
        mask: [B, L - 1] True where the policy chose the token.
        sampled: [B, L - 1] the engine's log-probability of the token when it sampled it.
        advantages: [B, L - 1] the advantage of the attempt where the policy chose the token.
        weights: [B, L - 1] 1 / (N |o|) for N attempts of |o| chosen tokens each: the mean over attempts of token means.
    """

    ids: torch.Tensor
    mask: torch.Tensor
    sampled: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor


def make_tokens(samples: Sequence[Sample]) -> Tokens:
    """Makes a batch from samples."""

    def padded(name: str) -> torch.Tensor:
        return pad_sequence([torch.from_numpy(getattr(sample, name)) for sample in samples], batch_first=True)

    chosen: Counter[str] = Counter()
    for sample in samples:
        chosen[sample.episode] += sample.loss_tokens
    mask = padded("loss_mask")[:, 1:]
    weights = torch.tensor([1.0 / (len(chosen) * chosen[sample.episode]) for sample in samples])
    return Tokens(
        ids=padded("token_ids").long(),
        mask=mask,
        sampled=padded("logprobs")[:, 1:],
        advantages=padded("advantages")[:, 1:],
        weights=weights[:, None] * mask,
    )


def clipped_loss(
    logprobs: torch.Tensor, anchor: torch.Tensor, batch: Tokens, low: float, high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the loss, and the share of the chosen tokens whose gradient the clip removes.

    r = exp(logprobs - anchor) is the ratio of the current policy to the one before the first step: 1 in that step. A
    token contributes min(r A, clip(r, 1 - low, 1 + high) A): a token whose probability has already changed by more than
    the clip in the direction of A has no gradient any more.

    The engine and the learner, which computes the anchor, round differently. The ratio of the anchor to the engine's
    probability corrects for this, with a maximum of 2 (truncated importance sampling).

    Args:
        logprobs: [B, L - 1] under the current weights, with gradient.
        anchor: [B, L - 1] under the weights before the first step.
        batch: The tokens.
        low: Largest distance of the ratio below 1.
        high: Largest distance of the ratio above 1.
    """
    ratio = (logprobs - anchor).exp()
    clipped = ratio.clamp(1.0 - low, 1.0 + high)
    correction = (anchor - batch.sampled).exp().clamp(max=LARGEST_CORRECTION)
    objective = correction * torch.minimum(ratio * batch.advantages, clipped * batch.advantages)
    cut_off = (clipped * batch.advantages < ratio * batch.advantages) & batch.mask
    return -(batch.weights * objective).sum(), cut_off.sum() / batch.mask.sum()


class Policy:
    """The weights that are trained: a LoRA adapter on a causal language model, with its optimizer."""

    def __init__(self, model: str, settings: Settings) -> None:
        """Loads the model and adds an adapter whose initial output is 0, so that the policy equals the model."""
        lora, self.train, self.settings = settings.lora, settings.train, settings
        config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=[*lora.target_modules] or "all-linear")
        base: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        torch.manual_seed(self.train.seed)
        self.model: Any = get_peft_model(base, config).eval()  # without dropout: the engine has none either
        self.weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        assert self.train.learning_rate, "settings that were read always have one"
        self.optimizer = torch.optim.AdamW(self.weights, lr=self.train.learning_rate, weight_decay=0.0)
        self.version = PolicyVersion(number=0, model=model)

    def logprobs(self, batch: Tokens) -> torch.Tensor:
        """Returns [B, L - 1] the log-probability of each token after the first, at the temperature of the rollouts."""
        logits = self.model(input_ids=batch.ids, use_cache=False).logits[:, :-1]
        normalized = torch.log_softmax(logits / self.settings.generation.temperature, dim=-1)
        return normalized.gather(-1, batch.ids[:, 1:, None])[..., 0]

    def update(self, samples: Sequence[Sample]) -> list[dict[str, float]]:
        """Runs the steps of an iteration, each on its share of the samples, and returns the figures of each step."""
        count, options = self.train.updates_per_iteration, self.settings.optimizer.options
        batches = [make_tokens(share) for first in range(count) if (share := samples[first::count])]
        with torch.no_grad():
            anchors = [self.logprobs(batch) for batch in batches]
        steps = []
        for batch, anchor in zip(batches, anchors, strict=True):
            logprobs = self.logprobs(batch)
            loss, cut_off = clipped_loss(logprobs, anchor, batch, options["clip_low"], options["clip_high"])
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            norm = torch.nn.utils.clip_grad_norm_(self.weights, self.train.max_grad_norm)
            self.optimizer.step()
            steps.append({"loss": loss.item(), "grad_norm": norm.item(), "clip_fraction": cut_off.item()})
        return steps

    # 4. Weight sync

    def publish(self, folder: Path) -> PolicyVersion:
        """Writes the adapter in PEFT's format, as the next version."""
        number = self.version.number + 1
        self.model.save_pretrained(folder / f"v{number:05d}")
        self.version = PolicyVersion(number=number, model=self.version.model, adapter=folder / f"v{number:05d}")
        return self.version


def summarize(iteration: int, groups: Sequence[Group], steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """Returns the figures of an iteration, such as mean loss, largest gradient norm and last clip fraction."""
    rewards = [member.reward for group in groups for member in group.trajectories if member.reward is not None]
    return {
        "iteration": iteration,
        "groups": len(groups),
        "informative": sum(1 for group in groups if group_samples(group)),
        "reward_mean": sum(rewards) / len(rewards),
        "loss": sum(step["loss"] for step in steps) / len(steps) if steps else 0.0,
        "grad_norm": max((step["grad_norm"] for step in steps), default=0.0),
        "clip_fraction": steps[-1]["clip_fraction"] if steps else 0.0,
    }


def print_row(figures: dict[str, float]) -> None:
    """Prints the figures of an iteration, with a header before the first one."""
    if figures["iteration"] == 1:
        print("".join(f"{name:>14}" for name in figures))
    print("".join(f"{value:>14.4g}" for value in figures.values()), flush=True)


def main() -> None:
    """Trains with `FLAGS`. Other settings come from the usual layers of `finqa`, such as the profile of the model."""
    logs.configure()
    transformers_logging.disable_progress_bar()
    warnings.simplefilter("ignore", FutureWarning)  # PEFT uses names that transformers deprecates
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(train(load_settings(flags=FLAGS).settings, Path(folder)))


if __name__ == "__main__":
    main()
