"""Estimates how long a training run will take, from one measured micro-batch and from measured episodes or turns.

Nothing is measured twice for work that takes seconds, and no measurement changes a result: there is no optimizer step,
and the learner restores its random state.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NotRequired

from finqa_cli.algorithms.losses import CrossEntropyLoss
from finqa_cli.algorithms.packing import pack
from finqa_cli.contracts import Learner
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.types import Batch, Loss, Sample, Trajectory
from finqa_cli.types.run_events import RunEvent

SHORT_S = 60.0
"""A run of fewer seconds gets no estimate."""

WANTED_S = 600.0
"""Seconds that the proposed shorter run may take."""

LONG_S = 1.5 * WANTED_S
"""Seconds from which on a shorter run is proposed."""

WORTH_A_SECOND_LOOK = 50
"""Micro-batches from which on a second measurement costs little of the run."""

MEASURED_MEMBERS = 2
"""Attempts at one question in the micro-batch that is measured: they show what a shared opening saves."""

EVENT = "estimate"

Again = Callable[[Mapping[str, object]], str]
"""Returns the command of this run with other values of some settings; empty if it cannot be repeated."""


class Estimated(RunEvent):
    """A training run of more than a minute begins, and its length was estimated from measurements."""

    event: Literal["estimate"]
    seconds: float
    """Seconds of all remaining work."""
    parts: dict[str, float]
    """Seconds by kind of work."""
    shorter: NotRequired[str]
    """A command that trains less; absent if the run takes at most 15 minutes, or if it was not started by a command."""
    shorter_s: NotRequired[float]
    """Seconds of that command."""


def no_command(changes: Mapping[str, object]) -> str:
    """Return no command: the run was not started by one."""
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """How long the rest of a run will take.

    Attributes:
        parts: Seconds by kind of work.
        shorter: Settings of a shorter run by dotted path; empty if none is proposed.
        shorter_s: Seconds of the shorter run.
    """

    parts: Mapping[str, float]
    shorter: Mapping[str, object] = field(default_factory=dict)
    shorter_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of all parts."""
        return sum(self.parts.values())


def announce(estimate: Estimate | None, folder: RunFolder, reporter: Reporter, again: Again) -> None:
    """Show and record an estimate, unless the run is short."""
    if estimate is None or estimate.seconds < SHORT_S:
        return
    shorter = again(estimate.shorter) if estimate.shorter else ""
    parts = {name: round(seconds, 1) for name, seconds in estimate.parts.items()}
    proposal = {"shorter": shorter, "shorter_s": round(estimate.shorter_s, 1)} if shorter else {}
    folder.event(EVENT, seconds=round(estimate.seconds, 1), parts=parts, **proposal)
    named = ", ".join(f"{name} {minutes(seconds)}" for name, seconds in estimate.parts.items() if seconds >= 1)
    reporter.line(f"Estimated time: about {minutes(estimate.seconds)} ({named}).")
    if shorter:
        reporter.line(f"Shorter: {shorter}   (about {minutes(estimate.shorter_s)})")


def minutes(seconds: float) -> str:
    """Return a duration for people: `40 s`, `8 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * 3600 else f"{seconds / 3600:.1f} h"


async def measure_gradient(learner: Learner, batch: Batch, loss: Loss, *, times: float) -> float | None:
    """Return the seconds of a micro-batch, without a step.

    Args:
        learner: The learner.
        batch: A batch of one micro-batch.
        loss: Its loss.
        times: How often such a batch will be computed. The first computation is slower than the others, so it is
            repeated if the run is not short.

    Returns:
        None if the learner cannot measure.
    """
    first = await asyncio.to_thread(learner.rehearse, batch, loss)
    if first is None or first * times < SHORT_S or times < WORTH_A_SECOND_LOOK:
        return first
    second = await asyncio.to_thread(learner.rehearse, batch, loss)
    return first if second is None else min(first, second)


@dataclass(slots=True)
class Pace:
    """Episodes that were played, and how long they took together.

    Attributes:
        episodes: Number of episodes.
        seconds: Wall-clock seconds.
        tokens: Tokens of all episodes, prompts included.
        sampled: Sampled tokens of all episodes.
        opening: Tokens of all first prompts.
    """

    episodes: int = 0
    seconds: float = 0.0
    tokens: int = 0
    sampled: int = 0
    opening: int = 0
    began: float = field(default_factory=time.perf_counter)

    def add(self, trajectory: Trajectory) -> None:
        """Count an episode that has ended."""
        if not trajectory.status.is_fault and trajectory.turns:
            self.episodes += 1
            self.tokens += trajectory.tokens
            self.sampled += trajectory.sampled_tokens
            self.opening += len(trajectory.turns[0].prompt_ids)
        self.seconds = time.perf_counter() - self.began

    def sample_batch(self, *, padded: bool, token_budget: int) -> Batch:
        """Return a micro-batch of attempts with the mean lengths of these episodes; their content does not matter."""
        opening, whole = (max(1, round(count / self.episodes)) for count in (self.opening, self.tokens))
        sampled = min(max(1, round(self.sampled / self.episodes)), max(1, whole - opening))
        length = max(whole, opening + 1)
        samples = [_sample(opening, length, sampled, member) for member in range(MEASURED_MEMBERS)]
        return pack(samples, token_budget=max(token_budget, 2 * length), max_rows=len(samples), padded=padded)


def _sample(opening: int, length: int, sampled: int, member: int) -> Sample:
    nothing = (0.0,) * length
    return Sample(
        token_ids=(1,) * opening + (2 + member,) * (length - opening),
        loss_mask=(False,) * (length - sampled) + (True,) * sampled,
        logprobs=nothing,
        advantages=nothing,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """The work of the iterations that are left.

    Attributes:
        iterations: Number of iterations.
        groups: Groups of an iteration.
        group_size: Attempts of a group.
        passes: Forward and backward passes over each episode of an iteration.
        evaluations: Number of evaluations.
        held_out: Episodes of an evaluation.
    """

    iterations: int
    groups: int
    group_size: int
    passes: int
    evaluations: int
    held_out: int


async def estimate_iterations(learner: Learner, pace: Pace, plan: RolloutPlan, token_budget: int) -> Estimate | None:
    """Estimate the rest of a training run by reinforcement learning.

    Args:
        learner: Measures a micro-batch.
        pace: Episodes of the preflight or of the first evaluation.
        plan: What is left to do.
        token_budget: Most tokens of a micro-batch.

    Returns:
        None if no episode was played, or if the learner cannot measure.
    """
    episodes = plan.iterations * plan.groups * plan.group_size
    if not pace.episodes or not episodes:
        return None
    played = pace.seconds / pace.episodes
    padded = not await asyncio.to_thread(learner.packs)
    batch = pace.sample_batch(padded=padded, token_budget=token_budget)
    times = plan.passes * episodes / MEASURED_MEMBERS
    update = await measure_gradient(learner, batch, CrossEntropyLoss(), times=times)
    if update is None:
        return None
    parts = {
        "rollouts": played * episodes,
        "updates": update * times,
        "evaluations": played * plan.held_out * plan.evaluations,
    }
    whole = sum(parts.values())
    if whole < LONG_S:
        return Estimate(parts=parts)
    one = (whole - parts["evaluations"]) / plan.iterations  # seconds of an iteration
    once = played * plan.held_out
    room = WANTED_S - min(once, WANTED_S / 3)
    iterations = max(1, min(plan.iterations, int(room / one), 4))
    groups = max(1, min(plan.groups, int(plan.groups * room / (one * iterations))))
    questions = max(1, min(plan.held_out, int(WANTED_S / 3 / played))) if plan.held_out else 0
    changes: dict[str, object] = {"train.iterations": iterations, "train.target_groups_per_iter": groups}
    if questions < plan.held_out:
        changes["eval.limit"] = questions
    shorter_s = one * iterations * groups / plan.groups + played * questions
    return Estimate(parts=parts, shorter=changes, shorter_s=shorter_s)


def shorter_epochs(path: str, epochs: float, parts: Mapping[str, float]) -> Estimate:
    """Return the estimate of training on a file, and how many epochs take about `WANTED_S`.

    Args:
        path: Setting of the number of epochs.
        epochs: Its value.
        parts: Seconds by kind of work.
    """
    whole = sum(parts.values())
    if whole < LONG_S:
        return Estimate(parts=parts)
    fewer = float(f"{epochs * WANTED_S / whole:.1g}")
    if fewer > 1:
        fewer = float(int(fewer))
    return Estimate(parts=parts, shorter={path: fewer}, shorter_s=whole * fewer / epochs)


def length_of(samples: Sequence[Sample]) -> int:
    """Return the number of tokens of samples."""
    return sum(len(sample.token_ids) for sample in samples)
