"""Learners: the only owners of trainable weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from finqa_cli.errors import FinqaError
from finqa_cli.types import Batch, LossSpec, PolicyVersion, Sample, UpdateReport


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerContext:
    """What wiring tells a learner.

    Attributes:
        model: Folder or hub id of the base model.
        learning_rate: AdamW step size.
        lora_rank: 0 trains all weights.
        lora_alpha: Scale numerator of the adapter.
        lora_dropout: Dropout on the adapter's input.
        lora_target_modules: Names of the linear layers that get an adapter.
        gradient_checkpointing: Recompute activations in the backward pass.
        max_grad_norm: Global gradient norm is clipped to this.
        temperature: Sampling temperature of the rollouts; log-probabilities are taken at the same temperature.
        seed: Seed of the initialisation and of dropout.
        token_budget: Most tokens of a forward pass that the learner cuts itself (scoring); 0 leaves it the choice.
        processes: How many processes train together. The learner starts all but the first, this one.
        devices: CUDA device index, as this process sees them, of each learner process; empty: chosen by the learner.
        logs: Folder for the output of processes that the learner starts; None writes it to stderr.
    """

    model: str
    learning_rate: float
    lora_rank: int = 16
    lora_alpha: int = 32
    lora_dropout: float = 0.0
    lora_target_modules: tuple[str, ...] = ()
    gradient_checkpointing: bool = True
    max_grad_norm: float = 1.0
    temperature: float = 1.0
    seed: int = 0
    token_budget: int = 0
    processes: int = 1
    devices: tuple[int, ...] = ()
    logs: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerEvents:
    """Receives what a learner reports beside its results. Called in any thread.

    Attributes:
        event: Name and facts of an event for the run's records, such as a smaller token budget.
        failed: Another process of the learner is gone, also between two calls.
    """

    event: Callable[[str, Mapping[str, Any]], None]
    failed: Callable[[FinqaError], None]


@runtime_checkable
class Learner(Protocol):
    """Constructed as `Learner(config, context)`. Methods block; callers run them in a thread."""

    def start(self) -> None:
        """Loads the model and makes the trainable parameters. Idempotent.

        Raises:
            ConfigError: The model folder is incomplete, or a target module does not exist.
        """
        ...

    def update(self, batch: Batch, loss: LossSpec) -> UpdateReport:
        """One optimizer step over the batch. The gradient does not depend on how it is cut into micro-batches.

        Raises:
            ConfigError: The learner does not know the loss or one of its parameters.
            FinqaError: The loss is not finite; the weights are left as they were.
        """
        ...

    def logprobs(self, samples: Sequence[Sample]) -> tuple[tuple[float, ...], ...]:
        """[N][L] log-probability of each masked token under the current weights, 0.0 elsewhere."""
        ...

    def publish(self, folder: Path, number: int) -> PolicyVersion:
        """Writes the current weights (a PEFT adapter, or the whole model) so that an engine can load them."""
        ...

    def save(self, folder: Path) -> None:
        """Writes weights, optimizer state and random state, enough to continue exactly."""
        ...

    def load(self, folder: Path) -> None:
        """Restores what `save` wrote.

        Raises:
            ConfigError: It belongs to another base model, rank or set of target modules.
        """
        ...


@runtime_checkable
class ReportingLearner(Protocol):
    """A learner that reports events, and that may start processes of its own (`LearnerContext.processes`)."""

    def report_to(self, events: LearnerEvents) -> None:
        """Sends events there from now on."""
        ...

    def close(self) -> None:
        """Ends the processes that it started. Idempotent; no other call follows."""
        ...


@runtime_checkable
class ReferenceLearner(Protocol):
    """A learner that still knows the policy that training began from."""

    def reference_logprobs(self, samples: Sequence[Sample]) -> tuple[tuple[float, ...], ...]:
        """[N][L] log-probability of each masked token under the reference policy, 0.0 elsewhere.

        At the same temperature as `logprobs`. Weights, gradients and random state stay as they are.
        """
        ...


@runtime_checkable
class ValueLearner(Protocol):
    """A learner with a value function, which losses with `value_coef` train and `save` and `load` keep."""

    def values(self, samples: Sequence[Sample]) -> tuple[tuple[float, ...], ...]:
        """[N][L] value of the state in which each masked token was sampled, 0.0 elsewhere."""
        ...


@runtime_checkable
class LearnerProcesses(Protocol):
    """The processes that `torchrun` started, of which this is one, and whose learners train together.

    Attributes:
        leads: This is the first: it does all that a command does, and its learners make the others take part.
    """

    leads: bool

    def serve(self) -> int:
        """In the others: takes part in whatever the first one's learners are asked, and in nothing else.

        Returns:
            The exit status, once the first closed or is gone, or this one failed.
        """
        ...

    def close(self) -> None:
        """In the first: ends the others' service. Idempotent for a group that failed."""
        ...


@runtime_checkable
class PacksSequences(Protocol):
    """A learner that may take a micro-batch as one row without padding."""

    def packs(self) -> bool:
        """Whether it does, with this model: then a micro-batch costs the tokens of its samples, otherwise its samples
        times the longest. Starts the learner.
        """
        ...
