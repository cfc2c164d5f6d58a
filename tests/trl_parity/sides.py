"""The two sides: our updates on a learner that stays where it is, and TRL's trainers in their environment."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from fixtures.tiny_learners import gradient, make_learner, relative
from safetensors.torch import load_file
from trl_parity.interpreter import PYTHON

from finqa_cli.algorithms.credit import assign_credit
from finqa_cli.algorithms.pair_batches import PairSamples, pair_batch, with_pair_references
from finqa_cli.algorithms.samples import attach_rows
from finqa_cli.contracts import Optimizer
from finqa_cli.settings import TrainSettings
from finqa_cli.training.rl.updates import Updates
from finqa_cli.types import Batch, Group, Loss, UpdateReport
from finqa_plugins.learners.torch.torch_learner import TorchLearner
from finqa_plugins.optimizers.recorded_methods import Dpo

SCRIPT = Path(__file__).with_name("trl_side.py")
TOLERANCE = 1e-5
RANK, ALPHA = 4, 8


@dataclass(frozen=True, slots=True)
class Found:
    """What one side makes of a batch.

    Attributes:
        loss: Of the whole batch.
        gradient: Of all trained weights, flat.
        advantages: By member, one group after the other; empty for pairs.
        metrics: Of the update; empty for TRL.
    """

    loss: float
    gradient: torch.Tensor
    advantages: tuple[float, ...] = ()
    metrics: Mapping[str, float] | None = None

    def scaled(self, factor: float) -> Found:
        """Loss and gradient times a factor."""
        return Found(self.loss * factor, self.gradient * factor, self.advantages)


def assert_same(ours: Found, theirs: Found, *, loss: bool = True) -> None:
    """Loss and gradient are, within a relative difference of 1e-5."""
    assert theirs.gradient.norm() > 0
    assert relative(ours.gradient, theirs.gradient) <= TOLERANCE
    if loss:
        assert theirs.loss != 0
        assert abs(ours.loss - theirs.loss) <= TOLERANCE * abs(theirs.loss)


def assert_same_advantages(ours: Sequence[float], theirs: Sequence[float]) -> None:
    """They are, within a relative difference of 1e-5 in the norm of all of them."""
    assert len(ours) == len(theirs) > 0
    assert relative(torch.tensor(ours), torch.tensor(theirs)) <= TOLERANCE


class Policy:
    """A base model, which is the reference, and an adapter on it that does not stand at 0, known to both sides.

    Learners of any temperature begin from it and are never moved: their learning rate is 0.
    """

    def __init__(self, folder: Path, model: Path) -> None:
        self.model, self.adapter, self._saved = model, folder / "adapter", folder / "state"
        learner = make_learner(model, learning_rate=0.0, lora_rank=RANK, lora_alpha=ALPHA)
        torch.manual_seed(1)
        with torch.no_grad():
            for name, part in learner._trained.items():
                if "lora_B" in name:
                    part.normal_(std=0.05)
        learner.publish(self.adapter, 0)
        learner.save(self._saved)

    def learner(self, temperature: float = 1.0) -> TorchLearner:
        """One that samples at the temperature."""
        learner = make_learner(self.model, learning_rate=0.0, lora_rank=RANK, lora_alpha=ALPHA, temperature=temperature)
        learner.load(self._saved)
        return learner


class Recorder:
    """Stands in for the learner in an update, and keeps what it was asked for."""

    keeps_reference = has_value_function = True

    def __init__(self, learner: TorchLearner, *, anchored: bool) -> None:
        self._learner = learner
        self._anchored = anchored
        self.logprobs, self.reference_logprobs = learner.logprobs, learner.reference_logprobs
        self.asked: list[tuple[Batch, Loss]] = []

    def packs(self) -> bool:
        """Micro-batches are padded."""
        return False

    def update(self, batch: Batch, loss: Loss) -> UpdateReport:
        """A step, and what it was made of; anchored, its ratio is to the policy that sampled, as in a later step."""
        if self._anchored:
            rows = [sample.logprobs for sample in batch.samples]
            batch = replace(batch, samples=attach_rows(batch.samples, proximal_logprobs=rows))
        self.asked.append((batch, loss))
        return self._learner.update(batch, loss)


async def updated(learner: TorchLearner, optimizer: Optimizer, groups: Sequence[Group], **settings: Any) -> Found:
    """What an iteration's one update makes of the groups: credit, KL, normalization, micro-batches and loss.

    With `off_policy` among the settings it corrects for the sampler; otherwise the sampler is the anchor of its ratio,
    which is what TRL's log-probabilities of the old policy are.
    """
    corrects = "off_policy" in settings
    recorder = Recorder(learner, anchored=not corrects)
    train = TrainSettings(**{"max_staleness": 0, "token_budget": 150, "off_policy": "none", **settings})
    updates = Updates(recorder, optimizer, train)  # type: ignore[arg-type]
    reports = [report async for report in updates.take(groups, assign_credit(optimizer, groups))]
    ((batch, loss),) = recorder.asked
    assert len(batch.microbatches) > 1, "the cut is part of what is compared"
    by_episode = {sample.episode: max(sample.advantages, key=abs) for sample in batch.samples}
    members = [member.id for group in groups for member in group.trajectories]
    return Found(
        loss=reports[0].loss,
        gradient=gradient(learner, batch, loss),
        advantages=tuple(by_episode.get(member, 0.0) for member in members),
        metrics=reports[0].metrics,
    )


def preferred(learner: TorchLearner, optimizer: Dpo, pairs: Sequence[PairSamples]) -> Found:
    """What one step makes of the pairs."""
    samples = [sample for pair in pairs for sample in pair.samples]
    batch = pair_batch(with_pair_references(pairs, learner.reference_logprobs(samples)), token_budget=100)
    loss = optimizer.pair_loss()
    return Found(loss=learner.update(batch, loss).loss, gradient=gradient(learner, batch, loss))


def ask_trl(folder: Path, policy: Policy, jobs: Mapping[str, Any]) -> dict[str, Found]:
    """What TRL's trainers make of each job; one process for all of them, because its imports take seconds."""
    assert PYTHON is not None, "the fixture of the policy skips"
    lora = {key: json.loads((policy.adapter / "adapter_config.json").read_text())[key] for key in _LORA}
    asked = {"model": str(policy.model), "adapter": str(policy.adapter), "lora": lora, "jobs": jobs}
    (folder / "jobs.json").write_text(json.dumps(asked))
    done = subprocess.run([PYTHON, SCRIPT, folder], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    gradients = load_file(folder / "gradients.safetensors")
    answers = json.loads((folder / "answers.json").read_text())
    return {
        name: Found(each["loss"], gradients[name], tuple(each.get("advantages", ()))) for name, each in answers.items()
    }


_LORA = ("r", "lora_alpha", "lora_dropout", "target_modules", "task_type")
